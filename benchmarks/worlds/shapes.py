"""Simple shapes (Aithal et al., arXiv 2406.09358): a triangle in the left third, a square in the
middle, a pentagon in the right, each there with p = 1/2 but never none; 32 x 32, in [-1, 1].

Each has any height, a little sideways jitter and a little choice of size. Two in one column, a
shape in another's column and a broken one are wrong.
"""

import functools
import math

import torch

from benchmarks.worlds.rule import Judged, judged

SIZE = 32
CORNERS = (3, 4, 5)
# circumscribed radius for about the same area, times the size
RADII = (5.2, 4.6, 4.4)
SIZES = (0.92, 1.08)
CENTERS = (5.5, 16.0, 26.5)
JITTER = 0.4
HEIGHTS = (6.0, 26.0)
SHARPNESS = 3.0
TONE = 2.0  # ink less background
STEPS = 60
_Y, _X = torch.meshgrid(torch.arange(SIZE) + 0.5, torch.arange(SIZE) + 0.5, indexing="ij")


def bounds(column: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Lowest and highest of a shape's x, y and size."""
    middle = CENTERS[column]
    return tuple(torch.tensor([(middle - JITTER, middle + JITTER), HEIGHTS, SIZES]).T)


def numbers(n: int, column: int, generator: torch.Generator) -> torch.Tensor:
    low, high = bounds(column)
    return low + (high - low) * torch.rand(n, 3, generator=generator)


def ink(shapes: torch.Tensor, kind: int) -> torch.Tensor:
    """Regular polygons of CORNERS[kind] from x, y and size, a corner up (a square lies flat):
    B x SIZE x SIZE in [0, 1]."""
    corners = CORNERS[kind]
    x, y, size = (part[:, None, None] for part in shapes.T)
    flat = RADII[kind] * size * math.cos(math.pi / corners)  # from the center to a side
    outside = None
    for side in range(corners):
        # sides face halfway between two corners
        angle = 2 * math.pi * (side + (0.5 if corners != 4 else 0.0)) / corners
        apart = (_X - x) * math.sin(angle) - (_Y - y) * math.cos(angle) - flat
        outside = apart if outside is None else outside.maximum(apart)
    return torch.sigmoid(-SHARPNESS * outside)


def combined(inks: torch.Tensor) -> torch.Tensor:
    """B x parts x SIZE x SIZE of ink -> B x 1 x SIZE x SIZE in [-1, 1]."""
    return TONE * inks.amax(1, keepdim=True) - 1


def draw(n: int, generator: torch.Generator) -> torch.Tensor:
    """n pictures as they should be, n x 1 x SIZE x SIZE."""
    which = torch.randint(1, 8, (n,), generator=generator)  # bits: which of the three are there
    inks = [ink(numbers(n, column, generator), column) * (which >> column & 1)[:, None, None]
            for column in range(3)]
    return combined(torch.stack(inks, 1))


def spoilt(n: int, generator: torch.Generator) -> torch.Tensor:
    """n right pictures with one shape too many, in turn: its column's own, far from the one that
    is there, or another kind in an empty column. Or with half of a shape gone."""
    found = []
    while len(found) < n:
        which = torch.randint(1, 8, (), generator=generator)
        places = [numbers(1, column, generator) for column in range(3)]
        inks = [ink(places[column], column)[0] for column in range(3) if which >> column & 1]
        there = [column for column in range(3) if which >> column & 1]
        pick = there[int(torch.randint(len(there), (), generator=generator))]
        way = len(found) % 3
        if way == 0:  # twice
            second = numbers(1, pick, generator)
            if (second[0, 1] - places[pick][0, 1]).abs() < 10:
                continue
            inks.append(ink(second, pick)[0])
        elif way == 1:  # in another's column, where there is none
            empty = [column for column in range(3) if column not in there]
            if not empty:
                continue
            # at this size a square and a pentagon are two pixels apart, a triangle is far from both
            kind = 0 if empty[0] else 1 + len(found) % 2
            inks.append(ink(numbers(1, empty[0], generator), kind)[0])
        else:  # broken: its right half is gone
            gone = torch.sigmoid(-SHARPNESS * (_X - CENTERS[pick]))
            inks[there.index(pick)] = inks[there.index(pick)] * gone
        found.append(combined(torch.stack(inks)[None])[0])
    return torch.stack(found)


@functools.cache
def _bank(column: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Shapes on a grid of places and sizes, and their ink within the column."""
    low, high = bounds(column)
    grid = torch.cartesian_prod(torch.linspace(float(low[0]), float(high[0]), 3),
                                torch.arange(HEIGHTS[0], HEIGHTS[1] + 0.1, 0.5),
                                torch.linspace(*SIZES, 3))
    return grid, ink(grid, column)[:, :, _strip(column)].flatten(1)


def _strip(column: int) -> slice:
    """The pixels of a column; shapes do not reach beyond."""
    return (slice(0, 11), slice(11, 21), slice(21, SIZE))[column]


def _fitted(target: torch.Tensor, shapes: torch.Tensor, column: int) -> torch.Tensor:
    """Numbers moved to where they draw the target (B x SIZE x SIZE, ink) best."""
    low, high = bounds(column)
    span, place = high - low, shapes.clone()
    span[1] = 4.0  # the place is nearly known, so the height moves in small steps
    mean = square = torch.zeros_like(place)
    for step in range(STEPS):
        with torch.enable_grad():
            moving = place.detach().requires_grad_(True)
            error = (ink(moving, column) - target)[:, :, _strip(column)].square().sum()
            slope = torch.autograd.grad(error, moving)[0] * span
        mean, square = 0.9 * mean + 0.1 * slope, 0.99 * square + 0.01 * slope.square()
        rate = 0.05 * (1 - step / STEPS)
        move = mean / (1 - 0.9 ** (step + 1)) / ((square / (1 - 0.99 ** (step + 1))).sqrt() + 1e-6)
        place = (place - rate * span * move).maximum(low).minimum(high)
    return place


@torch.no_grad()
def nearest(pictures: torch.Tensor) -> Judged:
    """The nearest right picture to each: the nearest shape or none, column by column."""
    target = (pictures[:, 0] + 1) / TONE
    drawn, costs = [], []
    for column in range(3):
        bank, flat = _bank(column)
        strip = target[:, :, _strip(column)]
        near = torch.cdist(strip.flatten(1), flat).argmin(1)
        shape = ink(_fitted(target, bank[near], column), column)
        with_it = (shape[:, :, _strip(column)] - strip).square().flatten(1).sum(1)
        drawn.append(shape)
        costs.append(with_it - strip.square().flatten(1).sum(1))  # beside leaving it out
    costs = torch.stack(costs, 1)
    there = costs < 0
    there |= ~there.any(1, keepdim=True) & (costs == costs.amin(1, keepdim=True))  # never none
    nearest = combined(torch.stack(drawn, 1) * there[..., None, None])
    return judged(pictures, nearest, torch.full((len(pictures),), TONE))
