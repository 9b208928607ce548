"""Resample From Timestep: other endings of a trajectory."""

from comfy_api.latest import io, ui

from ..bayesdiff_core import checks
from ..bayesdiff_core.checks import BayesDiffError
from ..bayesdiff_core.resampling import UNITS, step_to_leave
from .host.run import states
from .host.run.recipes import NOTHING_KNOWN, Links
from .host.run.variations import Move, resampled
from .metadata import ANSWERS_FROM_CACHE, as_text, reported
from .sockets import TRAJECTORY, check_choices, trajectory_of

DRAWS = ["deviations", "gaussian"]


class BayesDiffResample(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="BayesDiff_ResampleFromTimestep",
            display_name="Resample From Timestep",
            category="bayesdiff",
            description="Rewinds a picture to an earlier step, nudges it, and finishes it again."
                        " Makes variations of the whole picture or of a masked part.",
            inputs=[
                TRAJECTORY.Input("trajectory", optional=True,
                                 tooltip="From a BayesDiff sampler; or from Trajectory Load,"
                                         " together with a model and prompts or a guider. Link"
                                         " this, or mean and variance."),
                io.Int.Input("step", default=-1, min=-1, max=10000,
                             tooltip="The step to rewind to, one that the trajectory keeps. 0 is"
                                     " the start, -1 uses fraction."),
                io.Float.Input("fraction", default=0.3, min=0.0, max=1.0, step=0.05,
                               tooltip="How far to rewind, 0 (the start) to 1 (the end). Uses the"
                                       " nearest kept step. Only with step -1."),
                io.Int.Input("count", default=1, min=1, max=64,
                             tooltip="Variations of each image, 1 to 64."),
                io.Float.Input("strength", default=0.3, min=0.0, max=1000.0, step=0.05,
                               tooltip="How hard to nudge, 0 to 1000. 0 gives the original back,"
                                       " 0.1 to 0.6 is usual, more may leave noise in the picture."
                                       " At step 0: the share of new noise, up to 1."),
                io.Combo.Input("strength_unit", options=list(UNITS), default="noise level",
                               tooltip="noise level: 1 nudges as far as the noise at that step is"
                                       " strong. posterior: 1 is one draw of the variance, as in"
                                       " the paper; it may be too small to see."),
                io.Combo.Input("draw", options=DRAWS, default="deviations",
                               tooltip="deviations: nudges neighboring pixels together. gaussian:"
                                       " each pixel by itself, as in the paper. Modes free and"
                                       " paper keep no deviations, so they use gaussian."),
                io.Int.Input("seed", default=0, min=0, max=0xffffffffffffffff,
                             control_after_generate=True,
                             tooltip="Seed of the nudges and of the noise that the sampler adds"
                                     " later, 0 to 2^64 - 1. Same seed, same result."),
                io.Mask.Input("mask", optional=True,
                              tooltip="Where to resample, 0 to 1, any size. Where it is 0, nothing"
                                      " changes."),
                io.Conditioning.Input("positive", optional=True,
                                      tooltip="Another prompt from this step on."),
                io.Conditioning.Input("negative", optional=True,
                                      tooltip="Another negative prompt from this step on."),
                io.Model.Input("model", optional=True,
                               tooltip="Another model of the same family from this step on: with a"
                                       " LoRA, another checkpoint, a refiner."),
                io.Latent.Input("mean", optional=True,
                                tooltip="Instead of a trajectory: mean of Trajectory At Step. Also"
                                        " link variance, sigmas, a sampler, and a guider or a model"
                                        " with prompts and cfg."),
                io.Latent.Input("variance", optional=True,
                                tooltip="Instead of a trajectory: variance of Trajectory At Step, 0"
                                        " or more, of the same shape as mean."),
                io.Guider.Input("guider", optional=True,
                                tooltip="Model and prompts from this step on, instead of model,"
                                        " positive, negative and cfg."),
                io.Sampler.Input("sampler", optional=True,
                                 tooltip="Another sampler from this step on. Needed with mean and"
                                         " variance."),
                io.Sigmas.Input("sigmas", optional=True,
                                tooltip="The remaining noise levels, from high to low, 2 or more."
                                        " Only with mean and variance."),
                io.Float.Input("cfg", default=0.0, min=0.0, max=100.0, step=0.1, round=0.01,
                               optional=True, advanced=True,
                               tooltip="Guidance scale from this step on, up to 100. 0 keeps the"
                                       " original one."),
            ],
            outputs=[
                io.Latent.Output(display_name="latent",
                                 tooltip="The variations; those of the first image come first."),
                io.String.Output(display_name="report",
                                 tooltip="JSON: step, noise level, how far each image was nudged"
                                         " (rms), network calls, notes."),
            ],
            search_aliases=["variations", "rewind", "resample", "branch", "subseed", "inpaint",
                            "uncertainty"],
            **ANSWERS_FROM_CACHE,
        )

    @classmethod
    def execute(cls, trajectory=None, *, step, fraction, count, strength, strength_unit, draw, seed,
                mask=None, positive=None, negative=None, model=None, mean=None, variance=None,
                guider=None, sampler=None, sigmas=None, cfg=0.0) -> io.NodeOutput:
        check_choices(cls, strength_unit=strength_unit, draw=draw)
        checks.at_least("count", count, 1)
        trajectory = trajectory_of(trajectory)
        links = Links(guider, model, positive, negative, cfg, sampler)
        latents = {"mean": mean, "variance": variance, "sigmas": sigmas}
        _check_source(trajectory, latents, mask)
        from_latents = trajectory is None
        if from_latents:
            trajectory = states.from_latents(**latents, recipe=links.into(NOTHING_KNOWN))
            step, links = 0, Links()
        else:
            step = step_to_leave(trajectory, step, fraction)
        found = resampled(trajectory, step, Move(count, seed, strength, strength_unit,
                                                 draw == "gaussian"), links, mask)
        sigma, left = float(trajectory.sigmas[step]), len(trajectory.sigmas) - 1 - step
        notes = _notes(trajectory, step, strength, draw, from_latents)
        report = {"step": None if from_latents else step, "sigma": sigma, "rms": found.rms,
                  "calls": found.calls, "notes": notes}
        start = "started from mean and variance" if from_latents else f"rewound to step {step}"
        text = "\n".join([f"{start} (sigma {sigma:.4g}, {left} steps left), {found.calls} network"
                          " calls",
                          "how far each image was nudged (rms):"
                          f" {', '.join(f'{rms:.4g}' for rms in found.rms)}", *notes])
        return io.NodeOutput(found.latent, as_text(report),
                             ui={**ui.PreviewText(text).as_dict(), **reported(report)})


