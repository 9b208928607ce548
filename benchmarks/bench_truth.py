"""Do scores find the wrong pictures, maps the wrong places, and what does that help? With labels
that are exact.

The worlds (benchmarks/worlds) are drawn by a program, so the distance of any picture to them can be
computed, and "wrong" is a rule that anyone can see: a sixth finger, a shape twice. Small nets draw
1,000 pictures a setting with 50 calls each. Everything was chosen on the nets "-a"; those "-b" are
reported. Writes benchmarks/results/truth.json, truth.png and truth_maps.png.

    python run.py bench truth [--only detect|locate|early|repair] [--nets NAME ...]
                              [--samplers NAME ...] [--pictures N] [--kept] [--learn]

detect   AUROC for "wrong", and the share of wrong pictures left after 16 % are dropped
locate   on wrong pictures, AUROC and average precision for the pixels that are wrong
early    AUROC for "wrong in the end", after a fraction of the steps
repair   of wrong pictures, how many are right afterwards
"""

import argparse
import functools
import json
import math

import matplotlib
import torch
import torch.nn.functional as F

from bayesdiff_core import doubt, evidence, learned, selfcheck
from benchmarks.report import read, show
from benchmarks.worlds import drawings, nets, repair, rule, sampling
from tools.places import REPOSITORY

DROPPED = 0.16  # mean + 1 sigma, as in the paper
SAMPLERS = {nets.CHOOSING: ("euler", "euler_ancestral"), nets.REPORTING: sampling.SAMPLERS}
# check = auto of the samplers takes the full check of 50 steps, and the quick one from 12 steps on.
DEFAULTS = {"run, full check": "doubt, 24 calls", "run, quick check": "doubt, 6 calls",
            "run, no check": "doubt, no calls",
            "picture, full check": "doubt of a picture, 24 calls",
            "picture, quick check": "doubt of a picture, 6 calls"}
DEFAULT, QUICK, DEFAULT_FREE = (DEFAULTS[f"run, {check} check"]
                                for check in ("full", "quick", "no"))
DEFAULT_MAP, QUICK_MAP, FREE_MAP = (f"doubt map, {calls}" for calls in ("24 calls", "6 calls",
                                                                        "no calls"))
EARLY_DEFAULT = "look ahead, 13 calls"
STANDARDIZED = ", standardized in the batch"
LEARNED_WITH = 0.001  # L2 penalty: more of it costs 0.01 to 0.02 on the choosing nets
BOOTSTRAPS = 40
MAP_NAMES = {"late 20": "late change 20 %", "late 40": "late change 40 %",
             "acceleration": "acceleration",
             **{f"{kind} {ratio}": f"{label} {ratio}" for ratio in drawings.DRAWS
                for kind, label in (("renoised", "re-noising"), ("pull", "pull"))},
             "redrawn": "redrawing", "independent": "deviations, independent",
             "shared": "deviations, shared weights"}
HOW_NAMES = {"mean": "mean", "top": "top 5 %", "patch": "worst patch"}
Rows = list[dict]


def auroc(values: torch.Tensor, wrong: torch.Tensor) -> float:
    """Ties are half a pair."""
    _, place, many = values.double().unique(return_inverse=True, return_counts=True)
    ranks = (many.cumsum(0) - (many - 1) / 2)[place]
    bad = wrong.sum().double()
    return float((ranks[wrong].sum() - bad * (bad + 1) / 2) / (bad * (len(wrong) - bad)))


def average_precision(values: torch.Tensor, wrong: torch.Tensor) -> float:
    hits = wrong[values.argsort(descending=True)].double()
    precision = hits.cumsum(0) / torch.arange(1, len(hits) + 1)
    return float((precision * hits).sum() / hits.sum())


def wrong_of(data: dict) -> torch.Tensor:
    return data["worst"] > rule.LIMIT


def maps_of(data: dict) -> dict[str, torch.Tensor]:
    return {key.removeprefix("map "): value for key, value in data.items()
            if key.startswith("map ")}


