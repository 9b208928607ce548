"""What a sampled trajectory leaves behind: a record, and the free variance of its tail."""

import math
from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

import torch

from . import checks, doubt, evidence
from .checks import BayesDiffError
from .record import Record
from .smoothing import smoothed
from .transfer import on_cpu

DEFAULT_LIMIT = 512 * 2**20  # bytes
TAIL = 0.4  # of the steps: 10 of 25 told most about quality in a pilot
MOST = 20  # estimates of that window that are kept: all of them up to 50 steps
RECENT = 0.15  # of the steps: part way these say more of the end than a longer window


@dataclass(frozen=True, eq=False)
class Trajectory(Record):
    """E(x_t), Var(x_t) and the deviations at kept steps; CPU tensors that nothing writes to.

    Kept step i is the state on entering step i, at sigmas[i]; step len(sigmas) - 1 is the result.
    Everything is in the sampler's own space; scale and shift lead from there to the LATENT's.
    """

    sigmas: torch.Tensor  # steps + 1
    steps: torch.Tensor  # kept, ascending
    mean: torch.Tensor  # kept x B x ...
    variance: torch.Tensor  # kept x B x ...
    tail: torch.Tensor  # kept x B x ...: trajectory variance up to there, which needs no posterior
    deviations: torch.Tensor  # kept x K x B x ..., K may be 0
    early: int  # how many of the K belong to the first band; Var is the sum over both
    seeds: torch.Tensor  # B: the seed of each image's deviations
    scale: torch.Tensor  # 1 x C x 1 ...
    shift: torch.Tensor
    recipe: object = None  # how it was sampled, for whoever sampled it; not looked into here. Of a
    # joined trajectory a tuple of Parts
    sampled: torch.Tensor | None = None  # B x ...: the picture, where it is not mean[-1] = E(x_0)
    late: torch.Tensor | None = None  # B x ...: trajectory variance of the very last steps
    checked: torch.Tensor | None = None  # maps x B x ...: the first of evidence.CHECKS, as many as
    # were made of the finished picture
    denoised: torch.Tensor | None = None  # kept x B x ...: what the picture was going to be, for
    # the eye; the result at the end. None in files of before

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self._asdict().values()
                   if isinstance(part, torch.Tensor))

    @property
    def patcher(self) -> object:
        """The model that its recipe holds on to, by the name that the host's cache asks for: it
        measures tuples of tensors only, and lets go first, when memory runs short, of what holds
        the model of an earlier graph."""
        recipe = self.recipe[0].recipe if type(self.recipe) is tuple else self.recipe
        return getattr(recipe, "patcher", None)

    def __add__(self, other: "Trajectory") -> "Trajectory":
        """Both as one batch, as nodes of other packs that batch anything ask for it."""
        return joined([self, other]) if isinstance(other, Trajectory) else NotImplemented

    def position(self, step: int) -> int:
        """Where `step` is kept; -1 is the result."""
        kept = self.steps.tolist()
        step = len(self.sigmas) - 1 if step == -1 else step
        if step not in kept:
            raise BayesDiffError(f"step {step} is not in this trajectory, which keeps {kept}:"
                                 " choose one of these, or sample again and keep more steps.")
        return kept.index(step)

    @property
    def picture(self) -> torch.Tensor:
        """The result that was drawn, B x ...: E(x_0) in all modes but paper, which draws eps."""
        return self.mean[self.position(-1)] if self.sampled is None else self.sampled

    def maps(self) -> dict[str, torch.Tensor]:
        """Maps of what the run left behind, by the names that doubt.py knows, B x ... each."""
        tail = self.tail[self.position(-1)]
        found = {doubt.LATE: tail if self.late is None else self.late, doubt.TAIL: tail}
        return found | dict(zip(evidence.CHECKS, () if self.checked is None else self.checked))

    def latent_mean(self, step: int = -1) -> torch.Tensor:
        """E(x_t) in the LATENT's scale, B x ..."""
        return self.mean[self.position(step)] * self.scale + self.shift

    def latent_picture(self) -> torch.Tensor:
        """The picture in the LATENT's scale, B x ..."""
        return self.picture * self.scale + self.shift

    def latent_variance(self, step: int = -1) -> torch.Tensor:
        """Var(x_t) in the LATENT's scale, B x ..."""
        return self.variance[self.position(step)] * self.scale.square()

    def latent_tail(self, step: int = -1) -> torch.Tensor:
        """Trajectory variance in the LATENT's scale, B x ..."""
        return self.tail[self.position(step)] * self.scale.square()

    def draws(self, step: int, count: int, seed: int, independent: bool = False) -> torch.Tensor:
        """`count` offsets from E(x_t) with the variance of the deviations, count x B x ..., in the
        sampler's space. Of the K early deviations random mixtures, so coherent in space; of the
        late ones, which stay local, noise of their smoothed variance. Independent at each pixel,
        as in the paper, where that is asked for or none were kept.

        Mixtures of K span K dimensions only, so draws of one deviation would all be one pattern:
        a share 1 / (K + 1) of the early variance is such noise too."""
        checks.at_least("number of draws", count, 1)
        at = self.position(step)
        deviations, variance = self.deviations[at], self.variance[at]
        mixed = self.early / (self.early + 1)  # share of the early variance
        drawn = []
        for image, image_seed in enumerate(self.seeds.tolist()):
            generator = torch.Generator().manual_seed(mixed_seed(image_seed, seed))
            local, draw = variance[image], 0.0
            if len(deviations) and not independent:
                early, late = deviations[:, image].split([self.early, len(deviations) - self.early])
                bands = [weight * band.square().mean(0)
                         for weight, band in ((1 - mixed, early), (1.0, late)) if len(band)]
                # Smoothing must not leak to pixels that are known.
                local = smoothed(sum(bands)) * (local > 0)
                mixture = torch.randn(count, len(early), generator=generator)
                draw = torch.tensordot(mixture, early, 1) * (mixed / max(len(early), 1)) ** 0.5
            noise = torch.randn(count, *variance.shape[1:], generator=generator)
            drawn.append(draw + local.sqrt() * noise)
        return torch.stack(drawn, dim=1)


