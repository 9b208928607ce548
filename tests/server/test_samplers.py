"""Sampler and heat map over HTTP, on tiny models: every mode, cached rerun, the stock picture."""

import json

import pytest
import torch

from tests.server.graphs import SIZES, graph, node, saved
from tools.server import ServerFailed, ask, run_prompt

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
    shown = outputs["map"]["bayesdiff"][0]["images"]
    for sheet in shown[0]["steps"], shown[0]["result"]:
        assert (server.base / "temp" / "bayesdiff" / sheet["file"]["filename"]).is_file()
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


@pytest.mark.parametrize("asked, steps, uncertain, calls, extra", [
    ("mode=free&steps=20", 20, 0, 20, 0),
    ("mode=light&steps=20", 20, 4, 20, 4),
    ("mode=accurate&steps=20&sampler_name=heun", 20, 5, 39, 10),
    ("mode=accurate&steps=20&denoise=0.5&probe_levels=2&deviations=3", 20, 3, 20, 9),
    ("mode=paper&steps=20&skip_interval=4", 20, 4, 20, 30),
    ("mode=paper&steps=20&skip_interval=0&mc_samples=2&flow=true", 20, 20, 20, 38),
    ("mode=light&steps=1000", 1000, 5, 1000, 200),
    ("mode=auto&steps=20&posterior=true", 20, 4, 20, 4),
    ("mode=auto&steps=20&posterior=false", 20, 0, 20, 0),
    ("mode=accurate&steps=20&skip_schedule=steps&uncertain_steps=2,5", 20, 2, 20, 8),
    ("mode=accurate&steps=20&sampler_name=dpm_adaptive", 20, 0, None, 0),
    ("mode=light&steps=nonsense&denoise=9&nodes=-4", 20, 4, 20, 4),
])
def test_cost_is_told_before_a_run(server, asked, steps, uncertain, calls, extra):
    told = ask(server.address, f"/bayesdiff/cost?{asked}")
    assert told["steps"] == steps and len(told["uncertain"]) == uncertain
    assert (told["calls"], told["extra_calls"]) == (calls, extra)


def test_a_scheduler_that_is_not_the_hosts_is_told_in_words(server):
    told = ask(server.address, "/bayesdiff/cost?mode=light&scheduler=nonsense")
    assert "scheduler is 'nonsense', which KSampler does not have" in told["error"]


def test_a_sampler_that_the_paper_has_no_rule_for_is_told_in_words(server):
    told = ask(server.address, "/bayesdiff/cost?mode=paper&sampler_name=dpmpp_2m")
    assert "no rule for the sampler dpmpp_2m" in told["error"]
