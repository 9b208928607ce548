"""Sample, score, filter and save over HTTP, on a tiny model."""

import json

import pytest
import torch
from PIL import Image

from tools.server import ServerFailed, run_prompt

COLOURS = [0xFF0000, 0x00FF00, 0x0000FF, 0xFFFFFF]
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
    """Four images of each prompt in four colours, scored and filtered; both sides are saved."""
    prompt = {
        "model": node("UNETLoader", unet_name="tiny_sd3.safetensors", weight_dtype="default"),
        "data": node("LoadTrainingDataset", folder_name=f"prompts_{prompts}"),
        "empty": node("EmptySD3LatentImage", width=64, height=64, batch_size=4),
        "sample": node("BayesDiff_KSampler", model=["model", 0], positive=["data", 1],
                       negative=["data", 1], latent_image=["empty", 0], seed=3, steps=4, cfg=3.0,
                       sampler_name="euler", scheduler="normal", denoise=1.0, mode="free", nodes=0,
                       skip_interval=4, deviations=0, meaning="independent", uncertainty_seed=0,
                       keep_steps=4),
        "score": node("BayesDiff_UncertaintyScore", trajectory=["sample", 2],
                      images=[f"batch_{len(COLOURS) - 1}", 0], score="trajectory variance"),
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
    for place, colour in enumerate(COLOURS):
        prompt[f"colour_{place}"] = node("EmptyImage", width=8, height=8, batch_size=1,
                                         color=colour)
        if place:
            before = f"batch_{place - 1}" if place > 1 else "colour_0"
            prompt[f"batch_{place}"] = node("ImageBatch", image1=[before, 0],
                                            image2=[f"colour_{place}", 0])
    return prompt


def opened(server, shown):
    return [Image.open(server.base / "output" / file["subfolder"] / file["filename"])
            for file in shown["images"]]


def colours(pictures):
    return [red << 16 | green << 8 | blue
            for red, green, blue in (picture.getpixel((0, 0)) for picture in pictures)]


def test_kept_pictures_are_saved_with_their_scores(server, prompts):
    outputs = run_prompt(server.address, graph(), extra_data=WORKFLOW)
    decided, = outputs["filter"]["bayesdiff"]
    kept, rejected = decided["kept"], decided["rejected"]
    assert len(kept) == 3 and len(rejected) == 1
    assert decided["scores"][rejected[0]] == max(decided["scores"])
    pictures = opened(server, outputs["kept"])
    assert colours(pictures) == [COLOURS[place] for place in kept]
    assert colours(opened(server, outputs["rejected"])) == [COLOURS[rejected[0]]]
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
    one["score"]["inputs"]["images"] = ["colour_0", 0]
    first, = run_prompt(server.address, one)["filter"]["bayesdiff"]
    del stored["checksum"]  # as by hand
    path.write_text(json.dumps({**stored, "scores": [score / 1e6 for score in stored["scores"]]}))
    second, = run_prompt(server.address, one)["filter"]["bayesdiff"]
    assert first["scores"] == second["scores"] and second["kept"] == []
    assert first["groups"][0]["threshold"] == pytest.approx(
        1e6 * second["groups"][0]["threshold"])


def test_self_check_reports_in_words(server, prompts):
    prompt = {key: graph()[key] for key in ("model", "data", "empty", "sample")}
    prompt["check"] = node("BayesDiff_UncertaintySelfCheck", scores=["sample", 3], liked="0,1",
                           disliked="2,3")
    text, = run_prompt(server.address, prompt)["check"]["text"]
    assert "cannot be told from chance with 2 liked and 2 disliked" in text and "AUROC" in text


@pytest.mark.parametrize("change, words", [
    ({"images": ["colour_0", 0]}, "images input holds 1 in 1 entries, and there are 4 scores"),
    ({"groups": "a,b,c"}, "3 labels for 4 images"),
    ({"reference_mode": "add", "reference": "../escape"}, "without path separators"),
])
def test_bad_input_is_told_in_words(server, prompts, change, words):
    with pytest.raises(ServerFailed, match=words):
        run_prompt(server.address, graph(**change))
    assert not list(server.base.rglob("escape*"))