# Along which dimension the images are.
IMAGES = {"mean": 1, "variance": 1, "tail": 1, "deviations": 2, "seeds": 0, "sampled": 0, "late": 0,
          "checked": 1, "denoised": 1}


class Part(NamedTuple):
    """Of a joined trajectory: how it was sampled, and how many of the images it is."""

    recipe: object
    images: int


def joined(trajectories: list[Trajectory]) -> Trajectory:
    """One trajectory of all images, in order, which parts_of() takes apart again."""
    checks.at_least("number of trajectories to join", len(trajectories), 1)
    first = trajectories[0]
    for number, other in enumerate(trajectories[1:], 2):
        for name in ("sigmas", "steps", "early", "scale", "shift"):
            one, two = (torch.as_tensor(getattr(each, name)) for each in (first, other))
            if not torch.equal(one, two):
                raise BayesDiffError(
                    f"trajectories to be joined differ in their {name}: {_shortly(one)} in the"
                    f" first and {_shortly(two)} in number {number}. Only those of one model,"
                    " sampler, scheduler and number of steps can be joined.")
        # All but the images.
        one, two = ((*each.deviations.shape[:2], *each.deviations.shape[3:])
                    for each in (first, other))
        if one != two:
            raise BayesDiffError(f"trajectories to be joined differ in shape (kept steps x"
                                 f" deviations x latent): {one} in the first and {two} in number"
                                 f" {number}. Use latents of one size and one mode.")
    parts = [Part(part.recipe, part.mean.shape[1])
             for each in trajectories for part in parts_of(each)]
    if any(each.denoised is None for each in trajectories):
        first = first._replace(denoised=None)
    for name in ("sampled", "late", "checked"):
        if len({None if part is None else len(part) if name == "checked" else 1
                for part in (getattr(each, name) for each in trajectories)}) > 1:
            raise BayesDiffError(f"trajectories to be joined are of different kinds ({name}): join"
                                 " those of one mode and one check.")
    return first._replace(
        **{name: torch.cat([getattr(each, name) for each in trajectories], dim)
           for name, dim in IMAGES.items() if getattr(first, name) is not None},
        recipe=tuple(parts) if len(parts) > 1 else first.recipe)


def _shortly(values: torch.Tensor, most: int = 12) -> str:
    words = [f"{value:.6g}" for value in values.flatten()[:most].tolist()]
    return f"{', '.join(words)}{', ...' if values.numel() > most else ''} ({values.numel()})"


def parts_of(trajectory: Trajectory) -> list[Trajectory]:
    """What a trajectory was joined of; itself, where it was not."""
    # A recipe may be a tuple of another kind.
    if type(trajectory.recipe) is not tuple:
        return [trajectory]
    found, at = [], 0
    for part in trajectory.recipe:
        found.append(trajectory._replace(recipe=part.recipe, **{
            name: whole.narrow(dim, at, part.images) for name, dim in IMAGES.items()
            if (whole := getattr(trajectory, name)) is not None}))
        at += part.images
    return found


def mixed_seed(seed: int, index: int) -> int:
    """A seed for item `index`, far from those of other items and other seeds."""
    mixed = (seed * 0x9E3779B97F4A7C15 + index * 0xBF58476D1CE4E5B9 + 0x94D049BB133111EB) % 2**64
    return (mixed ^ (mixed >> 31)) % 2**63


