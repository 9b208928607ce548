"""Algorithm 1 and 2 as printed, and the corrected moment iteration."""

import math
from typing import NamedTuple

import pytest
import torch

from bayesdiff_core import skip_schedule
from bayesdiff_core.checks import BayesDiffError
from bayesdiff_core.deviations import Deviations, plan
from bayesdiff_core.iteration import ImageNoise
from bayesdiff_core.paper import rules
from bayesdiff_core.paper.algorithm import bayesdiff
from bayesdiff_core.paper.moments import moment_iteration
from bayesdiff_core.paper.with_deviations import sample_with_deviations
from tests.core.test_rules import path, vp
from tests.core.toy import ConstantPredictive, GaussianData, ToyNet, levels

RULES = pytest.mark.parametrize("rule", [rules.ddim, rules.dpm_solver_2])


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def noise(seed=0):
    generator = seeded(seed)
    return lambda like: torch.randn(like.shape, generator=generator, dtype=like.dtype)


class Line(NamedTuple):
    """One step as the paper prints it, x_{t-1} = a x_t + b eps + c z, and the covariance's factor
    in its line for Var(x_{t-1}). With a midpoint: x_s = mid_a x_t + mid_b eps_t at s."""

    a: float
    b: float
    c: float
    covariance: float
    mid: float | None = None
    mid_a: float = 0.0
    mid_b: float = 0.0


def ddim_line(sigma, sigma_next):
    (alpha, sigma_t), (alpha_next, sigma_next_t) = vp(sigma), vp(sigma_next)
    a, b = alpha_next / alpha, sigma_next_t - alpha_next / alpha * sigma_t
    return Line(a, b, 0.0, 2 * a * b)


def dpm_solver_2_line(sigma, sigma_next):
    if sigma_next == 0:
        return ddim_line(sigma, sigma_next)
    (alpha, sigma_t), (alpha_next, sigma_next_t) = vp(sigma), vp(sigma_next)
    h = math.log(alpha_next / sigma_next_t) - math.log(alpha / sigma_t)
    mid = math.exp(-(math.log(alpha / sigma_t) + h / 2))
    alpha_s, sigma_s = vp(mid)
    b = -sigma_next_t * (math.exp(h) - 1)
    return Line(alpha_next / alpha, b, 0.0, 2 * alpha_s / alpha * b, mid, alpha_s / alpha,
                -sigma_s * (math.exp(h / 2) - 1))


def ddpm_line(sigma, sigma_next, variance=lambda alpha, bar, bar_next: 1 - alpha):
    bar, bar_next = vp(sigma)[0] ** 2, vp(sigma_next)[0] ** 2
    alpha = bar / bar_next
    return Line(1 / math.sqrt(alpha), -(1 - alpha) / math.sqrt(alpha * (1 - bar)),
                math.sqrt(variance(alpha, bar, bar_next)) * (sigma_next > 0),
                -2 * (1 - alpha) / (alpha * math.sqrt(1 - bar)))


def energy(sigma):
    """Any noise energy that changes with the level will do."""
    return 1 - 0.5 / (1 + sigma)


def analytic_line(sigma, sigma_next):
    def variance(alpha, bar, bar_next):
        gamma_t = energy(sigma) / (1 - bar)  # Gamma_t, of the score -eps / sqrt(1 - bar)
        lambda2 = (1 - bar_next) / (1 - bar) * (1 - alpha)
        return lambda2 + (math.sqrt((1 - bar) / alpha) - math.sqrt(1 - bar_next - lambda2)) ** 2 \
            * (1 - (1 - bar) * gamma_t)
    return ddpm_line(sigma, sigma_next, variance)


def reverse_sde_line(sigma, sigma_next):
    """eq. disc and eq. var-ite of the process with alpha_t = 1; its covariance has no 2."""
    f, g = 0.0, math.sqrt(sigma**2 - sigma_next**2)
    b = -(g**2) / sigma
    return Line(1 - f, b, g * (sigma_next > 0), (1 - f) * b)


LINES = {
    "DDIM": (rules.ddim, ddim_line),
    "DPM-Solver-2": (rules.dpm_solver_2, dpm_solver_2_line),
    "DDPM": (rules.ddpm, ddpm_line),
    "Analytic-DPM": (lambda s, n: rules.analytic_dpm(s, n, energy(s)), analytic_line),
    "reverse SDE": (rules.reverse_sde_euler, reverse_sde_line),
}


