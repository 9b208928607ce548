"""The fixed combination against plain sums, and the joint map."""

import math

import pytest
import torch

from bayesdiff_core import confidence, evidence
from bayesdiff_core.checks import BayesDiffError


def random(*shape, seed=0):
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_confidence_is_a_weighted_sum_of_standardized_logarithms():
    parts = {"a, mean": random(6) + 0.1, "b, top": random(6, seed=1) + 0.1, "unused": random(6)}
    found = confidence.confidence(parts, {"a, mean": 2.0, "b, top": -0.5})
    naive = [0.0] * 6
    for name, weight in (("a, mean", 2.0), ("b, top", -0.5)):
        logs = [math.log(value) for value in parts[name].tolist()]
        middle = sum(logs) / 6
        spread = math.sqrt(sum((value - middle) ** 2 for value in logs) / 6)
        naive = [n + weight * (value - middle) / spread for n, value in zip(naive, logs)]
    assert found.tolist() == pytest.approx(naive)


def test_confidence_does_not_see_the_latents_scale():
    estimates = [random(5, 2, 12, 12, seed=seed) for seed in range(6)]

    def found(scale):
        moved = [scale * one for one in estimates]
        maps = {"late 20": evidence.relative(evidence.late_change(moved, 0.5), moved[-1])}
        parts = {name: confidence.part(name, maps) for name in ("late 20, top", "late 20, spread")}
        return confidence.confidence(parts, dict.fromkeys(parts, 1.0))

    torch.testing.assert_close(found(10.0), found(1.0))


def test_powers_of_a_picture_do_not_depend_on_its_batch():
    parts = {"a": random(5) + 0.1, "b": random(5, seed=1) + 0.1}
    found = confidence.powers(parts, {"a": 2.0, "b": -0.5})
    both = zip(parts["a"].tolist(), parts["b"].tolist())
    naive = [2 * math.log(a) - 0.5 * math.log(b) for a, b in both]
    assert found.tolist() == pytest.approx(naive)
    alone = confidence.powers({name: part[3:4] for name, part in parts.items()},
                              {"a": 2.0, "b": -0.5})
    assert alone.tolist() == pytest.approx(naive[3:4])


def test_one_picture_has_nothing_to_be_compared_with():
    assert confidence.confidence({"a": torch.ones(1)}, {"a": 1.0}).tolist() == [0]


def test_a_missing_part_is_named():
    with pytest.raises(BayesDiffError, match="'late 20, top'"):
        confidence.confidence({}, {"late 20, top": 1.0})
    with pytest.raises(BayesDiffError, match="'late 20'"):
        confidence.part("late 20, top", {"other": torch.ones(1, 1, 2, 2)})


@pytest.mark.parametrize("weights", confidence.VARIANTS.values())
def test_every_variant_names_parts_that_exist(weights):
    for name in weights:
        source, how = name.rsplit(", ", 1)
        assert how in confidence.HOWS or name in (confidence.PATH, confidence.CONTRAST)


def test_the_joint_map_weighs_maps_alike():
    one, other = random(2, 3, 8, 8), random(2, 3, 8, 8, seed=1)
    found = confidence.joint_map([one, other])
    assert found.shape == (2, 1, 8, 8)
    torch.testing.assert_close(confidence.joint_map([100 * one, other]), found)
    naive = sum(m.mean(1, keepdim=True) / m.mean((1, 2, 3), keepdim=True) for m in (one, other)) / 2
    torch.testing.assert_close(found, evidence.smooth(evidence.smooth(naive)))
