"""Does a score tell good drawings from bad ones, and does dropping by it help?

Small nets draw some thousands of pictures with 50 calls each. A picture is outside the real
manifold when it lies in the neighborhood of no real image of
its class (Precision and Recall of Kynkaanniemi et al.), in the features of a network that had no
part in drawing. Neighborhoods reach to the tenth neighbor (k = 10): with their k = 3 a tenth of
the real images is outside as well, and the label is mostly chance (`labels`). Every score is
compared with dropping at random and with trivial rivals, within a class, as scores of different
prompts do not compare, and across classes. Choices were made on the net "fashion", which has no
row here. Writes benchmarks/results/quality.json and quality.png.

    python run.py bench quality
"""

import statistics
import time
from dataclasses import dataclass, field, replace

import matplotlib
import torch

from bayesdiff_core import resampling, scores, selfcheck
from bayesdiff_core.trajectory import TrajectoryRecorder
from benchmarks import denoiser, drawings, judge, nets
from benchmarks.report import show, write
from tools.judge import distance, frechet, inside
from tools.places import REPOSITORY

REPORTED = [(net, sampler) for net in ("cifar", "fashion-flow")
            for sampler in ("ddim", "dpm_solver_2")]
COUNTS = {"ddim": 2000, "dpm_solver_2": 1000}
FIRST_SEED, PAPERS_OF = 100_000, 600
OTHER_SEEDS = 1_000_000  # far from those of the pictures
DROPPED = 0.16  # mean + 1 sigma, as in the paper
RANDOM_DRAWS = 200
GROUPS = 5
SKIP_IMAGES, INTERVALS, ENDS = 96, (0, 1, 2, 4, 8), 9  # as in the paper
DEFAULT = scores.DEFAULT
PAPER = "sum, paper (S = 10, skip 4)"
GROUPED = (DEFAULT, scores.SUM, PAPER)


@dataclass(frozen=True)
class Pictures:
    """Drawings as they are judged. A score may be known of the first ones only."""

    dataset: str
    sampler: str
    labels: torch.Tensor  # N
    features: torch.Tensor  # N x D, the judge's
    real: torch.Tensor  # M x D
    real_labels: torch.Tensor
    scores: dict[str, torch.Tensor]
    outside: torch.Tensor = field(init=False)  # N: no real image of the class is near
    outside_k3: torch.Tensor = field(init=False)
    nearest: torch.Tensor = field(init=False)  # N: distance to the nearest real image of the class

    def __post_init__(self):
        nearest = torch.empty(len(self.labels))
        for label in self.labels.unique():
            own, real = self.labels == label, self.real[self.real_labels == label]
            nearest[own] = torch.cdist(self.features[own], real).amin(1)
        object.__setattr__(self, "nearest", nearest)
        everything = torch.ones(len(self.real), dtype=torch.bool)
        for name, k in (("outside", judge.NEIGHBORS), ("outside_k3", 3)):
            object.__setattr__(self, name, self.distance(everything, k) > 1)

    def first(self, count: int) -> "Pictures":
        return replace(self, labels=self.labels[:count], features=self.features[:count])

    def distance(self, chosen: torch.Tensor, k: int) -> torch.Tensor:
        """To the manifold of the chosen real images of the own class, N values."""
        found = torch.zeros(len(self.labels))
        for label in self.labels.unique():
            own = self.labels == label
            real = self.real[chosen & (self.real_labels == label)]
            found[own] = distance(self.features[own], real, min(k, len(real) - 1))
        return found

    def quality(self, kept: torch.Tensor) -> tuple[float, float, float]:
        """FID, precision and recall of the kept ones (N booleans)."""
        found = []
        for label in self.labels.unique():
            made = self.features[kept & (self.labels == label)]
            found.append(inside(self.real[self.real_labels == label], made,
                                min(judge.NEIGHBORS, len(made) - 1)))
        return (frechet(self.features[kept], self.real),
                float((~self.outside[kept]).float().mean()), float(torch.cat(found).float().mean()))


