"""How early the ranking of seeds is known: Best of N's score on the way against the final one.

For each class of the demo model many seeds are sampled through the host, and scored at a quarter,
half and three quarters of the steps and at the end. calls_saved: of one class, with the better half
kept there. Writes benchmarks/results/early.json.

    python run.py bench early
"""

import statistics

import torch

from benchmarks.in_host import pack_module
from benchmarks.report import write
from tools.in_process import enter_host

CLASSES, SEEDS, STEPS, CFG = 4, 24, 20, 3.0
FRACTIONS = (0.25, 0.5, 0.75)
SCORES = ("relative change", "trajectory variance", "variance, accurate")


@torch.no_grad()
def main() -> None:
    enter_host()
    import comfy.utils

    from tools import demo_model
    comfy.utils.set_progress_bar_enabled(False)
    files = pack_module("nodes.demo")
    demo = demo_model.load(files.MODEL_FILE)
    posterior = pack_module("nodes.files.llla_file").read(files.POSTERIOR_FILE)
    names = list(demo.classes)[::max(1, len(demo.classes) // CLASSES)][:CLASSES]
    rows = []
    for score in SCORES:
        by_class, calls = [], []
        for name in names:
            runs, calls = on_the_way(demo, demo.classes[name], posterior, score)
            by_class.append(runs)
            print(score, name, flush=True)
        for at, fraction in enumerate(FRACTIONS):
            corr = [spearman([run[at] for run in runs], [run[-1] for run in runs])
                    for runs in by_class]
            kept = [kept_of_the_best([run[at] for run in runs], [run[-1] for run in runs])
                    for runs in by_class]
            rows.append({"net": files.MODEL_FILE.stem, "score": score, "fraction": fraction,
                         "rank_corr": round(statistics.mean(corr), 3),
                         "lowest": round(min(corr), 3), "highest": round(max(corr), 3),
                         "best_half_kept": round(statistics.mean(kept), 3),
                         "calls_saved": SEEDS // 2 * (calls[-1] - calls[at]),
                         "calls_of_all": SEEDS * calls[-1]})
    write("early", rows, classes=names, seeds=SEEDS, sampler="euler", steps=STEPS, cfg=CFG)


def on_the_way(demo, positive, posterior, score: str) -> tuple[list[list[float]], list[int]]:
    """Scores of each seed at the fractions and at the end, and the calls that a seed took by then:
    all take the same."""
    sampling, resume = pack_module("nodes.host.run.sampling"), pack_module("nodes.host.run.resume")
    options = pack_module("nodes.host.run.by_mode").Options(keep_steps=2)
    best_of_n, samplers = pack_module("nodes.best_of_n"), pack_module("nodes.samplers")
    rank = best_of_n.RANKS[score]
    latent = {"samples": torch.zeros(1, 12, 16, 16)}

    def sample(observer, seed: int):
        return sampling.sample(demo.model, observer, seed, STEPS, CFG, "euler", "normal", positive,
                               demo.no_class, latent)

    found = []
    for seed in range(SEEDS):
        observer = samplers.observer_for(rank.mode, demo.model, posterior, latent, options)
        run = resume.Resumable(observer, seed, sample, rank.score)
        calls = []
        for stop in [*(round(fraction * STEPS) for fraction in FRACTIONS), None]:
            run.go(stop, 0, STEPS)
            calls.append(run.calls)
        found.append(run.scores)
    return found, calls


def spearman(a: list[float], b: list[float]) -> float:
    """Correlation of the ranks; scores are never tied."""
    ranks = torch.tensor([a, b], dtype=torch.float64).argsort(1).argsort(1).double()
    return float(torch.corrcoef(ranks)[0, 1])


def kept_of_the_best(early: list[float], final: list[float]) -> float:
    """Share of the better half by the final score among the better half by the early one; 0.5 by
    chance."""
    half = len(final) // 2
    halves = [set(torch.tensor(scores).argsort()[:half].tolist()) for scores in (early, final)]
    return len(halves[0] & halves[1]) / half


if __name__ == "__main__":
    main()
