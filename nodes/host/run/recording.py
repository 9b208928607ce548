"""What a watcher notes down while a sampler runs."""

from collections.abc import Callable

import torch

from ....bayesdiff_core import checks, evidence
from ....bayesdiff_core.trajectory import (
    RECENT,
    Trajectory,
    TrajectoryRecorder,
    TrajectoryVariance,
)
from .sampling import Forming, SamplerRun


class Recording:
    """The trajectory of one run, its first state already in it."""

    def __init__(self, run: SamplerRun, seeds: list[int], keep: int, deviations: int = 0,
                 early: int = 0):
        checks.finite("the latent that sampling begins from, with its noise", run.start)
        self._run = run
        self._recorder = TrajectoryRecorder(run.levels, run.x.shape, deviations, seeds,
                                            early=early, keep=keep)
        self._tail = TrajectoryVariance(len(run.sigmas) - 1)
        self._step: int | None = None  # of the last estimate
        self.reports = 0
        self._none = run.x.new_zeros(0, *run.x.shape)
        zero = torch.zeros_like(run.start)
        self._recorder.add(0, run.start, zero, zero, zero.expand(deviations, *zero.shape))

    def kept_levels(self) -> list[float]:
        """Noise levels of the steps whose states are kept."""
        return [float(self._run.levels[step]) for step in self._recorder.kept]

    def see(self, denoised: torch.Tensor, step: int | None = None, compare: bool = False) -> None:
        """The denoised estimate of one step. A copy of it is kept: it may be a view of a batch that
        is many times as large, or of a buffer that the sampler writes to again. step: its number.
        Some tell the last one twice, or, where compare is on, under the next number too."""
        again = step is not None and step == self._step or (
            compare and self.reports > 0 and torch.equal(denoised, self._tail.last))
        self._tail.add(denoised.detach().clone(), again)
        self._step, self.reports = step, self.reports + (not again)

    def rely_on(self, estimates: TrajectoryVariance) -> None:
        """In the place of those that were seen."""
        self._tail = estimates

    def tail(self) -> torch.Tensor:
        return self._tail.over()

    def recent(self) -> torch.Tensor:
        """To tell part way how the run will end."""
        return self._tail.over(RECENT)

    def add_entering(self, info: dict, state: Callable[[], tuple[torch.Tensor, ...]]) -> None:
        """What a sampler tells its callback, where it is the state on entering step i: dpm_fast has
        levels of its own, uni_pc tells the state that leaves. state() gives x, variance and
        deviations, if there are any."""
        step, sigma = info["i"], info.get("sigma")
        if sigma is None or step not in self._recorder.kept:
            return
        level = self._run.sigmas[step]
        reached = (torch.as_tensor(sigma).to(level) - level).abs() <= 1e-4 * level
        denoised = info["denoised"][:len(self._run.x)]
        if self._recorder.wants(step):
            x, variance, *deviations = state()
            self._recorder.add(step, x, variance, self.tail(), *(deviations or [self._none]),
                               reached, denoised)
        else:  # the start, which was known before
            self._recorder.add_denoised(step, denoised, reached)
        if self._run.watch and (kept := self._recorder.at(step)):
            scale, _ = latent_scale(self._run.host_model, denoised.shape)
            self._run.watch(Forming(step, self._run.levels, *kept, scale,
                                    self._run.host_model.latent_format))

    def finish(self, x: torch.Tensor, variance: torch.Tensor | None = None,
               deviations: torch.Tensor | None = None,
               mean: torch.Tensor | None = None) -> Trajectory:
        """With the result, as the host will hand it out. variance: of x; else that of the tail,
        whose denoised estimates need no scaling. mean: E(x_0), where x is a draw around it."""
        sampling, last = self._run.model_sampling, self._run.sigmas[-1]
        factor = sampling.inverse_noise_scaling(last, torch.ones_like(x[:1, :1]))
        tail, result = self.tail(), sampling.inverse_noise_scaling(last, x)
        center = result if mean is None else sampling.inverse_noise_scaling(last, mean)
        self._recorder.add(len(self._run.sigmas) - 1, center,
                           tail if variance is None else variance * factor**2, tail,
                           self._none if deviations is None else deviations * factor,
                           denoised=result, late=self._tail.over(evidence.LATE))
        scales = latent_scale(self._run.host_model, x.shape)
        sampled = None if mean is None else result.detach().to("cpu", torch.float32, copy=True)
        return self._recorder.trajectory(*scales)._replace(recipe=self._run.recipe,
                                                           sampled=sampled)


def latent_scale(model, shape: torch.Size) -> tuple[torch.Tensor, torch.Tensor]:
    """Scale and shift from the sampler's space to the LATENT's: 1 x C x 1 ..."""
    zero = torch.zeros(1, *shape[1:])
    shift = model.process_latent_out(zero)
    scale = model.process_latent_out(zero + 1) - shift
    corner = (slice(None), slice(None), *[slice(1)] * (len(shape) - 2))
    return scale[corner].clone(), shift[corner].clone()
