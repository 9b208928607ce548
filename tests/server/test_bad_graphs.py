"""Graphs that cannot work: refused in words, and the server goes on."""

import json
import re
import urllib.error
import urllib.parse
import urllib.request

import pytest
import torch
from safetensors.torch import save_file

from tests.server.graphs import OPTIONS, graph, node
from tools.server import ServerFailed, ask, run_prompt

MAP = graph("sd3", "free")["map"]["inputs"]


@pytest.fixture(scope="module")
def latents(server):
    """Files for the stock LoadLatent."""
    plain = torch.zeros(1, 16, 8, 8)
    kinds = {"nan": plain + torch.nan, "inf": plain + torch.inf,
             "1x1": torch.randn(2, 16, 1, 1), "odd": torch.randn(2, 16, 5, 3),
             "none": torch.zeros(0, 16, 8, 8), "three": torch.randn(3, 16, 8, 8)}
    for name, tensor in kinds.items():
        save_file({"latent_tensor": tensor, "latent_format_version_0": torch.tensor([])},
                  server.base / "input" / f"{name}.latent")


@pytest.fixture(scope="module")
def prompts(server, data_sets):
    """Prompts of no tokens, and none at all."""
    empty = {"no_tokens": [[torch.zeros(1, 0, 1024), {"pooled_output": torch.zeros(1, 64)}]],
             "no_prompt": []}
    for name, prompt in empty.items():
        for place in ("datasets", "output"):
            folder = server.base / place / name
            folder.mkdir(parents=True)
            torch.save({"latents": [{"samples": torch.zeros(1, 16, 8, 8)}],
                        "conditioning": [prompt]}, folder / "shard_0000.pkl")
            (folder / "metadata.json").write_text(json.dumps({"num_samples": 1}))


def changed(mode="light", **inputs):
    """The sampler with other inputs."""
    prompt = graph("sd3", mode)
    for key in ("stock", "save_stock", "save_ours", "save_var"):
        del prompt[key]
    prompt["other"] = node("UNETLoader", unet_name="tiny_flux.safetensors", weight_dtype="default")
    prompt["ours"]["inputs"].update(inputs)
    return prompt


def with_latent(name, mode="light", **inputs):
    prompt = changed(mode, latent_image=["load", 0], **inputs)
    prompt["load"] = node("LoadLatent", latent=f"{name}.latent")
    return prompt


def with_prompt(name, mode="light", to="ours"):
    prompt = changed(mode)
    prompt["prompt"] = node("LoadTrainingDataset", folder_name=name)
    prompt[to]["inputs"]["positive"] = ["prompt", 1]
    return prompt


def custom(mode="light", denoise=1.0, **changes):
    """The other sampler, with a schedule of its own."""
    prompt = graph("sd3", mode, custom=True)
    prompt["sigmas"]["inputs"]["denoise"] = denoise
    prompt["ours"]["inputs"].update(changes)
    return {key: part for key, part in prompt.items() if "stock" not in key}


def mapped(**inputs):
    prompt = with_latent("three", "free")
    prompt["picture"] = node("EmptyImage", width=8, height=8, batch_size=5, color=0)
    prompt["map"]["inputs"] = {**MAP, **inputs}
    return prompt


def best_of_n(**inputs):
    prompt = changed()
    own = {key: value for key, value in prompt["ours"]["inputs"].items() if key not in OPTIONS}
    del own["mode"]
    prompt["one"] = node("LatentFromBatch", samples=["empty", 0], batch_index=0, length=1)
    prompt["best"] = node("BayesDiff_BestOfN", **{
        **own, "n": 4, "keep": 1, "drop_at": 0.5, "drop_schedule": "once", "seed_stride": 1,
        "rank_by": "trajectory variance",
        "uncertainty_seed": 0, "keep_steps": 3, **inputs})
    prompt["said"] = node("PreviewAny", source=["best", 6])
    return prompt


