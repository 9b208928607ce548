"""What is drawn: a workflow, and which of its widgets get which values. Standard library only."""

import csv
import hashlib
import itertools
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from fleet import FleetError
from tools import workflow as files

SAMPLERS = ("BayesDiff_KSampler", "BayesDiff_SamplerCustom", "BayesDiff_BestOfN")
SEEDS = ("seed", "noise_seed", "value")  # how nodes call the number that noise is made from
TEXTS = ("text", "prompt", "name")  # ... and the words of a prompt
MOST_JOBS = 1_000_000
AT_MOST = (f"at most {MOST_JOBS:,} a folder were expected: take a shorter range, and another folder"
           " for the rest")
LARGEST_SEED = 2**64 - 1


class Widget(NamedTuple):
    node: str  # its number in the prompt
    name: str

    def __str__(self) -> str:
        return f"{self.node}.{self.name}"


class Change(NamedTuple):
    node: str
    name: str
    value: object


class Graph(NamedTuple):
    """A workflow that a server can run."""

    prompt: dict  # API format
    saved: dict | None  # as the front end saved it, which pictures carry; None if it was not
    places: dict[str, list[str]]  # names of each node's saved widget values, in order
    sampler: str  # the node whose report counts
    seed: Widget

    def changed(self, changes: list[Change]) -> tuple[dict, dict | None]:
        """The prompt and the saved workflow with other widget values."""
        prompt, saved = (json.loads(json.dumps(part)) for part in (self.prompt, self.saved))
        nodes = {str(node["id"]): node for node in saved["nodes"]} if saved else {}
        for node, name, value in changes:
            prompt[node]["inputs"][name] = value
            if node in nodes and name in self.places[node]:
                nodes[node]["widgets_values"][self.places[node].index(name)] = value
        return prompt, saved


# Reading

def read(path: Path, wanted: tuple[str, ...] = SAMPLERS) -> dict:
    """A workflow file of either format with one of the wanted nodes in it."""
    try:
        found = files.read(path)
    except OSError as error:
        raise FleetError(f"cannot read the workflow {path}: {error.strerror}") from error
    except ValueError as error:
        raise FleetError(f"{path} is no JSON ({error}): save the workflow in ComfyUI, by Save or"
                         " by Export (API)") from error
    kinds = [node.get("type") for node in found["nodes"]] if is_saved(found) else \
        [node.get("class_type") for node in _prompt_nodes(path, found)]
    if not set(kinds) & set(wanted):
        advice = "put BayesDiff KSampler in KSampler's place, as the scores come from there" \
            if wanted == SAMPLERS else "add it"
        raise FleetError(f"{path} has no {' or '.join(wanted)} among its {len(kinds)} nodes:"
                         f" {advice}")
    return found


def is_saved(found: dict) -> bool:
    """As the front end saves it, not as it queues it."""
    return isinstance(found, dict) and isinstance(found.get("nodes"), list)


def _prompt_nodes(path: Path, found) -> list[dict]:
    nodes = list(found.values()) if isinstance(found, dict) else []
    if not nodes or not all(isinstance(node, dict) and "class_type" in node for node in nodes):
        raise FleetError(f"{path} is no workflow of ComfyUI: neither a list of nodes, as Save"
                         " writes it, nor nodes with a class_type, as Export (API) does")
    return nodes


def graph(found: dict, object_info: dict, seed: str | None = None) -> Graph:
    """The workflow as a server with these nodes runs it. seed: NODE.WIDGET, if it is to be named"""
    prompt, places = runnable(found, object_info)
    sampler, widget = _seed_of(prompt, seed)
    return Graph(prompt, found if is_saved(found) else None, places, sampler, widget)


def runnable(found: dict, object_info: dict) -> tuple[dict, dict[str, list[str]]]:
    """The prompt, and the names of each node's saved widget values."""
    if is_saved(found):
        try:
            prompt = files.api_prompt(found, object_info)
        except ValueError as error:
            raise FleetError(f"the workflow cannot be queued as it was saved: {error}. Export it"
                             " by Export (API) in ComfyUI, which resolves reroutes, subgraphs and"
                             " nodes that are switched off") from error
        places = {str(node["id"]): files.widgets(object_info[node["type"]])
                  for node in found["nodes"] if node["type"] in object_info}
    else:
        prompt, places = found, {}
    missing = sorted({node["class_type"] for node in prompt.values()} - object_info.keys())
    if missing:
        raise FleetError(f"the server has no node {', '.join(missing)}: install the packs that the"
                         " workflow needs in that ComfyUI")
    return prompt, places


