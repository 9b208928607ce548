"""What a user taught, against plain loops and autograd-free minima of the same loss."""

import math
import random

import pytest
import torch

from bayesdiff_core import learned, taught
from bayesdiff_core.checks import BayesDiffError

NAMES = ("sum", "worst patch", "relative change")


def batch(images=12, seed=0, unit=1.0):
    """Scores of a run in its own units; the second one is what the user looks at."""
    draw = random.Random(seed)
    return {name: [unit * math.exp(draw.gauss(place, 0.5 + place)) for _ in range(images)]
            for place, name in enumerate(NAMES)}


def labeled(scores, each=4, name="worst patch"):
    order = sorted(range(len(scores[name])), key=lambda image: scores[name][image])
    return order[:each], order[-each:]


def runs_of(count=4, images=12, each=4, **same):
    runs = []
    for seed in range(count):
        scores = batch(images, seed, 10.0 ** seed)
        runs = taught.added(runs, taught.run_of(scores, *labeled(scores, each, **same)))
    return runs


def by_chance(seed, count=4):
    draw, runs = random.Random(seed), []
    for number in range(count):
        scores, images = batch(12, 100 + 7 * seed + number), list(range(12))
        draw.shuffle(images)
        runs = taught.added(runs, taught.run_of(scores, images[:4], images[4:8]))
    return runs


def naive(scores, image, name):
    logs = [math.log(value) for value in scores[name]]
    mean = sum(logs) / len(logs)
    return (logs[image] - mean) / math.sqrt(sum((log - mean) ** 2 for log in logs) / len(logs))


def test_examples_are_standardized_within_their_own_run():
    features, wrong, names = taught.features_of(runs_of())
    assert names == list(NAMES) and features.shape == (32, 3)
    row = 0
    for seed in range(4):
        scores = batch(12, seed, 10.0 ** seed)
        liked, disliked = labeled(scores)
        for image in [*liked, *disliked]:
            assert bool(wrong[row]) == (image in disliked)
            assert features[row].tolist() == pytest.approx(
                [naive(scores, image, name) for name in names])
            row += 1


def test_a_score_is_the_chance_by_the_logistic_of_all_examples():
    runs = runs_of()
    features, wrong, names = taught.features_of(runs)
    found, scores = learned.logistic(features, wrong), batch(9, 77, 1e-4)
    values, notes = taught.score(taught.learn(runs), scores)
    for image, value in enumerate(values):
        logit = float(found[-1]) + sum(float(weight) * naive(scores, image, name)
                                       for weight, name in zip(found, names))
        assert value == pytest.approx(1 / (1 + math.exp(-logit)))
    assert notes == [] and all(0 <= value <= 1 for value in values)
    z = learned.standardized_logs(torch.tensor([scores[name] for name in names]).T)
    said = torch.tensor(values, dtype=torch.float64).logit()
    torch.testing.assert_close(said, z @ found[:-1] + found[-1], atol=1e-5, rtol=1e-5)


def test_what_the_user_looks_at_is_learned_and_others_like_it_are_found():
    found = taught.learn(runs_of())
    assert found.usable and (found.liked, found.disliked) == (16, 16)
    assert found.low > 0.5 and "better than chance with 16 liked and 16" in found.verdict
    assert taught.most_weighty(found)[0][0] == "worst patch" and found.weights["worst patch"] > 0
    scores = batch(40, 500)
    values, _ = taught.score(found, scores)
    liked, disliked = labeled(scores, 15)
    assert max(values[image] for image in liked) < min(values[image] for image in disliked)


def test_a_dislike_of_low_scores_is_learned_too():
    runs = []
    for seed in range(4):
        scores = batch(12, seed)
        disliked, liked = labeled(scores)
        runs = taught.added(runs, taught.run_of(scores, liked, disliked))
    assert taught.learn(runs).usable and taught.learn(runs).weights["worst patch"] < 0


def test_chance_is_seldom_taken_for_taste():
    """With 95 % intervals at most 1 in 40 is above by chance; of 40, 5 or more are 1 in 400."""
    learnt = [taught.learn(by_chance(seed)) for seed in range(40)]
    assert sum(found.usable for found in learnt) < 5
    refused = next(found for found in learnt if not found.usable)
    assert refused.low <= 0.5 and "not significantly better than chance yet" in refused.verdict
    with pytest.raises(BayesDiffError, match="better than chance yet .*: list more"):
        taught.score(refused, batch())


