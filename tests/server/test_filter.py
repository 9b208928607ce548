"""Sample, score, filter and save over HTTP, on a tiny model."""

import json

import pytest
import torch
from PIL import Image

from bayesdiff_core.filtering import numbers_of
from tools.server import ServerFailed, ask, run_prompt

COLORS = [0xFF0000, 0x00FF00, 0x0000FF, 0xFFFFFF]
WORKFLOW = {"extra_pnginfo": {"workflow": {"id": "mine"}}}


@pytest.fixture(scope="module")
def prompts(server):
    """Data sets of one and of two prompts, as the host's own node reads them."""
    for count in (1, 2):
        torch.manual_seed(count)
        data = {"latents": [{"samples": torch.zeros(1, 16, 8, 8)} for _ in range(count)],
                "conditioning": [[[torch.randn(1, 4, 1024), {"pooled_output": torch.randn(1, 64)}]]
                                 for _ in range(count)]}
        for place in ("datasets", "output"):
            folder = server.base / place / f"prompts_{count}"
            folder.mkdir(parents=True)
            torch.save(data, folder / "shard_0000.pkl")
            (folder / "metadata.json").write_text(json.dumps({"num_samples": count}))


def node(class_type, **inputs):
    return {"class_type": class_type, "inputs": inputs}


def graph(prompts=1, prefix="kept", **widgets):
    """Four images of each prompt in four colors, scored and filtered; both sides are saved."""
    prompt = {
        "model": node("UNETLoader", unet_name="tiny_sd3.safetensors", weight_dtype="default"),
        "data": node("LoadTrainingDataset", folder_name=f"prompts_{prompts}"),
        "empty": node("EmptySD3LatentImage", width=64, height=64, batch_size=4),
        "sample": node("BayesDiff_KSampler", model=["model", 0], positive=["data", 1],
                       negative=["data", 1], latent_image=["empty", 0], seed=3, steps=4, cfg=3.0,
                       sampler_name="euler", scheduler="normal", denoise=1.0, mode="free",
                       probe_levels=0,
                       skip_interval=4, deviations=0, noise_model="independent", uncertainty_seed=0,
                       keep_steps=4),
        "score": node("BayesDiff_UncertaintyScore", trajectory=["sample", 2],
                      images=[f"batch_{len(COLORS) - 1}", 0], score="trajectory variance"),
        "filter": node("BayesDiff_UncertaintyScoreFilter", **{
            "scores": ["score", 0], "images": ["score", 2], "latents": ["sample", 0],
            "criterion": "keep n", "z": 1.0, "percent": 25.0, "keep": 3, "threshold": 0.0,
            "allow_empty": False, "groups": "", "reference": "", "reference_mode": "only compare",
            "picked": "", **widgets}),
        "kept": node("SaveImage", images=["filter", 0], filename_prefix=f"f/{prefix}"),
        "rejected": node("SaveImage", images=["filter", 1], filename_prefix=f"f/{prefix}_not"),
        "latents": node("SaveLatent", samples=["filter", 2], filename_prefix=f"f/{prefix}"),
        "indices": node("PreviewAny", source=["filter", 6]),
        "histogram": node("SaveImage", images=["filter", 9], filename_prefix="f/histogram"),
    }
    for place, color in enumerate(COLORS):
        prompt[f"color_{place}"] = node("EmptyImage", width=8, height=8, batch_size=1,
                                         color=color)
        if place:
            before = f"batch_{place - 1}" if place > 1 else "color_0"
            prompt[f"batch_{place}"] = node("ImageBatch", image1=[before, 0],
                                            image2=[f"color_{place}", 0])
    return prompt


def opened(server, shown):
    return [Image.open(server.base / "output" / file["subfolder"] / file["filename"])
            for file in shown["images"]]


def colors(pictures):
    return [red << 16 | green << 8 | blue
            for red, green, blue in (picture.getpixel((0, 0)) for picture in pictures)]


