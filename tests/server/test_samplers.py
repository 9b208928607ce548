"""Sampler and heat map over HTTP, on tiny models: every mode, cached rerun, the stock picture."""

import json

import pytest
import torch

from tests.server.graphs import SIZES, graph, node, saved
from tools.server import ServerFailed, run_prompt

MODES = ["free", "light", "accurate", "paper"]
CASES = [(name, mode, False, False) for name in SIZES for mode in MODES] + [
    ("sd15", "accurate", True, False), ("sd15", "light", True, True),
    ("flux", "accurate", False, True), ("wan", "light", False, True), ("sd3", "free", False, True)]


@pytest.mark.parametrize("name, mode, v_prediction, custom", CASES)
def test_picture_is_the_stock_nodes_and_a_map_is_shown(server, data_sets, name, mode, v_prediction,
                                                       custom):
    outputs = run_prompt(server.address, graph(name, mode, v_prediction, custom))
    stock, ours, variance = (saved(server, outputs, key) for key in ("stock", "ours", "var"))
    assert len(stock) == len(ours) == len(variance) > 0
    for theirs, mine, spread in zip(stock, ours, variance):
        assert torch.equal(theirs, mine) == (mode != "paper")
        assert spread.shape == mine.shape and spread.min() >= 0 and spread.max() > 0
    shown = outputs["map"]["images"]
    assert (server.base / "temp" / shown[0]["subfolder"] / shown[0]["filename"]).is_file()
    said = json.loads(outputs["said"]["text"][0])
    assert said["mode"] == mode and len(said["scores"]) == 2 and said["calls"] == 4


def test_second_run_of_the_same_graph_comes_from_the_cache(server, data_sets):
    prompt = graph("sd3", "light")
    prompt["ours"]["inputs"]["uncertainty_seed"] = 6  # unlike the tests before
    prompt["save_var"]["inputs"]["filename_prefix"] = "t/again"
    first = run_prompt(server.address, prompt)
    again = run_prompt(server.address, prompt)
    for key in ("said", "save_var"):  # older hosts do not tell again what is cached
        assert again.get(key, first[key]) == first[key]
    assert len(list((server.base / "output" / "t").glob("again*"))) \
        == len(first["save_var"]["latents"])


def test_wrong_posterior_is_refused_in_words_and_the_server_lives_on(server, data_sets):
    prompt = graph("sd3", "light")
    prompt["other"] = node("UNETLoader", unet_name="tiny_flux.safetensors", weight_dtype="default")
    prompt["ours"]["inputs"]["model"] = ["other", 0]
    with pytest.raises(ServerFailed, match="fitted on Stable Diffusion 3.*the model is Flux"):
        run_prompt(server.address, prompt)
    assert run_prompt(server.address, graph("sd3", "free"))
