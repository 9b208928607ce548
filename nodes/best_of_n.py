"""Best of N: many seeds to a step, the surest ones to the end."""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from comfy_api.latest import io, ui

from ..bayesdiff_core import doubt, evidence, scores
from ..bayesdiff_core.checks import BayesDiffError
from ..bayesdiff_core.selection import WAYS, Stop, planned_steps, stops
from ..bayesdiff_core.trajectory import joined
from .host.run import by_mode, sampling
from .host.run.by_mode import Options
from .host.run.resume import At, Resumable, Score
from .metadata import ANSWERS_FROM_CACHE, as_text, reported
from .pictures import viewer
from .samplers import ksampler_inputs, observer_for
from .sockets import LLLA, TRAJECTORY, check_choices, llla_of


class Rank(NamedTuple):
    """How runs are compared: the sampler mode, the check at the end, and the score."""

    mode: str
    check: str
    score: Score


def _doubt_ahead(at: At) -> torch.Tensor:
    seen = at.ahead()
    return doubt.doubt(seen.maps, seen.picture).values


def _by(score: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Score:
    """Of variance and latent, part way as at the end."""
    return Score(lambda at: score(*at.scaled()), lambda trajectory: score(
        trajectory.latent_variance(), trajectory.latent_picture()))


def _summed(variance: torch.Tensor, latent: torch.Tensor) -> torch.Tensor:
    return scores.total(variance)


RANKS = {scores.DOUBT: Rank("free", "auto", Score(
             _doubt_ahead, lambda trajectory: scores.default(trajectory).values)),
         scores.RELATIVE: Rank("free", "off", _by(scores.relative_change)),
         scores.TRAJECTORY: Rank("free", "off", _by(_summed)),
         "variance, light": Rank("light", "off", _by(_summed)),
         "variance, accurate": Rank("accurate", "off", _by(_summed))}


class BayesDiffBestOfN(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="BayesDiff_BestOfN",
            display_name="BayesDiff Best of N",
            category="bayesdiff",
            description="Starts many seeds, finishes only the most confident. Every picture is"
                        " identical to KSampler's.",
            inputs=[
                *ksampler_inputs(
                    seed="The first seed. The next ones are seed_stride apart.",
                    sampler="The sampler, as in KSampler. With dpm_adaptive, uni_pc and sa_solver,"
                            " ranking by variance falls back to trajectory variance.",
                    latent="The latent that every seed starts from: one image or one clip."),
                LLLA.Input("posterior", optional=True,
                           tooltip="From LLLA Fit or LLLA Load. Only needed to rank by variance."),
                io.Int.Input("n", default=8, min=2, max=256,
                             tooltip="How many seeds to start, 2 to 256."),
                io.Int.Input("keep", default=2, min=1, max=256,
                             tooltip="How many seeds to finish, 1 to n."),
                io.Float.Input("drop_at", default=0.5, min=0.05, max=0.95, step=0.05,
                               tooltip="When to drop the others, as a share of the steps, 0.05 to"
                                       " 0.95. Later ranks better and saves less."),
                io.Combo.Input("drop_schedule", options=list(WAYS), default="once",
                               tooltip="once: drops the others in one go at drop_at. halving: drops"
                                       " half at each of several stops up to drop_at; saves more,"
                                       " ranks more roughly."),
                io.Combo.Input("rank_by", options=list(RANKS), default=scores.DEFAULT,
                               tooltip="What to rank by; the lowest are kept. doubt: looks ahead at"
                                       " the picture each seed is heading for,"
                                       f" {sum(evidence.AHEAD_OF_FEW)} extra calls per seed and"
                                       f" stop ({sum(evidence.AHEAD_OF_MANY)} from {evidence.MANY}"
                                       " steps). trajectory variance, relative change: no extra"
                                       " calls, but little to go on before three quarters of the"
                                       " steps. variance: needs a posterior and extra calls."),
                io.Int.Input("uncertainty_seed", default=0, min=0, max=0xffffffffffffffff,
                             advanced=True,
                             tooltip="Seed used to rank by variance, 0 to 2^64 - 1. It can change"
                                     " which seeds are kept, never a picture."),
                io.Int.Input("keep_steps", default=10, min=2, max=1000, advanced=True,
                             tooltip="Steps kept for each image, 2 to 1000, first and last"
                                     " included."),
                io.Int.Input("seed_stride", default=1000, min=1, max=2**32, optional=True,
                             advanced=True,
                             tooltip="Distance between seeds, 1 to 2^32. Machines that start at"
                                     " seed, seed + 1, ... then share no seed, as long as they are"
                                     " fewer than this."),
            ],
            outputs=[
                io.Latent.Output(display_name="latent",
                                 tooltip="The finished latents as a batch, lowest score first."),
                io.Latent.Output(display_name="variance",
                                 tooltip="Variance of each latent value, in the latent's units"
                                         " squared. The posterior's if ranked by variance."),
                TRAJECTORY.Output(display_name="trajectory",
                                  tooltip="The finished runs as one batch, lowest score first."),
                io.Int.Output(display_name="seeds", is_output_list=True,
                              tooltip="Seed of each finished latent, lowest score first."),
                io.String.Output(display_name="seeds_text", tooltip="The same seeds as text, for"
                                                                    " notes and file names."),
                io.Float.Output(display_name="scores", is_output_list=True,
                                tooltip="Score of each finished latent, lowest first."),
                io.String.Output(display_name="report",
                                 tooltip="JSON: every seed with its scores, when it was dropped,"
                                         " calls made and saved."),
                io.Latent.Output(display_name="mean",
                                 tooltip="Mean of each result, E(x_0): the same as latent."),
            ],
            search_aliases=["best of", "best of n", "best seed", "seed search", "sort seeds",
                            "quality", "confidence", "unsure", "broken", "hands", "early stopping",
                            "ranking", "cull", "uncertainty"],
            **ANSWERS_FROM_CACHE,
        )

    @classmethod
    def execute(cls, model, seed, steps, cfg, sampler_name, scheduler, positive, negative,
                latent_image, denoise, n, keep, drop_at, drop_schedule, rank_by, uncertainty_seed,
                keep_steps, seed_stride=1000, posterior=None) -> io.NodeOutput:
        check_choices(cls, drop_schedule=drop_schedule, rank_by=rank_by)
        rank, posterior = RANKS[rank_by], llla_of(posterior)
        options = Options(uncertainty_seed=uncertainty_seed, keep_steps=keep_steps,
                          check=rank.check)
        mode = by_mode.taken(rank.mode, posterior, sampler_name)
        observers = [observer_for(mode.mode, model, posterior, latent_image, options)
                     for _ in range(n)]
        _check_one(latent_image)
        levels = sampling.levels(model, steps, sampler_name, scheduler, denoise)
        plan = stops(n, keep, max(len(levels) - 1, 0), drop_at, drop_schedule, first=2)

        def sample(observer, seed: int):
            return sampling.sample(model, observer, seed, steps, cfg, sampler_name, scheduler,
                                   positive, negative, latent_image, denoise)

        runs = [Resumable(observer, (seed + i * seed_stride) % 2**64, sample, rank.score)
                for i, observer in enumerate(observers)]
        best = finished(runs, plan, len(levels) - 1)
        return _results(best, runs, plan, latent_image, rank_by, mode.why)


def finished(runs: list[Resumable], plan: list[Stop], steps: int) -> list[Resumable]:
    """The runs that the plan leaves, at their end, best first."""
    total, done, at, left = planned_steps(len(runs), plan, steps), 0, 0, runs
    for stop in [*plan, Stop(steps, len(left))]:
        for run in left:
            run.go(stop.step if stop.step < steps else None, done - at, total)
            done += stop.step - at
        left = sorted(left, key=_rank)
        for run in left[stop.left:]:
            run.drop(stop.step)
        at, left = stop.step, left[:stop.left]
    return left


def _rank(run: Resumable) -> tuple[bool, float]:
    score = run.scores[-1]
    return score != score, score  # NaN is worst


def _check_one(latent: dict) -> None:
    count = len(latent["samples"])
    if count != 1:
        raise BayesDiffError(f"the latent is a batch of {count}, one image or clip was expected,"
                             " because every seed starts from it: use Latent From Batch, or set the"
                             " batch size to 1.")


def _results(best: list[Resumable], runs: list[Resumable], plan: list[Stop], latent_image: dict,
             rank_by: str, why: str) -> io.NodeOutput:
    trajectory = joined([sampling.with_latents(run.observation.trajectory, latent_image, run.latent)
                         for run in best])
    # Each seed has the noise of a batch of its own, so there is no place in a batch to keep.
    latent = {key: value for key, value in best[0].latent.items() if key != "batch_index"}
    latent["samples"] = torch.cat([run.latent["samples"] for run in best])
    variance = trajectory.latent_variance()
    seeds, final = [run.seed for run in best], [run.scores[-1] for run in best]
    made = sum(run.calls for run in runs)
    alone = sum(run.calls - run.ahead_calls for run in best) / len(best)
    saved = round(alone * len(runs)) - made
    report = {
        "rank_by": rank_by, "measures": scores.MEASURES.get(rank_by, scores.MEASURES[scores.SUM]),
        "seeds": seeds, "scores": final,
        "stops": [{"step": stop.step, "left": stop.left} for stop in plan],
        "runs": [{"seed": run.seed, "scores": run.scores, "calls": run.calls,
                  "dropped_at": run.dropped_at} for run in runs],
        "calls": made, "calls_saved": saved, "notes": [*best[0].observation.notes,
                                                       *([f"mode free: {why}"] if why else []),
                                                       *_ties(runs, plan)]}
    text = "\n".join([
        f"{len(best)} of {len(runs)} seeds finished, in {made} calls: "
        + (f"{saved} saved ({100 * saved / (made + saved):.0f} %)" if saved >= 0 else
           f"{-saved} more than finishing all seeds, because looking ahead costs more than the"
           " remaining steps; use more steps, or rank by relative change"),
        *(f"after step {stop.step}: {stop.left} left" for stop in plan),
        *(f"seed {seed}: {rank_by} {score:.4g}" for seed, score in zip(seeds, final)),
        *report["notes"]])
    return io.NodeOutput(latent, {**latent, "samples": variance.to(latent["samples"])},
                         trajectory, seeds, ", ".join(map(str, seeds)), final,
                         as_text(report), latent,
                         ui={**ui.PreviewText(text).as_dict(), **reported(report),
                             "bayesdiff": [_shown(best, runs, trajectory)]})


def _ties(runs: list[Resumable], plan: list[Stop]) -> list[str]:
    """Of stops at which no seed was better than another."""
    notes = []
    for place, stop in enumerate(plan):
        found = [run.scores[place] for run in runs if len(run.scores) > place]
        if len(found) > 1 and len(set(found)) == 1:
            notes.append(f"after step {stop.step} all {len(found)} seeds had the score"
                         f" {found[0]:.4g}: the first of them went on, none is known to be better")
    return notes


def _shown(best: list[Resumable], runs: list[Resumable], trajectory) -> dict:
    """Every seed with its picture, the finished ones with their maps, for web/gallery.js."""
    pictures = viewer.shown(viewer.of_latents, [run.looks for run in runs],
                            best[0].observation.trajectory) or [None] * len(runs)
    seen = viewer.shown(viewer.of_trajectory, trajectory) or {"images": [], "colors": []}
    maps = {run.seed: image for run, image in zip(best, seen["images"])}
    return {"colors": seen["colors"],
            "runs": [{"seed": str(run.seed),
                      "score": run.scores[-1] if math.isfinite(run.scores[-1]) else None,
                      "dropped_at": run.dropped_at, "file": file, "map": maps.get(run.seed)}
                     for run, file in zip(runs, pictures)]}
