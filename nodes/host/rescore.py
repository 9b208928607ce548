"""What a model makes of finished pictures when noise is put on them again.

It runs as a sampler under the host's own guider, as a fit does, so that the host loads the model,
prepares the conditioning and guides. No trajectory is needed: any picture will do.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

import comfy.model_management
import comfy.samplers
import comfy.utils
import torch

from ...bayesdiff_core import checks, confidence, evidence
from ...bayesdiff_core.checks import BayesDiffError
from ...bayesdiff_core.trajectory import mixed_seed
from . import memory
from .fit import checked, encoded
from .network.parameterization import is_flow

WEIGHTS = confidence.PICTURE_ONLY
MAPS = [name for name in confidence.MAP if not name.startswith("late")]
RATIOS = sorted({*evidence.DRAWS, *evidence.REDRAW}, reverse=True)


class Effort(NamedTuple):
    draws: Mapping[float, int]  # noise-to-signal ratio -> noises
    redraws: int

    @property
    def calls(self) -> int:
        return evidence.calls_of_picture(*self)


FULL = Effort(evidence.DRAWS, evidence.REDRAWS)
QUICK = Effort(dict.fromkeys(evidence.DRAWS, 2), 2)


class Prompt(NamedTuple):
    """CONDITIONINGs. Without a negative, cfg is 1."""

    positive: list
    negative: list | None = None
    cfg: float = 1.0


class Rescored(NamedTuple):
    """Of one batch; the parts are B values each, the variance is shaped as the latent."""

    parts: dict[str, torch.Tensor]
    variance: torch.Tensor
    notes: tuple[str, ...]


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
            raise BayesDiffError("the latent is an empty one (all 0), a picture to score was"
                                 " expected: link what a sampler or VAE Encode gives.")
        found.append({**latent, "samples": samples})
    return found


def rescored(model, prompts: list[Prompt], latents: list[dict], seed: int,
             effort: Effort = FULL) -> list[Rescored]:
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
                           " batches, which are compared with each other all the same."):
            guider.sample(torch.zeros_like(samples), samples, scorer, scorer.sigmas(model),
                          denoise_mask=latent.get("noise_mask"), disable_pbar=True, seed=seed)
        found.append(scorer.found)
    return found


class Rescorer(comfy.samplers.Sampler):
    """Scores the latent image that a guider hands over; all pictures share the noises."""

    def __init__(self, seed: int, effort: Effort, progress):
        self._seed, self._effort, self._progress = seed, effort, progress
        self.found: Rescored | None = None

    def sigmas(self, model) -> torch.Tensor:
        """The levels that are asked for, falling, as a schedule."""
        frame = _Frame.of(model.get_model_object("model_sampling"))
        levels = [evidence.level(frame.within(ratio), frame.flow) for ratio in RATIOS]
        return torch.tensor([*levels, 0.0])

    @torch.no_grad()
    def sample(self, model_wrap, sigmas, extra_args, callback, noise, latent_image=None,
               denoise_mask=None, disable_pbar=False):
        frame = _Frame.of(model_wrap.inner_model.model_sampling)

        def denoise(x: torch.Tensor, sigma: float) -> torch.Tensor:
            comfy.model_management.throw_exception_if_processing_interrupted()
            _check_prompt(model_wrap.conds["positive"], sigma)
            denoised = model_wrap(x, x.new_full((len(x),), sigma), **extra_args)
            self._progress.update(1)
            return denoised

        def shared(number: int) -> torch.Tensor:
            generator = torch.Generator().manual_seed(mixed_seed(self._seed, number))
            return torch.randn((1, *latent_image.shape[1:]), generator=generator).to(latent_image)

        maps = evidence.of_picture(denoise, latent_image, shared, frame.flow, *self._effort,
                                   reach=frame.reach)
        maps = {name: one.cpu() for name, one in maps.items()}  # not every device has float64
        for one in maps.values():
            checks.finite("what the network made of the pictures", one)
        notes = list(frame.notes())
        if denoise_mask is not None:
            notes.append("the latent has a noise mask, and the whole picture is scored all the"
                         " same")
        self.found = Rescored(
            _parts(maps, latent_image.cpu()),
            _variance([maps[name] for name in MAPS], model_wrap.inner_model),
            tuple(notes))
        return latent_image


class _Frame(NamedTuple):
    """A model's noise levels."""

    flow: bool
    reach: tuple[float, float]  # least and greatest sigma

    @classmethod
    def of(cls, model_sampling) -> "_Frame":
        return cls(is_flow(model_sampling), (float(model_sampling.sigma_min),
                                             float(model_sampling.sigma_max)))

    def within(self, ratio: float) -> float:
        return evidence.within(ratio, *self)

    def notes(self):
        for ratio in RATIOS:
            taken = self.within(ratio)
            if taken != ratio:
                yield (f"the model knows noise levels from {self.reach[0]:.4g} to"
                       f" {self.reach[1]:.4g} only: noise of {taken:.3g} times the signal was"
                       f" taken in place of {ratio}")


def _parts(maps: Mapping[str, torch.Tensor], picture: torch.Tensor) -> dict[str, torch.Tensor]:
    relative = {name: evidence.relative(one, picture) for name, one in maps.items()}
    return {name: evidence.contrast(picture) if name == confidence.CONTRAST
            else confidence.part(name, relative) for name in WEIGHTS}


def _variance(maps: list[torch.Tensor], model) -> torch.Tensor:
    """The joint map, as high in each channel as the maps are in it on average, in the LATENT's
    scale."""
    channels = torch.stack(maps).double().flatten(3).mean((0, 3))
    root = (confidence.joint_map(maps) * channels.reshape(
        *channels.shape, *[1] * (maps[0].ndim - 2))).float().sqrt()
    return (model.process_latent_out(root)
            - model.process_latent_out(torch.zeros_like(root))).square()


def _check_prompt(conds: list[dict], sigma: float) -> None:
    if not any(cond.get("timestep_start", math.inf) >= sigma >= cond.get("timestep_end", 0.0)
               for cond in conds):
        raise BayesDiffError(f"the prompt leaves noise level {sigma:.4g} out, at which the pictures"
                             " are looked at: remove its start and end percents for scoring.")
