"""A small plot of predictive standard deviation over noise level."""

import math

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont

from ...bayesdiff_core.llla import Level

SIZE = (360, 200)
BOX = (58, 24, 348, 164)  # left, top, right, bottom of the axes
PAPER, INK, GRAY, LINE = "#ffffff", "#202020", "#d8d8d8", "#1f5fa8"


def level_plot(levels: list[Level]) -> torch.Tensor:
    """1 x H x W x 3, as an IMAGE. Noise falls to the right, as in sampling."""
    image = Image.new("RGB", SIZE, PAPER)
    draw = ImageDraw.Draw(image)
    font = ImageFont.load_default()
    left, top, right, bottom = BOX
    sigmas, sds = [level.sigma for level in levels], [level.sd for level in levels]
    along, ticks = _noise_axis(min(sigmas), max(sigmas))
    highest = _round_up(max(sds))

    def point(sigma: float, sd: float) -> tuple[float, float]:
        return left + along(sigma) * (right - left), bottom - sd / highest * (bottom - top)

    draw.text((left, 5), "predictive standard deviation by noise level", INK, font)
    for part in (0.0, 0.5, 1.0):
        _, y = point(sigmas[0], part * highest)
        draw.line([left, y, right, y], GRAY)
        draw.text((left - 6, y), f"{part * highest:.3g}", INK, font, anchor="rm")
    for sigma in ticks:
        x, _ = point(sigma, 0)
        draw.line([x, bottom, x, bottom + 4], INK)
        draw.text((x, bottom + 7), f"{sigma:g}", INK, font, anchor="ma")
    draw.text(((left + right) / 2, SIZE[1] - 14), "sigma", INK, font, anchor="ma")
    draw.rectangle([left, top, right, bottom], outline=INK)
    points = [point(*pair) for pair in zip(sigmas, sds)]
    if len(points) > 1:
        draw.line(points, LINE, width=2)
    for x, y in points:
        draw.ellipse([x - 2, y - 2, x + 2, y + 2], LINE)
    return torch.from_numpy(np.array(image)).float()[None] / 255


def _noise_axis(low: float, high: float):
    """sigma -> 0 (left, much noise) to 1, and the sigmas to number."""
    if high <= 1.2:  # a flow: its time is sigma itself
        return lambda sigma: 1 - sigma, [1, 0.8, 0.6, 0.4, 0.2, 0]
    low, high = math.log10(low) - 0.1, math.log10(high) + 0.1
    ticks = [round(digit * 10.0**power, 6) for power in range(-4, 5) for digit in (1, 3)]
    ticks = [sigma for sigma in ticks if low <= math.log10(sigma) <= high]
    return lambda sigma: (high - math.log10(sigma)) / (high - low), ticks


def _round_up(value: float) -> float:
    """To 1, 2 or 5 times a power of ten; 1 for a zero posterior."""
    if not value > 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(digit * power for digit in (1, 2, 5, 10) if value <= digit * power * (1 + 1e-9))
