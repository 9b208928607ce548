"""A small picture of scores: what was kept, what was rejected, and where the line was."""

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont

from ...bayesdiff_core.filtering import Decision

SIZE = (480, 240)
BOX = (40, 44, 464, 196)  # left, top, right, bottom of the axes
PAPER, INK, GRAY = "#ffffff", "#202020", "#d8d8d8"
KEPT, REJECTED, LINE = "#1f5fa8", "#e08a2c", "#b00020"
BINS = 24
MOST_LABELS = 3  # thresholds with a number; more would cover each other


def histogram(scores: list[float], decision: Decision) -> torch.Tensor:
    """1 x H x W x 3, as an IMAGE."""
    image = Image.new("RGB", SIZE, PAPER)
    draw = ImageDraw.Draw(image)
    font = ImageFont.load_default(12)
    left, top, right, bottom = BOX
    low, high = _ends([*scores, *(group.threshold for group in decision.groups)], scores)
    kept, rejected = (np.histogram([scores[index] for index in side], BINS, (low, high))[0]
                      for side in (decision.kept, decision.rejected))
    highest = max(int((kept + rejected).max()), 1)
    labels = decision.groups[:MOST_LABELS]
    head_room = 4 + 15 * len(labels)  # so that no bar is behind a number

    def across(score: float) -> float:
        return left + (score - low) / (high - low) * (right - left)

    def up(count: float) -> float:
        return bottom - count / highest * (bottom - top - head_room)

    for count in sorted({0, highest // 2, highest}):
        draw.line([left, up(count), right, up(count)], GRAY)
        draw.text((left - 6, up(count)), str(count), INK, font, anchor="rm")
    for place, (low_part, high_part) in enumerate(zip(kept.tolist(), rejected.tolist())):
        start, end = (left + (place + edge) * (right - left) / BINS for edge in (0, 1))
        if low_part:
            draw.rectangle([start + 1, up(low_part), end - 1, bottom], KEPT)
        if high_part:
            draw.rectangle([start + 1, up(low_part + high_part), end - 1, up(low_part)], REJECTED)
    draw.rectangle([left, top, right, bottom], outline=INK)
    for part, anchor in ((0, "la"), (0.5, "ma"), (1, "ra")):
        score = low + part * (high - low)
        draw.text((across(score), bottom + 6), f"{score:.4g}", INK, font, anchor=anchor)
    draw.text(((left + right) / 2, SIZE[1] - 6), "score (higher: less sure)", INK, font,
              anchor="mb")
    _legend(draw, font, left, decision)
    for group in decision.groups:
        x = across(min(max(group.threshold, low), high))
        draw.line([x, top, x, bottom], LINE, width=2)
    for number, group in enumerate(labels):
        x = across(min(max(group.threshold, low), high))
        words = f"{group.label[:24] + ': ' if group.label else ''}{group.threshold:.4g}"
        on_left = x > (left + right) / 2
        draw.text((x - 5 if on_left else x + 5, top + 3 + 15 * number), words, LINE, font,
                  anchor="ra" if on_left else "la")
    return torch.from_numpy(np.array(image)).float()[None] / 255


def _ends(values: list[float], scores: list[float]) -> tuple[float, float]:
    """Of the axis: scores and thresholds, but thresholds far off do not squeeze the scores."""
    low, high = min(scores), max(scores)
    room = (high - low) or abs(high) or 1.0
    low, high = max(min(values), low - room), min(max(values), high + room)
    margin = 0.04 * (high - low) or 0.5 * room
    return low - margin, high + margin


def _legend(draw, font, left: float, decision: Decision) -> None:
    x = left
    for color, words in ((KEPT, f"kept {len(decision.kept)}"),
                          (REJECTED, f"rejected {len(decision.rejected)}")):
        draw.rectangle([x, 12, x + 12, 24], color)
        draw.text((x + 18, 18), words, INK, font, anchor="lm")
        x += 40 + font.getlength(words)
    draw.line([x, 18, x + 14, 18], LINE, width=2)
    draw.text((x + 20, 18), "threshold", INK, font, anchor="lm")
