"""Which of many runs go on: when they are looked at, how many stay, and which."""

import math
from typing import NamedTuple

from . import checks
from .checks import BayesDiffError

WAYS = ("once", "halving")


class Stop(NamedTuple):
    """After `step` steps the best `left` runs go on."""

    step: int
    left: int


def stops(count: int, keep: int, steps: int, at: float, way: str, first: int = 1) -> list[Stop]:
    """once: all but `keep` of `count` runs end after the share `at` of the steps. halving: half of
    them (rounded up, never below `keep`) go on at each of as many stops as that takes, spaced
    evenly up to `at`. No stop comes before step `first`; those that fall together become one."""
    if not 1 <= keep <= count:
        raise BayesDiffError(f"{keep} of {count} runs are to be kept: 1 to {count} were expected."
                             " Keep fewer, or start more.")
    checks.one_of("way to drop runs", way, WAYS)
    if steps <= first:
        raise BayesDiffError(f"{steps} steps leave nothing to stop before: at least {first + 1}"
                             f" were expected, as there is nothing to rank by before step {first}.")
    rounds = 1 if way == "once" else math.ceil(math.log2(count / keep))
    left = {}  # by step
    for done in range(1, rounds + 1):
        step = min(max(round(at * steps * done / rounds), first), steps - 1)
        left[step] = keep if done == rounds else max(keep, math.ceil(count / 2**done))
    return [Stop(step, many) for step, many in left.items() if keep < count]


def planned_steps(count: int, plan: list[Stop], steps: int) -> int:
    """Steps of all runs together, if it goes by the plan."""
    at, total = 0, 0
    for stop in plan:
        total += count * (stop.step - at)
        at, count = stop
    return total + count * (steps - at)
