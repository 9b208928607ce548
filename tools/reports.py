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
COMPATIBILITY, RELIABILITY, FULL_SIZE = (
    REPOSITORY / "docs" / f"{name}.md" for name in ("compatibility", "reliability", "full_size"))


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
             f" {TORCH[0].replace('==', ' ')}, no GPU; minutes while other tests ran beside.", "",
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


def write_full_size(tests: list[Result], host: str) -> None:
    """Rows of what did not run this time stay as they are."""
    head = ["model", "parameters, M (network)", "files, GB", "network's weights", "drawn", "steps",
            "outcome", *(f"{name}, CPU s" for name in PHASES), *(f"{name}, GB" for name in PHASES)]
    known = FULL_SIZE.read_text(encoding="utf-8").splitlines() if FULL_SIZE.exists() else []
    rows = {line.split(" | ")[0].removeprefix("| "): line for line in known
            if line.count(" | ") == len(head) - 1}
    for test in tests:
        row = _full_size_row(test)
        if test.outcome != "skipped" or row[0] not in rows:
            rows[row[0]] = f"| {' | '.join(row)} |"
    rows = {name: rows[name] for name in FULL_SIZE_MODELS if name in rows}
    lines = ["# Models of full size", "", *FULL_SIZE_WORDS.format(host=host).splitlines(), "",
             f"| {' | '.join(head)} |", "|---" * len(head) + "|", *rows.values(), ""]
    missing = [name for name in FULL_SIZE_MODELS if name not in rows]
    if missing:
        lines += [f"Not run yet: {'; '.join(missing)}.", ""]
    lines += FULL_SIZE_NOTES.splitlines()
    FULL_SIZE.write_text("\n".join(lines) + "\n", encoding="utf-8")


PHASES = ("load", "stock", "light", "accurate")
FULL_SIZE_MODELS = ("SD1.5, U-Net in fp8", "SD1.5", "SDXL", "Flux's width, a third of its depth",
                    "Wan 2.1, 1.3 B")
FULL_SIZE_WORDS = """\
Written by `python run.py test full` on {host}, no GPU, one thread. The files have the names and
shapes of real ones and random weights: what is drawn means nothing, but its bits can be compared.
The stock loaders read them in a server of their own, which then runs four prompts: *load*; *stock*,
the host's own sampler and VAE; *light*, the shipped example with its numbers lowered (LLLA Fit and
Save, sampler, VAE, heat map); *accurate*, with LLLA Load instead of the fit, and Trajectory Save.
*passed*: both pictures are the stock sampler's bit for bit, and the trajectory's file, loaded, ends
in that picture, too.

CPU s is the server's CPU time for a whole prompt: the machine was shared. GB is the most memory of
its process during that prompt, looked at every 0.05 s, without the file's pages that are mapped.
"""
FULL_SIZE_NOTES = """\
- SD1.5 and SDXL: `6 Calibrate your checkpoint`, U-Net, CLIP and VAE out of one file. A fit of 8
  latents at 128 x 128 pixels after 20 steps for the model's own sample, or of 2 given latents.
  SDXL's own 1024 x 1024 pixels are too many for this processor.
- Flux: `7 Flux` with 32 random tokens instead of its two text encoders, and a fit of 2 latents.
- Wan: a small graph of the same kind, 32 random tokens, a fit of 2 latents of 17 frames.
- On a CPU the host calculates in fp32. What is *float8_e4m3fn as float32* stays in 8 bits in memory
  and is unpacked a layer at a time; what is *float32* was unpacked as it was loaded."""


def _full_size_row(test: Result) -> list[str]:
    found = test.tried or {}
    why = (test.why.splitlines() or [""])[0].replace("|", "/")
    if "costs" not in found:
        name = test.name.rpartition("[")[2].rstrip("]")
        return [found.get("what", name), *["-"] * 5, f"{test.outcome}: {why}",
                *["-"] * 2 * len(PHASES)]
    figures = [found["costs"].get(name, ("-", "-")) for name in PHASES]
    return [found["what"], f"{found['parameters'] / 1e6:,.0f} ({found['network'] / 1e6:,.0f})",
            f"{found['size'] / 1e9:.1f}", found.get("precision", "-"), found["picture"],
            str(found["steps"]), test.outcome + (f": {why}" if why else ""),
            *(str(cpu) for cpu, _ in figures), *(str(memory) for _, memory in figures)]


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
