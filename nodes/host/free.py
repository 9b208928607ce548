"""Mode `free`: trajectory variance, for any model and any sampler, without extra calls."""

import torch

from ...bayesdiff_core import checks
from ...bayesdiff_core.trajectory import Trajectory
from .recording import Recording
from .sampling import SamplerRun


class Free:
    tap = None
    notes = uncertain = ()
    extra_calls = 0

    def __init__(self, seeds: list[int], keep_steps: int):
        self._seeds, self._keep_steps = seeds, keep_steps
        self.trajectory: Trajectory | None = None
        self.calls = 0  # steps here: the sampler's calls are not looked at

    def run(self, run: SamplerRun) -> torch.Tensor:
        checks.at_least("number of steps for trajectory variance", len(run.sigmas) - 1, 2)
        recording = Recording(run, self._seeds, self._keep_steps)

        def callback(info: dict) -> None:
            self.calls += 1
            recording.see(info["denoised"])
            recording.add_entering(info, lambda: (info["x"], recording.tail()))
            run.callback({**info, "variance": recording.recent})

        x = run.go(callback=callback)
        self.trajectory = recording.finish(x)
        return x