def parts_of(data: dict) -> dict[str, torch.Tensor]:
    """Every part that a combination may have, by name."""
    found = {f"{name}, {how}": doubt.HOWS[how](one[:, None])
             for name, one in maps_of(data).items() for how in doubt.HOWS}
    return found | {"acceleration, path": data["score acceleration"],
                    doubt.CONTRAST: evidence.contrast(data["picture"])}


def cost(parts) -> int:
    """Calls of all maps that these parts need; what two parts share is paid once."""
    sources = {doubt.source(name) for name in parts}
    sources = {source.replace("pull", "renoised") for source in sources}
    return sum(drawings.CALLS.get(source, 0) for source in sources)


def edges(picture: torch.Tensor) -> torch.Tensor:
    """Squared gradient of the picture over its contrast, B x H x W: the trivial map."""
    right, down = F.pad(picture.diff(dim=-1), (0, 1)), F.pad(picture.diff(dim=-2), (0, 0, 0, 1))
    return evidence.relative(right.square() + down.square(), picture)[:, 0]


def scores_of(data: dict, standard: dict | None = None) -> dict[str, tuple[torch.Tensor, int]]:
    """Every score with its extra calls; some of the first pictures only. standard: weights of the
    variants of doubt on logarithms that are standardized in the batch, to compare with."""
    parts = parts_of(data)
    found = {f"{MAP_NAMES[source]}, {HOW_NAMES[how]}": (parts[f"{source}, {how}"],
                                                         drawings.CALLS[source])
             for source in MAP_NAMES for how in HOW_NAMES if f"{source}, {how}" in parts}
    for name in ("acceleration", "covariance", drawings.SEMANTIC, "present: relative change",
                 "present: trajectory variance"):
        if f"score {name}" in data:
            calls = {"covariance": 1, drawings.SEMANTIC: drawings.CALLS["shared"]}.get(name, 0)
            found[name] = data[f"score {name}"], calls
    for variant, weights in doubt.VARIANTS.items():
        found[DEFAULTS[variant]] = doubt.combined(parts, weights), cost(weights)
        if standard:
            logs = learned.standardized_logs(torch.stack([parts[name] for name in weights], 1))
            by = torch.tensor(list(standard[variant].values()), dtype=torch.float64)
            found[DEFAULTS[variant] + STANDARDIZED] = logs @ by, cost(weights)
    picture = data["picture"]
    noise = torch.Generator().manual_seed(0)
    return found | {"contrast (trivial)": (evidence.contrast(picture), 0),
                    "total variation (trivial)": (drawings.total_variation(picture), 0),
                    "edges (trivial)": (evidence.spread(edges(picture)), 0),
                    "random": (torch.rand(len(picture), generator=noise), 0)}


def named(name: str) -> dict:
    recipe = nets.NETS[name]
    return {"world": recipe.world, "net": name}


def rounded(row: dict) -> dict:
    return {key: round(value, 4) if isinstance(value, float) else value
            for key, value in row.items()}


def detect_rows(name: str, sampler: str, data: dict, standard: dict | None = None) -> Rows:
    rows = []
    for score, (values, calls) in scores_of(data, standard).items():
        wrong = wrong_of(data)[:len(values)]
        area = auroc(values, wrong)
        low, high = selfcheck.interval(area, int((~wrong).sum()), int(wrong.sum()))
        kept = values.argsort()[:len(values) - round(DROPPED * len(values))]
        share = float(wrong.float().mean())
        rows.append(rounded({
            **named(name), "sampler": sampler, "score": score,
            "default": score in (DEFAULT, DEFAULT_FREE), "role": nets.NETS[name].role,
            "extra_calls": calls, "pictures": len(values), "wrong_share": share, "auroc": area,
            "auroc_low": low, "auroc_high": high,
            "wrong_left_after_16": float(wrong[kept].float().mean()), "wrong_left_random": share,
            "wrong_left_perfect": max(0.0, share - DROPPED) / (1 - DROPPED)}))
    return rows


