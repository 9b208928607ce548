"""Trajectory files, in output/bayesdiff_trajectories: the kept states and, as words and tensors,
what is plain of the recipe."""

import json
import sys
from pathlib import Path

import folder_paths
import torch

from ...bayesdiff_core.checks import BayesDiffError
from ...bayesdiff_core.evidence import CHECKS
from ...bayesdiff_core.trajectory import Trajectory
from ..version import PACK_VERSION
from . import safe_file
from .names import check_inside
from .safe_file import F32, I64

FOLDER = "bayesdiff_trajectories"
KIND = safe_file.Kind("bayesdiff-trajectory", 1, "a trajectory that Trajectory Save wrote",
                      "save or fetch it again")
MOST_BYTES, MOST_RECIPE = 2 * 2**30, 1_000_000
STATES = ("mean", "variance", "tail")  # kept x B x ...
LATENTS = ("noise", "latent", "result")  # B x ...


def folder() -> Path:
    return Path(folder_paths.get_output_directory()) / FOLDER


def files() -> list[str]:
    return sorted(path.name for path in folder().glob("*.safetensors"))


def path_of(file: str) -> Path | None:
    """None if there is no such file."""
    path = folder() / file if file in files() else None
    if path:
        check_inside(path, [folder()])
    return path


def write(trajectory: Trajectory, recipe: dict, latents: dict[str, torch.Tensor],
          path: Path) -> None:
    """recipe: plain words, none where it is not known; latents: the tensors that belong to it."""
    tensors = {name: part for name, part in trajectory._asdict().items()
               if isinstance(part, torch.Tensor)} | latents
    size = sum(tensor.nbytes for tensor in tensors.values())
    if size > MOST_BYTES:
        raise BayesDiffError(f"this trajectory takes {size / 2**30:.1f} GiB, a file may have"
                             f" {MOST_BYTES / 2**30:.0f}: keep fewer steps or deviations, or a"
                             " smaller batch.")
    fault = next(_faults(tensors), None)
    if fault:
        raise BayesDiffError(f"this trajectory {fault}, so Trajectory Load would refuse its file:"
                             " save that of another run.")
    safe_file.write(KIND, path, {"pack_version": PACK_VERSION, "early": trajectory.early,
                                 "recipe": json.dumps(recipe)}, tensors)


def read(path: Path) -> tuple[Trajectory, dict, dict[str, torch.Tensor]]:
    """As they were given to write()."""
    size = path.stat().st_size if path.is_file() else 0
    if size > MOST_BYTES + safe_file.MOST_HEADER:
        raise BayesDiffError(f"{path.name} has {size / 2**30:.1f} GiB, at most"
                             f" {MOST_BYTES / 2**30:.0f} were expected of a trajectory: choose"
                             " another file.")
    with safe_file.opened(KIND, path) as (file, words):
        words.text("pack_version")
        shape = _shape(path, file)
        images = shape[2]
        recipe = words.json("recipe", "how it was sampled", MOST_RECIPE,
                            lambda value: _is_recipe(value, images))
        expected = _expected(file, shape, bool(recipe))
        tensors = safe_file.tensors_of(KIND, path, file, expected, 10**6)
        early = words.count("early", shape[1], 0)
    fault = next(_faults(tensors), None)
    if fault:
        raise KIND.damaged(path, f" {fault}")
    words.whole(tensors)
    latents = {name: tensors.pop(name) for name in (*LATENTS, "mask") if name in tensors}
    return Trajectory(early=early, **tensors), recipe, latents


def _shape(path: Path, file) -> tuple[int, ...]:
    """Of the deviations: kept x K x B x C x ..., where only K may be 0."""
    names = set(file.keys())
    shape = tuple(file.get_slice("deviations").get_shape()) if "deviations" in names else ()
    if not (5 <= len(shape) <= 8 and all(n > 0 for n in (shape[0], *shape[2:]))):
        raise KIND.damaged(path, f" has deviations of shape {shape}, kept steps x deviations x a"
                                 " batch of latents was expected")
    return shape


