"""Drawings of the worlds' nets with their labels and all that scores are made of. Kept in the cache
in parts, so that a bench that was stopped goes on."""

import functools
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from bayesdiff_core import doubt, evidence, scores
from benchmarks.worlds import WORLDS, nets, rivals, sampling
from tools.judge import Features
from tools.places import cache_folder

AT_ONCE, PART = 50, 100
FIRST_SEED = {nets.CHOOSING: 200_000, nets.REPORTING: 300_000}
COUNTS = {nets.CHOOSING: 200, nets.REPORTING: 1000}
# pictures of an euler setting that deviations ride along with, and
POSTERIOR_OF = {nets.CHOOSING: 100, nets.REPORTING: 200}
EARLY_OF = 200  # of an euler or ancestral one that are looked at part way
DRAWS, REDRAWS = evidence.FULL
AHEAD = {f"{sum(calls)} calls": calls for calls in (evidence.AHEAD_OF_MANY, evidence.AHEAD_OF_FEW)}
COVARIANCE_AT = 1.2  # noise to signal
FRACTIONS = (0.25, 0.4, 0.5, 0.75)
RECENT = 0.15
SEMANTIC = "semantic"
# what a map costs in calls
CALLS = {"late 20": 0, "late 40": 0, "acceleration": 0, "redrawn": REDRAWS * len(evidence.REDRAW),
         "independent": 25, "shared": 25, "covariance": 1,
         **{f"{kind} {ratio}": draws for kind in ("renoised", "pull")
            for ratio, draws in DRAWS.items()}}
VERSION, AFTER_VERSION, EARLY_VERSION = 2, 4, 2


def setting(name: str, sampler: str, count: int = 0) -> dict[str, torch.Tensor]:
    """`count` or all pictures of a net and sampler: `picture`, `worst`, `where`, `error`,
    `map NAME`, `score NAME`, `early FRACTION NAME`; N of each, or of the first ones only."""
    count = count or COUNTS[nets.NETS[name].role]
    parts = [_part(name, sampler, begin, min(begin + PART, count))
             for begin in range(0, count, PART)]
    return {key: torch.cat([part[key] for part in parts if key in part])
            for key in parts[0]}


def _part(name: str, sampler: str, begin: int, end: int) -> dict[str, torch.Tensor]:
    """A run and what comes after it are kept apart: one can change without the other."""
    run_file, after_file, *early_file = _files(name, sampler, begin, end)
    ran = _kept(run_file, lambda: _ran(name, sampler, begin, end))
    later = _kept(after_file, lambda: _later(sampling.scene(name, sampler), ran["picture"]))
    before = _kept(early_file[0], lambda: _looked_at(
        sampling.scene(name, sampler), range(begin, end))) if early_file else {}
    own = ("map late", "map acceleration", "map independent", "map shared")
    return {key: value for key, value in ran.items() if key.startswith(own)
            or not key.startswith(("map ", "early "))} | later | before


def _files(name: str, sampler: str, begin: int, end: int) -> list[Path]:
    stem = f"{nets.weights(name).stem}-{sampler}-{begin}-{end}"
    parts = [VERSION, f"after-{AFTER_VERSION}"]
    if begin < EARLY_OF and sampler != "dpm_2":
        parts.append(f"early-{EARLY_VERSION}")
    return [cache_folder() / "worlds" / "drawn" / f"{stem}-{part}.safetensors" for part in parts]


def kept(name: str, sampler: str) -> int:
    """How many pictures of a setting are in the cache, counted from the first."""
    count = 0
    while all(file.exists() for file in _files(name, sampler, count, count + PART)):
        count += PART
    return count


def _kept(file: Path, make: Callable[[], dict]) -> dict[str, torch.Tensor]:
    if not file.exists():
        started = time.time()
        found = make()
        file.parent.mkdir(parents=True, exist_ok=True)
        save_file({key: value.contiguous() for key, value in found.items()},
                  file.with_suffix(".part"))
        file.with_suffix(".part").replace(file)
        print(f"{file.stem}: {time.time() - started:.0f} s", flush=True)
    return load_file(file)


