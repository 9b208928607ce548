"""A score that a user teaches: a logistic regression (learned.py) on the logarithms of all scores,
from images that were liked and disliked over several runs.

    taught = 1 / (1 + exp(-(w.z + b))),  z the logarithms, standardized within their run

It is the chance that the user would dislike an image, 0 to 1. Scores of different runs have
different units, so each run is standardized by itself before its examples join the others.
"""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch

from . import learned, selfcheck
from .checks import BayesDiffError

LEAST_BATCH = 4  # images: fewer have no mean and spread of their own worth the name
LEAST_EACH = 8  # liked and disliked examples, before anything is claimed
MOST_EXAMPLES = 10_000
FURTHEST = 3.0  # standard deviations, of an image that is measured by other runs
DIGITS = 6  # of a score, by which an image is known again
Scores = Mapping[str, Sequence[float]]  # by name, one value an image


class Example(NamedTuple):
    mark: str  # of its scores: the same image again has the same
    disliked: bool
    logs: dict[str, float]


class Run(NamedTuple):
    """What was taught of the images of one prompt and one setting."""

    images: int  # of the whole batch, named or not
    mean: dict[str, float]  # of the logarithms over the whole batch
    sd: dict[str, float]
    examples: list[Example]


class Taught(NamedTuple):
    liked: int
    disliked: int
    weights: dict[str, float]  # of the standardized logarithms; none while there are too few
    bias: float
    mean: dict[str, float]  # over all images of all runs
    sd: dict[str, float]
    auroc: float  # cross-validated
    low: float
    high: float
    usable: bool
    verdict: str


def run_of(scores: Scores, liked: Sequence[int], disliked: Sequence[int]) -> Run:
    """An image in both lists, or a batch that has no spread, is refused."""
    logs = _logs(scores)
    images = len(next(iter(logs.values()), ()))
    if not logs or images < LEAST_BATCH:
        raise BayesDiffError(f"there are {images} images with scores other than 0 to learn from, at"
                             f" least {LEAST_BATCH} of one prompt and setting were expected,"
                             " because scores are compared within their batch: sample more at"
                             " once.")
    if not liked and not disliked:
        raise BayesDiffError("liked and disliked are both empty, so there is nothing to learn from:"
                             " list at least 1 image, such as 1,3.")
    selfcheck.refuse_both(liked, disliked)
    both = {name: _mean_and_sd(values) for name, values in logs.items()}
    examples = [Example(_mark(scores, image), kind, {name: float(values[image])
                                                     for name, values in logs.items()})
                for kind, images_of in ((False, liked), (True, disliked)) for image in images_of]
    return Run(images, {name: mean for name, (mean, _) in both.items()},
               {name: sd for name, (_, sd) in both.items()}, examples)


def added(runs: Sequence[Run], new: Run) -> list[Run]:
    """An image that was named before is forgotten there: the newest word counts. Further images of
    the same batch join its run. The same list if nothing is new."""
    for run in runs:
        if _is_same_batch(run, new) and _words(new) <= _words(run):
            return list(runs)
    marks = {example.mark for example in new.examples}
    rest = [run._replace(examples=[example for example in run.examples
                                   if example.mark not in marks]) for run in runs]
    same = [run for run in rest if _is_same_batch(run, new)]
    rest = [run for run in rest if run not in same and run.examples]
    earlier = [example for run in same for example in run.examples]
    found = [*rest, new._replace(examples=[*earlier, *new.examples])]
    count = sum(len(run.examples) for run in found)
    if count > MOST_EXAMPLES:
        raise BayesDiffError(f"{count} images would be taught, at most {MOST_EXAMPLES} were"
                             " expected: start another name.")
    return found


def learn(runs: Sequence[Run]) -> Taught:
    """From all examples; a score that a run does not know counts as average there."""
    features, wrong, names = features_of(runs)
    liked, disliked = int((~wrong).sum()), int(wrong.sum())
    mean, sd = _pooled(runs, names)
    if min(liked, disliked) < LEAST_EACH:
        return Taught(liked, disliked, {}, 0.0, mean, sd, 0.5, 0.0, 1.0, False,
                      _verdict(liked, disliked))
    found = learned.logistic(features, wrong)
    said = learned.cross_validated(features, wrong)
    area = selfcheck.auroc(said[~wrong].tolist(), said[wrong].tolist())
    low, high = selfcheck.interval(area, liked, disliked)
    return Taught(liked, disliked, dict(zip(names, found.tolist())), float(found[-1]), mean, sd,
                  area, low, high, low > 0.5, _verdict(liked, disliked, low))


