"""Small nets on the worlds, trained once and kept in the cache with checkpoints on the way.

`python -m benchmarks.worlds.nets NAME...` trains them one after the other; stopped, it goes on
from the last checkpoint. Some are for choosing scores on, others for reporting. Every net splits
into `features` and `last`, the affine layer that gets the posterior.
"""

import sys
import time
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import nn

from bayesdiff_core.posterior import FeatureStatistics, LastLayer, Posterior, Predictive, posterior
from benchmarks.nets import Block, eps_sigmas
from benchmarks.nets import _fourier as fourier
from benchmarks.worlds import WORLDS
from tools.places import cache_folder

CHOOSING, REPORTING = "choosing", "reporting"
SIZE, BATCH, RATE = 32, 32, 2e-3
CHECKPOINTS = 8  # of a training, evenly spaced


class Recipe(NamedTuple):
    world: str
    kind: str  # eps or flow
    role: str
    iterations: int
    seed: int
    used: int = CHECKPOINTS  # the checkpoint that is used, for a share of wrong drawings


NETS = {
    "hands-eps-a": Recipe("hands", "eps", CHOOSING, 3600, 0),
    "shapes-eps-a": Recipe("shapes", "eps", CHOOSING, 2400, 0),
    "hands-flow-a": Recipe("hands", "flow", CHOOSING, 3600, 0),
    "shapes-flow-a": Recipe("shapes", "flow", CHOOSING, 2400, 0),
    "hands-eps-b": Recipe("hands", "eps", REPORTING, 4400, 1),
    "shapes-eps-b": Recipe("shapes", "eps", REPORTING, 2800, 1),
    "hands-flow-b": Recipe("hands", "flow", REPORTING, 3200, 1),
    "shapes-flow-b": Recipe("shapes", "flow", REPORTING, 3200, 1),
}


class UNet(nn.Module):
    """Three levels under 2 x 2 patches; the last layer is a 3 x 3 convolution with padding 1."""

    def __init__(self, widths=(32, 64, 96)):
        super().__init__()
        w1, w2, w3 = widths
        self.emb = nn.Sequential(nn.Linear(64, 128), nn.SiLU(), nn.Linear(128, 128))
        self.stem = nn.Conv2d(4, w1, 3, padding=1)
        self.down = nn.ModuleList([Block(w1, w1, 128), Block(w1, w2, 128), Block(w2, w3, 128)])
        self.mid = Block(w3, w3, 128)
        self.attention = nn.MultiheadAttention(w3, 4, batch_first=True)
        self.up = nn.ModuleList([Block(2 * w3, w2, 128), Block(2 * w2, w1, 128),
                                 Block(2 * w1, w1, 128)])
        self.norm = nn.GroupNorm(8, w1)
        self.last = nn.Conv2d(w1, 4, 3, padding=1)

    def features(self, x, t):
        emb = F.silu(self.emb(fourier(t, 64)))
        x, skips = self.stem(F.pixel_unshuffle(x, 2)), []
        for level, block in enumerate(self.down):
            x = block(F.avg_pool2d(x, 2) if level else x, emb)
            skips.append(x)
        tokens = x.flatten(2).transpose(1, 2)
        x = x + self.attention(tokens, tokens, tokens, need_weights=False)[0] \
            .transpose(1, 2).reshape(x.shape)
        x = self.mid(x, emb)
        for level, block in enumerate(self.up):
            x = block(torch.cat([x, skips.pop()], dim=1), emb)
            if level < 2:
                x = F.interpolate(x, scale_factor=2.0)
        return F.silu(self.norm(x))

    @staticmethod
    def to_grid(outputs):
        """B x 4 x 16 x 16 -> B x 1 x 32 x 32."""
        return F.pixel_shuffle(outputs, 2)

    @property
    def last_layer(self) -> LastLayer:
        return LastLayer(self.last.in_channels, kernel=3)

    @property
    def outputs(self) -> int:
        return self.last.out_channels


