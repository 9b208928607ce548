"""How a trajectory was sampled, with other links in its place, and as plain words for a file."""

import copy
import inspect
import math
from typing import NamedTuple

import comfy.samplers
import torch

from ....bayesdiff_core.checks import BayesDiffError
from ....bayesdiff_core.trajectory import Part, Trajectory, parts_of
from ..network.parameterization import is_flow
from .sampling import Recipe


class Family(NamedTuple):
    """What two models must have in common to go on from each other's states."""

    network: str
    latent_format: str
    channels: int
    flow: bool

    def __str__(self) -> str:
        return (f"{self.network} ({self.channels} latent channels as in {self.latent_format},"
                f" {'flow' if self.flow else 'no flow'})")


def family_of(model) -> Family:
    latent_format = model.get_model_object("latent_format")
    return Family(type(model.get_model_object("diffusion_model")).__name__,
                  type(latent_format).__name__, latent_format.latent_channels,
                  is_flow(model.get_model_object("model_sampling")))


class Unlinked(NamedTuple):
    """In the place of a recipe's guider, where there is none: what is known of it."""

    family: Family | None = None
    cfg: float | None = None


NOTHING_KNOWN = Recipe(Unlinked(), None, 0, None)


def recipe_of(trajectory: Trajectory) -> Recipe:
    if trajectory.recipe is None:
        raise BayesDiffError("this trajectory does not say how it was sampled, so it cannot be"
                             " resampled: one from BayesDiff KSampler, BayesDiff Sampler Custom or"
                             " BayesDiff Best of N was expected.")
    return trajectory.recipe


class Links(NamedTuple):
    """What takes a recipe's place from a step on; None, or a cfg of 0, where that stays."""

    guider: comfy.samplers.CFGGuider | None = None
    model: object = None
    positive: list | None = None
    negative: list | None = None
    cfg: float = 0.0
    sampler: comfy.samplers.KSAMPLER | None = None

    @property
    def none(self) -> bool:
        return self == Links()

    def into(self, recipe: Recipe) -> Recipe:
        """The recipe with these, complete."""
        sampler = self.sampler or recipe.sampler
        if sampler is None:
            raise BayesDiffError("no sampler is linked, and nothing else says which one to use:"
                                 " link one, for example KSamplerSelect.")
        guider = self._guider(recipe.guider)
        known = recipe.guider.family if isinstance(recipe.guider, Unlinked) else \
            family_of(recipe.guider.model_patcher)
        given = family_of(guider.model_patcher)
        if known not in (None, given):
            raise BayesDiffError(f"the trajectory was sampled by a {known}, and the model given"
                                 f" is a {given}: one of the same family was expected. Leave"
                                 " `model` open to use the trajectory's own.")
        return recipe._replace(guider=guider, sampler=sampler)

    def _guider(self, old):
        links = {"model": self.model, "positive": self.positive, "negative": self.negative,
                 "cfg": self.cfg or None}
        given = [name for name, link in links.items() if link is not None]
        if self.guider is not None:
            if given:
                raise BayesDiffError(f"a guider is linked, and {', '.join(given)} too, which the"
                                     " guider already holds: unlink the guider, or these (cfg: set"
                                     " it to 0).")
            return self.guider
        if isinstance(old, Unlinked):
            cfg = self.cfg or old.cfg
            needed = {**links, "cfg": cfg, "negative": links["negative"] or cfg == 1 or None}
            missing = [name for name, link in needed.items() if link is None]
            if missing:
                raise BayesDiffError(f"missing: {', '.join(missing)}, so it is not known how to"
                                     " continue. Link a guider, or a model with positive, negative"
                                     " and a cfg above 0.")
            guider = comfy.samplers.CFGGuider(self.model)
        else:
            cfg, guider = self.cfg, copy.copy(old)
            guider.original_conds = dict(guider.original_conds)
            if self.model is not None:
                guider.model_patcher, guider.model_options = self.model, self.model.model_options
        if cfg:
            if not has_plain_cfg(guider):
                raise BayesDiffError(f"cfg is {cfg:g}, but the trajectory's guider is a"
                                     f" {type(guider).__name__}, which has no single one: set it to"
                                     " 0, or link a guider.")
            guider.set_cfg(cfg)
        guider.inner_set_conds({name: links[name] for name in ("positive", "negative")
                                if links[name] is not None})
        return guider


