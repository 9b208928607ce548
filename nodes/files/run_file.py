"""Runs that were left at a step, in output/bayesdiff_runs: what the model said so far."""

from pathlib import Path

import folder_paths
import torch

from ...bayesdiff_core.checks import BayesDiffError
from . import safe_file
from .names import check_inside, plain_name

FOLDER = "bayesdiff_runs"
KIND = safe_file.Kind("bayesdiff-run", 1, "a run that was left at a step", "start the run again")
NAMES = ({"x", "denoised"}, {"x", "denoised", "uncond"})


def path_of(name: str) -> Path:
    folder = Path(folder_paths.get_output_directory()) / FOLDER
    path = folder / f"{plain_name('run', name, '.safetensors')}.safetensors"
    check_inside(path, [folder])
    return path


def write(state: dict[str, torch.Tensor], seed: int, path: Path) -> None:
    safe_file.write(KIND, path, {"seed": seed}, state)


def read(path: Path, seed: int) -> dict[str, torch.Tensor]:
    if not path.is_file():
        raise BayesDiffError(f"output/{FOLDER} has no {path.name}: start the run first.")
    with safe_file.opened(KIND, path) as (file, words):
        if set(file.keys()) not in NAMES:
            raise KIND.damaged(path, f" holds the tensors {', '.join(sorted(file.keys()))[:200]}")
        words.same("seed", str(seed))
        tensors = {name: file.get_tensor(name).clone() for name in file.keys()}
        words.whole(tensors)
    return tensors
