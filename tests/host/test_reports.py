"""What nodes tell programs: one JSON object each, in /history and as text (docs/api.md)."""

import asyncio
import json
import re

import comfy.samplers
import pytest
import torch
from comfy_extras import nodes_custom_sampler as stock_nodes

from tools.places import REPOSITORY

KEY = "bayesdiff_report"


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_number_that_json_does_not_have_is_null_with_a_note(pack, bad):
    report = {"scores": [1.5, bad], "all": {"sum": (bad,)}, "notes": ["before"]}
    told = pack.metadata.reported(report)[KEY][0]
    assert json.loads(json.dumps(told, allow_nan=False)) == told
    assert told["scores"] == [1.5, None] and told["all"] == {"sum": [None]}
    assert told["notes"][0] == "before" and "2 of the numbers are NaN or infinite" \
        in told["notes"][1]
    assert json.loads(pack.metadata.as_text(report)) == told
    assert report["notes"] == ["before"] and len(report["scores"]) == 2  # untouched
    whole = {"scores": [0.1 + 0.2], "notes": []}
    assert json.loads(pack.metadata.as_text(whole)) == whole  # to the last digit


def test_an_image_of_nan_costs_neither_the_run_nor_the_other_images(pack, case):
    one = case("sd3")
    one.latent = {"samples": one.random(2, 16, 9, 7, seed=3)}
    one.model, one.steps = one.model.clone(), 4
    overflow = torch.tensor([1.0, float("nan")]).reshape(2, 1, 1, 1)
    one.model.set_model_sampler_post_cfg_function(
        lambda args: args["denoised"] * (overflow if args["sigma"][0] < 0.5 else 1.0))
    stock = one.stock()["samples"]
    out = pack.samplers.BayesDiffKSampler.execute(one.model, *one.options(), 1.0, mode="free")
    assert torch.equal(out.args[0]["samples"][0], stock[0])
    assert out.args[0]["samples"][1].isnan().all() and stock[1].isnan().all()
    report = json.loads(out.args[4], parse_constant=lambda word: pytest.fail(word))
    assert report["scores"][0] > 0 and report["scores"][1] is None
    assert any("null" in note for note in report["notes"])
    assert out.ui["bayesdiff"][0]["viewer"] is None


@pytest.mark.parametrize("rank_by", ["relative change", "doubt"])
def test_runs_of_nan_are_told_in_valid_json(pack, case, rank_by):
    """A model that overflows."""
    one = case("sd3")
    one.model = one.model.clone()
    one.model.set_model_sampler_post_cfg_function(
        lambda args: args["denoised"] * (float("nan") if args["sigma"][0] < 0.5 else 1.0))
    out = pack.best_of_n.BayesDiffBestOfN.execute(
        one.model, *one.options(), 1.0, n=2, keep=1, drop_at=0.7, drop_schedule="once",
        rank_by=rank_by, uncertainty_seed=0, keep_steps=2)
    report = json.loads(out.args[6], parse_constant=lambda word: pytest.fail(word))
    assert report["scores"] == [None] and any("null" in note for note in report["notes"])


