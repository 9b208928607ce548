"""Offsets from a trajectory's mean, and the paper's adjacent initial positions."""

import pytest
import torch

from bayesdiff_core.checks import BayesDiffError
from bayesdiff_core.resampling import adjacent, offsets, step_to_leave
from bayesdiff_core.trajectory import Trajectory


@pytest.fixture
def trajectory():
    """Two images at steps 0, 2 and 4 of four."""
    torch.manual_seed(0)
    deviations = torch.randn(3, 4, 2, 3, 8, 8) * torch.tensor([0.0, 0.1, 0.01])[:, None, None, None,
                                                                                None, None]
    return Trajectory(torch.tensor([10.0, 5.0, 2.0, 0.5, 0.0]), torch.tensor([0, 2, 4]),
                      torch.randn(3, 2, 3, 8, 8), deviations.square().mean(1),
                      torch.zeros(3, 2, 3, 8, 8), deviations, 4, torch.tensor([7, 8]),
                      torch.ones(1, 3, 1, 1), torch.zeros(1, 3, 1, 1))


@pytest.mark.parametrize("independent", [False, True])
def test_posterior_offsets_have_strength_squared_times_the_variance(trajectory, independent):
    drawn = offsets(trajectory, 2, 4000, 1, 3.0, "posterior", independent)
    axes = (-1, -2)  # over which a part of it is smoothed
    ratio = drawn.square().mean(0).mean(axes) / (9 * trajectory.variance[1].mean(axes))
    assert drawn.shape == (4000, 2, 3, 8, 8)
    torch.testing.assert_close(ratio, torch.ones(2, 3), rtol=0, atol=0.03)
    assert drawn.mean(0).abs().max() < 0.1


@pytest.mark.parametrize("independent", [False, True])
def test_noise_level_offsets_have_an_rms_of_strength_times_sigma(trajectory, independent):
    drawn = offsets(trajectory, 2, 5, 1, 0.3, "noise level", independent)
    rms = drawn.square().mean((2, 3, 4)).sqrt()
    torch.testing.assert_close(rms, torch.full((5, 2), 0.3 * 2.0))


def test_strength_0_is_exactly_no_offset(trajectory):
    for unit in ("posterior", "noise level"):
        assert offsets(trajectory, 2, 3, 1, 0.0, unit, False).count_nonzero() == 0


def test_adjacent_positions_keep_the_noise_normal_and_eta_0_keeps_it_exact():
    noise = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    assert torch.equal(adjacent(noise, torch.zeros(1), [4, 5], 3, 6), noise.expand(3, 2, 3, 32, 32))
    mixed = adjacent(noise, torch.tensor(0.3), [4, 5], 3, 6)
    assert mixed.var().item() == pytest.approx(1, abs=0.05)
    correlation = torch.corrcoef(torch.stack([mixed[0].flatten(), noise.flatten()]))[0, 1].item()
    assert correlation == pytest.approx(0.7**0.5, abs=0.03)
    assert not torch.equal(mixed[0], mixed[1])
    assert torch.equal(adjacent(noise[1:], torch.tensor(0.3), [5], 3, 6)[:, 0], mixed[:, 1])


@pytest.mark.parametrize("step, fraction, expected", [(2, 0.9, 2), (0, 0.9, 0), (-1, 0.0, 0),
                                                      (-1, 0.4, 2), (-1, 1.0, 2)])
def test_the_step_to_leave_is_a_kept_one_with_something_left(trajectory, step, fraction, expected):
    assert step_to_leave(trajectory, step, fraction) == expected


@pytest.mark.parametrize("attempt, words", [
    (lambda t: step_to_leave(t, 1, 0), r"step 1 is not in .*\[0, 2, 4\]"),
    (lambda t: step_to_leave(t, 4, 0), r"step 4 is the result .*\[0, 2\]"),
    (lambda t: offsets(t, 2, 1, 0, -1.0, "posterior", False), "strength is -1"),
    (lambda t: offsets(t, 2, 1, 0, 1.0, "metres", False), "metres"),
    (lambda t: offsets(t, 0, 1, 0, 1.0, "noise level", False), "no variance at step 0"),
])
def test_what_cannot_be_drawn_is_refused_in_words(trajectory, attempt, words):
    with pytest.raises(BayesDiffError, match=words):
        attempt(trajectory)
