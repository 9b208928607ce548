"""What the sampler node costs beside the stock KSampler, on an SD1.5-size network.

Stock and every mode run in turn in one process, on the host's own UNet with SD1.5's configuration
and random weights. time_ratio is wall time over the stock run's of the same turn, the median over
turns; cpu_ratio is the same of the process's CPU time, which other programs on the machine change
less; memory_ratio is peak memory over the stock run's. Writes benchmarks/results/overhead.json.

    python run.py bench overhead [TURNS]
"""

import statistics
import sys
import time

import torch

from benchmarks.in_host import forget_peak, pack_module, peak_megabytes, sd15_size_model
from benchmarks.report import write
from tools.in_process import enter_host

SIDE, STEPS, CFG = 16, 20, 7.0
MODEL = f"sd15-size, latent {SIDE}x{SIDE}, fp32, batch 1"
OPTIONS = {"nodes": 0, "skip_interval": 4, "deviations": 0, "meaning": "independent",
           "uncertainty_seed": 0, "keep_steps": 10}


@torch.no_grad()
def main() -> None:
    turns = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    enter_host()
    import nodes as host_nodes
    samplers, fit = pack_module("nodes.samplers"), pack_module("nodes.host.fit")
    model = sd15_size_model()
    positive, negative = ([[torch.randn(1, 77, 768), {}]] for _ in range(2))
    latent = {"samples": torch.zeros(1, 4, SIDE, SIDE)}
    settings = (1, STEPS, CFG, "euler", "normal", positive, negative, latent)
    examples = [fit.Example(torch.randn(1, 4, SIDE, SIDE), 0)]
    full = fit.fit(model, [positive], examples, fit.Settings("full", 4, "uniform", 0.25, 0)).llla
    diagonal = pack_module("bayesdiff_core.llla").with_settings(full, structure="diagonal")

    def ours(mode, posterior):
        return lambda: samplers.BayesDiffKSampler.execute(model, *settings, 1.0, posterior,
                                                          mode=mode, **OPTIONS)
    ways = {("free", ""): ours("free", None), ("light", "full"): ours("light", full),
            ("accurate", "full"): ours("accurate", full),
            ("accurate", "diagonal"): ours("accurate", diagonal)}
    ratios = {way: [] for way in ways}  # of wall time, CPU time and peak memory
    run(lambda: host_nodes.common_ksampler(model, *settings[:1], 2, *settings[2:]))  # warms up
    for turn in range(turns):
        stock = run(lambda: host_nodes.common_ksampler(model, *settings))
        for way, work in ways.items():
            ratios[way].append([ours / theirs for ours, theirs in zip(run(work), stock)])
            print(f"turn {turn}, stock {stock[0]:.1f} s: {way} {ratios[way][-1]}", flush=True)
    rows = []
    for mode, structure in ways:
        wall, cpu, memory = zip(*ratios[mode, structure])
        rows.append({"model": MODEL, "mode": mode, "posterior": structure, "steps": STEPS,
                     "cfg": CFG, "time_ratio": round(statistics.median(wall), 3),
                     "cpu_ratio": round(statistics.median(cpu), 3),
                     "memory_ratio": round(max(memory), 4)})
    write("overhead", rows, turns=turns, threads=torch.get_num_threads())


def run(work) -> tuple[float, float, float]:
    """Wall seconds, CPU seconds, peak memory."""
    forget_peak()
    started = time.perf_counter(), time.process_time()
    work()
    return (time.perf_counter() - started[0], time.process_time() - started[1], peak_megabytes())


if __name__ == "__main__":
    main()
