"""Hands jobs to workers and takes their results in, until all are done or failed for good."""

import errno
import heapq
import json
import sqlite3
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from fleet import FleetError
from fleet.cluster import DEPTH, Crew, Done, Failed, Unfit
from fleet.ledger import DRAW, FAILED, FINISH, WAITING, Job, Ledger, Part, Picture
from fleet.plan import Graph
from fleet.sideways import replaced

RETRIES = 3  # of a job that fails by itself ...
LOSSES = 4  # ... and of one that workers are lost with
LONGEST_PAUSE = 60
HOPELESS = 5  # jobs that failed for good with none done: it is the workflow's fault
FIRST_SECONDS = 600  # before there is a pace
LEAST_SECONDS = 60
TIMES_THE_PACE = 20
QUICK_SECONDS = 30


class Pace:
    """How long jobs take, from the last ones."""

    def __init__(self, first: float = FIRST_SECONDS, least: float = LEAST_SECONDS,
                 times: float = TIMES_THE_PACE):
        self._seconds = deque(maxlen=64)
        self._first, self._least, self._times = first, least, times

    def add(self, seconds: float) -> None:
        self._seconds.append(seconds)

    @property
    def typical(self) -> float | None:
        return statistics.median(self._seconds) if self._seconds else None

    def allowed(self) -> float:
        """A job's time-out: the first ones load models, and say little about the others."""
        if len(self._seconds) < 3:
            return self._first
        return max(self._times * self.typical, self._least)


class Bar:
    """One line that changes; where the output is kept, a line now and then."""

    def __init__(self, total: int, done: int, failed: int, what: str = "pictures"):
        self.total, self.done, self.failed, self.lost = total, done, failed, 0
        self.made, self._what = 0, what  # by now; a job may be a batch of pictures
        self._began, self._before, self._shown = time.monotonic(), done, 0.0

    def show(self, workers: int, at_once: bool = False) -> None:
        tty, now = sys.stdout.isatty(), time.monotonic()
        if not at_once and now - self._shown < (0.2 if tty else 10):
            return
        self._shown = now
        if tty:
            print(f"\r{self.line(workers, now):<100}", end="\n" if at_once else "", flush=True)
        else:
            print(self.line(workers, now), flush=True)

    def line(self, workers: int, now: float) -> str:
        passed = max(now - self._began, 1e-9)
        rate = (self.done - self._before) / passed
        left = self.total - self.done - self.failed
        share = (self.total - left) / max(self.total, 1)
        ahead = f"{_words(left / rate)} left" if rate and left else ""
        return (f"[{'#' * int(20 * share):<20}] {self.done}/{self.total}"
                f"  {self.made / passed:.2f} {self._what}/s  {ahead}"
                f"  {self.failed} failed, {self.lost} workers lost, {workers} at work")


def _words(seconds: float) -> str:
    for unit, name in ((3600, "h"), (60, "min")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:.0f} {name}"
    return f"{seconds:.0f} s"


