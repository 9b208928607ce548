"""The learned combination against autograd and known cases."""

import pytest
import torch

from bayesdiff_core import learned
from bayesdiff_core.checks import BayesDiffError


def data(n=200, seed=0):
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(n, 3, generator=generator, dtype=torch.float64)
    odds = 2 * features[:, 0] - features[:, 1]
    return features, torch.rand(n, generator=generator, dtype=torch.float64) < torch.sigmoid(odds)


def test_the_slope_is_zero_where_newton_ends():
    features, wrong = data()
    found = learned.logistic(features, wrong, 0.1).requires_grad_(True)
    logits = features @ found[:-1] + found[-1]
    loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, wrong.double())
    loss = loss + 0.05 * found[:-1].square().sum()
    assert torch.autograd.grad(loss, found)[0].abs().max() < 1e-7


def test_a_picture_that_counts_twice_is_as_two_pictures():
    features, wrong = data(60)
    twice = learned.logistic(torch.cat([features, features[:20]]), torch.cat([wrong, wrong[:20]]))
    weights = torch.ones(60)
    weights[:20] = 2
    torch.testing.assert_close(learned.logistic(features, wrong, weights=weights), twice)


def test_what_tells_gets_the_weight_and_perfect_labels_stay_finite():
    features, wrong = data(400)
    found = learned.logistic(features, wrong)
    assert found[0] > 0 > found[1] and found[2].abs() < 0.2
    assert learned.logistic(features, features[:, 0] > 0).isfinite().all()


def test_standardized_logs_do_not_see_the_unit_of_a_score():
    scores = torch.rand(30, 3, generator=torch.Generator().manual_seed(1)) + 0.1
    scores[:, 2] = 4.0
    found = learned.standardized_logs(scores * torch.tensor([10.0, 1e-6, 3.0]))
    torch.testing.assert_close(found, learned.standardized_logs(scores))
    assert found[:, :2].mean(0).abs().max() < 1e-9 and not found[:, 2].any()


def test_labels_of_one_kind_are_refused():
    with pytest.raises(BayesDiffError, match="0 of 5"):
        learned.logistic(torch.zeros(5, 1), torch.zeros(5, dtype=torch.bool))


def test_cross_validation_of_chance_stays_at_chance():
    generator = torch.Generator().manual_seed(2)
    features = torch.randn(300, 20, generator=generator)
    wrong = torch.rand(300, generator=generator) < 0.5
    said = learned.cross_validated(features, wrong)
    higher = (said[wrong][:, None] > said[~wrong]).double().mean()
    assert 0.4 < higher < 0.6
