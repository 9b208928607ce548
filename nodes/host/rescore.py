"""What a model makes of finished pictures: noise is put on them again and taken off.

The levels, the maps and what is made of them are in bayesdiff_core.evidence and .doubt.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import comfy.model_management
import comfy.samplers
import comfy.utils
import torch

from ...bayesdiff_core import checks, evidence
from ...bayesdiff_core.checks import BayesDiffError
from ...bayesdiff_core.evidence import Effort
from ...bayesdiff_core.trajectory import mixed_seed
from . import memory
from .fit import checked, encoded
from .network.parameterization import is_flow


class Prompt(NamedTuple):
    """CONDITIONINGs. Without a negative, cfg is 1."""

    positive: list
    negative: list | None = None
    cfg: float = 1.0


class Seen(NamedTuple):
    """Of one batch: B x ... each, on the CPU."""

    maps: dict[str, torch.Tensor]
    picture: torch.Tensor  # in the sampler's space, as the maps are
    notes: tuple[str, ...] = ()


def latents_of(model, latents: list[dict] | None, images: list[torch.Tensor] | None,
               vae) -> list[dict]:
    """The LATENTs to score, as the model takes them: those given, or the images encoded."""
    given = latents if latents else encoded(images, vae) if images else []
    if not given:
        raise BayesDiffError("neither a latent nor an image is linked, or the list is empty; at"
                             " least 1 picture was expected: link a latent, or an image and the"
                             " vae.")
    found = []
    for latent in given:
        samples = checked(model, latent)
        if not samples.any():
            raise BayesDiffError("the latent is empty (all 0), a picture to score was expected:"
                                 " link the output of a sampler or of VAE Encode.")
        found.append({**latent, "samples": samples})
    return found


def rescored(model, prompts: list[Prompt], latents: list[dict], seed: int,
             effort: Effort) -> list[Seen]:
    """One for each LATENT of latents_of, with its prompt."""
    progress = comfy.utils.ProgressBar(effort.calls * len(latents))
    found = []
    for prompt, latent in zip(prompts, latents):
        guider = comfy.samplers.CFGGuider(model)
        conds = {"positive": prompt.positive, "negative": prompt.negative}
        guider.inner_set_conds({name: cond for name, cond in conds.items() if cond is not None})
        guider.set_cfg(prompt.cfg)
        samples, scorer = latent["samples"], Rescorer(seed, effort, progress)
        with memory.advice("memory ran out: score fewer pictures at once, as a list of smaller"
                           " batches."):
            guider.sample(torch.zeros_like(samples), samples, scorer, scorer.sigmas(model),
                          denoise_mask=latent.get("noise_mask"), disable_pbar=True, seed=seed)
        found.append(scorer.found)
    return found


class Rescorer(comfy.samplers.Sampler):
    """Looks at the latent image that a guider hands over."""

    def __init__(self, seed: int, effort: Effort, progress):
        self._seed, self._effort, self._progress = seed, effort, progress
        self.found: Seen | None = None

    def sigmas(self, model) -> torch.Tensor:
        """The levels that are asked for, falling, as a schedule."""
        frame = _Frame.of(model.get_model_object("model_sampling"))
        return torch.tensor([*frame.levels(self._effort), 0.0])

    @torch.no_grad()
    def sample(self, model_wrap, sigmas, extra_args, callback, noise, latent_image=None,
               denoise_mask=None, disable_pbar=False):
        left_out = levels_left_out(model_wrap, self._effort)
        if left_out:
            raise BayesDiffError(f"the prompt leaves noise level {left_out[0]:.4g} out, at which"
                                 " the pictures are checked: remove its start and end percents for"
                                 " scoring.")

        def ask(x: torch.Tensor, sigma: torch.Tensor) -> torch.Tensor:
            denoised = model_wrap(x, sigma, **extra_args)
            self._progress.update(1)
            return denoised

        self.found = looked_at(ask, latent_image, model_wrap.inner_model.model_sampling,
                               self._effort, self._seed)
        if denoise_mask is not None:
            self.found = self.found._replace(notes=(*self.found.notes, (
                "the latent has a noise mask, but the whole picture is scored")))
        return latent_image


Ask = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # x, sigma -> denoised, one call


def looked_at(ask: Ask, picture: torch.Tensor, model_sampling, effort: Effort,
              seed: int = 0) -> Seen:
    """All pictures share the noises."""
    frame = _Frame.of(model_sampling)
    maps = evidence.of_picture(_denoise(ask), picture, _shared_noise(picture, seed), frame.flow,
                               effort, frame.reach)
    seen = _seen(maps, picture, tuple(frame.notes(effort)))
    for one in seen.maps.values():
        checks.finite("what the network made of the pictures", one)
    return seen


def looked_ahead(ask: Ask, x: torch.Tensor, sigmas: torch.Tensor, denoised: torch.Tensor,
                 model_sampling, steps: int) -> Seen:
    """Of a run of so many steps that has come to the first of `sigmas`, where `denoised` was its
    model's answer: the picture that it is heading for."""
    frame = _Frame.of(model_sampling)
    maps, picture = evidence.ahead(_denoise(ask), x, sigmas, denoised, _shared_noise(x, 0),
                                   frame.flow, frame.reach, evidence.ahead_calls(steps))
    return _seen(maps, picture)


def _denoise(ask: Ask) -> evidence.Denoise:
    def denoise(x: torch.Tensor, sigma: float) -> torch.Tensor:
        comfy.model_management.throw_exception_if_processing_interrupted()
        return ask(x, x.new_full((len(x),), sigma))
    return denoise


def _shared_noise(x: torch.Tensor, seed: int) -> Callable[[int], torch.Tensor]:
    def noise(number: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(mixed_seed(seed, number))
        return torch.randn((1, *x.shape[1:]), generator=generator).to(x)
    return noise


def _seen(maps: dict[str, torch.Tensor], picture: torch.Tensor,
          notes: tuple[str, ...] = ()) -> Seen:
    maps = {name: one.to("cpu", torch.float32) for name, one in maps.items()}
    return Seen(maps, picture.to("cpu", torch.float32), notes)


def levels_left_out(guider, effort: Effort) -> list[float]:
    """Noise levels of the effort that no positive prompt of a running guider covers."""
    levels = _Frame.of(guider.inner_model.model_sampling).levels(effort)
    conds = guider.conds.get("positive", [{}])  # other packs' guiders may name them otherwise
    return [level for level in levels if not any(
        cond.get("timestep_start", math.inf) >= level >= cond.get("timestep_end", 0.0)
        for cond in conds)]


class _Frame(NamedTuple):
    """A model's noise levels."""

    flow: bool
    reach: tuple[float, float]  # least and greatest sigma

    @classmethod
    def of(cls, model_sampling) -> "_Frame":
        return cls(is_flow(model_sampling), (float(model_sampling.sigma_min),
                                             float(model_sampling.sigma_max)))

    def levels(self, effort: Effort) -> list[float]:
        """Falling."""
        return [evidence.level(evidence.within(ratio, *self), self.flow)
                for ratio in _ratios(effort)]

    def notes(self, effort: Effort):
        for ratio in _ratios(effort):
            taken = evidence.within(ratio, *self)
            if taken != ratio:
                yield (f"the model knows noise levels from {self.reach[0]:.4g} to"
                       f" {self.reach[1]:.4g} only: noise of {taken:.3g} times the signal was used"
                       f" instead of {ratio}")


def _ratios(effort: Effort) -> list[float]:
    return sorted({*effort.draws, *(evidence.REDRAW if effort.redraws else ())}, reverse=True)
