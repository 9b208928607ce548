"""Pages in docs/ that the test commands write from pytest's own result files. Standard library."""

import json
import os
import platform
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

from tools.environment import TORCH
from tools.places import REPOSITORY

# Set by `run.py test soak`: the same tests, with more of everything.
SOAK = bool(os.environ.get("BAYESDIFF_SOAK"))
COMPATIBILITY, RELIABILITY = (REPOSITORY / "docs" / f"{name}.md"
                              for name in ("compatibility", "reliability"))


class Result(NamedTuple):
    """Of one test."""

    name: str
    outcome: str  # passed, skipped or failed
    seconds: float
    why: str  # of what did not pass
    tried: dict | None  # what it noted by the fixture `tried`


def results(path: Path) -> list[Result]:
    """Out of a file that pytest --junitxml wrote. It did not get that far? That is a failure."""
    if not path.is_file():
        return [Result(path.stem, "failed", 0, "the tests broke off", None)]
    found = []
    for case in ElementTree.parse(path).iter("testcase"):
        fault = next((part for part in case if part.tag in ("failure", "error", "skipped")), None)
        outcome = "passed" if fault is None else \
            "skipped" if fault.tag == "skipped" else "failed"
        tried = case.find("properties/property[@name='tried']")
        found.append(Result(case.get("name"), outcome, float(case.get("time")),
                            "" if fault is None else fault.get("message", ""),
                            None if tried is None else json.loads(tried.get("value"))))
    return found


def write_compatibility(hosts: dict[str, list[Result]], tiers: list[str], chosen: str) -> None:
    """chosen: the words of -k, if not all tests ran."""
    only = f", only those that match `{chosen}`" if chosen else ""
    lines = ["# ComfyUI versions", "",
             f"Written by `python run.py test --all-hosts`: the {' and '.join(tiers)} tests on each"
             f" version{only}. {platform.system()}, Python {platform.python_version()},"
             f" {TORCH[0].replace('==', ' ')}, no GPU; minutes on one core.", "",
             "| ComfyUI | passed | skipped | failed | minutes |", "|---|---|---|---|---|"]
    failed: list[str] = []
    skipped: dict[str, list[str]] = {}
    for version, tests in hosts.items():
        numbers = [_count(tests, outcome) for outcome in ("passed", "skipped", "failed")]
        minutes = sum(test.seconds for test in tests) / 60
        row = [version, *numbers, f"{minutes:.1f}"] if tests else [version, *["did not run"] * 4]
        lines.append(f"| {' | '.join(map(str, row))} |")
        for test in tests:
            why = (test.why.splitlines() or [""])[0]
            if test.outcome == "skipped":
                skipped.setdefault(why, []).append(version)
            elif test.outcome == "failed":
                failed.append(f"- {version}: `{test.name}`: {why}")
    if failed:
        lines += ["", "Failed:", "", *failed]
    if skipped:
        lines += ["", "Skipped:", ""]
        lines += [f"- {why} ({len(versions)} tests: {', '.join(dict.fromkeys(versions))})"
                  for why, versions in skipped.items()]
    COMPATIBILITY.write_text("\n".join(lines) + "\n", encoding="utf-8")


def write_reliability(tests: list[Result], host: str) -> None:
    lines = ["# What it was put through", "",
             f"Written by `python run.py test soak`, on {host}, on one core.", "",
             "| tried | times | failures | seconds | found |", "|---|---|---|---|---|"]
    rows: dict[str, list[Result]] = {}
    for test in tests:
        what = test.tried["what"] if test.tried else f"{test.name} (did not end)"
        if test.tried or test.outcome == "failed":
            rows.setdefault(what, []).append(test)
    for what, row in rows.items():
        times = sum(test.tried["count"] if test.tried else 1 for test in row)
        lines.append(f"| {what} | {times:,} | {_count(row, 'failed')} |"
                     f" {sum(test.seconds for test in row):.0f} | {_figures(row)} |")
    total = sum(test.seconds for test in tests)
    lines += ["", f"{len(tests)} tests, {_count(tests, 'failed')} failed, in {total / 60:.0f}"
                  " minutes."]
    RELIABILITY.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _count(tests: Iterable[Result], outcome: str) -> int:
    return sum(test.outcome == outcome for test in tests)


def _figures(row: list[Result]) -> str:
    """Numbers are summed, but of times the longest counts; words stay as they are."""
    found: dict[str, float | str] = {}
    for test in row:
        for name, value in (test.tried or {}).items():
            if name in ("what", "count"):
                continue
            if isinstance(value, str):
                found[name] = value
            elif name == "slowest":
                found[name] = max(found.get(name, 0), value)
            else:
                found[name] = found.get(name, 0) + value
    return ", ".join(f"{name.replace('_', ' ')} {value:.3f} s" if name == "slowest" else
                     f"{name.replace('_', ' ')}: {value}" for name, value in found.items())
