"""Graphs with the habits of other packs, on a real server with small stand-ins for them."""

import json

import pytest
from PIL import Image
from safetensors.torch import load_file

from tests.neighbours.graphs import (
    FILTER,
    FILTERING,
    HEATMAP,
    STEPS,
    base,
    decoded,
    node,
    sampled,
)
from tools.server import ServerFailed, ask, run_prompt

KEY = "bayesdiff_report"
EMPTY = {**FILTERING, "criterion": "threshold", "threshold": -1.0, "allow_empty": True}


def report_of(outputs, name):
    report, = outputs[name][KEY]
    return report


def pictures(place, outputs, name):
    return [Image.open(place.base / "output" / file["subfolder"] / file["filename"])
            for file in outputs[name]["images"]]


def latents(place, outputs, name):
    file, = outputs[name]["latents"]
    return load_file(place.base / "output" / file["subfolder"] / file["filename"])["latent_tensor"]


def saved(samples, prefix):
    return node("SaveLatent", samples=samples, filename_prefix=f"t/{prefix}")


def test_a_sampler_that_a_pack_added_to_ksamplers_list_is_observed(master):
    """Picture of the stock node, scores that say something, and a resampling from the middle that
    goes on as the run did."""
    names = ask(master.address, "/object_info/BayesDiff_KSampler")["BayesDiff_KSampler"]
    assert "standin_2s" in json.dumps(names["input"]["required"]["sampler_name"])
    prompt = {
        **base(2), "ours": sampled(sampler_name="standin_2s", mode="auto", keep_steps=10,
                                   check="off"),
        "stock": sampled("KSampler", sampler_name="standin_2s"),
        "ours_saved": saved(["ours", 0], "ours"), "stock_saved": saved(["stock", 0], "stock"),
        "at": node("BayesDiff_TrajectoryAtStep", trajectory=["ours", 2], step=2, fraction=0.5),
        "sampler": node("KSamplerSelect", sampler_name="standin_2s"),
        "guider": node("CFGGuider", model=["demo", 0], positive=["positive", 0],
                       negative=["negative", 0], cfg=STEPS["cfg"]),
        "on": node("SamplerCustomAdvanced", noise=["at", 4], guider=["guider", 0],
                   sampler=["sampler", 0], sigmas=["at", 3], latent_image=["at", 0]),
        "on_saved": saved(["on", 0], "on"),
        "resampled": node("BayesDiff_ResampleFromTimestep", trajectory=["ours", 2], step=2,
                          fraction=0.5, count=1, strength=0.3, strength_unit="noise level",
                          draw="gaussian", seed=1),
        "resampled_saved": saved(["resampled", 0], "resampled")}
    outputs = run_prompt(master.address, prompt)
    ours, stock, on = (latents(master, outputs, f"{name}_saved")
                       for name in ("ours", "stock", "on"))
    assert ours.equal(stock)
    assert (on - ours).abs().max() < 1e-4  # one step off it is 0.3 and more
    report = report_of(outputs, "ours")
    assert min(report["scores"]) > 1e-4 and len(set(report["scores"])) == 2
    assert report["kept_steps"] == [0, 1, 2, 3, 4] and report["notes"] == []
    assert report_of(outputs, "resampled")["calls"] == 3  # of the two steps left


def test_best_of_n_ranks_seeds_of_such_a_sampler(master):
    prompt = {**base(), "best": sampled(
        "BayesDiff_BestOfN", sampler_name="standin_2s", n=4, keep=2, drop_at=0.5,
        drop_schedule="once", rank_by="relative change", uncertainty_seed=0, keep_steps=4),
        "kept": saved(["best", 0], "best")}
    report = report_of(run_prompt(master.address, prompt), "best")
    halfway = [run["scores"][0] for run in report["runs"]]
    assert len(set(halfway)) == 4 and min(halfway) > 0
    ranked = sorted(report["runs"], key=lambda run: run["scores"][0])
    assert set(report["seeds"]) == {run["seed"] for run in ranked[:2]}


def test_a_loop_collects_latents_trajectories_and_scores(master):
    """Of a loop that builds its graph while it runs: one batch of each comes out, and the filter
    and the map take it."""
    prompt = {
        **base(), "loop": node("StandIn_LoopOverSeeds", model=["demo", 0],
                               positive=["positive", 0], latent=["empty", 0], seed=20, rounds=3),
        "map": node("BayesDiff_UncertaintyHeatmap", trajectory=["loop", 1], vae=["demo", 1],
                    **HEATMAP),
        "mask": node("MaskToImage", mask=["map", 2]),
        "masks": node("SaveImage", images=["mask", 0], filename_prefix="t/mask"),
        "filter": node(FILTER, scores=["loop", 2], latents=["loop", 0], **FILTERING),
        "by_trajectory": node(FILTER, trajectory=["loop", 1], latents=["loop", 0], **FILTERING),
        "kept": saved(["filter", 2], "kept")}
    outputs = run_prompt(master.address, prompt)
    report = report_of(outputs, "filter")
    assert len(report["scores"]) == 3 and len(set(report["scores"])) == 3
    assert report["scores"] == pytest.approx(report_of(outputs, "by_trajectory")["scores"])
    assert report["kept"] == [report["scores"].index(min(report["scores"]))]
    assert len(pictures(master, outputs, "masks")) == 3
    assert len(latents(master, outputs, "kept")) == 1


