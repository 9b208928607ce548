"""Graphs in the API format, on the model that comes with the pack."""

from tools.demo_worlds import SIZE

CLASS = "die"  # that the demo model draws
STEPS = {"seed": 7, "steps": 4, "cfg": 3.0, "sampler_name": "euler", "scheduler": "normal",
         "denoise": 1.0}
SAMPLER, FILTER = "BayesDiff_KSampler", "BayesDiff_UncertaintyScoreFilter"
FILTERING = {"criterion": "keep n", "z": 1.0, "percent": 16.0, "keep": 1, "threshold": 0.0,
             "allow_empty": False, "groups": "", "reference": "", "reference_mode": "only compare"}
HEATMAP = {"method": "fast", "color_map": "glow", "opacity": 0.8, "value_range": "per image",
           "clip_percentile": 99.0, "step": -1, "draws": 2, "remove_low_pass": False, "seed": 0,
           "mask_by": "percentile", "mask_threshold": 95.0, "grow": 0, "blur": 0,
           "color_bar": False}


def node(class_type, **inputs):
    return {"class_type": class_type, "inputs": inputs}


def base(batch=1):
    return {"demo": node("BayesDiff_DemoModel"),
            "positive": node("BayesDiff_DemoPrompt", name=CLASS),
            "negative": node("BayesDiff_DemoPrompt", name="nothing"),
            "empty": node("EmptyLatentImage", width=SIZE, height=SIZE, batch_size=batch)}


def sampled(class_type=SAMPLER, **widgets):
    """A sampler on base()."""
    return node(class_type, model=["demo", 0], positive=["positive", 0], negative=["negative", 0],
                **{"latent_image": ["empty", 0], **STEPS, **widgets})


def decoded(samples):
    return node("VAEDecode", samples=samples, vae=["demo", 1])
