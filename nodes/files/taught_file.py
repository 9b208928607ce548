"""What a user taught: small JSON files in output/bayesdiff_taught, one for each name. The scores of
the images that were liked and disliked, run by run; what is learned from them is computed anew."""

from pathlib import Path

from ...bayesdiff_core.checks import BayesDiffError
from ...bayesdiff_core.taught import MOST_EXAMPLES, Example, Run
from . import json_file
from .names import plain_name, state

KIND = json_file.Kind("bayesdiff_taught", "bayesdiff-taught", 1, "runs", "name",
                      "the Uncertainty Self-check", "teach again, or choose another name")
OPTION = "taught: "  # before a name, in a list of scores
path_of = KIND.path_of


def options() -> list[str]:
    """What there is, as lists of scores show it; a name that no node could have given is not."""
    return [f"{OPTION}{path.stem}" for path in sorted(KIND.place().glob("*.json"))
            if _is_plain(path.stem)]


def state_of(option: str) -> tuple[int, int] | None:
    """Differs when the file behind a taught score has changed; None for every other score."""
    try:
        return state(path_of(option.removeprefix(OPTION))) if option.startswith(OPTION) else None
    except BayesDiffError:
        return None  # who runs it says what is wrong


def read(path: Path) -> list[Run]:
    """None if there is no such file."""
    runs = json_file.read(KIND, path, "what was taught, run by run", _are_runs)
    return [Run(run["images"], run["mean"], run["sd"],
                [Example(**example) for example in run["examples"]]) for run in runs]


def write(path: Path, runs: list[Run]) -> None:
    json_file.write(KIND, path, [
        {**run._asdict(), "examples": [example._asdict() for example in run.examples]}
        for run in runs])


def _is_plain(name: str) -> bool:
    try:
        return plain_name("name", name) == name
    except BayesDiffError:
        return False


def _are_runs(runs: list) -> bool:
    return all(map(_is_run, runs)) and sum(len(run["examples"]) for run in runs) <= MOST_EXAMPLES


def _is_run(run) -> bool:
    return (isinstance(run, dict) and run.keys() == set(Run._fields)
            and type(run["images"]) is int and 0 < run["images"] <= 10**6
            and _are_numbers(run["mean"]) and _are_numbers(run["sd"], 0)
            and run["mean"].keys() == run["sd"].keys()
            and isinstance(run["examples"], list)
            and all(_is_example(example, run["mean"]) for example in run["examples"]))


def _is_example(example, names: dict) -> bool:
    return (isinstance(example, dict) and example.keys() == set(Example._fields)
            and isinstance(example["mark"], str) and type(example["disliked"]) is bool
            and _are_numbers(example["logs"]) and example["logs"].keys() == names.keys())


def _are_numbers(values, least: float = -1000) -> bool:
    """Logarithms: of what a float64 can hold they are all well below 1000."""
    return (isinstance(values, dict) and 0 < len(values) <= 100
            and all(name.isprintable() and len(name) <= 100 for name in values)
            and all(json_file.is_finite(value) and least <= value <= 1000
                    for value in values.values()))
