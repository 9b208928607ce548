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
