"""Safetensors files of the pack: tensors, and in the header what they are.

Nothing of a file is used before all of it is checked, and a file is written under another name and
then renamed, so that there is never half of one.
"""

import hashlib
import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from ...bayesdiff_core.checks import BayesDiffError
from .names import write_at_once

MOST_HEADER = 8_000_000  # bytes
F64, F32, I64 = "F64", "F32", "I64"


class Kind(NamedTuple):
    """A kind of file, and the words for it in errors."""

    format: str
    version: int
    noun: str  # "a posterior that LLLA Save wrote"
    again: str  # "fit or fetch it again"

    def damaged(self, path: Path, what: str) -> BayesDiffError:
        again = self.again[0].upper() + self.again[1:]
        return BayesDiffError(f"{path.name}{what}: the file is damaged. {again}.")


def write(kind: Kind, path: Path, words: dict, tensors: dict[str, torch.Tensor]) -> None:
    """Replaces the file at once, or leaves it as it was."""
    tensors = {name: tensor.contiguous() for name, tensor in tensors.items()}
    header = {name: str(value) for name, value in
              {"format": kind.format, "format_version": kind.version, **words}.items()}
    header["checksum"] = _checksum(header, tensors)

    def save(part: Path) -> None:
        save_file(tensors, part, metadata=header)
        part.chmod(0o644)  # safetensors leaves it to its owner alone, unlike other model files

    write_at_once(path, save, SafetensorError)


@contextmanager
def opened(kind: Kind, path: Path) -> Iterator[tuple[safe_open, "Words"]]:
    """The file and its header, of which format and version are checked."""
    try:
        _check_header(path)
        with safe_open(path, framework="pt") as file:
            yield file, Words(kind, path, file.metadata() or {})
    except (SafetensorError, OSError) as error:
        raise BayesDiffError(f"{path.name} cannot be read: {_guess(path)} ({str(error)[:200]})."
                             f" {kind.noun[0].upper()}{kind.noun[1:]} was expected:"
                             f" {kind.again}.") from error


def tensors_of(kind: Kind, path: Path, file: safe_open,
               expected: dict[str, tuple[str, tuple[int | None, ...]]],
               most: int = 0) -> dict[str, torch.Tensor]:
    """Of the expected names, types and shapes; None stands for any size from 1 to `most`."""
    names = set(file.keys())
    if names != set(expected):
        found = ", ".join(name[:60] for name in sorted(names)[:8])
        raise kind.damaged(path, f" holds the tensors {found}, it should hold"
                                 f" {', '.join(sorted(expected))}")
    for name, (wanted_type, shape) in expected.items():
        found = file.get_slice(name)
        size = tuple(found.get_shape())
        fits = len(size) == len(shape) and all(
            0 < n <= most if wanted is None else n == wanted for n, wanted in zip(size, shape))
        if found.get_dtype() != wanted_type or not fits:
            wanted = " x ".join("n" if n is None else str(n) for n in shape)
            raise kind.damaged(path, f": {name} is {found.get_dtype()} of shape {size},"
                                     f" {wanted_type} {wanted} was expected")
    # Copies: a tensor of an open file would keep the file from being replaced.
    return {name: file.get_tensor(name).clone() for name in expected}


class Words:
    """The header's text, checked as it is read."""

    def __init__(self, kind: Kind, path: Path, words: dict[str, str]):
        self.kind, self.path, self.words = kind, path, words
        found = words.get("format", "not named")[:60]
        if found != kind.format:
            raise BayesDiffError(f"{path.name} is a safetensors file, but not {kind.noun} (its"
                                 f" format is {found!r}, {kind.format!r} was expected): choose"
                                 " another file.")
        version = self.count("format_version", 1_000_000)
        if version != kind.version:
            raise BayesDiffError(f"{path.name} has format version {version}, this pack reads"
                                 f" {kind.version}: update the pack, or {kind.again}.")

    def text(self, name: str, most: int = 200) -> str:
        value = self.words.get(name, "")
        if not 0 < len(value) <= most or not value.isprintable():
            raise self.wrong(name, f"text of 1 to {most} characters")
        return value

    def count(self, name: str, most: int, least: int = 1) -> int:
        value = self.words.get(name, "")
        if not (value.isascii() and value.isdecimal() and len(value) < 20
                and least <= int(value) <= most):
            raise self.wrong(name, f"a whole number from {least} to {most}")
        return int(value)

    def number(self, name: str) -> float:
        text = self.words.get(name, "")
        try:
            value = float(text) if text.isascii() else math.nan
        except ValueError:
            value = math.nan
        if not (math.isfinite(value) and value >= 0):
            raise self.wrong(name, "a number from 0 up")
        return value

    def one_of(self, name: str, values: tuple[str, ...]) -> str:
        if self.words.get(name) not in values:
            raise self.wrong(name, f"one of {', '.join(values)}")
        return self.words[name]

    def same(self, name: str, expected: str) -> None:
        if self.words.get(name) != expected:
            raise self.wrong(name, f"{expected}, as the rest of the file says,")

    def json(self, name: str, expected: str, most: int, right: Callable[[object], bool]) -> object:
        """A value that `right` takes; expected: what it should be, for the error."""
        text = self.text(name, most)
        try:
            value = json.loads(text)
            fits = right(value)
        except (ValueError, RecursionError):
            fits = False
        if not fits:
            raise self.wrong(name, expected)
        return value

    def whole(self, tensors: dict[str, torch.Tensor]) -> None:
        """Refuses a file whose checksum tells of damage; one of before there were any is fine."""
        if "checksum" in self.words:
            self.same("checksum", _checksum(self.words, tensors))

    def wrong(self, name: str, expected: str) -> BayesDiffError:
        found = self.words.get(name)
        given = "missing" if found is None else repr(found[:60])
        return self.kind.damaged(self.path, f": {name} is {given} in the file's header, {expected}"
                                            " was expected")


def _checksum(words: dict[str, str], tensors: dict[str, torch.Tensor]) -> str:
    """Over all that a file says, so that damage never changes what it means."""
    digest = hashlib.sha256(json.dumps({**words, "checksum": None}, sort_keys=True).encode())
    for name in sorted(tensors):
        digest.update(f"{name} {tuple(tensors[name].shape)}".encode())
        digest.update(tensors[name].flatten().numpy())
    return digest.hexdigest()


def _check_header(path: Path) -> None:
    """It is parsed as a whole, so its size is looked at first."""
    with open(path, "rb") as file:
        size = int.from_bytes(file.read(8), "little")
    if MOST_HEADER < size <= path.stat().st_size:
        raise BayesDiffError(f"{path.name} has a header of {size / 1e6:.0f} MB, at most"
                             f" {MOST_HEADER / 1e6:.0f} were expected: it is damaged or not"
                             " one of ours. Choose another file.")


def _guess(path: Path) -> str:
    """What a file that is no safetensors file seems to be."""
    if not path.is_file():
        return "there is no such file"
    with open(path, "rb") as file:
        start = file.read(16)
    if not start:
        return "it is empty"
    if start.startswith((b"\x80", b"PK\x03\x04")):
        return "it is a Python pickle or an archive, which could run code and is never opened"
    return "it is not a safetensors file, or it is truncated"
