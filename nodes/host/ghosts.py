"""Modes `light` and `accurate`: deviations as further items of the sampler's batch, its ghosts.

The sampler moves images and ghosts alike; the network runs on the images only, as the stock
sampler would call it, so their bits are the stock sampler's. A ghost is told
denoised + what the deviation changes, which bayesdiff_core.deviations works out; at nodes by extra
calls of the network, each of them in the shape of a stock call, so that masks, areas of memory and
every patch of the model see nothing unusual.
"""

import inspect
from collections.abc import Callable

import comfy.model_management
import torch
from comfy.k_diffusion import sampling as k_diffusion

from ...bayesdiff_core.bayesdiff import Predict
from ...bayesdiff_core.checks import BayesDiffError
from ...bayesdiff_core.deviations import Deviations, Plan, plan, shared_plan
from ...bayesdiff_core.trajectory import Trajectory
from . import memory
from .predicting import Predictor
from .recording import Recording
from .sampling import SamplerRun, StandIn, is_flow

POST_CFG = "sampler_post_cfg_function"
HOST_MODULES = ("comfy.k_diffusion.", "comfy.extra_samplers.", "comfy.samplers")
# Options with which a sampler draws noise, or measures, over the whole of its batch.
BATCH_OPTIONS = ("s_churn", "noise_clip_std")


class Ghosts:
    def __init__(self, predictor: Predictor, seeds: list[int], keep_steps: int, *, share: float,
                 nodes: int = 0, deviations: int = 0, meaning: str = "independent",
                 weight_seed: int = 0):
        self.predictor, self.tap = predictor, predictor.tap
        self._seeds, self._keep_steps, self._share = seeds, keep_steps, share
        self._nodes, self._deviations, self._meaning = nodes, deviations, meaning
        self._weight_seed = weight_seed
        self.trajectory: Trajectory | None = None
        self.calls = self.extra_calls = 0
        self.uncertain: list[int] = []  # steps with extra calls
        self._unfinished: _Ride | None = None  # of a run that was left and may go on (tape.py)

    @property
    def notes(self) -> list[str]:
        return self.predictor.notes

    def run(self, run: SamplerRun) -> torch.Tensor:
        _check_sampler(run)
        flow = is_flow(run.model_sampling)
        chosen = chosen_plan(run.sigmas, flow, self._share, self._nodes, self._deviations,
                             self._meaning)
        run.progress.extra, self.uncertain = chosen.evaluations, chosen.steps(run.sigmas)

        def deviations() -> Deviations:
            return Deviations(chosen, self._meaning, self._seeds, flow, self._weight_seed)

        ride = self._unfinished = self._unfinished or _Ride(run, self.predictor, deviations)
        ride.run = run
        recording = Recording(run, self._seeds, self._keep_steps, chosen.early + chosen.late,
                              chosen.early)

        def callback(info: dict) -> None:
            batch = len(run.x)
            ours = {**info, "x": info["x"][:batch], "denoised": info["denoised"][:batch],
                    "variance": lambda: ride.state(info["denoised"])[1]}
            recording.see(ours["denoised"])
            recording.add_entering(info, lambda: ride.state(info["x"]))
            run.callback(ours)

        count = 1 + chosen.early + chosen.late
        together = run.x.repeat(count, *[1] * (run.x.ndim - 1))
        try:
            together = run.go(model=StandIn(run.model, ride.call), x=together, callback=callback,
                              options={**run.options, **_shared_noise(run, count)})
        finally:
            self.calls, self.extra_calls = ride.calls, ride.extra_calls
            ride.run = None  # with which goes the network
        self._unfinished = None
        self.trajectory = recording.finish(*ride.state(together))
        return together[:len(run.x)]


