"""Score An Image over HTTP: stock pictures scored, mapped and filtered, batches and lists."""

from tests.server.graphs import node
from tools.demo_worlds import SIZE
from tools.server import run_prompt


def graph():
    prompt = {
        "model": node("BayesDiff_DemoModel"),
        "prompt": node("BayesDiff_DemoPrompt", name="smiley"),
        "nothing": node("ConditioningZeroOut", conditioning=["prompt", 0]),
        "score": node("BayesDiff_ScoreAnImage", model=["model", 0], positive=["prompt", 0],
                      vae=["model", 1], cfg=1.0, effort="quick", seed=0),
        "map": node("BayesDiff_UncertaintyHeatmap", variance=["score", 1], samples=["score", 3],
                    vae=["model", 1], color_map="turbo", opacity=0.6, mask_threshold=80.0,
                    mask_by="percentile", grow=0, blur=0.0, method="fast", draws=8,
                    remove_low_pass=False, seed=0, step=-1, value_range="per image",
                    clip_percentile=99.0, color_bar=True),
        "masks": node("MaskToImage", mask=["map", 2]),
        "seen": node("PreviewImage", images=["masks", 0]),
        "check": node("BayesDiff_UncertaintySelfCheck", scores=["score", 0], liked="1,2",
                      disliked="3"),
    }
    for name, count in (("a", 2), ("b", 1)):
        prompt[f"empty {name}"] = node("EmptyLatentImage", width=SIZE, height=SIZE,
                                       batch_size=count)
        prompt[f"draw {name}"] = node(
            "KSampler", model=["model", 0], positive=["prompt", 0], negative=["nothing", 0],
            latent_image=[f"empty {name}", 0], seed=count, steps=4, cfg=2.5, sampler_name="euler",
            scheduler="normal", denoise=1.0)
        prompt[f"image {name}"] = node("VAEDecode", samples=[f"draw {name}", 0], vae=["model", 1])
    return prompt


def test_a_batch_of_images_and_a_list_of_latents_get_scores_and_maps(server):
    for source, images in (("image", ["both", 0]), ("latent", ["listed", 0])):
        prompt = graph()
        prompt["both"] = node("ImageBatch", image1=["image a", 0], image2=["image b", 0])
        prompt["listed"] = node("RebatchLatents", latents=["joined", 0], batch_size=1)
        prompt["joined"] = node("LatentBatch", samples1=["draw a", 0], samples2=["draw b", 0])
        prompt["score"]["inputs"][source] = images
        told = run_prompt(server.address, prompt)
        text, = told["score"]["text"]
        assert text.startswith(f"3 images, {6 if source == 'image' else 18} network calls")
        assert len(told["seen"]["images"]) == 3
        assert "AUROC" in told["check"]["text"][0]
