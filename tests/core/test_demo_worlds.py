"""What the demo model draws, and the rule that says which of its pictures are wrong."""

import pytest
import torch

from tools import demo_worlds
from tools.demo_rule import LIMIT, judged
from tools.demo_worlds import WORLDS, capsule, disc, draw, ink, laid, numbers, outlined, painted

COUNT = 12


def spoilt(name: str, count: int) -> torch.Tensor:
    """Drawings with a mistake that anyone sees."""
    world, generator = WORLDS[name], torch.Generator().manual_seed(3)
    values, variant = numbers(world, count, generator)
    of = dict(zip(world.ranges, values[..., None, None].unbind(1)))
    right = painted(world, values, variant) / 2 + 0.5
    dark = ink(values)
    if name == "hand":
        return _fingers(world, values, variant)
    if name == "die":  # a pip where none belongs
        white = torch.tensor([0.99, 0.98, 0.94])[None, :, None, None]
        return laid(right, disc(of["x"], of["y"] - 0.55 * of["half"], 3.7), white) * 2 - 1
    return laid(right, disc(of["x"], of["y"] - 14, 3.0), dark) * 2 - 1  # a third eye


def _fingers(world, values, variant) -> torch.Tensor:
    """Four fingers and six in turn."""
    pictures = []
    for place, angles in enumerate([(-76, -30, 2, 34), (-78, -46, -25, -4, 17, 38)]
                                   * (len(values) // 2)):
        one, side = values[place, :, None, None], float(variant[place]) * 2 - 1
        of = {name: one[number][None] for number, name in enumerate(world.ranges)}
        zero = torch.zeros(1, 1, 1)
        skin = disc(of["x"], of["y"], of["palm"])
        down = side * (180 + 0.3 * of["turn"])
        skin = skin.minimum(capsule(of["x"], of["y"], down, zero, zero + 40, of["wrist"]))
        for number, angle in enumerate(angles):
            like = min(number, 4)
            skin = skin.minimum(capsule(of["x"], of["y"], side * (angle + of["turn"]), zero,
                                        of[f"length{like}"], of[f"radius{like}"]))
        canvas = outlined(demo_worlds.paper(of), skin,
                          demo_worlds.blend(demo_worlds.SKINS, of["skin"]), ink(values))
        sleeve = capsule(of["x"], of["y"], down, zero + demo_worlds.SLEEVE, zero + 60,
                         of["wrist"] + 2.6)
        pictures.append(outlined(canvas, sleeve,
                                 demo_worlds.blend(demo_worlds.SLEEVES, of["sleeve"]), ink(values)))
    return torch.cat(pictures).clamp(0, 1) * 2 - 1


@pytest.mark.parametrize("name", WORLDS)
def test_right_drawings_are_right_and_spoilt_ones_wrong(name):
    right = judged(name, draw(name, COUNT, torch.Generator().manual_seed(4)))
    assert right.worst.max() < LIMIT / 2 and not right.where.any()
    assert judged(name, spoilt(name, COUNT)).wrong.all()


def test_the_rule_says_where():
    picture = draw("smiley", 1, torch.Generator().manual_seed(5))
    spot = picture.clone()
    spot[..., 28:36, 8:16] = -1.0  # a patch of ink on the left cheek
    where = judged("smiley", spot).where[0]
    rows, columns = where.nonzero().T
    assert where[29:35, 9:15].all()
    assert rows.min() > 22 and rows.max() < 42 and columns.min() > 2 and columns.max() < 22


def test_every_drawing_of_a_generator_is_the_same_again():
    for name in WORLDS:
        first, again = (draw(name, 3, torch.Generator().manual_seed(8)) for _ in range(2))
        assert torch.equal(first, again) and first.abs().max() <= 1


def test_pictures_of_another_size_are_refused():
    with pytest.raises(ValueError, match="3 x 64 x 64 were expected, these are \\(3, 32, 32\\)"):
        judged("hand", torch.zeros(1, 3, 32, 32))
