"""Deviations against brute force, alone and riding along samplers they know nothing of."""

import pytest
import torch
import torch.nn.functional as F

from bayesdiff_core import deviations as dv
from bayesdiff_core.checks import BayesDiffError
from bayesdiff_core.deviations import Deviations, Plan
from bayesdiff_core.paper import rules
from bayesdiff_core.paper.with_deviations import sample_with_deviations
from bayesdiff_core.smoothing import smoothed
from tests.core.test_rules import path
from tests.core.toy import ToyNet, levels

RULES = pytest.mark.parametrize("rule", [rules.ddim, rules.dpm_solver_2])
NOISE_MODELS = pytest.mark.parametrize("noise_model", dv.NOISE_MODELS)


def generous(sigmas, noise_model, count=48):
    """Every call before the last a node, DPM-Solver-2's midpoints included."""
    inner = sigmas[1:-2]
    nodes = tuple(torch.cat([inner, (sigmas[:-2] * sigmas[1:-1]).sqrt()]).sort(descending=True)[0]
                  .tolist())
    last = float(sigmas[-2])
    if noise_model == "shared":
        return Plan(count, 0, (*nodes, last), last)
    return Plan(count, count, nodes, last)


def run(net, sigmas, rule, plan, noise_model="independent", batch=2, first=0, flow=False):
    riding = Deviations(plan, noise_model, seeds=list(range(first, first + batch)), flow=flow)
    start = net.noise(4, sigma=float(sigmas[0]))[first:first + batch]
    return sample_with_deviations(net.predict, net.with_posterior, start, sigmas, rule, riding)


def brute_force(net, sigmas, sampler, noise_model, count=3000, batch=2):
    """The empirical variance of x_0 over trajectories with explicit noise or explicit weights."""
    generator = torch.Generator().manual_seed(9)
    start = net.noise(4, sigma=float(sigmas[0]))[:batch]
    draws = net.posterior.draws(count, net.channels, generator).double()

    def predict(x, sigma):
        d, predictive = net.with_posterior(x, sigma)
        if noise_model == "independent":
            noise = torch.randn(d.shape, generator=generator, dtype=d.dtype)
            return d + predictive.variance().sqrt() * noise
        weight = draws[:, :, :-1].reshape(count * net.channels, 5, 3, 3)
        each = predictive.phi.unflatten(0, (count, batch)).unbind(1)  # one group a trajectory
        moved = [F.conv2d(phi.reshape(1, -1, 6, 6), weight, draws[:, :, -1].flatten(), padding=1,
                          groups=count).reshape(d[:count].shape) for phi in each]
        return d + torch.stack(moved, dim=1).flatten(0, 1)

    ends = sampler(predict, start.repeat(count, 1, 1, 1), sigmas)
    return ends.unflatten(0, (count, batch)).var(0)


def agree(estimate, truth, correlation, ratio):
    pixels = torch.corrcoef(torch.stack([estimate.flatten(), truth.flatten()]))[0, 1]
    assert pixels > correlation
    assert 1 / ratio < estimate.sum() / truth.sum() < ratio


def by_rule(rule):
    class Net:
        def __init__(self, predict):
            self.predict = predict
    return lambda predict, x, sigmas: path(Net(predict), rule, sigmas, x)


@RULES
@NOISE_MODELS
def test_picture_is_the_plain_samplers_bit_for_bit(rule, noise_model):
    net, sigmas = ToyNet(), levels(8)
    plan = (dv.plan if noise_model == "independent" else dv.shared_plan)(sigmas, 6)
    result = run(net, sigmas, rule, plan, noise_model)
    assert torch.equal(result.sample, path(net, rule, sigmas, net.noise(4)[:2]))


@RULES
@NOISE_MODELS
def test_zero_posterior_gives_a_zero_variance(rule, noise_model):
    net, sigmas = ToyNet(temperature=0.0), levels(8)
    result = run(net, sigmas, rule, generous(sigmas, noise_model, 3), noise_model)
    assert result.variance.count_nonzero() == 0


@RULES
@NOISE_MODELS
def test_many_deviations_and_nodes_are_brute_force(rule, noise_model):
    net, sigmas = ToyNet(temperature=0.02), levels(10)  # small, so that the toy stays linear
    truth = brute_force(net, sigmas, by_rule(rule), noise_model)
    estimate = run(net, sigmas, rule, generous(sigmas, noise_model, 200), noise_model).variance
    agree(estimate, truth, 0.9, 1.2)


def test_few_deviations_and_nodes_keep_the_scale_of_brute_force():
    net, sigmas = ToyNet(temperature=0.02), levels(25)
    truth = brute_force(net, sigmas, by_rule(rules.ddim), "independent")
    estimate = run(net, sigmas, rules.ddim, dv.plan(sigmas, 12)).variance
    assert 0.5 < estimate.sum() / truth.sum() < 2


def test_flow_is_brute_force_too():
    net, sigmas = ToyNet(temperature=0.02), torch.linspace(1, 0, 13, dtype=torch.float64)
    truth = brute_force(net, sigmas, by_rule(rules.flow_euler), "independent")
    estimate = run(net, sigmas, rules.flow_euler, generous(sigmas, "independent", 200),
                   flow=True).variance
    agree(estimate, truth, 0.9, 1.25)


