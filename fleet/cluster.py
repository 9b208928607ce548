"""Workers as Ray actors: started, watched, replaced. The only file that imports Ray."""

import logging
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from fleet import FleetError
from fleet.ledger import Job
from fleet.worker import START_SECONDS, JobFault, Lacking, Order, Place, Worker, WorkerFault
from tools.places import REPOSITORY

LOCAL = ("127.0.0.1", "localhost", "::1")
# Not for workers: what is sent is the pack, this package and tools/.
NOT_SENT = [".git", ".github", ".ci", "tests", "docs", "assets", "benchmarks/results", "output",
            "**/__pycache__", "**/.pytest_cache"]
BEAT_SECONDS = 5  # between two questions whether a busy worker is alive
SILENT_SECONDS = 45  # without an answer it counts as lost
MARGIN_SECONDS = 120  # beyond the time for a server to boot, which its worker sees to
GRACE_SECONDS = 60  # beyond a job's own time-out, which its worker sees to
ALONE_SECONDS = 600  # without any worker, before the fleet gives up
MOST_STRIKES = 5  # starts without a picture, before a place is given up
LONGEST_PAUSE = 60
DEPTH = 2  # jobs that a worker has in hand: its server starts the next one at once


def ray():
    """Ray, with what it should do set before it is first imported."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_worker_niceness", "0")  # else servers yield to all else (15)
    try:
        import ray as found
    except ImportError as error:
        raise FleetError("Ray is not installed in this Python: pip install 'ray>=2.50' (or start"
                         " through run.py, which has it)") from error
    return found


@contextmanager
def connected(address: str | None, workers: int | None, on_cpu: bool) -> Iterator[tuple[int, bool]]:
    """A cluster for as long as the block takes; for how many workers, and whether on CPUs."""
    if address is None or _is_local(address):
        # Else Ray takes 127.0.0.1 for the machine's outside address.
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    if address is not None:  # else what is no head of Ray would be asked for a quarter of an hour
        os.environ.setdefault("RAY_NUM_REDIS_GET_RETRIES", "1")
    engine = ray()
    logging.getLogger("ray").setLevel(logging.CRITICAL)  # its long words: ours are in the ledger
    common = {"log_to_driver": False, "configure_logging": False}
    if address is None:
        engine.init(address="local", _node_ip_address="127.0.0.1", include_dashboard=False,
                    num_cpus=max(workers or 1, os.cpu_count() or 1),
                    object_store_memory=512 * 2**20, **common)
    else:
        check_reachable(address)
        try:
            engine.init(address=address, runtime_env={"working_dir": str(REPOSITORY),
                                                      "excludes": NOT_SENT}, **common)
        except Exception as error:  # another version, a wrong token, a port that is not Ray's
            raise FleetError(f"cannot join the cluster at {address}: {_shortened(error)}. The"
                             " address must be what ray start --head printed; Python, Ray and its"
                             " token must be the same on every machine") from error
    try:
        resources = engine.cluster_resources()
        on_cpu = on_cpu or (address is None and not resources.get("GPU"))
        yield _room(resources, workers, on_cpu), on_cpu
    except engine.exceptions.RayError as error:
        raise FleetError(f"the cluster failed: {_cause(error)}. What was drawn is recorded: run the"
                         " same command again") from error
    finally:
        engine.shutdown()


def check_reachable(address: str) -> None:
    """At once and in words: Ray itself would try for minutes."""
    host, colon, port = address.rpartition(":")
    if "://" in address or not colon or not port.isdigit():
        raise FleetError(f"--address is {address!r}: HOST:PORT of a cluster's head was expected, as"
                         " ray start --head prints it, such as 10.0.0.1:6379")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
    except OSError as error:
        raise FleetError(f"no cluster answers at {address} ({error}): start one with ray start"
                         " --head on that machine, or leave --address out to use this one"
                         ) from error
    if not _is_local(address):
        print("warning: this cluster is open to a network. Whoever reaches its ports, and has its"
              " token where it asks for one, can run programs on every machine of it: keep it in a"
              " private network (docs/fleet.md)", file=sys.stderr)


def _is_local(address: str) -> bool:
    return address.rpartition(":")[0].strip("[]") in LOCAL


def _room(resources: dict, workers: int | None, on_cpu: bool) -> int:
    kind = "CPU" if on_cpu else "GPU"
    room = int(resources.get(kind, 0))
    if not on_cpu and not room:
        raise FleetError("the cluster has no GPU: give --cpu to work without")
    if workers and workers > room:
        raise FleetError(f"{workers} workers are asked for and the cluster has {room} {kind}s, one"
                         " for each: ask for fewer, or add machines")
    return workers or (room if not on_cpu else 1)


def comfyui_worker(place: Place) -> Callable[[str], object]:
    """Starts an actor that owns a ComfyUI server."""
    engine = ray()

    @engine.remote(concurrency_groups={"beat": 1, "draw": DEPTH}, max_restarts=0)
    class Actor(Worker):
        @engine.method(concurrency_group="draw")
        def draw(self, *args):
            return super().draw(*args)

        @engine.method(concurrency_group="beat")
        def beat(self):
            return super().beat()

        @engine.method(concurrency_group="beat")
        def stop(self):
            return super().stop()

    share = {"num_cpus": 1} if place.on_cpu else {"num_cpus": 0, "num_gpus": 1}
    return lambda name: Actor.options(**share).remote(name, place)


class Done(NamedTuple):
    worker: str
    job: Job
    result: dict


class Failed(NamedTuple):
    """The job's own fault."""

    worker: str
    job: Job
    words: str