def _seed_of(prompt: dict, named: str | None) -> tuple[str, Widget]:
    """Our sampler, and the widget that its noise comes from."""
    found = [(number, widget) for number, node in prompt.items()
             if node["class_type"] in SAMPLERS for widget in [_source(prompt, number)] if widget]
    if named:
        widget = named_widget(prompt, named)
        ours = [number for number, source in found if source == widget] or \
            [number for number, node in prompt.items() if node["class_type"] in SAMPLERS]
        return ours[0], widget
    if not found:
        raise FleetError("the workflow has no seed widget at a BayesDiff sampler or at its noise:"
                         " name one with --seed-widget NODE.WIDGET")
    if len({widget for _, widget in found}) > 1:
        raise FleetError("the workflow has several seeds: choose one with --seed-widget, of "
                         + ", ".join(f"{widget} ({title(prompt, number)})"
                                     for number, widget in found))
    return found[0]


def _source(prompt: dict, number: str) -> Widget | None:
    """The seed of a sampler, at itself or at the node that it is linked to."""
    inputs = prompt[number]["inputs"]
    for name in (*SEEDS, "noise"):
        value = inputs.get(name)
        if isinstance(value, list):
            return _source(prompt, value[0])
        if isinstance(value, int) and not isinstance(value, bool):
            return Widget(number, name)
    return None


def named_widget(prompt: dict, name: str) -> Widget:
    """NODE.WIDGET, the node by its number or its title; or WIDGET, if only one node has it."""
    node, dot, widget = name.rpartition(".")
    numbers = [number for number in prompt if not dot or node in (number, title(prompt, number))]
    found = [number for number in numbers
             if not isinstance(prompt[number]["inputs"].get(widget, []), list)]
    if len(found) != 1:
        having = [f"{number}.{widget} ({title(prompt, number)})" for number in found]
        raise FleetError(f"{name!r} names {len(found)} widgets of the workflow, 1 was expected: "
                         + (f"write one of {', '.join(having)}" if having else
                            "write NODE.WIDGET with a node's number or title and a widget that is"
                            f" not linked; its nodes: {_listed(prompt)}"))
    return Widget(found[0], widget)


def title(prompt: dict, number: str) -> str:
    node = prompt[number]
    return node.get("_meta", {}).get("title") or node["class_type"]


def check_saver(graph: Graph, name: str | None) -> None:
    prompt = graph.prompt
    if name and not any(name in (number, title(prompt, number)) for number in prompt):
        raise FleetError(f"--save is {name!r}, which is no node's number or title; the workflow's"
                         f" nodes: {_listed(prompt)}")


def _listed(prompt: dict) -> str:
    return ", ".join(f"{number} {title(prompt, number)}" for number in prompt)


def prompt_text(prompt: dict, sampler: str) -> str:
    """The words that the sampler's picture is of: the first text upstream of its prompt."""
    waiting = [value[0] for name, value in prompt[sampler]["inputs"].items()
               if isinstance(value, list) and name in ("positive", "guider")]
    seen = set()
    while waiting:
        number = waiting.pop(0)
        if number in seen or number not in prompt:
            continue
        seen.add(number)
        inputs = prompt[number]["inputs"]
        for name in TEXTS:
            if isinstance(inputs.get(name), str):
                return inputs[name]
        waiting += [value[0] for name, value in sorted(inputs.items(), reverse=True)
                    if isinstance(value, list)]  # positive before negative and model
    return ""


# What is varied

