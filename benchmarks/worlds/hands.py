"""Hands of always five fingers: 32 x 32, grey, in [-1, 1].

A hand is a palm, a wrist and fingers, each a capsule (a line with a radius) in polar places around
the palm's centre; a soft threshold of the distance to their union makes the picture. The nearest
hand to any picture is found by fitting those numbers to it.
"""

import functools
import math

import torch

from benchmarks.worlds.rule import Judged, judged

SIZE = 32
FINGERS = 5
SHARPNESS = 3.0  # of the edge, a pixel
# degrees from straight up, thumb first, for each count
ANGLES = {4: (-76, -30, 2, 34), 5: (-78, -36, -11, 14, 39), 6: (-80, -44, -23, -2, 19, 40)}
# lowest and highest of what all fingers share
PALM = {"x": (15.0, 17.0), "y": (18.0, 20.0), "radius": (4.2, 4.8), "turn": (-15.0, 15.0),
        "spread": (0.98, 1.1), "wrist": (2.6, 3.2), "tone": (0.2, 1.0)}
BANK, STARTS, STEPS = 20000, 3, 120
SETTLED = 0.3  # a fit this near (in fully wrong pixels) is not tried from another start
_Y, _X = torch.meshgrid(torch.arange(SIZE) + 0.5, torch.arange(SIZE) + 0.5, indexing="ij")


def bounds(count: int = FINGERS) -> tuple[torch.Tensor, torch.Tensor]:
    """Lowest and highest of a hand's numbers: PALM's, then jitter, length and radius a finger."""
    ranges = list(PALM.values())
    for finger in range(count):
        outer = 0.6 * abs(finger - (count + 1) / 2)  # the middle finger is the longest
        ranges += [(-2.0, 2.0)]
        ranges += [(11.0 - outer, 13.0 - outer), (1.0, 1.2)] if finger else \
            [(7.5, 9.0), (1.25, 1.5)]
    return tuple(torch.tensor(ranges).T)


def numbers(n: int, generator: torch.Generator, count: int = FINGERS) -> torch.Tensor:
    """n hands as numbers within the bounds; the last is -1 or 1, left or right."""
    low, high = bounds(count)
    side = torch.randint(0, 2, (n, 1), generator=generator) * 2.0 - 1
    return torch.cat([low + (high - low) * torch.rand(n, len(low), generator=generator), side], 1)


def rendered(hands: torch.Tensor, count: int = FINGERS) -> torch.Tensor:
    """Numbers -> B x 1 x SIZE x SIZE."""
    x, y, palm, turn, spread, wrist, tone = hands[:, :7].T
    side = hands[:, -1:]
    jitter, length, radius = hands[:, 7:-1].unflatten(1, (count, 3)).unbind(2)
    base = hands.new_tensor(ANGLES[count])
    angle = torch.cat([180 + 0.3 * turn[:, None], base * spread[:, None] + turn[:, None] + jitter],
                      1) * (math.pi / 180)
    length = torch.cat([torch.full_like(tone, 14.0)[:, None], length], 1)
    radius = torch.cat([wrist[:, None], radius], 1)
    along_x, along_y = (part[..., None, None] for part in (side * angle.sin(), -angle.cos()))
    off_x, off_y = (_X - x[:, None, None])[:, None], (_Y - y[:, None, None])[:, None]
    reach = off_x * along_x + off_y * along_y  # of the point along each capsule's line
    # squared distance to the line's nearest point, whose place is held within the line
    held = reach.clamp(min=0).minimum(length[..., None, None])
    centre = off_x.square() + off_y.square()
    apart = (centre + held * (held - 2 * reach) + 1e-6).clamp(min=1e-6).sqrt()
    surface = (apart - radius[..., None, None]).amin(1)
    surface = surface.minimum((centre[:, 0] + 1e-6).sqrt() - palm[:, None, None])
    ink = torch.sigmoid(-SHARPNESS * surface)
    return (ink * (tone + 1)[:, None, None] - 1)[:, None]


