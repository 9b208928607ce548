"""Small JSON files of the pack in a folder of output/, each under a name that the user gave: what
format they are, a checksum, and a list."""

import hashlib
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from ...bayesdiff_core.checks import BayesDiffError
from .names import check_inside, plain_name, write_at_once

MOST_BYTES = 50_000_000


class Kind(NamedTuple):
    """A kind of file, and the words for it in errors."""

    folder: str
    format: str
    version: int
    key: str  # of the list
    input: str  # that holds the name
    writer: str  # "the Uncertainty Score Filter"
    again: str  # "collect again, or name another reference"

    def path_of(self, name: str) -> Path:
        folder = self.place()
        path = folder / f"{plain_name(self.input, name)}.json"
        check_inside(path, [folder])
        return path

    def place(self) -> Path:
        import folder_paths  # here: who only reads a file needs no host
        return Path(folder_paths.get_output_directory()) / self.folder

    def broken(self, path: Path, why: str) -> BayesDiffError:
        return BayesDiffError(f"output/{self.folder}/{path.name} cannot be used: {why}. A file that"
                              f" {self.writer} wrote was expected: delete it and {self.again}.")


def read(kind: Kind, path: Path, expected: str, right: Callable[[list], bool]) -> list:
    """The list, if `right` takes it; empty if there is no such file. expected: what it should be,
    for the error."""
    try:
        if path.stat().st_size > MOST_BYTES:
            raise kind.broken(path, f"it is larger than {MOST_BYTES / 1e6:.0f} MB")
        words = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return []
    except (OSError, ValueError, RecursionError) as error:
        raise kind.broken(path, str(error)) from error
    if not isinstance(words, dict) or words.get("format") != kind.format:
        raise kind.broken(path, f"it does not say that its format is {kind.format}")
    if words.get("version") != kind.version:
        raise kind.broken(path, f"its version is {words.get('version')!r}, {kind.version} was"
                                " expected")
    values = words.get(kind.key)
    if not isinstance(values, list) or not right(values):
        raise kind.broken(path, f"its {kind.key} are not {expected}")
    if words.get("checksum", _checksum(values)) != _checksum(values):
        raise kind.broken(path, f"its {kind.key} do not fit its checksum (if you changed them"
                                " yourself, delete the checksum too)")
    return values


def write(kind: Kind, path: Path, values: list) -> None:
    text = json.dumps({"format": kind.format, "version": kind.version,
                       "checksum": _checksum(values), kind.key: values})
    write_at_once(path, lambda part: part.write_text(text, encoding="utf-8"))


def is_finite(value) -> bool:
    try:
        return type(value) in (int, float) and math.isfinite(value)
    except OverflowError:  # a whole number beyond all floats
        return False


def _checksum(values: list) -> str:
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()[:16]
