"""A fitted last-layer Laplace approximation (LLLA) as it travels between nodes and in files.

It keeps the statistics that the fit collected, not their inverse, so prior, temperature and
structure can be changed later, and fits of the same layer can be merged.

    prior "fixed"     the prior precision is a number and the noise variance 1: the paper's choice
    prior "evidence"  the noise variance is the mean squared residual that the fit measured, and the
                      prior precision the one that maximizes the marginal likelihood given it
"""

import json
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F

from . import checks
from .checks import BayesDiffError
from .noise_energy import NoiseEnergy
from .posterior import (
    DiagonalPosterior,
    FeatureStatistics,
    LastLayer,
    Posterior,
    effective_dimension,
    evidence_prior_precision,
    posterior,
)
from .record import Record

PRIORS = ("fixed", "evidence")
SKETCH_ROWS = 192
LEVELS = 12  # groups of the sketch by noise level


class About(NamedTuple):
    """What the statistics are of."""

    family: str
    layer: str  # path under the model
    shape: LastLayer
    outputs: int  # of the layer at one position
    structure: str  # of the statistics: a posterior can be diagonal on full ones
    latents: int
    residual_sum: float
    residual_count: int
    weight_norm: float  # squared norm of the layer's weights and bias
    settings: str  # JSON, a list with an object for each fit that was merged
    pack_version: str


@dataclass(frozen=True, eq=False)
class Llla(Record):
    ggn: torch.Tensor  # A, inputs x inputs or its diagonal, float64
    energy_sums: torch.Tensor  # of noise_energy.NoiseEnergy, float64
    energy_counts: torch.Tensor
    sketch: torch.Tensor  # some rows u that were seen, rows x inputs, float32
    sketch_sigmas: torch.Tensor  # their noise levels
    fingerprint: torch.Tensor  # the layer's answer to fixed features, float32
    about: About
    structure: str
    prior: str  # one of PRIORS
    prior_precision: float  # what "fixed" means
    temperature: float
    posterior: Posterior


class Level(NamedTuple):
    """Predictive variance of the network's output around one noise level."""

    sigma: float
    variance: float

    @property
    def sd(self) -> float:
        return self.variance**0.5


def make(statistics: FeatureStatistics, energy: NoiseEnergy, sketch: torch.Tensor,
         sketch_sigmas: torch.Tensor, fingerprint: torch.Tensor, about: About, structure: str,
         prior: str = "fixed", prior_precision: float = 1.0, temperature: float = 1.0,
         earlier: Llla | None = None) -> Llla:
    """The posterior of what a fit collected, and of what an earlier one did. The statistics' own
    numbers go into `about`; they stay full only if both fits' are."""
    if earlier is not None:
        _check_same_layer(earlier.about, about)
        statistics = _sum(statistics_of(earlier), statistics)
        total = NoiseEnergy(len(energy.sums))
        total.sums = earlier.energy_sums + energy.sums
        total.counts = earlier.energy_counts + energy.counts
        energy = total
        sketch = torch.cat([earlier.sketch, sketch])
        sketch_sigmas = torch.cat([earlier.sketch_sigmas, sketch_sigmas])
        settings = json.loads(earlier.about.settings) + json.loads(about.settings)
        about = about._replace(settings=json.dumps(settings))
    about = about._replace(shape=statistics.layer, structure=statistics.structure,
                           latents=statistics.latents, residual_sum=statistics.residual_sum,
                           residual_count=statistics.residual_count)
    made = _posterior(statistics, about, structure, prior, prior_precision, temperature)
    return Llla(statistics.ggn, energy.sums, energy.counts, *_thinned(sketch, sketch_sigmas),
                fingerprint, about, structure, prior, prior_precision, temperature, made)


def merge(first: Llla, second: Llla) -> Llla:
    """The posterior of both fits' latents, with the second one's settings."""
    return make(statistics_of(second), noise_energy_of(second), second.sketch, second.sketch_sigmas,
                second.fingerprint, second.about, second.structure, second.prior,
                second.prior_precision, second.temperature, earlier=first)


def with_settings(llla: Llla, structure: str | None = None, prior: str | None = None,
                  prior_precision: float | None = None, temperature: float | None = None) -> Llla:
    """The same statistics seen otherwise; None leaves a setting as it is."""
    given = {"structure": structure, "prior": prior, "prior_precision": prior_precision,
             "temperature": temperature}
    changed = {name: value for name, value in given.items()
               if value is not None and value != getattr(llla, name)}
    if not changed:
        return llla
    new = llla._replace(**changed)
    return new._replace(posterior=_posterior(
        statistics_of(new), new.about, new.structure, new.prior, new.prior_precision,
        new.temperature))