def located(data: dict) -> dict[str, torch.Tensor]:
    """Every map by name, B x H x W, each over its own mean in a picture and smoothed alike."""
    maps = {name: one[:, None] for name, one in maps_of(data).items()}
    picture = data["picture"]
    trivial = {"edges (trivial)": edges(picture)[:, None],
               "tone (trivial)": (picture - picture.mean((1, 2, 3), keepdim=True)).square(),
               "random": torch.rand(picture.shape, generator=torch.Generator().manual_seed(1))}
    found = {MAP_NAMES[name]: [one] for name, one in maps.items() if name in MAP_NAMES}
    for label, effort in ((DEFAULT_MAP, evidence.CHECKS), (QUICK_MAP, evidence.CHECKS[:2]),
                          (FREE_MAP, ())):
        found[label] = [maps[name] for name in doubt.MAP if name in (doubt.LATE, *effort)]
    found |= {name: [one] for name, one in trivial.items()}
    found = {name: doubt.joint_map(parts)[:, 0] for name, parts in found.items()}
    return found | {"edges, not smoothed (trivial)": edges(picture)}


def locate_rows(name: str, sampler: str, data: dict) -> Rows:
    rows, generator = [], torch.Generator().manual_seed(0)
    for label, values in located(data).items():
        # a blank picture misses something, but in no place
        wrong = (wrong_of(data) & (data["picture"].flatten(1).amax(1) > 0))[:len(values)]
        values, where = values[wrong].flatten(1), data["where"][:len(wrong)][wrong].flatten(1)

        def both(pick, values=values, where=where):
            chosen, true = values[pick].flatten(), where[pick].flatten()
            return auroc(chosen, true), average_precision(chosen, true)

        area, precision = both(torch.arange(len(values)))
        again = [both(torch.randint(len(values), (len(values),), generator=generator))
                 for _ in range(BOOTSTRAPS if label in (DEFAULT_MAP, FREE_MAP) else 0)]
        limits = {}
        if again:
            low, high = torch.tensor(again).quantile(torch.tensor([0.025, 0.975]), 0).tolist()
            limits = {"auroc_low": low[0], "auroc_high": high[0],
                      "average_precision_low": low[1], "average_precision_high": high[1]}
        rows.append(rounded({
            **named(name), "sampler": sampler, "map": label,
            "default": label in (DEFAULT_MAP, FREE_MAP), "role": nets.NETS[name].role,
            "pictures": len(values), "auroc": area, "average_precision": precision,
            "base_rate": float(where.float().mean()), **limits}))
    return rows


def early_scores(data: dict, fraction: float) -> dict[str, tuple[torch.Tensor, int]]:
    """What is known after a fraction of the steps, with its extra calls. Of a look ahead: the doubt
    of the picture that it sees."""
    start = f"early {fraction} "
    known = {key.removeprefix(start): value for key, value in data.items()
             if key.startswith(start)}
    found = {}
    for name, calls in drawings.AHEAD.items():
        label = f"look ahead, {name}"
        parts = {part: known.pop(f"{label}, {part}") for part in doubt.QUICK}
        found[label] = doubt.combined(parts, doubt.QUICK), sum(calls)
    known["random"] = torch.rand(len(known["covariance"]),
                                 generator=torch.Generator().manual_seed(0))
    return found | {name: (values, 1 if name == "covariance" else 0)
                    for name, values in known.items()}


def early_rows(name: str, sampler: str, data: dict) -> Rows:
    rows = []
    for fraction in drawings.FRACTIONS if any(key.startswith("early ") for key in data) else ():
        for score, (values, calls) in early_scores(data, fraction).items():
            wrong = wrong_of(data)[:len(values)]
            area = auroc(values, wrong)
            low, high = selfcheck.interval(area, int((~wrong).sum()), int(wrong.sum()))
            rows.append(rounded({
                **named(name), "sampler": sampler, "score": score,
                "default": score == EARLY_DEFAULT, "role": nets.NETS[name].role,
                "fraction": fraction, "extra_calls": calls, "pictures": len(values),
                "auroc": area, "auroc_low": low, "auroc_high": high}))
    return rows