def test_too_few_examples_are_not_claimed_to_tell_anything():
    for runs, words in [([], "0 liked and 0 disliked"), (runs_of(1), "at least 8 of each")]:
        found = taught.learn(runs)
        assert not found.usable and words in found.verdict and not found.weights


def test_the_same_images_again_count_once_and_the_newest_word_counts():
    scores = batch()
    liked, disliked = labeled(scores)
    runs = taught.added([], taught.run_of(scores, liked, disliked))
    assert taught.added(runs, taught.run_of(scores, disliked=disliked[:2], liked=[])) == runs
    more = runs_of()
    assert taught.added(more, taught.run_of(scores, liked, disliked)) == more
    shaken = {name: [value * (1 + 1e-9) for value in values] for name, values in scores.items()}
    other = next(image for image in range(12) if image not in liked + disliked)
    again = taught.added(runs, taught.run_of(shaken, disliked[:1], [other, *disliked[1:]]))
    assert len(again) == 1
    kinds = [example.disliked for example in again[0].examples]
    assert (kinds.count(False), kinds.count(True)) == (5, 4)
    wider = {name: [*values, 3.0] for name, values in scores.items()}  # the images in a new batch
    moved = taught.added(runs, taught.run_of(wider, liked, disliked))
    assert [run.images for run in moved] == [13]


def test_a_single_image_is_measured_by_the_runs_that_were_taught():
    runs = runs_of()
    found = taught.learn(runs)
    logs = [math.log(value) for seed in range(4)
            for value in batch(12, seed, 10.0 ** seed)["worst patch"]]
    mean = sum(logs) / len(logs)
    assert found.mean["worst patch"] == pytest.approx(mean)
    assert found.sd["worst patch"] == pytest.approx(
        math.sqrt(sum((log - mean) ** 2 for log in logs) / len(logs)))
    single = {name: [math.exp(found.mean[name])] for name in NAMES}
    high = {**single, "worst patch": [1e30]}
    for scores, z in [(single, 0.0), (high, taught.FURTHEST)]:
        (value,), notes = taught.score(found, scores)
        logit = found.bias + found.weights["worst patch"] * z
        assert value == pytest.approx(1 / (1 + math.exp(-logit)))
        assert "1 of the 4 images" in notes[0]


def test_a_score_that_a_run_lacks_or_that_is_0_counts_as_average():
    scores = batch()
    free = {name: [0.0] * 12 if name == "sum" else values for name, values in scores.items()}
    runs = taught.added(runs_of(), taught.run_of(free, [0, 1], [2]))
    features, _, names = taught.features_of(runs)
    assert features[-3:, names.index("sum")].tolist() == [0.0] * 3
    found = taught.learn(runs_of())
    values, notes = taught.score(found, free)
    average, _ = taught.score(found._replace(weights={**found.weights, "sum": 0.0}), scores)
    assert values == pytest.approx(average) and "taught with sum too" in notes[0]



@pytest.mark.parametrize("scores, liked, disliked, words", [
    (batch(3), [0], [1], "3 images .* at least 4"),
    ({}, [0], [1], "0 images"),
    ({"sum": [0.0] * 6}, [0], [1], "0 images with scores other than 0"),
    (batch(), [], [], "both empty"),
    (batch(), [1, 2], [2], "image 3 is both"),
    ({"sum": [1.0, math.nan, 1.0, 2.0]}, [0], [1], "sum of image 1 is nan"),
    ({"sum": [1.0, 1.0, math.inf, 2.0]}, [0], [1], "sum of image 2 is inf"),
])
def test_what_cannot_be_taught_is_refused(scores, liked, disliked, words):
    with pytest.raises(BayesDiffError, match=words):
        taught.run_of(scores, liked, disliked)


def test_scores_of_another_kind_are_refused():
    with pytest.raises(BayesDiffError, match="taught on the scores sum, .* here are mean"):
        taught.score(taught.learn(runs_of()), {"mean": [1.0, 2.0, 3.0, 4.0]})


def test_too_many_examples_are_refused(monkeypatch):
    monkeypatch.setattr(taught, "MOST_EXAMPLES", 30)
    with pytest.raises(BayesDiffError, match="32 images would be taught, at most 30"):
        runs_of()