class TrajectoryRecorder:
    """Builds a Trajectory of `keep` states, the first and the last always, spread evenly; fewer
    where they would not fit under the limit, or where the sampler never stops at one."""

    def __init__(self, sigmas: torch.Tensor, shape: torch.Size, deviations: int, seeds: list[int],
                 *, early: int = 0, keep: int | None = None, limit: int = DEFAULT_LIMIT):
        if len(seeds) != shape[0]:
            raise BayesDiffError(f"{len(seeds)} seeds for a batch of {shape[0]} images: one a seed"
                                 " each was expected.")
        self.sigmas = sigmas.detach().to("cpu", torch.float32).clone()
        self.seeds, self.early = torch.tensor(seeds, dtype=torch.int64), early
        self.kept = kept_steps(len(sigmas), 4 * shape.numel() * (4 + deviations), limit, keep)
        self._rows: dict[int, list[torch.Tensor]] = {}
        self._denoised: dict[int, torch.Tensor] = {}
        self._late: torch.Tensor | None = None

    def wants(self, step: int) -> bool:
        return step in self.kept and step not in self._rows

    def add(self, step: int, mean: torch.Tensor, variance: torch.Tensor, tail: torch.Tensor,
            deviations: torch.Tensor, reached: torch.Tensor | None = None,
            denoised: torch.Tensor | None = None, late: torch.Tensor | None = None) -> None:
        """reached: whether it is a state on entering this step at all, where that is only known on
        the device; denoised: what the model answered there, once it is known; late: of the run, at
        its end."""
        if self.wants(step):
            told = {"denoised": denoised, "late": late}
            told = {name: part for name, part in told.items() if part is not None}
            *row, reached = on_cpu(mean, variance, tail, deviations, *told.values(),
                                   torch.tensor(True) if reached is None else reached)
            if reached:
                row = [part.float() for part in row]
                self._rows[step] = row[:4]
                told = dict(zip(told, row[4:]))
                self._late = told.get("late")
                if "denoised" in told:
                    self._denoised[step] = told["denoised"]

    def add_denoised(self, step: int, denoised: torch.Tensor, reached: torch.Tensor) -> None:
        """Of a state that was added before the model was asked about it."""
        denoised, reached = on_cpu(denoised, reached)
        if reached:
            self._denoised[step] = denoised.float()

    def at(self, step: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None:
        """Of a kept step, while the run goes on: denoised, variance, tail; None where it is not
        known."""
        if step not in self._rows or step not in self._denoised:
            return None
        return self._denoised[step], *self._rows[step][1:3]

    def trajectory(self, scale: torch.Tensor, shift: torch.Tensor) -> Trajectory:
        if self.kept[-1] not in self._rows:
            raise BayesDiffError(f"{len(self._rows)} of {len(self.kept)} steps were recorded and"
                                 " the last is not among them: the sampler stopped early.")
        steps = sorted(self._rows)
        parts = (torch.stack(part) for part in zip(*(self._rows[step] for step in steps)))
        return Trajectory(self.sigmas, torch.tensor(steps), *parts, self.early, self.seeds,
                          scale.float().cpu(), shift.float().cpu(),
                          late=self._late, denoised=self._denoised_at(steps))

    def _denoised_at(self, steps: list[int]) -> torch.Tensor | None:
        """Where a sampler did not tell, the next one that is known; None where the last is not."""
        found, known = [], self._denoised.get(steps[-1])
        for step in reversed(steps):
            known = self._denoised.get(step, known)
            found.append(known)
        return None if known is None else torch.stack(found[::-1])


def kept_steps(states: int, bytes_each: int, limit: int, keep: int | None = None) -> list[int]:
    """Indices of the states to keep: all, or as many as wanted and fit, spread evenly."""
    fitting = min(states, limit // bytes_each, max(keep or states, 2))
    if fitting < 2:
        raise BayesDiffError(f"one step of this trajectory takes {bytes_each / 2**20:.0f} MiB and"
                             f" the limit is {limit / 2**20:.0f} MiB: keep fewer deviations, use a"
                             " smaller batch, or raise the limit.")
    return sorted({round(i * (states - 1) / (fitting - 1)) for i in range(fitting)})


class TrajectoryVariance:
    """Variance of the denoised estimate over the last steps (arXiv 2406.09358): no posterior, no
    extra calls, any sampler. Of a long run's estimates every second, third, ... is kept, and the
    newest, so that memory is bounded."""

    def __init__(self, steps: int):
        every = math.ceil(_last(TAIL, steps) / MOST)
        self._every, self._steps, self._seen = every, steps / every, 0
        self._window: deque[torch.Tensor] = deque(maxlen=_last(TAIL, self._steps))

    def add(self, denoised: torch.Tensor, again: bool = False) -> None:
        """again: of the same step as the last one, whose place it takes."""
        if self._window and (again or self._seen % self._every):
            self._window.pop()
        self._window.append(denoised)
        self._seen += not again

    @property
    def last(self) -> torch.Tensor:
        return self._window[-1]

    def over(self, share: float = TAIL) -> torch.Tensor:
        """Population variance over the last steps so far, as many as this share of the whole run,
        at most TAIL; 0 after the first."""
        checks.at_least("number of steps seen", len(self._window), 1)
        last = _last(share, self._steps)
        return torch.stack(tuple(self._window)[-last:]).var(0, unbiased=False)


def _last(share: float, steps: float) -> int:
    return max(2, round(share * steps))
