"""Maps, colors and masks against matplotlib, numpy and plain loops."""

import math

import numpy as np
import pytest
import torch

from bayesdiff_core import heatmap, smoothing
from bayesdiff_core.checks import BayesDiffError


def random(*shape, seed=0):
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("name", heatmap.PUBLISHED)
def test_colors_are_those_of_the_published_map(name):
    matplotlib = pytest.importorskip("matplotlib")
    published = matplotlib.colormaps[{"gray": "gray"}.get(name, name)](np.arange(256))[:, :3]
    ours = heatmap.colored(torch.linspace(0, 1, 256), name)
    assert ours.shape == (256, 3)
    assert np.abs(ours.numpy() - published).max() < 0.02


def test_colors_of_values_outside_are_those_of_the_ends():
    ends = heatmap.colored(torch.tensor([-1.0, 0.0, 1.0, 2.0]), "turbo")
    assert torch.equal(ends[0], ends[1]) and torch.equal(ends[2], ends[3])


def test_glow_leaves_the_picture_alone_where_sure_and_is_one_warm_color_where_not():
    picture, values = random(5, 3), torch.tensor([0.0, 0.5, 0.8, 1.0, 2.0])
    glowing = heatmap.overlaid(picture, heatmap.layer(values, "glow"))
    assert torch.equal(glowing[:2], picture[:2]) and torch.equal(glowing[3], glowing[4])
    red, green, blue = glowing[4].tolist()
    assert red > 0.9 > 0.3 > green > blue
    between = (glowing[2] - picture[2]) / (glowing[4] - picture[2])
    assert between.max() - between.min() < 1e-5 and 0.2 < between.mean() < 0.6
    assert heatmap.layer(torch.linspace(0, 1, 50), "glow")[..., 3].diff().min() >= 0


@pytest.mark.parametrize("name", heatmap.PUBLISHED)
def test_other_maps_cover_every_pixel(name):
    layer = heatmap.layer(torch.linspace(0, 1, 9), name)
    assert torch.equal(heatmap.overlaid(random(9, 3), layer), layer[..., :3])
    assert torch.equal(heatmap.by_itself(layer), heatmap.colored(torch.linspace(0, 1, 9), name))


@pytest.mark.parametrize("shape", [(2, 4, 5, 6), (2, 4, 3, 5, 6)])
def test_deviation_is_the_root_of_the_mean_variance_over_channels(shape):
    variance = random(*shape)
    expected = np.sqrt(variance.numpy().mean(1)).reshape(2, -1, 5, 6)
    assert np.allclose(heatmap.deviation_map(variance), expected, rtol=1e-6)


def test_resizing_in_time_keeps_latent_frames_in_their_place():
    """Of 4 T - 3 frames, every fourth is a latent frame; those between lie between."""
    deviation = random(2, 3, 4, 5)
    longer = heatmap.resized(deviation, 9, 4, 5)
    assert torch.allclose(longer[:, ::4], deviation)
    assert torch.allclose(longer[:, 1], 0.75 * deviation[:, 0] + 0.25 * deviation[:, 1])
    assert torch.equal(heatmap.resized(deviation[:, :1], 3, 4, 5)[:, 2], deviation[:, 0])


def test_resizing_in_space_is_bilinear():
    deviation = random(1, 1, 6, 7)
    bigger = heatmap.resized(deviation, 1, 48, 56)
    assert bigger.shape == (1, 1, 48, 56)
    # Pixel 20 has its center at 20.5 / 8 - 0.5 = 2.0625 of the small map; pixel 30 at 3.3125.
    small = deviation[0, 0].double()
    row = 0.9375 * small[2] + 0.0625 * small[3]
    assert bigger[0, 0, 20, 30].item() == pytest.approx((0.6875 * row[3] + 0.3125 * row[4]).item())


def test_variance_of_draws_is_that_of_all_at_once_and_0_for_equal_ones():
    draws, over = random(9, 2, 5, 6, 3) + 100, heatmap.DrawVariance()
    for draw in draws:
        over.add(draw)
    assert torch.allclose(over.variance(), draws.double().var(0).float(), rtol=1e-3)
    same = heatmap.DrawVariance()
    for _ in range(7):
        same.add(draws[0])
    assert same.variance().count_nonzero() == 0


def test_low_pass_is_the_mean_of_a_window_cut_at_the_border():
    picture = random(2, 40, 48, 3)  # a window of 5
    left = smoothing.without_low_pass(picture)
    for y, x in [(0, 0), (20, 30), (39, 47), (1, 46)]:
        window = picture[:, max(y - 2, 0):y + 3, max(x - 2, 0):x + 3].mean((1, 2))
        assert torch.allclose(left[:, y, x], picture[:, y, x] - window, atol=1e-6)


def test_a_global_shift_of_color_is_nothing_without_the_low_pass():
    base, plain, less = random(1, 64, 64, 3), heatmap.DrawVariance(), heatmap.DrawVariance()
    for shift in [-0.2, 0.0, 0.3]:
        plain.add(base + shift)
        less.add(smoothing.without_low_pass(base + shift))
    assert plain.variance().min() > 0.05 and less.variance().max() < 1e-9


