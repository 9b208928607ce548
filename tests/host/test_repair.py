"""Repair Where Unsure: each try is the stock sampler's, and the surest one of an image is kept."""

import json

import pytest
import torch

import nodes as host_nodes


@pytest.fixture
def repair(pack):
    def run(case, mask, latent, tries=3, denoise=0.7):
        found, scores, report = pack.repair.BayesDiffRepair.execute(
            case.model, *case.options()[:-1], latent, denoise, mask, tries).args
        assert json.loads(report)["scores"] == scores
        return found, json.loads(report)
    return run


def masks(latent, *columns):
    """Ones in the first columns of each picture, at eight times the latent's size."""
    height, width = latent["samples"].shape[-2:]
    found = torch.zeros(len(columns), 8 * height, 8 * width)
    for mask, count in zip(found, columns):
        mask[:, :8 * count] = 1
    return found


@pytest.mark.parametrize("name", ["sd15", "sd3"])
def test_the_surest_of_the_stock_samplers_tries_is_kept_image_by_image(case, repair, name):
    case = case(name)
    case.steps = 6
    shape = case.latent["samples"].shape
    latent = {"samples": torch.cat([case.random(*shape, seed=i) for i in range(3)]), "mine": 1}
    mask = masks(latent, 3, 4, 5)
    found, report = repair(case, mask, latent)
    masked, = host_nodes.SetLatentNoiseMask().set_mask(latent, mask)
    model, seed, *rest = case.model, *case.options()[:-1]
    tries = [host_nodes.common_ksampler(model, seed + i, *rest, masked, denoise=0.7)[0]["samples"]
             for i in range(3)]
    for image, kept in enumerate(report["kept"]):
        assert torch.equal(found["samples"][image], tries[kept][image])
        assert report["seeds"][image] == seed + kept
        assert report["tries"][kept][image] == min(each[image] for each in report["tries"])
    assert found["mine"] == 1 and "noise_mask" not in found
    assert report["calls"] == 3 * (6 + 6) and not report["notes"]
    for image, one in enumerate(found["samples"]):  # the mask's edge falls between two pixels
        outside = (Ellipsis, slice(4 + image, None))
        torch.testing.assert_close(one[outside], latent["samples"][image][outside])


def test_the_masks_of_clips_frames_belong_to_their_clip(case, repair):
    """As Uncertainty Heatmap gives them: the frames of the first clip, then those of the second."""
    case = case("wan")
    shape = case.latent["samples"].shape
    latent = {"samples": torch.cat([case.random(*shape, seed=i) for i in range(2)])}
    each = masks(latent, 2, 2, 2, 5, 5, 5)
    found, report = repair(case, each, latent, tries=1)
    assert len(report["scores"]) == 2
    changed = (found["samples"] - latent["samples"]).abs().amax((1, 3)) > 1e-4  # B x T x W
    assert changed[0, :, :2].all() and not changed[0, :, 3:].any()
    assert changed[1, :, :5].all()
    one = {"samples": latent["samples"][:1]}
    alone, _ = repair(case, masks(one, 1, 2, 3), one, tries=1)
    masked, = host_nodes.SetLatentNoiseMask().set_mask(one, masks(one, 1, 2, 3))
    stock, = host_nodes.common_ksampler(case.model, *case.options()[:-1], masked, denoise=0.7)
    assert torch.equal(alone["samples"], stock["samples"])


def test_one_try_is_set_latent_noise_mask_and_ksampler(case, repair):
    case = case("sd15")
    latent = {"samples": case.random(*case.latent["samples"].shape, seed=3)}
    mask = masks(latent, 4)
    found, report = repair(case, mask, latent, tries=1)
    masked, = host_nodes.SetLatentNoiseMask().set_mask(latent, mask)
    seed, *rest = case.options()[:-1]
    stock = host_nodes.common_ksampler(case.model, seed, *rest, masked, denoise=0.7)[0]
    assert torch.equal(found["samples"], stock["samples"]) and report["kept"] == [0]


@pytest.mark.parametrize("mask, words", [
    (torch.zeros(1, 64, 64), "the mask is empty"), (torch.ones(2, 64, 64), "2 masks for 1 images")])
def test_a_mask_that_does_not_fit_is_refused_in_words(case, pack, repair, mask, words):
    case = case("sd15")
    with pytest.raises(pack.BayesDiffError, match=words):
        repair(case, mask, {"samples": case.random(*case.latent["samples"].shape, seed=3)})


@pytest.mark.parametrize("first", [True, False])
def test_a_try_that_overflows_is_never_kept(case, repair, first):
    case, calls = case("sd3"), []
    case.steps, case.model = 4, case.model.clone()

    def overflow(args):
        calls.append(args["sigma"])
        return args["denoised"] * (torch.nan if (len(calls) <= 10) == first else 1.0)

    case.model.set_model_sampler_post_cfg_function(overflow)
    latent = {"samples": case.random(*case.latent["samples"].shape, seed=3)}
    found, report = repair(case, masks(latent, 4), latent, tries=2)
    assert len(calls) == 20  # of each try 4, and 6 to judge it
    assert report["kept"] == [int(first)] and report["scores"][0] > 0
    assert report["tries"][1 - first] == [None] and found["samples"].isfinite().all()


def test_what_does_not_fit_clips_or_tries_nothing_is_refused_in_words(case, pack, repair):
    case = case("wan")
    clips = {"samples": torch.zeros(2, *case.latent["samples"].shape[1:])}
    with pytest.raises(pack.BayesDiffError, match="3 masks for 2 images.*one for each frame"):
        repair(case, torch.ones(3, 8, 8), clips)
    with pytest.raises(pack.BayesDiffError, match="tries is 0, at least 1"):  # through a link
        repair(case, torch.ones(1, 8, 8), clips, tries=0)
