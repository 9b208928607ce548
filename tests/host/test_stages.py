"""A run in two parts: left at a step, taken up from a file, and KSampler's to the bit."""

import json

import comfy.samplers
import folder_paths
import pytest
import torch

SKIPPED = {"dpm_fast", "dpm_adaptive"}  # steps of their own: refused, or ended before the stop


@pytest.fixture(autouse=True)
def outputs(tmp_path, monkeypatch):
    monkeypatch.setattr(folder_paths, "output_directory", str(tmp_path))
    return tmp_path / "bayesdiff_runs"


@pytest.fixture
def stage(pack):
    def run(case, part, seed=7, **options):
        options = {"run": "one", "stop_at": 0.5, "rank_by": "relative change", **options}
        return pack.stages.BayesDiffStage.execute(case.model, seed, *case.options()[1:],
                                                  case.denoise, part, **options)
    return run


def report(made):
    return made.ui["bayesdiff_report"][0]


@pytest.mark.parametrize("name, sampler", [
    *(("sd3", name) for name in comfy.samplers.SAMPLER_NAMES if name not in SKIPPED),
    ("sd15", "euler"), ("sd15", "dpmpp_2m_cfg_pp"), ("wan", "uni_pc")])
def test_both_parts_together_are_the_stock_samplers_picture(case, stage, name, sampler):
    case = case(name)
    case.sampler, case.steps = sampler, 6
    first = report(stage(case, "start"))
    second = stage(case, "finish")
    assert torch.equal(second.args[0]["samples"], case.stock()["samples"])
    calls = json.loads(second.args[4])["calls"]
    assert first["calls"] >= 2 and calls >= 1 and first["steps"] == 6


def test_parts_split_the_calls_and_tell_what_a_whole_run_tells(case, stage, pack):
    case = case("sd3")
    case.steps = 8
    first, second = report(stage(case, "start")), report(stage(case, "finish"))
    whole = report(pack.samplers.BayesDiffKSampler.execute(
        case.model, *case.options(), case.denoise, mode="free"))
    assert (first["calls"] - first["ahead_calls"], second["calls"], first["step"]) == (4, 4, 4)
    assert second["scores"] == whole["scores"] and second["all"] == whole["all"]


def test_a_file_of_another_run_is_refused(case, stage, outputs):
    case = case("sd3")
    case.steps = 6
    stage(case, "start")
    with pytest.raises(Exception, match="seed"):
        stage(case, "finish", seed=8)
    case.steps = 8
    with pytest.raises(Exception, match="does not repeat itself"):
        stage(case, "finish")
    with pytest.raises(Exception, match="has no two.safetensors"):
        stage(case, "finish", run="two")
    (outputs / "one.safetensors").write_bytes(b"no")
    with pytest.raises(Exception, match="cannot be read"):
        stage(case, "finish")


def test_a_batch_and_a_path_are_refused(case, stage, outputs):
    case = case("sd3")
    with pytest.raises(Exception, match="path separators|without"):
        stage(case, "start", run="../one")
    case.latent["samples"] = case.latent["samples"].repeat(2, 1, 1, 1)
    with pytest.raises(Exception, match="batch of 2"):
        stage(case, "start")
    assert not outputs.exists()