def _ran(name: str, sampler: str, begin: int, end: int) -> dict[str, torch.Tensor]:
    given = sampling.scene(name, sampler)
    batches = [drawn(given, range(at, min(at + AT_ONCE, end)))
               for at in range(begin, end, AT_ONCE)]
    found = {key: torch.cat([batch[key] for batch in batches if key in batch])
             for key in batches[0]}
    label = WORLDS[nets.NETS[name].world].nearest(found["picture"])
    print(f"{label.wrong.float().mean():.1%} wrong", flush=True)
    return found | {"worst": label.worst, "error": label.error.half(), "where": label.where,
                    "nearest": label.nearest.half()}


@torch.no_grad()
def _later(given: sampling.Scene, picture: torch.Tensor) -> dict[str, torch.Tensor]:
    parts = [(part, after(given, part)) for part in picture.split(AT_ONCE)]
    return {f"map {name}": torch.cat([evidence.relative(maps[name], part)[:, 0]
                                      for part, maps in parts]) for name in parts[0][1]}


@torch.no_grad()
def _looked_at(given: sampling.Scene, indices: range) -> dict[str, torch.Tensor]:
    """The same runs again, looked at part way."""
    steps = len(given.sigmas) - 1
    fractions = {round(f * steps) - 1: f for f in FRACTIONS}
    found = []
    for begin in range(indices.start, indices.stop, AT_ONCE):
        part = range(begin, min(begin + AT_ONCE, indices.stop))
        noise, estimates, slopes, known = _noise(given, part), [], [], {}

        def see(step, x, denoised, estimates=estimates, slopes=slopes, known=known):
            estimates.append(denoised)
            slopes.append((x - denoised) / float(given.sigmas[step]))
            if step in fractions:
                known.update(_early(given, x, step, fractions[step], estimates, slopes))

        sampling.run(given, given.sigmas[0] * noise(), noise, see)
        found.append(known)
    return {key: torch.cat([one[key] for one in found]) for key in found[0]}


def _seeds(given: sampling.Scene, indices: range) -> list[int]:
    return [FIRST_SEED[nets.NETS[given.name].role] + index for index in indices]


def _noise(given: sampling.Scene, indices: range) -> sampling.Noise:
    return sampling.Noise(_seeds(given, indices), (1, nets.SIZE, nets.SIZE))


