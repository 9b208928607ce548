"""The record, trajectory variance, and the appendix's continuous-time terms."""

import pytest
import torch

from bayesdiff_core.checks import BayesDiffError
from bayesdiff_core.paper.continuous import continuous_terms
from bayesdiff_core.smoothing import smoothed
from bayesdiff_core.trajectory import (
    RECENT,
    Part,
    TrajectoryRecorder,
    TrajectoryVariance,
    joined,
    kept_steps,
    parts_of,
)

ONE, ZERO = torch.ones(1, 2, 1, 1), torch.zeros(1, 2, 1, 1)


def recorded(steps=10, limit=2**30, deviations=2, keep=None, skipped=(), unseen=()):
    shape = torch.Size((3, 2, 4, 4))
    recorder = TrajectoryRecorder(torch.linspace(1, 0, steps + 1), shape, deviations, [7, 8, 9],
                                  early=1, limit=limit, keep=keep)
    for step in range(steps + 1):
        state = torch.full(shape, float(step))
        if step not in unseen:
            recorder.add_denoised(step, state + 0.75, torch.tensor(True))
        if step not in skipped:
            recorder.add(step, state, state + 0.5, state + 0.25, state.expand(deviations, *shape))
    return recorder.trajectory(2 * ONE, 3 * ONE)


def test_all_steps_are_kept_where_they_fit():
    trajectory = recorded()
    assert trajectory.steps.tolist() == list(range(11))
    assert trajectory.mean[4].unique().item() == 4 and trajectory.variance[4].unique().item() == 4.5
    assert trajectory.deviations.shape == (11, 2, 3, 2, 4, 4)
    assert trajectory.seeds.tolist() == [7, 8, 9]


def test_size_stays_under_the_limit_and_is_stated():
    one_step = 6 * 96 * 4  # mean, variance, tail, denoised and two deviations of 96 floats
    trajectory = recorded(limit=5 * one_step)
    assert trajectory.steps.tolist() == [0, 2, 5, 8, 10]
    assert 5 * one_step < trajectory.nbytes < 5 * one_step + 500
    assert trajectory.mean[trajectory.position(5)].unique().item() == 5


def test_as_many_steps_as_wanted_are_kept_and_one_never_visited_is_left_out():
    assert recorded(keep=3).steps.tolist() == [0, 5, 10]
    assert recorded(keep=3, skipped=[5]).steps.tolist() == [0, 10]
    assert recorded(keep=1).steps.tolist() == [0, 10]


def test_what_the_picture_was_going_to_be_is_kept_or_what_it_became():
    """A sampler may not tell it for each step, and files of before hold none."""
    assert recorded(keep=3).denoised[:, 0, 0, 0, 0].tolist() == [0.75, 5.75, 10.75]
    assert recorded(keep=3, unseen=[0]).denoised[:, 0, 0, 0, 0].tolist() == [5.75, 5.75, 10.75]
    without = recorded(unseen=range(11))
    assert without.denoised is None and joined([recorded(), without]).denoised is None
    both = joined([recorded(), recorded()])
    assert both.denoised.shape == both.mean.shape


def test_latent_values_are_scaled_and_shifted():
    trajectory = recorded()
    assert trajectory.latent_mean().unique().item() == 2 * 10 + 3
    assert trajectory.latent_variance(4).unique().item() == 4 * 4.5
    assert trajectory.latent_tail(4).unique().item() == 4 * 4.25


@pytest.mark.parametrize("bands", [(3, 2), (4, 0), (1, 1), (0, 0)])
def test_draws_have_the_variance_of_the_bands_and_repeat_by_seed(bands):
    shape, count = torch.Size((2, 1, 3, 3)), sum(bands)
    generator = torch.Generator().manual_seed(0)
    deviations = torch.randn(count, *shape, generator=generator)
    early, late = deviations.split(bands)
    parts = [smoothed(late.square().mean(0))] if len(late) else []
    if len(early):  # K of K + 1 parts are mixtures, the last is noise of the smoothed variance
        squares = early.square().mean(0)
        parts.append((bands[0] * squares + smoothed(squares)) / (bands[0] + 1))
    variance = sum(parts) if parts else torch.rand(shape, generator=generator)

    def drawn(chosen=slice(None), seed=1):
        part = deviations[:, chosen]
        recorder = TrajectoryRecorder(torch.tensor([1.0, 0.0]), part.shape[1:], count,
                                      [4, 5][chosen], early=bands[0])
        for step in range(2):
            zero = part.new_zeros(part.shape[1:])
            recorder.add(step, zero, variance[chosen], zero, part)
        return recorder.trajectory(ONE[:, :1], ZERO[:, :1]).draws(-1, 4000, seed)

    assert torch.allclose(drawn().var(0), variance, rtol=0.12, atol=0.01)
    assert torch.equal(drawn(), drawn()) and not torch.equal(drawn(), drawn(seed=2))
    assert torch.equal(drawn()[:, 1:], drawn(slice(1, 2))), "a batch mate changed the draws"


