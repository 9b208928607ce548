"""Fit and save in one server, load in another: over HTTP, with the host's own data-set node."""

import json
import shutil
import sys
from pathlib import Path

import pytest
import torch

from tests.conftest import Server
from tests.server.graphs import SIZES, fit_prompt, graph, saved
from tools import server as real_server
from tools.server import ServerFailed, ask, run_prompt


def load_prompt(file, **widgets):
    return {"load": {"class_type": "BayesDiff_LLLALoad", "inputs": {
        "file": file, "structure": "as fitted", "prior": "as fitted", "prior_precision": 1.0,
        "temperature": 1.0, **widgets}}}


@pytest.fixture(scope="module")
def fits(server, data_sets):
    """Each tiny model fitted and saved, wan into the output folder: outputs by model."""
    return {name: run_prompt(server.address, fit_prompt(
        name, "output" if name == "wan" else "models")) for name in SIZES}


@pytest.fixture(scope="module")
def second_server(host, server, fits, tmp_path_factory):
    """Another process, with nothing of the first but its files."""
    base = tmp_path_factory.mktemp("second")
    shutil.copytree(server.base / "models" / "llla", base / "models" / "llla")
    shutil.copytree(server.base / "output" / "llla", base / "output" / "llla")
    shutil.copytree(server.base / "models" / "diffusion_models", base / "models/diffusion_models")
    shutil.copytree(server.base / "datasets", base / "datasets")
    shutil.copytree(server.base / "output" / "sd3", base / "output" / "sd3")
    with real_server.running(host, Path(sys.executable), base, log=base / "log") as address:
        yield Server(address, base / "log", base)


@pytest.mark.parametrize("name", SIZES)
def test_fit_reports_latents_degrees_of_freedom_and_a_plot(server, fits, name):
    shown = fits[name]["fit"]
    text, = shown["text"]
    assert "latents seen: 6" in text and "effective degrees of freedom" in text
    assert (server.base / "temp" / shown["images"][0]["filename"]).is_file()
    assert all(level["variance"] > 0 for level in shown["bayesdiff"])


@pytest.mark.parametrize("name", SIZES)
def test_a_second_process_computes_the_same_variance_to_the_last_bit(second_server, fits, name):
    file = ("[output] " if name == "wan" else "") + f"{name}.safetensors"
    shown = run_prompt(second_server.address, load_prompt(file))["load"]
    assert shown["bayesdiff"] == fits[name]["fit"]["bayesdiff"]
    assert shown["text"] == fits[name]["fit"]["text"]


def test_a_second_process_samples_the_same_variance_to_the_last_bit(server, second_server, fits):
    prompt = {**graph("sd3", "accurate"), **load_prompt("sd3.safetensors")}
    del prompt["fit"], prompt["save_stock"]
    prompt["ours"]["inputs"]["posterior"] = ["load", 0]
    first, second = (saved(where, run_prompt(where.address, prompt), "var")
                     for where in (server, second_server))
    assert len(first) > 0 and first[0].max() > 0
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_a_changed_file_and_changed_settings_are_noticed(server, fits):
    file = "sd3.safetensors"
    # Unused with this prior, but not asked before: older hosts do not tell again what is cached.
    first, = run_prompt(server.address, load_prompt(file, prior_precision=2.0))["load"]["text"]
    cooler, = run_prompt(server.address, load_prompt(file, temperature=0.25))["load"]["text"]
    assert "temperature: 1\n" in first and "temperature: 0.25\n" in cooler
    run_prompt(server.address, fit_prompt("sd3", num_latents=9))
    again, = run_prompt(server.address, load_prompt(file))["load"]["text"]
    assert "latents seen: 6" in first and "latents seen: 9" in again


def test_the_list_of_files_is_offered(server, fits):
    files = ask(server.address, "/object_info/BayesDiff_LLLALoad")["BayesDiff_LLLALoad"]
    options = json.dumps(files["input"]["required"]["file"])
    assert "sd3.safetensors" in options and "[output] wan.safetensors" in options


def test_own_samples_need_neither_latents_nor_images(server, data_sets):
    prompt = fit_prompt("wan")
    del prompt["fit"]["inputs"]["latents"], prompt["save"]
    text, = run_prompt(server.address, prompt)["fit"]["text"]
    assert "latents seen: 6" in text


def test_continuing_adds_to_a_loaded_posterior(server, fits):
    prompt = {**fit_prompt("sd3", seed=4), **load_prompt("flux.safetensors")}
    prompt["fit"]["inputs"]["posterior"] = ["load", 0]
    with pytest.raises(ServerFailed, match="fitted on Flux.*the model is Stable Diffusion 3"):
        run_prompt(server.address, prompt)
    prompt["load"]["inputs"]["file"] = "sd3.safetensors"
    del prompt["save"]
    outputs = run_prompt(server.address, prompt)
    before, after = (int(outputs[node]["text"][0].split("latents seen: ")[1].split()[0])
                     for node in ("load", "fit"))
    assert after == before + 6


@pytest.mark.parametrize("wrong, words", [
    ({"latents": ["other", 0]}, "B x 16 x H x W was expected"),
    ({"num_latents": 0}, "smaller than min|at least 1"),
])
def test_bad_input_is_told_in_words(server, data_sets, wrong, words):
    prompt = fit_prompt("sd3")
    prompt["other"] = {"class_type": "LoadTrainingDataset", "inputs": {"folder_name": "sd15"}}
    prompt["fit"]["inputs"].update(wrong)
    with pytest.raises(ServerFailed, match=words):
        run_prompt(server.address, prompt)


def test_a_name_with_separators_is_told_in_words(server, fits):
    prompt = fit_prompt("sd3", num_latents=9)
    prompt["save"]["inputs"]["filename_prefix"] = "../escape"
    with pytest.raises(ServerFailed, match="without path separators"):
        run_prompt(server.address, prompt)
    assert not list(server.base.rglob("escape*"))
