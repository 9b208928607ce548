"""AUROC by counting pairs, its test by trying all orders, its interval by simulation."""

import itertools
import random

import pytest

from bayesdiff_core.checks import BayesDiffError
from bayesdiff_core.filtering import indices_of
from bayesdiff_core.selfcheck import auroc, interval, permutation_p_value, self_check


def pairs(good, bad):
    return sum((b > g) + 0.5 * (b == g) for g in good for b in bad) / (len(good) * len(bad))


def drawn(seed, good, bad, shift=0.0, digits=9):
    draw = random.Random(seed)
    return ([round(draw.gauss(0, 1), digits) for _ in range(good)],
            [round(draw.gauss(shift, 1), digits) for _ in range(bad)])


@pytest.mark.parametrize("digits", [9, 0])  # 0: many ties
@pytest.mark.parametrize("good, bad", [(1, 1), (3, 8), (20, 5)])
def test_area_is_the_share_of_ordered_pairs(good, bad, digits):
    for seed in range(5):
        values = drawn(seed, good, bad, 0.5, digits)
        assert auroc(*values) == pytest.approx(pairs(*values))


@pytest.mark.parametrize("digits", [9, 0])
@pytest.mark.parametrize("good, bad", [(1, 1), (3, 4), (5, 4), (2, 7)])
def test_p_value_is_that_of_all_ways_to_name_the_bad_ones(good, bad, digits):
    for seed in range(5):
        values = drawn(seed, good, bad, 1.0, digits)
        far, everything = abs(pairs(*values) - 0.5), values[0] + values[1]
        ways = []
        for chosen in itertools.combinations(range(good + bad), bad):
            others = [everything[i] for i in range(good + bad) if i not in chosen]
            ways.append(abs(pairs(others, [everything[i] for i in chosen]) - 0.5) >= far - 1e-12)
        assert permutation_p_value(*values) == pytest.approx(sum(ways) / len(ways))


def test_p_value_of_many_images_is_a_share():
    assert 0 < permutation_p_value(*drawn(0, 100, 100, 0.1)) <= 1
    assert permutation_p_value(*drawn(0, 100, 100, 2.0)) < 1e-20


@pytest.mark.parametrize("shift, area", [(0.0, 0.5), (0.742, 0.7), (1.812, 0.9)])
@pytest.mark.parametrize("good, bad", [(8, 8), (20, 10)])
def test_interval_covers_the_truth_about_as_often_as_it_says(good, bad, shift, area):
    covered = 0
    for seed in range(1000):
        low, high = interval(auroc(*drawn(seed, good, bad, shift)), good, bad)
        covered += low <= area <= high
    assert 925 <= covered <= 985


def test_interval_stays_wide_when_few_are_told_apart_perfectly():
    low, high = interval(1.0, 4, 4)
    assert high == 1 and 0.5 < low < 0.7
    assert interval(0.0, 4, 4) == pytest.approx((1 - high, 1 - low))
    assert interval(1.0, 40, 40)[0] > 0.9


@pytest.mark.parametrize("good, bad, words", [
    ([1, 2, 3, 4, 5], [6, 7, 8, 9], "significantly better than chance with 5 liked and 4 disliked"),
    ([6, 7, 8, 9], [1, 2, 3, 4, 5], "significantly worse than chance"),
    ([1, 4, 5, 8], [2, 3, 6, 7], "different from chance with 4 liked and 4 disliked"),
    ([1, 2, 3], [4, 5, 6], "too few to show anything"),
])
def test_verdict_in_words(good, bad, words):
    scores = [float(value) for value in good + bad]
    liked = list(range(len(good)))
    found = self_check(scores, liked, list(range(len(good), len(scores))))
    assert words in found.verdict
    assert found.low <= found.auroc <= found.high and (found.liked, found.disliked) == \
        (len(good), len(bad))


def test_chance_is_rarely_called_a_finding():
    found = [self_check(sum(drawn(seed, 10, 10), []), list(range(10)), list(range(10, 20)))
             for seed in range(400)]
    wrong = sum("not significantly" not in each.verdict for each in found)
    assert wrong <= 0.05 * 400 + 9  # two standard errors above 5 %


@pytest.mark.parametrize("text, indices", [("", []), ("1,4,6", [0, 3, 5]), (" 3 , 2,", [2, 1])])
def test_the_first_image_is_1_on_the_screen(text, indices):
    assert indices_of("liked", text, 6) == indices


@pytest.mark.parametrize("text, words", [
    ("7", "liked lists image '7', and there are 6 scores"), ("0", "image '0'"),
    ("-1", "image '-1'"), ("two", "image 'two'"), ("1.5", "image '1.5'"),
    ("1,2,1", "image 1 twice")])
def test_indices_that_are_none_are_refused(text, words):
    with pytest.raises(BayesDiffError, match=words):
        indices_of("liked", text, 6)


@pytest.mark.parametrize("scores, liked, disliked, words", [
    ([1.0, 2.0], [0], [], "1 liked and 0 disliked"), ([1.0, 2.0], [], [1], "0 liked"),
    ([1.0, 2.0], [0, 1], [1], "image 2 is both liked and disliked"),
    ([1.0, float("nan")], [0], [1], "score 2 is nan"), ([], [], [], "no scores"),
    ([1.0] * 400, list(range(200)), list(range(200, 400)), "400 images are listed, at most 200")])
def test_bad_input_is_refused_in_words(scores, liked, disliked, words):
    with pytest.raises(BayesDiffError, match=words):
        self_check(scores, liked, disliked)
