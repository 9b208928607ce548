"""The check after the last step: against Score An Image, which calls the model by itself."""

import json

import comfy.model_management
import comfy.samplers
import pytest
import torch
from comfy_extras import nodes_custom_sampler as stock_nodes

PARTS = {"quick": ["pull 1.2, mean"], "full": ["pull 1.2, mean", "pull 2.0, patch",
                                               "redrawn, mean"]}


@pytest.fixture
def sampled(pack, posterior_of):
    """Latent, trajectory and report of BayesDiff KSampler."""
    def run(case, mode="free", check="quick"):
        posterior = None if mode == "free" else posterior_of(case)
        latent, _, trajectory, scores, report, _ = pack.samplers.BayesDiffKSampler.execute(
            case.model, *case.options(), case.denoise, posterior, mode=mode, check=check,
            skip_interval=1).args
        assert json.loads(report)["scores"] == scores
        return latent, trajectory, json.loads(report)
    return run


@pytest.mark.parametrize("name, mode, check", [
    ("sd15", "free", "full"), ("sd15_v", "light", "quick"), ("sd3", "accurate", "full"),
    ("sd3", "paper", "quick"), ("flux", "free", "quick"), ("wan", "light", "quick")])
def test_it_is_score_an_image_with_the_runs_own_prompts_and_guidance(case, pack, sampled, name,
                                                                     mode, check):
    case = case(name)
    latent, trajectory, report = sampled(case, mode, check)
    if mode != "paper":
        assert torch.equal(latent["samples"], case.stock()["samples"])
    calls = pack.core.evidence.EFFORTS[check].calls
    assert report["check_calls"] == calls and report["from"] == f"run, {check} check"
    *_, rescored, _ = pack.score_image.BayesDiffScoreImage.execute(
        [case.model], [case.positive], [case.cfg], [check], [0], latent=[latent],
        negative=[case.negative]).args
    expected = json.loads(rescored)["parts"]
    for part in PARTS[check]:
        assert report["parts"][part] == pytest.approx(expected[part], rel=1e-3)
    assert trajectory.checked.shape == ({"quick": 2, "full": 5}[check],
                                        *trajectory.mean.shape[1:])
    assert (trajectory.checked >= 0).all() and trajectory.checked.max() > 0


@pytest.mark.parametrize("steps, calls", [(4, 0), (12, 6), (48, 24)])
def test_auto_takes_at_most_half_as_many_calls_as_steps_and_says_when_it_takes_none(
        case, sampled, steps, calls):
    case = case("sd3")
    case.steps, case.latent["samples"] = steps, case.latent["samples"][..., :4, :5]
    _, trajectory, report = sampled(case, check="auto")
    assert report["check_calls"] == calls and (trajectory.checked is None) == (calls == 0)
    assert report["notes"] == ([] if calls else [
        "not checked: auto needs at least 12 steps, so that the check adds at most half; choose"
        " quick to check anyway"])


def test_off_takes_none_and_says_nothing(case, sampled):
    _, trajectory, report = sampled(case("sd3"), check="off")
    assert trajectory.checked is None and report["check_calls"] == 0 and report["notes"] == []


def test_known_pixels_are_not_doubted(case, sampled):
    case = case("sd15")
    mask = torch.zeros(1, *case.latent["samples"].shape[-2:])
    mask[..., :3] = 1
    case.latent["noise_mask"] = mask
    _, trajectory, report = sampled(case)
    assert trajectory.checked[..., :3].min() > 0
    assert trajectory.checked[..., 3:].max() < 1e-6 * trajectory.checked.max()


def test_a_run_that_ends_in_noise_and_prompts_that_leave_levels_out_are_not_checked(case, pack):
    case = case("sd15")
    sampler = comfy.samplers.sampler_object("euler")
    for sigmas, end, words in ((torch.tensor([3.0, 2.0, 1.0]), 1.0, "ends at noise level 1,"),
                               (torch.tensor([14.0, 9.0, 0.0]), 0.4, "the prompts skip")):
        case.positive[0][1]["end_percent"] = end
        guider = stock_nodes.BasicGuider.execute(case.model, case.positive)[0]
        *_, report, _ = pack.samplers.BayesDiffSamplerCustom.execute(
            stock_nodes.RandomNoise.execute(7)[0], guider, sampler, sigmas, case.latent,
            check="quick").args
        assert words in json.loads(report)["notes"][0]
        assert json.loads(report)["check_calls"] == 0


def test_it_can_be_cancelled_and_nothing_stays_on_the_model(case, sampled):
    case, calls = case("sd15"), []
    before = case.stock()["samples"]
    watched = case.model.clone()

    def cancels(apply_model, args):
        calls.append(args["timestep"])
        if len(calls) == case.steps + 2:
            comfy.model_management.interrupt_current_processing()
        return apply_model(args["input"], args["timestep"], **args["c"])
    watched.set_model_unet_function_wrapper(cancels)
    model, case.model = case.model, watched
    with pytest.raises(comfy.model_management.InterruptProcessingException):
        sampled(case)
    assert len(calls) == case.steps + 2
    case.model = model
    assert torch.equal(case.stock()["samples"], before)


def test_what_is_not_finite_costs_the_check_and_not_the_picture(case, sampled):
    case, calls = case("sd15"), []

    def breaks(apply_model, args):
        calls.append(args["timestep"])
        found = apply_model(args["input"], args["timestep"], **args["c"])
        return found * torch.nan if len(calls) > case.steps else found
    model = case.model.clone()
    model.set_model_unet_function_wrapper(breaks)
    stock = case.stock()["samples"]
    case.model = model
    latent, _, report = sampled(case)
    assert torch.equal(latent["samples"], stock)
    assert "not checked" in report["notes"][0] and report["from"] == "run, no check"
