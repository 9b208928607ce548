"""Criteria against the plain definition, and their promises: rounding, groups, never empty."""

import random

import numpy as np
import pytest

from bayesdiff_core import filtering
from bayesdiff_core.checks import BayesDiffError
from bayesdiff_core.filtering import Rule, decide

SCORES = [3.0, 1.0, 9.0, 2.0, 4.0]


def test_mean_plus_sigma_is_the_papers():
    decision = decide(SCORES, Rule("mean + z sigma"))
    limit = np.mean(SCORES) + np.std(SCORES)
    assert decision.groups[0].threshold == pytest.approx(limit)
    assert decision.kept == [i for i, score in enumerate(SCORES) if score <= limit] == [0, 1, 3, 4]
    assert decide(SCORES, Rule("mean + z sigma", z=-0.5)).kept == [1, 3]


@pytest.mark.parametrize("value", [0.1, 1e-7, 123456.789])
@pytest.mark.parametrize("count", [1, 3, 7, 10])
def test_equal_scores_are_all_kept(value, count):
    assert decide([value] * count, Rule("mean + z sigma")).rejected == []


@pytest.mark.parametrize("size, percent, dropped", [
    (5, 16, 1), (3, 16, 0), (4, 16, 1), (4, 12.5, 1), (10, 15, 2), (100, 16, 16), (1, 16, 0),
    (1, 100, 0), (6, 0, 0)])
def test_percent_drops_the_highest_rounded_half_up(size, percent, dropped):
    scores = random.Random(size).sample(range(1000), size)
    decision = decide(scores, Rule("drop top percent", percent=percent))
    highest = sorted(range(size), key=scores.__getitem__)[size - dropped:]
    assert decision.rejected == sorted(highest)
    assert f"rounded to {dropped if percent < 100 else 1}" in decision.groups[0].note


@pytest.mark.parametrize("keep, kept", [(1, [1]), (3, [0, 1, 3]), (9, [0, 1, 2, 3, 4])])
def test_keep_n_keeps_the_lowest(keep, kept):
    assert decide(SCORES, Rule("keep n", keep=keep)).kept == kept


def test_ties_go_to_the_earlier_image():
    assert decide([2.0, 1.0, 2.0, 2.0], Rule("keep n", keep=3)).kept == [0, 1, 2]


def test_threshold_keeps_what_is_at_most_that():
    assert decide(SCORES, Rule("threshold", threshold=3.0)).kept == [0, 1, 3]


def test_reference_judges_a_single_image():
    reference = tuple(np.linspace(0, 10, 51))
    rule = Rule("reference", percent=16, reference=reference)
    limit = np.percentile(reference, 84)
    for score in [0.0, limit - 0.01, limit + 0.01, 50.0]:
        decision = decide([score], rule, allow_empty=True)
        assert decision.groups[0].threshold == pytest.approx(limit)
        assert (decision.kept == [0]) == (score <= limit)


@pytest.mark.parametrize("percent", [0, 16, 33.3, 50, 100])
def test_percentile_is_numpys(percent):
    values = tuple(np.random.default_rng(0).normal(size=23))
    assert filtering.percentile(values, percent) == pytest.approx(np.percentile(values, percent))


@pytest.mark.parametrize("rule", [
    Rule("threshold", threshold=-1.0), Rule("keep n", keep=0), Rule("mean + z sigma", z=-9.0),
    Rule("drop top percent", percent=100), Rule("reference", percent=100, reference=(-1.0,) * 10)],
    ids=lambda rule: rule.criterion)
def test_the_lowest_stays_unless_nothing_may(rule):
    labels = ["a", "a", "b", "b", "b"]
    decision = decide(SCORES, rule, labels)
    assert decision.kept == [1, 3]
    assert all("the lowest is kept" in group.note for group in decision.groups)
    assert decide(SCORES, rule, labels, allow_empty=True).kept == []


@pytest.mark.parametrize("criterion", filtering.CRITERIA)
def test_groups_are_judged_by_themselves(criterion):
    """Images of two prompts, mixed up: as if each prompt came alone."""
    draw = random.Random(3)
    scores = [draw.gauss(1 if i % 3 else 100, 0.5) for i in range(24)]
    labels = ["low" if i % 3 else "high" for i in range(24)]
    rule = Rule(criterion, percent=25, keep=4, threshold=50.0, reference=tuple(range(20)))
    decision = decide(scores, rule, labels)
    assert sorted(decision.kept + decision.rejected) == list(range(24))
    for label in ["high", "low"]:
        members = [i for i in range(24) if labels[i] == label]
        alone = decide([scores[i] for i in members], rule)
        assert [members[i] for i in alone.kept] == [i for i in decision.kept if i in members]


@pytest.mark.parametrize("text, labels", [
    ("", ["", "", "", ""]), (" ", ["", "", "", ""]), ("0,0,1,0", ["0", "0", "1", "0"]),
    ("a, b", ["a", "a", "b", "b"]), ("x", ["x"] * 4)])
def test_labels_are_one_an_image_or_one_a_prompt(text, labels):
    assert filtering.group_labels(text, 4) == labels


@pytest.mark.parametrize("text, words", [
    ("0,0,1", "3 labels for 4 images"), ("0,1,2,3,4", "5 labels for 4"), ("0,,1,1", "empty label")])
def test_labels_that_do_not_fit_are_refused(text, words):
    with pytest.raises(BayesDiffError, match=words):
        filtering.group_labels(text, 4)


@pytest.mark.parametrize("scores, rule, words", [
    ([], Rule("keep n"), "no scores"),
    ([1.0, float("nan")], Rule("keep n"), "score 2 is nan .1 of 2"),
    ([float("inf")], Rule("keep n"), "score 1 is inf"),
    ([1.0], Rule("drop top percent", percent=101), "percent is 101"),
    ([1.0], Rule("keep n", keep=-1), "keep is -1"),
    ([1.0], Rule("threshold", threshold=float("nan")), "threshold is nan"),
    ([1.0, 2.0], Rule("mean + z sigma", z=float("nan")), "z is nan, a finite number"),
    ([1.0], Rule("reference", reference=(1.0,) * 9), "holds 9 scores, at least 10"),
    ([1.0], Rule("by luck"), "criterion is 'by luck'"),
])
def test_bad_input_is_refused_in_words(scores, rule, words):
    with pytest.raises(BayesDiffError, match=words):
        decide(scores, rule)
