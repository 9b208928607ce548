"""LLLA files: safetensors with the statistics and, in its header, what they are of.

Nothing of a file is used before all of it is checked, and a file is written under another name and
then renamed, so that there is never half of one.
"""

import hashlib
import json
import math
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from ..bayesdiff_core import llla as core
from ..bayesdiff_core.checks import BayesDiffError
from ..bayesdiff_core.llla import About, Llla
from ..bayesdiff_core.posterior import STRUCTURES, FeatureStatistics, LastLayer
from ..bayesdiff_core.rules import NoiseEnergy
from .files import write_at_once

FORMAT = "bayesdiff-llla"
VERSION = 1
PACK_VERSION = "0.1.0"
# Larger than any model's: what a broken or hostile header may make us reserve.
MOST_FEATURES, MOST_INPUTS, MOST_OUTPUTS, MOST_SETTINGS = 65536, 65536 * 9 + 1, 65536, 1_000_000
MOST_FULL_INPUTS, MOST_HEADER = 32768, 8_000_000
F64, F32 = "F64", "F32"
TYPES = {F64: torch.float64, F32: torch.float32}


def write(llla: Llla, path: Path) -> None:
    """Replaces the file at once, or leaves it as it was."""
    about = llla.about
    words = {
        "format": FORMAT, "format_version": VERSION, "pack_version": about.pack_version,
        "family": about.family, "layer": about.layer, "features": about.shape.features,
        "kernel": about.shape.kernel, "bias": int(about.shape.bias), "outputs": about.outputs,
        "statistics": about.structure, "latents": about.latents,
        "residual_sum": about.residual_sum, "residual_count": about.residual_count,
        "weight_norm": about.weight_norm, "fingerprint": _digest(llla.fingerprint),
        "settings": about.settings, "structure": llla.structure,
        "prior": llla.prior, "prior_precision": llla.prior_precision,
        "temperature": llla.temperature,
    }
    tensors = {name: getattr(llla, name).contiguous() for name in _expected(about)}
    header = {name: str(value) for name, value in words.items()}
    header["checksum"] = _checksum(header, tensors)

    def save(part: Path) -> None:
        save_file(tensors, part, metadata=header)
        part.chmod(0o644)  # safetensors leaves it to its owner alone, unlike other model files

    write_at_once(path, save, SafetensorError)


def read(path: Path, structure: str | None = None, prior: str | None = None,
         prior_precision: float | None = None, temperature_factor: float = 1.0) -> Llla:
    """The posterior in a file, with the settings it was saved with where None is given."""
    try:
        _check_header(path)
        with safe_open(path, framework="pt") as file:
            words = _Words(path, file.metadata() or {})
            about = words.about()
            tensors = _tensors(path, file, about)
        words.same("fingerprint", _digest(tensors["fingerprint"]))
        if "checksum" in words.words:  # files of before it was there are welcome
            words.same("checksum", _checksum(words.words, tensors))
    except (SafetensorError, OSError) as error:
        raise BayesDiffError(f"{path.name} cannot be read: {_kind(path)} ({str(error)[:200]}). A"
                             " file that LLLA Save wrote was expected: fetch or fit it"
                             " again.") from error
    statistics = FeatureStatistics(about.shape, about.structure)
    statistics.ggn = tensors["ggn"]
    statistics.latents = about.latents
    statistics.residual_sum, statistics.residual_count = about.residual_sum, about.residual_count
    energy = NoiseEnergy(len(tensors["energy_sums"]))
    energy.sums, energy.counts = tensors["energy_sums"], tensors["energy_counts"]
    saved = {"structure": words.one_of("structure", STRUCTURES),
             "prior": words.one_of("prior", core.PRIORS),
             "prior_precision": words.number("prior_precision"),
             "temperature": words.number("temperature")}
    return core.make(statistics, energy, tensors["sketch"], tensors["sketch_sigmas"],
                     tensors["fingerprint"], about, structure or saved["structure"],
                     prior or saved["prior"], prior_precision or saved["prior_precision"],
                     temperature_factor * saved["temperature"])


def _digest(fingerprint: torch.Tensor) -> str:
    """The fingerprint's bits in short, to tell files apart by their headers."""
    return hashlib.sha256(fingerprint.contiguous().numpy().tobytes()).hexdigest()[:16]


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
                             f" {MOST_HEADER / 1e6:.0f} were expected: it is damaged or of another"
                             " kind. Choose another file.")


def _expected(about: About) -> dict[str, tuple[str, tuple]]:
    """Type and shape of each tensor; None stands for any size up to a bound."""
    inputs = about.shape.inputs
    return {
        "ggn": (F64, (inputs, inputs) if about.structure == "full" else (inputs,)),
        "energy_sums": (F64, (NoiseEnergy().sums.numel(),)),
        "energy_counts": (F64, (NoiseEnergy().sums.numel(),)),
        "sketch": (F32, (None, inputs)),
        "sketch_sigmas": (F32, (None,)),
        "fingerprint": (F32, (None,)),
    }