class Variations(NamedTuple):
    """Every row of the table, with every choice of the grid, with every seed."""

    seeds: range | list[int]
    grid: list[tuple[str, list]]  # NODE.WIDGET and its values
    table: list[dict]  # NODE.WIDGET -> value

    @property
    def pictures(self) -> int:
        return (len(self.seeds) or 1) * (len(self.table) or 1) \
            * math.prod(len(values) for _, values in self.grid)

    def jobs(self, graph: Graph) -> Iterator[list[Change]]:
        """Seeds change fastest. A name that is no widget is refused at once, before any of them."""
        return self._jobs(graph, {name: named_widget(graph.prompt, name) for name in dict.fromkeys(
            [*(name for row in self.table for name in row), *(name for name, _ in self.grid)])})

    def _jobs(self, graph: Graph, columns: dict[str, Widget]) -> Iterator[list[Change]]:
        names = [name for name, _ in self.grid]
        for row in self.table or [{}]:
            for values in itertools.product(*(values for _, values in self.grid)):
                fixed = [Change(*columns[name], value)
                         for name, value in {**row, **dict(zip(names, values))}.items()]
                for seed in self.seeds or [None]:
                    yield fixed if seed is None else [*fixed, Change(*graph.seed, seed)]


def variations(seeds: str | None, grid: list[str], table: Path | None) -> Variations:
    """From the command line's words; refused before anything is started."""
    made = Variations(_seeds(seeds) if seeds else [], [_choices(words) for words in grid],
                      _table(table) if table else [])
    if not seeds and not table and not grid:
        raise FleetError("nothing is varied: give --seeds 0:100, or --csv, or --set")
    if made.pictures > MOST_JOBS:
        raise FleetError(f"{made.pictures:,} pictures are asked for, {AT_MOST}")
    return made


def _seeds(words: str) -> range | list[int]:
    parts = words.split(":")
    number = "[0-9]{1,20}"
    if not all(re.fullmatch(f"{number}(,{number})*" if len(parts) == 1 else number, part)
               for part in parts) or len(parts) > 3:
        raise FleetError(f"--seeds is {words!r}: FIRST:END, FIRST:END:STEP or a list such as 3,5,8"
                         " was expected, of whole numbers from 0")
    if len(parts) == 1:
        found = list(dict.fromkeys(map(int, words.split(","))))
    else:
        first, end, *step = map(int, parts)
        if step == [0]:
            raise FleetError(f"--seeds is {words!r}, a step of 1 or more was expected")
        found = range(first, end, *step)
    if not found:
        raise FleetError(f"--seeds is {words!r}, which holds no seed: END must be above FIRST (the"
                         " first ten are 0:10)")
    if found[MOST_JOBS:]:  # of a longer range there may be no length
        raise FleetError(f"--seeds is {words[:80]!r}, {AT_MOST}")
    if max(found) > LARGEST_SEED:
        raise FleetError(f"--seeds is {words!r}: seeds go up to 2^64 - 1")
    return found


def _choices(words: str) -> tuple[str, list]:
    name, equals, values = words.partition("=")
    if not equals or not name or not values:
        raise FleetError(f"--set is {words!r}: NODE.WIDGET=VALUE|VALUE|... was expected, such as"
                         " 6.cfg=2|3.5|5")
    return name.strip(), [_value(value) for value in values.split("|")]


def _table(path: Path) -> list[dict]:
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError) as error:
        raise FleetError(f"cannot read the table {path}: {error}") from error
    if not rows or any(None in row or None in row.values() for row in rows):
        raise FleetError(f"{path} is no table: a first line with names of widgets (NODE.WIDGET) and"
                         " at least one line of as many values were expected")
    return [{name.strip(): _value(value) for name, value in row.items()} for row in rows]


def _value(text: str):
    """A number or a truth value as such, all else as text."""
    try:
        found = json.loads(text)
    except ValueError:
        return text
    return found if isinstance(found, int | float) else text


def key(changes: list[Change]) -> str:
    """The same for the same values, so that nothing is drawn twice."""
    return json.dumps(sorted(changes), separators=(",", ":"))


def mark(prompt: dict) -> str:
    """Tells workflows apart: by what is drawn, not by where nodes lie and how they are called."""
    drawn = {number: (node["class_type"], node["inputs"]) for number, node in prompt.items()}
    return hashlib.sha256(json.dumps(drawn, sort_keys=True).encode()).hexdigest()[:16]