@pytest.mark.parametrize("early", [1, 2, 4])
def test_draws_of_few_deviations_are_all_different(early):
    """Mid-run of mode light: one early deviation or a few, the late ones still 0."""
    shape = torch.Size((1, 4, 16, 16))
    deviations = torch.randn(early + 1, *shape, generator=torch.Generator().manual_seed(0))
    deviations[early:] = 0
    recorder = TrajectoryRecorder(torch.tensor([1.0, 0.0]), shape, early + 1, [4], early=early)
    for step in range(2):
        recorder.add(step, deviations[0], smoothed(deviations[:early].square().mean(0)),
                     deviations[0], deviations)
    drawn = recorder.trajectory(ONE, ZERO).draws(-1, 8, 1).flatten(1)
    between = torch.corrcoef(drawn)[~torch.eye(8, dtype=torch.bool)]
    assert between.abs().max() < 0.85  # 1 for plus and minus the same pattern


def test_joined_trajectories_come_apart_as_they_were():
    one, two = (recorded()._replace(recipe=recipe) for recipe in ("first", "second"))
    two = two._replace(mean=two.mean + 1, seeds=two.seeds + 10)
    both = joined([one, two, joined([two, one])])
    assert both.mean.shape[1] == 12 and both.seeds.tolist()[:6] == [7, 8, 9, 17, 18, 19]
    assert both.recipe == (Part("first", 3), Part("second", 3), Part("second", 3), Part("first", 3))
    for part, original in zip(parts_of(both), (one, two, two, one), strict=True):
        for found, expected in zip(part._asdict().values(), original._asdict().values()):
            assert torch.equal(found, expected) if isinstance(found, torch.Tensor) else \
                found == expected
    assert both.draws(4, 2, 1).shape == (2, 12, 2, 4, 4)
    assert joined([one]).recipe == "first"


def test_record_is_a_copy_that_later_writes_do_not_reach():
    shape = torch.Size((1, 1, 2, 2))
    recorder = TrajectoryRecorder(torch.tensor([1.0, 0.0]), shape, 0, [1])
    state = torch.zeros(shape)
    for step in range(2):
        recorder.add(step, state, state, state, state.expand(0, *shape))
    state += 1
    assert recorder.trajectory(ONE, ZERO).mean.count_nonzero() == 0


def test_trajectory_variance_is_the_variance_of_the_last_denoised():
    denoised = torch.randn(12, 2, 3, 4, 4, dtype=torch.float64)
    tail = TrajectoryVariance(steps=12)
    for estimate in denoised:
        tail.add(estimate)
    assert torch.allclose(tail.over(), denoised[-5:].var(0, unbiased=False))
    assert torch.allclose(tail.over(0.2), denoised[-2:].var(0, unbiased=False))


def test_continuous_terms_of_constants_are_their_integrals():
    times = torch.linspace(0, 2, 2001, dtype=torch.float64)
    one = torch.ones_like(times)
    wide = torch.ones(2001, 3, dtype=torch.float64)
    terms = continuous_terms(times, 0.5 * one, 2 * one, 4 * one, 3 * wide, 5 * wide, 7 * wide)
    expected = [2 * 0.25 * 3 * 2**2 / 2,  # 2 f^2 V T^2 / 2
                2 * 0.125 * 3 * 2**3 / 6,  # 2 f^3 V T^3 / 6
                -2 * 0.5 * 4 / 4 * 5 * 2, 16 / 16 * 7 * 2, 4 * 2]
    for term, value in zip(terms, expected):
        assert term.flatten()[0].item() == pytest.approx(value, rel=1e-5)