class _Ride:
    """What the sampler's model calls are answered with, during one run."""

    def __init__(self, run: SamplerRun, predictor: Predictor, deviations: Callable):
        self.run, self._predictor, self._batch = run, predictor, len(run.x)
        # The second answers for the unconditional result, which cfg_pp samplers read besides. Its
        # seeds are the same: both branches' errors come from the same weights.
        self._deviations, self._unconditional = deviations(), deviations()
        self._known_functions = len(run.extra_args["model_options"].get(POST_CFG, []))
        self._mask: torch.Tensor | float = 1.0
        self.calls = self.extra_calls = 0

    def state(self, together: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Images, their variance, and the deviations: K x B x ..."""
        x, deviations = self._split(together)
        variance = self._deviations.variance(deviations)
        # It is smoothed, and must not leak to pixels that are pasted over.
        known = torch.as_tensor(self._mask, device=x.device) == 0
        return x, variance.masked_fill(known, 0.0), deviations

    def _split(self, together: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = together[:self._batch]
        return x, together[self._batch:].unflatten(0, (-1, self._batch)) - x

    def call(self, together: torch.Tensor, sigma: torch.Tensor, **kwargs) -> torch.Tensor:
        x, deviations = self._split(together)
        sigma, level = sigma[:self._batch], float(sigma[0])
        self.calls += 1
        functions, kwargs, seen = self._take_out(kwargs)
        call = self._predictor.call(self.run, x, sigma, kwargs)
        self._mask = call.mask

        def widened(denoised, riding, predictive, predict: Predict, mask=1.0) -> torch.Tensor:
            d = (x - denoised) / level
            moved = riding.respond(level, x, deviations, d, predictive, predict, mask)
            ghosts = denoised + deviations - level * moved
            return torch.cat([denoised, ghosts.flatten(0, 1).to(denoised)])

        uncond = seen.pop()["uncond_denoised"] if functions else None
        denoised = widened(call.denoised, self._deviations, call.predictive,
                           lambda at, _: self._probe(at, sigma, kwargs), call.mask)
        if functions:
            probed = [args["uncond_denoised"] for args in seen]
            uncond = widened(uncond, self._unconditional, call.unconditional,
                             lambda at, _: (at - torch.cat(probed)) / level)
        for function in functions:
            denoised = function({"denoised": denoised, "uncond_denoised": uncond,
                                 "input": together, "sigma": sigma,
                                 "model_options": kwargs["model_options"]})
        return denoised

    def _probe(self, at: torch.Tensor, sigma: torch.Tensor, kwargs: dict) -> torch.Tensor:
        """d at a multiple of the batch, one stock-shaped call after the other."""
        found = []
        for part in at.split(self._batch):
            comfy.model_management.throw_exception_if_processing_interrupted()
            with memory.advice(memory.EXTRA_CALLS):
                found.append((part - self.run.model(part, sigma, **kwargs)) / float(sigma[0]))
            self.extra_calls += 1
            self.run.progress.tick()
        return torch.cat(found)

    def _take_out(self, kwargs: dict) -> tuple[list[Callable], dict, list[dict]]:
        """A cfg_pp sampler reads the unconditional result through a function that it adds to the
        model options. It wants to see ghosts there too: so what it would be told is put aside."""
        options = kwargs["model_options"]
        functions = options.get(POST_CFG, [])
        known, added = functions[:self._known_functions], functions[self._known_functions:]
        seen: list[dict] = []
        if not added:
            return [], kwargs, seen

        def put_aside(args: dict) -> torch.Tensor:
            seen.append(args)
            return args["denoised"]

        return added, {**kwargs, "model_options": {**options, POST_CFG: [*known, put_aside]}}, seen


def chosen_plan(sigmas: torch.Tensor, flow: bool, share: float, nodes: int, deviations: int,
                meaning: str) -> Plan:
    """share: extra calls as a share of the steps."""
    make = plan if meaning == "independent" else shared_plan
    return make(sigmas, max(1, int(share * (len(sigmas) - 1))), flow, nodes, deviations)


def _check_sampler(run: SamplerRun) -> None:
    """Only what is known to move the items of its batch independently and linearly."""
    name, module = run.function.__name__, run.function.__module__
    if not module.startswith(HOST_MODULES):
        why = "it is not one of ComfyUI's own, so it may look at its batch as a whole"
    elif "adaptive" in name:
        why = "it chooses its steps by an error that all items of its batch share"
    elif name == "sample_ar_video":
        why = "it samples one frame after the other"
    elif any(run.options.get(option) for option in BATCH_OPTIONS):
        given = {option: run.options[option] for option in BATCH_OPTIONS if option in run.options}
        why = f"with {given} it draws or clips noise over its batch as a whole; set these to 0"
    else:
        return
    raise BayesDiffError(f"the sampler {name} cannot carry deviations: {why}. Choose another"
                         " sampler, or trajectory variance (mode free), which works with all.")


def _shared_noise(run: SamplerRun, count: int) -> dict:
    """A noise_sampler option that gives an image and its ghosts the noise that the stock sampler
    would give to the image; nothing for samplers that take none."""
    if "noise_sampler" not in inspect.signature(run.function).parameters:
        return {}
    draw = run.options.get("noise_sampler") or _default_noise(run)
    return {"noise_sampler": lambda *levels: draw(*levels).repeat(count, *[1] * (run.x.ndim - 1))}


def _default_noise(run: SamplerRun) -> Callable:
    """What the function itself would make."""
    seed, name = run.extra_args.get("seed"), run.function.__name__
    if name.startswith("sample_dpmpp") and "_sde" in name:
        lowest = run.sigmas[run.sigmas > 0].min()
        return k_diffusion.BrownianTreeNoiseSampler(run.x, lowest, run.sigmas.max(), seed=seed,
                                                    cpu=not name.endswith("_gpu"))
    return k_diffusion.default_noise_sampler(run.x, seed=seed)
