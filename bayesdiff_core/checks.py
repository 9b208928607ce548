"""Refusals: each says what was given, what was expected and what to do."""

from collections.abc import Collection

import torch


class BayesDiffError(ValueError):
    """Input that cannot give a true number."""

    # The host prints a type with its module, which here is a path: the sentence is to come first.
    __module__ = "builtins"


def finite(name: str, tensor: torch.Tensor) -> None:
    if not torch.isfinite(tensor).all():
        bad = int((~torch.isfinite(tensor)).sum())
        raise BayesDiffError(f"{name}: {bad} of {tensor.numel()} values are NaN or infinite, finite"
                             " ones were expected. Try a higher precision (fp32) or other inputs.")


def at_least(name: str, value: float, least: float) -> None:
    if not value >= least:
        raise BayesDiffError(f"{name} is {value}, at least {least} was expected.")


def positive(name: str, value: float) -> None:
    if not value > 0:
        raise BayesDiffError(f"{name} is {value}, a number above 0 was expected.")


def one_of(name: str, value: str, choices: Collection[str]) -> None:
    if value not in choices:
        raise BayesDiffError(f"{name} is {str(value)[:80]!r}, one of {', '.join(choices)} was"
                             " expected: choose one of these.")


def decreasing(sigmas: torch.Tensor) -> None:
    values = sigmas.tolist()
    if len(values) < 2:
        raise BayesDiffError(f"sigmas holds {len(values)} values, at least 2 were expected (a start"
                             " and an end).")
    for i, (now, after) in enumerate(zip(values, values[1:])):
        if not now > after >= 0:
            raise BayesDiffError("sigmas must fall and never be negative, but"
                                 f" sigmas[{i}] = {now:g} is followed by {after:g}. Use a scheduler"
                                 " that denoises.")
