"""What the sampler node costs beside the stock KSampler, on networks of real size.

The host's own classes with random weights: a U-Net of SD1.5's size and a Flux-shaped transformer of
about 1 B parameters. Three parts, each of which writes its own figures into the rows of
benchmarks/results/overhead.json and leaves the others' as they are:

    time     stock and every mode in turn in one process. time_ratio is wall time over the stock
             run's of the same turn, the median over turns; cpu_ratio is the same of the process's
             CPU time, which other programs on the machine change less; memory_ratio is peak memory
             over the stock run's
    outside  outside_network: CPU time outside the network's calls over the time inside them, in one
             run, which other programs on the machine change less
    counts   launches, bytes, stalls and memory on a GPU that only pretends, and the share of time
             that they would take on a real one (overhead_counts.py)

    python run.py bench overhead [--parts outside counts] [--models sd15] [--turns 3]
    python run.py bench overhead --tiny     on tiny networks, in some minutes; writes nothing
"""

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Callable
from typing import NamedTuple

import torch

from benchmarks.in_host import (
    flux_config,
    measured,
    outside_over_inside,
    pack_module,
    random_model,
    sd15_config,
)
from benchmarks.report import read, show, write
from tools.in_process import enter_host
from tools.places import REPOSITORY

PARTS = ("time", "outside", "counts")
# Latents of those runs: SD1.5's own size, and one of a transformer that a CPU gets through.
SIDES = {"sd15": 64, "flux": 32}

OPTIONS = {"probe_levels": 0, "skip_interval": 4, "deviations": 0, "noise_model": "independent",
           "uncertainty_seed": 0, "keep_steps": 10, "check": "off"}


class Scene(NamedTuple):
    """A model with all else that KSampler takes."""

    label: str
    model: object
    positive: list
    negative: list
    channels: int
    cfg: float
    steps: int

    def settings(self, side: int = 16, steps: int | None = None, batch: int = 1) -> tuple:
        latent = {"samples": torch.zeros(batch, self.channels, side, side)}
        return (1, steps or self.steps, self.cfg, "euler", "normal", self.positive, self.negative,
                latent)

    def posterior(self, side: int = 16):
        fit = pack_module("nodes.host.fit")
        examples = [fit.Example(torch.randn(1, self.channels, side, side), 0)]
        return fit.fit(self.model, [self.positive], examples,
                       fit.Settings("full", 4, "uniform", 0.25, 0)).llla

    def stock(self, settings: tuple):
        import nodes as host_nodes
        return lambda: host_nodes.common_ksampler(self.model, *settings)

    def ours(self, settings: tuple, mode: str, posterior=None, **options):
        node = pack_module("nodes.samplers").BayesDiffKSampler
        return lambda: node.execute(self.model, *settings, 1.0, posterior, mode=mode,
                                    **{**OPTIONS, **options})


def sd15(tiny: bool = False, made: Callable = random_model) -> Scene:
    """made: gives the MODEL of a configuration."""
    prompts = [[[torch.randn(1, 77, 768), {}]] for _ in range(2)]
    return Scene("sd15-size", made(sd15_config(tiny)), *prompts, channels=4, cfg=7.0, steps=20)


def flux(tiny: bool = False, made: Callable = random_model) -> Scene:
    prompts = [[[torch.randn(1, 77, 4096), {"pooled_output": torch.randn(1, 768)}]]
               for _ in range(2)]
    return Scene("flux-shaped", made(flux_config(tiny)), *prompts, channels=16, cfg=1.0, steps=6)


SCENES = {"sd15": sd15, "flux": flux}


def ways(scene: Scene, settings: tuple, full) -> dict[tuple[str, str], tuple[Callable, object]]:
    """By mode and structure of the posterior: the run, and its posterior."""
    diagonal = pack_module("bayesdiff_core.llla").with_settings(full, structure="diagonal")
    posteriors = {("free", ""): None, ("light", "full"): full, ("accurate", "full"): full,
                  ("accurate", "diagonal"): diagonal}
    return {way: (scene.ours(settings, way[0], posterior), posterior)
            for way, posterior in posteriors.items()}


