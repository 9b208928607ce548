"""Scores against plain loops over pixels."""

import math

import pytest
import torch

from bayesdiff_core import scores
from bayesdiff_core.checks import BayesDiffError

SHAPES = [(3, 4, 20, 34), (2, 4, 3, 16, 18), (2, 3, 2, 1)]


def random(*shape, seed=0):
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed))


def frames_of(image):
    """C x (T) x H x W -> lists of rows of mean variances, one for each frame."""
    frames = image.double().mean(0)
    return (frames if frames.ndim == 3 else frames.unsqueeze(0)).tolist()


def windows(frame, reach, whole):
    """Mean and middle of every window of 2 reach + 1 pixels, clipped at the border or left out."""
    height, width = len(frame), len(frame[0])
    for y in range(height):
        for x in range(width):
            rows = range(max(y - reach, 0), min(y + reach + 1, height))
            columns = range(max(x - reach, 0), min(x + reach + 1, width))
            full = (len(rows) == min(2 * reach + 1, height),
                    len(columns) == min(2 * reach + 1, width))
            if not whole or all(full):
                values = [frame[i][j] for i in rows for j in columns]
                yield sum(values) / len(values), frame[y][x]


@pytest.mark.parametrize("shape", SHAPES)
def test_sum_and_mean_are_those_of_all_values(shape):
    variance = random(*shape)
    for image, total, mean in zip(variance, scores.total(variance), scores.mean(variance)):
        values = [float(value) for value in image.flatten()]
        assert total.item() == pytest.approx(math.fsum(values))
        assert mean.item() == pytest.approx(math.fsum(values) / len(values))
        assert total.dtype == mean.dtype == torch.float64