class Lost(NamedTuple):
    """A worker is gone, with or without a job."""

    worker: str
    job: Job | None
    words: str


class Unfit(NamedTuple):
    """A worker's machine lacks something: its place is given up, the job is as good as before."""

    worker: str
    job: Job
    words: str


Event = Done | Failed | Lost | Unfit


class Slot:
    """A place for a worker, which may be filled anew."""

    def __init__(self, name: str):
        self.name = name
        self.actor = self.starting = self.beat = None
        self.jobs: dict[object, Job] = {}  # by what Ray will answer with
        self.alive = False  # its server has booted
        self.heard = self.deadline = self.pause_until = 0.0
        self.strikes = 0  # starts since the last result
        self.facts: dict = {}


class Crew:
    """start(name) gives an actor."""

    def __init__(self, start: Callable[[str], object], count: int,
                 start_seconds: float = START_SECONDS):
        self._ray, self._start, self._start_seconds = ray(), start, start_seconds
        self._slots = [Slot(f"worker{i}") for i in range(count)]
        self._order = None  # as an object that all share
        self._alone_since = time.monotonic()
        self._last_words = ""  # of a worker that was lost

    @property
    def size(self) -> int:
        return len(self._slots)

    def take(self, order: Order) -> None:
        """What the jobs that follow share: sent to a machine once."""
        self._order = self._ray.put(order)

    def idle(self, depth: int = 1) -> list[Slot]:
        """A place for each job that may be given, those without any first."""
        return [slot for level in range(depth) for slot in self._slots
                if slot.alive and len(slot.jobs) <= level]

    def busy(self) -> int:
        return sum(len(slot.jobs) for slot in self._slots)

    def alive(self) -> int:
        return sum(slot.alive for slot in self._slots)

    def object_info(self) -> dict:
        """Of the first server that is up; waits for it."""
        while not self.idle():
            lost = self.poll(0.5)
            if lost and not self.alive():
                print(f"  {lost[-1].worker}: {lost[-1].words}", file=sys.stderr)
        return self._ray.get(self.idle()[0].actor.object_info.remote(), timeout=60)

    def give(self, slot: Slot, job: Job, seconds: float, pace: float | None,
             files: dict | None = None) -> None:
        now = time.monotonic()
        if not slot.jobs:
            slot.heard = now
        slot.deadline = now + seconds + GRACE_SECONDS
        slot.jobs[slot.actor.draw.remote(self._order, job.changes, seconds, pace, files,
                                         job.number)] = job

    def poll(self, seconds: float) -> list[Event]:
        """What has happened; waits that long for something to."""
        self._fill()
        waiting = {ref: slot for slot in self._slots
                   for ref in (slot.jobs if slot.alive else [slot.starting]) if ref is not None}
        events = []
        if waiting:
            ready, rest = self._ray.wait(list(waiting), num_returns=1, timeout=seconds,
                                         fetch_local=False)
            if ready and rest:
                ready += self._ray.wait(rest, num_returns=len(rest), timeout=0,
                                        fetch_local=False)[0]
            for ref in ready:
                events += self._heard(waiting[ref], ref)
        else:
            time.sleep(seconds)
        return events + self._watch()

    def _fill(self) -> None:
        now = time.monotonic()
        for slot in self._slots:
            if slot.actor is None and slot.strikes < MOST_STRIKES and now >= slot.pause_until:
                slot.actor = self._start(slot.name)
                slot.strikes += 1
                slot.starting, slot.deadline = slot.actor.start.remote(), 0.0

    def _heard(self, slot: Slot, ref) -> list[Event]:
        if ref is not slot.starting and ref not in slot.jobs:
            return []  # it was lost with another job a moment ago
        try:
            result = self._ray.get(ref)
        except JobFault as error:
            return [Failed(slot.facts["name"], slot.jobs.pop(ref), _cause(error))]
        except Lacking as error:  # started anew it would fail as fast, and draw all jobs to it
            slot.strikes = MOST_STRIKES
            return [Unfit(*event) for event in self._drop(slot, _cause(error))]
        except (WorkerFault, self._ray.exceptions.RayError) as error:
            return self._drop(slot, _cause(error))
        if not slot.alive:
            slot.alive, slot.facts, slot.starting, slot.beat = True, result, None, None
            return []
        slot.strikes, slot.heard = 0, time.monotonic()
        return [Done(slot.facts["name"], slot.jobs.pop(ref), result)]

    def _watch(self) -> list[Lost]:
        """Heartbeats of those at work, and time-outs."""
        now, lost = time.monotonic(), []
        if self.alive():
            self._alone_since = now
        for slot in self._slots:
            if slot.starting is not None:
                if slot.deadline and now > slot.deadline:
                    lost += self._drop(slot, "its server did not start in time")
                elif not slot.deadline and self._answers(slot):  # the cluster has room for it
                    slot.deadline = now + self._start_seconds + MARGIN_SECONDS
            elif slot.jobs:
                if now - slot.heard > BEAT_SECONDS and self._answers(slot):
                    slot.heard = now
                if now - slot.heard > SILENT_SECONDS:
                    lost += self._drop(slot, f"no sign of life for {SILENT_SECONDS} s")
                elif now > slot.deadline:
                    lost += self._drop(slot, "a job went on beyond its time-out")
        if not self.alive() and (now - self._alone_since > ALONE_SECONDS or all(
                slot.actor is None and slot.strikes >= MOST_STRIKES for slot in self._slots)):
            words = f", the last one because: {self._last_words}" if self._last_words else ""
            if any(slot.starting is not None and not slot.deadline for slot in self._slots):
                words += ", and the cluster has no room for another (ray status says why)"
            raise FleetError(f"no worker is left{words}. What was drawn is recorded: mend the"
                             " cause and run the same command again")
        return lost

    def _answers(self, slot: Slot) -> bool:
        """Whether an actor has answered; it is asked, and not waited for."""
        if slot.beat is None:
            slot.beat = slot.actor.beat.remote()
        if not self._ray.wait([slot.beat], timeout=0)[0]:
            return False
        slot.beat = None
        return True

    def _drop(self, slot: Slot, words: str) -> list[Lost]:
        name, self._last_words = slot.facts.get("name", slot.name), words
        lost = [Lost(name, job, words) for job in slot.jobs.values() or [None]]
        self._ray.kill(slot.actor)
        slot.actor = slot.starting = slot.beat = None
        slot.alive, slot.facts, slot.jobs = False, {}, {}
        slot.pause_until = time.monotonic() + min(2 ** slot.strikes - 1, LONGEST_PAUSE)
        return lost

    def stop(self, seconds: float = 12) -> None:
        """Servers end politely where their workers still answer, and in any case."""
        actors = [slot.actor for slot in self._slots if slot.actor is not None]
        refs = [actor.stop.remote() for actor in actors]
        if refs:
            self._ray.wait(refs, num_returns=len(refs), timeout=seconds)
        for actor in actors:
            self._ray.kill(actor)


def _cause(error: Exception) -> str:
    """The worker's own words, or the first line of Ray's."""
    cause = getattr(error, "cause", None) or error
    if isinstance(cause, JobFault | WorkerFault):
        return _shortened(cause)
    lines = [line for line in str(cause).splitlines() if line.strip()]
    return lines[0].strip() if lines else type(cause).__name__


def _shortened(error: Exception, most: int = 1500) -> str:
    """In one line; of a server's long log the end tells most."""
    words = " | ".join(line.strip() for line in str(error).splitlines() if line.strip())
    return words if len(words) <= most else f"{words[:most // 2]} ... {words[-most // 2:]}"