def test_kept_pictures_are_saved_with_their_scores(server, prompts):
    outputs = run_prompt(server.address, graph(), extra_data=WORKFLOW)
    decided, = outputs["filter"]["bayesdiff"]
    kept, rejected = decided["kept"], decided["rejected"]
    assert len(kept) == 3 and len(rejected) == 1
    assert decided["scores"][rejected[0]] == max(decided["scores"])
    pictures = opened(server, outputs["kept"])
    assert colors(pictures) == [COLORS[place] for place in kept]
    assert colors(opened(server, outputs["rejected"])) == [COLORS[rejected[0]]]
    assert outputs["indices"]["text"] == [",".join(map(str, kept))]
    for picture in pictures:
        assert json.loads(picture.text["workflow"]) == {"id": "mine"}
        said = json.loads(picture.text["bayesdiff"])
        assert said["score"]["score"] == "trajectory variance"
        assert said["score"]["scores"] == decided["scores"] and min(decided["scores"]) > 0
        assert said["filter"]["kept"] == kept
    assert opened(server, outputs["histogram"])[0].size == (480, 240)
    assert "trajectory variance" in outputs["score"]["text"][0]
    assert len(decided["thumbnails"]) == 4
    assert (server.base / "temp" / "bayesdiff" / decided["thumbnails"][0]["filename"]).is_file()


def test_a_picture_saved_again_without_a_new_score_carries_none(server, prompts):
    """The help page says so: the host does not run a node again whose inputs are the same."""
    for prefix, carried in [("once", True), ("again", False)]:
        outputs = run_prompt(server.address, graph(prefix=prefix, keep=1, z=2.0),
                             extra_data=WORKFLOW)
        assert ("bayesdiff" in opened(server, outputs["kept"])[0].text) == carried


def test_a_prompt_without_workflow_runs_and_says_that_nothing_is_carried(server, prompts):
    outputs = run_prompt(server.address, graph(prefix="bare", keep=2))
    assert "bayesdiff" not in opened(server, outputs["kept"])[0].text
    assert len(outputs["kept"]["images"]) == 2


def test_when_all_are_rejected_the_kept_side_does_not_run_and_the_rest_does(server, prompts):
    widgets = {"criterion": "threshold", "threshold": 0.0, "prefix": "none"}
    outputs = run_prompt(server.address, graph(allow_empty=True, **widgets))
    assert "kept" not in outputs and "latents" not in outputs
    assert len(outputs["rejected"]["images"]) == 4 and "kept 0 of 4" in outputs["filter"]["text"][0]
    outputs = run_prompt(server.address, graph(**widgets))
    assert len(outputs["kept"]["images"]) == 1 and len(outputs["rejected"]["images"]) == 3
    outputs = run_prompt(server.address, graph(keep=9, prefix="all"))
    assert "rejected" not in outputs and len(outputs["kept"]["images"]) == 4


def test_two_prompts_come_as_a_list_and_are_judged_apart(server, prompts):
    """The host samples the list of prompts in turn: two batches of four."""
    prompt = graph(2, prefix="two", groups="first,second", keep=1)
    del prompt["filter"]["inputs"]["images"], prompt["kept"], prompt["rejected"]
    outputs = run_prompt(server.address, prompt)
    decided, = outputs["filter"]["bayesdiff"]
    scores = decided["scores"]
    assert len(scores) == 8
    assert decided["kept"] == [scores.index(min(scores[:4])), scores.index(min(scores[4:]))]
    assert len(outputs["latents"]["latents"]) == 2


def test_reference_is_collected_noticed_and_used(server, prompts):
    name = {"reference": "tiny", "prefix": "reference"}
    for seed in (1, 2, 3):
        prompt = graph(reference_mode="add", **name)
        prompt["sample"]["inputs"]["seed"] = seed
        run_prompt(server.address, prompt)
    path = server.base / "output" / "bayesdiff_reference" / "tiny.json"
    stored = json.loads(path.read_text())
    assert len(stored["scores"]) == 12
    one = graph(criterion="reference", allow_empty=True, **name)
    one["empty"]["inputs"]["batch_size"] = 1
    one["score"]["inputs"]["images"] = ["color_0", 0]
    first, = run_prompt(server.address, one)["filter"]["bayesdiff"]
    del stored["checksum"]  # as by hand
    path.write_text(json.dumps({**stored, "scores": [score / 1e6 for score in stored["scores"]]}))
    second, = run_prompt(server.address, one)["filter"]["bayesdiff"]
    assert first["scores"] == second["scores"] and second["kept"] == []
    assert first["groups"][0]["threshold"] == pytest.approx(
        1e6 * second["groups"][0]["threshold"])


