"""The host's samplers, what they cost, and which of them are known to move the items of their batch
each by itself and linearly, so that deviations can ride along and leave the picture as it is.

A sampler that is not known to is not trusted: its runs are observed in mode free.
"""

from typing import NamedTuple

import comfy.samplers

from ....bayesdiff_core.checks import BayesDiffError

HOST_MODULES = ("comfy.k_diffusion.", "comfy.extra_samplers.", "comfy.samplers")
# Options with which a sampler draws noise, or measures, over the whole of its batch.
BATCH_OPTIONS = ("s_churn", "noise_clip_std")


class Calls(NamedTuple):
    """Network calls of a run that ends at sigma 0: so many a step, less some at its end."""

    a_step: int = 1
    less: int = 0
    at_sigmas: bool = False  # the one call of step i is at sigmas[i]

    def of(self, steps: int) -> int:
        return max(self.a_step * steps - self.less, min(steps, 1))


# These sum up their history in one matrix product over the whole batch, whose rounding depends on
# how large the batch is: with riders in it the picture's last bits would change.
AS_ONE = ("sample_sa_solver", "sample_sa_solver_pece", "sample_unipc", "sample_unipc_bh2")
TWO = Calls(2, 1)
ONE = Calls(at_sigmas=True)
KNOWN = {
    "sample_euler": ONE, "sample_euler_cfg_pp": ONE, "sample_euler_ancestral": ONE,
    "sample_euler_ancestral_cfg_pp": ONE, "sample_heun": TWO, "sample_heunpp2": Calls(3, 3),
    "sample_exp_heun_2_x0": TWO, "sample_exp_heun_2_x0_sde": TWO, "sample_dpm_2": TWO,
    "sample_dpm_2_ancestral": TWO, "sample_lms": ONE, "dpm_fast_function": Calls(),
    "sample_dpmpp_2s_ancestral": TWO, "sample_dpmpp_2s_ancestral_cfg_pp": TWO,
    "sample_dpmpp_sde": TWO, "sample_dpmpp_sde_gpu": TWO, "sample_dpmpp_2m": ONE,
    "sample_dpmpp_2m_cfg_pp": ONE, "sample_dpmpp_2m_sde": Calls(),
    "sample_dpmpp_2m_sde_gpu": Calls(), "sample_dpmpp_2m_sde_heun": Calls(),
    "sample_dpmpp_2m_sde_heun_gpu": Calls(), "sample_dpmpp_3m_sde": Calls(),
    "sample_dpmpp_3m_sde_gpu": Calls(), "sample_ddpm": ONE, "sample_lcm": ONE,
    "sample_ipndm": ONE, "sample_ipndm_v": ONE, "sample_deis": ONE,
    "sample_res_multistep": ONE, "sample_res_multistep_cfg_pp": ONE,
    "sample_res_multistep_ancestral": ONE, "sample_res_multistep_ancestral_cfg_pp": ONE,
    "sample_gradient_estimation": ONE, "sample_gradient_estimation_cfg_pp": ONE,
    "sample_er_sde": Calls(), "sample_seeds_2": TWO, "sample_seeds_3": Calls(3, 2),
    "sample_sa_solver": Calls(), "sample_sa_solver_pece": TWO, "sample_unipc": Calls(),
    "sample_unipc_bh2": Calls(),
}


def check_names(sampler: str | None = None, scheduler: str | None = None) -> None:
    """Names that come through a link, as KSampler's own sockets would refuse them: the host would
    take the first of its list in their place, and say nothing."""
    known = comfy.samplers.KSampler
    for kind, name, names in (("sampler", sampler, known.SAMPLERS),
                              ("scheduler", scheduler, known.SCHEDULERS)):
        if name is not None and name not in names:
            other = "make the sigmas" if kind == "scheduler" else "link the sampler"
            raise BayesDiffError(f"{kind} is {str(name)[:80]!r}, which KSampler does not have:"
                                 f" choose one of its {kind}s, or {other} with a node of the pack"
                                 " that has it and use BayesDiff Sampler Custom.")


def calls_of(sampler: comfy.samplers.KSAMPLER, steps: int) -> int | None:
    """None where they are not known."""
    known = KNOWN.get(sampler.sampler_function.__name__) if _is_the_hosts(sampler) else None
    return None if known is None else known.of(steps)


def calls_at_sigmas(sampler: comfy.samplers.KSAMPLER) -> bool:
    """Whether it is known, without asking the device, which noise level a call is at."""
    known = KNOWN.get(sampler.sampler_function.__name__) if _is_the_hosts(sampler) else None
    return known is not None and known.at_sigmas and not sampler.extra_options


def is_known(sampler) -> bool:
    """Whether what it tells its callback is known to be the state on entering a step."""
    return _is_the_hosts(sampler) and sampler.sampler_function.__name__ in KNOWN


def why_not(sampler) -> str | None:
    """Why no deviations can ride along this sampler, in words; None where they can."""
    name = getattr(getattr(sampler, "sampler_function", None), "__name__", type(sampler).__name__)
    if not _is_the_hosts(sampler):
        return f"the sampler {name} is not one of ComfyUI's own"
    if name not in KNOWN:
        return f"the sampler {name} is not known to treat each image of a batch separately"
    if name in AS_ONE:
        return f"the sampler {name} rounds differently for other batch sizes"
    batch = [option for option in BATCH_OPTIONS if sampler.extra_options.get(option)]
    if batch:
        return f"with {' and '.join(batch)} the sampler {name} treats its batch as a whole"
    return None


def _is_the_hosts(sampler) -> bool:
    return isinstance(sampler, comfy.samplers.KSAMPLER) \
        and sampler.sampler_function.__module__.startswith(HOST_MODULES)
