"""Of the wrong pictures, how many are right after they were mended, and how much stayed as it was?

A repair draws again inside a mask, as Set Latent Noise Mask and KSampler do it: outside, the known
picture with its noise goes in at every call and comes out. Ways that draw the whole picture again
have a mask of everything. Where there are several tries, the surest by the score that needs no
trajectory is taken, and its calls are counted.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F

from bayesdiff_core import doubt, evidence
from benchmarks.worlds import WORLDS, drawings, nets, rule, sampling

PICTURES = 100
Z = 1.959964
UNCHANGED = 0.05  # of the contrast


class Way(NamedTuple):
    name: str
    mask: str  # joint, free, random, another, all
    # chosen on the nets "-a": with more noise and a larger mask more is mended, less stays
    share: float = 0.05  # of the pixels that the map's highest are
    grown: int = 2  # pixels
    ratio: float = 3.0  # noise to signal that is put on
    tries: int = 1
    default: bool = False


WAYS = [
    Way("mask from the joint map", "joint"),
    Way("mask from late change", "free"),
    Way("random mask of the same size", "random"),
    Way("another picture's mask, mirrored", "another"),
    Way("mask from the joint map, surest of 4", "joint", tries=4, default=True),
    Way("random mask of the same size, surest of 4", "random", tries=4),
    Way("whole picture from the same step", "all"),
    Way("whole picture from the same step, surest of 4", "all", tries=4),
    Way("fresh seed", "all", ratio=float("inf")),
]


def mask_of(values: torch.Tensor, share: float, grown: int) -> torch.Tensor:
    """The highest `share` of a map's pixels, grown by a square: B x 1 x H x W of 0 and 1."""
    flat = values.flatten(1)
    least = flat.topk(round(share * flat.shape[1]), dim=1).values[:, -1]
    chosen = (values >= least[:, None, None]).float()[:, None]
    return F.max_pool2d(chosen, 2 * grown + 1, 1, grown)


def redraw(given: sampling.Scene, picture: torch.Tensor, mask: torch.Tensor, ratio: float,
           seed: int) -> tuple[torch.Tensor, int]:
    """Inside the mask anew from the level of that ratio; and the calls that it took."""
    levels = given.sigmas.tolist()
    wanted = evidence.level(ratio, given.flow) if ratio < float("inf") else levels[0]
    first = min(range(len(levels) - 1), key=lambda step: abs(levels[step] - wanted))
    noise = torch.randn(picture.shape, generator=torch.Generator().manual_seed(seed))
    fresh = ratio == float("inf")

    def noised(sigma: float) -> torch.Tensor:
        kept = 0.0 if fresh else evidence.signal(sigma, given.flow)
        return kept * picture + sigma * noise

    x = noised(levels[first])
    for sigma, to in zip(levels[first:], levels[first + 1:]):
        x = torch.where(mask > 0, x, noised(sigma))
        denoised = torch.where(mask > 0, given.denoise(x, sigma), picture)
        x = torch.lerp(denoised, x, to / sigma)
    return torch.where(mask > 0, x, picture), len(levels) - 1 - first


def unsure(given: sampling.Scene, picture: torch.Tensor) -> torch.Tensor:
    """What can be said of a picture without its trajectory, B values."""
    return doubt.doubt(drawings.after(given, picture), picture).values


@torch.no_grad()
def mended(given: sampling.Scene, way: Way, picture: torch.Tensor, masks: dict) -> tuple:
    """The pictures after a way, and their calls."""
    mask = masks[way.mask]
    best, lowest, calls = None, None, 0
    for number in range(way.tries):
        done, cost = redraw(given, picture, mask, way.ratio, 9000 + number)
        calls += cost
        if way.tries == 1:
            return done, calls
        score = unsure(given, done)
        calls += evidence.FULL.calls
        if best is None:
            best, lowest = done, score
        else:
            better = score < lowest
            best = torch.where(better[:, None, None, None], done, best)
            lowest = torch.where(better, score, lowest)
    return best, calls


def masks_of(data: dict, pick: torch.Tensor, way: Way) -> dict[str, torch.Tensor]:
    maps = [data[f"map {name}"][pick][:, None] for name in doubt.MAP]
    joint = mask_of(doubt.joint_map(maps)[:, 0], way.share, way.grown)
    return {"joint": joint,
            "free": mask_of(doubt.joint_map(maps[:1])[:, 0], way.share, way.grown),
            # the same shape in any place, and another picture's: nearer to what is drawn
            "random": _shifted(joint), "another": joint.roll(1, 0).flip(3),
            "all": torch.ones_like(joint)}


def _shifted(masks: torch.Tensor) -> torch.Tensor:
    """Each mask moved by any offset, around the border."""
    by = torch.randint(nets.SIZE, (len(masks), 2), generator=torch.Generator().manual_seed(0))
    return torch.stack([mask.roll(tuple(shift), (1, 2)) for mask, shift in zip(masks, by.tolist())])


def row(name: str, given: sampling.Scene, data: dict, way: Way, pick: torch.Tensor) -> dict:
    picture, world = data["picture"][pick], WORLDS[nets.NETS[name].world]
    masks = masks_of(data, pick, way)
    done, calls = mended(given, way, picture, masks)
    right = (~world.nearest(done).wrong).float().mean().item()
    low, high = wilson(right, len(pick))
    span = picture.flatten(1).amax(1) - picture.flatten(1).amin(1)
    stayed = (done - picture).abs()[:, 0] <= UNCHANGED * span[:, None, None]
    return {"world": nets.NETS[name].world, "net": name, "role": nets.NETS[name].role,
            "way": way.name, "default": way.default, "pictures": len(pick),
            "right_share": round(right, 4), "right_low": round(low, 4),
            "right_high": round(high, 4),
            "unchanged_outside": round(1 - masks[way.mask].mean().item(), 4),
            "unchanged_pixels": round(stayed.float().mean().item(), 4), "calls": calls,
            "settings": {"top": way.share, "grown": way.grown,
                         "noise_to_signal": way.ratio if way.ratio < float("inf") else None}}


def wilson(share: float, count: int) -> tuple[float, float]:
    """95 % interval of a share."""
    middle = (share + Z**2 / (2 * count)) / (1 + Z**2 / count)
    half = Z / (1 + Z**2 / count) * (share * (1 - share) / count + Z**2 / (4 * count**2)) ** 0.5
    return middle - half, middle + half


def rows(name: str, data: dict, ways: list[Way] = WAYS,
         tell: Callable[[str], None] = lambda text: print(text, flush=True)) -> list[dict]:
    """Of the first wrong pictures of a setting that are not blank."""
    given = sampling.scene(name, "euler")
    wrong = (data["worst"] > rule.LIMIT) & (data["picture"].flatten(1).amax(1) > 0)
    pick = wrong.nonzero()[:PICTURES, 0]
    found = []
    for way in ways:
        found.append(row(name, given, data, way, pick))
        tell(f"{name} {way.name}: {found[-1]['right_share']:.0%} right")
    return found