@pytest.mark.parametrize("shape", SHAPES)
def test_local_contrast_is_the_root_mean_square_off_the_local_mean(shape):
    variance = random(*shape)
    reach = max(min(shape[-2:]) // 16, 1)
    for image, score in zip(variance, scores.local_contrast(variance)):
        apart = []
        for frame in frames_of(image):
            frame = [[math.sqrt(value) for value in row] for row in frame]
            apart += [(middle - local) ** 2 for local, middle in windows(frame, reach, False)]
        assert score.item() == pytest.approx(math.sqrt(sum(apart) / len(apart)), rel=1e-5)


@pytest.mark.parametrize("shape", SHAPES)
def test_relative_change_is_the_change_over_the_local_standard_deviation(shape):
    tail, picture = random(*shape), random(*shape, seed=1)
    for changed, image, score in zip(tail, picture, scores.relative_change(tail, picture)):
        spreads = []
        for plane in image.reshape(-1, *image.shape[-2:]).tolist():
            squares = [[value**2 for value in row] for row in plane]
            spreads += [math.sqrt(max(square - mean**2, 0)) for (mean, _), (square, _) in
                        zip(windows(plane, 1, False), windows(squares, 1, False))]
        roots = [math.sqrt(value) for value in changed.flatten().tolist()]
        change = sum(roots) / len(roots)
        assert score.item() == pytest.approx(change / (sum(spreads) / len(spreads)), rel=1e-5)


def test_relative_change_has_no_unit_and_ignores_brightness():
    tail, picture = random(2, 4, 8, 8), random(2, 4, 8, 8, seed=1)
    score = scores.relative_change(tail, picture)
    assert torch.allclose(scores.relative_change(9 * tail, 3 * picture), score)
    assert torch.allclose(scores.relative_change(tail, picture + 100), score, rtol=1e-4)


@pytest.mark.parametrize("shape", [(2, 4, 8, 8), (1, 4, 1, 1), (2, 3, 16)])
def test_relative_change_of_a_flat_picture_is_finite_and_without_change_0(shape):
    flat = torch.full(shape, 0.3)
    assert torch.isfinite(scores.relative_change(random(*shape), flat)).all()
    assert not scores.relative_change(torch.zeros(shape), flat).any()


@pytest.mark.parametrize("shape", SHAPES)
def test_worst_patch_is_the_highest_mean_of_a_whole_window(shape):
    variance = random(*shape)
    reach = max(min(shape[-2:]) // 16, 1)
    for image, score in zip(variance, scores.worst_patch(variance)):
        best = max(local for frame in frames_of(image)
                   for local, _ in windows(frame, reach, True))
        assert score.item() == pytest.approx(best, rel=1e-5)


def test_a_constant_has_no_contrast_and_a_spot_raises_the_worst_patch_most():
    flat, spot = torch.full((1, 4, 16, 16), 0.25), torch.full((1, 4, 16, 16), 0.25)
    spot[..., 6:9, 6:9] = 1
    assert scores.local_contrast(flat).item() == pytest.approx(0, abs=1e-6)
    assert scores.local_contrast(spot).item() > 0.01
    assert scores.worst_patch(spot).item() == pytest.approx(1)
    assert scores.mean(spot).item() < 0.3


@pytest.mark.parametrize("shape", SHAPES[:2])
def test_inside_a_mask_of_the_latents_size_is_the_mean_there(shape):
    variance = random(*shape)
    mask = (random(shape[0], *shape[-2:], seed=1) > 0.5).float()
    for image, each, score in zip(variance, mask, scores.inside(variance, mask)):
        values = [frame[y][x] for frame in frames_of(image)
                  for y in range(shape[-2]) for x in range(shape[-1]) if each[y, x]]
        assert score.item() == pytest.approx(sum(values) / len(values), rel=1e-5)


def test_a_mask_of_the_pictures_size_counts_what_it_covers():
    variance = random(2, 4, 6, 8)
    mask = torch.zeros(1, 48, 64)
    mask[:, 8:40, :] = 1
    inner = variance[..., 1:5, :].double().mean((1, 2, 3))
    assert scores.inside(variance, mask).tolist() == pytest.approx(inner.tolist(), rel=0.1)
    assert scores.inside(variance, torch.ones(1, 3, 4)).tolist() == \
        pytest.approx(scores.mean(variance).tolist(), rel=1e-5)


def test_a_mask_with_the_frames_of_each_clip_follows_them():
    """Nine frames of three latent ones: every fourth is one of them."""
    variance, mask = random(2, 4, 3, 5, 6), torch.zeros(2, 9, 5, 6)
    mask[0, 0], mask[1, 8] = 1, 1
    expected = [variance[0, :, 0].mean().item(), variance[1, :, 2].mean().item()]
    assert scores.inside(variance, mask.flatten(0, 1)).tolist() == pytest.approx(expected, rel=1e-5)


def test_scores_of_an_image_do_not_depend_on_its_batch_mates():
    variance, tail, mask, picture = (random(3, 4, 16, 16, seed=s) for s in range(4))
    together = scores.all_scores(variance, tail, mask[:, 0], picture)
    assert [scores.DOUBT, *together] == scores.SCORES
    alone_of = scores.all_scores(variance[1:2], tail[1:2], mask[1:2, 0], picture[1:2])
    for name, alone in alone_of.items():
        assert alone.item() == pytest.approx(together[name][1].item(), rel=1e-9)


def test_only_scores_that_the_input_allows_are_given():
    assert list(scores.all_scores(random(1, 4, 8, 8))) == scores.SCORES[1:5]


@pytest.mark.parametrize("mask, words", [
    (torch.zeros(1, 8, 8), "mask of image 0 is empty"),
    (torch.stack([torch.ones(8, 8), torch.zeros(8, 8)]), "mask of image 1 is empty"),
    (torch.ones(4, 8, 8), "holds 4 masks for 2 images"),
    (torch.ones(3, 8, 8), "holds 3 masks for 2 images"),
    (torch.ones(0, 8, 8), "holds 0 masks for 2 images"),
])
def test_masks_that_do_not_fit_are_refused(mask, words):
    with pytest.raises(BayesDiffError, match=words):
        scores.inside(random(2, 4, 8, 8), mask)


def test_sound_is_scored_as_a_picture_of_one_row():
    variance, tail, sound = random(2, 64, 40), random(2, 64, 40, seed=1), random(2, 64, 40, seed=2)
    rows = [part[:, :, None] for part in (variance, tail, sound)]
    found = scores.all_scores(variance, tail, picture=sound)
    expected = scores.all_scores(rows[0], rows[1], picture=rows[2])
    assert found.keys() == expected.keys() and "relative change" in found
    assert all(torch.equal(found[name], expected[name]) for name in found)


@pytest.mark.parametrize("variance, words", [
    (torch.full((1, 4, 8, 8), torch.nan), "NaN"), (-torch.ones(1, 4, 8, 8), "down to -1"),
    (torch.ones(8, 8), "shape .8, 8.")])
def test_what_is_no_variance_is_refused(variance, words):
    with pytest.raises(BayesDiffError, match=words):
        scores.all_scores(variance)