class Driver:
    """files_for(job): what it needs in a server's output folder."""

    def __init__(self, ledger: Ledger, crew: Crew, graph: Graph | None, output: Path | None,
                 stopping: Callable[[], bool] = lambda: False, retries: int = RETRIES,
                 pace: Pace | None = None,
                 files_for: Callable[[Job], dict | None] = lambda job: None):
        self._ledger, self._crew, self._graph, self._output = ledger, crew, graph, output
        self._stopping, self._retries, self._files_for = stopping, retries, files_for
        self.pace = pace or Pace()

    def run(self, stage: str = DRAW) -> bool:
        """False if it was stopped before the end."""
        jobs, later = self._ledger.waiting(stage), []
        counts = self._ledger.counts(stage)
        bar = Bar(sum(counts.values()), counts["done"], counts[FAILED],
                  "pictures" if stage in (DRAW, FINISH) else "parts")
        try:
            while not self._stopping():
                jobs_left = self._hand_out(jobs, later)
                if not jobs_left and not later and not self._crew.busy():
                    bar.show(self._crew.alive(), at_once=True)
                    return True
                self._take_in(self._crew.poll(0.25), later, bar)
                bar.show(self._crew.alive())
            bar.show(self._crew.alive(), at_once=True)
            return False
        except (OSError, sqlite3.OperationalError) as error:
            raise FleetError(f"cannot write results: {error}. What was recorded stays:"
                             f"{_advice(error)} run the same command again") from error

    def _hand_out(self, jobs, later: list) -> bool:
        """Whether there may be more of them."""
        for slot in self._crew.idle(self._depth()):
            if later and later[0][0] <= time.monotonic():
                job = heapq.heappop(later)[2]
            elif (job := next(jobs, None)) is None:
                return False
            self._crew.give(slot, job, self.pace.allowed(), self.pace.typical,
                            self._files_for(job))
        return True

    def _depth(self) -> int:
        """Quick jobs wait in the server's queue; of slow ones none should wait for another."""
        return DEPTH if self.pace.typical and self.pace.typical < QUICK_SECONDS else 1

    def _take_in(self, events: list, later: list, bar: Bar) -> None:
        done = [event for event in events if isinstance(event, Done)]
        if done:
            self._keep(done)
            bar.done += len(done)
            bar.made += sum(len(event.result.get("pictures", "1")) for event in done)
        for event in events:
            if not isinstance(event, Done):
                bar.lost += not isinstance(event, Failed)
                self._try_again(event, later, bar)

    def _keep(self, events: list) -> None:
        """Pictures first, then their rows: at once for all that came together."""
        rows, parts = [], []
        for _, job, result in events:
            self.pace.add(result["with_transfer"])
            if "pictures" in result:
                rows += [self._row(job, result, place, picture)
                         for place, picture in enumerate(result["pictures"])]
            else:
                parts.append(self._part(job, result))
        self._ledger.record(rows, parts)

    def _row(self, job: Job, result: dict, place: int, picture: dict) -> Picture:
        if picture["data"] is not None and self._output:
            _write(self._output / picture["file"], picture["data"])
        seed = self._graph.seed if self._graph else None
        widgets = {f"{node}.{widget}": value for node, widget, value in job.changes
                   if (node, widget) != seed}
        return Picture(job.number, place, picture["seed"], result["prompt"],
                       json.dumps(widgets, sort_keys=True), picture["score"],
                       json.dumps(picture["scores"]), result["calls"], result["extra_calls"],
                       result["seconds"], result["worker"], picture["file"], time.time())

    def _part(self, job: Job, result: dict) -> Part:
        name, report = f"{job.number:07}.safetensors", result["report"]
        _write(self._output / name, result["data"])
        return Part(job.number, report.get("seed"), next(iter(report.get("scores", [])), None),
                    report.get("calls"), report.get("ahead_calls"), result["seconds"],
                    result["worker"], name)

    def _try_again(self, event, later: list, bar: Bar) -> None:
        """Later and later, and not for ever."""
        job = event.job
        if job is None:
            self._ledger.fault(event.worker, None, event.words)
            return
        if isinstance(event, Failed):
            job = job._replace(tries=job.tries + 1)
        elif not isinstance(event, Unfit):
            job = job._replace(losses=job.losses + 1)
        over = job.tries >= self._retries or job.losses >= LOSSES
        self._ledger.fault(event.worker, job, event.words, FAILED if over else WAITING)
        if not over:
            pause = min(2 ** (job.tries + job.losses) - 1, LONGEST_PAUSE)
            heapq.heappush(later, (time.monotonic() + pause, job.number, job))
            return
        bar.failed += 1
        if bar.failed >= HOPELESS and not bar.done:
            raise FleetError(f"the first {bar.failed} jobs all failed and none was done, the last"
                             f" because: {event.words}. Mend the workflow and run the same command"
                             " with --retry-failed")


def _write(path: Path, data: bytes) -> None:
    with replaced(path) as part:
        part.write_bytes(data)


def _advice(error: Exception) -> str:
    full = getattr(error, "errno", 0) in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) \
        or "full" in str(error)
    return " make room there and" if full else " mend that and"