def test_every_node_that_works_reports(pack, case, ksampler, fits, place, monkeypatch):
    one = case("sd3")
    one.steps = 4
    options = (one.model, *one.options(), 1.0)
    run = pack.samplers.BayesDiffKSampler.execute(*options, None, mode="free", check="off")
    trajectory, latent = run.args[2], run.args[0]
    file = pack.trajectory.BayesDiffTrajectorySave.execute(trajectory, "t", False)
    posterior = pack.llla.BayesDiffLLLASave.execute(fits["full"], "p", "output", False)
    widgets = {name: [value] for name, value in {
        "criterion": "keep n", "z": 1.0, "percent": 16.0, "keep": 1, "threshold": 0.0,
        "allow_empty": False, "groups": "", "reference": "",
        "reference_mode": "only compare"}.items()}
    guider = stock_nodes.CFGGuider.execute(one.model, one.positive, one.negative, 4.0)[0]
    fit = {"structure": "diagonal", "num_latents": 4, "timesteps": "uniform", "prior": "fixed",
           "prior_precision": 1.0, "temperature": 1.0, "empty_share": 0.0, "seed": 5, "size": 64}
    told = {
        "BayesDiff_KSampler": run,
        "BayesDiff_SamplerCustom": pack.samplers.BayesDiffSamplerCustom.execute(
            stock_nodes.RandomNoise.execute(7)[0], guider, comfy.samplers.sampler_object("euler"),
            torch.tensor([1.0, 0.5, 0.2, 0.0]), one.latent, mode="free", check="off"),
        "BayesDiff_LLLAFit": pack.llla.BayesDiffLLLAFit.execute(
            model=[one.model], positive=[one.positive], latents=[latent],
            **{name: [value] for name, value in fit.items()}),
        "BayesDiff_BestOfN": pack.best_of_n.BayesDiffBestOfN.execute(
            *options, n=2, keep=1, drop_at=0.5, drop_schedule="once", rank_by="relative change",
            uncertainty_seed=0, keep_steps=2),
        "BayesDiff_RepairWhereUnsure": pack.repair.BayesDiffRepair.execute(
            *options, torch.ones(1, 8, 8), 1),
        "BayesDiff_ResampleFromTimestep": pack.resample.BayesDiffResample.execute(
            trajectory, step=1, fraction=0.5, count=1, strength=0.1, strength_unit="noise level",
            draw="gaussian", seed=0),
        "BayesDiff_TrajectoryAtStep": pack.trajectory.BayesDiffTrajectoryAtStep.execute(
            trajectory, 1, 0.5),
        "BayesDiff_TrajectorySave": file,
        "BayesDiff_TrajectoryLoad": pack.trajectory.BayesDiffTrajectoryLoad.execute(file.args[0]),
        "BayesDiff_LLLASave": posterior,
        "BayesDiff_LLLALoad": pack.llla.BayesDiffLLLALoad.execute(
            posterior.args[0], "as fitted", "as fitted", 1.0, 1.0),
        "BayesDiff_ModelInfo": pack.model_info.BayesDiffModelInfo.execute(one.model),
        "BayesDiff_UncertaintyHeatmap": pack.heatmap.BayesDiffHeatmap.execute(
            "fast", "glow", 0.5, "per image", 99.0, -1, 2, False, 0, "percentile", 95.0, 0, 0.0,
            False, trajectory=trajectory),
        "BayesDiff_UncertaintyScore": pack.scores.BayesDiffScore.execute(
            ["doubt"], trajectory=[trajectory]),
        "BayesDiff_ScoreAnImage": pack.score_image.BayesDiffScoreImage.execute(
            [one.model], [one.positive], [1.0], ["quick"], [0], latent=[latent]),
        "BayesDiff_UncertaintyScoreFilter": pack.filter.BayesDiffFilter.execute(
            **widgets, scores=[2.0, 1.0]),
        "BayesDiff_UncertaintySelfCheck": pack.selfcheck.BayesDiffSelfCheck.execute(
            ["1,2"], ["3,4"], scores=[1.0, 2.0, 3.0, 4.0]),
    }
    nodes = asyncio.run(asyncio.run(pack.root.comfy_entrypoint()).get_node_list())
    names = {node.GET_SCHEMA().node_id for node in nodes}
    assert names - told.keys() == {"BayesDiff_DemoModel", "BayesDiff_DemoPrompt"}  # no numbers
    titles = {node.GET_SCHEMA().node_id: node.GET_SCHEMA().display_name for node in nodes}
    for name, out in told.items():
        report, = out.ui[KEY]
        assert json.loads(json.dumps(report, allow_nan=False)) == report, name
        assert isinstance(report["notes"], list), name
        assert report.keys() - {"notes"} <= documented(titles[name]), name
        assert documented(titles[name]) - keys_in(report) <= {"taught"}, name  # needs a name


def keys_in(value) -> set[str]:
    """Of all objects in it, one within the other."""
    if isinstance(value, list):
        return set().union(*map(keys_in, value))
    if isinstance(value, dict):
        return value.keys() | keys_in(list(value.values()))
    return set()


def documented(title) -> set[str]:
    """The keys that docs/api.md lists for a node."""
    page = (REPOSITORY / "docs" / "api.md").read_text(encoding="utf-8")
    row, = (cells for line in page.splitlines() if line.startswith("| ")
            for cells in [line.strip("| ").split(" | ")]
            if title.removeprefix("BayesDiff ") in cells[0].replace("BayesDiff ", "").split(", "))
    return set(re.findall("`(\\w+)`", row[1]))
