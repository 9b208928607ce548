"""One ComfyUI server with this pack, and how a job is drawn on it. Knows nothing of Ray.

The server listens on 127.0.0.1 and only its worker talks to it. It has a scratch folder of its own;
models, inputs and other packs are those of the ComfyUI folder, by links.
"""

import contextlib
import errno
import json
import os
import socket
import sys
import tempfile
import threading
import time
import urllib.error
from pathlib import Path
from typing import NamedTuple

from fleet import guard
from fleet.plan import Change, Graph, prompt_text, title
from tools import server
from tools.places import REPOSITORY

REPORT = "bayesdiff_report"  # nodes/metadata.py
SHARED = ("models", "input")
ANSWER_SECONDS = 30  # for one request
PREVIEW_SECONDS = 60  # after which nobody looks at a preview any more
START_SECONDS = 180  # for a server to boot
# Of a server after which no other job succeeds: its GPU is in disorder, its disk is full.
SICK = ("CUDA error", "HIP error", f"[Errno {errno.ENOSPC}]")


class Place(NamedTuple):
    """Where a worker finds its ComfyUI. A node's own COMFYUI_PATH and COMFYUI_PYTHON come first."""

    comfyui: str
    python: str | None  # None: ComfyUI's own where it has one, else this one
    on_cpu: bool
    base: str | None = None  # whose models, inputs and packs; None: ComfyUI's own folder
    options: tuple[str, ...] = ()  # for the server's command line
    start_seconds: float = START_SECONDS


class Order(NamedTuple):
    """What all jobs of a run share."""

    graph: Graph
    save: str | None = None  # the node that saves the pictures, if it is to be named
    url: str | None = None  # where the worker itself writes them; None: they go to the driver
    file: str | None = None  # in the server's output folder, if that is wanted and no pictures ...
    named: str | None = None  # ... and the sampler's widget with its name: {} is the job's number


class WorkerFault(Exception):
    """This worker is of no use any more; the job may be."""


class Lacking(WorkerFault):
    """A pack, a model or a file that the workflow needs is not on this machine."""


class JobFault(Exception):
    """The server is well, the job is not."""


