"""What a fleet costs: the pace of one and two workers, and of a driver with a thousand.

    python run.py bench fleet [--pictures 24] [--turns 3] [--workers 1000] [--rows 100000]

The workers of the first part are real: ComfyUI on the demo model, a thread each. Those of the
second answer at once, in a few processes that stand for many; what is measured there is the driver
and Ray, with the ledger on disk and no pictures sent, as where workers write to a bucket.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path

import psutil

from benchmarks import report
from fleet import cluster, ledger
from fleet.cluster import Crew
from fleet.driver import Driver, Pace
from fleet.plan import Change, Graph, Widget
from fleet.worker import Order, Place

PROCESSES = 4  # that the simulated workers share
STEPS = 50
SEED = Widget("5", "seed")


class Resting(Crew):
    """Only the first `at_work` workers get jobs."""

    at_work = 0

    def idle(self, depth: int = 1):
        return [slot for slot in super().idle(depth) if slot in self._slots[:self.at_work]]


def main() -> None:
    """A part that is left out stays as it was measured before."""
    options = _parse()
    found = report.read("fleet")
    if options.only != "simulation":
        found["rows"] = real(options.pictures, options.turns)
    if options.only != "real":
        found["simulation"] = simulation(options.workers, options.rows, options.output)
        print(json.dumps(found["simulation"]))
    if options.output is None:
        report.write("fleet", **found)


def real(pictures: int, turns: int) -> list[dict]:
    """One and two workers in turns, as what else the machine does changes from minute to minute."""
    place = Place(os.environ["BAYESDIFF_HOST"], os.environ["COMFYUI_PYTHON"], on_cpu=True)
    found, pace = {1: [], 2: []}, Pace()
    with cluster.connected(None, 2, on_cpu=True), tempfile.TemporaryDirectory() as folder:
        crew = Resting(cluster.comfyui_worker(place), 2)
        try:
            while crew.alive() < 2:
                crew.poll(0.5)
            graph = Graph(dice(), None, {}, SEED.node, SEED)
            crew.take(Order(graph))
            timed(crew, 2, 4, graph, Path(folder) / "warm", 0, pace)
            for turn in range(turns):
                for workers, runs in found.items():
                    first = 1000 * (1 + 2 * turn + workers)
                    runs.append(timed(crew, workers, pictures * workers, graph,
                                      Path(folder) / f"{turn}_{workers}", first, pace))
                    print(f"turn {turn + 1}, {workers} workers: {runs[-1]}", flush=True)
        finally:
            crew.stop()
    rows = [_summary(workers, runs) for workers, runs in found.items()]
    for row in rows:
        row["efficiency"] = round(row["pictures_per_minute"] / row["workers"]
                                  / rows[0]["pictures_per_minute"], 3)
    return rows


def timed(crew: Crew, workers: int, pictures: int, graph: Graph, folder: Path, first: int,
          pace: Pace) -> dict:
    crew.at_work = workers
    with ledger.opened(folder) as book:
        book.plan(ledger.DRAW, ([Change(*SEED, seed)] for seed in range(first, first + pictures)))
        (folder / "pictures").mkdir()
        before, began = cpu_seconds(), time.monotonic()
        Driver(book, crew, graph, folder / "pictures", pace=pace).run()
        wall, after = time.monotonic() - began, cpu_seconds()
        own = [row.seconds for row in book.pictures()]
    driver, servers, rest = (now - then for now, then in zip(after, before))
    return {"pictures": len(own), "wall": wall, "picture_ms": 1000 * statistics.mean(own),
            "driver_cpu_share": driver / wall,
            "overhead_ms_per_picture": 1000 * (wall * workers - sum(own)) / len(own),
            "server_cpu_ms_per_picture": 1000 * servers / len(own),
            "fleet_cpu_ms_per_picture": 1000 * (driver + rest) / len(own)}


def cpu_seconds() -> tuple[float, float, float]:
    """Of the driver, the ComfyUI servers, and all else: Ray and the workers. A busy machine makes
    seconds longer, not these."""
    own = psutil.Process()
    driver, servers, rest = sum(own.cpu_times()[:2]), 0.0, 0.0
    for process in own.children(recursive=True):
        try:
            spent = sum(process.cpu_times()[:2])
            if "main.py" in " ".join(process.cmdline()) and "guard.py" not in process.cmdline()[1]:
                servers += spent
            else:
                rest += spent
        except psutil.NoSuchProcess:
            pass
    return driver, servers, rest


def _summary(workers: int, runs: list[dict]) -> dict:
    def middle(name: str) -> float:
        return statistics.median(run[name] for run in runs)

    pace = statistics.median(60 * run["pictures"] / run["wall"] for run in runs)
    return {"workers": workers, "pictures": sum(run["pictures"] for run in runs),
            "pictures_per_minute": round(pace, 2), "efficiency": 1.0,
            "driver_cpu_share": round(middle("driver_cpu_share"), 4),
            "overhead_ms_per_picture": round(middle("overhead_ms_per_picture"), 1),
            "picture_ms": round(middle("picture_ms"), 1),
            "server_cpu_ms_per_picture": round(middle("server_cpu_ms_per_picture"), 1),
            "fleet_cpu_ms_per_picture": round(middle("fleet_cpu_ms_per_picture"), 1),
            "turns": len(runs),
            "load_average": round(os.getloadavg()[1], 1)}


def simulation(workers: int, count: int, output: Path | None = None) -> dict:
    with cluster.connected(None, PROCESSES, on_cpu=True), tempfile.TemporaryDirectory() as scratch:
        crew = Crew(answering_workers(), workers)
        folder = output or Path(scratch)
        with ledger.opened(folder) as book:
            book.plan(ledger.DRAW, ([Change(*SEED, seed)] for seed in range(count)))
            while crew.alive() < workers:
                crew.poll(0.5)
            driver = Watched(book, crew, Graph({}, None, {}, SEED.node, SEED), None)
            driver.marks = [count * tenth // 10 for tenth in range(1, 11)]
            began, before = time.monotonic(), psutil.Process().cpu_times()
            driver.run()
            wall, after = time.monotonic() - began, psutil.Process().cpu_times()
            rows = sum(1 for _ in book.pictures())
        crew.stop()
    spent = after.user + after.system - before.user - before.system
    return {"workers": workers, "processes": PROCESSES, "rows": rows,
            "results_per_second": round(rows / wall, 1), "seconds": round(wall, 1),
            "driver_cpu_share": round(spent / wall, 3),
            "driver_memory_mb_by_tenth": driver.memory,
            "load_average": round(os.getloadavg()[1], 1)}


class Watched(Driver):
    """Notes its memory at each tenth of the rows."""

    def __init__(self, *args):
        super().__init__(*args)
        self.done, self.marks, self.memory = 0, [], []

    def _keep(self, events: list) -> None:
        super()._keep(events)
        self.done += len(events)
        while self.marks and self.done >= self.marks[0]:
            self.marks.pop(0)
            self.memory.append(round(psutil.Process().memory_info().rss / 1e6, 1))


def answering_workers():
    """Starts workers that answer at once: many of them in one process."""
    engine = cluster.ray()

    @engine.remote(max_concurrency=2000)
    class Answering:
        async def start(self):
            return {"name": f"answering@{os.getpid()}"}

        async def beat(self):
            return time.time()

        async def stop(self):
            pass

        async def draw(self, order, changes, seconds, pace, files, job):
            seed = changes[-1].value
            return {"prompt": "die", "calls": 20, "extra_calls": 0, "seconds": 0.0,
                    "with_transfer": 0.001, "worker": f"answering@{os.getpid()}", "pictures": [
                        {"seed": seed, "score": seed / 7, "data": None, "file": f"{job:07}_0.png",
                         "scores": {"relative change": seed / 7, "sum": seed / 3}}]}

    actors = [Answering.remote() for _ in range(PROCESSES)]
    return lambda name: actors[int(name.removeprefix("worker")) % PROCESSES]


def dice() -> dict:
    """A picture of the demo model."""
    def node(kind, **inputs):
        return {"class_type": kind, "inputs": inputs}
    return {
        "1": node("BayesDiff_DemoModel"), "2": node("BayesDiff_DemoPrompt", name="die"),
        "3": node("BayesDiff_DemoPrompt", name="nothing"),
        "4": node("EmptyLatentImage", width=64, height=64, batch_size=1),
        "5": node("BayesDiff_KSampler", model=["1", 0], positive=["2", 0], negative=["3", 0],
                  latent_image=["4", 0], seed=0, steps=STEPS, cfg=2.5, sampler_name="euler",
                  scheduler="normal", denoise=1.0, mode="free"),
        "6": node("VAEDecode", samples=["5", 0], vae=["1", 1]),
        "7": node("SaveImage", images=["6", 0], filename_prefix="die")}


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", choices=["real", "simulation"])
    parser.add_argument("--pictures", type=int, default=24, help="for each worker and turn")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--workers", type=int, default=1000, help="of the simulation")
    parser.add_argument("--rows", type=int, default=100_000, help="of the simulation")
    parser.add_argument("--output", type=lambda words: Path(words).resolve(),
                        help="keeps the simulation's ledger there; no results are written")
    return parser.parse_args()


if __name__ == "__main__":
    main()