def has_plain_cfg(guider) -> bool:
    return type(guider).predict_noise is comfy.samplers.CFGGuider.predict_noise


# ---- for a file: plain words and tensors; the model and its prompts stay behind

OWN_ARGUMENTS = {"model", "x", "sigmas", "extra_args", "callback", "disable", "noise_sampler"}


def packed(trajectory: Trajectory) -> tuple[dict, dict[str, torch.Tensor]]:
    """What is plain of its recipes, as words for JSON and as tensors; nothing where it has none."""
    recipes = [part.recipe for part in parts_of(trajectory)]
    if None in recipes:
        return {}, {}
    words = [_words(recipe) for recipe in recipes]
    masks = [recipe.latent_image.get("noise_mask") for recipe in recipes]
    if any(other != words[0] for other in words) or any(
            mask is not masks[0] and (mask is None or masks[0] is None
                                      or not torch.equal(mask, masks[0])) for mask in masks):
        raise BayesDiffError("this trajectory is joined from parts that were sampled in different"
                             " ways (model, sampler, cfg or mask), which one file cannot hold: save"
                             " them one by one.")
    parts = [{"images": len(recipe.noise), "seed": recipe.seed or 0,
              "batch_index": list(recipe.result.get("batch_index") or [])} for recipe in recipes]
    tensors = {"noise": [recipe.noise for recipe in recipes],
               "latent": [_begun_from(recipe) for recipe in recipes],
               "result": [recipe.result["samples"] for recipe in recipes]}
    if masks[0] is not None:
        tensors["mask"] = masks[:1]
    return {**words[0], "parts": parts}, {name: torch.cat(each).float().cpu()
                                          for name, each in tensors.items()}


def _words(recipe: Recipe) -> dict:
    guider = recipe.guider
    if not isinstance(guider, Unlinked):
        guider = Unlinked(family_of(guider.model_patcher),
                          guider.cfg if has_plain_cfg(guider) else None)
    name, options = _plain_sampler(recipe.sampler)
    return {"family": list(guider.family), "cfg": guider.cfg, "sampler": name, "options": options}


def _plain_sampler(sampler) -> tuple[str | None, dict]:
    """Its name and options; None where they do not say all about it."""
    options = getattr(sampler, "extra_options", {})
    for name in comfy.samplers.SAMPLER_NAMES:
        known = comfy.samplers.sampler_object(name)
        if (getattr(sampler, "sampler_function", None) is known.sampler_function
                and sampler.inpaint_options == known.inpaint_options
                and all(map(_is_plain, options.values()))):
            return name, dict(options)
    return None, {}


def _is_plain(value) -> bool:
    return isinstance(value, (str, int)) or isinstance(value, float) and math.isfinite(value)


def _begun_from(recipe: Recipe) -> torch.Tensor:
    """The latent that sampling began from; an empty one as the host shapes it for the model."""
    samples = recipe.latent_image["samples"]
    return samples if samples.any() else torch.zeros_like(recipe.result["samples"])


def unpacked(trajectory: Trajectory, words: dict, tensors: dict[str, torch.Tensor]) -> Trajectory:
    """With what packed() gave, checked before."""
    if not words:
        return trajectory
    guider, sampler = Unlinked(Family(*words["family"]), words["cfg"]), _sampler(words)
    mask = {"noise_mask": tensors["mask"]} if "mask" in tensors else {}
    parts, at = [], 0
    for part in words["parts"]:
        images = slice(at, at := at + part["images"])
        index = {"batch_index": part["batch_index"]} if part["batch_index"] else {}
        latent, result = ({**index, **mask, "samples": tensors[name][images]}
                          for name in ("latent", "result"))
        parts.append(Part(Recipe(guider, sampler, part["seed"], tensors["noise"][images], latent,
                                 result), part["images"]))
    return trajectory._replace(recipe=tuple(parts) if len(parts) > 1 else parts[0].recipe)


def _sampler(words: dict):
    """None where this host does not have it, or not these options: then one must be linked."""
    name, options = words["sampler"], words["options"]
    if name not in comfy.samplers.SAMPLER_NAMES:
        return None
    sampler = comfy.samplers.sampler_object(name)
    takes = set(inspect.signature(sampler.sampler_function).parameters) - OWN_ARGUMENTS
    return comfy.samplers.KSAMPLER(sampler.sampler_function, options, sampler.inpaint_options) \
        if takes >= set(options) else None
