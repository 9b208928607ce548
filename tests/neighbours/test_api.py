"""Programs that call the API: reports in /history, also of what came from the cache, and the
example client."""

import json
import re
import subprocess
import sys

import pytest
from PIL import Image

from tests.neighbours.graphs import FILTER, FILTERING, base, decoded, node, sampled
from tools.places import REPOSITORY
from tools.server import ask, run_prompt

KEY = "bayesdiff_report"
CLIENT_ID = {"client_id": "a program"}  # without one, older hosts tell nothing of what is cached
CLIENT = REPOSITORY / "script_examples" / "queue_and_read.py"


def graph(seed=31):
    return {
        **base(3), "ours": sampled(mode="auto", check="off", seed=seed),
        "best": sampled("BayesDiff_BestOfN", n=2, keep=1, drop_at=0.5, drop_schedule="once",
                        rank_by="relative change", uncertainty_seed=0, keep_steps=4,
                        latent_image=["single", 0]),
        "single": node("EmptyLatentImage", width=base()["empty"]["inputs"]["width"],
                       height=base()["empty"]["inputs"]["height"], batch_size=1),
        "varied": node("BayesDiff_ResampleFromTimestep", trajectory=["ours", 2], step=-1,
                       fraction=0.5, count=1, strength=0.3, strength_unit="noise level",
                       draw="gaussian", seed=1),
        "pictures": decoded(["ours", 0]),
        "filter": node(FILTER, scores=["ours", 3], images=["pictures", 0], **FILTERING),
        "kept": node("SaveImage", images=["filter", 0], filename_prefix="t/kept"),
        "best_saved": node("SaveLatent", samples=["best", 0], filename_prefix="t/best"),
        "varied_saved": node("SaveLatent", samples=["varied", 0], filename_prefix="t/varied"),
        "told": node("PreviewAny", source=["ours", 4])}


def test_a_run_that_comes_from_the_cache_reports_as_the_first_did(master):
    first, again = (run_prompt(master.address, graph(), extra_data=CLIENT_ID) for _ in range(2))
    assert again["told"] == first["told"]  # an output node, which every ComfyUI tells of
    assert [json.loads(text) for text in again["told"]["text"]] == first["ours"][KEY]
    assert again["filter"] == first["filter"]
    offered = ask(master.address, "/object_info/BayesDiff_KSampler")["BayesDiff_KSampler"]
    if "has_intermediate_output" not in offered:
        pytest.skip("this ComfyUI tells nothing else of nodes that it does not run")
    assert offered["output_node"] is False  # a branch that nobody asks for is not sampled
    for name in ("ours", "best", "varied"):
        assert again[name] == first[name]  # what its panel shows too
        report, = first[name][KEY]
        assert json.loads(json.dumps(report, allow_nan=False)) == report


def test_a_sampler_that_nothing_asks_for_is_not_run(master):
    outputs = run_prompt(master.address, {
        **base(), "ours": sampled(mode="auto", seed=99),
        "other": node("SaveLatent", samples=["empty", 0], filename_prefix="t/other")})
    assert "ours" not in outputs


def test_the_example_client_prints_scores_kept_indices_and_files(master, tmp_path):
    file = tmp_path / "workflow_api.json"
    file.write_text(json.dumps(graph()))
    done = subprocess.run(
        [sys.executable, CLIENT, file, "--server", master.address.removeprefix("http://"),
         "--set", "ours.seed=41", "--set", "best.seed=42", "--timeout", "120"],
        capture_output=True, text=True, timeout=200, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    expected = run_prompt(master.address, graph(41), extra_data=CLIENT_ID)
    scores = expected["filter"][KEY][0]["scores"]
    lines = done.stdout.splitlines()
    assert f"BayesDiff_KSampler (ours): scores {json.dumps(scores)}" in lines
    kept, = (json.loads(line.rpartition(" kept ")[2]) for line in lines if " kept [" in line)
    assert kept == [scores.index(min(scores))]
    saved, = (line.rpartition("saved ")[2] for line in lines if line.startswith("SaveImage (kept)"))
    assert Image.open(master.base / "output" / saved).size[0] > 0
    assert any(line.startswith("BayesDiff_BestOfN (best): seeds [") for line in lines)


def test_the_example_client_tells_what_went_wrong(master, tmp_path):
    for change, code, words in [
            ({"ours": {"class_type": "NoSuchNode", "inputs": {}}}, 1, "NoSuchNode"),
            ({"filter": node(FILTER, scores=["ours", 3], images=["pictures", 0],
                             **{**FILTERING, "criterion": "picked"}, picked="9")}, 1,
             "failed in .*picked lists image '9'")]:
        file = tmp_path / "workflow_api.json"
        file.write_text(json.dumps(graph() | change))
        done = subprocess.run(
            [sys.executable, CLIENT, file, "--server", master.address.removeprefix("http://"),
             "--timeout", "120"], capture_output=True, text=True, timeout=200)
        assert done.returncode == code
        assert re.search(words, done.stderr), done.stderr
