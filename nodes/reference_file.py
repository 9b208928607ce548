"""Reference scores: small JSON files in output/bayesdiff_reference, one for each model and setting
that the user named."""

import contextlib
import json
import math
import os
from pathlib import Path

import folder_paths

from ..bayesdiff_core.checks import BayesDiffError

FOLDER = "bayesdiff_reference"
FORMAT, VERSION = "bayesdiff-reference", 1


def path_of(name: str) -> Path:
    plain = name.strip()
    bad = sorted({c for c in plain if c in '/\\:*?"<>|' or not c.isprintable()})
    if bad or not 0 < len(plain) <= 100 or plain.startswith("."):
        raise BayesDiffError(f"reference is {name[:120]!r}, a name of 1 to 100 characters was"
                             " expected, without path separators or other signs that file systems"
                             " refuse and not starting with a dot: choose a plain name, such as"
                             " sdxl-portrait-30-steps.")
    return Path(folder_paths.get_output_directory()) / FOLDER / f"{plain}.json"


def read(path: Path) -> list[float]:
    """The stored scores, rising; none if there is no such file."""
    try:
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
    if not isinstance(scores, list) or not all(
            type(score) in (int, float) and math.isfinite(score) for score in scores):
        raise _broken(path, "its scores are not a list of finite numbers")
    return sorted(map(float, scores))


def add(path: Path, scores: list[float]) -> int:
    """How many were new. An equal score is the same image run again, and stays single."""
    stored = read(path)
    merged = sorted({*stored, *scores})
    if merged != stored:
        _write(path, json.dumps({"format": FORMAT, "version": VERSION, "scores": merged}))
    return len(merged) - len(stored)


def state(path: Path) -> tuple[int, int] | None:
    """Differs when the file has changed."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


def _write(path: Path, text: str) -> None:
    """Replaces the file at once, or leaves it as it was."""
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(text, encoding="utf-8")
        os.replace(part, path)
    except OSError as error:
        raise BayesDiffError(f"{path.name} cannot be written to output/{FOLDER}: {error}. Free some"
                             " space, or make the folder writable.") from error
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)


def _broken(path: Path, why: str) -> BayesDiffError:
    return BayesDiffError(f"output/{FOLDER}/{path.name} cannot be used: {why}. A file that the"
                          " Uncertainty Score Filter wrote was expected: delete it and collect"
                          " again, or name another reference.")
