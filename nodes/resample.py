"""Resample From Timestep: other endings of a trajectory."""

import json

from comfy_api.latest import io, ui

from ..bayesdiff_core import checks
from ..bayesdiff_core.resampling import UNITS, step_to_leave
from .host import resampling
from .sockets import TRAJECTORY

DRAWS = ["deviations", "gaussian"]


class BayesDiffResample(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="BayesDiff_ResampleFromTimestep",
            display_name="Resample From Timestep",
            category="bayesdiff",
            description="Goes back to a step of a trajectory, moves the state there by as much as"
                        " the model is unsure, and samples on: variations of a picture, or of the"
                        " masked part of it.",
            inputs=[
                TRAJECTORY.Input("trajectory", tooltip="From BayesDiff KSampler, BayesDiff Sampler"
                                                       " Custom or BayesDiff Best of N."),
                io.Int.Input("step", default=-1, min=-1, max=10000,
                             tooltip="The step to go back to, one that the trajectory keeps: 0 is"
                                     " the start. -1: the one nearest to `fraction`."),
                io.Float.Input("fraction", default=0.5, min=0.0, max=1.0, step=0.05,
                               tooltip="Where to go back to, 0 (the start) to 1 (the end); the"
                                       " nearest kept step is taken. Only with step -1."),
                io.Int.Input("count", default=1, min=1, max=64,
                             tooltip="Variations of each image, 1 to 64."),
                io.Float.Input("strength", default=0.3, min=0.0, max=1000.0, step=0.05,
                               tooltip="How far to move, 0 to 1000. 0 gives the original back. In"
                                       " units of the noise level 0.1 to 0.6 is usual, more may"
                                       " leave noise in the picture. At step 0 it"
                                       " is the share of new noise, at most 1."),
                io.Combo.Input("unit", options=list(UNITS), default="noise level",
                               tooltip="noise level: strength 1 moves as far as the noise at that"
                                       " step is strong (rms). posterior: strength 1 is one draw of"
                                       " the trajectory's own variance, as in the paper; that may"
                                       " be very little, as it falls with the latents the"
                                       " posterior saw."),
                io.Combo.Input("draw", options=DRAWS, default="deviations",
                               tooltip="deviations: mixtures of those that the trajectory kept,"
                                       " coherent in space. gaussian: independent at each pixel, as"
                                       " in the paper. Trajectories of modes free and paper keep no"
                                       " deviations, so they give gaussian."),
                io.Int.Input("seed", default=0, min=0, max=0xffffffffffffffff,
                             control_after_generate=True,
                             tooltip="Seed of the moves, 0 to 2^64 - 1. Same seed, same bits."),
                io.Mask.Input("mask", optional=True,
                              tooltip="Where to resample, 0 to 1, of any size: where it is 0 the"
                                      " latent stays as it is, bit for bit."),
                io.Conditioning.Input("positive", optional=True,
                                      tooltip="Another prompt from this step on."),
                io.Conditioning.Input("negative", optional=True,
                                      tooltip="Another negative prompt from this step on."),
                io.Model.Input("model", optional=True,
                               tooltip="Another model from this step on, of the same family: with"
                                       " a LoRA, another checkpoint, a refiner."),
            ],
            outputs=[
                io.Latent.Output(display_name="latent",
                                 tooltip="The variations, those of the first image first."),
                io.String.Output(display_name="report",
                                 tooltip="JSON: step, sigma, rms offset of each image, calls,"
                                         " notes."),
            ],
            search_aliases=["variations", "resample", "branch", "subseed", "uncertainty"],
        )

    @classmethod
    def execute(cls, trajectory, step, fraction, count, strength, unit, draw, seed, mask=None,
                positive=None, negative=None, model=None) -> io.NodeOutput:
        checks.at_least("count", count, 1)
        recipe = resampling.recipe_of(trajectory)
        same = positive is None and negative is None and model is None
        step = step_to_leave(trajectory, step, fraction)
        if mask is not None:
            mask = resampling.spread(mask, recipe)
        report = {"step": step, "sigma": float(trajectory.sigmas[step]), "rms": [0.0], "calls": 0,
                  "notes": _notes(trajectory, step, strength, draw)}
        if strength == 0 and same:
            original = recipe.result["samples"]
            samples = original.expand(count, *original.shape)
        else:
            drawn = resampling.drawn_offsets(trajectory, recipe, step, count, seed, strength, unit,
                                             draw == "gaussian", mask)
            recipe = resampling.changed(recipe, model, positive, negative)
            variations = resampling.Variations(trajectory, recipe, step, mask)
            samples = variations.sample(drawn)
            report.update(rms=variations.rms(), calls=variations.calls)
        text = "\n".join([f"from step {step} of {len(trajectory.sigmas) - 1} (sigma"
                          f" {report['sigma']:.4g}), {report['calls']} calls",
                          f"rms offset: {', '.join(f'{rms:.4g}' for rms in report['rms'])}",
                          *report["notes"]])
        return io.NodeOutput(resampling.image_by_image(recipe.result, samples), json.dumps(report),
                             ui=ui.PreviewText(text))


def _notes(trajectory, step: int, strength: float, draw: str) -> list[str]:
    if step == 0:
        return ["at the start strength is the share of new noise, so 1 is the most"] \
            if strength > 1 else []
    if draw == "deviations" and not trajectory.deviations.shape[1]:
        return ["this trajectory keeps no deviations (mode free or paper): gaussian noise of its"
                " variance is used, which in mode free is the trajectory variance"]
    return []
