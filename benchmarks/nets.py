"""Small class-conditional nets on small images, trained once and kept in the cache.

`python -m benchmarks.nets NAME` trains one. Every net splits into `features` and `last`, the
affine layer that gets the posterior.
"""

import math
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import nn

from benchmarks import images
from tools.places import cache_folder

# net -> data set, kind, iterations, seed of the first weights and of the order of images
NETS = {
    "emoji": ("emoji", "eps", 6000, 0),
    "fashion": ("fashion", "eps", 5000, 0),
    "cifar-flow": ("cifar", "flow", 3500, 0),
    # bench quality reports on these, and was chosen on "fashion"
    "cifar": ("cifar", "eps", 8000, 1),
    "fashion-flow": ("fashion", "flow", 4000, 1),
    # bench paper: a tiny one, trained in minutes
    "shapes": ("shapes", "eps", 3000, 0),
}
SIZE = 16
CLASSES = 10
NO_CLASS = CLASSES  # the label of the unconditional branch


def _fourier(t: torch.Tensor, width: int) -> torch.Tensor:
    angles = t[:, None] * torch.exp(torch.linspace(0, math.log(1000), width // 2))
    return torch.cat([angles.sin(), angles.cos()], dim=1)


class Block(nn.Module):
    def __init__(self, c_in, c_out, c_emb):
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(8, c_in), nn.Conv2d(c_in, c_out, 3, padding=1)
        self.norm2, self.conv2 = nn.GroupNorm(8, c_out), nn.Conv2d(c_out, c_out, 3, padding=1)
        self.emb = nn.Linear(c_emb, c_out)
        self.skip = nn.Conv2d(c_in, c_out, 1) if c_in != c_out else nn.Identity()

    def forward(self, x, emb):
        h = self.conv1(F.silu(self.norm1(x))) + self.emb(emb)[:, :, None, None]
        return self.skip(x) + self.conv2(F.silu(self.norm2(h)))


class UNet(nn.Module):
    """Three levels, one block each; the last layer is a 3x3 convolution with padding 1."""

    def __init__(self, channels, width=48):
        super().__init__()
        w1, w2, w3 = width, 2 * width, 2 * width
        self.emb = nn.Sequential(nn.Linear(64, 128), nn.SiLU(), nn.Linear(128, 128))
        self.label = nn.Embedding(CLASSES + 1, 128)
        self.stem = nn.Conv2d(channels, w1, 3, padding=1)
        self.down = nn.ModuleList([Block(w1, w1, 128), Block(w1, w2, 128), Block(w2, w3, 128)])
        self.mid = Block(w3, w3, 128)
        self.attention = nn.MultiheadAttention(w3, 4, batch_first=True)
        self.up = nn.ModuleList([Block(2 * w3, w2, 128), Block(2 * w2, w1, 128),
                                 Block(2 * w1, w1, 128)])
        self.norm = nn.GroupNorm(8, w1)
        self.last = nn.Conv2d(w1, channels, 3, padding=1)

    def features(self, x, t, label):
        emb = F.silu(self.emb(_fourier(t, 64)) + self.label(label))
        x, skips = self.stem(x), []
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


class DiT(nn.Module):
    """A small transformer on 2x2 patches; the last layer is linear over tokens."""

    def __init__(self, channels, width=96, depth=5):
        super().__init__()
        self.channels = channels
        self.emb = nn.Sequential(nn.Linear(64, width), nn.SiLU(), nn.Linear(width, width))
        self.label = nn.Embedding(CLASSES + 1, width)
        self.stem = nn.Conv2d(channels, width, 2, stride=2)
        self.position = nn.Parameter(0.02 * torch.randn(1, (SIZE // 2) ** 2, width))
        self.blocks = nn.ModuleList([
            nn.ModuleDict({
                "ada": nn.Linear(width, 4 * width),
                "attention": nn.MultiheadAttention(width, 4, batch_first=True),
                "mlp": nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(),
                                     nn.Linear(4 * width, width)),
            }) for _ in range(depth)
        ])
        self.ada = nn.Linear(width, 2 * width)
        self.last = nn.Linear(width, 4 * channels)

    def features(self, x, t, label):
        emb = F.silu(self.emb(_fourier(t, 64)) + self.label(label))[:, None]
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
        """B x 64 x (p q c) -> B x C x 16 x 16."""
        b, side = len(tokens), SIZE // 2
        grid = tokens.reshape(b, side, side, 2, 2, -1)
        return grid.permute(0, 5, 1, 3, 2, 4).reshape(b, -1, SIZE, SIZE)


def build(name: str) -> nn.Module:
    data, kind, _, seed = NETS[name]
    torch.manual_seed(seed)
    channels = 1 if data in ("fashion", "shapes") else 3
    width = 16 if data == "shapes" else 48
    net = UNet(channels, width) if kind == "eps" else DiT(channels)
    net.kind = kind
    net.channels = channels
    return net


def output(net: nn.Module, phi: torch.Tensor) -> torch.Tensor:
    """The last layer on its features, on the image grid."""
    return net.last(phi) if isinstance(net, UNet) else net.to_grid(net.last(phi))


def inputs(net: nn.Module, x: torch.Tensor, sigma: torch.Tensor):
    """What the network sees of x at noise levels sigma (B), scaled as the host does."""
    if net.kind == "eps":
        return x / (1 + sigma**2).sqrt()[:, None, None, None], sigma.log() / 4
    return x, sigma


def eps_sigmas() -> torch.Tensor:
    """Stable Diffusion's 1000 noise levels: what the host gives an eps model."""
    betas = torch.linspace(0.00085**0.5, 0.012**0.5, 1000, dtype=torch.float64) ** 2
    bar = torch.cumprod(1 - betas, 0)
    return ((1 - bar) / bar).sqrt().float()


def train(name: str, threads: int = 1) -> None:
    torch.set_num_threads(threads)
    data, kind, iterations, seed = NETS[name]
    x_all, y_all = images.load(data, SIZE)
    keep = len(x_all) * 9 // 10  # the rest is for measuring
    net = build(name)
    ema = {k: v.clone() for k, v in net.state_dict().items()}
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, iterations, pct_start=0.05)
    generator = torch.Generator().manual_seed(1 + seed)
    levels, started, running = eps_sigmas(), time.time(), 1.0
    for step in range(iterations):
        pick = torch.randint(keep, (48,), generator=generator)
        x0, label = x_all[pick], y_all[pick].clone()
        label[torch.rand(48, generator=generator) < 0.15] = NO_CLASS
        noise = torch.randn(x0.shape, generator=generator)
        if kind == "eps":
            sigma = levels[torch.randint(1000, (48,), generator=generator)]
            x, target = x0 + sigma[:, None, None, None] * noise, noise
        else:
            sigma = torch.sigmoid(torch.randn(48, generator=generator))
            x, target = torch.lerp(x0, noise, sigma[:, None, None, None]), noise - x0
        x_in, t = inputs(net, x, sigma)
        loss = F.mse_loss(output(net, net.features(x_in, t, label)), target)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        decay = min(0.999, (1 + step) / (10 + step))
        for k, v in net.state_dict().items():
            ema[k].lerp_(v, 1 - decay)
        running += 0.01 * (loss.item() - running)
        if step % 250 == 249:
            print(f"{name} {step + 1}/{iterations} loss {running:.4f} "
                  f"{(time.time() - started) / (step + 1):.3f} s/it", flush=True)
    target = weights(name)
    target.parent.mkdir(parents=True, exist_ok=True)
    save_file(ema, target.with_suffix(".part"), metadata={"loss": f"{running:.5f}"})
    target.with_suffix(".part").replace(target)


def weights(name: str) -> Path:
    return cache_folder() / "nets" / f"{name}-{NETS[name][2]}.safetensors"


def load(name: str) -> nn.Module:
    """The trained net, trained now if the cache has none."""
    if not weights(name).exists():
        wait = "minutes" if name == "shapes" else "half an hour or more"
        print(f"training {name}: {wait} on one core", flush=True)
        train(name)
    net = build(name)
    net.load_state_dict(load_file(weights(name)))
    return net.eval().requires_grad_(False)


if __name__ == "__main__":
    train(sys.argv[1])
