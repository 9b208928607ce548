"""Graphs in the API format that several server tests start from."""

from safetensors.torch import load_file

SIZES = {"sd15": (4, 8, 8), "sd3": (16, 8, 6), "flux": (16, 8, 6), "wan": (16, 2, 4, 6)}
CONTEXT = {"sd15": 768, "sd3": 1024, "flux": 1024, "wan": 1024}
# The eigenvectors of sd15's full matrix take ten seconds on one core.
STRUCTURES = {"sd15": "diagonal", "sd3": "full", "flux": "full", "wan": "full"}
OPTIONS = {"probe_levels": 0, "skip_interval": 1, "deviations": 0, "noise_model": "independent",
           "uncertainty_seed": 5, "keep_steps": 4}
STEPS = {"seed": 7, "steps": 4, "cfg": 3.0, "sampler_name": "euler", "scheduler": "normal",
         "denoise": 1.0}


def fit_prompt(name, folder="models", **widgets):
    return {
        "model": {"class_type": "UNETLoader", "inputs": {"unet_name": f"tiny_{name}.safetensors",
                                                         "weight_dtype": "default"}},
        "data": {"class_type": "LoadTrainingDataset", "inputs": {"folder_name": name}},
        "fit": {"class_type": "BayesDiff_LLLAFit", "inputs": {
            "model": ["model", 0], "positive": ["data", 1], "latents": ["data", 0],
            "structure": STRUCTURES[name], "num_latents": 6, "timesteps": "uniform",
            "prior": "fixed",
            "prior_precision": 1.0, "temperature": 1.0, "empty_share": 0.25, "seed": 3, "size": 64,
            **widgets}},
        "save": {"class_type": "BayesDiff_LLLASave", "inputs": {
            "posterior": ["fit", 0], "filename_prefix": name, "folder": folder,
            "overwrite": True}},
    }


def node(class_type, **inputs):
    return {"class_type": class_type, "inputs": inputs}


def graph(name, mode, v_prediction=False, custom=False):
    """Fit, sample with ours and with the stock node, save both latents and look at the map."""
    prompt = {key: part for key, part in fit_prompt(name).items() if key != "save"}
    model = ["model", 0]
    if v_prediction:
        prompt["v"] = node("ModelSamplingDiscrete", model=model, sampling="v_prediction",
                           zsnr=False)
        model = ["v", 0]
        prompt["fit"]["inputs"]["model"] = model
    prompts = {"positive": ["data", 1], "negative": ["data", 1]}
    latent = {"latent_image": ["empty", 0]}
    prompt["empty"] = node("EmptyLatentImage", width=64, height=64, batch_size=2) \
        if name != "wan" else node("EmptyHunyuanLatentVideo", width=48, height=32, length=5,
                                   batch_size=2)
    options = {**OPTIONS, "mode": mode, "posterior": ["fit", 0]}
    if custom:
        prompt.update({
            "noise": node("RandomNoise", noise_seed=7),
            "guider": node("CFGGuider", model=model, cfg=3.0, **prompts),
            "sampler": node("KSamplerSelect", sampler_name="euler"),
            "sigmas": node("BasicScheduler", model=model, scheduler="normal", steps=4,
                           denoise=1.0)})
        parts = {"noise": ["noise", 0], "guider": ["guider", 0], "sampler": ["sampler", 0],
                 "sigmas": ["sigmas", 0], **latent}
        prompt["stock"] = node("SamplerCustomAdvanced", **parts)
        prompt["ours"] = node("BayesDiff_SamplerCustom", **parts, **options)
    else:
        prompt["stock"] = node("KSampler", model=model, **STEPS, **prompts, **latent)
        prompt["ours"] = node("BayesDiff_KSampler", model=model, **STEPS, **prompts, **latent,
                              **options)
    for key, source in {"stock": ["stock", 0], "ours": ["ours", 0], "var": ["ours", 1]}.items():
        prompt[f"save_{key}"] = node("SaveLatent", samples=source,
                                       filename_prefix=f"t/{name}_{mode}_{custom}_{v_prediction}_{key}")
    prompt["map"] = node(
        "BayesDiff_UncertaintyHeatmap", trajectory=["ours", 2], method="fast", color_map="turbo",
        opacity=0.6, value_range="per image", clip_percentile=99.0, step=-1, draws=8,
        remove_low_pass=False, seed=0, mask_by="percentile", mask_threshold=80.0, grow=0, blur=0,
        color_bar=True)
    prompt["said"] = node("PreviewAny", source=["ours", 4])
    return prompt


def saved(server, outputs, key):
    folder = server.base / "output"
    return [load_file(folder / file["subfolder"] / file["filename"])["latent_tensor"]
            for file in outputs[f"save_{key}"]["latents"]]
