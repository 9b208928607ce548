"""Each rule against its sampler, written out in the coordinates of its source."""

import functools
import math

import pytest
import torch

from bayesdiff_core import skip_schedule
from bayesdiff_core.checks import BayesDiffError
from bayesdiff_core.noise_energy import NoiseEnergy
from bayesdiff_core.paper import rules
from tests.core.toy import ToyNet, levels

STEPS = [(9.0, 7.5), (2.0, 1.1), (0.4, 0.1)]


def vp(sigma):
    """alpha_t and sigma_t of the paper."""
    alpha = 1 / math.sqrt(1 + sigma**2)
    return alpha, sigma * alpha


def path(net, rule, sigmas, x):
    """The rule's mean path."""
    values = [float(s) for s in sigmas]
    for sigma, sigma_next in zip(values, values[1:]):
        now = rule(sigma, sigma_next)
        d = net.predict(x, sigma)
        if now.to_mid:
            d = net.predict(now.to_mid.mean(x, d), now.sigma_mid)
        x = now.step.mean(x, d)
    return x


def test_ddim_is_the_papers_vp_update():
    net, sigmas = ToyNet(), levels(8)
    x = net.noise()
    alpha, _ = vp(float(sigmas[0]))
    x_vp = alpha * x
    for sigma, sigma_next in zip(sigmas.tolist(), sigmas.tolist()[1:]):
        (alpha, sigma_t), (alpha_next, sigma_next_t) = vp(sigma), vp(sigma_next)
        eps = net.predict(x_vp / alpha, sigma)
        x_vp = alpha_next * (x_vp - sigma_t * eps) / alpha + sigma_next_t * eps
    assert torch.allclose(path(net, rules.ddim, sigmas, x), x_vp, rtol=1e-10)


def test_dpm_solver_2_is_the_papers_vp_update_and_ends_first_order():
    net, sigmas = ToyNet(), levels(8)
    x = net.noise()
    x_vp = vp(float(sigmas[0]))[0] * x
    for sigma, sigma_next in zip(sigmas.tolist()[:-1], sigmas.tolist()[1:-1]):
        (alpha, sigma_t), (alpha_next, sigma_next_t) = vp(sigma), vp(sigma_next)
        h = math.log(alpha_next / sigma_next_t) - math.log(alpha / sigma_t)
        middle = math.exp((math.log(sigma) + math.log(sigma_next)) / 2)
        alpha_s, sigma_s = vp(middle)
        x_s = alpha_s / alpha * x_vp \
            - sigma_s * (math.exp(h / 2) - 1) * net.predict(x_vp / alpha, sigma)
        x_vp = alpha_next / alpha * x_vp \
            - sigma_next_t * (math.exp(h) - 1) * net.predict(x_s / alpha_s, middle)
    alpha, sigma_t = vp(float(sigmas[-2]))
    x_0 = (x_vp - sigma_t * net.predict(x_vp / alpha, float(sigmas[-2]))) / alpha
    assert torch.allclose(path(net, rules.dpm_solver_2, sigmas, x), x_0, rtol=1e-10)


def test_dpm_solver_2_of_a_flow_is_halfway_in_its_log_snr_and_first_order_at_both_ends():
    now = rules.dpm_solver_2(0.8, 0.3, flow=True)

    def half_log_snr(sigma):
        return math.log((1 - sigma) / sigma)

    assert half_log_snr(now.sigma_mid) == pytest.approx(
        (half_log_snr(0.8) + half_log_snr(0.3)) / 2)
    assert now.step == (1.0, 0.3 - 0.8, 0.0)
    assert rules.dpm_solver_2(1.0, 0.9, flow=True).to_mid is None
    assert rules.dpm_solver_2(0.1, 0.0, flow=True).to_mid is None


@pytest.mark.parametrize("sigma, sigma_next", STEPS)
def test_ddpm_is_the_papers_update(sigma, sigma_next):
    x, eps = torch.randn(2, 50, dtype=torch.float64)
    bar, bar_next = 1 / (1 + sigma**2), 1 / (1 + sigma_next**2)
    alpha = bar / bar_next
    expected = (math.sqrt(bar) * x - (1 - alpha) / math.sqrt(1 - bar) * eps) / math.sqrt(alpha)
    step = rules.ddpm(sigma, sigma_next).step
    assert torch.allclose(step.mean(x, eps), expected / math.sqrt(bar_next))
    assert step.c * math.sqrt(bar_next) == pytest.approx(math.sqrt(1 - alpha))


@pytest.mark.parametrize("sigma, sigma_next", STEPS)
@pytest.mark.parametrize("gamma_t", [0.0, 0.7])
def test_analytic_dpm_has_ddpms_mean_and_the_papers_variance(sigma, sigma_next, gamma_t):
    bar, bar_next = 1 / (1 + sigma**2), 1 / (1 + sigma_next**2)
    alpha = bar / bar_next
    lambda2 = (1 - bar_next) / (1 - bar) * (1 - alpha)
    printed = lambda2 + (math.sqrt((1 - bar) / alpha) - math.sqrt(1 - bar_next - lambda2)) ** 2 \
        * (1 - (1 - bar) * gamma_t)
    step = rules.analytic_dpm(sigma, sigma_next, (1 - bar) * gamma_t).step
    assert step[:2] == rules.ddpm(sigma, sigma_next).step[:2]
    assert step.c**2 * bar_next == pytest.approx(printed)