@pytest.mark.parametrize("widgets", [
    {"criterion": "mean + z sigma", "z": 0.5}, {"criterion": "drop top percent", "percent": 50.0},
    {"criterion": "keep n", "keep": 2, "groups": "a,b,a,b"},
    {"criterion": "threshold", "threshold": -1.0, "allow_empty": True},
    {"criterion": "threshold", "threshold": -1.0}, {"criterion": "picked", "picked": "3,1"},
    {"criterion": "reference", "reference": "known", "percent": 40.0},
], ids=str)
def test_the_panel_is_told_what_the_next_run_keeps(server, prompts, widgets):
    path = server.base / "output" / "bayesdiff_reference" / "known.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    prompt = graph(prefix="panel", **widgets)
    scores = run_prompt(server.address, graph())["filter"]["bayesdiff"][0]["scores"]
    path.write_text(json.dumps({"format": "bayesdiff-reference", "version": 1,
                                "scores": scores * 3}))
    asked = {name: value for name, value in prompt["filter"]["inputs"].items()
             if not isinstance(value, list)}
    told = ask(server.address, "/bayesdiff/decide", {**asked, "scores": scores})
    ran, = run_prompt(server.address, prompt)["filter"]["bayesdiff"]
    assert told == {name: ran[name] for name in ("kept", "rejected", "groups", "notes")}


def test_self_check_reports_in_words(server, prompts):
    prompt = {key: graph()[key] for key in ("model", "data", "empty", "sample")}
    prompt["check"] = node("BayesDiff_UncertaintySelfCheck", scores=["sample", 3], liked="1,2",
                           disliked="3,4")
    text, = run_prompt(server.address, prompt)["check"]["text"]
    assert "different from chance with 2 liked and 2 disliked" in text and "AUROC" in text


def test_what_was_taught_is_offered_and_used_without_a_restart(server, prompts):
    def teach(seed):
        prompt = {key: graph()[key] for key in ("model", "data", "empty", "sample")}
        prompt["empty"]["inputs"]["batch_size"] = 16
        prompt["sample"]["inputs"]["seed"] = seed
        prompt["scores"] = node("BayesDiff_UncertaintyScore", trajectory=["sample", 2],
                                score="relative change")
        text, = run_prompt(server.address, prompt)["scores"]["text"]
        line = next(line for line in text.split("\n") if line.startswith("relative change:"))
        values = [float(word) for word in line.split(":")[1].split(",")]
        order = sorted(range(16), key=lambda image: values[image])
        prompt["check"] = node("BayesDiff_UncertaintySelfCheck", trajectory=["sample", 2],
                               liked=numbers_of(order[:6]), disliked=numbers_of(order[-6:]),
                               name="here", teach="add")
        return run_prompt(server.address, prompt)["check"]["text"][0]

    use = graph(prefix="taught", score="taught: here")
    use["filter"]["inputs"] |= {"scores": ["score", 0], "trajectory": ["sample", 2]}
    use["score"]["inputs"]["score"] = "taught: here"
    with pytest.raises(ServerFailed, match="not in"):
        run_prompt(server.address, use)
    assert "at least 8 of each" in teach(1)
    with pytest.raises(ServerFailed, match="not significantly better than chance yet"):
        run_prompt(server.address, use)
    assert "significantly better than chance with 12 liked and 12 disliked" in teach(2)
    by_score, = run_prompt(server.address, use)["filter"]["bayesdiff"]
    del use["filter"]["inputs"]["scores"]
    by_trajectory, = run_prompt(server.address, use)["filter"]["bayesdiff"]
    assert by_score["scores"] == by_trajectory["scores"]
    assert all(0 <= score <= 1 for score in by_score["scores"])


@pytest.mark.parametrize("change, words", [
    ({"images": ["color_0", 0]}, "images input holds 1 in 1 entries, and there are 4 scores"),
    ({"groups": "a,b,c"}, "3 labels for 4 images"),
    ({"reference_mode": "add", "reference": "../escape"}, "without path separators"),
])
def test_bad_input_is_told_in_words(server, prompts, change, words):
    with pytest.raises(ServerFailed, match=words):
        run_prompt(server.address, graph(**change))
    assert not list(server.base.rglob("escape*"))