def _check_source(trajectory, latents: dict, mask) -> None:
    """A trajectory, or all of the latents."""
    given = [name for name, link in latents.items() if link is not None]
    missing = [name for name in latents if name not in given]
    if trajectory is not None and given:
        raise BayesDiffError(f"a trajectory is linked, and {', '.join(given)} too, only one of the"
                             " two was expected: unlink the trajectory, or these.")
    if trajectory is None and missing:
        what = f"{', '.join(given)} without {', '.join(missing)}" if given else "nothing"
        raise BayesDiffError(f"{what} is linked to start from: link a trajectory, or mean, variance"
                             " and sigmas with a sampler and a guider.")
    if trajectory is None and mask is not None:
        raise BayesDiffError("a mask is linked, but mean and variance do not know the picture"
                             " outside it: unlink the mask, or link the trajectory.")


def _notes(trajectory, step: int, strength: float, draw: str, from_latents: bool) -> list[str]:
    if from_latents:
        return ["mean and variance have no deviations: gaussian is used"] \
            if draw == "deviations" else []
    if step == 0:
        return ["at step 0 strength is the share of new noise, so 1 is the maximum"] \
            if strength > 1 else []
    if draw == "deviations" and not trajectory.deviations.shape[1]:
        return ["this trajectory keeps no deviations (mode free or paper): gaussian is used"]
    return []