def spearman(a: list[float], b: list[float]) -> float:
    """Correlation of the ranks; scores are never tied."""
    ranks = torch.tensor([a, b], dtype=torch.float64).argsort(1).argsort(1).double()
    return float(torch.corrcoef(ranks)[0, 1])


def net_pictures(name: str, sampler: str) -> Pictures:
    drawn = drawings.drawings(name, sampler, COUNTS[sampler], FIRST_SEED, PAPERS_OF)
    data = nets.NETS[name][0]
    looked = judge.load(data)
    real, real_labels = judge.real(data)
    return Pictures(name, sampler, drawn["labels"], looked.features(drawn["picture"]),
                    looked.features(real), real_labels, scores_of(drawn))


def scores_of(drawn: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Of drawings.drawings, by the names on the page."""
    picture = drawn["picture"]
    found = scores.all_scores(drawn["variance"], drawn["tail"],
                              picture=drawn.get("latent", picture))
    variation = (picture.diff(dim=2).abs().flatten(1).mean(1)
                 + picture.diff(dim=3).abs().flatten(1).mean(1))
    named = {
        scores.SUM: found[scores.SUM],
        "sum, shared weights": scores.total(drawn["shared"]) if "shared" in drawn else None,
        PAPER: drawn.get("paper"), scores.CONTRAST: found[scores.CONTRAST],
        scores.PATCH: found[scores.PATCH], "gamma^2 alone": drawn.get("gamma"),
        "re-noising error": drawn.get("renoised"), scores.TRAJECTORY: found[scores.TRAJECTORY],
        scores.RELATIVE: found[scores.RELATIVE],
        "image contrast (trivial)": picture.flatten(1).std(1),
        "total variation (trivial)": variation,
    }
    return {name: values.double() for name, values in named.items() if values is not None}


def within_class(values: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Scores that compare across classes: their logarithm, standardised in each class."""
    logs = values.double().clamp(min=torch.finfo(torch.float64).tiny).log()
    found = torch.empty_like(logs)
    for label in labels.unique():
        own = labels == label
        found[own] = (logs[own] - logs[own].mean()) / logs[own].std()
    return found


def kept_within(values: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """All but the highest DROPPED of each class, N booleans."""
    kept = torch.ones(len(labels), dtype=torch.bool)
    for label in labels.unique():
        own = (labels == label).nonzero().flatten()
        kept[own[values[own].argsort(descending=True)[:round(DROPPED * len(own))]]] = False
    return kept


def table_rows(pictures: Pictures) -> list[dict]:
    """The paper's Table 1: DROPPED of the pictures go by each score, or at random."""
    random, rows = {}, []
    for name, values in pictures.scores.items():
        part = pictures if len(values) == len(pictures.labels) else pictures.first(len(values))
        if len(values) not in random:
            random[len(values)] = at_random(part)
        chance = random[len(values)]
        inner = within_class(values, part.labels)
        kept = kept_within(values, part.labels)
        fid, precision, recall = part.quality(kept)
        across = values <= values.quantile(1 - DROPPED)
        area, low, high = area_of(inner, part.outside)
        rows.append({
            "dataset": part.dataset, "sampler": part.sampler, "score": name,
            "default": name == DEFAULT, "pictures": len(values),
            "fid": fid, **chance["fid"], "precision": precision, **chance["precision"],
            "recall": recall, **chance["recall"],
            "auroc": area, "auroc_low": low, "auroc_high": high,
            "distance_corr": spearman(inner.tolist(),
                                      within_class(part.nearest, part.labels).tolist()),
            "auroc_k3": area_of(inner, part.outside_k3)[0],
            "precision_k3": float((~part.outside_k3[kept]).float().mean()),
            "auroc_across": area_of(values, part.outside)[0],
            "precision_across": float((~part.outside[across]).float().mean()),
            "fid_across": frechet(part.features[across], part.real)})
        rows[-1] = {key: round(value, 4) if isinstance(value, float) else value
                    for key, value in rows[-1].items()}
    return rows


def at_random(pictures: Pictures) -> dict[str, dict[str, float]]:
    """Mean and 95 % range of what is left when as many go at random."""
    generator = torch.Generator().manual_seed(0)
    drawn = [pictures.quality(kept_within(torch.rand(len(pictures.labels), generator=generator),
                                          pictures.labels)) for _ in range(RANDOM_DRAWS)]
    found = {}
    for name, values in zip(("fid", "precision", "recall"), torch.tensor(drawn).T):
        low, high = values.quantile(torch.tensor([0.025, 0.975])).tolist()
        found[name] = {f"{name}_random": values.mean().item(), f"{name}_random_low": low,
                       f"{name}_random_high": high}
    return found


def area_of(values: torch.Tensor, outside: torch.Tensor) -> tuple[float, float, float]:
    """AUROC for `outside` with its 95 % interval."""
    good, bad = values[~outside].tolist(), values[outside].tolist()
    area = selfcheck.auroc(good, bad)
    return area, *selfcheck.interval(area, len(good), len(bad))


def group_rows(pictures: Pictures, name: str) -> list[dict]:
    """The paper's five groups by falling uncertainty, made within each class."""
    values = pictures.scores[name]
    part = pictures.first(len(values))
    group = torch.empty_like(part.labels)
    for label in part.labels.unique():
        own = (part.labels == label).nonzero().flatten()
        for number, members in enumerate(values[own].argsort(descending=True).chunk(GROUPS)):
            group[own[members]] = number
    rows = []
    for number in range(GROUPS):
        fid, precision, recall = part.quality(group == number)
        rows.append({"dataset": part.dataset, "sampler": part.sampler, "score": name,
                     "group": number + 1, "fid": round(fid, 3), "precision": round(precision, 3),
                     "recall": round(recall, 3)})
    return rows


@torch.no_grad()
def skip_rows(name: str) -> list[dict]:
    """The paper's figure: do the most and the least uncertain of 96 stay the same when steps are
    skipped? Against its own interval 0; `repeat` is interval 0 with other random numbers."""
    given = drawings.scene(name, "ddim")
    seeds = range(FIRST_SEED, FIRST_SEED + SKIP_IMAGES)
    labels = torch.tensor([seed % nets.CLASSES for seed in seeds])
    x, found = given.start(seeds), {}
    for interval, other in [*((interval, 0) for interval in INTERVALS), (0, 1)]:
        started = time.perf_counter()
        draws = [seed + other * OTHER_SEEDS for seed in seeds]
        variance, evaluations = drawings.papers(given, labels, x, draws, interval)
        found[interval, other] = (scores.total(variance).tolist(), evaluations,
                                  time.perf_counter() - started)
    started = time.perf_counter()
    drawings.ride(given, labels, x, [])
    plain = time.perf_counter() - started
    first = found[0, 0][0]

    def shared(values: list[float], highest: bool) -> float:
        ends = [set(torch.tensor(one).argsort(descending=highest)[:ENDS].tolist())
                for one in (values, first)]
        return len(ends[0] & ends[1]) / ENDS

    return [{"dataset": name, "interval": "repeat" if other else interval,
             "rank_corr": round(spearman(values, first), 3),
             "top_shared": round(shared(values, True), 3),
             "bottom_shared": round(shared(values, False), 3), "evaluations": evaluations,
             "time_ratio": round(seconds / plain, 2)}
            for (interval, other), (values, evaluations, seconds) in found.items()]


@torch.no_grad()
def held_out_rows(name: str, each: int = 10, riders: int = 3) -> list[dict]:
    """AUROC for "of the class that the posterior was not fitted on", beside that of the same score
    with the posterior that was: what the class itself makes is in both. gamma^2 for every class,
    the sum for the first few."""
    given = drawings.scene(name, "ddim")
    without = [denoiser.fit(name, given.net, leave_out=label) for label in range(nets.CLASSES)]
    seeds = range(FIRST_SEED, FIRST_SEED + each * nets.CLASSES)
    labels = torch.tensor([seed % nets.CLASSES for seed in seeds])
    done = drawings.ride(given, labels, given.start(seeds),
                         [given.rider(seeds, posterior=one)
                          for one in [given.posterior, *without[:riders]]],
                         [given.posterior, *without])
    sums = [scores.total(variance) for variance in done.variances]
    rows = []
    for score, (with_all, *others) in (("gamma^2 alone", done.gammas), (scores.SUM, sums)):
        areas = [[area_of(values, labels == label)[0] for values in (others[label], with_all)]
                 for label in range(len(others))]
        held, usual = zip(*areas)
        rows.append({"dataset": name, "score": score, "classes": len(others),
                     "auroc": round(statistics.mean(held), 3),
                     "auroc_fitted_on_all": round(statistics.mean(usual), 3),
                     "lowest": round(min(held), 3), "highest": round(max(held), 3)})
    return rows


@torch.no_grad()
def resampling_rows(name: str, pictures: Pictures, count: int = 500, draws: int = 4) -> list[dict]:
    """Do the DROPPED that the default score thinks worst come nearer to a real image of their class
    when they are drawn again from the middle step?"""
    given = drawings.scene(name, pictures.sampler)
    part = pictures.first(count)
    worst = (~kept_within(pictures.scores[DEFAULT][:count], part.labels)).nonzero().flatten()
    labels, seeds = part.labels[worst], [FIRST_SEED + int(index) for index in worst]
    done = drawings.ride(given, labels, given.start(seeds), [given.rider(seeds)])
    step = (len(given.sigmas) - 1) // 2
    rider = given.rider(seeds).deviations
    recorder = TrajectoryRecorder(given.sigmas, done.picture.shape, rider.count, seeds,
                                  early=rider.plan.early)
    for at in (0, step, len(given.sigmas) - 1):
        state, offset = (done.picture, done.offsets[-1]) if at == len(given.sigmas) - 1 else \
            (done.states[at], done.offsets[at])
        recorder.add(at, state, rider.variance(offset), done.tail, offset)
    trajectory = recorder.trajectory(torch.ones(1, 1, 1, 1), torch.zeros(1, 1, 1, 1))
    looked = judge.load(nets.NETS[name][0])

    def to_nearest(pictures: torch.Tensor) -> torch.Tensor:
        found = looked.features(pictures)
        nearest = [torch.cdist(one[None], part.real[part.real_labels == label]).amin()
                   for one, label in zip(found, labels)]
        return torch.stack(nearest)

    before = to_nearest(done.picture)

    def moved(unit: str, strength: float, independent: bool):
        drawn = resampling.offsets(trajectory, step, draws, 0, strength, unit, independent)
        return lambda turn: drawings.ride(given, labels, done.states[step] + drawn[turn], [],
                                          first=step).picture

    def fresh(turn: int) -> torch.Tensor:
        others = [seed + (turn + 1) * OTHER_SEEDS for seed in seeds]
        return drawings.ride(given, labels, given.start(others), []).picture

    ways = {"deviations, 0.3 of the noise level": moved("noise level", 0.3, False),
            "plain noise, 0.3 of the noise level": moved("noise level", 0.3, True),
            "deviations, 0.6 of the noise level": moved("noise level", 0.6, False),
            "plain noise, 0.6 of the noise level": moved("noise level", 0.6, True),
            "fresh seed": fresh}
    rows = []
    for way, draw in ways.items():
        after = torch.stack([to_nearest(draw(turn)) for turn in range(draws)])
        better = (after < before).float().mean(0)  # of each picture
        rows.append({"dataset": name, "sampler": pictures.sampler, "way": way,
                     "pictures": len(worst), "draws": draws,
                     "improved": round(better.mean().item(), 3),
                     "standard_error": round((better.std() / len(better) ** 0.5).item(), 3),
                     "distance_ratio": round((after.mean() / before.mean()).item(), 3),
                     "best_of_draws_improved":
                         round((after.amin(0) < before).float().mean().item(), 3)})
    return rows


def label_rows(found: Pictures) -> list[dict]:
    """What "outside the real manifold" is worth, for several k: how many of the drawings and of
    the real images are outside of one half of the real ones, and how well the other half tells
    which drawings are. No score can be expected to tell better."""
    half = torch.arange(len(found.real)) % 2 == 0
    real = replace(found, labels=found.real_labels[~half], features=found.real[~half])
    rows = []
    for k in judge.LOOKED_AT:
        outside = found.distance(half, k) > 1
        by_the_other = within_class(found.distance(~half, k), found.labels)
        rows.append({"dataset": found.dataset, "sampler": found.sampler, "k": k,
                     "drawings_outside": round(outside.float().mean().item(), 3),
                     "real_outside": round((real.distance(half, k) > 1).float().mean().item(), 3),
                     "ceiling": round(area_of(by_the_other, outside)[0], 3)})
    return rows


def net_rows(pictures: dict) -> list[dict]:
    """How good the nets and their judges are. FID of one half of the real images to the other
    shows what a perfect net could reach."""
    rows = []
    for (name, sampler), found in pictures.items():
        everything = torch.ones(len(found.labels), dtype=torch.bool)
        fid, precision, recall = found.quality(everything)
        half = len(found.real) // 2
        rows.append({"net": name, "sampler": sampler, "pictures": len(found.labels),
                     "fid": round(fid, 3), "precision": round(precision, 3),
                     "recall": round(recall, 3),
                     "fid_of_real": round(frechet(found.real[:half], found.real[half:]), 3)})
    return rows


def main() -> None:
    torch.set_num_threads(1)
    pictures = {(name, sampler): net_pictures(name, sampler) for name, sampler in REPORTED}
    rows = [row for found in pictures.values() for row in table_rows(found)]
    groups = [row for found in pictures.values() for name in GROUPED
              if name in found.scores for row in group_rows(found, name)]
    names = list(dict.fromkeys(name for name, _ in REPORTED))
    print("groups", flush=True)
    more = {"labels": [row for found in pictures.values() for row in label_rows(found)],
            "groups": groups, "skip": skip_rows(names[0]),
            "held_out": [row for name in names for row in held_out_rows(name)],
            "resampling": [row for name in names
                           for row in resampling_rows(name, pictures[name, "ddim"])]}
    for table in more.values():
        show(table)
    draw_plot(rows)
    write("quality", rows, **more, nets=net_rows(pictures), calls=drawings.CALLS, dropped=DROPPED,
          random_draws=RANDOM_DRAWS, neighbors=judge.NEIGHBORS,
          judges={data: round(judge.load(data).accuracy, 3) for data in ("cifar", "fashion")})


def draw_plot(rows: list[dict]) -> None:
    """AUROC with its interval, and precision against random dropping. Writes quality.png."""
    matplotlib.use("Agg")
    from matplotlib import pyplot
    settings = list(dict.fromkeys((row["dataset"], row["sampler"]) for row in rows))
    figure, axes = pyplot.subplots(2, len(settings), figsize=(3 * len(settings), 6.4), sharey=True,
                                   squeeze=False)
    for (dataset, sampler), (above, below) in zip(settings, axes.T):
        part = [row for row in rows if (row["dataset"], row["sampler"]) == (dataset, sampler)][::-1]
        names = [row["score"] for row in part]
        colors = ["tab:orange" if row["default"] else
                   "tab:gray" if "trivial" in row["score"] else "tab:blue" for row in part]
        above.barh(names, [row["auroc"] for row in part], color=colors,
                   xerr=[[row["auroc"] - row["auroc_low"] for row in part],
                         [row["auroc_high"] - row["auroc"] for row in part]])
        above.axvline(0.5, color="black", linewidth=0.8)
        above.set(xlim=(0.3, 0.95), title=f"{dataset}, {sampler}", xlabel="AUROC")
        gains = [row["precision"] - row["precision_random"] for row in part]
        below.barh(names, gains, color=colors)
        high = max(row["precision_random_high"] - row["precision_random"] for row in part)
        low = min(row["precision_random_low"] - row["precision_random"] for row in part)
        below.axvspan(low, high, color="tab:red", alpha=0.2)
        below.set(xlabel="precision gained by dropping 16 %")
    figure.tight_layout()
    figure.savefig(REPOSITORY / "benchmarks" / "results" / "quality.png", dpi=80)


if __name__ == "__main__":
    main()
