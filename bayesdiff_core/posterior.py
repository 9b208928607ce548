"""Last-layer Laplace approximation (LLLA) in closed form; paper section 3.1 and appendix A.4.

    phi      features into the last layer, at every position
    u        phi unfolded: one row a position, kernel window flattened, then 1 for the bias
    A        sum of u u^T over positions and latents. The likelihood is Gaussian and the layer
             linear in its weights, so the GGN of all weights is I_K (x) A: the same for every
             output channel, and no targets, gradients or weights are needed
    Sigma    (A / noise_variance + prior_precision I)^-1, times the temperature
    gamma^2  the predictive variance u^T Sigma u (eq. post-pred), exact, no weight sampling
"""

import copy
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F

from . import checks
from .checks import BayesDiffError
from .windows import WindowSums

STRUCTURES = ("full", "diagonal")


class LastLayer(NamedTuple):
    """Shape of the last affine layer: a linear map of tokens, or a zero-padded convolution."""

    features: int
    kernel: int = 0  # 0: linear on tokens B x N x C; odd k: k x k convolution on B x C x H x W
    bias: bool = True

    @property
    def inputs(self) -> int:
        """Length of u."""
        return self.features * max(self.kernel, 1) ** 2 + self.bias


def check_features(phi: torch.Tensor, layer: LastLayer) -> None:
    channels, form = (1, "B x C x H x W") if layer.kernel else (-1, "B x ... x C")
    wanted = 4 if layer.kernel else 2
    if phi.ndim < wanted or (layer.kernel and phi.ndim != 4) \
            or phi.shape[channels] != layer.features:
        raise BayesDiffError(f"features have shape {tuple(phi.shape)}, {form} with C ="
                             f" {layer.features} was expected: the posterior belongs to another"
                             " model or layer.")


