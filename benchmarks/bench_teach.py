"""Does a taught score find the wrong pictures of a net, after 40 of them were named?

A user is played on the drawings of bench truth, as far as they are in the cache: pictures come in
random order in runs of 20, and in each run all wrong ones are named disliked and as many right ones
liked, until there are 20 of each (or half of the wrong ones there are, where they are fewer than
40). What was learned is tried on all pictures of the runs that were not reached. 20 random orders;
the same pictures are left for the untaught scores beside it. Writes benchmarks/results/teach.json.

    python run.py bench teach [--nets NAME ...] [--samplers NAME ...]
"""

import argparse

import torch

from bayesdiff_core import doubt, scores, taught
from bayesdiff_core.checks import BayesDiffError
from benchmarks import report
from benchmarks.bench_truth import (
    DEFAULT,
    DEFAULT_FREE,
    auroc,
    named,
    parts_of,
    rounded,
    scores_of,
    wrong_of,
)
from benchmarks.worlds import drawings, nets, sampling

RUN, NAMED_EACH, ORDERS = 20, 20, 20
LEAST_PICTURES = 200
LEAST_LEFT = 8  # wrong pictures, for an AUROC
PRESENT = {name: f"present: {name}" for name in (scores.TRAJECTORY, scores.RELATIVE)}
UNTAUGHT = [PRESENT[scores.RELATIVE], PRESENT[scores.TRAJECTORY], DEFAULT_FREE, DEFAULT, "random"]
Features = dict[str, torch.Tensor]


def features_of(data: dict) -> dict[str, Features]:
    """What is learned from, by name: the scores of a trajectory without and with a posterior, the
    free parts that doubt could have, and those with extra calls too."""
    parts = parts_of(data)
    free = {name: data[f"score {here}"] for name, here in PRESENT.items()}
    free_parts = {name: values for name, values in parts.items()
                  if name.startswith(("late", "acceleration", "contrast"))}
    with_calls = {name: values for name, values in parts.items()
                  if not name.startswith(("independent", "shared"))}
    found = {"taught": free, "taught, parts": free | free_parts,
             "taught, parts with calls": free | with_calls}
    if "map independent" in data:
        few = len(data["map independent"])
        contrast = parts[doubt.CONTRAST][:few, None, None, None]
        variance = data["map independent"][:, None] * contrast
        found["taught, with posterior"] = {
            **scores.all_scores(variance), **{name: values[:few] for name, values in free.items()}}
    return found


def taught_runs(features: Features, wrong: torch.Tensor, order: torch.Tensor,
                each: int) -> tuple[list[taught.Run], torch.Tensor]:
    """What a user named, run by run, and the pictures that were never reached."""
    runs, count = [], 0
    for begin in range(0, len(order), RUN):
        if count >= each:
            return runs, order[begin:]
        run = order[begin:begin + RUN]
        places = wrong[run].nonzero().flatten().tolist()[:each - count]
        right = (~wrong[run]).nonzero().flatten().tolist()[:len(places)]
        if places and len(run) >= taught.LEAST_BATCH:
            runs = taught.added(runs, taught.run_of(_scores(features, run), right, places))
            count += len(places)
    return runs, order[:0]


def _scores(features: Features, chosen: torch.Tensor) -> dict[str, list[float]]:
    return {name: values[chosen].tolist() for name, values in features.items()}


def rows_of(name: str, sampler: str, data: dict) -> list[dict]:
    rows, whole = [], scores_of(data)
    for score, features in features_of(data).items():
        pictures = min(map(len, features.values()))
        wrong = wrong_of(data)[:pictures]
        each = min(NAMED_EACH, int(wrong.sum()) // 2)
        if pictures < LEAST_PICTURES or each < taught.LEAST_EACH:
            print(f"{name}, {sampler}, {score}: {pictures} pictures, {int(wrong.sum())} of them"
                  " wrong: too few to teach and to test")
            continue
        areas, usable, said = {}, 0, []
        for seed in range(ORDERS):
            order = torch.randperm(pictures, generator=torch.Generator().manual_seed(seed))
            runs, left = taught_runs(features, wrong, order, each)
            if int(wrong[left].sum()) < LEAST_LEFT:
                continue
            learned = taught.learn(runs)
            usable += learned.usable
            said.append(learned.auroc)
            # whether or not the product would refuse it: what it is worth is the question
            values = taught.score(learned._replace(usable=True), _scores(features, left))[0]
            areas.setdefault(score, []).append(auroc(torch.tensor(values), wrong[left]))
            for other in UNTAUGHT:
                if len(whole.get(other, ((),))[0]) >= pictures:
                    areas.setdefault(other, []).append(auroc(whole[other][0][left], wrong[left]))
        for label, found in areas.items():
            found = torch.tensor(found)
            own = {"usable_share": usable / len(found), "said": sum(said) / len(said)} \
                if label == score else {}
            if label == score or score == "taught":  # the untaught once
                rows.append(rounded({
                    **named(name), "role": nets.NETS[name].role, "sampler": sampler,
                    "score": label, "scores": len(features) if own else 1, "pictures": pictures,
                    "wrong_share": float(wrong.float().mean()), "named": 2 * each if own else 0,
                    "orders": len(found), "auroc": float(found.mean()),
                    "auroc_sd": float(found.std()), **own}))
    return rows


def main() -> None:
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--nets", nargs="*", default=list(nets.NETS))
    parser.add_argument("--samplers", nargs="*", default=list(sampling.SAMPLERS))
    options = parser.parse_args()
    rows = []
    for name in options.nets:
        for sampler in options.samplers:
            count = drawings.kept(name, sampler)
            if not count:
                print(f"{name}, {sampler}: not in the cache, left out (bench truth draws it)")
                continue
            rows += rows_of(name, sampler, drawings.setting(name, sampler, count))
    if not rows:
        raise BayesDiffError("no drawings are in the cache: run bench truth first.")
    report.write("teach", rows)


if __name__ == "__main__":
    main()
