"""Mode `free`: trajectory variance, for any model and any sampler, without extra calls."""

import torch

from ...bayesdiff_core import checks
from ...bayesdiff_core.trajectory import Trajectory, TrajectoryVariance
from .sampling import SamplerRun

TAIL = 0.4  # of the steps, counted from the end: the share that was measured to tell most


class Free:
    tap = None
    notes = ()
    extra_calls = 0

    def __init__(self, seeds: list[int], keep_steps: int):
        self._seeds, self._keep_steps = seeds, keep_steps
        self.trajectory: Trajectory | None = None
        self.calls = 0  # steps here: the sampler's calls are not looked at

    def run(self, run: SamplerRun) -> torch.Tensor:
        checks.at_least("number of steps for trajectory variance", len(run.sigmas) - 1, 2)
        recorder = run.recorder(self._seeds, self._keep_steps)
        tail = TrajectoryVariance(max(2, round(TAIL * (len(run.sigmas) - 1))))
        none = run.x.new_zeros(0, *run.x.shape)

        def callback(info: dict) -> None:
            self.calls += 1
            tail.add(info["denoised"])
            if recorder.wants(info["i"]) and run.is_on_schedule(info):
                recorder.add(info["i"], info["x"], tail.variance(), none)
            run.callback(info)

        x = run.go(callback=callback)
        self.trajectory = run.finish(recorder, x, tail.variance(), none)
        return x
