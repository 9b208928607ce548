"""Draws with the demo model through the host's stock sampler, and counts what is right.

    BAYESDIFF_HOST=<ComfyUI> python -m tools.check_demo_model FILE --grid PNG [--each N] [--judge]
"""

import argparse
from pathlib import Path

if __name__ == "__main__":
    from tools.in_process import enter_host
    enter_host()

import torch
import torch.nn.functional as F
from PIL import Image

import nodes  # the host's
from tools import demo_rule
from tools.demo_model import Demo, load
from tools.demo_worlds import SIZE
from tools.make_workflows import SAMPLING


def draw(demo: Demo, name: str, count: int, **settings) -> torch.Tensor:
    """Pictures B x H x W x 3 in [0, 1], by the code of the stock KSampler and VAE Decode."""
    empty = nodes.EmptyLatentImage().generate(SIZE, SIZE, count)[0]
    latent = nodes.KSampler().sample(
        model=demo.model, positive=demo.classes[name], negative=demo.no_class,
        latent_image=empty, **{**SAMPLING, **settings})[0]
    return nodes.VAEDecode().decode(demo.vae, latent)[0]


def save_grid(rows: list[torch.Tensor], path: Path, zoom: int = 1) -> None:
    """A row of pictures for each class."""
    cells = [F.pad(row.permute(0, 3, 1, 2), (2, 2, 2, 2), value=1.0) for row in rows]
    sheet = torch.cat([torch.cat(list(row), dim=2) for row in cells], dim=1).permute(1, 2, 0)
    picture = Image.fromarray((sheet.clamp(0, 1) * 255).round().byte().numpy())
    picture.resize((picture.width * zoom, picture.height * zoom), Image.Resampling.NEAREST) \
        .save(path)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--grid", type=Path)
    parser.add_argument("--each", type=int, default=12, help="drawings of each class")
    parser.add_argument("--cfg", type=float, default=SAMPLING["cfg"])
    parser.add_argument("--steps", type=int, default=SAMPLING["steps"])
    parser.add_argument("--sampler", default=SAMPLING["sampler_name"])
    parser.add_argument("--judge", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    demo = load(given.file)
    drawn = {name: draw(demo, name, given.each, cfg=given.cfg, steps=given.steps,
                        sampler_name=given.sampler) for name in demo.classes}
    if given.grid:
        save_grid([row[:16] for row in drawn.values()], given.grid)
    for name, pictures in drawn.items() if given.judge else ():
        wrong = demo_rule.judged(name, pictures.movedim(-1, 1) * 2 - 1).wrong
        print(f"{name:8} {int((~wrong).sum())} of {len(wrong)} right")