def _tensors(path: Path, file, about: About) -> dict[str, torch.Tensor]:
    expected = _expected(about)
    names = set(file.keys())
    if names != set(expected):
        found = ", ".join(name[:60] for name in sorted(names)[:8])
        raise BayesDiffError(f"{path.name} holds the tensors {found}, it should hold"
                             f" {', '.join(sorted(expected))}: it is damaged or of"
                             " another kind. Fit or fetch it again.")
    for name, (kind, shape) in expected.items():
        found = file.get_slice(name)
        size = tuple(found.get_shape())
        fits = len(size) == len(shape) and all(
            0 < n <= core.SKETCH_ROWS if wanted is None else n == wanted
            for n, wanted in zip(size, shape))
        if found.get_dtype() != kind or not fits:
            wanted = " x ".join("n" if n is None else str(n) for n in shape)
            raise BayesDiffError(f"{path.name}: {name} is {found.get_dtype()} of shape {size},"
                                 f" {kind} {wanted} was expected: the file is damaged. Fit or fetch"
                                 " it again.")
    # Copies: a tensor of an open file would keep the file from being replaced.
    tensors = {name: file.get_tensor(name).clone() for name in expected}
    fault = next(_faults(tensors, about), None)
    if fault:
        raise BayesDiffError(f"{path.name} {fault}: the file is damaged. Fit or fetch it again.")
    return tensors


def _faults(tensors: dict[str, torch.Tensor], about: About):
    """What no fit can have collected."""
    ggn = tensors["ggn"]
    diagonal = ggn.diagonal() if about.structure == "full" else ggn
    if not all(tensor.isfinite().all() for tensor in tensors.values()):
        yield "holds values that are not finite"
    if not (diagonal >= 0).all():
        yield "has a negative sum of squares"
    if about.structure == "full" and not torch.allclose(
            ggn, ggn.T, rtol=1e-3, atol=1e-5 * diagonal.max().item()):
        yield "has statistics that are not symmetric"
    if not (tensors["energy_sums"] >= 0).all() or not (tensors["energy_counts"] >= 0).all():
        yield "has negative noise energies"
    if not (tensors["sketch_sigmas"] > 0).all():
        yield "has noise levels that are not above 0"
    if len(tensors["sketch"]) != len(tensors["sketch_sigmas"]):
        yield "has a sketch and noise levels of different length"


class _Words:
    """The header's text, checked as it is read."""

    def __init__(self, path: Path, words: dict[str, str]):
        self.path, self.words = path, words
        found = words.get("format", "not named")[:60]
        if found != FORMAT:
            raise BayesDiffError(f"{path.name} is a safetensors file, but not a posterior that LLLA"
                                 f" Save wrote (its format is {found!r}, {FORMAT!r} was expected):"
                                 " choose another file.")
        version = self.count("format_version", 1_000_000)
        if version != VERSION:
            raise BayesDiffError(f"{path.name} has format version {version}, this pack reads"
                                 f" {VERSION}: update the pack, or fit again.")

    def about(self) -> About:
        shape = LastLayer(self.count("features", MOST_FEATURES), self.count("kernel", 31, 0),
                          bool(self.count("bias", 1, 0)))
        structure = self.one_of("statistics", STRUCTURES)
        if shape.kernel and shape.kernel % 2 == 0:
            raise self._wrong("kernel", "an odd number, or 0")
        if shape.inputs > (MOST_FULL_INPUTS if structure == "full" else MOST_INPUTS):
            raise self._wrong("features", f"a smaller number for {structure} statistics")
        return About(self.text("family"), self.text("layer"), shape,
                     self.count("outputs", MOST_OUTPUTS), structure,
                     self.count("latents", 10**12), self.number("residual_sum"),
                     self.count("residual_count", 10**18, 0), self.number("weight_norm"),
                     self.settings(), self.text("pack_version"))

    def text(self, name: str, most: int = 200) -> str:
        value = self.words.get(name, "")
        if not 0 < len(value) <= most or not value.isprintable():
            raise self._wrong(name, f"text of 1 to {most} characters")
        return value

    def count(self, name: str, most: int, least: int = 1) -> int:
        value = self.words.get(name, "")
        if not (value.isascii() and value.isdecimal() and len(value) < 20
                and least <= int(value) <= most):
            raise self._wrong(name, f"a whole number from {least} to {most}")
        return int(value)

    def number(self, name: str) -> float:
        text = self.words.get(name, "")
        try:
            value = float(text) if text.isascii() else math.nan
        except ValueError:
            value = math.nan
        if not (math.isfinite(value) and value >= 0):
            raise self._wrong(name, "a number from 0 up")
        return value

    def one_of(self, name: str, values: tuple[str, ...]) -> str:
        if self.words.get(name) not in values:
            raise self._wrong(name, f"one of {', '.join(values)}")
        return self.words[name]

    def same(self, name: str, expected: str) -> None:
        if self.words.get(name) != expected:
            raise self._wrong(name, f"{expected}, as the rest of the file says,")

    def settings(self) -> str:
        text = self.text("settings", MOST_SETTINGS)
        try:
            right = isinstance(json.loads(text), list)
        except (ValueError, RecursionError):
            right = False
        if not right:
            raise self._wrong("settings", "a JSON list")
        return text

    def _wrong(self, name: str, expected: str) -> BayesDiffError:
        found = self.words.get(name)
        given = "missing" if found is None else repr(found[:60])
        return BayesDiffError(f"{self.path.name}: {name} is {given} in the file's header,"
                              f" {expected} was expected: the file is damaged. Fit or fetch it"
                              " again.")


def _kind(path: Path) -> str:
    """What a file that is no safetensors file seems to be."""
    if not path.is_file():
        return "there is no such file"
    with open(path, "rb") as file:
        start = file.read(16)
    if not start:
        return "it is empty"
    if start.startswith((b"\x80", b"PK\x03\x04")):
        return "it is a Python pickle or an archive, which could run code and is never opened"
    return "it is no safetensors file, or a truncated one"