REFUSED = "(HTTP 400|refused in part)"
BAD = {
    "a latent for a model": (changed(model=["data", 0]), f"{REFUSED}.*mismatch"),
    "a latent for a posterior": (changed(posterior=["empty", 0]), f"{REFUSED}.*mismatch"),
    "a model for a trajectory": (mapped(trajectory=["model", 0]), f"{REFUSED}.*mismatch"),
    "a node that is not there": (changed(model=["nobody", 0]), f"{REFUSED}|nobody"),
    "words for a number": (changed(steps="many"), f"{REFUSED}.*many"),
    "a number for a mode": (changed(mode=7), f"{REFUSED}.*not in"),
    "no steps": (changed(steps=0), f"{REFUSED}.*smaller than min"),
    "too many deviations": (changed(deviations=10**9), f"{REFUSED}.*bigger than max"),
    "a negative seed": (changed(seed=-1), f"{REFUSED}.*smaller than min"),
    "a file that is not there": ({"load": node(
        "BayesDiff_LLLALoad", file="../../etc/passwd", structure="as fitted", prior="as fitted",
        prior_precision=1.0, temperature=1.0)}, f"{REFUSED}.*not in"),
    "NaN, light": (with_latent("nan"), "NaN or infinite"),
    "NaN, free": (with_latent("nan", "free"), "NaN or infinite"),
    "infinity, paper": (with_latent("inf", "paper"), "NaN or infinite"),
    "no images": (with_latent("none"), "holds no image"),
    "no noise levels": (custom(denoise=0.0), "nothing was sampled.*denoise"),
    "denoise 0": (changed(denoise=0.0), "nothing was sampled.*denoise"),
    "no prompt": (with_prompt("no_prompt"), "ran the negative prompt, a positive and a negative"),
    "no prompt to fit on": (with_prompt("no_prompt", to="fit"), "the network was not called"),
    "another family's posterior": (best_of_n(model=["other", 0], rank_by="variance, light"),
                                   "fitted on Stable Diffusion 3.*the model is Flux"),
    "no posterior": (changed(posterior=None), "light needs a posterior"),
    "more kept than started": (best_of_n(latent_image=["one", 0], n=2, keep=5),
                               "5 of 2 runs are to be kept"),
    "a batch for one image": (best_of_n(), "batch of 2, one image or clip was expected"),
    "other pictures": (mapped(image=["picture", 0]), "holds 5 pictures, but .* a batch of 3"),
    "another batch": (mapped(trajectory=None, variance=["ours", 1], samples=["empty", 0]),
                      "the same was expected"),
    "pixel map without a VAE": (mapped(method="pixel"), "no VAE input is linked"),
    "a step that was not kept": (mapped(step=77), "step 77 is not in this trajectory"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_graph_is_refused_in_words(server, prompts, latents, name):
    prompt, words = BAD[name]
    for part in prompt.values():
        part["inputs"] = {key: value for key, value in part["inputs"].items() if value is not None}
    with pytest.raises(ServerFailed, match=f"(?is){words}"):
        run_prompt(server.address, prompt)


GOOD = {
    "1 x 1": with_latent("1x1"), "1 x 1, free": with_latent("1x1", "free"),
    "odd sizes": with_latent("odd"), "odd sizes, paper": with_latent("odd", "paper"),
    "one step": changed(steps=1), "one step, free": changed("free", steps=1),
    "cfg 0": changed(cfg=0.0), "cfg 100": changed(cfg=100.0),
    "most deviations": changed(deviations=256, steps=2),
}


@pytest.mark.parametrize("name", GOOD)
def test_what_is_only_unusual_works_and_the_server_lives_on(server, prompts, latents, name):
    outputs = run_prompt(server.address, GOOD[name])
    scores = json.loads(outputs["said"]["text"][0])["scores"]
    assert len(scores) == 2 and all(0 <= score < float("inf") for score in scores)


def failing(first, last=10**6, error="memory", **inputs):
    prompt = changed(model=["faulty", 0], **inputs)
    prompt["faulty"] = node("FaultyModel", whole=["model", 0], first=first, last=last, error=error)
    return prompt


def failing_fit(first, last):
    prompt = failing(first, last)
    prompt["fit"]["inputs"]["model"] = ["faulty", 0]
    return {key: prompt[key] for key in ("model", "faulty", "data", "fit")}


def failing_map(first, last):
    prompt = mapped(method="pixel", vae=["faulty", 0], draws=3)
    prompt["vae"] = node("VAELoader", vae_name="pixel_space")
    prompt["faulty"] = node("FaultyVAE", whole=["vae", 0], first=first, last=last, error="memory")
    return prompt


@pytest.mark.parametrize("prompt, words", [
    (failing(1), "asked for, at call 1"),
    (failing(4, mode="accurate"), "extra calls.*mode free"),
    (failing(2, mode="paper"), "asked for"),
    (failing(3, error="fault"), "asked for, at call 3"),
    (failing_fit(1, 10**6), "one latent at a time.*smaller"),
    (failing_map(1, 10**6), "asked for"),
])
def test_out_of_memory_is_told_and_the_next_prompt_works(server, prompts, latents, prompt, words):
    with pytest.raises(ServerFailed, match=f"(?is){words}"):
        run_prompt(server.address, prompt)
    assert run_prompt(server.address, changed())["said"]


def test_out_of_memory_once_is_mended_by_smaller_batches(server, prompts):
    text, = run_prompt(server.address, failing_fit(1, 1))["fit"]["text"]
    assert "latents seen: 6" in text


@pytest.mark.parametrize("query", [
    {}, {"steps": 10**9}, {"steps": "many"}, {"steps": -1}, {"denoise": "nan"}, {"denoise": "inf"},
    {"denoise": 0}, {"denoise": 1e-300}, {"sampler_name": "../x"}, {"scheduler": "nobody"},
    {"mode": "light", "probe_levels": 10**9}, {"mode": "light", "deviations": 10**30},
    {"mode": "accurate", "steps": 1, "noise_model": "x"}, {"mode": "paper", "sampler_name": "heun"},
    {"mode": "paper", "skip_interval": -5}, {"mode": "x" * 900}, {"mode": "paper", "steps": 1e999},
], ids=lambda query: str(query)[:40])
def test_a_question_for_the_cost_of_nonsense_is_answered(server, query):
    path = "/bayesdiff/cost?" + urllib.parse.urlencode(query)
    told = ask(server.address, path)
    assert "error" in told or told["calls"] >= 0


ASKED = {"scores": [1.0, 2.0, 3.0], "criterion": "keep n", "z": 1.0, "percent": 16.0, "keep": 1,
         "threshold": 0.0, "allow_empty": False, "groups": "", "reference": "",
         "reference_mode": "only compare", "picked": ""}


@pytest.mark.parametrize("change, words", [
    ({"scores": []}, "there are no scores"),
    ({"scores": "many"}, "scores is 'many', a list was expected"),
    ({"scores": [1.0, None]}, "score 2 is None, a number"),
    ({"scores": [float("nan")]}, "score 1 is nan, a number"),
    ({"scores": [1e300, 2.0]}, "score 1 is 1e.300, a number"),
    ({"scores": [0.0] * 5000}, "there are 5000 scores, at most 4096"),
    ({"criterion": "best"}, "criterion is 'best', one of"),
    ({"criterion": 3}, "criterion is 3, a str was expected"),
    ({"keep": -1}, "keep is -1"), ({"keep": True}, "keep is True, a number"),
    ({"allow_empty": 1}, "allow_empty is 1, a bool"),
    ({"criterion": "drop top percent", "percent": 200}, "percent is 200, 0 to 100"),
    ({"criterion": "picked", "picked": "7"}, "picked lists image '7', and there are 3 scores"),
    ({"groups": "a,b"}, "2 labels for 3 images"),
    ({"criterion": "reference", "reference": "../escape"}, "without path separators"),
    ({"criterion": "reference", "reference": "none such"}, "the reference holds 0 scores"),
    ({"z": None}, "z is None, a number"), ({"picked": None}, "picked is None, a str"),
], ids=lambda value: str(value)[:40])
def test_a_question_of_nonsense_is_answered_in_words(server, change, words):
    told = ask(server.address, "/bayesdiff/decide", {**ASKED, **change})
    assert set(told) == {"error"}
    assert re.search(words, told["error"]), told["error"]


@pytest.mark.parametrize("body, words", [
    (b"", "not JSON"), (b"{", "not JSON"), (b"[" * 100_000, "not JSON"), (b"\xff\xfe{", "not JSON"),
    (b"[1]", "is a list, a JSON object was expected"), (b"9" * 1_000_001, "at most 1000000"),
], ids=lambda value: str(value)[:20])
def test_what_is_no_question_is_refused(server, body, words):
    request = urllib.request.Request(f"{server.address}/bayesdiff/decide", data=body)
    with pytest.raises(urllib.error.HTTPError) as error:
        urllib.request.urlopen(request, timeout=30)
    assert error.value.code in (400, 413)
    assert words in json.loads(error.value.read())["error"]
