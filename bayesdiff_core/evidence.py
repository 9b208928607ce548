"""Evidence that a picture, or a part of it, went wrong: maps and scores that a run leaves behind
for nothing, or that a few more network calls buy.

In the host's frame: x = a x0 + s n with s = sigma and a = 1, or a = 1 - sigma in a flow; D is the
denoised estimate, d = (x - D) / sigma. Tensors are B x C x (T) x H x W; maps keep their shape, so
whatever shows or sums up a variance takes them; scores are B values in float64, higher means less
sure. `relative` frees a map of the latent's scale and of the picture's own contrast.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch.nn import functional

LATE = 0.2  # of the steps
TOP = 0.05  # of the pixels
SMOOTH = 3  # pixels of the latent
REDRAW = (1.2, 0.5, 0.2)  # noise to signal, of the three calls of a redrawing
# the maps of `of_picture`, in the order that they are made
CHECKS = ("renoised 1.2", "pull 1.2", "renoised 2.0", "pull 2.0", "redrawn")
# calls of a look ahead, and of the check of what it sees: of a run of many steps, or of few
AHEAD_OF_MANY, AHEAD_OF_FEW, MANY = (7, 6), (3, 2), 48
AHEAD_LATE = 0.25  # of its estimates
LEAST = 1e-12  # of a flat picture's variance, in the latent's unit
Denoise = Callable[[torch.Tensor, float], torch.Tensor]


class Effort(NamedTuple):
    """Of a check of a finished picture."""

    draws: Mapping[float, int]  # noise to signal -> noises, in pairs of n and -n
    redraws: int

    @property
    def calls(self) -> int:
        return sum(self.draws.values()) + self.redraws * len(REDRAW)


FULL, QUICK = Effort({1.2: 6, 2.0: 6}, 4), Effort({1.2: 6}, 0)
EFFORTS = {"quick": QUICK, "full": FULL}
CHOICES = ("auto", "off", *EFFORTS)


def ahead_calls(steps: int) -> tuple[int, int]:
    return AHEAD_OF_MANY if steps >= MANY else AHEAD_OF_FEW


def effort(check: str, steps: int) -> Effort | None:
    """auto: the most that takes at most half as many calls as the run has steps."""
    if check != "auto":
        return EFFORTS.get(check)
    fitting = [one for one in EFFORTS.values() if 2 * one.calls <= steps]
    return max(fitting, key=lambda one: one.calls, default=None)


def signal(sigma: float, flow: bool) -> float:
    """a: how much of x0 is in x."""
    return 1 - sigma if flow else 1.0


def level(ratio: float, flow: bool) -> float:
    """sigma at a noise-to-signal ratio s / a."""
    return ratio / (1 + ratio) if flow else ratio


def within(ratio: float, flow: bool, reach: tuple[float, float]) -> float:
    """The nearest noise-to-signal ratio whose sigma is within reach."""
    sigma = level(ratio, flow)
    nearest = min(max(sigma, reach[0]), reach[1])
    return ratio if nearest == sigma else nearest / signal(nearest, flow)


def contrast(picture: torch.Tensor) -> torch.Tensor:
    """Variance over all pixels and frames, mean over channels: B values."""
    return picture.double().flatten(2).var(2, unbiased=False).mean(1)


def relative(variance: torch.Tensor, picture: torch.Tensor) -> torch.Tensor:
    """A map of squares over the picture's contrast: the same for a latent ten times as large, and
    for a dark picture and a bright one."""
    by = contrast(picture).clamp(min=LEAST).reshape(-1, *[1] * (variance.ndim - 1))
    return (variance.double() / by).to(variance.dtype)


# Maps that cost no network call


def late_change(denoised: Sequence[torch.Tensor], share: float = LATE) -> torch.Tensor:
    """Trajectory variance (arXiv 2406.09358): Var of D over the last `share` of the steps."""
    last = max(2, round(share * len(denoised)))
    return torch.stack(tuple(denoised)[-last:]).var(0, unbiased=False)


# Maps that cost a few calls


def pairs(noises: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Each noise and its negative: what is odd in the noise cancels in the mean of D, so two pairs
    tell as much as a dozen noises (bench truth)."""
    return [sign * noise for noise in noises for sign in (1, -1)]