def as_printed(net, x, sigmas, line, alpha_of, schedule, samples, draw):
    """Algorithm 2, one statement a line, in the coordinates of `line`; alpha_of(sigma) leads
    there from the host's. Gives x_0, E(x_0), Var(x_0)."""
    x = alpha_of(float(sigmas[0])) * x
    mean, variance = x, torch.zeros_like(x)
    for i, (sigma, sigma_next) in enumerate(zip(sigmas.tolist(), sigmas.tolist()[1:])):
        now = line(sigma, sigma_next)

        def eps_theta(at, level):
            return net.predict(at / alpha_of(level), level)

        def gamma2(at, level):
            return net.with_posterior(at / alpha_of(level), level)[1].variance()

        level, at = sigma, x
        gamma2_t = gamma2(x, sigma)
        if now.mid:  # eq. dpm-solver, eq. u|x
            eps_t = eps_theta(x, sigma)
            if i in schedule:
                eps_t = eps_t + gamma2_t.sqrt() * draw(x.shape)
            level, at = now.mid, now.mid_a * x + now.mid_b * eps_t
        if i in schedule:
            mean_eps = eps_theta(at, level)  # x_T is known
            variance_eps = gamma2(at, level)
            eps = mean_eps + variance_eps.sqrt() * draw(x.shape)
            covariance = torch.zeros_like(x)
            if i > 0:
                x_i = mean + variance.sqrt() * draw((samples, *x.shape))
                at_i = x_i
                if now.mid:
                    middle = torch.stack([now.mid_a * one + now.mid_b * eps_theta(one, sigma)
                                          for one in x_i])
                    spread = (now.mid_b**2 * gamma2_t).sqrt()
                    at_i = middle + spread * draw((samples, *x.shape))
                eps_i = torch.stack([eps_theta(one, level) for one in at_i])
                covariance = (x_i * eps_i).mean(0) - mean * eps_i.mean(0)  # eq. mc
                mean_eps = eps_i.mean(0)
        else:
            eps = mean_eps = eps_theta(at, level)
            covariance = variance_eps = torch.zeros_like(x)
        x = now.a * x + now.b * eps
        if now.c:
            x = x + now.c * draw(x.shape)
        variance = now.a**2 * variance + now.covariance * covariance \
            + now.b**2 * variance_eps + now.c**2
        variance = variance.clamp(min=0)  # the paper says nothing about negative ones
        mean = now.a * mean + now.b * mean_eps
    return x, mean, variance