def test_continuous_terms_depend_on_the_unit_of_time():
    """Why the expression is a diagnostic only: seconds or minutes must not matter, and they do."""
    times = torch.linspace(0, 1, 101, dtype=torch.float64)
    one, wide = torch.ones_like(times), torch.ones(101, 1, dtype=torch.float64)
    seconds = continuous_terms(times, 0.1 * one, one, one, wide, wide, wide)
    # the same process on a clock that runs twice as fast: rates halve, g^2 too
    slow = continuous_terms(2 * times, 0.05 * one, one / 2**0.5, one, wide, wide, wide)
    assert seconds.diffusion.item() == pytest.approx(slow.diffusion.item())
    assert seconds.drift.item() == pytest.approx(slow.drift.item())
    assert seconds.prediction.item() != pytest.approx(slow.prediction.item(), rel=0.3)


@pytest.mark.parametrize("refused, words", [
    (lambda: recorded(limit=1000), "MiB"),
    (lambda: recorded(limit=5000).position(1), "keeps"),
    (lambda: kept_steps(10, 100, 150), "limit"),
    (lambda: recorded(skipped=[10]), "stopped early"),
    (lambda: joined([]), "trajectories to join is 0"),
    (lambda: joined([recorded(), recorded(steps=9)]), "differ in their sigmas"),
    (lambda: joined([recorded(), recorded(steps=900)]), "in their sigmas: .{,300} scheduler and"),
    (lambda: joined([recorded(), recorded(keep=3)]), "differ in their steps.*number 2"),
    (lambda: joined([recorded(), recorded(deviations=3)]), r"shape .*\(11, 3, 2, 4, 4\) in n"),
    (lambda: TrajectoryVariance(5).over(), "steps seen is 0"),
    (lambda: joined([recorded(), recorded()._replace(late=torch.ones(3, 2, 4, 4))]), "late"),
    (lambda: joined([checked(2), checked(5)]), "checked"),
    (lambda: TrajectoryRecorder(torch.tensor([1.0, 0.0]), torch.Size((2, 1)), 0, [1]), "1 seeds"),
    (lambda: continuous_terms(*[torch.ones(3)] * 6, torch.ones(2)), "gamma2 has 2"),
])
def test_bad_input_is_refused_by_name(refused, words):
    with pytest.raises(BayesDiffError, match=words):
        refused()


def test_of_a_long_run_no_more_than_20_estimates_are_kept_and_the_newest_is_one_of_them():
    estimates = torch.randn(240, 2, 3, generator=torch.Generator().manual_seed(0)).cumsum(0)
    tail = TrajectoryVariance(steps=240)
    for one in estimates:
        tail.add(one)
        tail.add(one, again=True)  # told twice, counted once
        assert len(tail._window) <= 20 and tail.last is one
    # 40 % are 96 steps, of which every fifth is kept
    torch.testing.assert_close(tail.over(), estimates[149::5].var(0, unbiased=False))
    apart = tail.over() / estimates[-96:].var(0, unbiased=False) - 1
    assert apart.abs().max() < 0.15


def test_part_way_the_last_steps_are_counted_by_the_whole_run():
    tail = TrajectoryVariance(steps=20)
    seen = torch.randn(10, 2, 3)
    for denoised in seen:
        tail.add(denoised)
    torch.testing.assert_close(tail.over(RECENT), seen[-3:].var(0, unbiased=False))
    torch.testing.assert_close(tail.over(), seen[-8:].var(0, unbiased=False))


def checked(maps):
    made = torch.arange(maps * 96.0).reshape(maps, 3, 2, 4, 4)
    return recorded()._replace(late=made[0] + 0.5, checked=made)


def test_maps_go_by_name_and_along_when_trajectories_are_joined_and_taken_apart():
    trajectory = checked(2)
    found = trajectory.maps()
    assert list(found) == ["late 20", "late 40", "renoised 1.2", "pull 1.2"]
    assert torch.equal(found["pull 1.2"], trajectory.checked[1])
    assert torch.equal(found["late 40"], trajectory.tail[-1])
    both = joined([trajectory, trajectory._replace(checked=trajectory.checked + 1)])
    assert torch.equal(both.maps()["pull 1.2"][3:], trajectory.checked[1] + 1)
    for part, given in zip(parts_of(both), (0, 1)):
        assert torch.equal(part.checked, trajectory.checked + given)
        assert torch.equal(part.late, trajectory.late)
