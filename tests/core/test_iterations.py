"""Algorithm 1 and 2 as printed, and the corrected moment iteration."""

import math

import pytest
import torch

from bayesdiff_core import rules, schedules
from bayesdiff_core.bayesdiff import ImageNoise, bayesdiff
from bayesdiff_core.checks import BayesDiffError
from bayesdiff_core.moments import moment_iteration
from tests.core.test_rules import path, vp
from tests.core.toy import GaussianData, ToyNet, levels

RULES = pytest.mark.parametrize("rule", [rules.ddim, rules.dpm_solver_2])


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def noise(seed=0):
    generator = seeded(seed)
    return lambda like: torch.randn(like.shape, generator=generator, dtype=like.dtype)


def test_algorithm_2_with_ddim_is_the_paper_written_out_in_vp_coordinates():
    net, sigmas, schedule, samples = ToyNet(), levels(6), {0, 2, 4}, 3
    ours = bayesdiff(net.predict, net.with_posterior, net.noise(), sigmas, rules.ddim, schedule,
                     samples, noise())

    generator = seeded()
    x = vp(float(sigmas[0]))[0] * net.noise()
    mean, variance = x, torch.zeros_like(x)
    for i, (sigma, sigma_next) in enumerate(zip(sigmas.tolist(), sigmas.tolist()[1:])):
        (alpha, sigma_t), (alpha_next, sigma_next_t) = vp(sigma), vp(sigma_next)
        eps, predictive = net.with_posterior(x / alpha, sigma)
        gamma2, covariance, mean_eps = 0.0, 0.0, eps
        if i in schedule:
            gamma2 = predictive.variance()
            eps = mean_eps = eps + gamma2.sqrt() * torch.randn(x.shape, generator=generator,
                                                               dtype=x.dtype)
            if i > 0:
                x_i = mean + variance.sqrt() * torch.randn(samples, *x.shape, generator=generator,
                                                           dtype=x.dtype)
                eps_i = torch.stack([net.predict(one / alpha, sigma) for one in x_i])
                mean_eps = eps_i.mean(0)
                covariance = (x_i * eps_i).mean(0) - mean * mean_eps
        a, b = alpha_next / alpha, sigma_next_t - alpha_next / alpha * sigma_t
        variance = a**2 * variance + 2 * a * b * covariance + b**2 * gamma2
        variance = variance.clamp(min=0)
        mean, x = a * mean + b * mean_eps, a * x + b * eps
    assert torch.allclose(ours.sample, x, rtol=1e-9)  # alpha is 1 at the end
    assert torch.allclose(ours.mean, mean, rtol=1e-9)
    assert torch.allclose(ours.variance, variance, rtol=1e-7, atol=1e-12)


@RULES
def test_observing_leaves_the_plain_samplers_picture(rule):
    net, sigmas = ToyNet(), levels(6)
    plain = path(net, rule, sigmas, net.noise())
    observed = bayesdiff(net.predict, net.with_posterior, net.noise(), sigmas, rule,
                         schedules.by_interval(6, 1), 3, noise(), sample_eps=False)
    assert torch.equal(observed.sample, plain)
    sampled = bayesdiff(net.predict, net.with_posterior, net.noise(), sigmas, rule,
                        schedules.by_interval(6, 1), 3, noise())
    assert not torch.equal(sampled.sample, plain)
    assert torch.equal(moment_iteration(net.predict, net.with_posterior, net.noise(), sigmas, rule,
                                        {0, 3}, 2, seeded()).sample, plain)


@RULES
def test_an_images_moments_do_not_depend_on_its_batch_mates(rule):
    net, sigmas = ToyNet(), levels(6)
    x, seeds = net.noise(3), [5, 6, 7]

    def run(chosen):
        return bayesdiff(net.predict, net.with_posterior, x[chosen], sigmas, rule, {0, 2, 4}, 3,
                         ImageNoise(seeds[chosen], x.shape[1:]))
    for together, alone in zip(run(slice(None))[:3], run(slice(1, 2))[:3]):
        assert torch.allclose(together[1:2], alone, rtol=1e-9)


