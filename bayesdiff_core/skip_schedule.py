"""Which steps are uncertain: the paper's schedule t~ (section 3.3). Step 0 is the noisiest."""

import re
from collections.abc import Iterable
from typing import NamedTuple

from . import checks
from .checks import BayesDiffError


def by_interval(steps: int, interval: int) -> tuple[int, ...]:
    """`interval` plain steps between two uncertain ones. In the paper's labels, which count down to
    0, 50 steps with interval 4 are 49, 44, ..., 4."""
    checks.at_least("steps", steps, 1)
    checks.at_least("skip interval", interval, 0)
    return tuple(range(0, steps, interval + 1))


def by_list(steps: int, chosen: Iterable[int]) -> tuple[int, ...]:
    """Given steps, each once and rising."""
    schedule = tuple(chosen)
    if not schedule:
        raise BayesDiffError("the list of uncertain steps is empty, at least one was expected.")
    for step in schedule:
        if not 0 <= step < steps:
            raise BayesDiffError(f"step {step} of the uncertain steps is out of range: 0 to"
                                 f" {steps - 1} were expected, as the sampler has {steps} steps.")
    for step, after in zip(schedule, schedule[1:]):
        if step >= after:
            raise BayesDiffError(f"the uncertain steps hold {step} and then {after}: rising numbers"
                                 " without repeats were expected.")
    return schedule


def by_text(steps: int, text: str) -> tuple[int, ...]:
    """A list as people write it: "0, 5, 10"."""
    chosen = []
    for entry in text.split(","):
        if not re.fullmatch(r"\s*-?[0-9]{1,9}\s*", entry):
            raise BayesDiffError(f"{entry.strip()[:20]!r} is not a step: whole numbers separated by"
                                 " commas were expected, such as 0, 5, 10.")
        chosen.append(int(entry))
    return by_list(steps, chosen)


WAYS = ("chosen", "interval", "steps")


class Schedule(NamedTuple):
    """How the uncertain steps are asked for: by an interval, as a list, or left to the mode."""

    way: str = "chosen"
    interval: int = 4
    listed: str = ""  # such as "0,5,10"

    def steps(self, count: int) -> tuple[int, ...] | None:
        """Of a run of `count` steps; None where the mode is to choose."""
        if self.way == "chosen":
            return None
        return by_interval(count, self.interval) if self.way == "interval" else \
            by_text(count, self.listed)