def unfold(phi: torch.Tensor, layer: LastLayer) -> torch.Tensor:
    """phi -> u, B x positions x inputs."""
    if layer.kernel:
        u = F.unfold(phi, layer.kernel, padding=layer.kernel // 2).transpose(1, 2)
    else:
        u = phi.flatten(1, -2) if phi.ndim > 2 else phi[:, None]
    return torch.cat([u, torch.ones_like(u[..., :1])], dim=-1) if layer.bias else u


def guided_features(cond: torch.Tensor, uncond: torch.Tensor, scale: float) -> torch.Tensor:
    """The CFG output uncond + scale (cond - uncond) is linear in the same weights, so its feature
    is combined the same way. Treating the branches as independent would be wrong."""
    return uncond + scale * (cond - uncond)


class FeatureStatistics:
    """Streaming sums that a posterior is made of; adding and merging commute."""

    def __init__(self, layer: LastLayer, structure: str = "full"):
        checks.one_of("structure", structure, STRUCTURES)
        shape = (layer.inputs,) * (2 if structure == "full" else 1)
        self.layer, self.structure = layer, structure
        self._ggn = torch.zeros(shape, dtype=torch.float64)
        self._windows: WindowSums | None = None  # what of A is not in _ggn yet
        self.latents = 0
        self.residual_sum, self.residual_count = 0.0, 0

    @property
    def ggn(self) -> torch.Tensor:
        """A, inputs x inputs, or its diagonal; float64."""
        if self._windows is not None:
            self._windows.add_to(self._ggn)
            self._windows = None
        return self._ggn

    @ggn.setter
    def ggn(self, value: torch.Tensor) -> None:
        self._ggn, self._windows = value, None

    def add(self, phi: torch.Tensor, *, positions: int | None = None,
            generator: torch.Generator | None = None,
            residual: torch.Tensor | None = None) -> None:
        """Adds a batch of features; `positions` keeps that many a latent, drawn at random and
        weighted up, where all of them would take too long. `residual` is target minus output."""
        check_features(phi, self.layer)
        checks.finite("features", phi)
        phi = phi if phi.dtype == torch.float64 else phi.float()  # squares of fp16 overflow
        if self.structure == "diagonal":
            self.ggn += self._diagonal_sum(phi)
        elif self.layer.kernel == 3 and positions is None:
            self._windows = self._windows or WindowSums(self.layer.features)
            self._windows.add(phi)
        else:
            u = unfold(phi, self.layer)
            weight = 1.0
            if positions is not None and positions < u.shape[1]:
                checks.at_least("positions", positions, 1)
                pick = torch.randperm(u.shape[1], generator=generator)[:positions]
                weight, u = u.shape[1] / positions, u[:, pick.to(u.device)]
            u = u.flatten(0, 1)
            self.ggn += weight * (u.T @ u).to(self.ggn)
        self.latents += len(phi)
        if residual is not None:
            checks.finite("residual", residual)
            self.residual_sum += residual.double().square().sum().item()
            self.residual_count += residual.numel()

    def _diagonal_sum(self, phi: torch.Tensor) -> torch.Tensor:
        layer, squares = self.layer, phi.square()
        if layer.kernel:
            height, width = phi.shape[-2:]
            padded = F.pad(squares.sum(0), [layer.kernel // 2] * 4)  # C x H+2p x W+2p
            sums = torch.stack([padded[:, i:i + height, j:j + width].sum((1, 2))
                                for i in range(layer.kernel) for j in range(layer.kernel)], dim=1)
            sums, count = sums.flatten(), len(phi) * height * width
        else:
            squares = squares.flatten(0, -2)
            sums, count = squares.sum(0), len(squares)
        bias = sums.new_tensor([count] if layer.bias else [])
        return torch.cat([sums, bias]).to(self.ggn)

    def merge(self, other: "FeatureStatistics") -> None:
        if (other.layer, other.structure) != (self.layer, self.structure):
            raise BayesDiffError(f"statistics of {other.layer}, {other.structure} cannot be merged"
                                 f" into those of {self.layer}, {self.structure}.")
        self.ggn += other.ggn
        self.latents += other.latents
        self.residual_sum += other.residual_sum
        self.residual_count += other.residual_count

    def noise_variance(self) -> float:
        """Mean squared residual: the maximum-likelihood noise variance where targets were given."""
        if not self.residual_count:
            raise BayesDiffError("noise variance from residuals was asked for, but the statistics"
                                 " hold none: fit with targets, or give a number.")
        return self.residual_sum / self.residual_count


class DiagonalPosterior:
    """Independent weights: the paper's structure (appendix A.4)."""

    costly = False

    def __init__(self, statistics: FeatureStatistics, prior_precision: float = 1.0,
                 noise_variance: float = 1.0, temperature: float = 1.0):
        _check_numbers(statistics, prior_precision, noise_variance, temperature)
        ggn = statistics.ggn.diagonal() if statistics.structure == "full" else statistics.ggn
        self.layer = statistics.layer
        self.eigenvalues = ggn / noise_variance  # the diagonal itself
        self.prior_precision = prior_precision
        self.variance = temperature / (self.eigenvalues + prior_precision)  # inputs

    def predictive_variance(self, phi: torch.Tensor, every: int = 1) -> torch.Tensor:
        """gamma^2 at every position, shared by all outputs: B x 1 x H x W or B x ... x 1, with
        `every` as FullPosterior has it."""
        check_features(phi, self.layer)
        phi = _at_least_float(phi)
        total = affine(self.variance[None], self.layer, phi).of(phi.square(), stride=every)
        total = total.clamp(min=0)
        return _fill_in(total, every, phi.shape[-2:]) if every > 1 and self.layer.kernel else total

    def placed(self, phi: torch.Tensor) -> "DiagonalPosterior":
        """Small enough to be brought to the features at every call."""
        return self

    def draws(self, count: int, outputs: int, generator: torch.Generator) -> torch.Tensor:
        """Weight deviations dW ~ N(0, Sigma), count x outputs x inputs; the weights stay."""
        return _standard_draws(count, outputs, self.layer, generator) * self.variance.sqrt().float()


class FullPosterior:
    """Correlated weights of one output; outputs are independent, which the GGN says exactly."""

    costly = True  # beside the network: positions may be left out

    def __init__(self, statistics: FeatureStatistics, prior_precision: float = 1.0,
                 noise_variance: float = 1.0, temperature: float = 1.0):
        _check_numbers(statistics, prior_precision, noise_variance, temperature)
        if statistics.structure != "full":
            raise BayesDiffError("a full posterior needs full statistics, these hold the diagonal"
                                 " only: fit again with structure 'full', or use 'diagonal'.")
        values, vectors = torch.linalg.eigh(statistics.ggn)
        self.layer = statistics.layer
        self.eigenvalues = values.clamp(min=0) / noise_variance
        self.prior_precision = prior_precision
        variance = temperature / (self.eigenvalues + prior_precision)
        self.factor = (vectors * variance.sqrt()).T  # rows f with Sigma = sum f f^T
        self._affine: list[Affine] = []

    def placed(self, phi: torch.Tensor) -> "FullPosterior":
        """The same, ready for many calls with features like these: its factor, tens of megabytes
        for a large model, is cast, laid out and brought to their device once."""
        if self._affine and self._affine[0].suits(phi):
            return self
        ready = copy.copy(self)
        ready._affine = self._affine_for(phi)
        return ready

    def _affine_for(self, phi: torch.Tensor) -> list["Affine"]:
        phi = _at_least_float(phi)
        return [affine(rows, self.layer, phi) for rows in self.factor.split(256)]  # bounds memory

    def predictive_variance(self, phi: torch.Tensor, every: int = 1) -> torch.Tensor:
        """gamma^2 at every position, shared by all outputs: B x 1 x H x W or B x ... x 1.

        every = 2 computes one position in four of a convolution's grid and interpolates the rest.
        """
        check_features(phi, self.layer)
        phi = _at_least_float(phi)
        total, axis = None, 1 if self.layer.kernel else -1
        for rows in self.placed(phi)._affine:
            part = rows.of(phi, stride=every).square_().sum(axis, keepdim=True)
            total = part if total is None else total.add_(part)
        return _fill_in(total, every, phi.shape[-2:]) if every > 1 and self.layer.kernel else total

    def draws(self, count: int, outputs: int, generator: torch.Generator) -> torch.Tensor:
        """Weight deviations dW ~ N(0, Sigma), count x outputs x inputs; the weights stay."""
        return _standard_draws(count, outputs, self.layer, generator) @ self.factor.float()


Posterior = DiagonalPosterior | FullPosterior


def posterior(statistics: FeatureStatistics, structure: str = "full",
              prior_precision: float = 1.0, noise_variance: float = 1.0,
              temperature: float = 1.0) -> Posterior:
    checks.one_of("structure", structure, STRUCTURES)
    kind = FullPosterior if structure == "full" else DiagonalPosterior
    return kind(statistics, prior_precision, noise_variance, temperature)


def output_deviation(phi: torch.Tensor, draws: torch.Tensor, layer: LastLayer) -> torch.Tensor:
    """What weight deviations (count x outputs x inputs) add to the layer's output, without the
    weights: count x B x outputs x H x W for a convolution, count x B x ... x outputs for tokens."""
    check_features(phi, layer)
    phi = _at_least_float(phi)
    out = affine(draws.flatten(0, 1), layer, phi).of(phi)
    if layer.kernel:
        return out.unflatten(1, draws.shape[:2]).movedim(1, 0)
    return out.unflatten(-1, draws.shape[:2]).movedim(-2, 0)


class Predictive(NamedTuple):
    """The posterior predictive of one network call, on the image grid and in units of d.

    scale is dd/d(network output), a number or a value for each pixel; to_grid lays a layer's
    outputs out on the grid (for tokens: unpatchify), and outputs counts them a position.
    """

    posterior: Posterior
    phi: torch.Tensor
    outputs: int
    scale: float | torch.Tensor = 1.0
    to_grid: Callable[[torch.Tensor], torch.Tensor] = lambda outputs: outputs
    every: int = 1

    def variance(self) -> torch.Tensor:
        """Var(d | x) = gamma^2 of eq. post-pred."""
        gamma2 = self.posterior.predictive_variance(self.phi, self.every)
        shape = [-1] * gamma2.ndim
        shape[1 if self.posterior.layer.kernel else -1] = self.outputs
        return self.scale**2 * self.to_grid(gamma2.expand(shape))

    def deviations(self, draws: torch.Tensor) -> torch.Tensor:
        """What each weight draw adds to d: count x B x C x H x W."""
        moved = output_deviation(self.phi, draws, self.posterior.layer)
        return self.scale * torch.stack([self.to_grid(one) for one in moved])


def effective_dimension(posterior: Posterior) -> float:
    """How many weights of one output the data determine: sum of a / (a + prior precision)."""
    values = posterior.eigenvalues
    return (values / (values + posterior.prior_precision)).sum().item()


def log_evidence(eigenvalues: torch.Tensor, prior_precision: float, weight_norm: float,
                 outputs: int) -> float:
    """Log marginal likelihood as a function of the prior precision, up to a constant.

    eigenvalues: of A / noise_variance. weight_norm: squared norm of the layer's weights and biases.
    """
    spread = torch.log1p(eigenvalues / prior_precision).sum().item()
    return -0.5 * (prior_precision * weight_norm + outputs * spread)


def evidence_prior_precision(eigenvalues: torch.Tensor, weight_norm: float, outputs: int) -> float:
    """The prior precision that maximizes log_evidence, by MacKay's fixed point
    prior = effective dimension / weight norm, which every maximum satisfies."""
    checks.positive("weight_norm", weight_norm)
    if not eigenvalues.max() > 0:
        raise BayesDiffError("the features are all 0, so the data cannot choose a prior precision:"
                             " use prior 'fixed' instead of 'evidence'.")
    prior = outputs * len(eigenvalues) / weight_norm
    for _ in range(1000):
        updated = outputs * (eigenvalues / (eigenvalues + prior)).sum().item() / weight_norm
        if abs(updated - prior) <= 1e-10 * prior:
            break
        prior = updated
    return prior


class Affine(NamedTuple):
    """The layer with other weights, as its own kind of layer takes them: contiguous."""

    weight: torch.Tensor
    bias: torch.Tensor | None

    def suits(self, phi: torch.Tensor) -> bool:
        phi = _at_least_float(phi[:0])
        return (self.weight.device, self.weight.dtype) == (phi.device, phi.dtype)

    def of(self, phi: torch.Tensor, stride: int = 1) -> torch.Tensor:
        if self.weight.ndim == 2:
            return F.linear(phi, self.weight, self.bias)
        return F.conv2d(phi, self.weight, self.bias, stride=stride,
                        padding=self.weight.shape[-1] // 2)


def affine(rows: torch.Tensor, layer: LastLayer, phi: torch.Tensor) -> Affine:
    """rows x inputs, for features like phi."""
    rows = rows.to(phi)
    bias = rows[:, -1].contiguous() if layer.bias else None
    weight = rows[:, :-1] if layer.bias else rows
    if layer.kernel:
        weight = weight.reshape(-1, layer.features, layer.kernel, layer.kernel)
    return Affine(weight.contiguous(), bias)


def _fill_in(coarse: torch.Tensor, every: int, size: tuple[int, int]) -> torch.Tensor:
    """Bilinear between the computed positions 0, every, 2 every, ...; held after the last one."""
    rows, columns = coarse.shape[-2:]
    padded = F.pad(coarse, (0, 1, 0, 1), mode="replicate")
    fine = F.interpolate(padded, (rows * every + 1, columns * every + 1), mode="bilinear",
                         align_corners=True)
    return fine[..., :size[0], :size[1]]


def _standard_draws(count: int, outputs: int, layer: LastLayer, generator) -> torch.Tensor:
    checks.at_least("number of weight draws", count, 1)
    return torch.randn(count, outputs, layer.inputs, generator=generator)


def _at_least_float(phi: torch.Tensor) -> torch.Tensor:
    return phi if phi.dtype == torch.float64 else phi.float()


def _check_numbers(statistics, prior_precision, noise_variance, temperature) -> None:
    checks.at_least("number of latents in the statistics", statistics.latents, 1)
    checks.positive("prior precision", prior_precision)
    checks.positive("noise variance", noise_variance)
    checks.at_least("temperature", temperature, 0)
    checks.finite("statistics", statistics.ggn)
