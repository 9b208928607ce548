"""Mode `free`: trajectory variance, for any model and any sampler, without extra calls."""

import torch

from .....bayesdiff_core import checks
from ..interceptor import StandIn
from ..recording import Recording
from ..sampling import Observation, SamplerRun


def observe(run: SamplerRun, seeds: list[int],
            keep_steps: int) -> tuple[torch.Tensor, Observation]:
    checks.at_least("number of steps for trajectory variance", len(run.sigmas) - 1, 2)
    recording = Recording(run, seeds, keep_steps)
    calls = 0

    def call(*args, **kwargs):  # counted and no more: a foreign sampler may have its own manners
        nonlocal calls
        calls += 1
        return run.model(*args, **kwargs)

    def callback(info: dict) -> None:
        recording.see(info["denoised"])
        recording.add_entering(info, lambda: (info["x"], recording.tail()))
        run.callback({**info, "variance": recording.recent})

    x = run.go(model=StandIn(run.model, call), callback=callback)
    return x, Observation(recording.finish(x), calls)
