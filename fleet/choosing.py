"""Which pictures of a ledger are kept: the filter's criteria over all of it, within prompts."""

import json
import math
import os
import shutil
from pathlib import Path
from typing import NamedTuple

from fleet import FleetError, pack
from fleet.ledger import Ledger, Picture

filtering, taught = pack.module("bayesdiff_core.filtering"), pack.module("bayesdiff_core.taught")
BayesDiffError = pack.module("bayesdiff_core.checks").BayesDiffError
TAUGHT = "taught"
SIDES = ("kept", "rejected")


class Chosen(NamedTuple):
    picture: Picture
    score: float
    group: str
    kept: bool


class Choice(NamedTuple):
    name: str  # of the score
    pictures: list[Chosen]  # by score, the surest first
    notes: list[str]  # for each group, and what was left out


def choose(book: Ledger, rule, score: str | None = None,
           taught_file: Path | None = None) -> Choice:
    """rule: a filtering.Rule, decided within each prompt and setting: only those compare."""
    everything = list(book.pictures())
    if not everything:
        raise FleetError("the ledger holds no picture yet: run the fleet first")
    name, scored, notes = _scores(everything, score, taught_file)
    labels = [_label(picture) for picture, _ in scored]
    try:
        decision = filtering.decide([value for _, value in scored], rule, labels)
    except BayesDiffError as error:
        raise FleetError(str(error)) from error
    kept = set(decision.kept)
    chosen = [Chosen(picture, value, label, index in kept)
              for index, ((picture, value), label) in enumerate(zip(scored, labels))]
    notes += [f"{group.label or 'all'}: {len(group.members)} pictures, {group.note}"
              for group in decision.groups]
    return Choice(name, sorted(chosen, key=lambda each: each.score), notes)


def _label(picture: Picture) -> str:
    """The prompt and what else was varied, but for the seed."""
    widgets = json.loads(picture.widgets)
    return ", ".join([picture.prompt, *(f"{name}={value}" for name, value in widgets.items()
                                        if value != picture.prompt)]).strip(", ")


def _scores(pictures: list[Picture], score: str | None,
            taught_file: Path | None) -> tuple[str, list[tuple[Picture, float]], list[str]]:
    """Pictures with the score that was asked for; those without a finite one are told of."""
    if taught_file:
        return TAUGHT, *_taught(pictures, taught_file)
    values = [picture.score if score is None else json.loads(picture.scores).get(score)
              for picture in pictures]
    found = [(picture, value) for picture, value in zip(pictures, values)
             if value is not None and math.isfinite(value)]
    if not found:
        names = dict.fromkeys(name for picture in pictures for name in json.loads(picture.scores))
        raise FleetError(f"no picture has a score {score!r}: choose one of {', '.join(names)}")
    return score or _own_name(found[0][0]), found, _left_out(len(pictures) - len(found))


def _left_out(count: int) -> list[str]:
    return [f"left out, as they have no such score: {count}"] if count else []


def _own_name(picture: Picture) -> str:
    """What the sampler's own score is called."""
    return next((name for name, value in json.loads(picture.scores).items()
                 if value == picture.score), "score")


def _taught(pictures: list[Picture], file: Path) -> tuple[list[tuple[Picture, float]], list[str]]:
    """What Uncertainty Self-check learned, with each prompt as a batch of its own."""
    groups: dict[str, list[Picture]] = {}
    whole = [picture for picture in pictures if None not in json.loads(picture.scores).values()]
    for picture in whole:
        groups.setdefault(_label(picture), []).append(picture)
    found, notes = [], _left_out(len(pictures) - len(whole))
    try:
        learned = taught.learn(pack.module("nodes.files.taught_file").read(file))
        for members in groups.values():
            each = [json.loads(picture.scores) for picture in members]
            names = set.intersection(*(set(scores) for scores in each))
            values, told = taught.score(learned, {name: [scores[name] for scores in each]
                                                  for name in sorted(names)})
            found += zip(members, values)
            notes += told
    except (BayesDiffError, OSError, ValueError) as error:
        raise FleetError(f"{file}: {error}") from error
    return found, list(dict.fromkeys(notes))


def write(choice: Choice, source: Path, folder: Path, copies: bool = False) -> None:
    """kept/ and rejected/ beside each other, in place of an earlier choice's."""
    for side in SIDES:
        shutil.rmtree(folder / side, ignore_errors=True)
        (folder / side).mkdir(parents=True)
    for place, each in enumerate(choice.pictures):
        file = source / each.picture.file
        target = folder / SIDES[not each.kept] / f"{place:06}_{each.picture.file}"
        if copies or not _linked(file, target):
            shutil.copy2(file, target)


def _linked(file: Path, target: Path) -> bool:
    try:
        target.symlink_to(os.path.relpath(file.resolve(), target.parent.resolve()))
        return True
    except OSError:  # Windows without the right to make links
        return False