def learn(settings: dict, ready=learned.centered_logs) -> dict[str, dict[str, float]]:
    """The weights of each variant's parts, from the choosing settings; each setting and in it each
    kind of picture counts the same."""
    found = {}
    for variant, parts in doubt.VARIANTS.items():
        features, wrongs, weights = [], [], []
        for data in settings.values():
            have, wrong = parts_of(data), wrong_of(data)
            features.append(ready(torch.stack([have[part] for part in parts], 1)))
            wrongs.append(wrong)
            weights.append(torch.where(wrong, 1 / wrong.sum(), 1 / (~wrong).sum()))
        values = learned.logistic(torch.cat(features), torch.cat(wrongs), LEARNED_WITH,
                                  torch.cat(weights))
        found[variant] = {part: round(float(value), 2) for part, value in zip(parts, values)}
    return found


def write(tables: dict[str, Rows], **rest) -> None:
    """Tables that were not made anew stay as they were."""
    target = REPOSITORY / "benchmarks" / "results" / "truth.json"
    old = json.loads(target.read_text()) if target.exists() else {}
    whole = {**{key: old.get(key, []) for key in ("detect", "locate", "early", "repair")}, **tables}
    body = ",\n".join(f' {json.dumps(key)}: [\n' + ",\n".join(
        "  " + json.dumps(row) for row in rows) + "\n ]" for key, rows in whole.items())
    extra = "".join(f",\n {json.dumps(key)}: {json.dumps(value)}" for key, value in
                    {**{k: v for k, v in old.items() if k not in whole}, **rest}.items())
    target.with_suffix(".part").write_text(f"{{\n{body}{extra}\n}}\n")
    target.with_suffix(".part").replace(target)
    print(f"written to {target.relative_to(REPOSITORY)}")


def draw_curves(settings: dict) -> None:
    """ROC curves of the reporting settings. Writes truth.png."""
    matplotlib.use("Agg")
    from matplotlib import pyplot
    names = list(dict.fromkeys(name for name, _ in settings))
    figure, axes = pyplot.subplots(len(names), 3, figsize=(9.6, 3 * len(names)), squeeze=False,
                                   sharex=True, sharey=True)
    shown = {DEFAULT: "tab:orange", DEFAULT_FREE: "tab:blue", "present: relative change":
             "tab:green", "total variation (trivial)": "tab:gray"}
    for (name, sampler), data in settings.items():
        axis = axes[names.index(name)][sampling.SAMPLERS.index(sampler)]
        found, wrong = scores_of(data), wrong_of(data)
        for score, color in shown.items():
            hits = wrong[found[score][0].argsort(descending=True)].double()
            true, false = hits.cumsum(0) / hits.sum(), (1 - hits).cumsum(0) / (1 - hits).sum()
            axis.plot(false, true, color=color, linewidth=1.5,
                      label=f"{score} {auroc(found[score][0], wrong):.2f}")
        axis.plot([0, 1], [0, 1], color="black", linewidth=0.6)
        axis.set_title(f"{name}, {sampler}: {wrong.float().mean():.0%} wrong", fontsize=9)
        axis.legend(fontsize=7, loc="lower right")
    for axis in axes[-1]:
        axis.set_xlabel("right pictures dropped")
    for row in axes:
        row[0].set_ylabel("wrong pictures dropped")
    figure.tight_layout()
    figure.savefig(REPOSITORY / "benchmarks" / "results" / "truth.png", dpi=80)


