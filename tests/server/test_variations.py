"""Best of N and Resample From Timestep over HTTP, on a tiny model."""

import json

import pytest
import torch

from tests.server.graphs import STEPS, graph, node, saved
from tools.server import ServerFailed, run_prompt

RESAMPLE = {"step": -1, "fraction": 0.5, "count": 2, "strength": 0.5,
            "strength_unit": "noise level",
            "draw": "deviations", "seed": 3}


def save(source, name):
    return node("SaveLatent", samples=source, filename_prefix=f"t/{name}")


def resampling(name, **changes):
    """Sampled, then resampled as a whole, inside a mask, and not at all."""
    prompt = graph(name, "light")
    prompt["mask"] = node("SolidMask", value=1.0, width=32, height=64)
    prompt["none"] = node("SolidMask", value=0.0, width=64, height=64)
    prompt["left"] = node("MaskComposite", destination=["none", 0], source=["mask", 0], x=0, y=0,
                          operation="add")
    for key, options in {"whole": {}, "part": {"mask": ["left", 0]},
                         "same": {"strength": 0.0}}.items():
        prompt[key] = node("BayesDiff_ResampleFromTimestep", trajectory=["ours", 2],
                           **{**RESAMPLE, **options, **changes})
        prompt[f"save_{key}"] = save([key, 0], key)
    return prompt


@pytest.mark.parametrize("name", ["sd3", "wan"])
def test_resampling_gives_variations_of_all_of_a_part_or_the_original(server, data_sets, name):
    outputs = run_prompt(server.address, resampling(name))
    latents = [saved(server, outputs, key) for key in ("ours", "whole", "part", "same")]
    for ours, whole, part, same in zip(*latents, strict=True):
        original = ours.repeat_interleave(2, 0)
        assert torch.equal(same, original)
        assert whole.shape == part.shape == original.shape
        right = slice(original.shape[-1] // 2 + 1, None)
        assert torch.equal(part[..., right], original[..., right])
        assert not torch.equal(part[..., 0], original[..., 0])
        assert not torch.equal(whole[..., right], original[..., right])
    assert "calls" in outputs["whole"]["text"][0]


def going_on():
    """A state goes to the stock sampler, to a file and back, and to Resample as latents."""
    prompt = graph("sd3", "light", custom=True)
    prompt["state"] = node("BayesDiff_TrajectoryAtStep", trajectory=["ours", 2], step=3,
                           fraction=0.5)
    links = {"guider": ["guider", 0], "sampler": ["sampler", 0], "sigmas": ["state", 3]}
    prompt["on"] = node("SamplerCustomAdvanced", noise=["state", 4], latent_image=["state", 0],
                        **links)
    prompt["file"] = node("BayesDiff_TrajectorySave", trajectory=["ours", 2],
                          filename_prefix="run", overwrite=True)
    options = {**RESAMPLE, "step": 3, "draw": "gaussian"}
    prompt["varied"] = node("BayesDiff_ResampleFromTimestep", trajectory=["ours", 2], **options)
    prompt["latents"] = node("BayesDiff_ResampleFromTimestep", mean=["state", 0],
                             variance=["state", 1], **links, **options)
    return prompt, options


def test_a_state_goes_on_by_stock_nodes_by_file_and_by_latents(server, data_sets):
    prompt, options = going_on()
    for key in ("on", "varied", "latents"):
        prompt[f"save_{key}"] = save([key, 0], key)
    outputs = run_prompt(server.address, prompt)
    # The data set's prompts come as a list, so each node runs for each; the last is in the file.
    ours, on, varied, latents = (saved(server, outputs, key)[-1]
                                 for key in ("ours", "on", "varied", "latents"))
    assert torch.equal(on, ours)
    torch.testing.assert_close(latents, varied, rtol=1e-3, atol=1e-3)
    assert outputs["file"]["text"][-1] == "saved as run.safetensors"

    later = {key: prompt[key] for key in ("model", "data", "guider")}
    later["loaded"] = node("BayesDiff_TrajectoryLoad", file="run.safetensors")
    later["again"] = node("BayesDiff_ResampleFromTimestep", trajectory=["loaded", 0],
                          guider=["guider", 0], **options)
    later["save_again"] = save(["again", 0], "again")
    outputs = run_prompt(server.address, later)
    assert torch.equal(saved(server, outputs, "again")[-1], varied)
    assert "sampled by a OpenAISignatureMMDITWrapper" in outputs["loaded"]["text"][0]


def test_best_of_n_gives_what_ksampler_gives_with_its_seed(server, data_sets):
    prompt = graph("sd3", "light")
    prompt["one"] = node("EmptyLatentImage", width=64, height=64, batch_size=1)
    inputs = {**STEPS, "model": ["model", 0], "positive": ["data", 1], "negative": ["data", 1],
              "latent_image": ["one", 0]}
    prompt["best"] = node("BayesDiff_BestOfN", **inputs, posterior=["fit", 0], n=4, keep=1,
                          drop_at=0.5,
                          drop_schedule="once", seed_stride=1, rank_by="variance, light",
                          uncertainty_seed=0,
                          keep_steps=3)
    prompt["again"] = node("KSampler", **{**inputs, "seed": ["best", 3]})
    prompt["varied"] = node("BayesDiff_ResampleFromTimestep", trajectory=["best", 2],
                            **{**RESAMPLE, "strength": 0.0})
    prompt["report"] = node("PreviewAny", source=["best", 6])
    for key in ("best", "again", "varied"):
        prompt[f"save_{key}"] = save([key, 0], key)
    outputs = run_prompt(server.address, prompt)
    latents = [saved(server, outputs, key) for key in ("best", "again", "varied")]
    for best, again, varied in zip(*latents, strict=True):
        assert torch.equal(best, again) and torch.equal(varied, best.repeat_interleave(2, 0))
    said = json.loads(outputs["report"]["text"][0])
    assert len(said["runs"]) == 4 and said["calls_saved"] >= 3 * 2
    assert "1 of 4 seeds finished" in outputs["best"]["text"][0]


@pytest.mark.parametrize("change, words", [
    ({"step": 30}, r"step 30 is not in this trajectory, which keeps \[0, 1, 3, 4\]"),
    ({"step": 4}, "step 4 is the result of this trajectory"),
    ({"mean": ["ours", 0]}, "a trajectory is linked, and mean too"),
    ({"model": ["other", 0]}, "sampled by a OpenAISignatureMMDITWrapper.* is a Flux"),
])
def test_bad_input_is_told_in_words(server, data_sets, change, words):
    prompt = resampling("sd3", **change)
    prompt["other"] = node("UNETLoader", unet_name="tiny_flux.safetensors", weight_dtype="default")
    with pytest.raises(ServerFailed, match=words):
        run_prompt(server.address, prompt)
