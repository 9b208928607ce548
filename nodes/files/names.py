"""Names and places of the files that nodes read and write."""

import contextlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path

from ...bayesdiff_core.checks import BayesDiffError


def plain_name(what: str, given: str, ending: str = "") -> str:
    """The name without blanks around it and its ending, if nothing in it leads elsewhere."""
    name = given.strip().removesuffix(ending)
    bad = sorted({c for c in name if c in '/\\:*?"<>|' or not c.isprintable()})
    if bad or not 0 < len(name) <= 100 or name.startswith("."):
        why = f"it contains {' '.join(map(repr, bad))}" if bad else "its length or first sign"
        raise BayesDiffError(f"{what} is {given[:120]!r}, a name of 1 to 100 characters was"
                             " expected, without path separators or other signs that file systems"
                             f" refuse and not starting with a dot ({why}): choose a plain name.")
    return name


def check_inside(path: Path, folders: Iterable[Path]) -> None:
    """Refuses a link that leads out of all of the folders, which may be links themselves."""
    try:
        target = path.resolve()
    except (OSError, RuntimeError) as error:  # a circle of links
        raise BayesDiffError(f"{path.name} cannot be followed: {error}. Put a plain file in its"
                             " place.") from error
    if not any(target.is_relative_to(folder.resolve()) for folder in folders):
        raise BayesDiffError(f"{path.name} is a link that leads out of its folder, which is not"
                             " followed: put the file itself there, or let the whole folder be the"
                             " link.")


def save_path(place: Path, prefix: str, overwrite: bool) -> Path:
    """For a safetensors file of that name; where nothing may be replaced, with a counter."""
    name = plain_name("filename_prefix", prefix, ".safetensors")
    if overwrite:
        return place / f"{name}.safetensors"
    taken = {path.name.lower() for path in place.glob("*.safetensors")} if place.is_dir() else set()
    number = 1
    while (numbered := f"{name}_{number:05}_.safetensors").lower() in taken:
        number += 1
    return place / numbered


def state(path: Path | None) -> tuple[int, int] | None:
    """Differs when the file has changed; None where there is none."""
    try:
        found = path.stat() if path else None
    except OSError:
        return None
    return (found.st_mtime_ns, found.st_size) if found else None


def write_at_once(path: Path, write: Callable[[Path], None], *errors: type[Exception]) -> None:
    """Replaces the file, or leaves it as it was: it is written under another name first."""
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(part)
        os.replace(part, path)
    except (OSError, *errors) as error:
        raise BayesDiffError(f"{path} cannot be written: {error}. Free some space, or make the"
                             " folder writable.") from error
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