def main() -> None:
    options = _parse()
    known = [] if options.tiny else read("overhead")["rows"]
    rows = {(row["model"], row["mode"], row["posterior"]): row for row in known}
    for name in options.models:
        for part in options.parts:
            for row in _rows_of(part, name, options):
                key = row["model"], row["mode"], row["posterior"]
                rows[key] = {**rows.get(key, {}), **row}
            if not options.tiny:
                write("overhead", list(rows.values()))
    if options.tiny:
        show(list(rows.values()))


@torch.no_grad()
def _rows_of(part: str, name: str, options) -> list[dict]:
    if part == "counts":
        return _counts(name, 16 if options.tiny else SIDES[name], options.tiny)
    enter_host()
    if part == "time":
        return timed_rows(SCENES[name](options.tiny), options.turns)
    # Weights of the same shape are one here, so that it runs beside other work.
    scene = SCENES[name](options.tiny, lambda config: random_model(config, shared=True))
    return outside_rows(scene, 16 if options.tiny else SIDES[name], options.steps)


def timed_rows(scene: Scene, turns: int) -> list[dict]:
    settings = scene.settings()
    tried = ways(scene, settings, scene.posterior())
    ratios = {way: [] for way in tried}  # of wall time, CPU time and peak memory
    scene.stock(scene.settings(steps=2))()  # warms up
    for turn in range(turns):
        stock = measured(scene.stock(settings))
        for way, (work, _) in tried.items():
            ratios[way].append(measured(work).over(stock))
            print(f"turn {turn}, stock {stock.seconds:.1f} s: {way} {ratios[way][-1]}", flush=True)
    rows = []
    for mode, structure in tried:
        wall, cpu, memory = zip(*ratios[mode, structure])
        rows.append({**_named(scene.label, mode, structure), "steps": scene.steps, "cfg": scene.cfg,
                     "turns": turns, "threads": torch.get_num_threads(),
                     "time_ratio": round(statistics.median(wall), 3),
                     "time_ratio_low": round(min(wall), 3), "time_ratio_high": round(max(wall), 3),
                     "cpu_ratio": round(statistics.median(cpu), 3),
                     "memory_ratio": round(max(memory), 4)})
    return rows


def outside_rows(scene: Scene, side: int, steps: int) -> list[dict]:
    settings, network = scene.settings(side, steps), scene.model.model.diffusion_model
    full = scene.posterior(side=16)
    for work, _ in ways(scene, scene.settings(steps=2), full).values():
        work()  # warms up
    tried = ways(scene, settings, full)
    stock = outside_over_inside(network, scene.stock(scene.settings(side, steps=2)))
    rows = []
    for (mode, structure), (work, _) in tried.items():
        rows.append({**_named(scene.label, mode, structure), "outside_latent": f"{side}x{side}",
                     "outside_steps": steps,
                     "outside_network": round(outside_over_inside(network, work), 5),
                     "stock_outside_network": round(stock, 5)})
        print(rows[-1], flush=True)
    return rows


def _counts(name: str, side: int, tiny: bool) -> list[dict]:
    """By another process: torch has to be told of the device before ComfyUI is imported."""
    told = subprocess.run([sys.executable, "-m", "benchmarks.overhead_counts", name, str(side),
                           *["tiny"] * tiny], cwd=REPOSITORY, stdout=subprocess.PIPE, text=True,
                          check=True).stdout
    rows = json.loads(told.splitlines()[-1])
    label = {"sd15": "sd15-size", "flux": "flux-shaped"}[name]
    return [{**_named(label, row.pop("mode"), row.pop("posterior")),
             "counted_latent": f"{side}x{side}", **row} for row in rows]


def _named(label: str, mode: str, structure: str) -> dict:
    return {"model": f"{label}, latent 16x16, fp32, batch 1", "mode": mode, "posterior": structure}


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="run.py bench overhead")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--models", nargs="+", choices=SCENES, default=list(SCENES))
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--steps", type=int, default=5, help="of a run whose time is taken apart")
    parser.add_argument("--tiny", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
