"""Best of N over a fleet: every seed to a step, ranked together, only the best ones to the end.

What a run has heard from its model until then comes to the driver and goes on to whichever worker
is free. The pictures are those of single runs, bit for bit.
"""

import json
import math
from pathlib import Path

from fleet import FleetError
from fleet.ledger import Job, Ledger, Part
from fleet.plan import Change, Graph, key, named_widget

SAMPLER, STAGE = "BayesDiff_KSampler", "BayesDiff_Stage"
FILE = "bayesdiff_runs/{}.safetensors"  # in a server's output folder, by the name of the run
PARTS = "parts"


def graphs(graph: Graph, object_info: dict, stop_at: float, rank_by: str) -> tuple[Graph, Graph]:
    """The workflow up to the stop, with what the sampler needs alone, and from there on."""
    kind = graph.prompt[graph.sampler]["class_type"]
    if kind != SAMPLER:
        raise FleetError(f"the workflow's sampler is {kind}, {SAMPLER} was expected for runs in two"
                         " parts: put that in its place")
    ports = object_info[STAGE]["input"]
    names = {**ports.get("required", {}), **ports.get("optional", {})}
    ranks = _options(names["rank_by"])
    if rank_by and rank_by not in ranks:
        raise FleetError(f"--rank-by is {rank_by!r}: choose one of {', '.join(ranks)}")
    made = []
    for part in ("start", "finish"):
        prompt = json.loads(json.dumps(graph.prompt))
        node = prompt[graph.sampler]
        node["class_type"] = STAGE
        node["inputs"] = {name: value for name, value in node["inputs"].items() if name in names}
        node["inputs"].update(part=part, run="", stop_at=stop_at, rank_by=rank_by or ranks[0])
        made.append(prompt)
    needed = upstream(made[0], graph.sampler)
    start = {number: node for number, node in made[0].items() if number in needed}
    named_widget(start, f"{graph.seed.node}.{graph.seed.name}")
    return graph._replace(prompt=start, saved=None), graph._replace(prompt=made[1])


def name_of(graph: Graph) -> str:
    """The widget with the name of the run."""
    return f"{graph.sampler}.run"


def _options(port: list) -> list[str]:
    return port[0] if isinstance(port[0], list) else port[1]["options"]


def upstream(prompt: dict, number: str) -> set[str]:
    """A node and all that it depends on."""
    found, waiting = set(), [number]
    while waiting:
        number = waiting.pop()
        if number not in found:
            found.add(number)
            waiting += [value[0] for value in prompt[number]["inputs"].values()
                        if isinstance(value, list)]
    return found


def best(parts: list[Part], graph: Graph, changes: dict[int, list[Change]],
         keep: int) -> list[Part]:
    """The `keep` lowest scores of each prompt and setting, lowest first; without one it is last."""
    groups: dict[str, list[Part]] = {}
    for part in parts:
        rest = [change for change in changes[part.job] if change[:2] != tuple(graph.seed)]
        groups.setdefault(json.dumps(rest), []).append(part)
    return [part for members in groups.values()
            for part in sorted(members, key=_rank)[:keep]]


def _rank(part: Part) -> tuple[bool, float]:
    bad = part.score is None or not math.isfinite(part.score)
    return bad, 0.0 if bad else part.score


def files_for(parts: list[Part], folder: Path, changes: dict[int, list[Change]]):
    """What a job of the second part needs from the first."""
    files_by_key = {key(changes[part.job]): part.file for part in parts}

    def files(job: Job) -> dict[str, bytes]:
        return {FILE: (folder / files_by_key[key(job.changes)]).read_bytes()}
    return files


def savings(book: Ledger, chosen: list[Part]) -> str:
    """In words, against every seed to its end."""
    parts, finished = book.parts(), list(book.pictures())
    made = sum(part.calls for part in parts) + sum(row.calls + row.extra_calls for row in finished)
    if not finished:
        return f"{made} network calls, none finished"
    alone = sum(part.calls - part.ahead_calls for part in chosen) / len(chosen) \
        + sum(row.calls + row.extra_calls for row in finished) / len(finished)
    whole = round(alone * len(parts))
    return (f"{len(finished)} of {len(parts)} seeds finished in {made} network calls, where all"
            f" would have taken {whole}: {whole - made} saved ({1 - made / whole:.0%})")