def test_each_step_is_told_with_the_state_that_enters_it():
    net, sigmas, told = ToyNet(), levels(6), []
    result = bayesdiff(net.predict, net.with_posterior, net.noise(), sigmas, rules.ddim, {0, 2}, 3,
                       noise(), on_step=lambda *told_now: told.append(told_now))
    assert [step for step, *_ in told] == list(range(6))
    assert torch.equal(told[0][2].sample, net.noise()) and told[0][2].variance.max() == 0
    assert told[1][2].variance.min() > 0
    _, d, state = told[-1]
    assert torch.allclose(state.sample - float(sigmas[-2]) * d, result.sample)


@RULES
def test_zero_posterior_gives_a_zero_variance(rule):
    net, sigmas = ToyNet(temperature=0.0), levels(6)
    everywhere = schedules.by_interval(6, 0)
    for method, random in ((bayesdiff, noise()), (moment_iteration, seeded())):
        result = method(net.predict, net.with_posterior, net.noise(), sigmas, rule, everywhere, 4,
                        random)
        assert result.variance.count_nonzero() == 0


@RULES
def test_moments_are_exact_for_independent_gaussian_pixels(rule):
    data, sigmas = GaussianData(), levels(20)
    x = torch.randn(1, 1, 4, 4, dtype=torch.float64, generator=seeded(6)) * 10
    result = moment_iteration(data.predict, data.with_posterior, x, sigmas, rule,
                              schedules.by_interval(20, 0), 1, seeded())
    exact = data.variance(sigmas, rule)
    if rule is rules.ddim:
        assert torch.allclose(result.variance, exact, rtol=1e-9)
    else:  # the first call's noise, arriving through the second, is left out: a few per cent
        assert torch.allclose(result.variance, exact, rtol=0.1)


@pytest.mark.parametrize("rule", [rules.ddpm, rules.reverse_sde_euler])
def test_stochastic_rules_count_the_samplers_own_noise(rule):
    data, sigmas = GaussianData(), levels(20)
    x = torch.randn(1, 1, 4, 4, dtype=torch.float64, generator=seeded(6)) * 10
    result = moment_iteration(data.predict, data.with_posterior, x, sigmas, rule,
                              schedules.by_interval(20, 0), 1, seeded())
    assert torch.allclose(result.variance, data.variance(sigmas, rule), rtol=1e-9)


def test_skipped_steps_transport_where_the_paper_keeps():
    data, sigmas = GaussianData(), levels(50)
    x = torch.randn(1, 1, 4, 4, dtype=torch.float64, generator=seeded(6)) * 10
    exact = data.variance(sigmas, rules.ddim).sum()
    schedule = schedules.by_interval(50, 4)
    skipping = moment_iteration(data.predict, data.with_posterior, x, sigmas, rules.ddim, schedule,
                                1, seeded()).variance.sum()
    papers = bayesdiff(data.predict, data.with_posterior, x, sigmas, rules.ddim, schedule, 20000,
                       noise(), sample_eps=False).variance.sum()
    assert exact / 1.5 < skipping < 1.5 * exact
    assert papers > 3 * exact


@RULES
def test_variance_is_never_negative_where_the_papers_iteration_is(rule):
    net, sigmas = ToyNet(temperature=20.0), levels(12)
    everywhere = schedules.by_interval(12, 0)
    papers = bayesdiff(net.predict, net.with_posterior, net.noise(8), sigmas, rule, everywhere, 2,
                       noise())
    assert papers.negative_share > 0 and papers.variance.min() >= 0
    ours = moment_iteration(net.predict, net.with_posterior, net.noise(8), sigmas, rule, everywhere,
                            2, seeded())
    assert ours.negative_share == 0 and ours.variance.min() >= 0


@pytest.mark.parametrize("change, words", [
    ({"samples": 0}, "S is 0"),
    ({"schedule": ()}, "uncertain steps is 0"),
    ({"sigmas": torch.tensor([1.0, 1.0, 0.0])}, r"sigmas\[0\] = 1 is followed by 1"),
    ({"sigmas": torch.tensor([1.0])}, "at least 2"),
    ({"sigmas": torch.tensor([1.0, math.nan])}, "nan"),
])
def test_bad_input_is_refused_by_name(change, words):
    net = ToyNet()
    arguments = {"predict": net.predict, "predict_with_posterior": net.with_posterior,
                 "x": net.noise(), "sigmas": levels(4), "rule": rules.ddim, "schedule": {0},
                 "samples": 2, "noise": noise()}
    with pytest.raises(BayesDiffError, match=words):
        bayesdiff(**{**arguments, **change})
