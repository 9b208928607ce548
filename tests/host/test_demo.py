"""The model that comes with the pack."""

import json

import pytest
import torch

import nodes as host_nodes

STEPS = {"seed": 5, "steps": 4, "cfg": 2.5, "sampler_name": "euler", "scheduler": "normal"}


@pytest.fixture(scope="module")
def demo(pack):
    return pack.demo.BayesDiffDemoModel.execute().args


def prompt(pack, name):
    return pack.demo.BayesDiffDemoPrompt.execute(name).args[0]


@pytest.fixture
def drawing(pack, demo):
    """What every sampler takes; the empty latent is the stock node's for 64 x 64 pixels."""
    return {"model": demo[0], "positive": prompt(pack, "smiley"),
            "negative": prompt(pack, "nothing"),
            "latent_image": host_nodes.EmptyLatentImage().generate(64, 64, 2)[0], **STEPS}


def test_stock_ksampler_draws_and_the_vae_decodes(demo, drawing):
    latent, = host_nodes.KSampler().sample(**drawing)
    assert latent["samples"].shape == (2, 48, 16, 16)
    images, = host_nodes.VAEDecode().decode(demo[1], latent)
    assert images.shape == (2, 64, 64, 3) and 0 <= images.min() < images.max() <= 1


def test_our_sampler_gives_the_stock_picture_with_the_posterior_that_ships(pack, demo, drawing):
    stock, = host_nodes.KSampler().sample(**drawing)
    ours = pack.samplers.BayesDiffKSampler.execute(
        **drawing, denoise=1.0, posterior=demo[2], mode="accurate", probe_levels=0, skip_interval=4,
        deviations=0, noise_model="independent", uncertainty_seed=0, keep_steps=4,
        check="off")
    latent, variance, _, _, report, _ = ours.args
    assert torch.equal(latent["samples"], stock["samples"])
    assert (variance["samples"] > 0).all()
    assert json.loads(report)["notes"] == []  # it was fitted on this very model


def test_a_second_load_has_the_same_bits(pack, demo):
    again = pack.demo.BayesDiffDemoModel.execute().args
    theirs, ours = (loaded[0].model.diffusion_model.state_dict() for loaded in (demo, again))
    assert theirs.keys() == ours.keys()
    assert all(torch.equal(theirs[key], ours[key]) for key in theirs)


def test_every_weight_of_the_network_is_in_the_file(pack, demo):
    with pack.demo_model._opened(pack.demo.MODEL_FILE) as file:
        stored = set(file.keys())
    assert stored == {pack.demo_model.CLASS_KEY, *demo[0].model.diffusion_model.state_dict()}


def test_pixels_survive_the_vae_there_and_back(demo):
    pixels = torch.rand(1, 32, 48, 3, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(demo[1].decode(demo[1].encode(pixels)), pixels, atol=1e-6)


def test_prompts_are_the_classes_of_the_file_and_nothing(pack):
    name, = pack.demo.BayesDiffDemoPrompt.GET_SCHEMA().inputs
    assert name.options == [*pack.demo.CLASSES, "nothing"]
    assert pack.demo_model.class_names(pack.demo.MODEL_FILE) == pack.demo.CLASSES
    tokens = [prompt(pack, each)[0][0] for each in name.options]
    assert len(torch.unique(torch.cat(tokens), dim=0)) == len(name.options)
    zeroed, = host_nodes.ConditioningZeroOut().zero_out(prompt(pack, "die"))
    (token, extra), = prompt(pack, "nothing")
    assert torch.equal(zeroed[0][0], token)
    assert torch.equal(zeroed[0][1]["pooled_output"], extra["pooled_output"])


@pytest.mark.parametrize("content, words", [(None, "is not there"), (b"half", "cannot be read")])
def test_missing_or_broken_file_is_told_in_words_and_the_classes_are_still_offered(
        pack, monkeypatch, tmp_path, content, words):
    file = tmp_path / "bayesdiff_demo.safetensors"
    if content:
        file.write_bytes(content)
    monkeypatch.setattr(pack.demo, "MODEL_FILE", file)
    for run in (pack.demo.BayesDiffDemoModel.execute, lambda: prompt(pack, "die")):
        with pytest.raises(pack.BayesDiffError, match=f"bayesdiff_demo.safetensors {words}"):
            run()
    name, = pack.demo.BayesDiffDemoPrompt.define_schema().inputs
    assert name.options == [*pack.demo.CLASSES, "nothing"]


def test_missing_posterior_is_told_in_words(pack, monkeypatch, tmp_path):
    monkeypatch.setattr(pack.demo, "POSTERIOR_FILE", tmp_path / "none.safetensors")
    with pytest.raises(pack.BayesDiffError, match="none.safetensors cannot be read: there is no"):
        pack.demo.BayesDiffDemoModel.execute()


def test_another_models_file_is_refused(pack, load_model, monkeypatch):
    import folder_paths
    load_model("wan")
    path = folder_paths.get_full_path("diffusion_models", "tiny_wan.safetensors")
    monkeypatch.setattr(pack.demo, "MODEL_FILE", type(pack.demo.MODEL_FILE)(path))
    with pytest.raises(pack.BayesDiffError, match="cannot be read"):
        pack.demo.BayesDiffDemoModel.execute()
