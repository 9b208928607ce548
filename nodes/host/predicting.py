"""One model call with its posterior predictive."""

import functools
from typing import NamedTuple

import comfy.samplers
import comfy.utils
import torch

from ...bayesdiff_core.checks import BayesDiffError
from ...bayesdiff_core.llla import Llla
from ...bayesdiff_core.posterior import Predictive
from .last_layers import last_layer_of
from .layer_probe import check_posterior, checkpoint_warning, fingerprint
from .sampling import SamplerRun, slope
from .tap import FeatureTap, guided

# Of a convolution this large, gamma^2 on every second position is near enough (bench predictive).
COARSE_FROM = 48
GUIDANCE_PATCHES = ("sampler_cfg_function", "sampler_pre_cfg_function", "sampler_post_cfg_function",
                    "sampler_calc_cond_batch_function")


class Call(NamedTuple):
    denoised: torch.Tensor
    predictive: Predictive
    unconditional: Predictive | None  # of the negative prompt alone, where it ran
    mask: torch.Tensor | float  # 0 where known pixels are pasted


class Predictor:
    def __init__(self, model, llla: Llla):
        self.layer = last_layer_of(model)
        check_posterior(llla, self.layer)
        self.tap = FeatureTap(self.layer)
        self._llla, self._compared = llla, False
        self.notes: list[str] = []

    def call(self, run: SamplerRun, x: torch.Tensor, sigma: torch.Tensor, kwargs: dict) -> Call:
        """x: the batch as the sampler has it, sigma: B levels."""
        _check_guider(run.guider)
        self.tap.take()
        denoised = run.model(x, sigma, **kwargs)
        chunks = self.tap.take()
        self._look(run, chunks, kwargs["model_options"])
        mask = _mask(run, sigma, kwargs)
        scale = -self.layer.sign * float(slope(run.model_sampling, sigma[:1])) / float(sigma[0])
        every = 2 if self.layer.shape.kernel and min(x.shape[-2:]) >= COARSE_FROM else 1

        def predictive(cfg: float, mask) -> Predictive:
            return Predictive(
                self._llla.posterior, guided(chunks, cfg, x.shape), self.layer.outputs,
                scale * mask, functools.partial(self.layer.to_grid, latent_shape=x.shape), every)

        with_negative = any(chunk.branch == 1 for chunk in chunks)
        return Call(denoised, predictive(run.guider.cfg, mask),
                    predictive(0.0, 1.0) if with_negative else None, mask)

    def _look(self, run: SamplerRun, chunks, model_options: dict) -> None:
        """Notes, once a run, what the result is only nearly right for."""
        if self._compared:
            return
        self._compared = True
        module = comfy.utils.get_attr(run.host_model, self.layer.path)
        warning = checkpoint_warning(self._llla, fingerprint(module, self.layer,
                                                             chunks[0].features))
        if warning:
            self.notes.append(warning)
        patches = [key for key in GUIDANCE_PATCHES if model_options.get(key)]
        if patches or chunks[-1].group > chunks[0].group:
            self.notes.append("a patch changes the guidance: uncertainty enters as under plain CFG;"
                              " how it spreads is measured with the patch")


def _check_guider(guider) -> None:
    if type(guider).predict_noise is not comfy.samplers.CFGGuider.predict_noise:
        raise BayesDiffError(f"the guider is a {type(guider).__name__}, which combines its prompts"
                             " in its own way; CFGGuider or BasicGuider was expected. Use one of"
                             " these, or trajectory variance (mode free).")


def _mask(run: SamplerRun, sigma: torch.Tensor, kwargs: dict) -> torch.Tensor | float:
    """As the host will apply it at this noise level."""
    mask = kwargs.get("denoise_mask")
    if mask is None:
        return 1.0
    change = kwargs["model_options"].get("denoise_mask_function")  # DifferentialDiffusion
    if change is None:
        return mask
    return change(sigma, mask, extra_options={"model": run.guider, "sigmas": run.sigmas})