def _expected(file, shape: tuple[int, ...], with_recipe: bool) -> dict[str, tuple[str, tuple]]:
    """Type and shape of each tensor; None stands for any size up to a bound."""
    kept, _, *latent = shape
    each = (1, latent[1], *[1] * (len(latent) - 2))
    expected = {"sigmas": (F32, (None,)), "steps": (I64, (kept,)), "deviations": (F32, shape),
                "seeds": (I64, (latent[0],)), "scale": (F32, each), "shift": (F32, each),
                **{name: (F32, (kept, *latent)) for name in STATES}}
    for name in ("sampled", "late"):  # one is of mode paper, the other of every run
        if name in file.keys():
            expected[name] = F32, tuple(latent)
    if "checked" in file.keys():
        count = file.get_slice("checked").get_shape()[:1]
        expected["checked"] = F32, (min(count[0] if count else 0, len(CHECKS)), *latent)
    if "denoised" in file.keys():  # files of before have none
        expected["denoised"] = F32, (kept, *latent)
    if not with_recipe:
        return expected
    # What sampling began from may be a picture, where the result is a clip of one frame.
    begun = len(file.get_slice("latent").get_shape()) if "latent" in file.keys() else len(latent)
    expected |= {"noise": (F32, tuple(latent)), "result": (F32, tuple(latent)),
                 "latent": (F32, (latent[0], *[None] * (begun - 1)))}
    if "mask" in file.keys():
        expected["mask"] = F32, (None,) * len(file.get_slice("mask").get_shape())
    return expected


def _faults(tensors: dict[str, torch.Tensor]):
    """What neither maps nor resampling could go by."""
    if not all(tensor.isfinite().all() for tensor in tensors.values()):
        yield "holds values that are not finite"
    if any((tensors[name] < 0).any() for name in ("variance", "tail", "late", "checked")
           if name in tensors):
        yield "has a negative variance"
    sigmas, steps = tensors["sigmas"], tensors["steps"]
    if len(sigmas) < 2 or not (sigmas[:-1] > sigmas[1:]).all() or sigmas[-1] < 0:
        yield "has noise levels that do not fall"
    if steps[0] < 0 or steps[-1] != len(sigmas) - 1 or not (steps[:-1] < steps[1:]).all():
        yield "has kept steps that do not rise to the last"
    if (tensors["seeds"] < 0).any():
        yield "has a negative seed"


def _is_recipe(value, images: int) -> bool:
    """Whether these are words that a recipe can be made of; none are fine."""
    if value == {}:
        return True
    if not isinstance(value, dict) or value.keys() != {"family", "cfg", "sampler", "options",
                                                       "parts"}:
        return False
    family, cfg, options, parts = (value[key] for key in ("family", "cfg", "options", "parts"))
    return (isinstance(family, list) and [type(word) for word in family] == [str, str, int, bool]
            and all(len(word) <= 200 and word.isprintable() for word in family[:2])
            and (cfg is None or _is_number(cfg, 1e6))
            and (value["sampler"] is None or isinstance(value["sampler"], str))
            and isinstance(options, dict)
            and all(isinstance(each, (str, bool)) or _is_number(each) for each in options.values())
            and isinstance(parts, list) and all(_is_part(part) for part in parts)
            and sum(part["images"] for part in parts) == images)


def _is_number(value, most: float = sys.float_info.max) -> bool:
    return type(value) in (int, float) and abs(value) <= most


def _is_part(part) -> bool:
    return (isinstance(part, dict) and part.keys() == {"images", "seed", "batch_index"}
            and type(part["images"]) is int and part["images"] > 0
            and type(part["seed"]) is int and 0 <= part["seed"] < 2**64
            and isinstance(part["batch_index"], list)
            and len(part["batch_index"]) in (0, part["images"])
            and all(type(index) is int and 0 <= index < 2**31 for index in part["batch_index"]))
