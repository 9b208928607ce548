"""The demo: a real ComfyUI with this pack, driven over HTTP as the browser would drive it."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tools import server
from tools.places import REPOSITORY

LOADER = {"class_type": "UNETLoader",
          "inputs": {"unet_name": "tiny_flux.safetensors", "weight_dtype": "default"}}
PROMPT = {
    "model": LOADER,
    "info": {"class_type": "BayesDiff_ModelInfo", "inputs": {"model": ["model", 0]}},
    "prompt": {"class_type": "LotusConditioning", "inputs": {}},  # needs no text encoder
    "latent": {"class_type": "EmptyLatentImage",
               "inputs": {"width": 128, "height": 128, "batch_size": 4}},
    "fit": {"class_type": "BayesDiff_LLLAFit",
            "inputs": {"model": ["model", 0], "positive": ["prompt", 0], "latents": ["latent", 0],
                       "structure": "full", "number": 16, "timesteps": "uniform", "prior": "fixed",
                       "prior_precision": 1.0, "temperature": 1.0, "empty_share": 0.0, "seed": 0,
                       "size": 128}},
    "sampler": {"class_type": "BayesDiff_KSampler",
                "inputs": {"model": ["model", 0], "positive": ["prompt", 0],
                           "negative": ["prompt", 0], "latent_image": ["latent", 0], "seed": 1,
                           "steps": 8, "cfg": 1.0, "sampler_name": "euler", "scheduler": "simple",
                           "denoise": 1.0, "posterior": ["fit", 0], "mode": "accurate", "nodes": 0,
                           "skip_interval": 4, "deviations": 0, "meaning": "independent",
                           "uncertainty_seed": 0, "keep_steps": 4}},
    "save": {"class_type": "SaveLatent",
             "inputs": {"samples": ["sampler", 0], "filename_prefix": "demo"}},
}


def main() -> int:
    host = Path(os.environ["BAYESDIFF_HOST"])
    with tempfile.TemporaryDirectory(prefix="bayesdiff-demo-") as folder:
        base = Path(folder)
        say(1, "writing a tiny Flux model with random weights")
        models = base / "models" / "diffusion_models"
        subprocess.run([sys.executable, "-m", "tools.tiny_models", str(models)], check=True,
                       cwd=REPOSITORY)
        say(2, f"starting {host.name} with the pack (10 to 30 s)")
        with server.running(host, Path(sys.executable), base, log=base / "server.log") as address:
            say(3, "loading the model, fitting a posterior, sampling 4 images with variance")
            outputs = server.run_prompt(address, PROMPT)
    say(4, "done; the server is stopped and its folder removed")
    for title, node in {"BayesDiff Model Info": "info", "LLLA Fit": "fit",
                        "BayesDiff KSampler": "sampler"}.items():
        print(f"\n{title} says:")
        print("\n".join(f"    {line}" for line in outputs[node]["text"][0].splitlines()))
    print("\nThis model is untrained, so there is no picture to show. A trained one, with its"
          "\nuncertainty map, is still to come.")
    return 0


def say(step: int, text: str) -> None:
    print(f"[{step}/4] {text}", flush=True)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except server.ServerFailed as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
