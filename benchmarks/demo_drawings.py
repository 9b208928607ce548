"""Drawings of the demo model by BayesDiff KSampler in the host, with what scores are made of. Kept
in the cache."""

import hashlib

import torch
from safetensors.torch import load_file, save_file

from benchmarks.in_host import pack_module
from tools.in_process import enter_host
from tools.places import REPOSITORY, cache_folder

MODEL_FILE = REPOSITORY / "models" / "bayesdiff_demo.safetensors"
STEPS, CFG = 25, 2.5  # as in the example workflows, but for the steps
OPTIONS = {"probe_levels": 0, "skip_interval": 0, "deviations": 0, "uncertainty_seed": 0,
           "keep_steps": 2,
           "mode": "accurate", "noise_model": "independent"}


@torch.no_grad()
def drawings(each: int, seed: int) -> dict[str, torch.Tensor]:
    """`each` pictures of every class, class by class; maps of the latent, as drawings.drawings."""
    digest = hashlib.sha256(MODEL_FILE.read_bytes()).hexdigest()[:10]
    kept = cache_folder() / "drawings" / f"demo-{digest}-{each}-{seed}.safetensors"
    if not kept.exists():
        parts = _drawn(each, seed)
        kept.parent.mkdir(parents=True, exist_ok=True)
        save_file({key: torch.cat([part[key] for part in parts]).contiguous()
                   for key in parts[0]}, kept.with_suffix(".part"))
        kept.with_suffix(".part").replace(kept)
    return load_file(kept)


def _drawn(each: int, seed: int) -> list[dict[str, torch.Tensor]]:
    enter_host()
    import comfy.utils

    from tools import demo_model
    comfy.utils.set_progress_bar_enabled(False)
    demo, posterior_file = demo_model.load(MODEL_FILE), pack_module("nodes.demo").POSTERIOR_FILE
    posterior = pack_module("nodes.files.llla_file").read(posterior_file)
    node = pack_module("nodes.samplers").BayesDiffKSampler
    latent, parts = {"samples": torch.zeros(each, 12, 16, 16)}, []
    for label, (name, positive) in enumerate(demo.classes.items()):
        drawn, variance, trajectory, *_ = node.execute(
            demo.model, seed + label, STEPS, CFG, "euler", "normal", positive, demo.no_class,
            latent, 1.0, posterior, **OPTIONS).args
        picture = demo.vae.decode(drawn["samples"]).movedim(-1, 1)
        parts.append({"picture": picture, "latent": drawn["samples"],
                      "labels": torch.full((each,), label), "variance": variance["samples"],
                      "tail": trajectory.latent_tail()})
        print(f"demo model: {each} of {name}", flush=True)
    return parts
