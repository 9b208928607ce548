"""Does a score tell the images a user dislikes from those they like?"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch

from .checks import BayesDiffError
from .filtering import check_scores

Z = 1.959964  # two-sided 95 %
LEVEL = 0.05
MOST_IMAGES = 200  # the exact test takes some seconds there


class SelfCheck(NamedTuple):
    liked: int
    disliked: int
    auroc: float  # P(a disliked image scores higher than a liked one), ties half
    low: float
    high: float
    p_value: float  # exact, two-sided
    verdict: str


def self_check(scores: list[float], liked: list[int], disliked: list[int]) -> SelfCheck:
    check_scores(scores)
    refuse_both(liked, disliked)
    good, bad = ([scores[index] for index in indices] for indices in (liked, disliked))
    area = auroc(good, bad)
    low, high = interval(area, len(good), len(bad))
    p_value = permutation_p_value(good, bad)
    return SelfCheck(len(good), len(bad), area, low, high, p_value,
                     _verdict(area, low, high, p_value, len(good), len(bad)))


def refuse_both(liked: Sequence[int], disliked: Sequence[int]) -> None:
    both = sorted(set(liked) & set(disliked))
    if both:
        raise BayesDiffError(f"image {both[0] + 1} is both liked and disliked ({len(both)} in all):"
                             " list it once.")


def auroc(good: list[float], bad: list[float]) -> float:
    """The share of pairs in which the bad one has the higher score; a tie is half a pair."""
    if not good or not bad:
        raise BayesDiffError(f"{len(good)} liked and {len(bad)} disliked images are listed, at"
                             " least 1 of each was expected.")
    ranks = _double_ranks(good + bad)[len(good):]
    return (sum(ranks) / 2 - len(bad) * (len(bad) + 1) / 2) / (len(good) * len(bad))


def interval(area: float, good: int, bad: int) -> tuple[float, float]:
    """95 %: the areas from which the one seen is not too far, by Hanley and McNeil's variance with
    the mean group size (Newcombe 2006, method 5). Unlike a bootstrap it stays wide when few images
    are told apart perfectly."""
    def distance(true: float) -> float:
        """From the seen area, in standard errors, squared, less what is allowed."""
        more = (good + bad) / 2 - 1
        spread = true * (1 - true) * (1 + more * (1 - true) / (2 - true)
                                      + more * true / (1 + true)) / (good * bad)
        return (area - true) ** 2 - Z ** 2 * spread

    def crossing(outside: float) -> float:
        near, far = area, outside
        for _ in range(60):
            middle = (near + far) / 2
            near, far = (near, middle) if distance(middle) > 0 else (middle, far)
        return far

    return crossing(0.0), crossing(1.0)


def permutation_p_value(good: list[float], bad: list[float]) -> float:
    """Two-sided: the share of all ways to call that many of these images bad that put the area at
    least as far from 1/2. Exact, ties included: rank sums are counted, not drawn."""
    size = len(good) + len(bad)
    if size > MOST_IMAGES:
        raise BayesDiffError(f"{size} images are listed, at most {MOST_IMAGES} were expected: list"
                             " fewer.")
    ranks = _double_ranks(good + bad)
    # ways[k, s]: to choose k of the images so far with doubled ranks that sum to s
    ways = torch.zeros(len(bad) + 1, sum(ranks) + 1, dtype=torch.float64)
    ways[0, 0] = 1
    for rank in ranks:
        ways[1:, rank:] += ways[:-1, :ways.shape[1] - rank].clone()
    shares = ways[-1] / ways[-1].sum()
    center = len(bad) * (size + 1)
    far = abs(sum(ranks[len(good):]) - center)
    sums = torch.arange(len(shares))
    return min(float(shares[(sums - center).abs() >= far].sum()), 1.0)


def _double_ranks(values: list[float]) -> list[int]:
    """Twice the rank from 1, where equal values share their mean rank: whole numbers."""
    ordered = sorted(values)
    first = {value: rank for rank, value in reversed(list(enumerate(ordered, 1)))}
    last = {value: rank for rank, value in enumerate(ordered, 1)}
    return [first[value] + last[value] for value in values]


def _verdict(area: float, low: float, high: float, p_value: float, good: int, bad: int) -> str:
    of = f"with {good} liked and {bad} disliked images"
    if 2 / math.comb(good + bad, bad) > LEVEL:
        return (f"The score is not significantly different from chance {of}: that is too few to"
                " show anything. List at least 4 of each.")
    if p_value > LEVEL or low <= 0.5 <= high:
        return f"The score is not significantly different from chance {of}."
    if area > 0.5:
        return (f"The score is significantly better than chance {of}: what you dislike tends to"
                " score higher.")
    return (f"The score is significantly worse than chance {of}: what you dislike tends to score"
            " lower, so the filter would drop what you like.")