def draw_maps(settings: dict, each: int = 8) -> None:
    """The first right and wrong pictures of each net, the maps and the true errors. Writes
    truth_maps.png."""
    matplotlib.use("Agg")
    from matplotlib import pyplot
    chosen = {name: data for (name, sampler), data in settings.items() if sampler == "euler"}
    figure, axes = pyplot.subplots(3 * len(chosen), 1, figsize=(12, 2.55 * len(chosen)))
    for number, (name, data) in enumerate(chosen.items()):
        wrong, blank = wrong_of(data), data["picture"].flatten(1).amax(1) <= 0
        pick = torch.cat([(~wrong).nonzero()[:each, 0], (wrong & ~blank).nonzero()[:each, 0]])
        # the joint map has mean 1 in every picture; how unsure the picture is in all comes back in
        pull = evidence.mean(data["map pull 1.2"][:, None]).float()
        joint = located(data)[DEFAULT_MAP] * pull[:, None, None]
        top = joint[pick].flatten(1).amax(1).quantile(0.8)  # one scale for all of a net
        rows = [((data["picture"][pick, 0] + 1) / 2, "gray", f"{name}\nright | wrong"),
                (joint[pick] / top, "inferno", DEFAULT_MAP),
                (data["error"][pick].float(), "inferno", "true error")]
        for axis, (pictures, colors, title) in zip(axes[3 * number:3 * number + 3], rows):
            framed = F.pad(pictures.float().clamp(0, 1), (0, 2), value=0.5)
            axis.imshow(torch.cat(list(framed), 1), cmap=colors, vmin=0, vmax=1)
            axis.set_ylabel(title, fontsize=7, rotation=0, ha="right", va="center")
            axis.set(xticks=[], yticks=[])
    figure.tight_layout(pad=0.4)
    figure.savefig(REPOSITORY / "benchmarks" / "results" / "truth_maps.png", dpi=100)


def goal_rows(detect: Rows, locate: Rows) -> Rows:
    """The defaults of the reporting rows on one line each."""
    rows = []
    for row in detect:
        if row["default"] and row["role"] == nets.REPORTING:
            beyond = row["wrong_left_random"] - row["wrong_left_perfect"]
            gained = row["wrong_left_random"] - row["wrong_left_after_16"]
            rows.append({**{key: row[key] for key in ("net", "sampler", "score", "extra_calls",
                                                      "wrong_share", "auroc", "auroc_low")},
                         "of_perfect_dropping": round(gained / beyond, 3) if beyond else math.nan})
    return rows


def main() -> None:
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", nargs="*", default=["detect", "locate", "early", "repair"])
    parser.add_argument("--nets", nargs="*", default=list(nets.NETS))
    parser.add_argument("--samplers", nargs="*", default=list(sampling.SAMPLERS))
    parser.add_argument("--pictures", type=int, default=0, help="of a reporting setting, in"
                        " hundreds; 1000 where nothing is said")
    parser.add_argument("--kept", action="store_true",
                        help="as many pictures of a reporting setting as the cache holds")
    parser.add_argument("--learn", action="store_true",
                        help="print the weights that doubt.py should have, and stop")
    options = parser.parse_args()
    def pictures(name: str, sampler: str) -> int:
        if nets.NETS[name].role == nets.CHOOSING:
            return 0
        return drawings.kept(name, sampler) if options.kept else options.pictures

    settings = {(name, sampler): drawings.setting(name, sampler, pictures(name, sampler))
                for name in options.nets for sampler in SAMPLERS[nets.NETS[name].role]
                if sampler in options.samplers}
    choosing = {key: data for key, data in settings.items()
                if nets.NETS[key[0]].role == nets.CHOOSING}
    reporting = {key: data for key, data in settings.items() if key not in choosing}
    weights = learn(choosing) if choosing else read("truth").get("weights", {})
    standard = learn(choosing, learned.standardized_logs) if choosing else None
    for variant, found in weights.items():
        print(variant, found)
    if options.learn:
        return
    tables: dict[str, Rows] = {}
    detect = functools.partial(detect_rows, standard=standard)
    for table, make in (("detect", detect), ("locate", locate_rows), ("early", early_rows)):
        if table in options.only:
            tables[table] = [row for (name, sampler), data in settings.items()
                             for row in make(name, sampler, data)]
            show([row for row in tables[table] if row["role"] == nets.REPORTING])
    if "repair" in options.only:
        tables["repair"] = [row for (name, sampler), data in settings.items()
                            if sampler == "euler" and nets.NETS[name].role == nets.REPORTING
                            for row in repair.rows(name, data)]
        show(tables["repair"])
    if "detect" in tables:
        show(goal_rows(tables["detect"], tables.get("locate", [])))
    write(tables, weights=weights, calls=sampling.CALLS, dropped=DROPPED, limit=rule.LIMIT,
          nets={name: list(nets.NETS[name][:5]) for name in options.nets})
    if reporting and "detect" in options.only:
        draw_curves(reporting)
        draw_maps(reporting)


if __name__ == "__main__":
    main()
