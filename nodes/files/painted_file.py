"""Masks that were painted by hand in the front end's MaskEditor, which leaves them in the input
folder: a picture whose transparent part is the mask."""

from pathlib import Path

import folder_paths
import numpy as np
import torch
from PIL import Image, UnidentifiedImageError

from ...bayesdiff_core.checks import BayesDiffError


def by_picture(text: str) -> dict[str, str]:
    """What the widget says: KEY=FILE, one for each picture, separated by commas."""
    pairs = [pair.partition("=") for pair in text.split(",") if pair.strip()]
    if any(not key.strip() or not name.strip() for key, _, name in pairs):
        raise BayesDiffError(f"painted_mask is {text[:80]!r}, pairs KEY=FILE with commas between"
                             " them were expected: empty it to use the map's own mask.")
    return {key.strip(): name.strip() for key, _, name in pairs}


def read(name: str) -> torch.Tensor:
    """H x W, 1 where it is painted."""
    try:
        with Image.open(_path_of(name)) as picture:
            alpha = np.array(picture.convert("RGBA").getchannel("A"))
    except (OSError, ValueError, UnidentifiedImageError, Image.DecompressionBombError) as error:
        raise BayesDiffError(f"the painted mask {name!r} could not be read ({error}): paint it"
                             " again, or empty painted_mask to use the map's own mask.") from error
    return 1 - torch.from_numpy(alpha).float() / 255


def _path_of(name: str) -> Path:
    """In the input folder, and nowhere else."""
    folder = Path(folder_paths.get_input_directory()).resolve()
    path = (folder / name.removesuffix("[input]").strip()).resolve()
    if not path.is_relative_to(folder):
        raise BayesDiffError(f"the painted mask {name!r} is outside of the input folder, a file in"
                             " it was expected: empty painted_mask to use the map's own mask.")
    return path