def draw(n: int, generator: torch.Generator) -> torch.Tensor:
    """n hands as they should be, n x 1 x SIZE x SIZE."""
    return rendered(numbers(n, generator))


def spoilt(n: int, generator: torch.Generator) -> torch.Tensor:
    """n hands of four and of six fingers in turn."""
    four, six = (rendered(numbers((n + 1) // 2, generator, count), count) for count in (4, 6))
    return torch.stack([four, six], 1).flatten(0, 1)[:n]


def contrast(hands: torch.Tensor) -> torch.Tensor:
    """Ink less background of each hand, B values."""
    return hands[:, 6] + 1


@functools.cache
def _bank() -> tuple[torch.Tensor, torch.Tensor]:
    """Hands of tone 1, and how they look."""
    hands = numbers(BANK, torch.Generator().manual_seed(9))
    hands[:, 6] = 1
    return hands, torch.cat([rendered(part).flatten(1) for part in hands.split(1000)])


def _fitted(pictures: torch.Tensor, hands: torch.Tensor) -> torch.Tensor:
    """The numbers moved to where they draw the pictures best: Adam in units of their ranges."""
    low, high = bounds()
    span, fixed = high - low, hands[:, -1:]
    place = hands[:, :-1].clone()
    mean = square = torch.zeros_like(place)
    for step in range(STEPS):
        with torch.enable_grad():
            moving = place.detach().requires_grad_(True)
            error = (rendered(torch.cat([moving, fixed], 1)) - pictures).square().sum()
            slope = torch.autograd.grad(error, moving)[0] * span
        mean, square = 0.9 * mean + 0.1 * slope, 0.99 * square + 0.01 * slope.square()
        rate = 0.04 * (1 - step / STEPS)
        move = mean / (1 - 0.9 ** (step + 1)) / ((square / (1 - 0.99 ** (step + 1))).sqrt() + 1e-6)
        place = (place - rate * span * move).maximum(low).minimum(high)
    return torch.cat([place, fixed], 1)


@torch.no_grad()
def nearest(pictures: torch.Tensor, at_once: int = 250) -> Judged:
    """The nearest hand to each picture and what is wrong beside it."""
    if len(pictures) > at_once:
        parts = [nearest(part, at_once) for part in pictures.split(at_once)]
        return Judged(*(torch.cat(values) for values in zip(*parts)))
    bank, flat = _bank()
    tone = pictures.flatten(1).quantile(0.97, 1).clamp(*PALM["tone"])
    apart = torch.cdist((pictures.flatten(1) + 1) * (2 / (tone + 1))[:, None] - 1, flat)
    # one start from each side at least: a fit cannot turn a left hand into a right one
    left = apart.masked_fill(bank[:, -1] > 0, torch.inf).argmin(1, keepdim=True)
    right = apart.masked_fill(bank[:, -1] < 0, torch.inf).argmin(1, keepdim=True)
    near = torch.cat([apart.topk(STARTS - 1, largest=False).indices, left, right], 1)
    best = bank[near[:, 0]]  # a copy, as all that is indexed by numbers
    found = torch.full((len(pictures),), torch.inf)
    for start in range(near.shape[1]):
        open_ = (found > SETTLED).nonzero().flatten()
        if start:  # the same start twice tells nothing new
            again = (near[open_, start:start + 1] == near[open_, :start]).any(1)
            open_ = open_[~again]
        if not len(open_):
            continue
        first = bank[near[open_, start]]
        first[:, 6] = tone[open_]
        hands = _fitted(pictures[open_], first)
        error = (rendered(hands) - pictures[open_]).square().flatten(1).sum(1)
        error = error / contrast(hands).square()
        better = error < found[open_]
        best[open_[better]], found[open_[better]] = hands[better], error[better]
    return judged(pictures, rendered(best), contrast(best))