def test_a_list_of_trajectories_in_one_value_is_taken(master):
    prompt = {**base(), "one": sampled(mode="free", check="off"),
              "two": sampled(mode="free", check="off", seed=8),
              "first": node("StandIn_CollectAnything", item=["one", 2]),
              "both": node("StandIn_CollectAnything", before=["first", 0], item=["two", 2]),
              "score": node("BayesDiff_UncertaintyScore", trajectory=["both", 0], score="doubt"),
              "map": node("BayesDiff_UncertaintyHeatmap", trajectory=["both", 0], vae=["demo", 1],
                          **HEATMAP)}
    outputs = run_prompt(master.address, prompt)
    expected = [value for name in ("one", "two") for value in report_of(outputs, name)["scores"]]
    assert report_of(outputs, "score")["scores"] == pytest.approx(expected)
    assert len(report_of(outputs, "map")["masked"]) == 2


def test_what_is_no_trajectory_is_named(master):
    prompt = {**base(), "list": node("StandIn_CollectAnything", item=["empty", 0]),
              "map": node("BayesDiff_UncertaintyHeatmap", trajectory=["list", 0], **HEATMAP)}
    with pytest.raises(ServerFailed, match="trajectory is a dict, so it comes from a node of"):
        run_prompt(master.address, prompt)


@pytest.mark.parametrize("widget, name", [("scheduler", "AYS SD1"), ("sampler_name", "res_2s")])
def test_a_name_through_a_link_that_ksampler_does_not_have_is_refused(master, widget, name):
    prompt = {**base(), "adapter": node("StandIn_SchedulerAdapter", name=name),
              "ours": sampled(mode="free", **{widget: ["adapter", 0]}),
              "kept": saved(["ours", 0], "never")}
    with pytest.raises(ServerFailed, match=f"is '{name}', which KSampler does not have"):
        run_prompt(master.address, prompt)
    prompt["adapter"]["inputs"]["name"] = STEPS[widget]
    assert run_prompt(master.address, prompt)["kept"]


@pytest.mark.parametrize("when_empty, falls_back", [("stop what follows", None), ("none", True),
                                                    ("the best one", False)])
def test_a_switch_falls_back_where_nothing_is_kept(master, when_empty, falls_back):
    prompt = {
        **base(), "black": node("EmptyImage", width=8, height=8, batch_size=1, color=0),
        "white": node("EmptyImage", width=8, height=8, batch_size=1, color=0xFFFFFF),
        "scores": node("StandIn_CollectAnything", item=1.5),
        "filter": node(FILTER, scores=["scores", 0], images=["black", 0], when_empty=when_empty,
                       **EMPTY),
        "switch": node("StandIn_FirstOfAny", one=["filter", 0], two=["white", 0]),
        "out": node("SaveImage", images=["switch", 0], filename_prefix=f"t/{when_empty[:4]}")}
    outputs = run_prompt(master.address, prompt)
    if falls_back is None:
        assert "out" not in outputs
    else:
        assert pictures(master, outputs, "out")[0].getpixel((0, 0)) == (
            (255, 255, 255) if falls_back else (0, 0, 0))


@pytest.mark.parametrize("mode", ["light", "accurate"])
def test_a_guider_whose_scale_falls_is_followed(master, mode):
    prompt = {
        **base(), "guider": node("StandIn_FallingCFG", model=["demo", 0],
                                 positive=["positive", 0], negative=["negative", 0], cfg=4.0),
        "noise": node("RandomNoise", noise_seed=7),
        "sampler": node("KSamplerSelect", sampler_name="euler"),
        "sigmas": node("BasicScheduler", model=["demo", 0], scheduler="normal", steps=5,
                       denoise=1.0)}
    parts = {name: [name, 0] for name in ("noise", "guider", "sampler", "sigmas")}
    parts["latent_image"] = ["empty", 0]
    prompt |= {"stock": node("SamplerCustomAdvanced", **parts),
               "ours": node("BayesDiff_SamplerCustom", **parts, posterior=["demo", 2], mode=mode),
               "stock_saved": saved(["stock", 0], f"stock_{mode}"),
               "ours_saved": saved(["ours", 0], f"ours_{mode}")}
    outputs = run_prompt(master.address, prompt)
    assert latents(master, outputs, "ours_saved").equal(latents(master, outputs, "stock_saved"))
    report = report_of(outputs, "ours")
    assert report["mode"] == mode and report["extra_calls"] > 0
    assert report["summed_variance"][0] > 0


def test_filter_before_a_collector_and_each_server_sends_its_best(master, worker):
    """What leads to the collector runs on both servers; what follows on the master alone."""
    prompt = {
        **base(3), "ours": sampled(mode="auto", check="off"),
        "pictures": decoded(["ours", 0]),
        "filter": node(FILTER, scores=["ours", 3], images=["pictures", 0], **FILTERING),
        "collector": node("StandIn_DistributedCollector", images=["filter", 0],
                          worker=worker.address.rpartition(":")[2], seed_node="ours"),
        "out": node("SaveImage", images=["collector", 0], filename_prefix="t/collected")}
    outputs = run_prompt(master.address, prompt)
    both = pictures(master, outputs, "out")
    alone = []
    for seed in (STEPS["seed"], STEPS["seed"] + 1):
        prompt["ours"]["inputs"]["seed"] = seed
        prompt["out"]["inputs"]["images"] = ["filter", 0]
        alone += pictures(master, run_prompt(master.address, prompt), "out")
    assert [one.tobytes() for one in both] == [one.tobytes() for one in alone]
    assert len(both) == 2
