"""The method's own paths on the card give what they give on the CPU."""

import pytest
import torch

from bayesdiff_core import evidence, heatmap, resampling, scores
from bayesdiff_core.deviations import Deviations, plan, shared_plan
from bayesdiff_core.iteration import ImageNoise
from bayesdiff_core.paper import rules
from bayesdiff_core.paper.algorithm import bayesdiff
from bayesdiff_core.posterior import FeatureStatistics, LastLayer, Predictive, posterior
from bayesdiff_core.smoothing import smoothed, window_means
from bayesdiff_core.trajectory import TrajectoryRecorder, TrajectoryVariance

SIGMAS = torch.tensor([8.0, 4.0, 2.0, 1.0, 0.5, 0.0])


def random(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def same(work, rtol=1e-4):
    """work(place) -> tensors: equal on both places, and where they were made."""
    here, there = work("cpu"), work("cuda:0")
    for one, other in zip(here, there, strict=True):
        torch.testing.assert_close(other.cpu(), one, rtol=rtol, atol=1e-5)


def fitted(layer, structure, place):
    statistics = FeatureStatistics(layer, structure)
    shape = (2, layer.features, 6, 5) if layer.kernel else (2, 30, layer.features)
    statistics.add(random(*shape, seed=1).to(place), residual=random(*shape, seed=2).to(place))
    return posterior(statistics, structure), random(*shape, seed=3).to(place)


@pytest.mark.parametrize("structure", ["full", "diagonal"])
@pytest.mark.parametrize("layer", [LastLayer(6, kernel=3), LastLayer(6), LastLayer(6, bias=False)])
def test_posterior_and_its_predictions(layer, structure):
    def work(place):
        made, phi = fitted(layer, structure, place)
        every = 2 if layer.kernel else 1
        predictive = Predictive(made, phi, 1)
        draws = made.draws(2, 1, torch.Generator().manual_seed(4)).to(place)
        return (made.predictive_variance(phi), made.predictive_variance(phi, every),
                predictive.variance(), predictive.deviations(draws))
    same(work)


@pytest.mark.parametrize("noise_model, make", [("independent", plan), ("shared", shared_plan)])
def test_deviations_of_a_run(noise_model, make):
    layer = LastLayer(6, kernel=3)

    def work(place):
        made, phi = fitted(layer, "full", place)
        riding = Deviations(make(SIGMAS, 6), noise_model, [1, 2])
        x = random(2, 1, 6, 5, seed=5).to(place)
        deviations = torch.zeros(riding.count, *x.shape, device=place)
        for now, after in zip(SIGMAS.tolist(), SIGMAS.tolist()[1:]):
            part = riding.posterior_part(Predictive(made, phi, 1))
            moved = riding.respond(now, x, deviations, 0.3 * x, part, lambda at, sigma: 0.3 * at)
            deviations = deviations + (after - now) * moved
        return (riding.variance(deviations),)
    same(work)


def test_the_papers_algorithm():
    def work(place):
        made, phi = fitted(LastLayer(6, kernel=3), "full", place)
        x = random(2, 1, 6, 5, seed=5).to(place)

        def predict(at, sigma):
            return 0.3 * at
        found = bayesdiff(predict, lambda at, sigma: (0.3 * at, Predictive(made, phi, 1)), x,
                          SIGMAS.to(place), rules.ddim, (0, 2, 4), 3,
                          ImageNoise([1, 2], x.shape[1:]))
        return found.sample, found.mean, found.variance
    same(work, rtol=1e-3)


def test_trajectories_scores_maps_and_draws():
    def work(place):
        shape = torch.Size((2, 4, 16, 12))
        recorder = TrajectoryRecorder(SIGMAS.to(place), shape, 3, [1, 2], early=2)
        tail = TrajectoryVariance(5)
        for step in range(6):
            x = random(*shape, seed=step).to(place)
            tail.add(x)
            parts = random(3, *shape, seed=9 + step).to(place)
            recorder.add(step, x, smoothed(parts.square().mean(0)), tail.over(), parts)
        one = torch.ones(1, 4, 1, 1, device=place)
        made = recorder.trajectory(one, 0 * one)
        assert all(part.device.type == "cpu" for part in made._asdict().values()
                   if isinstance(part, torch.Tensor))
        return (made.mean, made.variance, made.tail, made.draws(2, 3, 7),
                *scores.of_trajectory(made).values(), heatmap.deviation_map(made.variance[-1]),
                resampling.adjacent(random(*shape, seed=3), torch.tensor(0.1), [1, 2], 2, 5))
    same(work)


def test_smoothing_and_evidence():
    def work(place):
        picture = random(2, 4, 16, 16, seed=1).to(place)

        def shared(number):
            return random(1, 4, 16, 16, seed=number).to(place)
        maps = evidence.of_picture(lambda x, sigma: 0.8 * x, picture, shared)
        ahead, _ = evidence.ahead(lambda x, sigma: 0.8 * x, picture, SIGMAS, 0.8 * picture, shared)
        maps |= {f"ahead {name}": one for name, one in ahead.items()}
        return window_means(picture, 2, 2), smoothed(picture.square()), *maps.values()
    same(work)
