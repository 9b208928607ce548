"""Draws the registry's icon and banner: a picture that comes out of noise, and around what is in it
the ring where a model is unsure.

    python -m tools.make_assets        (with the tests' environment)
"""

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont

from bayesdiff_core.heatmap import colored
from tools.places import REPOSITORY

ASSETS = REPOSITORY / "assets"
FINE = 4  # drawn larger, so that edges are smooth
BACK = (18, 20, 28)
INK = (238, 240, 246)
WORDS = ["BayesDiff", "where is the model unsure?"]


def main() -> None:
    ASSETS.mkdir(exist_ok=True)
    icon = tiles(400, 400, cells=11, center=(0.5, 0.5), radius=0.335, noise=0)
    corners = Image.new("L", icon.size)
    ImageDraw.Draw(corners).rounded_rectangle([0, 0, *icon.size], 72 * FINE, 255)
    icon.putalpha(corners)
    save(icon, "icon.png")

    banner = tiles(1260, 540, cells=15, center=(0.76, 0.5), radius=0.36, noise=1)
    draw = ImageDraw.Draw(banner)
    for text, size, place, ink in zip(WORDS, (116, 38), (276, 340), (INK, (178, 184, 200))):
        draw.text((72 * FINE, place * FINE), text, ink, ImageFont.load_default(size * FINE),
                  anchor="ls" if size > 50 else "lm")
    save(banner, "banner.png")


def tiles(width: int, height: int, cells: int, center, radius: float, noise: float) -> Image.Image:
    """Rounded tiles, brighter and larger where a ring passes; noise rises towards the left."""
    picture = Image.new("RGB", (width * FINE, height * FINE), BACK)
    draw = ImageDraw.Draw(picture)
    side = height / cells
    random = np.random.default_rng(5)
    for row in range(cells):
        for column in range(round(width / side)):
            x, y = (column + 0.5) * side, (row + 0.5) * side
            away = np.hypot(x - center[0] * width, y - center[1] * height) / height
            unsure = np.exp(-((away - radius) / 0.075) ** 2)
            inside = 0.13 + 0.12 * max(1 - away / radius, 0)
            left = noise * np.clip((center[0] - radius * height / width - x / width) / 0.12, 0, 1)
            value = max(unsure * (0.72 + 0.28 * random.random()), inside)
            value = (1 - left) * value + left * 0.16 * random.random()
            half = side * FINE * (0.3 + 0.15 * min(value, 1))
            rgb = colored(torch.tensor(float(min(value, 1)) * 0.86 + 0.03), "inferno")
            fill = tuple(int(255 * part) for part in rgb.tolist())
            box = [x * FINE - half, y * FINE - half, x * FINE + half, y * FINE + half]
            draw.rounded_rectangle(box, half * 0.35, fill)
    return picture


def save(picture: Image.Image, name: str) -> None:
    size = (picture.width // FINE, picture.height // FINE)
    picture.resize(size, Image.Resampling.LANCZOS).quantize(128).save(ASSETS / name, optimize=True)


if __name__ == "__main__":
    main()