def renoised(denoise: Denoise, picture: torch.Tensor, noises: Sequence[torch.Tensor], ratio: float,
             flow: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """What the network makes of a finished picture z0 when noise is put on it again, at the
    noise-to-signal ratio s / a. One call for each noise n_k, which all pictures share. Two maps:

        error  mean_k (D(a z0 + s n_k) - z0)^2
        pull   (mean_k D(a z0 + s n_k) - z0)^2, what all noises agree on

    The literature's factor (a / s)^2 is a constant of the level and left out. No trajectory is
    needed, so any picture can be looked at."""
    sigma = level(ratio, flow)
    apart = torch.stack([denoise(signal(sigma, flow) * picture + sigma * noise, sigma) - picture
                         for noise in noises])
    return apart.square().mean(0), apart.mean(0).square()


def redrawn(denoise: Denoise, picture: torch.Tensor, noises: Sequence[torch.Tensor],
            ratios: Sequence[float] = REDRAW, flow: bool = False) -> torch.Tensor:
    """mean_k (z_k - z0)^2, where z_k is drawn again by Euler steps from z0 with noise n_k at the
    first ratio. A picture that should not be seldom comes back as it was. One call for each noise
    and ratio."""
    levels = [level(ratio, flow) for ratio in ratios]
    total = 0.0
    for noise in noises:
        x = signal(levels[0], flow) * picture + levels[0] * noise
        for sigma, to in zip(levels, [*levels[1:], 0.0]):
            x = torch.lerp(denoise(x, sigma), x, to / sigma)
        total = total + (x - picture).square()
    return total / len(noises)


def of_picture(denoise: Denoise, picture: torch.Tensor, noise: Callable[[int], torch.Tensor],
               flow: bool = False, effort: Effort = FULL,
               reach: tuple[float, float] = (0.0, math.inf)) -> dict[str, torch.Tensor]:
    """The maps that need nothing but a picture, those of CHECKS that the effort makes.
    noise(number) is one that all pictures share; reach: the least and the greatest sigma that the
    network knows."""
    maps = {}
    for ratio, count in effort.draws.items():
        noises = pairs([noise(number) for number in range(count // 2)])
        maps[f"renoised {ratio}"], maps[f"pull {ratio}"] = renoised(
            denoise, picture, noises, within(ratio, flow, reach), flow)
    if effort.redraws:
        noises = pairs([noise(50 + number) for number in range(effort.redraws // 2)])
        maps["redrawn"] = redrawn(denoise, picture, noises,
                                  [within(ratio, flow, reach) for ratio in REDRAW], flow)
    return maps


def look_ahead(denoise: Denoise, x: torch.Tensor, sigmas: torch.Tensor, denoised: torch.Tensor,
               calls: int) -> list[torch.Tensor]:
    """The denoised estimates of a rough run to the end, by Euler steps over a few of the levels
    that are left; x is at the first of `sigmas`, where `denoised` is known. Its last estimate is a
    preview of the picture, and their late change tells part way what that of the whole run will."""
    at = torch.linspace(0, len(sigmas) - 1, min(calls + 1, len(sigmas) - 1) + 1).round().long()
    levels, estimates = sigmas[at].tolist(), [denoised]
    for before, sigma in zip(levels, levels[1:-1]):
        x = torch.lerp(estimates[-1], x, sigma / before)
        estimates.append(denoise(x, sigma))
    return estimates


def ahead(denoise: Denoise, x: torch.Tensor, sigmas: torch.Tensor, denoised: torch.Tensor,
          noise: Callable[[int], torch.Tensor], flow: bool = False,
          reach: tuple[float, float] = (0.0, math.inf),
          calls: tuple[int, int] = AHEAD_OF_MANY) -> tuple[dict, torch.Tensor]:
    """Maps of the picture that a run part way is heading for, by the names of a quick check, and
    that picture. calls: to get there, and to check it."""
    estimates = look_ahead(denoise, x, sigmas, denoised, calls[0])
    maps = of_picture(denoise, estimates[-1], noise, flow, Effort({1.2: calls[1]}, 0), reach)
    return maps | {"late 20": late_change(estimates, AHEAD_LATE)}, estimates[-1]


# From maps to scores


def mean(squares: torch.Tensor) -> torch.Tensor:
    """Over everything: B values."""
    return squares.flatten(1).mean(1, dtype=torch.float64)


def spread(squares: torch.Tensor) -> torch.Tensor:
    """The squared mean of the root: many small changes count more than a few large ones."""
    return squares.double().clamp(min=0).sqrt().flatten(1).mean(1).square()


def smooth(planes: torch.Tensor, side: int = SMOOTH) -> torch.Tensor:
    """Mean over side x side pixels, of those that there are at the border."""
    flat = planes.reshape(-1, 1, *planes.shape[-2:])
    found = functional.avg_pool2d(flat, side, 1, side // 2, count_include_pad=False)
    return found.reshape(planes.shape)


def top_share(squares: torch.Tensor, share: float = TOP) -> torch.Tensor:
    """Mean over the highest `share` of the pixels, channels averaged and smoothed first: what is
    wrong in a small place drowns in a mean over all, and single pixels are mostly noise."""
    pixels = smooth(squares.double().mean(1)).flatten(1)
    return pixels.topk(max(1, round(share * pixels.shape[1])), dim=1).values.mean(1)


def worst_patch(squares: torch.Tensor) -> torch.Tensor:
    """The highest mean in a window of 1/8 of the shorter side, whole windows only."""
    frames = squares.double().mean(1)
    frames = frames if frames.ndim == 4 else frames[:, None]
    side = 2 * max(min(frames.shape[-2:]) // 16, 1) + 1
    window = [min(side, length) for length in frames.shape[-2:]]
    return functional.avg_pool2d(frames, window, stride=1).flatten(1).amax(1)
