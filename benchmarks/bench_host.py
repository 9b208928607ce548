"""The sampler node's variance against brute force, both run through the host's own samplers.

The truth: the same prompt sampled again and again by the host, with every noise prediction drawn
from the posterior predictive. Model and posterior are the demo model's. Writes
benchmarks/results/host.json, and the rows as those of net "demo" into accuracy.json.

    python run.py bench host
"""

import json
import statistics

import torch

from benchmarks.bench_accuracy import agreement
from benchmarks.in_host import pack_module
from benchmarks.report import read, write
from tools.in_process import enter_host

IMAGES, RUNS, STEPS, SEEDS = 8, 64, 20, 2
SETTINGS = [("euler", 1.0), ("dpmpp_2m", 3.0)]
MODES = {"light": "deviations, fifth", "accurate": "deviations, half",
         "paper": "paper, S=10, skip 4"}  # and what bench accuracy calls them
OPTIONS = {"probe_levels": 0, "skip_interval": 4, "deviations": 0, "noise_model": "independent",
           "keep_steps": 2}


@torch.no_grad()
def main() -> None:
    enter_host()
    import comfy.utils

    from tools import demo_model
    comfy.utils.set_progress_bar_enabled(False)
    files = pack_module("nodes.demo")
    demo = demo_model.load(files.MODEL_FILE)
    prompts = list(demo.classes.values())
    vectors = torch.cat([prompts[i % len(prompts)][0][0] for i in range(IMAGES)])
    positive = [[vectors, {"pooled_output": vectors[:, 0]}]]
    posterior = pack_module("nodes.files.llla_file").read(files.POSTERIOR_FILE)
    rows = []
    for sampler, cfg in SETTINGS:
        inputs = (3, STEPS, cfg, sampler, "normal", positive, demo.no_class,
                  {"samples": torch.zeros(IMAGES, 48, 16, 16)})
        ends = torch.stack([drawn(demo.model, posterior, inputs, run) for run in range(RUNS)])
        truth, halves = ends.var(0), [part.var(0) for part in ends.chunk(2)]
        ceiling = agreement(*halves)
        for mode in MODES:
            if mode == "paper" and sampler != "euler":
                continue  # it has no rule for others
            rows.append({"model": files.MODEL_FILE.stem, "sampler": sampler, "steps": STEPS,
                         "cfg": cfg, "mode": mode,
                         **estimated(demo.model, posterior, inputs, mode, truth),
                         "truth_split_half": {"score_logcorr": round(ceiling[0], 3),
                                              "pixel_corr": round(ceiling[1], 3)}})
            print(*rows[-1].values(), flush=True)
    write("host", rows, images=IMAGES, runs=RUNS, seeds=SEEDS)
    accuracy = read("accuracy")
    others = [row for row in accuracy.pop("rows") if row["net"] != "demo"]
    write("accuracy", others + [as_accuracy(row) for row in rows], **accuracy)


def as_accuracy(row: dict) -> dict:
    mode = row["mode"]
    same = {key: value for key, value in row.items() if key not in ("model", "mode")}
    return {"net": "demo", **same, "estimator": MODES[mode], "noise_model": "independent",
            "default": mode == "accurate"}


def drawn(model, posterior, inputs, run_number: int) -> torch.Tensor:
    """One run of the host's sampler in which every prediction is drawn from the posterior."""
    sampling = pack_module("nodes.host.run.sampling")
    noise_of = pack_module("bayesdiff_core.iteration").ImageNoise
    predictor = pack_module("nodes.host.network.predictor").Predictor(model, posterior)

    class Drawing:
        tap = predictor.tap

        def run(self, run):
            seeds = [1000 * run_number + i for i in range(IMAGES)]
            noise = noise_of(seeds, run.x.shape[1:])

            def call(x, sigma, **kwargs):
                found = predictor.call(run, x, sigma, kwargs)
                spread = found.predictive.variance().sqrt()
                return found.denoised - float(sigma[0]) * spread * noise(x)

            return run.go(model=sampling.StandIn(run.model, call))

    return sampling.sample(model, Drawing(), *inputs)["samples"]


def estimated(model, posterior, inputs, mode: str, truth: torch.Tensor) -> dict:
    node = pack_module("nodes.samplers").BayesDiffKSampler
    found = []
    for seed in range(SEEDS):
        _, variance, _, _, report, _ = node.execute(model, *inputs, 1.0, posterior, mode=mode,
                                                 uncertainty_seed=seed, **OPTIONS).args
        said = json.loads(report)
        found.append([1 + said["extra_calls"] / said["calls"],
                      *agreement(variance["samples"], truth)])
    calls, score, pixel, total = (statistics.mean(column) for column in zip(*found))
    return {"calls_ratio": round(calls, 3), "score_logcorr": round(score, 3),
            "pixel_corr": round(pixel, 3), "sum_ratio": round(total, 3)}


if __name__ == "__main__":
    main()
