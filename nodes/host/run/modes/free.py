"""Mode `free`: trajectory variance, for any model and any sampler, without extra calls."""

import torch

from .....bayesdiff_core import checks
from ..interceptor import StandIn
from ..known_samplers import is_known
from ..overheard import Overheard
from ..recording import Recording
from ..sampling import Observation, SamplerRun

SILENT = ("the sampler does not tell how the picture changes, so its model calls were observed"
          " instead; steps that it does not report are not kept")


def observe(run: SamplerRun, seeds: list[int],
            keep_steps: int) -> tuple[torch.Tensor, Observation]:
    steps = len(run.sigmas) - 1
    checks.at_least("number of steps", steps, 1)
    recording = Recording(run, seeds, keep_steps)
    calls, notes = 0, []
    overheard = None if is_known(run.recipe.sampler) else \
        Overheard(run.x.shape, recording.kept_levels(), steps)

    def call(x, sigma, *args, **kwargs):  # no more than that: a foreign sampler has its own manners
        nonlocal calls
        calls += 1
        denoised = run.model(x, sigma, *args, **kwargs)
        if overheard:
            overheard.hear(x, sigma, denoised)
        return denoised

    def callback(info: dict) -> None:
        recording.see(info["denoised"], info["i"], compare=overheard is not None)
        x, told = info["x"], info
        if overheard and info["i"] < len(run.levels):
            level = run.levels[info["i"]]
            x, told = overheard.entering(float(level), x), {"sigma": level, **info}
        if x is not None:
            recording.add_entering(told, lambda: (x, recording.tail()))
        run.callback({**info, "variance": recording.recent})

    x = run.go(model=StandIn(run.model, call, overheard and overheard.hear), callback=callback)
    if overheard and recording.reports < min(steps, 2):
        recording.rely_on(overheard.estimates)
        notes.append(SILENT)
    return x, Observation(recording.finish(x), calls, notes=tuple(notes))