class Worker:
    def __init__(self, name: str, place: Place):
        self.name = f"{name}@{socket.gethostname()}"
        self._place = place
        self._address = ""
        self._scratch: Path | None = None
        self._open = contextlib.ExitStack()
        self._stopped = threading.Event()

    # The server

    def start(self) -> dict:
        """Boots the server; what there is to know about it."""
        place = self._place
        host = Path(os.environ.get("COMFYUI_PATH") or place.comfyui)
        python = Path(os.environ.get("COMFYUI_PYTHON") or place.python or python_of(host))
        if not (host / "main.py").is_file():
            raise WorkerFault(f"{socket.gethostname()} has no ComfyUI at {host}: set COMFYUI_PATH"
                              " there before ray start, or --comfyui")
        self._scratch = Path(self._open.enter_context(tempfile.TemporaryDirectory(
            prefix="bayesdiff-fleet-", ignore_cleanup_errors=True)))
        link_base(Path(place.base) if place.base else host, self._scratch)
        before = [sys.executable, guard.__file__, str(self._scratch)]
        os.environ["BAYESDIFF_FLEET"] = "1"  # the server offers the nodes for runs in two parts
        if not place.on_cpu and os.environ.get("OMP_NUM_THREADS") == "1":
            del os.environ["OMP_NUM_THREADS"]  # Ray's, for who asks for no CPU: text encoders do
        try:
            self._address = self._open.enter_context(server.running(
                host, python, self._scratch, on_cpu=place.on_cpu, log=self._scratch / "server.log",
                options=[*place.options, "--database-url", "sqlite:///:memory:"], before=before,
                seconds=place.start_seconds))
            if not server.ask(self._address, "/object_info/BayesDiff_KSampler"):
                raise WorkerFault("the pack did not load in its ComfyUI: look at that machine's log"
                                  f" of the server, which ends with {self._log_end()}")
        except (server.ServerFailed, OSError, WorkerFault) as error:
            self._open.close()
            raise WorkerFault(str(error)) from error
        return {"name": self.name, "pid": os.getpid(), "scratch": str(self._scratch)}

    def _log_end(self) -> str:
        return " | ".join((self._scratch / "server.log").read_text().splitlines()[-5:])

    def stop(self) -> None:
        self._stopped.set()
        self._open.close()

    def beat(self) -> float:
        return time.time()

    def object_info(self) -> dict:
        return server.ask(self._address, "/object_info")

    # A job

    def draw(self, order: Order, changes: list[Change], seconds: float, pace: float | None,
             files: dict[str, bytes] | None, job: int) -> dict:
        """Pictures of the graph with these changes, and all there is to tell of them.

        pace: how long it took before. files: what it needs in the server's output folder, by name.
        Two jobs may be at work at once, one of them in the server's queue.
        """
        began = time.monotonic()
        prompt, saved = order.graph.changed(changes)
        if order.named:
            node, _, widget = order.named.rpartition(".")
            prompt[node]["inputs"][widget] = f"job{job}"
        used = [self._scratch / "output" / file.format(f"job{job}")
                for file in [*(files or {}), *([order.file] if order.file else [])]]
        wanted = used[-1] if order.file else None
        for path, data in zip(used, (files or {}).values()):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)

        def run() -> dict:
            entry = self._run(prompt, saved, began + seconds, pace, changes)
            used.extend(map(self._path, written(entry)))
            return entry
        try:
            entry = run()
            if order.graph.sampler in _cached(entry):
                # The host does not tell again what it need not do again: another, unused input.
                prompt[order.graph.sampler]["inputs"]["fleet_again"] = time.time()
                entry = run()
            outputs = server.outputs_of(entry)
            if wanted:
                reports = outputs.get(order.graph.sampler, {}).get(REPORT) or [{}]
                found = {"report": reports[0], "data": wanted.read_bytes()}
            else:
                found = results(order, prompt, outputs)
                for place, picture in enumerate(found["pictures"]):
                    image = picture.pop("image")
                    picture["file"] = f"{job:07}_{place}{Path(image['filename']).suffix}"
                    picture["data"] = self._saved(image, order.url, picture["file"])
        except server.ServerFailed as error:
            raise fault_of(_shortened(str(error))) from error
        finally:
            self._tidy(used)
        return {**found, "worker": self.name, "seconds": _own_seconds(entry),
                "with_transfer": time.monotonic() - began}

    def _run(self, prompt: dict, saved: dict | None, end: float, pace: float | None,
             changes: list[Change]) -> dict:
        """The prompt's entry in the history, once there is one."""
        info = {"workflow": saved} if saved else {}
        try:
            answer = self._ask("/prompt", end, {"prompt": prompt,
                                                "extra_data": {"extra_pnginfo": info}})
            if answer["node_errors"]:
                raise server.ServerFailed(f"refused in part: {json.dumps(answer['node_errors'])}",
                                          {"error": {}, **answer})
        except server.ServerFailed as error:
            # Else one machine that lacks something would fail all jobs, as it does so in no time.
            if lacks(error.body, changes):
                raise Lacking(f"{self.name} lacks what the workflow needs:"
                              f" {_shortened(str(error))}") from error
            raise
        number = answer["prompt_id"]
        wait = 0.8 * (pace or 0)  # few questions, as they take the server's time
        while not self._stopped.wait(min(wait, max(end - time.monotonic(), 0))):
            entry = self._ask(f"/history/{number}", end).get(number)
            if entry:
                return entry
            if time.monotonic() > end:
                raise WorkerFault("the server did not finish in time")
            wait = min(max(0.01 * (pace or 1), 0.005), 0.5)
        raise WorkerFault("stopped")

    def _ask(self, path: str, end: float, body: dict | None = None) -> dict:
        seconds = min(max(end - time.monotonic(), 1), ANSWER_SECONDS)
        try:
            return server.ask(self._address, path, body, seconds)
        except (urllib.error.URLError, OSError, ValueError) as error:
            raise WorkerFault(f"the server does not answer ({error})") from error

    def _path(self, image: dict) -> Path:
        return self._scratch / image["type"] / image["subfolder"] / image["filename"]

    def _saved(self, image: dict, url: str | None, name: str) -> bytes | None:
        data = self._path(image).read_bytes()
        if url is None:
            return data
        try:
            import fsspec
            with fsspec.open(f"{url.rstrip('/')}/{name}", "wb") as to:
                to.write(data)
        except Exception as error:  # each kind of storage has errors of its own
            raise WorkerFault(f"cannot write to {url}: {type(error).__name__}: {error}") from error
        return None

    def _tidy(self, used: list[Path]) -> None:
        """What a server leaves behind would fill a disk in a night; the panels' previews too."""
        old = time.time() - PREVIEW_SECONDS
        for path in used:
            path.unlink(missing_ok=True)
        for path in (self._scratch / "temp").rglob("*.*"):
            with contextlib.suppress(OSError):
                if path.stat().st_mtime < old:
                    path.unlink()


def python_of(host: Path) -> str:
    """ComfyUI's own environment where it has one."""
    for folder in ("venv", ".venv"):
        if (host / folder / "bin" / "python").exists():
            return str(host / folder / "bin" / "python")
    return sys.executable


