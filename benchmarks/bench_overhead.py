"""What the sampler node costs beside the stock KSampler, on networks of real size.

Stock and every mode run in turn in one process, on the host's own classes with random weights: a
U-Net of SD1.5's size and a Flux-shaped transformer of about 1 B parameters. time_ratio is wall time
over the stock run's of the same turn, the median over turns; cpu_ratio is the same of the process's
CPU time, which other programs on the machine change less; memory_ratio is peak memory over the
stock run's. Writes benchmarks/results/overhead.json.

    python run.py bench overhead [TURNS [MODEL]]    MODEL: only sd15 or flux, the other's rows stay
"""

import statistics
import sys
from typing import NamedTuple

import torch

from benchmarks.in_host import flux_shaped_model, measured, pack_module, sd15_size_model
from benchmarks.report import read, write
from tools.in_process import enter_host

OPTIONS = {"probe_levels": 0, "skip_interval": 4, "deviations": 0, "noise_model": "independent",
           "uncertainty_seed": 0, "keep_steps": 10}


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


def sd15() -> Scene:
    prompts = [[[torch.randn(1, 77, 768), {}]] for _ in range(2)]
    return Scene("sd15-size", sd15_size_model(), *prompts, channels=4, cfg=7.0, steps=20)


def flux() -> Scene:
    prompts = [[[torch.randn(1, 77, 4096), {"pooled_output": torch.randn(1, 768)}]]
               for _ in range(2)]
    return Scene("flux-shaped", flux_shaped_model(), *prompts, channels=16, cfg=1.0, steps=6)


@torch.no_grad()
def main() -> None:
    turns = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    makers = {"sd15": sd15, "flux": flux}
    chosen = sys.argv[2:] or list(makers)
    enter_host()
    rows = [row for row in read("overhead")["rows"] if not row["model"].startswith(tuple(chosen))]
    for name in chosen:
        rows += rows_of(makers[name](), turns)
    write("overhead", rows)


def rows_of(scene: Scene, turns: int) -> list[dict]:
    settings, full = scene.settings(), scene.posterior()
    diagonal = pack_module("bayesdiff_core.llla").with_settings(full, structure="diagonal")
    ways = {("free", ""): scene.ours(settings, "free"),
            ("light", "full"): scene.ours(settings, "light", full),
            ("accurate", "full"): scene.ours(settings, "accurate", full),
            ("accurate", "diagonal"): scene.ours(settings, "accurate", diagonal)}
    ratios = {way: [] for way in ways}  # of wall time, CPU time and peak memory
    scene.stock(scene.settings(steps=2))()  # warms up
    for turn in range(turns):
        stock = measured(scene.stock(settings))
        for way, work in ways.items():
            ratios[way].append(measured(work).over(stock))
            print(f"turn {turn}, stock {stock.seconds:.1f} s: {way} {ratios[way][-1]}", flush=True)
    rows = []
    for mode, structure in ways:
        wall, cpu, memory = zip(*ratios[mode, structure])
        rows.append({"model": f"{scene.label}, latent 16x16, fp32, batch 1", "mode": mode,
                     "posterior": structure, "steps": scene.steps, "cfg": scene.cfg,
                     "turns": turns, "threads": torch.get_num_threads(),
                     "time_ratio": round(statistics.median(wall), 3),
                     "time_ratio_low": round(min(wall), 3), "time_ratio_high": round(max(wall), 3),
                     "cpu_ratio": round(statistics.median(cpu), 3),
                     "memory_ratio": round(max(memory), 4)})
    return rows


if __name__ == "__main__":
    main()