def test_analytic_variance_falls_with_the_energy_from_the_forward_processs_own():
    """A net that predicts nothing (energy 0) leaves all the noise that the forward step added."""
    sigma, sigma_next = 2.0, 1.1
    low = rules.analytic_dpm(sigma, sigma_next, 1.0).step.c ** 2
    high = rules.analytic_dpm(sigma, sigma_next, 0.0).step.c ** 2
    assert low < rules.analytic_dpm(sigma, sigma_next, 0.5).step.c ** 2 < high
    assert high == pytest.approx(sigma**2 - sigma_next**2)


@pytest.mark.parametrize("sigma, sigma_next", STEPS)
def test_reverse_sde_euler_is_eq_disc(sigma, sigma_next):
    x, eps, z = torch.randn(3, 50, dtype=torch.float64)
    step = rules.discretized_sde(f=-0.1, g=0.3, sigma=sigma).step
    expected = x - (-0.1 * x + 0.3**2 / sigma * eps) + 0.3 * z
    assert torch.allclose(step.mean(x, eps) + step.c * z, expected)
    own = rules.reverse_sde_euler(sigma, sigma_next).step
    assert own.c**2 == pytest.approx(sigma**2 - sigma_next**2)
    assert own.b == pytest.approx(-(own.c**2) / sigma)


@pytest.mark.parametrize("rule", [rules.ddpm, rules.reverse_sde_euler,
                                  lambda *levels: rules.analytic_dpm(*levels, 0.5)])
def test_the_last_step_gives_the_denoised_picture_without_noise(rule):
    assert rule(0.4, 0.0).step == pytest.approx((1.0, -0.4, 0.0))


def test_flow_rules_are_euler_and_midpoint_on_the_velocity():
    """dpm_solver_2's midpoint is halfway in log SNR, but what moves x is the velocity there."""
    net, sigmas = ToyNet(), torch.linspace(1, 0, 6, dtype=torch.float64)
    x = euler = middle = net.noise(sigma=1.0)
    for sigma, sigma_next in zip(sigmas.tolist(), sigmas.tolist()[1:]):
        dt = sigma_next - sigma
        euler = euler + dt * net.predict(euler, sigma)
        velocity = net.predict(middle, sigma)
        if sigma < 1 and sigma_next > 0:
            odds = math.sqrt((1 - sigma) / sigma * (1 - sigma_next) / sigma_next)
            half = 1 / (1 + odds)
            velocity = net.predict(middle + (half - sigma) * velocity, half)
        middle = middle + dt * velocity
    assert torch.allclose(path(net, rules.flow_euler, sigmas, x), euler)
    flow = functools.partial(rules.dpm_solver_2, flow=True)
    assert torch.allclose(path(net, flow, sigmas, x), middle)


def test_noise_energy_is_the_mean_square_near_the_level():
    energy = NoiseEnergy()
    d = torch.randn(6, 3, 8, 8, dtype=torch.float64)
    energy.add(torch.tensor([1.0, 1.0, 1.0, 5.0, 5.0, 5.0]), d)
    assert energy.at(1.0) == pytest.approx(d[:3].square().mean().item())
    assert energy.at(5.0) == pytest.approx(d[3:].square().mean().item())
    assert energy.at(90.0) == energy.at(5.0)


def test_interval_four_is_the_papers_49_44_to_4():
    assert [49 - i for i in skip_schedule.by_interval(50, 4)] == list(range(49, 3, -5))
    assert skip_schedule.by_interval(5, 0) == (0, 1, 2, 3, 4)


def test_steps_can_be_given_one_by_one():
    assert skip_schedule.by_list(10, [0, 4, 9]) == (0, 4, 9)
    assert skip_schedule.by_text(10, "0,4, 9 ") == (0, 4, 9)
    assert skip_schedule.by_text(1, "0") == (0,)


@pytest.mark.parametrize("refused, words", [
    (lambda: skip_schedule.by_interval(0, 4), "steps is 0"),
    (lambda: skip_schedule.by_interval(10, -1), "skip interval is -1"),
    (lambda: skip_schedule.by_list(10, []), "empty"),
    (lambda: skip_schedule.by_list(10, [3, 10]), "step 10 .* 0 to 9"),
    (lambda: skip_schedule.by_list(10, [3, 1]), "3 and then 1: rising"),
    (lambda: skip_schedule.by_text(10, "0, 3, 3"), "3 and then 3: rising"),
    (lambda: skip_schedule.by_text(10, "0, 10"), "step 10 .* 0 to 9"),
    (lambda: skip_schedule.by_text(10, "-1, 4"), "step -1 .* 0 to 9"),
    (lambda: skip_schedule.by_text(10, ""), "'' is not a step"),
    (lambda: skip_schedule.by_text(10, "0,5,"), "'' is not a step"),
    (lambda: skip_schedule.by_text(10, "0; 5"), "'0; 5' is not a step"),
    (lambda: skip_schedule.by_text(10, "1_0"), "'1_0' is not a step"),
    (lambda: skip_schedule.by_text(10, "2.5"), "'2.5' is not a step"),
    (lambda: skip_schedule.by_text(10, "9" * 5000), "^'9{20}' is not a step"),
    (lambda: rules.analytic_dpm(2.0, 1.0, math.nan), "noise energy is nan"),
    (lambda: NoiseEnergy().at(1.0), "no noise energy"),
])
def test_bad_input_is_refused_by_name(refused, words):
    with pytest.raises(BayesDiffError, match=words):
        refused()
