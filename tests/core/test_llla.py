"""What travels between nodes: merging, changed settings and the numbers shown."""

import json

import pytest
import torch

from bayesdiff_core import llla
from bayesdiff_core.checks import BayesDiffError
from bayesdiff_core.llla import About
from bayesdiff_core.noise_energy import NoiseEnergy
from bayesdiff_core.posterior import FeatureStatistics, LastLayer, log_evidence, unfold

CONV, LINEAR = LastLayer(3, kernel=3), LastLayer(5)
LAYERS = pytest.mark.parametrize("layer", [CONV, LINEAR, LastLayer(4, bias=False)])


def features(layer, batch=8, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shape = (batch, layer.features, 5, 6) if layer.kernel else (batch, 7, layer.features)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def made_of(phi, layer, statistics="full", **settings):
    """A fit on these features, with noise levels that rise from 0.1 to 10 along the batch."""
    sums, energy = FeatureStatistics(layer, statistics), NoiseEnergy()
    sums.add(phi, residual=0.3 * phi)
    sigmas = torch.logspace(-1, 1, len(phi))
    energy.add(sigmas, phi)
    sketch = unfold(phi, layer).float()
    about = About("a family", "a.layer", layer, outputs=4, structure="", latents=0,
                  residual_sum=0.0, residual_count=0, weight_norm=7.0,
                  settings=json.dumps([{"seed": 1}]), pack_version="0")
    return llla.make(sums, energy, sketch.flatten(0, 1),
                     sigmas.repeat_interleave(sketch.shape[1]), torch.ones(3), about,
                     **{"structure": statistics, **settings})


@LAYERS
@pytest.mark.parametrize("structure", ["full", "diagonal"])
def test_merging_two_fits_is_fitting_on_all(layer, structure):
    phi = features(layer)
    whole = made_of(phi, layer, structure)
    both = llla.merge(made_of(phi[:3], layer, structure), made_of(phi[3:], layer, structure))
    assert torch.allclose(both.ggn, whole.ggn, rtol=1e-12)
    assert both.about._replace(settings="", residual_sum=0.0) \
        == whole.about._replace(settings="", residual_sum=0.0)
    assert both.about.residual_sum == pytest.approx(whole.about.residual_sum)
    assert json.loads(both.about.settings) == [{"seed": 1}, {"seed": 1}]
    assert both.energy_counts.sum() == 8 and len(both.sketch) == len(whole.sketch)
    variance = [one.posterior.predictive_variance(phi) for one in (both, whole)]
    assert torch.allclose(*variance, rtol=1e-9)


def test_merging_leaves_both_as_they_were():
    phi = features(CONV)
    first, second = made_of(phi[:3], CONV), made_of(phi[3:], CONV)
    copies = first.ggn.clone(), second.ggn.clone()
    llla.merge(first, second)
    assert torch.equal(first.ggn, copies[0]) and torch.equal(second.ggn, copies[1])


@pytest.mark.parametrize("structure", ["full", "diagonal"])
def test_what_is_taken_out_can_be_added_to_and_leaves_the_posterior(structure):
    phi = features(CONV)
    made = made_of(phi, CONV, structure)
    ggn, sums, counts = made.ggn.clone(), made.energy_sums.clone(), made.energy_counts.clone()
    statistics, energy = llla.statistics_of(made), llla.noise_energy_of(made)
    statistics.add(phi)
    energy.add(torch.ones(len(phi)), phi)
    assert not torch.equal(statistics.ggn, ggn) and not torch.equal(energy.sums, sums)
    assert torch.equal(made.ggn, ggn)
    assert torch.equal(made.energy_sums, sums) and torch.equal(made.energy_counts, counts)


def test_merging_full_and_diagonal_keeps_the_diagonal():
    phi = features(LINEAR)
    whole = made_of(phi, LINEAR, "diagonal")
    mixed = llla.merge(made_of(phi[:3], LINEAR), made_of(phi[3:], LINEAR, "diagonal"))
    assert mixed.about.structure == "diagonal" and torch.allclose(mixed.ggn, whole.ggn)


def test_merging_other_layers_is_refused_by_name():
    with pytest.raises(BayesDiffError, match="shape is .*features=5.* and .*features=3"):
        llla.merge(made_of(features(LINEAR), LINEAR), made_of(features(CONV), CONV))


@LAYERS
@pytest.mark.parametrize("structure", ["full", "diagonal"])
def test_changed_settings_are_a_fit_with_those_settings(layer, structure):
    phi = features(layer)
    changes = {"structure": structure, "prior_precision": 3.0, "temperature": 0.4}
    changed = llla.with_settings(made_of(phi, layer), **changes)
    again = made_of(phi, layer, **changes)
    assert torch.equal(changed.posterior.predictive_variance(phi),
                       again.posterior.predictive_variance(phi))


def test_unchanged_settings_do_not_compute_again():
    made = made_of(features(CONV), CONV)
    assert llla.with_settings(made, structure="full", temperature=1.0) is made


@pytest.mark.parametrize("structure", ["full", "diagonal"])
def test_evidence_takes_the_measured_noise_and_the_best_prior(structure):
    phi = features(LINEAR)
    made = made_of(phi, LINEAR, structure=structure, prior="evidence")
    noise = (0.3 * phi).square().mean().item()
    u = unfold(phi, LINEAR).flatten(0, 1)
    dense = u.T @ u / noise
    values = torch.linalg.eigvalsh(dense) if structure == "full" else dense.diagonal()
    grid = torch.logspace(-4, 4, 8001, dtype=torch.float64).tolist()
    best = max(grid, key=lambda p: log_evidence(values, p, weight_norm=7.0, outputs=4))
    assert made.posterior.prior_precision == pytest.approx(best, rel=0.003)
    precision = dense + best * torch.eye(LINEAR.inputs)
    if structure == "diagonal":
        precision = precision.diagonal().diag()
    expected = (u @ torch.linalg.inv(precision) * u).sum(1)
    assert torch.allclose(made.posterior.predictive_variance(phi).flatten(), expected, rtol=1e-2)


@LAYERS
@pytest.mark.parametrize("structure", ["full", "diagonal"])
def test_sd_by_level_is_the_dense_computation(layer, structure):
    phi = features(layer, batch=6).float().double()
    made = made_of(phi, layer, structure=structure, prior_precision=2.0, temperature=0.5)
    u = unfold(phi, layer)
    precision = (u.flatten(0, 1).T @ u.flatten(0, 1)) + 2.0 * torch.eye(layer.inputs)
    if structure == "diagonal":
        precision = precision.diagonal().diag()
    variance = 0.5 * (u @ torch.linalg.inv(precision) * u).sum(-1)  # latents x positions
    levels = llla.predictive_sd_by_level(made)
    assert [level.sigma for level in levels] == sorted((level.sigma for level in levels),
                                                       reverse=True)
    kept = len(made.sketch) == u.shape[0] * u.shape[1]
    assert kept and len(levels) == 6
    for level, expected in zip(levels, variance.mean(1).flip(0)):
        assert level.variance == pytest.approx(expected.item(), rel=1e-6)
        assert level.sd == pytest.approx(expected.item() ** 0.5, rel=1e-6)


def test_sketch_keeps_its_size_and_all_levels():
    both = made_of(features(CONV, batch=20), CONV)
    assert len(both.sketch) == llla.SKETCH_ROWS
    assert both.sketch_sigmas.min() == pytest.approx(0.1)
    assert both.sketch_sigmas.max() == pytest.approx(10)
    assert len(llla.predictive_sd_by_level(both)) == llla.LEVELS


@LAYERS
def test_rows_at_positions_are_those_of_the_unfolded_features(layer):
    phi = features(layer, batch=1)
    positions = torch.tensor([6, 0, 5, 2])
    expected = unfold(phi, layer)[0, positions].float()
    assert torch.equal(llla.rows_at(phi, layer, positions), expected)


def test_description_names_what_a_user_asks_for():
    made = made_of(features(CONV), CONV, prior="evidence", temperature=0.5)
    text = "\n".join(llla.describe(made))
    for words in ["a family", "a.layer", "3 features, 28 weights per output, 4 outputs",
                  "latents seen: 8", "structure: full", "chosen by the evidence",
                  "temperature: 0.5", "effective degrees of freedom: ", "at sigma 10: "]:
        assert words in text


def test_zero_temperature_is_described_too():
    made = made_of(features(CONV), CONV, temperature=0.0)
    assert "at sigma 10: 0" in "\n".join(llla.describe(made))


def test_noise_energy_is_given_back():
    phi = features(CONV)
    energy = llla.noise_energy_of(made_of(phi, CONV))
    assert energy.at(10.0) == pytest.approx(phi[-1].square().mean().item())


def test_bad_settings_are_refused_by_name():
    with pytest.raises(BayesDiffError, match="prior is 'flat'"):
        made_of(features(CONV), CONV, prior="flat")
    with pytest.raises(BayesDiffError, match="the diagonal only"):
        llla.with_settings(made_of(features(CONV), CONV, "diagonal"), structure="full")


@pytest.mark.parametrize("size", [(1, 1), (1, 4), (2, 3), (3, 2), (6, 5)])
@pytest.mark.parametrize("bias", [True, False])
def test_window_sums_are_the_unfolded_sums_down_to_one_pixel(size, bias):
    layer = LastLayer(4, kernel=3, bias=bias)
    phi = torch.randn(3, 4, *size, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    statistics = FeatureStatistics(layer)
    for one in phi.split([1, 2]):
        statistics.add(one)
    u = unfold(phi, layer).flatten(0, 1)
    assert torch.allclose(statistics.ggn, u.T @ u, rtol=1e-10, atol=1e-10)
