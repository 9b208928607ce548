"""What a sampler of another pack asks its model: of its states, what can be trusted.

Some tell their callback the state after a step with the step's own sigma, hand out a buffer that
they write to again, compute in place, or have no callback. But a state that a step is entered with
is one that the model is asked about, at that step's noise level.
"""

import torch

from ....bayesdiff_core.trajectory import TrajectoryVariance

NEAR = 1e-4  # relative: noise levels this close are the same


class Overheard:
    """levels: of the steps whose states are wanted; steps: of the whole run."""

    def __init__(self, shape: torch.Size, levels: list[float], steps: int):
        self._shape, self._levels = shape, levels
        self._asked: dict[float, list[torch.Tensor]] = {}  # level -> first and last x, since told
        self._last: float | None = None
        self.estimates = TrajectoryVariance(steps)  # of the last call at each noise level

    def hear(self, x: torch.Tensor, sigma: torch.Tensor, denoised: torch.Tensor) -> None:
        """Copies are kept: the sampler may write to all of these."""
        if x.shape != self._shape:  # a tile, or a part of the batch
            return
        level = float(torch.as_tensor(sigma).flatten()[0])
        self.estimates.add(denoised.detach().clone(), again=level == self._last)
        self._last = level
        for wanted in self._levels:
            if abs(wanted - level) <= NEAR * wanted:
                self._asked.setdefault(wanted, []).append(x.detach().clone())
                del self._asked[wanted][1:-1]

    def entering(self, level: float, told: torch.Tensor) -> torch.Tensor | None:
        """The state on entering a step at this noise level: what the callback was told, where the
        model was asked about it there, else what it was asked about first. None where it was not
        asked."""
        asked, self._asked = self._asked, {}
        found = asked.get(level)
        if found is None:
            return None
        return next((x for x in found if told.shape == x.shape and torch.equal(told.to(x), x)),
                    found[0])
