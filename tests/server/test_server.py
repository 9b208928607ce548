"""The pack in a real server, driven over HTTP."""

import os
import re
import signal
import subprocess
import sys
import time
import urllib.request

import psutil
import pytest

from tools.places import REPOSITORY
from tools.server import PACK, ServerFailed, ask, run_prompt

# What each tiny model's report must name.
LAST_LAYERS = {"sd15": "diffusion_model.out.2", "sd3": "diffusion_model.final_layer.linear",
               "flux": "diffusion_model.final_layer.linear", "wan": "diffusion_model.head.head"}


def model_info_prompt(name):
    return {"1": {"class_type": "UNETLoader", "inputs": {"unet_name": f"tiny_{name}.safetensors",
                                                         "weight_dtype": "default"}},
            "2": {"class_type": "BayesDiff_ModelInfo", "inputs": {"model": ["1", 0]}}}


def test_nodes_are_offered_under_the_category_bayesdiff(server):
    ours = {name: node for name, node in ask(server.address, "/object_info").items()
            if name.startswith("BayesDiff_")}
    assert "BayesDiff_ModelInfo" in ours
    assert {node["category"] for node in ours.values()} == {"bayesdiff"}


def test_log_has_no_error_and_no_warning_of_ours(server):
    log = server.log.read_text().split("Starting server")[0]  # later come errors that tests make
    assert re.search(rf"seconds: .*{PACK}", log), "the log does not show the pack's import time"
    bad = [line for line in log.splitlines()
           if "IMPORT FAILED" in line
           or re.search("bayesdiff", line, re.I) and re.search("error|warn|fail|cannot|skip", line,
                                                               re.I)]
    assert bad == []


@pytest.mark.parametrize("name", LAST_LAYERS)
def test_model_info_reports_on_a_model_from_the_stock_loader(server, name):
    text, = run_prompt(server.address, model_info_prompt(name))["2"]["text"]
    assert LAST_LAYERS[name] in text and text.endswith("supported")


def test_failed_prompt_is_told_in_words(server):
    prompt = model_info_prompt("sd3")
    prompt["1"]["inputs"]["unet_name"] = "missing.safetensors"
    with pytest.raises(ServerFailed, match="missing.safetensors"):
        run_prompt(server.address, prompt)


def test_help_page_and_translations_are_served(server):
    page = f"{server.address}/extensions/{PACK}/docs/BayesDiff_ModelInfo.md"
    with urllib.request.urlopen(page, timeout=30) as answer:
        assert b"# BayesDiff Model Info" in answer.read()
    words = ask(server.address, "/i18n")
    for language in ["en", "zh"]:
        assert "BayesDiff_ModelInfo" in words[language]["nodeDefs"]


@pytest.mark.skipif(os.name == "nt", reason="signals are another thing there")
def test_a_demo_stopped_in_the_background_leaves_no_server(host, tmp_path):
    """A shell's background job, and all that it starts, is deaf to SIGINT."""
    demo = subprocess.Popen(
        [sys.executable, REPOSITORY / "run.py", "demo", "--output", tmp_path / "output"],
        env={**os.environ, "COMFYUI_PATH": str(host)}, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN))
    started, end = [], time.monotonic() + 60
    while not started and time.monotonic() < end:
        time.sleep(0.2)
        started = [child for child in psutil.Process(demo.pid).children(recursive=True)
                   if str(host / "main.py") in child.cmdline()]
    assert started, "the demo started no server"
    demo.terminate()
    assert demo.wait(60) == 130
    assert not psutil.wait_procs(started, timeout=10)[1]
    assert not (tmp_path / "output").exists()