@torch.no_grad()
def drawn(given: sampling.Scene, indices: range) -> dict[str, torch.Tensor]:
    """Pictures of these numbers; the same ones whatever the batch."""
    role, seeds, noise = nets.NETS[given.name].role, _seeds(given, indices), _noise(given, indices)
    levels = given.sigmas
    ratios = levels / (1 - levels).clamp(min=1e-6) if given.flow else levels
    steps = len(levels) - 1
    probe_at = int((ratios[1:-1].log() - torch.tensor(COVARIANCE_AT).log()).abs().argmin()) + 1
    estimates, slopes, found = [], [], {}

    def see(step: int, x: torch.Tensor, denoised: torch.Tensor) -> None:
        sigma = float(levels[step])
        estimates.append(denoised)
        slopes.append((x - denoised) / sigma)
        if step == probe_at:
            found["covariance"] = rivals.posterior_covariance(
                given.denoise, x, denoised, sigma, _signs(x), given.flow)

    riders = [given.rider(seeds, meaning) for meaning in ("independent", "shared")] \
        if given.sampler == "euler" and indices.start < POSTERIOR_OF[role] else []
    picture, offsets = sampling.run(given, levels[0] * noise(), noise, see, riders)
    maps = {"late 20": evidence.late_change(estimates, 0.2),
             "late 40": evidence.late_change(estimates, 0.4),
             "acceleration": rivals.acceleration_map(slopes[steps // 4:])}
    for rider, offset in zip(riders, offsets):
        maps[rider.noise_model] = rider.variance(offset)
    if riders:
        found[f"score {SEMANTIC}"] = semantic(picture + offsets[1])
    found["score present: trajectory variance"] = scores.mean(maps["late 40"])
    found["score present: relative change"] = scores.relative_change(maps["late 40"], picture)
    found["score acceleration"] = rivals.acceleration(slopes)
    covariance = found.pop("covariance") / evidence.contrast(picture).float()[:, None, None, None]
    found["score covariance"] = evidence.mean(covariance).clamp(min=1e-12)
    found |= {f"map {name}": evidence.relative(one, picture)[:, 0] for name, one in maps.items()}
    return {"picture": picture, **found}


def after(given: sampling.Scene, picture: torch.Tensor,
          effort: evidence.Effort = evidence.FULL) -> dict[str, torch.Tensor]:
    """The maps that need nothing but the picture, and calls."""
    return evidence.of_picture(given.denoise, picture, functools.partial(_shared_noise, picture),
                               given.flow, effort)


def _early(given, x, step, fraction, estimates: Sequence, slopes: Sequence) -> dict:
    """What is known after a fraction of the steps."""
    now, sigma = estimates[-1], float(given.sigmas[step])
    recent = max(2, round(RECENT * (len(given.sigmas) - 1)))
    change = evidence.relative(evidence.late_change(estimates[-recent:], 1.0), now)
    covariance = rivals.posterior_covariance(given.denoise, x, now, sigma, _signs(x), given.flow)
    covariance = covariance / evidence.contrast(now).float()[:, None, None, None]
    values = {}
    for name, calls in AHEAD.items():
        maps, picture = evidence.ahead(
            given.denoise, x, given.sigmas[step:], now, functools.partial(_shared_noise, x),
            given.flow, calls=calls)
        found = doubt.doubt(maps, picture)
        values |= {f"look ahead, {name}, {part}": value for part, value in found.parts.items()}
    values |= {"recent change": evidence.mean(change),
              "recent change, top 5 %": evidence.top_share(change),
              "acceleration": rivals.acceleration(slopes),
              "covariance": evidence.mean(covariance).clamp(min=1e-12),
              "total variation (trivial)": total_variation(now),
              "contrast (trivial)": evidence.contrast(now).sqrt()}
    return {f"early {fraction} {name}": value for name, value in values.items()}


def total_variation(picture: torch.Tensor) -> torch.Tensor:
    return (picture.diff(dim=-1).abs().flatten(1).mean(1, dtype=torch.float64)
            + picture.diff(dim=-2).abs().flatten(1).mean(1, dtype=torch.float64))


def semantic(pictures: torch.Tensor) -> torch.Tensor:
    """K x B x 1 x H x W -> B."""
    flat = ((pictures.flatten(0, 1) + 1) / 2).clamp(0, 1).movedim(1, -1).expand(-1, -1, -1, 3)
    features = torch.cat([_features()(part) for part in flat.split(100)])
    return rivals.semantic(features.unflatten(0, pictures.shape[:2]))


@functools.cache
def _features() -> Features:
    return Features()


def _signs(x: torch.Tensor) -> torch.Tensor:
    return _shared_noise(x, 99).sign()


def _shared_noise(x: torch.Tensor, seed: int) -> torch.Tensor:
    """The same for every picture."""
    return torch.randn((1, *x.shape[1:]), generator=torch.Generator().manual_seed(7000 + seed))


if __name__ == "__main__":
    torch.set_num_threads(1)
    for chosen in sys.argv[1:]:  # NET:SAMPLER or NET:SAMPLER:COUNT
        one, with_sampler, *wanted = chosen.split(":")
        setting(one, with_sampler, *map(int, wanted))
