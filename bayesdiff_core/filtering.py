"""Which images to keep, from one score each: the lower, the surer."""

import math
from typing import NamedTuple

from . import checks
from .checks import BayesDiffError

SIGMA, PERCENT, COUNT, VALUE, REFERENCE, PICKED = (
    "mean + z sigma", "drop top percent", "keep n", "threshold", "reference", "picked")
CRITERIA = [SIGMA, PERCENT, COUNT, VALUE, REFERENCE, PICKED]
LEAST_REFERENCE = 10  # scores: fewer say little about where a new one lies
ROUNDING = 1e-9  # relative: equal scores must not differ from their own mean


class Rule(NamedTuple):
    """A criterion with its number; only the one that belongs to it is used."""

    criterion: str
    z: float = 1.0
    percent: float = 16.0
    keep: int = 1
    threshold: float = 0.0
    reference: tuple[float, ...] = ()
    picked: tuple[int, ...] = ()


class Group(NamedTuple):
    """What was decided about the images of one prompt."""

    label: str
    members: list[int]
    threshold: float  # the last score that is kept, or what scores were compared with
    note: str


class Decision(NamedTuple):
    kept: list[int]
    rejected: list[int]
    groups: list[Group]


def decide(scores: list[float], rule: Rule, labels: list[str] | None = None,
           allow_empty: bool = False) -> Decision:
    """By each group's own scores; each keeps at least its lowest unless it may be empty."""
    check_scores(scores)
    labels = labels or [""] * len(scores)
    groups, kept, of_label = [], [], {}
    for index, label in enumerate(labels):
        of_label.setdefault(label, []).append(index)
    for label, members in of_label.items():
        # Equal scores: the earlier image counts as the lower. Picked ones come before all others.
        order = sorted(members, key=lambda index: (index not in rule.picked, scores[index]))
        count, threshold, note = _count(  # how many of the first stay
            [scores[index] for index in order], rule, len(set(members) & set(rule.picked)))
        if count == 0 and not allow_empty:
            count, note = 1, note + "; that would reject all, so the lowest is kept"
        kept += order[:count]
        groups.append(Group(label, members, threshold, note))
    kept.sort()
    gone = set(kept)
    return Decision(kept, [i for i in range(len(scores)) if i not in gone], groups)


def check_scores(scores: list[float]) -> None:
    if not scores:
        raise BayesDiffError("there are no scores, at least 1 was expected: link the scores of a"
                             " BayesDiff sampler or of Uncertainty Score.")
    bad = [index for index, score in enumerate(scores) if not math.isfinite(score)]
    if bad:
        raise BayesDiffError(f"score {bad[0] + 1} is {scores[bad[0]]} ({len(bad)} of {len(scores)}"
                             " are NaN or infinite), finite ones were expected. Try a higher"
                             " precision (fp32), or leave that image out.")


def _count(ordered: list[float], rule: Rule, picked: int) -> tuple[int, float, str]:
    """How many of the rising scores to keep, the threshold, and why in words."""
    checks.one_of("criterion", rule.criterion, CRITERIA)
    size = len(ordered)
    if rule.criterion == PICKED:
        return picked, max(ordered[:picked], default=ordered[0]), f"{picked} of {size} picked"
    if rule.criterion == SIGMA:
        _check_finite("z", rule.z)
        mean = math.fsum(ordered) / size
        sigma = math.sqrt(math.fsum((score - mean) ** 2 for score in ordered) / size)
        threshold = mean + rule.z * sigma
        return (_up_to(ordered, threshold), threshold,
                f"mean {mean:.4g} + {rule.z:g} x sigma {sigma:.4g} = {threshold:.4g}")
    if rule.criterion == PERCENT:
        exact = size * _percent(rule) / 100
        drop = math.floor(exact + 0.5)
        return (size - drop, ordered[max(size - drop, 1) - 1],
                f"{rule.percent:g} % of {size} is {exact:g}, rounded to {drop}")
    if rule.criterion == COUNT:
        if rule.keep < 0:
            raise BayesDiffError(f"keep is {rule.keep}, 0 or more was expected.")
        count = min(rule.keep, size)
        return count, ordered[max(count, 1) - 1], f"the {count} lowest of {size}"
    if rule.criterion == VALUE:
        _check_finite("threshold", rule.threshold)
        return _up_to(ordered, rule.threshold), rule.threshold, f"up to {rule.threshold:g}"
    threshold = percentile(rule.reference, 100 - _percent(rule))  # REFERENCE
    return (_up_to(ordered, threshold), threshold,
            f"up to {threshold:.4g}: {100 - rule.percent:g} % of the {len(rule.reference)}"
            " stored scores are no higher")


def _up_to(ordered: list[float], threshold: float) -> int:
    return sum(score <= threshold + ROUNDING * abs(threshold) for score in ordered)


def _check_finite(name: str, value: float) -> None:
    if not math.isfinite(value):
        raise BayesDiffError(f"{name} is {value}, a finite number was expected.")


def _percent(rule: Rule) -> float:
    if not 0 <= rule.percent <= 100:
        raise BayesDiffError(f"percent is {rule.percent:g}, 0 to 100 was expected.")
    return rule.percent


def percentile(values: tuple[float, ...], percent: float) -> float:
    """Linear between the two nearest values."""
    if len(values) < LEAST_REFERENCE:
        raise BayesDiffError(f"the reference holds {len(values)} scores, at least"
                             f" {LEAST_REFERENCE} were expected: add more images of this model and"
                             " these settings first.")
    ordered = sorted(values)
    rank = percent / 100 * (len(ordered) - 1)
    below = min(int(rank), len(ordered) - 2)
    return ordered[below] + (rank - below) * (ordered[below + 1] - ordered[below])


def group_labels(text: str, count: int) -> list[str]:
    """A label for each of `count` images, from one an image or one a prompt, whose images follow
    each other. Nothing: all in one group."""
    labels = [label.strip() for label in text.split(",")] if text.strip() else [""]
    if "" in labels and len(labels) > 1:
        raise BayesDiffError(f"groups is {text!r}, which has an empty label: put a label between"
                             " all commas, such as 0,0,1,1.")
    each, left_over = divmod(count, len(labels))
    if left_over or not each:
        raise BayesDiffError(f"groups holds {len(labels)} labels for {count} images: give one for"
                             " each image, or one for each prompt if all have equally many images.")
    return [label for label in labels for _ in range(each)]


def indices_of(name: str, text: str, count: int) -> list[int]:
    """Of images in a comma-separated list, where the first is 1 as on the screen: from 0."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    for place, word in enumerate(words):
        if not word.isascii() or not word.isdigit() or not 1 <= int(word) <= count:
            raise BayesDiffError(f"{name} lists image {word!r}, and there are {count} scores: whole"
                                 f" numbers from 1 to {count}, separated by commas, were expected.")
        if int(word) in map(int, words[:place]):
            raise BayesDiffError(f"{name} lists image {word} twice: list each once.")
    return [int(word) - 1 for word in words]


def numbers_of(indices: list[int]) -> str:
    """For the screen, where the first image is 1."""
    return ", ".join(str(index + 1) for index in indices)
