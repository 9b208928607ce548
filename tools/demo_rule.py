"""Is a picture of the demo model right? The nearest drawing of its world is found by fitting that
world's numbers to it; where a spot of the picture differs from it, it is wrong."""

import functools
from typing import NamedTuple

import torch
import torch.nn.functional as F

from tools.demo_worlds import SIZE, WORLDS, World, bounds, numbers, painted

SPOT = 5  # pixels a side
LIMIT = 0.22  # mean difference over a spot, of that between ink and paper
CONTRAST = 1.5  # ink and paper, in [-1, 1]
BANK, STARTS, PLACES, STEPS = 3000, 4, 24, 100
SETTLED = 0.5 * LIMIT  # a fit this near is not tried from another start


class Judged(NamedTuple):
    nearest: torch.Tensor  # B x 3 x H x W, the nearest drawing of the world
    error: torch.Tensor  # B x H x W, |picture - nearest| over the contrast, mean over a spot
    worst: torch.Tensor  # B, the largest error

    @property
    def wrong(self) -> torch.Tensor:
        return self.worst > LIMIT

    @property
    def where(self) -> torch.Tensor:
        """The pixels that are wrong, B x H x W booleans."""
        return self.error > LIMIT


@functools.cache
def _bank(name: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Numbers, variants, and how they look from afar."""
    world = WORLDS[name]
    values, variant = numbers(world, BANK, torch.Generator().manual_seed(9))
    return values, variant, torch.cat([_look(painted(world, *part)) for part in
                                       zip(values.split(500), variant.split(500))])


def _look(pictures: torch.Tensor) -> torch.Tensor:
    return F.avg_pool2d(pictures, 4).flatten(1)


def _starts(name: str, pictures: torch.Tensor) -> torch.Tensor:
    """Places in the bank to begin from, B x STARTS: the nearest, of several variants if there are
    any, which a fit cannot change."""
    _, variant, looks = _bank(name)
    apart = torch.cdist(_look(pictures), looks)
    nearest = torch.stack([apart.masked_fill(variant != one, torch.inf).min(1).values
                           for one in range(WORLDS[name].variants)], 1)
    count = min(WORLDS[name].variants, STARTS)
    starts = []
    for allowed in nearest.topk(count, largest=False).indices.T:
        mine = apart.masked_fill(variant != allowed[:, None], torch.inf)
        starts.append(mine.topk(-(-STARTS // count), largest=False).indices)
    return torch.stack(starts, 2).flatten(1)[:, :STARTS]  # the nearest of each variant first


def _scanned(world: World, pictures: torch.Tensor, values: torch.Tensor,
             variant: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Colors and variants, one after the other, at the best of a few places: a slope does not lead
    from one color over another to a third."""
    low, high = bounds(world)
    for name in world.colors:
        column = list(world.ranges).index(name)
        tried = values[:, None].repeat(1, PLACES, 1)
        tried[..., column] = torch.linspace(float(low[column]), float(high[column]), PLACES)
        values = _best(world, pictures, tried, variant[:, None].expand(-1, PLACES))[0]
    every = torch.arange(world.variants).expand(len(values), -1)
    return _best(world, pictures, values[:, None].expand(-1, world.variants, -1), every)


def _best(world: World, pictures: torch.Tensor, values: torch.Tensor,
          variant: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Of several numbers and variants for each picture (B x N ...), those that draw it best."""
    error = torch.stack([(painted(world, some, kind) - pictures).square().flatten(1).sum(1)
                         for some, kind in zip(values.unbind(1), variant.unbind(1))], 1)
    rows, best = torch.arange(len(values)), error.argmin(1)
    return values[rows, best], variant[rows, best]


def _errors(pictures: torch.Tensor, drawn: torch.Tensor) -> torch.Tensor:
    error = (pictures - drawn).abs().mean(1, keepdim=True) / CONTRAST
    return F.avg_pool2d(error, SPOT, 1, SPOT // 2)[:, 0]


def _fitted(world: World, pictures: torch.Tensor, values: torch.Tensor,
            variant: torch.Tensor) -> torch.Tensor:
    """The numbers moved to where they draw the pictures best: Adam in units of their ranges."""
    low, high = bounds(world)
    span = high - low
    mean = square = torch.zeros_like(values)
    for step in range(STEPS):
        with torch.enable_grad():
            moving = values.detach().requires_grad_(True)
            error = (painted(world, moving, variant) - pictures).square().sum()
            slope = torch.autograd.grad(error, moving)[0] * span
        mean, square = 0.9 * mean + 0.1 * slope, 0.99 * square + 0.01 * slope.square()
        move = mean / (1 - 0.9 ** (step + 1)) / ((square / (1 - 0.99 ** (step + 1))).sqrt() + 1e-6)
        values = (values - 0.04 * (1 - step / STEPS) * span * move).maximum(low).minimum(high)
    return values


@torch.no_grad()
def judged(name: str, pictures: torch.Tensor, at_once: int = 50) -> Judged:
    """Pictures B x 3 x SIZE x SIZE in [-1, 1] by the rule of a world."""
    if tuple(pictures.shape[1:]) != (3, SIZE, SIZE):
        raise ValueError(f"pictures of 3 x {SIZE} x {SIZE} were expected, these are"
                         f" {tuple(pictures.shape[1:])}")
    if len(pictures) > at_once:
        parts = [judged(name, part, at_once) for part in pictures.split(at_once)]
        return Judged(*(torch.cat(values) for values in zip(*parts)))
    world, (bank, variants, _) = WORLDS[name], _bank(name)
    starts = _starts(name, pictures)
    nearest = pictures.clone()
    error = torch.full((len(pictures), SIZE, SIZE), torch.inf)
    for start in starts.T:
        unsettled = (error.flatten(1).amax(1) > SETTLED).nonzero().flatten()
        if not len(unsettled):
            break
        first, given = start[unsettled], pictures[unsettled]
        values, kind = _scanned(world, given, bank[first], variants[first])
        values = _fitted(world, given, values, kind)
        drawn = painted(world, values, kind)
        found = _errors(given, drawn)
        better = found.square().flatten(1).sum(1) < error[unsettled].square().flatten(1).sum(1)
        error[unsettled[better]], nearest[unsettled[better]] = found[better], drawn[better]
    return Judged(nearest, error, error.flatten(1).amax(1))