@pytest.mark.parametrize("schedule", [range(6), {0, 2, 4}, {1, 4}, {5}])
@pytest.mark.parametrize("sampler", LINES)
def test_algorithm_2_is_the_papers_lines_written_out_in_their_coordinates(sampler, schedule):
    rule, line = LINES[sampler]
    net, sigmas, samples = ToyNet(), levels(6), 3
    ours = bayesdiff(net.predict, net.with_posterior, net.noise(), sigmas, rule, schedule, samples,
                     noise())
    generator = seeded()
    x, mean, variance = as_printed(
        net, net.noise(), sigmas, line,
        (lambda sigma: 1.0) if sampler == "reverse SDE" else (lambda sigma: vp(sigma)[0]), schedule,
        samples, lambda shape: torch.randn(shape, generator=generator, dtype=torch.float64))
    assert torch.allclose(ours.sample, x, rtol=1e-8)  # alpha is 1 at the end
    assert torch.allclose(ours.mean, mean, rtol=1e-8)
    assert torch.allclose(ours.variance, variance, rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize("sampler", LINES)
def test_expectation_is_the_networks_never_the_drawn_noise(sampler):
    """A network that predicts 0 moves E(x_t) nowhere, however unsure it is."""
    x = torch.zeros(2, 1, 4, 4, dtype=torch.float64)

    def predict(at, sigma):
        return torch.zeros_like(at)

    result = bayesdiff(predict, lambda at, sigma: (predict(at, sigma), ConstantPredictive(at, 1.0)),
                       x, levels(6), LINES[sampler][0], {0, 3}, 4, noise())
    assert result.mean.count_nonzero() == 0
    assert result.sample.abs().min() > 0 and result.variance.min() > 0


def test_states_for_the_covariance_may_be_asked_for_apart_from_the_path():
    net, sigmas, asked = ToyNet(), levels(6), []

    def predict_samples(at, sigma):
        asked.append(len(at))
        return net.predict(at, sigma)

    def run(samples, **options):
        return bayesdiff(net.predict, net.with_posterior, net.noise(), sigmas, rules.dpm_solver_2,
                         {0, 2, 5}, samples, noise(), **options)
    for samples in (1, 3):
        asked.clear()
        apart = run(samples, predict_samples=predict_samples)
        assert asked == [2 * samples] * 3  # two calls at step 2, the last step has no midpoint
        assert torch.equal(apart.mean, run(samples).mean)


@RULES
def test_observing_leaves_the_plain_samplers_picture(rule):
    net, sigmas = ToyNet(), levels(6)
    plain = path(net, rule, sigmas, net.noise())
    observed = bayesdiff(net.predict, net.with_posterior, net.noise(), sigmas, rule,
                         skip_schedule.by_interval(6, 1), 3, noise(), sample_eps=False)
    assert torch.equal(observed.sample, plain)
    sampled = bayesdiff(net.predict, net.with_posterior, net.noise(), sigmas, rule,
                        skip_schedule.by_interval(6, 1), 3, noise())
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
    everywhere = skip_schedule.by_interval(6, 0)
    for method, random in ((bayesdiff, noise()), (moment_iteration, seeded())):
        result = method(net.predict, net.with_posterior, net.noise(), sigmas, rule, everywhere, 4,
                        random)
        assert result.variance.count_nonzero() == 0


EVERY_RULE = pytest.mark.parametrize("rule", [rule for rule, _ in LINES.values()], ids=LINES)


@EVERY_RULE
def test_moments_are_exact_for_independent_gaussian_pixels(rule):
    """Of stochastic rules with the sampler's own noise, of DPM-Solver-2 with that of its first
    call."""
    data, sigmas = GaussianData(), levels(20)
    x = torch.randn(1, 1, 4, 4, dtype=torch.float64, generator=seeded(6)) * 10
    result = moment_iteration(data.predict, data.with_posterior, x, sigmas, rule,
                              skip_schedule.by_interval(20, 0), 1, seeded())
    assert torch.allclose(result.variance, data.variance(sigmas, rule), rtol=1e-9)


@EVERY_RULE
def test_moments_are_the_variance_of_many_drawn_trajectories(rule):
    """Few wide steps, where the noise of DPM-Solver-2's first call is a tenth of the variance."""
    data, sigmas, generator = GaussianData(gamma2=0.1), levels(4, high=3.0, low=0.3), seeded(3)
    x = torch.randn(1, 1, 4, 4, dtype=torch.float64, generator=seeded(6)) * 3
    state = x.repeat(20000, 1, 1, 1)

    def normal():
        return torch.randn(state.shape, generator=generator, dtype=torch.float64)

    for sigma, sigma_next in zip(sigmas.tolist(), sigmas.tolist()[1:]):
        now = rule(sigma, sigma_next)
        d = data.predict(state, sigma) + data.gamma2**0.5 * normal()
        if now.to_mid:
            d = data.predict(now.to_mid.mean(state, d), now.sigma_mid) + data.gamma2**0.5 * normal()
        state = now.step.mean(state, d) + now.step.c * normal()
    result = moment_iteration(data.predict, data.with_posterior, x, sigmas, rule, range(4), 1,
                              seeded())
    assert result.variance.sum().item() == pytest.approx(state.var(0).sum().item(), rel=0.02)


@pytest.mark.parametrize("sampler", ["DDPM", "Analytic-DPM", "reverse SDE"])
def test_deviations_of_a_stochastic_rule_are_the_posteriors_alone(sampler):
    """A zero posterior leaves none, and the picture is the rule's own, with the noise given."""
    rule, sigmas, results = LINES[sampler][0], levels(6), []
    for temperature in (0.0, 1.0):
        net = ToyNet(temperature=temperature)
        riding = Deviations(plan(sigmas, 6), "independent", [1, 2])
        results.append(sample_with_deviations(net.predict, net.with_posterior, net.noise(), sigmas,
                                              rule, riding, noise()))
    drawn, x = noise(), net.noise()
    for sigma, sigma_next in zip(sigmas.tolist(), sigmas.tolist()[1:]):
        step = rule(sigma, sigma_next).step
        x = step.mean(x, net.predict(x, sigma))
        x = x + step.c * drawn(x) if step.c else x
    assert all(torch.equal(result.sample, x) for result in results)
    assert results[0].variance.count_nonzero() == 0 and results[1].variance.min() > 0
    with pytest.raises(BayesDiffError, match="none was given"):
        sample_with_deviations(net.predict, net.with_posterior, net.noise(), sigmas, rule, riding)


def test_skipped_steps_transport_where_the_paper_keeps():
    data, sigmas = GaussianData(), levels(50)
    x = torch.randn(1, 1, 4, 4, dtype=torch.float64, generator=seeded(6)) * 10
    exact = data.variance(sigmas, rules.ddim).sum()
    schedule = skip_schedule.by_interval(50, 4)
    skipping = moment_iteration(data.predict, data.with_posterior, x, sigmas, rules.ddim, schedule,
                                1, seeded()).variance.sum()
    papers = bayesdiff(data.predict, data.with_posterior, x, sigmas, rules.ddim, schedule, 20000,
                       noise(), sample_eps=False).variance.sum()
    assert exact / 1.5 < skipping < 1.5 * exact
    assert papers > 3 * exact


@RULES
def test_variance_is_never_negative_where_the_papers_iteration_is(rule):
    net, sigmas = ToyNet(temperature=20.0), levels(12)
    everywhere = skip_schedule.by_interval(12, 0)
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