class DiT(nn.Module):
    """A small transformer on 4 x 4 patches; the last layer is linear over tokens."""

    def __init__(self, width=96, depth=4, patch=4):
        super().__init__()
        self.patch = patch
        self.emb = nn.Sequential(nn.Linear(64, width), nn.SiLU(), nn.Linear(width, width))
        self.stem = nn.Conv2d(1, width, patch, stride=patch)
        self.position = nn.Parameter(0.1 * torch.randn(1, (SIZE // patch) ** 2, width))
        self.blocks = nn.ModuleList([
            nn.ModuleDict({
                "ada": nn.Linear(width, 4 * width),
                "attention": nn.MultiheadAttention(width, 4, batch_first=True),
                "mlp": nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"),
                                     nn.Linear(4 * width, width)),
            }) for _ in range(depth)
        ])
        self.ada = nn.Linear(width, 2 * width)
        self.last = nn.Linear(width, patch**2)

    def features(self, x, t):
        emb = F.silu(self.emb(fourier(t, 64)))[:, None]
        x = self.stem(x).flatten(2).transpose(1, 2) + self.position
        norm = lambda h: F.layer_norm(h, h.shape[-1:])  # noqa: E731
        for block in self.blocks:
            shift1, scale1, shift2, scale2 = block["ada"](emb).chunk(4, dim=-1)
            h = norm(x) * (1 + scale1) + shift1
            x = x + block["attention"](h, h, h, need_weights=False)[0]
            x = x + block["mlp"](norm(x) * (1 + scale2) + shift2)
        shift, scale = self.ada(emb).chunk(2, dim=-1)
        return norm(x) * (1 + scale) + shift

    def to_grid(self, tokens):
        """B x tokens x patch^2 -> B x 1 x 32 x 32."""
        side = SIZE // self.patch
        return F.pixel_shuffle(tokens.transpose(1, 2).unflatten(2, (side, side)), self.patch)

    @property
    def last_layer(self) -> LastLayer:
        return LastLayer(self.last.in_features)

    @property
    def outputs(self) -> int:
        return self.last.out_features


def build(name: str) -> nn.Module:
    recipe = NETS[name]
    torch.manual_seed(recipe.seed)
    net = UNet() if recipe.kind == "eps" else DiT()
    net.flow = recipe.kind == "flow"
    return net


def output(net: nn.Module, x: torch.Tensor, sigma: torch.Tensor) -> torch.Tensor:
    """d = (x - denoised) / sigma of x at noise levels sigma (B)."""
    return net.to_grid(net.last(features(net, x, sigma)))


def features(net: nn.Module, x: torch.Tensor, sigma: torch.Tensor) -> torch.Tensor:
    """Those of the last layer, the net's input scaled as the host does."""
    if net.flow:
        return net.features(x, sigma)
    return net.features(x / (1 + sigma**2).sqrt()[:, None, None, None], sigma.log() / 4)


def noised(net: nn.Module, x0: torch.Tensor, generator: torch.Generator):
    """x, sigma and the target d for training: Stable Diffusion's levels, or a flow's."""
    noise = torch.randn(x0.shape, generator=generator)
    if net.flow:
        sigma = torch.sigmoid(torch.randn(len(x0), generator=generator))
        return torch.lerp(x0, noise, sigma[:, None, None, None]), sigma, noise - x0
    levels = eps_sigmas()
    sigma = levels[torch.randint(len(levels), (len(x0),), generator=generator)]
    return x0 + sigma[:, None, None, None] * noise, sigma, noise


def weights(name: str, checkpoint: int | None = None) -> Path:
    recipe = NETS[name]
    at = checkpoint or recipe.used
    return cache_folder() / "worlds" / f"{name}-{recipe.iterations}-{at}.safetensors"


def train(name: str) -> None:
    """To the end from the last checkpoint, if there is one. Averaged weights are what is kept."""
    torch.set_num_threads(1)
    recipe, net = NETS[name], build(name)
    if weights(name, CHECKPOINTS).exists():
        return
    state_file = weights(name).with_name(f"{name}-{recipe.iterations}.state")
    state_file.parent.mkdir(parents=True, exist_ok=True)
    optimizer = torch.optim.AdamW(net.parameters(), lr=RATE, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, recipe.iterations,
                                                   pct_start=0.05, final_div_factor=100)
    average, first, running = {k: v.clone() for k, v in net.state_dict().items()}, 0, 1.0
    if state_file.exists():
        state = torch.load(state_file, weights_only=True)
        net.load_state_dict(state["net"])
        optimizer.load_state_dict(state["optimizer"])
        schedule.load_state_dict(state["schedule"])
        average, first, running = state["average"], state["step"], state["running"]
    generator = torch.Generator().manual_seed(1000 + 100 * recipe.seed + first)
    started = time.time()
    for step in range(first + 1, recipe.iterations + 1):
        x, sigma, target = noised(net, WORLDS[recipe.world].draw(BATCH, generator), generator)
        loss = F.mse_loss(output(net, x, sigma), target)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        decay = min(0.998, step / (10 + step))
        for key, value in net.state_dict().items():
            average[key].lerp_(value, 1 - decay)
        running += 0.01 * (loss.item() - running)
        if step * CHECKPOINTS % recipe.iterations < CHECKPOINTS:
            at = step * CHECKPOINTS // recipe.iterations
            save_file(average, weights(name, at).with_suffix(".part"))
            weights(name, at).with_suffix(".part").replace(weights(name, at))
            torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict(),
                        "schedule": schedule.state_dict(), "average": average, "step": step,
                        "running": running}, state_file)
            print(f"{name} {step}/{recipe.iterations} loss {running:.4f} "
                  f"{(time.time() - started) / (step - first):.3f} s/it", flush=True)
    state_file.unlink()


def load(name: str, checkpoint: int | None = None) -> nn.Module:
    """The trained net, trained now if the cache has none."""
    if not weights(name, checkpoint).exists():
        print(f"training {name}: ten minutes or more on one core", flush=True)
        train(name)
    net = build(name)
    net.load_state_dict(load_file(weights(name, checkpoint)))
    return net.eval().requires_grad_(False)


def predictive(net: nn.Module, posterior: Posterior, phi: torch.Tensor) -> Predictive:
    return Predictive(posterior, phi, net.outputs, to_grid=net.to_grid)


@torch.no_grad()
def fit(name: str, net: nn.Module, latents: int = 2048, seed: int = 7) -> Posterior:
    """A full posterior from noised drawings of the world."""
    generator = torch.Generator().manual_seed(seed)
    statistics = FeatureStatistics(net.last_layer)
    for _ in range(0, latents, 64):
        x, sigma, target = noised(net, WORLDS[NETS[name].world].draw(64, generator), generator)
        phi = features(net, x, sigma)
        statistics.add(phi, residual=target - net.to_grid(net.last(phi)))
    return posterior(statistics)


def sigmas(net: nn.Module, steps: int) -> torch.Tensor:
    """As the host's `normal` scheduler for eps nets and `simple` for flows: steps + 1 levels."""
    if net.flow:
        return torch.linspace(1, 0, steps + 1)
    levels = eps_sigmas()
    return torch.cat([levels[torch.linspace(999, 0, steps).round().long()], torch.zeros(1)])


if __name__ == "__main__":
    for one in sys.argv[1:] or NETS:
        train(one)
