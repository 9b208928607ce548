"""Reference scores: small JSON files in output/bayesdiff_reference, one for each model and setting
that the user named."""

import hashlib
import json
import math
from pathlib import Path

import folder_paths

from ..bayesdiff_core.checks import BayesDiffError
from .files import check_inside, plain_name, write_at_once

FOLDER = "bayesdiff_reference"
FORMAT, VERSION = "bayesdiff-reference", 1
MOST_BYTES = 50_000_000


def path_of(name: str) -> Path:
    folder = Path(folder_paths.get_output_directory()) / FOLDER
    path = folder / f"{plain_name('reference', name)}.json"
    check_inside(path, [folder])
    return path


def read(path: Path) -> list[float]:
    """The stored scores, rising; none if there is no such file."""
    try:
        if path.stat().st_size > MOST_BYTES:
            raise _broken(path, f"it is larger than {MOST_BYTES / 1e6:.0f} MB")
        words = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return []
    except (OSError, ValueError, RecursionError) as error:
        raise _broken(path, str(error)) from error
    if not isinstance(words, dict) or words.get("format") != FORMAT:
        raise _broken(path, f"it does not say that its format is {FORMAT}")
    if words.get("version") != VERSION:
        raise _broken(path, f"its version is {words.get('version')!r}, {VERSION} was expected")
    scores = words.get("scores")
    if not isinstance(scores, list) or not all(map(_is_finite, scores)):
        raise _broken(path, "its scores are not a list of finite numbers")
    if words.get("checksum", _checksum(scores)) != _checksum(scores):
        raise _broken(path, "its scores do not fit its checksum (if you changed them yourself,"
                            " delete the checksum too)")
    return sorted(map(float, scores))


def _is_finite(score) -> bool:
    try:
        return type(score) in (int, float) and math.isfinite(score)
    except OverflowError:  # a whole number beyond all floats
        return False


def _checksum(scores: list) -> str:
    return hashlib.sha256(json.dumps(scores).encode()).hexdigest()[:16]


def add(path: Path, scores: list[float]) -> int:
    """How many were new. An equal score is the same image run again, and stays single."""
    stored = read(path)
    merged = sorted({*stored, *scores})
    if merged != stored:
        text = json.dumps({"format": FORMAT, "version": VERSION, "checksum": _checksum(merged),
                           "scores": merged})
        write_at_once(path, lambda part: part.write_text(text, encoding="utf-8"))
    return len(merged) - len(stored)


def state(path: Path) -> tuple[int, int] | None:
    """Differs when the file has changed."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


def _broken(path: Path, why: str) -> BayesDiffError:
    return BayesDiffError(f"output/{FOLDER}/{path.name} cannot be used: {why}. A file that the"
                          " Uncertainty Score Filter wrote was expected: delete it and collect"
                          " again, or name another reference.")
