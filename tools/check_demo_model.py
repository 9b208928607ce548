"""Draws with the demo model through the host's stock sampler, and measures what it draws.

    BAYESDIFF_HOST=<ComfyUI> python -m tools.check_demo_model FILE --grid PNG [--each N] [--cfg 2.5]
    ... --measure also compares the drawings with the emoji, in features of an ImageNet network
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
from tools import demo_data
from tools.demo_model import Demo, load
from tools.judge import Features, frechet, precision


def draw(demo: Demo, name: str, count: int, cfg: float, steps: int = 25, sampler: str = "euler",
         scheduler: str = "normal", seed: int = 0) -> torch.Tensor:
    """Pictures B x H x W x 3 in [0, 1], by the code of the stock KSampler and VAE Decode."""
    empty = nodes.EmptyLatentImage().generate(demo_data.SIZE, demo_data.SIZE, count)[0]
    latent = nodes.common_ksampler(demo.model, seed, steps, cfg, sampler, scheduler,
                                   demo.classes[name], demo.no_class, empty)[0]
    return nodes.VAEDecode().decode(demo.vae, latent)[0]


def save_grid(rows: list[torch.Tensor], path: Path, zoom: int = 2) -> None:
    """A row of pictures for each class."""
    cells = [F.pad(row.permute(0, 3, 1, 2), (1, 1, 1, 1), value=1.0) for row in rows]
    sheet = torch.cat([torch.cat(list(row), dim=2) for row in cells], dim=1).permute(1, 2, 0)
    picture = Image.fromarray((sheet.clamp(0, 1) * 255).round().byte().numpy())
    picture.resize((picture.width * zoom, picture.height * zoom), Image.Resampling.NEAREST) \
        .save(path)


def measure(drawn: dict[str, torch.Tensor]) -> None:
    images, labels, held_out = demo_data.load()
    images = (images.permute(0, 2, 3, 1) + 1) / 2
    features = Features()
    real = torch.cat([features(batch) for batch in images.split(100)])
    made = {name: torch.cat([features(batch) for batch in rows.split(100)])
            for name, rows in drawn.items()}
    seen, unseen = real[~held_out], real[held_out]
    # Classes in the shares that the emoji have them, or the distance would be one of shares.
    shares = torch.bincount(labels).float() / len(labels)
    most = min(len(rows) / share for rows, share in zip(made.values(), shares.tolist()))
    mixed = torch.cat([rows[:max(1, round(most * share))]
                       for rows, share in zip(made.values(), shares.tolist())])
    print(f"{len(mixed)} drawings in the emoji's shares, {len(seen)} seen and {len(unseen)} held "
          "out emoji")
    print(f"FID to held-out {frechet(mixed, unseen):.1f}, to seen {frechet(mixed, seen):.1f}; "
          f"of seen to held-out emoji {frechet(seen, unseen):.1f}")
    everything = torch.cat(list(made.values()))
    print(f"precision (k=3) in held-out {precision(everything, unseen):.3f}, in seen "
          f"{precision(everything, seen):.3f}; of held-out in seen {precision(unseen, seen):.3f}")
    for label, (name, rows) in enumerate(made.items()):
        own = labels == label
        mine, spare = own & ~held_out, own & held_out
        right = labels[~held_out][torch.cdist(rows, seen).argmin(1)] == label
        near = _rms_to_nearest(drawn[name], images[mine]).mean()
        usual = _rms_to_nearest(images[spare], images[mine]).mean()
        print(f"{name:8} precision in its class {precision(rows, real[mine]):.3f}, nearest emoji "
              f"is of the class {right.float().mean():.3f}, RMS distance to the nearest seen "
              f"{near:.3f} (held-out emoji: {usual:.3f})")


def _rms_to_nearest(some: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
    return torch.cdist(some.flatten(1), others.flatten(1)).amin(1) / some[0].numel() ** 0.5


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--grid", type=Path)
    parser.add_argument("--each", type=int, default=12, help="drawings of each class")
    parser.add_argument("--cfg", type=float, default=2.5)
    parser.add_argument("--steps", type=int, default=25)
    parser.add_argument("--sampler", default="euler")
    parser.add_argument("--scheduler", default="normal")
    parser.add_argument("--measure", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    demo = load(given.file)
    drawn = {name: draw(demo, name, given.each, given.cfg, given.steps, given.sampler,
                        given.scheduler)
             for name in demo.classes}
    if given.grid:
        save_grid([row[:16] for row in drawn.values()], given.grid)
    if given.measure:
        measure(drawn)
