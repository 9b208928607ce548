"""The closed-form posterior against naive dense computations, weight sampling and laplace-torch."""

import math

import laplace
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from bayesdiff_core import posterior as llla
from bayesdiff_core.checks import BayesDiffError
from bayesdiff_core.posterior import FeatureStatistics, LastLayer, Predictive

CONV = LastLayer(3, kernel=3)
LINEAR = LastLayer(5)
LAYERS = pytest.mark.parametrize("layer", [CONV, LINEAR, LastLayer(4, kernel=3, bias=False),
                                           LastLayer(6, bias=False), LastLayer(2, kernel=1)])


def features(layer: LastLayer, batch: int = 4, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    shape = (batch, layer.features, 5, 6) if layer.kernel else (batch, 7, layer.features)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def module(layer: LastLayer, outputs: int) -> nn.Module:
    if layer.kernel:
        return nn.Conv2d(layer.features, outputs, layer.kernel, padding=layer.kernel // 2,
                         bias=layer.bias).double()
    return nn.Linear(layer.features, outputs, bias=layer.bias).double()


def naive_jacobian(layer: LastLayer, phi: torch.Tensor) -> torch.Tensor:
    """Rows: every entry of a one-output layer's output; columns: its weights, then its bias."""
    net = module(layer, 1)
    names = [name for name, _ in net.named_parameters()]

    def output(*values):
        return torch.func.functional_call(net, dict(zip(names, values)), (phi,))

    parts = torch.autograd.functional.jacobian(output, tuple(net.parameters()))
    rows = output(*net.parameters()).numel()
    return torch.cat([part.reshape(rows, -1) for part in parts], dim=1)


def fitted(layer: LastLayer, structure: str = "full") -> FeatureStatistics:
    statistics = FeatureStatistics(layer, structure)
    statistics.add(features(layer))
    return statistics


@LAYERS
def test_full_statistics_are_the_naive_ggn(layer):
    jacobian = naive_jacobian(layer, features(layer))
    assert torch.allclose(fitted(layer).ggn, jacobian.T @ jacobian, rtol=1e-10, atol=1e-10)


@LAYERS
def test_diagonal_statistics_are_the_naive_ggns_diagonal(layer):
    jacobian = naive_jacobian(layer, features(layer))
    expected = jacobian.square().sum(0)
    assert torch.allclose(fitted(layer, "diagonal").ggn, expected, rtol=1e-10, atol=1e-10)


@LAYERS
@pytest.mark.parametrize("structure", llla.STRUCTURES)
def test_predictive_variance_is_j_sigma_jt_computed_densely(layer, structure):
    jacobian = naive_jacobian(layer, features(layer))
    precision = jacobian.T @ jacobian / 0.3 + 2.0 * torch.eye(layer.inputs)
    if structure == "diagonal":
        precision = precision.diagonal().diag()
    seen = naive_jacobian(layer, unseen := features(layer, batch=2, seed=1))
    expected = 1.7 * (seen @ torch.linalg.inv(precision) @ seen.T).diagonal()
    made = llla.posterior(fitted(layer), structure, prior_precision=2.0, noise_variance=0.3,
                          temperature=1.7)
    assert torch.allclose(made.predictive_variance(unseen).flatten(), expected, rtol=1e-9)


@pytest.mark.parametrize("layer", [CONV, LINEAR])
@pytest.mark.parametrize("structure", llla.STRUCTURES)
def test_weight_draws_have_the_predictive_variance(layer, structure):
    made = llla.posterior(fitted(layer), structure)
    phi = features(layer, batch=2, seed=1)
    draws = made.draws(6000, 2, torch.Generator().manual_seed(3))
    spread = llla.output_deviation(phi, draws, layer).var(0, unbiased=False)
    ratio = spread / made.predictive_variance(phi)
    assert (ratio - 1).abs().max() < 6 * math.sqrt(2 / 6000)


@LAYERS
def test_output_deviation_is_the_layer_run_with_the_drawn_weights(layer):
    phi, net = features(layer), module(layer, 2)
    draws = llla.posterior(fitted(layer)).draws(3, 2, torch.Generator().manual_seed(0)).double()
    for draw, moved in zip(draws, llla.output_deviation(phi, draws, layer)):
        weight = draw[:, :-1] if layer.bias else draw
        changed = {"weight": net.weight + weight.reshape(net.weight.shape)}
        if layer.bias:
            changed["bias"] = net.bias + draw[:, -1]
        expected = torch.func.functional_call(net, changed, (phi,)) - net(phi)
        assert torch.allclose(moved, expected, atol=1e-12)


def test_full_and_diagonal_agree_with_laplace_torch_on_a_linear_layer():
    torch.manual_seed(0)
    phi, net = torch.randn(40, 5), nn.Sequential(nn.Linear(5, 2))
    data = torch.utils.data.TensorDataset(phi, torch.randn(40, 2))
    statistics = FeatureStatistics(LINEAR)
    statistics.add(phi[:, None])
    for structure, kind in [("full", laplace.FullLaplace), ("diagonal", laplace.DiagLaplace)]:
        reference = kind(net, "regression", sigma_noise=0.5, prior_precision=3.0)
        reference.fit(torch.utils.data.DataLoader(data, batch_size=40))
        _, covariance = reference(phi[:7])
        variance = covariance.diagonal(dim1=-2, dim2=-1) if covariance.ndim == 3 else covariance
        made = llla.posterior(statistics, structure, prior_precision=3.0, noise_variance=0.25)
        ours = made.predictive_variance(phi[:7, None])[:, 0]
        expected = variance.detach().float()
        assert torch.allclose(ours.float().expand_as(expected), expected, rtol=1e-4)


def test_statistics_do_not_depend_on_batching_and_merge():
    phi = features(CONV, batch=6)
    whole, one_by_one, other = (FeatureStatistics(CONV) for _ in range(3))
    whole.add(phi, residual=phi)
    for i in range(4):
        one_by_one.add(phi[i:i + 1], residual=phi[i:i + 1])
    other.add(phi[4:], residual=phi[4:])
    one_by_one.merge(other)
    assert torch.allclose(whole.ggn, one_by_one.ggn, rtol=1e-12)
    assert whole.latents == one_by_one.latents == 6
    assert whole.noise_variance() == pytest.approx(one_by_one.noise_variance())
    assert whole.noise_variance() == pytest.approx(phi.square().mean().item())


def test_subsampled_positions_estimate_the_same_statistics():
    phi = features(LastLayer(3), batch=200)
    phi = phi + torch.tensor([1.0, 0.0, -2.0])
    whole, part = FeatureStatistics(LastLayer(3)), FeatureStatistics(LastLayer(3))
    whole.add(phi)
    generator = torch.Generator().manual_seed(0)
    for one in phi.split(1):
        part.add(one, positions=3, generator=generator)
    assert (part.ggn - whole.ggn).norm() < 0.1 * whole.ggn.norm()


def test_half_precision_features_are_squared_in_single():
    phi = torch.full((1, 3, 5, 6), 300.0, dtype=torch.float16)  # 300^2 overflows fp16
    statistics = FeatureStatistics(CONV)
    statistics.add(phi)
    assert torch.isfinite(statistics.ggn).all()
    variance = llla.posterior(statistics).predictive_variance(phi)
    assert variance.dtype == torch.float32 and torch.isfinite(variance).all()


def test_guided_feature_gives_the_guided_output():
    net, cond, uncond = module(CONV, 2), features(CONV), features(CONV, seed=1)
    guided = net(uncond) + 7.5 * (net(cond) - net(uncond))
    assert torch.allclose(net(llla.guided_features(cond, uncond, 7.5)), guided)


def test_zero_temperature_is_a_zero_posterior():
    for structure in llla.STRUCTURES:
        made = llla.posterior(fitted(CONV), structure, temperature=0.0)
        assert made.predictive_variance(features(CONV)).count_nonzero() == 0
        assert made.draws(2, 2, torch.Generator()).count_nonzero() == 0


def test_evidence_picks_the_prior_precision_of_a_grid_search():
    made = llla.posterior(fitted(CONV), noise_variance=20.0)
    norm, outputs = 9.0, 4
    best = llla.evidence_prior_precision(made.eigenvalues, norm, outputs)
    grid = torch.logspace(-3, 3, 4001, dtype=torch.float64).tolist()
    by_search = max(grid, key=lambda p: llla.log_evidence(made.eigenvalues, p, norm, outputs))
    assert best == pytest.approx(by_search, rel=0.004)


def test_log_evidence_differs_like_the_dense_marginal_likelihood():
    """For ridge regression with MAP weights w the evidence is a Gaussian density of the targets."""
    torch.manual_seed(0)
    u = torch.randn(12, 4, dtype=torch.float64)
    noise = 0.4

    def dense(prior, y):
        covariance = u @ u.T / prior + noise * torch.eye(12)
        return torch.distributions.MultivariateNormal(torch.zeros(12).double(), covariance) \
            .log_prob(y).item()

    y = torch.randn(12, dtype=torch.float64)

    def ours(prior):
        a = torch.linalg.eigvalsh(u.T @ u) / noise
        w = torch.linalg.solve(u.T @ u / noise + prior * torch.eye(4), u.T @ y / noise)
        misfit = (y - u @ w).square().sum().item() / noise
        return llla.log_evidence(a, prior, w.square().sum().item(), 1) - 0.5 * misfit

    assert ours(0.5) - ours(3.0) == pytest.approx(dense(0.5, y) - dense(3.0, y), abs=1e-8)


def test_effective_dimension_goes_from_all_weights_to_none():
    values = [llla.effective_dimension(llla.posterior(fitted(CONV), prior_precision=p))
              for p in (1e-9, 1.0, 1e9)]
    assert values[0] == pytest.approx(CONV.inputs, rel=1e-3)
    assert values[0] > values[1] > values[2] > 0 and values[2] < 1e-3


@pytest.mark.parametrize("structure", llla.STRUCTURES)
@pytest.mark.parametrize("every", [2, 3])
def test_coarse_variance_is_exact_on_its_grid_and_between_neighbors_elsewhere(every, structure):
    made, phi = llla.posterior(fitted(CONV), structure), features(CONV, seed=2)
    exact, coarse = made.predictive_variance(phi), made.predictive_variance(phi, every)
    assert coarse.shape == exact.shape
    assert torch.allclose(coarse[..., ::every, ::every], exact[..., ::every, ::every])
    grid = exact[..., ::every, ::every]
    assert coarse.min() >= grid.min() - 1e-12 and coarse.max() <= grid.max() + 1e-12
    between = (exact[..., 0, 0] + exact[..., 0, every]) / 2
    assert torch.allclose(coarse[..., 0, :every + 1].mean(-1), between)


def test_predictive_on_tokens_lands_on_the_grid():
    made = llla.posterior(fitted(LINEAR))
    phi = features(LINEAR)
    predictive = Predictive(made, phi, outputs=2, scale=-3.0,
                            to_grid=lambda tokens: tokens.transpose(1, 2))
    expected = 9 * made.predictive_variance(phi).expand(-1, -1, 2).transpose(1, 2)
    assert torch.allclose(predictive.variance(), expected)
    draws = made.draws(3, 2, torch.Generator().manual_seed(0)).double()
    expected = -3 * F.linear(phi, draws[1, :, :-1], draws[1, :, -1]).transpose(1, 2)
    assert torch.allclose(predictive.deviations(draws)[1], expected)


@pytest.mark.parametrize("refused, words", [
    (lambda: FeatureStatistics(CONV).add(torch.full((1, 3, 5, 6), math.nan)), "NaN or infinite"),
    (lambda: FeatureStatistics(CONV).add(torch.zeros(1, 4, 5, 6)), "C = 3 was expected"),
    (lambda: FeatureStatistics(CONV).add(torch.zeros(1, 3, 5)), r"shape \(1, 3, 5\)"),
    (lambda: FeatureStatistics(LINEAR).add(torch.zeros(1, 7, 4)), "C = 5 was expected"),
    (lambda: FeatureStatistics(CONV, "kron"), "'kron'"),
    (lambda: llla.posterior(FeatureStatistics(CONV)), "number of latents"),
    (lambda: llla.posterior(fitted(CONV), prior_precision=0.0), "prior precision is 0"),
    (lambda: llla.posterior(fitted(CONV), noise_variance=-1.0), "noise variance is -1"),
    (lambda: llla.posterior(fitted(CONV), temperature=-0.1), "temperature is -0.1"),
    (lambda: llla.posterior(fitted(CONV, "diagonal"), "full"), "the diagonal only"),
    (lambda: llla.posterior(fitted(CONV)).draws(0, 1, torch.Generator()), "weight draws is 0"),
    (lambda: fitted(CONV).noise_variance(), "fit with targets"),
    (lambda: fitted(CONV).merge(fitted(LINEAR)), "cannot be merged"),
])
def test_bad_input_is_refused_by_name(refused, words):
    with pytest.raises(BayesDiffError, match=words):
        refused()


@pytest.mark.parametrize("layer", [LastLayer(5, kernel=3), LastLayer(7)])
def test_a_placed_posterior_is_the_same_with_its_factor_laid_out_once(layer, monkeypatch):
    phi = torch.randn(2, *((5, 6, 4) if layer.kernel else (9, 7)),
                      generator=torch.Generator().manual_seed(1))
    statistics = FeatureStatistics(layer)
    statistics.add(phi)
    plain = llla.posterior(statistics)
    laid_out = []
    made = llla.affine
    monkeypatch.setattr(llla, "affine", lambda *given: (laid_out.append(1), made(*given))[1])
    placed = plain.placed(phi.half())
    for _ in range(3):
        assert torch.equal(placed.predictive_variance(phi), plain.predictive_variance(phi))
    assert placed.placed(phi) is placed and not plain._affine
    assert len(laid_out) == 1 + 3  # once for it, and for the other at every call
    (rows,) = placed._affine
    assert rows.weight.dtype == torch.float32 and rows.weight.is_contiguous()