def rows_at(phi: torch.Tensor, layer: LastLayer, positions: torch.Tensor) -> torch.Tensor:
    """Rows u at some positions of one latent's features (a batch of 1): what unfold gives there,
    without unfolding the rest."""
    if layer.kernel:
        size, width = layer.kernel, phi.shape[-1]
        padded = F.pad(phi[0], [size // 2] * 4)
        corners = [divmod(position, width) for position in positions.tolist()]
        rows = torch.stack([padded[:, i:i + size, j:j + size].flatten() for i, j in corners])
    else:
        rows = phi.flatten(1, -2)[0, positions.to(phi.device)]
    rows = rows.float().cpu()
    return torch.cat([rows, torch.ones_like(rows[:, :1])], dim=1) if layer.bias else rows


def statistics_of(llla: Llla) -> FeatureStatistics:
    """What it was made of, to be added to; the Llla, which a cache may hold, stays as it is."""
    about = llla.about
    statistics = FeatureStatistics(about.shape, about.structure)
    statistics.ggn = llla.ggn.clone()
    statistics.latents = about.latents
    statistics.residual_sum = about.residual_sum
    statistics.residual_count = about.residual_count
    return statistics


def noise_energy_of(llla: Llla) -> NoiseEnergy:
    """Gamma_t for Analytic-DPM."""
    energy = NoiseEnergy(len(llla.energy_sums))
    energy.sums, energy.counts = llla.energy_sums.clone(), llla.energy_counts.clone()
    return energy


def row_variance(made: Posterior, rows: torch.Tensor) -> torch.Tensor:
    """gamma^2 = u^T Sigma u of single rows u, rows x inputs, in float64."""
    rows = rows.double()
    if isinstance(made, DiagonalPosterior):
        return rows.square() @ made.variance
    return (rows @ made.factor.T).square().sum(1)


def predictive_sd_by_level(llla: Llla) -> list[Level]:
    """Mean of gamma^2 over the sketch's rows, in groups of neighboring noise levels, falling."""
    sigmas, order = llla.sketch_sigmas.double().sort(descending=True, stable=True)
    variance = row_variance(llla.posterior, llla.sketch)[order]
    groups = min(LEVELS, len(sigmas.unique()))
    return [Level(s.log().mean().exp().item(), v.mean().item())
            for s, v in zip(sigmas.tensor_split(groups), variance.tensor_split(groups))]


def describe(llla: Llla) -> list[str]:
    """Facts for the user, one a line."""
    about, shape = llla.about, llla.about.shape
    degrees = effective_dimension(llla.posterior)
    prior = f"{llla.posterior.prior_precision:.4g}"
    chosen = "chosen by the evidence" if llla.prior == "evidence" else "fixed"
    noise = f"{about.residual_sum / about.residual_count:.4g}" if about.residual_count else "none"
    return [
        f"family: {about.family}",
        f"last layer: {about.layer}, {shape.features} features, {shape.inputs} weights per output,"
        f" {about.outputs} outputs",
        f"latents seen: {about.latents}",
        f"structure: {llla.structure} (statistics: {about.structure})",
        f"prior precision: {prior} ({chosen}), temperature: {llla.temperature:g}",
        f"mean squared residual of the network's output: {noise}",
        f"effective degrees of freedom: {degrees:.1f} of {shape.inputs} per output",
        "predictive standard deviation of the network's output:",
        *(f"  at sigma {level.sigma:.4g}: {level.sd:.4g}"
          for level in predictive_sd_by_level(llla)),
    ]


def _posterior(statistics: FeatureStatistics, about: About, structure: str, prior: str,
               prior_precision: float, temperature: float) -> Posterior:
    checks.one_of("prior", prior, PRIORS)
    noise = _noise_variance(statistics, prior)
    if prior == "evidence":
        checks.at_least("number of latents in the statistics", statistics.latents, 1)
        prior_precision = evidence_prior_precision(_eigenvalues(statistics, structure) / noise,
                                                   about.weight_norm, about.outputs)
    return posterior(statistics, structure, prior_precision, noise, temperature)


def _noise_variance(statistics: FeatureStatistics, prior: str) -> float:
    return statistics.noise_variance() if prior == "evidence" else 1.0


def _eigenvalues(statistics: FeatureStatistics, structure: str) -> torch.Tensor:
    if statistics.structure == "diagonal":
        return statistics.ggn
    if structure == "diagonal":
        return statistics.ggn.diagonal()
    return torch.linalg.eigvalsh(statistics.ggn).clamp(min=0)


def _check_same_layer(first: About, second: About) -> None:
    for name in ("family", "layer", "shape", "outputs"):
        ours, theirs = getattr(first, name), getattr(second, name)
        if ours != theirs:
            raise BayesDiffError(f"posteriors of different layers cannot be merged: {name} is"
                                 f" {ours} in one and {theirs} in the other. Continue from one that"
                                 " was fitted on the same model.")


def _sum(first: FeatureStatistics, second: FeatureStatistics) -> FeatureStatistics:
    structure = "full" if first.structure == second.structure == "full" else "diagonal"
    total = FeatureStatistics(first.layer, structure)
    total.merge(_as(structure, first))
    total.merge(_as(structure, second))
    return total


def _as(structure: str, statistics: FeatureStatistics) -> FeatureStatistics:
    """Full statistics hold the diagonal ones."""
    if structure == statistics.structure:
        return statistics
    diagonal = FeatureStatistics(statistics.layer, "diagonal")
    diagonal.ggn = statistics.ggn.diagonal()
    diagonal.latents = statistics.latents
    diagonal.residual_sum = statistics.residual_sum
    diagonal.residual_count = statistics.residual_count
    return diagonal


def _thinned(rows: torch.Tensor, sigmas: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """At most SKETCH_ROWS of them, evenly along the noise levels."""
    order = sigmas.argsort(stable=True)
    if len(order) > SKETCH_ROWS:
        order = order[torch.linspace(0, len(order) - 1, SKETCH_ROWS).round().long()]
    return rows[order], sigmas[order]