def features_of(runs: Sequence[Run]) -> tuple[torch.Tensor, torch.Tensor, list[str]]:
    """Standardized logarithms, examples x scores; which are disliked; the scores' names."""
    names = list(dict.fromkeys(name for run in runs for name in run.mean))
    pairs = [(run, example) for run in runs for example in run.examples]
    features = torch.zeros(len(pairs), len(names), dtype=torch.float64)
    for row, (run, example) in zip(features, pairs):
        for place, name in enumerate(names):
            if name in run.mean:
                log = torch.tensor(example.logs[name], dtype=torch.float64)
                row[place] = _standardized(log, run.mean[name], run.sd[name])
    return features, torch.tensor([example.disliked for _, example in pairs],
                                  dtype=torch.bool), names


def score(taught: Taught, scores: Scores) -> tuple[list[float], list[str]]:
    """The chance to be disliked, of each image; and what is to be said about it. Refused while it
    cannot be told from chance."""
    if not taught.usable:
        raise BayesDiffError(taught.verdict)
    notes, logs = [], _logs(scores)
    known = {name: values for name, values in logs.items() if name in taught.weights}
    if not known:
        raise BayesDiffError(f"it was taught on the scores {', '.join(taught.weights)}, and here"
                             f" are {', '.join(scores)}, none of which is known and not 0: link the"
                             " trajectory of a run like those it was taught on.")
    images = len(next(iter(known.values())))
    total = torch.full((images,), taught.bias, dtype=torch.float64)
    few = images < LEAST_BATCH
    for name, values in known.items():
        mean, sd = (taught.mean[name], taught.sd[name]) if few else _mean_and_sd(values)
        furthest = FURTHEST if few else math.inf
        total += taught.weights[name] * _standardized(values, mean, sd).clamp(-furthest, furthest)
    if few:
        notes.append(f"{images} of the {LEAST_BATCH} images needed to compare them with each other:"
                     " compared with the runs you taught instead, which tells less if the prompt or"
                     " the setting differs")
    missing = [name for name in taught.weights if name not in known]
    if missing:
        notes.append(f"taught with {', '.join(missing)} too, which this run does not have: counted"
                     " as average")
    return torch.sigmoid(total).tolist(), notes


def most_weighty(taught: Taught, count: int = 3) -> list[tuple[str, float]]:
    return sorted(taught.weights.items(), key=lambda item: -abs(item[1]))[:count]


def _logs(scores: Scores) -> dict[str, torch.Tensor]:
    """Without scores that are 0 for all, as those of a variance are where there is no posterior:
    they tell nothing."""
    found = {}
    for name, values in scores.items():
        bad = [index for index, value in enumerate(values) if not math.isfinite(value)]
        if bad:
            raise BayesDiffError(f"{name} of image {bad[0]} is {values[bad[0]]}, a finite score was"
                                 " expected. Try a higher precision (fp32), or leave that image"
                                 " out.")
        exact = torch.tensor(values, dtype=torch.float64)
        if exact.any():
            found[name] = exact.clamp(min=learned.TINY).log()
    return found


def _mean_and_sd(logs: torch.Tensor) -> tuple[float, float]:
    return float(logs.mean()), float(logs.std(unbiased=False))


def _standardized(logs: torch.Tensor, mean: float, sd: float) -> torch.Tensor:
    """A score that is the same for all tells nothing and becomes 0."""
    return (logs - mean) / sd if sd > 1e-9 else torch.zeros_like(logs)


def _pooled(runs: Sequence[Run], names: list[str]) -> tuple[dict[str, float], dict[str, float]]:
    """Mean and standard deviation over all images of all runs, from those of each."""
    mean, sd = {}, {}
    for name in names:
        having = [run for run in runs if name in run.mean]
        count = sum(run.images for run in having)
        mean[name] = math.fsum(run.images * run.mean[name] for run in having) / count
        sd[name] = math.sqrt(math.fsum(
            run.images * (run.sd[name] ** 2 + (run.mean[name] - mean[name]) ** 2)
            for run in having) / count)
    return mean, sd


def _mark(scores: Scores, image: int) -> str:
    words = {name: f"{float(values[image]):.{DIGITS - 1}e}" for name, values in scores.items()}
    return hashlib.sha256(json.dumps(words, sort_keys=True).encode()).hexdigest()[:16]


def _words(run: Run) -> set[tuple[str, bool]]:
    return {(example.mark, example.disliked) for example in run.examples}


def _is_same_batch(one: Run, other: Run) -> bool:
    return one.images == other.images and one.mean.keys() == other.mean.keys() and all(
        math.isclose(values[name], others[name], rel_tol=1e-5, abs_tol=1e-5)
        for values, others in ((one.mean, other.mean), (one.sd, other.sd)) for name in values)


def _verdict(liked: int, disliked: int, low: float | None = None) -> str:
    of = f"with {liked} liked and {disliked} disliked images"
    if low is None:
        return (f"What you taught is not significantly better than chance yet {of}: at least"
                f" {LEAST_EACH} of each are needed. List more.")
    if low <= 0.5:
        return f"What you taught is not significantly better than chance yet {of}: list more."
    return (f"What you taught is significantly better than chance {of}, on images that it was not"
            " taught with.")
