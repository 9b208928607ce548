"""LLLA files: the statistics and, in the header, what they are of."""

import hashlib
from pathlib import Path

import torch

from ...bayesdiff_core import llla as core
from ...bayesdiff_core.llla import About, Llla
from ...bayesdiff_core.noise_energy import NoiseEnergy
from ...bayesdiff_core.posterior import STRUCTURES, FeatureStatistics, LastLayer
from . import safe_file
from .safe_file import F32, F64, Words

KIND = safe_file.Kind("bayesdiff-llla", 1, "a posterior that LLLA Save wrote",
                      "fit or fetch it again")
# Larger than any model's: what a broken or hostile header may make us reserve.
MOST_FEATURES, MOST_INPUTS, MOST_OUTPUTS, MOST_SETTINGS = 65536, 65536 * 9 + 1, 65536, 1_000_000
MOST_FULL_INPUTS = 32768


def write(llla: Llla, path: Path) -> None:
    """Replaces the file at once, or leaves it as it was."""
    about = llla.about
    words = {
        "pack_version": about.pack_version,
        "family": about.family, "layer": about.layer, "features": about.shape.features,
        "kernel": about.shape.kernel, "bias": int(about.shape.bias), "outputs": about.outputs,
        "statistics": about.structure, "latents": about.latents,
        "residual_sum": about.residual_sum, "residual_count": about.residual_count,
        "weight_norm": about.weight_norm, "fingerprint": _digest(llla.fingerprint),
        "settings": about.settings, "structure": llla.structure,
        "prior": llla.prior, "prior_precision": llla.prior_precision,
        "temperature": llla.temperature,
    }
    safe_file.write(KIND, path, words, {name: getattr(llla, name) for name in _expected(about)})


def read(path: Path, structure: str | None = None, prior: str | None = None,
         prior_precision: float | None = None, temperature_factor: float = 1.0) -> Llla:
    """The posterior in a file, with the settings it was saved with where None is given."""
    with safe_file.opened(KIND, path) as (file, words):
        about = _about(words)
        tensors = safe_file.tensors_of(KIND, path, file, _expected(about), core.SKETCH_ROWS)
    fault = next(_faults(tensors, about), None)
    if fault:
        raise KIND.damaged(path, f" {fault}")
    words.same("fingerprint", _digest(tensors["fingerprint"]))
    words.whole(tensors)
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


def _about(words: Words) -> About:
    shape = LastLayer(words.count("features", MOST_FEATURES), words.count("kernel", 31, 0),
                      bool(words.count("bias", 1, 0)))
    structure = words.one_of("statistics", STRUCTURES)
    if shape.kernel and shape.kernel % 2 == 0:
        raise words.wrong("kernel", "an odd number, or 0")
    if shape.inputs > (MOST_FULL_INPUTS if structure == "full" else MOST_INPUTS):
        raise words.wrong("features", f"a smaller number for {structure} statistics")
    words.json("settings", "a JSON list", MOST_SETTINGS, lambda value: isinstance(value, list))
    return About(words.text("family"), words.text("layer"), shape,
                 words.count("outputs", MOST_OUTPUTS), structure,
                 words.count("latents", 10**12), words.number("residual_sum"),
                 words.count("residual_count", 10**18, 0), words.number("weight_norm"),
                 words.words["settings"], words.text("pack_version"))