def link_base(base: Path, scratch: Path) -> None:
    """The folders that workers share, and every pack but another copy of this one."""
    for name in SHARED:
        if (base / name).is_dir():
            (scratch / name).symlink_to((base / name).resolve(), target_is_directory=True)
    (scratch / "custom_nodes").mkdir()
    for pack in sorted((base / "custom_nodes").glob("*")):
        if pack.name.startswith((".", "__pycache__")) or is_this_pack(pack):
            continue
        (scratch / "custom_nodes" / pack.name).symlink_to(pack.resolve())


def is_this_pack(folder: Path) -> bool:
    project = folder / "pyproject.toml"
    name = next(line for line in (REPOSITORY / "pyproject.toml").read_text().splitlines()
                if line.startswith("name"))
    return project.is_file() and name in project.read_text(errors="replace").splitlines()


def results(order: Order, prompt: dict, outputs: dict) -> dict:
    """Scores, calls and pictures of a finished prompt, a picture with its own scores."""
    graph = order.graph
    reports = outputs.get(graph.sampler, {}).get(REPORT)
    if not reports:
        raise server.ServerFailed(f"{title(prompt, graph.sampler)} gave no report: a BayesDiff of"
                                  " this version is needed on the server")
    report = reports[0]
    count = len(report["scores"])
    scores = {report.get("score") or report.get("rank_by"): report["scores"],
              **report.get("all", {})}
    for output in outputs.values():
        for other in output.get(REPORT, []):
            if len(other.get("scores", ())) == count and isinstance(other.get("all"), dict):
                scores.update(other["all"])
    images = images_of(order, prompt, outputs, count)
    seeds = report.get("seeds") or [prompt[graph.seed.node]["inputs"][graph.seed.name]] * count
    extra = report.get("extra_calls", 0) + report.get("check_calls", 0)
    return {"prompt": prompt_text(prompt, graph.sampler), "calls": report.get("calls"),
            "extra_calls": extra, "pictures": [
                {"seed": seeds[i], "score": report["scores"][i], "image": images[i],
                 "scores": {name: each[i] for name, each in scores.items() if len(each) == count}}
                for i in range(count)]}


def written(entry: dict) -> list[dict]:
    """The files that a prompt's nodes wrote, whatever they call them. What they show of the input
    folder is the user's."""
    return [file for output in entry["outputs"].values() for files in output.values()
            if isinstance(files, list) for file in files if isinstance(file, dict)
            and {"filename", "subfolder"} <= file.keys() and file.get("type") in ("output", "temp")]


def images_of(order: Order, prompt: dict, outputs: dict, count: int) -> list[dict]:
    """The saved pictures that the scores belong to."""
    saved = {number: images for number, output in outputs.items()
             if (images := [i for i in output.get("images", []) if i["type"] == "output"])}
    fitting = [images for number, images in saved.items() if len(images) == count
               and order.save in (None, number, title(prompt, number))]
    if len(fitting) != 1:
        found = [f"{number} {title(prompt, number)}: {len(images)}"
                 for number, images in saved.items()]
        raise server.ServerFailed(
            f"{len(fitting)} nodes save {count} pictures, one for each score, where 1 was expected"
            + (f": name it with --save, of {', '.join(found)}" if found else
               ": put a Save Image behind the sampler"))
    return fitting[0]


def fault_of(words: str) -> Exception:
    """Whose fault it is. A sick machine would fail all jobs otherwise, as it does so in no time."""
    return (WorkerFault if any(sign in words for sign in SICK) else JobFault)(words)


def lacks(refusal: dict | None, changes: list[Change]) -> bool:
    """Whether the host refused a prompt for a node or a choice that it does not have, and that is
    not the job's own."""
    if not isinstance(refusal, dict) or not isinstance(refusal.get("error"), dict):
        return False
    if refusal["error"].get("type") == "missing_node_type":
        return True
    varied = {(change.node, change.name) for change in changes}
    refused = [(number, error) for number, node in (refusal.get("node_errors") or {}).items()
               for error in node["errors"]]
    return bool(refused) and all(
        error["type"] in ("value_not_in_list", "custom_validation_failed")
        and (number, error.get("extra_info", {}).get("input_name")) not in varied
        for number, error in refused)


def _cached(entry: dict) -> list[str]:
    return [number for kind, message in entry["status"]["messages"] if kind == "execution_cached"
            for number in message["nodes"]]


def _own_seconds(entry: dict) -> float:
    """By the server's own clock."""
    times = [message[1]["timestamp"] for message in entry["status"]["messages"]
             if "timestamp" in message[1]]
    return (max(times) - min(times)) / 1000 if times else 0.0


def _shortened(words: str, most: int = 600) -> str:
    return words if len(words) <= most else words[:most] + " ..."