def two_step(predict, x, sigmas):
    """A multistep sampler (second-order Adams-Bashforth in log sigma, on denoised)."""
    values, before = [float(s) for s in sigmas], None
    for sigma, sigma_next in zip(values, values[1:]):
        denoised = x - sigma * predict(x, sigma)
        used = denoised if before is None or sigma_next == 0 else 1.5 * denoised - 0.5 * before
        x, before = used + sigma_next / sigma * (x - used), denoised
    return x


def riding_along(net, sigmas, sampler, plan, batch=2):
    """The sampler sees images and deviations as one batch; only images reach the network."""
    riding = Deviations(plan, "independent", list(range(batch)))

    def predict(x, sigma):
        images, others = x[:batch], x[batch:].unflatten(0, (riding.count, batch))
        d, predictive = net.with_posterior(images, sigma)
        moved = riding.respond(sigma, images, others - images, d,
                               riding.posterior_part(predictive), net.predict)
        return torch.cat([d, (d + moved).flatten(0, 1)])

    start = net.noise(4)[:batch]
    ends = sampler(predict, start.repeat(1 + riding.count, 1, 1, 1), sigmas)
    images, others = ends[:batch], ends[batch:].unflatten(0, (riding.count, batch))
    return images, riding.variance(others - images, smooth=False)


def test_deviations_ride_along_a_multistep_sampler():
    net, sigmas = ToyNet(temperature=0.02), levels(10)
    images, estimate = riding_along(net, sigmas, two_step, generous(sigmas, "independent", 200))
    assert torch.equal(images, two_step(net.predict, net.noise(4)[:2], sigmas))
    agree(estimate, brute_force(net, sigmas, two_step, "independent"), 0.9, 1.2)


def test_a_deviation_of_a_zero_posterior_stays_on_its_image():
    sigmas = levels(10)
    _, variance = riding_along(ToyNet(temperature=0.0), sigmas, two_step,
                               generous(sigmas, "independent", 2))
    assert variance.count_nonzero() == 0


@NOISE_MODELS
def test_an_images_variance_does_not_depend_on_its_batch_mates(noise_model):
    net, sigmas = ToyNet(), levels(12)
    plan = (dv.plan if noise_model == "independent" else dv.shared_plan)(sigmas, 10)
    together = run(net, sigmas, rules.ddim, plan, noise_model, batch=4).variance
    alone = run(net, sigmas, rules.ddim, plan, noise_model, batch=1, first=2).variance
    assert torch.allclose(together[2:3], alone, rtol=1e-9)


@NOISE_MODELS
@pytest.mark.parametrize("budget", [1, 2, 5, 12, 25])
@pytest.mark.parametrize("steps", [1, 2, 3, 4, 25])
def test_plan_costs_what_it_says_and_no_more_than_the_budget(budget, steps, noise_model):
    net, sigmas = ToyNet(), levels(steps)
    plan = (dv.plan if noise_model == "independent" else dv.shared_plan)(sigmas, budget)
    run(net, sigmas, rules.ddim, plan, noise_model)
    extra = net.evaluations / 2 - steps  # a batch of two
    # deviations that are still 0 at a one-step sampler's only call need no network
    assert extra == (0 if steps == 1 else plan.evaluations)
    assert plan.evaluations <= budget


def test_default_plans():
    sigmas = levels(25)
    assert dv.plan(sigmas, 12)[:2] == (2, 4) and len(dv.plan(sigmas, 12).probe_levels) == 4
    assert dv.plan(sigmas, 25)[:2] == (5, 5)
    assert dv.plan(sigmas, 1)[:3] == (0, 1, ())


def test_weak_probes_are_scaled_up_to_be_seen(monkeypatch):
    """A network that sees bf16, and a posterior whose deviations bf16 would round off."""
    net, sigmas = ToyNet(temperature=1e-8), levels(8)
    plan = generous(sigmas, "independent", 8)
    exact = run(net, sigmas, rules.ddim, plan).variance
    full = net.predict
    net.predict = lambda x, sigma: full(x.bfloat16().double(), sigma)

    def error():
        return (run(net, sigmas, rules.ddim, plan).variance - exact).norm() / exact.norm()

    assert error() < 0.2
    monkeypatch.setattr(dv, "PROBE_RMS", 0.0)
    assert error() > 1


def test_smoothing_keeps_constants_zeros_and_signs():
    flat = torch.full((2, 3, 5, 6), 4.0)
    assert torch.allclose(smoothed(flat), flat)
    spike = torch.zeros(1, 1, 5, 5)
    spike[..., 2, 2] = 1.0
    assert smoothed(spike).min() == 0 and smoothed(spike).sum() == pytest.approx(1.0)


@pytest.mark.parametrize("refused, words", [
    (lambda: dv.plan(levels(9), 0), "evaluations is 0"),
    (lambda: dv.shared_plan(levels(9), 0), "evaluations is 0"),
    (lambda: dv.plan(torch.tensor([1.0, 2.0]), 4), "must fall"),
    (lambda: Deviations(dv.plan(levels(9), 4), "both", [1]), "'both'"),
    (lambda: Deviations(dv.plan(levels(9), 4), "shared", [1]), "shared_plan"),
    (lambda: Deviations(Plan(0, 0, (), 0.1), "independent", [1]), "deviations is 0"),
    (lambda: run(ToyNet(), levels(9), rules.ddpm, dv.plan(levels(9), 4)), "noise of its own"),
])
def test_bad_input_is_refused_by_name(refused, words):
    with pytest.raises(BayesDiffError, match=words):
        refused()
