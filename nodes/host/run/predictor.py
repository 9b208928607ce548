"""One model call with its posterior predictive."""

import functools
from typing import NamedTuple

import comfy.samplers
import comfy.utils
import torch

from ....bayesdiff_core.checks import BayesDiffError
from ....bayesdiff_core.llla import Llla
from ....bayesdiff_core.posterior import Predictive
from ..network.feature_tap import COND, UNCOND, Chunk, FeatureTap, guided
from ..network.last_layers import last_layer_of
from ..network.layer_probe import check_posterior, checkpoint_warning, fingerprint
from ..network.parameterization import slope
from .interceptor import Answer, Guidance, Question
from .sampling import SamplerRun

# Of a convolution this large, gamma^2 on every second position is near enough (bench predictive).
COARSE_FROM = 48
GUIDANCE_PATCHES = ("sampler_cfg_function", "sampler_pre_cfg_function", "sampler_post_cfg_function",
                    "sampler_calc_cond_batch_function")


class Call(NamedTuple):
    answer: Answer
    predictive: Predictive
    unconditional: Predictive | None  # of the negative prompt alone, where it ran and is asked for
    mask: torch.Tensor | float  # 0 where known pixels are pasted


class Predictor:
    def __init__(self, model, llla: Llla):
        self.layer = last_layer_of(model)
        check_posterior(llla, self.layer)
        self.tap = FeatureTap(self.layer)
        self.llla, self._compared = llla, False
        self._posterior = llla.posterior  # on the features' device, once there were some
        self.notes: list[str] = []

    def call(self, run: SamplerRun, question: Question, x: torch.Tensor, level: float) -> Call:
        """x: the images that the question is about; level: its sigma, which stays on the CPU."""
        sigma, foreign = question.sigma[:len(x)], why_no_features(run.guider)
        self.tap.take()
        answer = question.ask(x, prove=foreign is not None)
        chunks = self.tap.take()
        if not chunks:
            raise BayesDiffError("the model answered without its network, as LazyCache and other"
                                 " caches make it do: bypass that node, or use mode free.")
        mask = _mask(run, sigma, question.kwargs)
        if foreign:
            _check_guidance(run.guider, chunks, question.guidance, answer.denoised, mask)
        cfg = question.guidance[0].scale if question.guidance else run.guider.cfg
        like = chunks[0].features[:0].to(x.device)  # another card may have had this prompt
        self._look(run, chunks, question.options, like)
        scale = -self.layer.sign * float(slope(run.model_sampling, torch.tensor([level]))) / level
        coarse = self._posterior.costly and min(x.shape[-2:]) >= COARSE_FROM

        self._posterior = self._posterior.placed(like)

        def predictive(cfg: float, mask) -> Predictive:
            return Predictive(
                self._posterior, guided(chunks, cfg, x.shape, x.device), self.layer.outputs,
                scale * mask, functools.partial(self.layer.to_grid, latent_shape=x.shape),
                2 if coarse else 1)

        asked = answer.uncond is not None and any(chunk.branch == UNCOND for chunk in chunks)
        return Call(answer, predictive(cfg, mask),
                    predictive(0.0, 1.0) if asked else None, mask)

    def _look(self, run: SamplerRun, chunks, model_options: dict, like: torch.Tensor) -> None:
        """Notes, once a run, what the result is only nearly right for."""
        if self._compared:
            return
        self._compared = True
        module = comfy.utils.get_attr(run.host_model, self.layer.path)
        warning = checkpoint_warning(self.llla, fingerprint(module, self.layer, like))
        if warning:
            self.notes.append(warning)
        if self.tap.compiled:
            self.notes.append("the network is compiled as a whole, which shows no features, so it"
                              " ran uncompiled: the picture may differ by rounding from the"
                              " KSampler's. Compile its blocks alone (KJNodes'"
                              " TorchCompileModelAdvanced), or use mode free")
        patches = [key for key in GUIDANCE_PATCHES if model_options.get(key)]
        if patches or chunks[-1].group > chunks[0].group:
            self.notes.append("a patch changes the guidance: uncertainty enters as under plain CFG;"
                              " how it spreads is measured with the patch")


def why_no_features(guider) -> str | None:
    """Why the features of a guided call cannot be told from those of its prompts, in words."""
    if type(guider).predict_noise is comfy.samplers.CFGGuider.predict_noise:
        return None
    return f"the guider {type(guider).__name__} may combine its prompts in its own way"


def _check_guidance(guider, chunks: tuple[Chunk, ...], guidance: list[Guidance],
                    denoised: torch.Tensor, mask) -> None:
    """Of another guider: it must give out what one plain CFG of the two prompts gave, with whatever
    scale."""
    drawn = torch.as_tensor(mask, device=denoised.device) == 1
    if len(guidance) != 1 or not guidance[0].plain \
            or not {chunk.branch for chunk in chunks} <= {COND, UNCOND} \
            or ((guidance[0].denoised != denoised) & drawn).any():
        raise BayesDiffError(f"the guider {type(guider).__name__} combines its prompts in its own"
                             " way: use CFGGuider, BasicGuider, one that only changes the scale, or"
                             " mode free.")


def _mask(run: SamplerRun, sigma: torch.Tensor, kwargs: dict) -> torch.Tensor | float:
    """As the host will apply it at this noise level."""
    mask = kwargs.get("denoise_mask")
    if mask is None:
        return 1.0
    change = kwargs["model_options"].get("denoise_mask_function")  # DifferentialDiffusion
    if change is None:
        return mask
    return change(sigma, mask, extra_options={"model": run.guider, "sigmas": run.sigmas})