@pytest.mark.parametrize("percentile", [0, 37.5, 50, 99, 100])
def test_percentiles_are_numpys(percentile):
    values = random(3, 1, 11, 13)
    each = np.percentile(values.numpy().reshape(3, -1), percentile, axis=1)
    assert np.allclose(heatmap.percentiles(values, percentile, shared=False), each)
    assert np.allclose(heatmap.percentiles(values, percentile, shared=True),
                       np.percentile(values.numpy(), percentile))


@pytest.mark.parametrize("shared", [True, False])
def test_range_goes_from_the_least_to_the_percentile(shared):
    deviation = random(2, 1, 9, 9) * torch.tensor([1.0, 5.0]).reshape(2, 1, 1, 1) + 0.1
    ends = heatmap.color_range(deviation, 90, shared)
    values = ends.normalized(deviation)
    for image in range(2):
        of = deviation.numpy() if shared else deviation[image].numpy()
        low, high = of.min(), np.percentile(of, 90)
        expected = np.clip((deviation[image].numpy() - low) / (high - low), 0, 1)
        assert np.allclose(values[image], expected, atol=1e-6)


@pytest.mark.parametrize("level", [0.0, 0.25])
def test_a_flat_map_is_at_the_low_end_and_its_mask_is_empty(level):
    """Resized, so that the rounding of the interpolation is there to be taken for structure."""
    deviation = heatmap.resized(torch.full((2, 1, 6, 7), level), 1, 9, 9)
    ends = heatmap.color_range(deviation, 99, shared=False)
    assert ends.low.tolist() == pytest.approx([level] * 2, rel=1e-6)
    assert ends.high.tolist() == pytest.approx([level] * 2, rel=1e-6)
    assert ends.normalized(deviation).count_nonzero() == 0
    threshold = heatmap.percentiles(deviation, 80, shared=False)
    assert heatmap.uncertainty_mask(deviation, threshold, 3, 2.0).count_nonzero() == 0


def test_mask_by_percentile_covers_that_share_of_each_image():
    deviation = random(2, 1, 20, 20) * torch.tensor([1.0, 9.0]).reshape(2, 1, 1, 1)
    mask = heatmap.uncertainty_mask(deviation, heatmap.percentiles(deviation, 80, shared=False))
    assert mask.mean((1, 2, 3)).tolist() == pytest.approx([0.2, 0.2])
    assert torch.equal(heatmap.uncertainty_mask(deviation, 0.5), (deviation > 0.5).float())


@pytest.mark.parametrize("pixels", [-2, -1, 0, 1, 3, 30])
def test_growing_is_the_greatest_and_shrinking_the_least_in_a_square(pixels):
    mask = (random(1, 1, 12, 15) > (0.9 if pixels > 0 else 0.1)).float()
    reach, of = abs(pixels), torch.max if pixels >= 0 else torch.min
    expected = torch.stack([torch.stack([
        of(mask[0, 0, max(y - reach, 0):y + reach + 1, max(x - reach, 0):x + reach + 1])
        for x in range(15)]) for y in range(12)])
    assert torch.equal(heatmap.grown(mask, pixels)[0, 0], expected)


def test_blurring_is_a_gaussian_sum_with_the_border_repeated():
    mask, deviation = (random(1, 1, 9, 11) > 0.5).float(), 1.5
    soft = heatmap.blurred(mask, deviation)
    reach = range(-4, 5)  # three deviations, rounded to even

    def naive(y, x):
        weights = {(i, j): math.exp(-(i * i + j * j) / 2 / deviation**2)
                   for i in reach for j in reach}
        return sum(w * mask[0, 0, min(max(y + i, 0), 8), min(max(x + j, 0), 10)].item()
                   for (i, j), w in weights.items()) / sum(weights.values())

    for y, x in [(0, 0), (4, 5), (8, 10), (2, 9)]:
        assert soft[0, 0, y, x].item() == pytest.approx(naive(y, x), abs=1e-6)
    assert torch.equal(heatmap.blurred(mask, 0), mask)
    assert heatmap.blurred(torch.ones(1, 1, 9, 11), 20).min() > 0.999


def test_nothing_given_is_written_to():
    variance, mask = random(1, 4, 6, 6), (random(1, 1, 6, 6) > 0.5).float()
    before = variance.clone(), mask.clone()
    deviation = heatmap.deviation_map(variance)
    heatmap.color_range(deviation, 90, True).normalized(deviation)
    heatmap.blurred(heatmap.grown(mask, 0), 0).add_(0)
    heatmap.overlaid(heatmap.colored(deviation, "gray"), heatmap.layer(deviation, "turbo"), 0.5)
    assert torch.equal(variance, before[0]) and torch.equal(mask, before[1])


@pytest.mark.parametrize("refused, words", [
    (lambda: heatmap.deviation_map(torch.ones(1, 4, 8)), "shape .1, 4, 8."),
    (lambda: heatmap.deviation_map(torch.full((1, 1, 2, 2), torch.nan)), "4 of 4 values"),
    (lambda: heatmap.deviation_map(-torch.ones(1, 1, 2, 2)), "down to -1"),
    (lambda: heatmap.DrawVariance().variance(), "draws is 0"),
    (lambda: heatmap.percentiles(torch.ones(1, 4), 101, True), "0 to 100"),
])
def test_bad_input_is_refused_by_name(refused, words):
    with pytest.raises(BayesDiffError, match=words):
        refused()
