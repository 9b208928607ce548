"""What the demo model learns to draw, by our own code: hands, dice and smileys in color.

Each is a world: a program draws it from a few numbers within ranges, so that a picture is right if
some such numbers draw it, and wrong where the nearest such drawing differs (demo_rule.py). A hand
has five fingers, a die one to six pips in their places, a smiley two eyes and a mouth. What cannot
be a number between two others (a left hand or a right one) is a variant.

Shapes are signed distances in pixels, below 0 inside, drawn one over the other with soft edges.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch

SIZE = 64
EDGE = 1.6  # how steep an edge is, a pixel
OUTLINE = 1.4  # pixels
INK = (0.16, 0.13, 0.2)
_Y, _X = torch.meshgrid(torch.arange(SIZE) + 0.5, torch.arange(SIZE) + 0.5, indexing="ij")
RADIANS = math.pi / 180

Range = tuple[float, float]


class World(NamedTuple):
    ranges: dict[str, Range]  # of the numbers, by name
    variants: int
    paint: Callable  # (numbers by name, each B x 1 x 1, variant B) -> B x 3 x SIZE x SIZE in [0, 1]
    rule: str  # what a right one has, in words
    colors: tuple[str, ...]  # those of the numbers that place a color


# Shapes: distances B x SIZE x SIZE; what is given to them is B x 1 x 1

def disc(x, y, radius):
    return ((_X - x).square() + (_Y - y).square() + 1e-6).sqrt() - radius


def capsule(x, y, angle, start, end, radius):
    """A line with round ends, from `start` to `end` pixels away from a point; degrees from up."""
    along_x, along_y = (angle * RADIANS).sin(), -(angle * RADIANS).cos()
    off_x, off_y = _X - x, _Y - y
    held = (off_x * along_x + off_y * along_y).maximum(start).minimum(end)
    return ((off_x - held * along_x).square() + (off_y - held * along_y).square()
            + 1e-6).sqrt() - radius


# Colors: B x 3 x 1 x 1 or B x 3 x SIZE x SIZE

def blend(stops, place):
    """A color between those of `stops`, place B x 1 x 1 from 0 to 1."""
    stops = torch.tensor(stops)
    at = place[:, None] * (len(stops) - 1)
    weights = (1 - (at - torch.arange(len(stops))[None, :, None, None]).abs()).clamp(min=0)
    return torch.einsum("bshw,sc->bchw", weights, stops)


def inside(distance):
    return torch.sigmoid(-2 * EDGE * distance)[:, None]


def laid(canvas, distance, color):
    """A shape of one color over what is there."""
    return torch.lerp(canvas, color.expand_as(canvas), inside(distance).expand_as(canvas))


def outlined(canvas, distance, color, line):
    """A shape with a line around it, a little darker towards its edge and lighter to the top left,
    which makes it round."""
    canvas = laid(canvas, distance - OUTLINE / 2, line)
    light = 0.10 * ((SIZE - _X - _Y) / SIZE)[None, None]
    depth = 0.16 * torch.exp((distance + OUTLINE / 2).clamp(max=0) / 3.5)[:, None]
    return laid(canvas, distance + OUTLINE / 2, color * (1 + light - depth))


def ink(like):
    return torch.tensor(INK)[None, :, None, None].to(like)


PAPERS = [(0.80, 0.90, 0.97), (0.97, 0.93, 0.80), (0.83, 0.94, 0.84), (0.96, 0.86, 0.88)]
SKINS = [(1.0, 0.85, 0.70), (0.94, 0.72, 0.53), (0.72, 0.49, 0.33), (0.47, 0.31, 0.22)]
SLEEVES = [(0.85, 0.30, 0.27), (0.28, 0.48, 0.78), (0.30, 0.62, 0.45)]
BODIES = [(0.80, 0.24, 0.24), (0.22, 0.42, 0.74), (0.20, 0.52, 0.40)]
YELLOWS = [(1.0, 0.85, 0.28), (1.0, 0.74, 0.25)]


def paper(of):
    return blend(PAPERS, of["paper"]).expand(-1, -1, SIZE, SIZE)


FINGERS = (-80, -40, -13, 14, 41)  # degrees from up, thumb first
_LENGTHS = ((18.5, 20.0), (26.5, 28.5), (29.0, 31.0), (28.0, 30.0), (23.5, 25.5))
SLEEVE = 23.0  # pixels below the palm's middle
HAND = {"paper": (0, 1), "skin": (0, 1), "sleeve": (0, 1), "x": (30.5, 33.5), "y": (39.0, 41.0),
        "palm": (10.8, 11.6), "turn": (-9.0, 9.0), "spread": (0.98, 1.03), "wrist": (7.0, 7.8)}
for _finger, _span in enumerate(_LENGTHS):
    HAND |= {f"jitter{_finger}": (-1.5, 1.5), f"length{_finger}": _span,
             f"radius{_finger}": (3.5, 3.8) if _finger == 0 else (3.1, 3.4)}


def paint_hand(of, variant):
    """Palm, wrist and fingers as one shape, in a sleeve. Variants: left and right."""
    side = (variant * 2.0 - 1)[:, None, None]
    zero = torch.zeros_like(side)
    skin = disc(of["x"], of["y"], of["palm"])
    down = side * (180 + 0.3 * of["turn"])
    skin = skin.minimum(capsule(of["x"], of["y"], down, zero, zero + 40, of["wrist"]))
    for finger, base in enumerate(FINGERS):
        angle = side * (base * of["spread"] + of["turn"] + of[f"jitter{finger}"])
        skin = skin.minimum(capsule(of["x"], of["y"], angle, zero, of[f"length{finger}"],
                                    of[f"radius{finger}"]))
    canvas = outlined(paper(of), skin, blend(SKINS, of["skin"]), ink(side))
    sleeve = capsule(of["x"], of["y"], down, zero + SLEEVE, zero + 60, of["wrist"] + 2.6)
    return outlined(canvas, sleeve, blend(SLEEVES, of["sleeve"]), ink(side))


DIE = {"paper": (0, 1), "body": (0, 1), "x": (31.0, 33.0), "y": (31.0, 33.0), "half": (19.0, 21.5),
       "turn": (-14.0, 14.0)}
# Left top, middle, bottom; the middle; right top, middle, bottom: those of one to six.
_PLACES = ((-1, -1), (-1, 0), (-1, 1), (0, 0), (1, -1), (1, 0), (1, 1))
_PIPS = torch.tensor([[0, 0, 0, 1, 0, 0, 0], [1, 0, 0, 0, 0, 0, 1], [1, 0, 0, 1, 0, 0, 1],
                      [1, 0, 1, 0, 1, 0, 1], [1, 0, 1, 1, 1, 0, 1], [1, 1, 1, 0, 1, 1, 1]])


def paint_die(of, variant):
    """A face with round corners. Variants: one pip to six."""
    cos, sin = (of["turn"] * RADIANS).cos(), (of["turn"] * RADIANS).sin()
    right, down = _X - of["x"], _Y - of["y"]
    u, v = right * cos + down * sin, down * cos - right * sin  # as the face has it
    corner, half = 6.0, of["half"]
    over_u, over_v = u.abs() - half + corner, v.abs() - half + corner
    face = (over_u.clamp(min=0).square() + over_v.clamp(min=0).square() + 1e-6).sqrt() \
        + over_u.maximum(over_v).clamp(max=0) - corner
    canvas = outlined(paper(of), face, blend(BODIES, of["body"]), ink(half))
    shown = _PIPS[variant].bool()
    for place, (across, along) in enumerate(_PLACES):
        pip = ((u - 0.55 * across * half).square() + (v - 0.55 * along * half).square()
               + 1e-6).sqrt() - 3.7
        pip = torch.where(shown[:, place, None, None], pip, torch.full_like(pip, SIZE))
        canvas = laid(canvas, pip, blend([(0.99, 0.98, 0.94)], torch.zeros_like(half)))
    return canvas


SMILEY = {"paper": (0, 1), "yellow": (0, 1), "x": (31.0, 33.0), "y": (31.0, 33.0),
          "radius": (23.5, 26.5), "turn": (-10.0, 10.0), "apart": (0.33, 0.40),
          "eye": (0.13, 0.16), "brow": (0.18, 0.28), "smile": (-0.22, 0.34), "width": (0.42, 0.54)}


def paint_smiley(of, variant):
    """Two eyes and a mouth from sad to glad."""
    x, y, radius = of["x"], of["y"], of["radius"]
    cos, sin = (of["turn"] * RADIANS).cos(), (of["turn"] * RADIANS).sin()
    dark = ink(x)
    canvas = outlined(paper(of), disc(x, y, radius), blend(YELLOWS, of["yellow"]), dark)
    u = ((_X - x) * cos + (_Y - y) * sin) / radius  # right and down, as the face has it
    v = ((_Y - y) * cos - (_X - x) * sin) / radius
    for side in (-1, 1):
        eye = (((u - side * of["apart"]) / of["eye"]).square()
               + ((v + of["brow"]) / (1.5 * of["eye"])).square() + 1e-6).sqrt() - 1
        canvas = laid(canvas, eye * of["eye"] * radius, dark)
    held = u.maximum(-of["width"]).minimum(of["width"])
    curve = 0.36 + of["smile"] * (0.35 - (held / of["width"]).square())
    mouth = ((u - held).square() + (v - curve).square() + 1e-6).sqrt() * radius
    slope = 2 * of["smile"] * held / of["width"].square()  # a steep curve is nearer than it is high
    mouth = torch.where((u - held).abs() > 0, mouth, mouth / (1 + slope.square()).sqrt())
    return laid(canvas, mouth - 1.7, dark)


WORLDS = {
    "hand": World(HAND, 2, paint_hand, "five whole fingers", ("paper", "skin", "sleeve")),
    "die": World(DIE, 6, paint_die, "one to six whole pips, in their places", ("paper", "body")),
    "smiley": World(SMILEY, 1, paint_smiley, "two eyes and a mouth", ("paper", "yellow")),
}


def bounds(world: World) -> tuple[torch.Tensor, torch.Tensor]:
    return tuple(torch.tensor(list(world.ranges.values()), dtype=torch.float32).T)


def numbers(world: World, n: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """n drawings as numbers within the ranges, and their variants."""
    low, high = bounds(world)
    values = low + (high - low) * torch.rand(n, len(low), generator=generator)
    return values, torch.randint(0, world.variants, (n,), generator=generator)


def painted(world: World, values: torch.Tensor, variant: torch.Tensor) -> torch.Tensor:
    """B x 3 x SIZE x SIZE in [-1, 1]."""
    of = dict(zip(world.ranges, values[..., None, None].unbind(1)))
    return world.paint(of, variant).clamp(0, 1) * 2 - 1


def draw(name: str, n: int, generator: torch.Generator) -> torch.Tensor:
    """n drawings as they should be."""
    return painted(WORLDS[name], *numbers(WORLDS[name], n, generator))
