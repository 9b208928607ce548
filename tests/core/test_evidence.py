"""Evidence against plain loops and closed forms, and its freedom from the latent's scale."""

import math

import pytest
import torch

from bayesdiff_core import evidence
from benchmarks.worlds import rivals

SHAPES = [(3, 2, 20, 18), (2, 4, 3, 9, 8)]


def random(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("shape", SHAPES)
def test_contrast_is_the_mean_variance_of_the_channels(shape):
    picture = random(*shape)
    naive = [sum(float(channel.var(unbiased=False)) for channel in image) / shape[1]
             for image in picture]
    assert evidence.contrast(picture).tolist() == pytest.approx(naive)


@pytest.mark.parametrize("shape", SHAPES)
def test_late_change_is_the_variance_of_the_last_estimates(shape):
    estimates = [random(*shape, seed=seed) for seed in range(10)]
    last = estimates[-4:]
    mean = sum(last) / 4
    naive = sum((one - mean) ** 2 for one in last) / 4
    torch.testing.assert_close(evidence.late_change(estimates, 0.4), naive)


def test_late_change_needs_two_steps_at_least():
    still = [random(1, 1, 4, 4)] * 3
    assert evidence.late_change(still, 0.01).sum() == 0


@pytest.mark.parametrize("shape", SHAPES)
def test_acceleration_is_the_turning_over_the_length(shape):
    slopes = [random(*shape, seed=seed) for seed in range(5)]
    for image, value in enumerate(rivals.acceleration(slopes).tolist()):
        own = [d[image] for d in slopes]
        turned = sum(math.sqrt(float(((b - a) ** 2).sum())) for a, b in zip(own, own[1:]))
        length = sum(math.sqrt(float((d ** 2).sum())) for d in own[1:])
        assert value == pytest.approx(turned / length)
    naive = sum((b - a).abs() for a, b in zip(slopes, slopes[1:])) ** 2
    torch.testing.assert_close(rivals.acceleration_map(slopes), naive)


def test_a_straight_path_does_not_accelerate():
    assert rivals.acceleration([random(2, 1, 4, 4)] * 4).tolist() == [0, 0]


@pytest.mark.parametrize("flow", [False, True])
def test_renoising_of_gaussian_data_in_closed_form(flow):
    """Data N(0, 1): D(x) = a x / (a^2 + s^2), so D - z0 is known for each noise."""
    picture, noises = random(2, 1, 6, 6), [random(1, 1, 6, 6, seed=seed) for seed in (1, 2, 3)]
    s = evidence.level(0.8, flow)
    a = evidence.signal(s, flow)
    assert s / a == pytest.approx(0.8)

    def denoise(x, sigma):
        return a * x / (a**2 + sigma**2)

    apart = [a * (a * picture + s * noise) / (a**2 + s**2) - picture for noise in noises]
    error, pull = evidence.renoised(denoise, picture, noises, 0.8, flow)
    torch.testing.assert_close(error, sum(one**2 for one in apart) / 3)
    torch.testing.assert_close(pull, (sum(apart) / 3) ** 2)


def test_pairs_cancel_what_is_odd_in_the_noise():
    picture, noise = random(2, 1, 4, 4), random(1, 1, 4, 4, seed=1)
    _, pull = evidence.renoised(lambda x, sigma: x, picture, evidence.pairs([noise]), 2.0)
    assert pull.abs().max() < 1e-12


@pytest.mark.parametrize("flow", [False, True])
def test_redrawing_is_euler_from_noised_pictures(flow):
    def denoise(x, sigma):
        return 0.3 * x + sigma

    picture, noises = random(2, 1, 4, 4), [random(1, 1, 4, 4, seed=seed) for seed in (1, 2)]
    levels = [evidence.level(ratio, flow) for ratio in (2.0, 0.5)]
    naive = 0
    for noise in noises:
        x = (1 - levels[0] if flow else 1) * picture + levels[0] * noise
        for sigma, to in ((levels[0], levels[1]), (levels[1], 0)):
            x = x + (to - sigma) * (x - denoise(x, sigma)) / sigma
        naive = naive + (x - picture) ** 2 / 2
    torch.testing.assert_close(evidence.redrawn(denoise, picture, noises, (2.0, 0.5), flow), naive)


def test_what_the_network_keeps_is_redrawn_as_it_was():
    picture = random(2, 1, 4, 4)
    found = evidence.redrawn(lambda x, sigma: picture, picture, [random(1, 1, 4, 4, seed=1)])
    assert found.abs().max() < 1e-12


@pytest.mark.parametrize("flow", [False, True])
def test_what_a_picture_alone_tells_is_renoising_and_redrawing_with_24_calls(flow):
    picture, seen, asked = random(2, 1, 4, 4), [], []

    def denoise(x, sigma):
        asked.append(sigma)
        return x / (1 + sigma)

    def noise(number):
        seen.append(number)
        return random(1, 1, 4, 4, seed=number)
    maps = evidence.of_picture(denoise, picture, noise, flow)
    assert len(asked) == evidence.FULL.calls == 24 and seen == [0, 1, 2, 0, 1, 2, 50, 51]
    signs = [sign * random(1, 1, 4, 4, seed=number) for number in (0, 1, 2) for sign in (1, -1)]
    for ratio in (1.2, 2.0):
        error, pull = evidence.renoised(denoise, picture, signs, ratio, flow)
        assert torch.equal(maps[f"renoised {ratio}"], error)
        assert torch.equal(maps[f"pull {ratio}"], pull)
    signs = [sign * random(1, 1, 4, 4, seed=number) for number in (50, 51) for sign in (1, -1)]
    assert torch.equal(maps["redrawn"], evidence.redrawn(denoise, picture, signs, flow=flow))


@pytest.mark.parametrize("flow, reach, ratios", [
    (False, (0.3, 1.5), [0.3, 0.5, 1.2, 1.5]), (True, (0.25, 0.6), [1 / 3, 0.5, 1.2, 1.5]),
    (True, (0.001, 1.0), [0.2, 0.5, 1.2, 2.0])])
def test_levels_stay_within_what_the_network_knows(flow, reach, ratios):
    found = [evidence.within(ratio, flow, reach) for ratio in (0.2, 0.5, 1.2, 2.0)]
    assert found == pytest.approx(ratios)
    asked = []
    evidence.of_picture(lambda x, sigma: asked.append(sigma) or x, random(1, 1, 4, 4),
                        lambda number: random(1, 1, 4, 4, seed=number), flow, reach=reach)
    assert reach[0] - 1e-9 <= min(asked) and max(asked) <= reach[1] + 1e-9


def test_a_look_ahead_over_every_level_is_the_run_itself():
    def denoise(x, sigma):
        return x / (1 + sigma)

    sigmas = torch.tensor([4.0, 2.0, 1.0, 0.5, 0.0], dtype=torch.float64)
    x, estimates = random(1, 1, 4, 4), []
    known = denoise(x, 4.0)
    rough = evidence.look_ahead(denoise, x, sigmas, known, 1)
    ahead = evidence.look_ahead(denoise, x, sigmas, known, 7)
    for sigma, to in zip(sigmas.tolist(), sigmas.tolist()[1:]):
        estimates.append(denoise(x, sigma))
        x = x + (to - sigma) * (x - estimates[-1]) / sigma
    torch.testing.assert_close(ahead, estimates)
    assert len(rough) == 2


def test_what_a_run_is_heading_for_is_checked_as_a_picture_is():
    asked, sigmas = [], torch.linspace(4, 0, 21, dtype=torch.float64)
    x = random(2, 1, 4, 4)

    def denoise(x, sigma):
        asked.append(sigma)
        return x / (1 + sigma)

    def noise(number):
        return random(1, 1, 4, 4, seed=number)

    maps, picture = evidence.ahead(denoise, x, sigmas, denoise(x, 4.0), noise, calls=(3, 2))
    assert len(asked) == 1 + 3 + 2
    estimates = evidence.look_ahead(denoise, x, sigmas, denoise(x, 4.0), 3)
    assert torch.equal(picture, estimates[-1])
    signs = [noise(0), -noise(0)]
    assert torch.equal(maps["pull 1.2"], evidence.renoised(denoise, picture, signs, 1.2)[1])
    torch.testing.assert_close(maps["late 20"], (estimates[-1] - estimates[-2]).square() / 4)


@pytest.mark.parametrize("check, steps, calls", [
    ("auto", 50, 24), ("auto", 48, 24), ("auto", 47, 6), ("auto", 12, 6), ("auto", 11, None),
    ("off", 50, None), ("quick", 4, 6), ("full", 4, 24)])
def test_a_check_takes_at_most_half_as_many_calls_as_steps_unless_it_is_asked_for(check, steps,
                                                                                  calls):
    effort = evidence.effort(check, steps)
    assert (effort and effort.calls) == calls


@pytest.mark.parametrize("flow", [False, True])
def test_posterior_covariance_of_gaussian_data_in_closed_form(flow):
    """Independent Gaussian pixels of variance v: Var(x0 | x) = v s^2 / (a^2 v + s^2), and with a
    diagonal Jacobian one probe is exact."""
    variance = torch.rand(1, 1, 5, 5, dtype=torch.float64) + 0.1
    s = 0.4
    a = evidence.signal(s, flow)

    def denoise(x, sigma):
        return a * variance * x / (a**2 * variance + sigma**2)

    x = random(3, 1, 5, 5)
    signs = random(1, 1, 5, 5, seed=9).sign()
    found = rivals.posterior_covariance(denoise, x, denoise(x, s), s, signs, flow)
    torch.testing.assert_close(found, (variance * s**2 / (a**2 * variance + s**2)).expand(x.shape))


@pytest.mark.parametrize("shape", SHAPES)
def test_top_share_is_the_mean_of_the_highest_pixels(shape):
    squares = random(*shape).square()
    for image, value in enumerate(evidence.top_share(squares, 0.1).tolist()):
        pixels = evidence.smooth(squares[image].mean(0)).flatten().tolist()
        pixels = sorted(pixels, reverse=True)
        count = round(0.1 * len(pixels))
        assert value == pytest.approx(sum(pixels[:count]) / count)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_worst_patch_is_the_highest_mean_of_a_window(shape):
    squares = random(*shape).square()
    side = 3
    for image, value in enumerate(evidence.worst_patch(squares).tolist()):
        frames = squares[image].mean(0).reshape(-1, *shape[-2:])
        naive = max(float(frame[i:i + side, j:j + side].mean()) for frame in frames
                    for i in range(shape[-2] - side + 1) for j in range(shape[-1] - side + 1))
        assert value == pytest.approx(naive)


def test_semantic_is_the_sum_of_log_spreads():
    features = random(5, 3, 7)
    tau = 1e-5 * float((features**2).mean())
    for image, value in enumerate(rivals.semantic(features).tolist()):
        naive = 0.0
        for d in range(7):
            own = features[:, image, d].tolist()
            middle = sum(own) / 5
            naive += 0.5 * math.log(sum((v - middle) ** 2 for v in own) / 5 + tau)
        assert value == pytest.approx(naive)


@pytest.mark.parametrize("score", [evidence.mean, evidence.top_share, evidence.worst_patch])
def test_scores_are_free_of_the_latents_scale_and_shift(score):
    estimates = [random(2, 3, 8, 8, seed=seed) for seed in range(6)]

    def found(scale, shift):
        moved = [scale * one + shift for one in estimates]
        return score(evidence.relative(evidence.late_change(moved, 0.5), moved[-1]))

    torch.testing.assert_close(found(10.0, 3.0), found(1.0, 0.0))


def test_a_flat_picture_has_a_finite_score():
    flat = torch.zeros(1, 1, 8, 8)
    assert evidence.mean(evidence.relative(flat, flat)).isfinite().all()


def test_smoothing_is_the_mean_of_the_neighbors_there_are():
    planes = random(1, 1, 4, 5)
    found = evidence.smooth(planes)
    for i in range(4):
        for j in range(5):
            window = planes[0, 0, max(i - 1, 0):i + 2, max(j - 1, 0):j + 2]
            assert float(found[0, 0, i, j]) == pytest.approx(float(window.mean()))
