"""When runs are looked at, and how many stay."""

import pytest

from bayesdiff_core.checks import BayesDiffError
from bayesdiff_core.selection import Stop, planned_steps, stops


def test_once_stops_once_at_the_share_of_the_steps():
    assert stops(8, 2, 20, 0.5, "once") == [Stop(10, 2)]


def test_halving_leaves_half_at_evenly_spaced_stops_and_keep_at_the_last():
    assert stops(8, 1, 20, 0.6, "halving") == [Stop(4, 4), Stop(8, 2), Stop(12, 1)]
    assert stops(10, 3, 20, 0.5, "halving") == [Stop(5, 5), Stop(10, 3)]


def test_stops_lie_between_the_first_step_that_ranks_and_the_end():
    assert stops(4, 1, 20, 0.05, "halving", first=2) == [Stop(2, 1)]
    assert stops(4, 1, 4, 0.95, "once") == [Stop(3, 1)]


def test_nothing_is_dropped_where_all_are_kept():
    assert stops(3, 3, 20, 0.5, "once") == stops(3, 3, 20, 0.5, "halving") == []


@pytest.mark.parametrize("plan", [[], [Stop(10, 2)], [Stop(4, 4), Stop(8, 2), Stop(12, 1)]])
def test_planned_steps_are_those_taken(plan):
    left, taken = 8, 0
    for step in range(1, 21):
        taken += left
        left = next((stop.left for stop in plan if stop.step == step), left)
    assert planned_steps(8, plan, 20) == taken


@pytest.mark.parametrize("given, words", [
    ((4, 5, 20, 0.5, "once"), "5 of 4 runs"), ((4, 0, 20, 0.5, "once"), "0 of 4 runs"),
    ((4, 2, 1, 0.5, "once"), "1 steps leave nothing"), ((4, 2, 20, 0.5, "thrice"), "thrice"),
])
def test_what_makes_no_plan_is_refused_in_words(given, words):
    with pytest.raises(BayesDiffError, match=words):
        stops(*given)
