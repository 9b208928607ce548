"""Reference scores: small JSON files in output/bayesdiff_reference, one for each model and setting
that the user named."""

from pathlib import Path

from . import json_file

KIND = json_file.Kind("bayesdiff_reference", "bayesdiff-reference", 1, "scores", "reference",
                      "the Uncertainty Score Filter", "collect again, or name another reference")
path_of = KIND.path_of


def read(path: Path) -> list[float]:
    """The stored scores, rising; none if there is no such file."""
    scores = json_file.read(KIND, path, "a list of finite numbers",
                            lambda values: all(map(json_file.is_finite, values)))
    return sorted(map(float, scores))


def add(path: Path, scores: list[float]) -> int:
    """How many were new. An equal score is the same image run again, and stays single."""
    stored = read(path)
    merged = sorted({*stored, *scores})
    if merged != stored:
        json_file.write(KIND, path, merged)
    return len(merged) - len(stored)
