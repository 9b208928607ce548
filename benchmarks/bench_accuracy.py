"""How near each estimator comes to brute force. Writes benchmarks/results/accuracy.json.

Trains the nets and makes the truths when the cache has none: about three hours on two cores.
"""

from collections.abc import Callable

import torch
from PIL import Image

from bayesdiff_core import deviations, skip_schedule
from bayesdiff_core.iteration import ImageNoise, Moments
from bayesdiff_core.paper.algorithm import bayesdiff
from bayesdiff_core.paper.moments import moment_iteration
from bayesdiff_core.paper.with_deviations import sample_with_deviations
from benchmarks import settings
from benchmarks.report import read, write
from benchmarks.settings import Scene, Setting
from tools.places import REPOSITORY

SEEDS = 3  # every figure is a mean over these


def with_deviations(share: float, noise_model: str = "independent") -> Callable[[Scene, int],
                                                                                Moments]:
    def estimate(scene: Scene, seed: int) -> Moments:
        net = scene.denoiser
        flow = net.net.kind == "flow"
        budget = int(share * scene.plain_evaluations / net.plain_evaluations)
        make = deviations.plan if noise_model == "independent" else deviations.shared_plan
        seeds = [1000 * seed + i for i in range(len(scene.x))]
        riding = deviations.Deviations(make(scene.sigmas, budget, flow), noise_model, seeds, flow,
                                       weight_seed=seed)
        return sample_with_deviations(net, net.with_posterior, scene.x, scene.sigmas, scene.rule,
                                      riding, settings.same_noise(scene))
    return estimate


def papers(samples: int, interval: int) -> Callable[[Scene, int], Moments]:
    """Algorithm 1 (interval 0) or 2; the picture is left alone so that it is the truth's."""
    def estimate(scene: Scene, seed: int) -> Moments:
        schedule = skip_schedule.by_interval(len(scene.sigmas) - 1, interval)
        seeds = [1000 * seed + i for i in range(len(scene.x))]
        noise = ImageNoise(seeds, scene.x.shape[1:])
        return bayesdiff(scene.denoiser, scene.denoiser.with_posterior, scene.x, scene.sigmas,
                         scene.rule, schedule, samples, noise, sample_eps=False)
    return estimate


def moments(probes: int, interval: int) -> Callable[[Scene, int], Moments]:
    def estimate(scene: Scene, seed: int) -> Moments:
        schedule = skip_schedule.by_interval(len(scene.sigmas) - 1, interval)
        return moment_iteration(scene.denoiser, scene.denoiser.with_posterior, scene.x,
                                scene.sigmas, scene.rule, schedule, probes, _seeded(seed))
    return estimate


DEFAULT = "deviations, half"
ESTIMATORS = {
    "independent": {
        DEFAULT: with_deviations(0.5),
        "deviations, quarter": with_deviations(0.25),
        "deviations, double": with_deviations(2.0),
        "paper, S=10, every step": papers(10, 0),
        "paper, S=10, skip 4": papers(10, 4),
        "moments, 2 probes, every step": moments(2, 0),
        "moments, 2 probes, skip 4": moments(2, 4),
    },
    "shared": {
        "deviations, half": with_deviations(0.5, "shared"),
        "deviations, double": with_deviations(2.0, "shared"),
    },
}


def main() -> None:
    rows = []
    for setting in settings.SETTINGS:
        scene = settings.scene(setting)
        truth, first, second = settings.truth(setting, scene)
        halves = agreement(first, second)
        for name, estimate in ESTIMATORS[setting.noise_model].items():
            rows.append(_row(setting, scene, name, estimate, truth, halves))
            print(*rows[-1].values(), flush=True)
    draw_maps(Setting("emoji", "ddim", 25, 3.0))
    rows += [row for row in read("accuracy")["rows"] if row["net"] == "demo"]  # of bench host
    write("accuracy", rows, images=settings.IMAGES, trajectories=settings.TRAJECTORIES,
          seeds=SEEDS, tuned_on=settings.TUNED_ON)


@torch.no_grad()
def draw_maps(setting: Setting) -> None:
    """Pictures, and under them the standard deviation by brute force, by the default and by the
    paper's recipe, each row in its own range. Writes benchmarks/results/maps.png."""
    scene = settings.scene(setting)
    truth = settings.truth(setting, scene)[0]
    ours = ESTIMATORS["independent"][DEFAULT](scene, 0)
    theirs = ESTIMATORS["independent"]["paper, S=10, skip 4"](scene, 0)
    bands = [(ours.sample.clamp(-1, 1) + 1) / 2]
    for variance in (truth, ours.variance, theirs.variance):
        deviation = variance.mean(1, keepdim=True).sqrt()
        bands.append((deviation / deviation.quantile(0.995)).clamp(0, 1).expand_as(bands[0]))
    sheet = torch.cat([band.permute(2, 0, 3, 1).flatten(1, 2) for band in bands])  # H x W x C
    picture = Image.fromarray((255 * sheet).byte().numpy())
    picture.resize((4 * picture.width, 4 * picture.height), Image.Resampling.NEAREST) \
        .save(REPOSITORY / "benchmarks" / "results" / "maps.png")


def _row(setting: Setting, scene: Scene, name, estimate, truth, halves) -> dict:
    return {"net": setting.net, "sampler": setting.sampler, "steps": setting.steps,
            "cfg": setting.cfg, "estimator": name, "noise_model": setting.noise_model,
            "default": name == DEFAULT and setting.noise_model == "independent",
            **figures(scene, estimate, truth, halves)}


@torch.no_grad()
def figures(scene: Scene, estimate, truth, halves) -> dict:
    measured = []
    for seed in range(SEEDS):
        scene.denoiser.evaluations = 0
        result = estimate(scene, seed)
        measured.append([scene.denoiser.evaluations / scene.plain_evaluations,
                         *agreement(result.variance, truth), result.negative_share])
    ratio, score, pixel, total, negative = torch.tensor(measured).mean(0).tolist()
    return {"calls_ratio": round(ratio, 3), "score_logcorr": round(score, 3),
            "pixel_corr": round(pixel, 3), "sum_ratio": round(total, 3),
            "negative_share": round(negative, 4),
            "truth_split_half": {"score_logcorr": round(halves[0], 3),
                                 "pixel_corr": round(halves[1], 3)}}


def agreement(estimate: torch.Tensor, truth: torch.Tensor) -> tuple[float, float, float]:
    """Correlation of log sums over images, mean correlation inside an image, ratio of sums."""
    sums, true_sums = (v.flatten(1).sum(1) for v in (estimate, truth))
    floor = torch.finfo(sums.dtype).tiny
    score = _correlation(sums.clamp(min=floor).log(), true_sums.log())
    pixels = [_correlation(e, t) for e, t in zip(estimate.flatten(1), truth.flatten(1))]
    return score, sum(pixels) / len(pixels), (sums.sum() / true_sums.sum()).item()


def _correlation(a: torch.Tensor, b: torch.Tensor) -> float:
    value = torch.corrcoef(torch.stack([a, b]))[0, 1].item()
    return 0.0 if value != value else value  # a constant map agrees with nothing


def _seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


if __name__ == "__main__":
    main()
