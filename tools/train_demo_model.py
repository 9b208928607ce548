"""Trains the demo model on drawings of our own (demo_worlds.py), in two hours on one CPU core.

    BAYESDIFF_HOST=<ComfyUI> python -m tools.train_demo_model FILE [--iterations N] [--onward FILE]

In two runs: the second goes on from the first one's file (--onward), with more dice, and a rate
that rises and falls once more. The same seed and number of iterations give the same weights on the
same machine. Progress is kept in the cache folder: a stopped run goes on where it was, and
--export writes what there is by then.
"""

import argparse
import hashlib
import json
import time
from pathlib import Path
from typing import NamedTuple

if __name__ == "__main__":
    from tools.in_process import enter_host
    enter_host()

import torch
import torch.nn.functional as F
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

from tools import demo_worlds
from tools.demo_model import CLASS_KEY, CLASS_WIDTH, UNET, PatchVAE, base_model
from tools.demo_worlds import WORLDS, draw
from tools.places import cache_folder

SEED = 0
BATCH = 32
NO_CLASS_SHARE = 0.15
WARM_UP = 200
AVERAGING = 0.999


class Recipe(NamedTuple):
    """What differs between the runs."""

    shares: dict[str, float]  # of the classes
    iterations: int
    rate: float
    decay_share: float  # of the run; until then the rate is constant


FIRST = Recipe({"hand": 0.62, "die": 0.14, "smiley": 0.24}, 17_000, 1e-3, 0.3)
ONWARD = Recipe({"hand": 0.50, "die": 0.28, "smiley": 0.22}, 12_000, 7e-4, 0.7)


class Learner(nn.Module):
    """What is trained: the network and a vector for each class."""

    def __init__(self):
        super().__init__()
        model = base_model(UNET)
        self.network = model.diffusion_model.train().requires_grad_(True)
        self.sampling = model.model_sampling
        torch.manual_seed(SEED)
        _initialize(self.network)
        self.class_vectors = nn.Parameter(torch.randn(len(WORLDS), CLASS_WIDTH))

    def forward(self, noisy, timestep, label):
        """`label` -1 is no class: zeros."""
        vector = self.class_vectors[label] * (label >= 0)[:, None]
        return self.network(noisy, timestep, context=vector[:, None], y=vector)

    def weights(self) -> dict[str, torch.Tensor]:
        return {CLASS_KEY: self.class_vectors.data,
                **{k: v.data for k, v in self.network.named_parameters()}}


def _initialize(network: nn.Module) -> None:
    """The host's layers skip it, as they expect weights from a file."""
    for module in network.modules():
        for kind in (nn.Linear, nn.Conv2d, nn.GroupNorm, nn.LayerNorm):
            if isinstance(module, kind):
                kind.reset_parameters(module)
    for name, parameter in network.named_parameters():
        if name.startswith("out.2.") or ".out_layers.3." in name or ".proj_out." in name:
            nn.init.zeros_(parameter)  # each block starts as the identity


def _batch(recipe: Recipe, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Latents and labels, drawn for the purpose: no drawing is seen twice."""
    shares = torch.tensor([recipe.shares[name] for name in WORLDS])
    label = torch.multinomial(shares, BATCH, replacement=True, generator=generator).sort().values
    pictures = torch.cat([draw(name, int((label == number).sum()), generator)
                          for number, name in enumerate(WORLDS)])
    dropped = torch.rand(BATCH, generator=generator) < NO_CLASS_SHARE
    return PatchVAE().encode(pictures), label.masked_fill(dropped, -1)


def _loss(learner: Learner, latent, label, generator) -> torch.Tensor:
    """v-prediction: v = (noise - sigma x0) / sqrt(1 + sigma^2), as the host reads it."""
    # Log-normal noise levels: the middle ones decide what is drawn, and get most of the work.
    sigma = torch.exp(1.3 * torch.randn(BATCH, generator=generator) - 0.1)
    timestep = learner.sampling.timestep(sigma)
    sigma = learner.sampling.sigmas[timestep][:, None, None, None]
    noise = torch.randn(latent.shape, generator=generator)
    scale = (1 + sigma**2).rsqrt()
    v = (noise - sigma * latent) * scale
    # On CPUs that have it, half the bits are twice as fast.
    with torch.autocast("cpu", dtype=torch.bfloat16):
        predicted = learner((latent + sigma * noise) * scale, timestep.float(), label)
    return F.mse_loss(predicted.float(), v)


def _rate(recipe: Recipe, step: int, steps: int) -> float:
    return recipe.rate * min(1, (step + 1) / WARM_UP, (steps - step) / (recipe.decay_share * steps))


def _write(path: Path, average: dict, step: int) -> None:
    about = {"classes": list(WORLDS), "unet": UNET, "prediction": "v", "seed": SEED,
             "iterations": step, "batch": BATCH, "data": "drawn by tools/demo_worlds.py"}
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    save_file({k: v.half().contiguous() for k, v in average.items()}, part,
              metadata={"bayesdiff_demo": json.dumps(about)})
    part.replace(path)


def _progress(recipe: Recipe, before: int) -> Path:
    """Of this recipe: what was begun on other drawings does not go on here."""
    what = Path(demo_worlds.__file__).read_text() + repr((UNET, recipe, before, BATCH, SEED))
    digest = hashlib.sha256(what.encode()).hexdigest()[:10]
    return cache_folder() / "nets" / f"demo_model-{digest}.progress"


def _trained(path: Path) -> tuple[dict[str, torch.Tensor], int]:
    """Weights of a model that was trained before, and its iterations."""
    with safe_open(path, "pt") as file:
        about = json.loads(file.metadata()["bayesdiff_demo"])
        return {key: file.get_tensor(key).float() for key in file.keys()}, about["iterations"]


def train(path: Path, iterations: int | None = None, onward: Path | None = None,
          export_only: bool = False) -> None:
    torch.set_num_threads(1)
    learner = Learner().to(memory_format=torch.channels_last)  # quicker by a tenth
    recipe, before = FIRST, 0
    if onward:
        weights, before = _trained(onward)
        recipe = ONWARD
        for key, weight in learner.weights().items():
            weight.copy_(weights[key])
    iterations = iterations or recipe.iterations
    progress = _progress(recipe, before)
    average = {k: v.clone() for k, v in learner.weights().items()}
    optimizer = torch.optim.AdamW(learner.parameters(), weight_decay=1e-3, fused=True)
    first = 0
    if progress.exists():
        kept = torch.load(progress, weights_only=True)
        first, average = kept["step"], kept["average"]
        learner.load_state_dict(kept["learner"])
        optimizer.load_state_dict(kept["optimizer"])
    if export_only:
        return _write(path, average, before + first)
    started, running = time.time(), None
    for step in range(first, iterations):
        generator = torch.Generator().manual_seed(SEED + before + step)
        for group in optimizer.param_groups:
            group["lr"] = _rate(recipe, step, iterations)
        loss = _loss(learner, *_batch(recipe, generator), generator)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(learner.parameters(), 1.0)
        optimizer.step()
        keep = min(AVERAGING, (1 + step) / (10 + step))
        for key, value in learner.weights().items():
            average[key].lerp_(value, 1 - keep)
        running = loss.item() if running is None else running + 0.01 * (loss.item() - running)
        if (step + 1) % 250 == 0:
            pace = (time.time() - started) / (step + 1 - first)
            print(f"{step + 1}/{iterations} loss {running:.4f} {pace:.3f} s/it", flush=True)
            progress.parent.mkdir(parents=True, exist_ok=True)
            part = progress.with_suffix(".part")
            torch.save({"step": step + 1, "average": average, "learner": learner.state_dict(),
                        "optimizer": optimizer.state_dict()}, part)
            part.replace(progress)
    _write(path, average, before + iterations)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--iterations", type=int, help="other than the recipe's")
    parser.add_argument("--onward", type=Path, metavar="FILE",
                        help="the second run: goes on from this model")
    parser.add_argument("--export", action="store_true", help="write the last progress, then stop")
    given = parser.parse_args()
    train(given.file, given.iterations, given.onward, given.export)
