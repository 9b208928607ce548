"""The samplers: the stock picture, and beside it where and how much the model was unsure."""

import comfy.samplers
from comfy_api.latest import io, ui

from ..bayesdiff_core import evidence, skip_schedule
from ..bayesdiff_core import scores as core_scores
from ..bayesdiff_core.checks import BayesDiffError
from ..bayesdiff_core.deviations import NOISE_MODELS
from ..bayesdiff_core.evidence import FULL, QUICK
from ..bayesdiff_core.trajectory import mixed_seed
from .host import live
from .host.run import by_mode, sampling
from .host.run.by_mode import MODES, PAPER_RULES, Options, Taken
from .host.run.sampling import Forming, Observation, Observer
from .metadata import ANSWERS_FROM_CACHE, HIDDEN, as_text, reported, workflow_of
from .pictures import viewer
from .sockets import LLLA, TRAJECTORY, check_choices, llla_of

ALIASES = ["uncertainty", "unsure", "confidence", "doubt", "hands", "artifacts", "broken",
           "quality", "overlay", "heatmap", "variance", "bayesian", "ksampler"]


class BayesDiffKSampler(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="BayesDiff_KSampler",
            display_name="BayesDiff KSampler",
            category="bayesdiff",
            description="KSampler that also shows where the picture is most likely wrong. The"
                        " picture is identical to KSampler's (except in paper mode).",
            inputs=[
                *ksampler_inputs(
                    seed="Seed of the noise, as in KSampler.",
                    sampler="The sampler, as in KSampler. Samplers that light and accurate cannot"
                            " follow run in mode free. Mode paper takes ddim, euler, dpm_2 and"
                            " ddpm.",
                    latent="The latent to denoise."),
                *_inputs(),
            ],
            outputs=outputs(),
            hidden=list(HIDDEN),
            search_aliases=ALIASES,
            **ANSWERS_FROM_CACHE,
        )

    @classmethod
    def execute(cls, model, seed, steps, cfg, sampler_name, scheduler, positive, negative,
                latent_image, denoise, posterior=None, **widgets) -> io.NodeOutput:
        check_choices(cls, **widgets)
        options, posterior = Options(**widgets), llla_of(posterior)
        mode = by_mode.taken(options.mode, posterior, sampler_name)
        observer = observer_for(mode.mode, model, posterior, latent_image, options)
        latent, seen = sampling.sample(model, watched(observer, cls), seed, steps, cfg,
                                       sampler_name, scheduler, positive, negative, latent_image,
                                       denoise)
        return results(latent, latent_image, seen, mode, posterior)


class BayesDiffSamplerCustom(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="BayesDiff_SamplerCustom",
            display_name="BayesDiff Sampler Custom",
            category="bayesdiff",
            description="SamplerCustomAdvanced that also shows where the picture is most likely"
                        " wrong. The picture is identical to SamplerCustomAdvanced's (except in"
                        " paper mode).",
            inputs=[
                io.Noise.Input("noise", tooltip="The initial noise."),
                io.Guider.Input("guider", tooltip="Model and prompts: BasicGuider or CFGGuider."
                                                  " Mode free takes any guider."),
                io.Sampler.Input("sampler", tooltip="The sampler. Samplers that light and accurate"
                                                    " cannot follow run in mode free."),
                io.Sigmas.Input("sigmas", tooltip="The noise levels, from high to low."),
                io.Latent.Input("latent_image", tooltip="The latent to denoise."),
                *_inputs(),
            ],
            outputs=outputs(),
            hidden=list(HIDDEN),
            search_aliases=ALIASES,
            **ANSWERS_FROM_CACHE,
        )

    @classmethod
    def execute(cls, noise, guider, sampler, sigmas, latent_image, posterior=None,
                **widgets) -> io.NodeOutput:
        check_choices(cls, **widgets)
        options, posterior = Options(**widgets), llla_of(posterior)
        mode = by_mode.taken(options.mode, posterior, sampler, guider)
        observer = observer_for(mode.mode, guider.model_patcher, posterior, latent_image, options)
        latent, seen = sampling.sample_guider(guider, watched(observer, cls), noise, sampler,
                                              sigmas, latent_image)
        return results(latent, latent_image, seen, mode, posterior)


def ksampler_inputs(seed: str, sampler: str, latent: str) -> list:
    """KSampler's inputs in KSampler's order; of some the tooltip is given."""
    return [
        io.Model.Input("model", tooltip="The model used for denoising the latent."),
        io.Int.Input("seed", default=0, min=0, max=0xffffffffffffffff,
                     control_after_generate=True, tooltip=seed),
        io.Int.Input("steps", default=20, min=1, max=10000,
                     tooltip="Number of denoising steps, 1 to 10000."),
        io.Float.Input("cfg", default=8.0, min=0.0, max=100.0, step=0.1, round=0.01,
                       tooltip="Classifier-free guidance scale, 0 to 100. Higher follows the prompt"
                               " more closely."),
        io.Combo.Input("sampler_name", options=comfy.samplers.KSampler.SAMPLERS, tooltip=sampler),
        io.Combo.Input("scheduler", options=comfy.samplers.KSampler.SCHEDULERS,
                       tooltip="How the noise is removed over the steps."),
        io.Conditioning.Input("positive", tooltip="What you want in the image."),
        io.Conditioning.Input("negative", tooltip="What you want to keep out of the image."),
        io.Latent.Input("latent_image", tooltip=latent),
        io.Float.Input("denoise", default=1.0, min=0.0, max=1.0, step=0.01,
                       tooltip="Amount of denoising, 0 to 1. Lower keeps more of the input."),
    ]


def _inputs() -> list:
    """What both nodes take beside the stock node's inputs."""
    return [
        LLLA.Input("posterior", optional=True,
                   tooltip="From LLLA Fit or LLLA Load. Only modes light, accurate and paper need"
                           " it."),
        io.Combo.Input("mode", options=list(MODES), default="auto",
                       tooltip="What the variance output measures. auto: light if a posterior is"
                               " linked, else free. free: how much the picture changed in the last"
                               " steps, at no extra cost. light, accurate: the model's own"
                               " uncertainty, at 1.2 and 1.5 times KSampler's network calls. paper:"
                               " the published algorithm, 2.5 to 11 times; the only mode that"
                               " changes the picture."),
        io.Combo.Input("skip_schedule", options=list(skip_schedule.WAYS), default="chosen",
                       optional=True, advanced=True,
                       tooltip="Which steps get extra network calls. chosen: the mode decides."
                               " interval: every skip_interval + 1 steps. steps: those listed in"
                               " uncertain_steps."),
        io.Int.Input("skip_interval", default=4, min=0, max=1000, optional=True,
                     advanced=True,
                     tooltip="Plain steps between two steps with extra calls, 0 to 1000. 0 gives"
                             " every step extra calls. Used with interval, and with chosen in mode"
                             " paper."),
        io.String.Input("uncertain_steps", default="", optional=True, advanced=True,
                        tooltip="Steps that get extra calls, counted from 0: 0,5,10,15. Used with"
                                " skip_schedule steps."),
        io.Int.Input("probe_levels", default=0, min=0, max=100, optional=True, advanced=True,
                     tooltip="light, accurate: noise levels at which the network is asked, 0 to"
                             " 100. Leave at 0. Higher is more precise and slower."),
        io.Int.Input("deviations", default=0, min=0, max=256, optional=True, advanced=True,
                     tooltip="light, accurate: deviations carried along with each image, 0 to 256."
                             " Leave at 0. Higher is more precise and slower."),
        io.Int.Input("mc_samples", default=10, min=1, max=256, optional=True, advanced=True,
                     tooltip="paper: Monte Carlo samples, 1 to 256. Each one adds a network call at"
                             " every step with extra calls."),
        io.Combo.Input("paper_rule", options=list(PAPER_RULES), default=PAPER_RULES[0],
                       optional=True, advanced=True,
                       tooltip="paper: which update rule to use. by sampler: the one of the"
                               " sampler. The others replace the sampler and do not work with flow"
                               " models."),
        io.Combo.Input("noise_model", options=list(NOISE_MODELS), default=NOISE_MODELS[0],
                       optional=True, advanced=True,
                       tooltip="light, accurate. independent: a new model error at every step, as"
                               " in the paper. shared: one for the whole run; smoother maps, but it"
                               " needs more deviations."),
        io.Int.Input("uncertainty_seed", default=0, min=0, max=0xffffffffffffffff, optional=True,
                     advanced=True,
                     tooltip="Seed of the uncertainty estimate, 0 to 2^64 - 1. It does not change"
                             " the picture (except in paper mode)."),
        io.Int.Input("keep_steps", default=10, min=2, max=1000, optional=True, advanced=True,
                     tooltip="Steps kept for the slider and for resampling, 2 to 1000, first and"
                             " last included. Fewer if they would take more than 512 MB."),
        check_input(),
    ]


def check_input() -> io.Combo.Input:
    return io.Combo.Input(
        "check", options=list(evidence.CHOICES), default="auto", optional=True,
        tooltip="Checks the finished picture again, which finds mistakes better than the run alone."
                f" quick: {QUICK.calls} extra network calls. full: {FULL.calls}. auto: whatever"
                f" fits into half the steps, nothing below {2 * QUICK.calls} steps. The picture"
                " stays the same.")


def outputs() -> list:
    return [
        io.Latent.Output(display_name="latent", tooltip="The sampled latent, identical to the stock"
                                                        " sampler's (except in paper mode)."),
        io.Latent.Output(display_name="variance", tooltip="Variance of each latent value, in the"
                                                          " latent's units squared."),
        TRAJECTORY.Output(display_name="trajectory", tooltip=(
            "The run at its kept steps. For Uncertainty Heatmap, Resample From Timestep and"
            " others.")),
        io.Float.Output(display_name="scores", is_output_list=True,
                        tooltip="One score per image, above 0: its doubt. Higher is less sure. Only"
                                " compare images of one prompt and one setting."),
        io.String.Output(display_name="report", tooltip="JSON: the mode used and why, scores and"
                                                        " their parts, network calls, notes."),
        io.Latent.Output(display_name="mean", tooltip="Mean of the result, E(x_0). Same as latent,"
                                                      " except in paper mode."),
    ]


def observer_for(mode: str, model, posterior, latent: dict, options: Options):
    samples = latent["samples"]
    if getattr(samples, "is_nested", False):
        raise BayesDiffError("the latent holds several tensors (video with sound), one was"
                             " expected: use the stock sampler for this model.")
    if not len(samples):
        raise BayesDiffError(f"the latent holds no image (its shape is {tuple(samples.shape)}), at"
                             " least one was expected: look at the node that makes it.")
    indices = latent.get("batch_index") or range(len(samples))
    seeds = [mixed_seed(options.uncertainty_seed, index) for index in indices]
    return by_mode.observer(mode, model, posterior, seeds, options)


def watched(observer: Observer, node) -> Observer:
    """By the page that asked for the run, if one did."""
    tell = live.listener("bayesdiff.forms", workflow_of(node))
    if tell is None:
        return observer

    def watch(forming: Forming) -> None:
        if told := viewer.shown(viewer.of_forming, forming):
            tell(told)

    return observer._replace(watch=watch)


def results(latent: dict, latent_image: dict, seen: Observation, mode: Taken,
            posterior) -> io.NodeOutput:
    trajectory = sampling.with_latents(seen.trajectory, latent_image, latent)
    variance = trajectory.latent_variance()
    doubt = core_scores.default(trajectory)
    # An image that overflowed costs the others of its batch neither the run nor their doubt.
    every = core_scores.of_trajectory(trajectory) if variance.isfinite().all() else \
        {core_scores.DEFAULT: doubt.values}
    scores = doubt.values.tolist()
    notes = list(seen.notes)
    if mode.mode == "free" and posterior is not None:
        notes.append("a posterior is connected, but mode free does not use it")
    report = {"mode": mode.mode, "why": mode.why, "score": core_scores.DEFAULT,
              "measures": core_scores.MEASURES[core_scores.DEFAULT], "scores": scores,
              "from": doubt.variant,
              "parts": {name: values.tolist() for name, values in doubt.parts.items()},
              "summed_variance": core_scores.total(variance).tolist(),
              "variance": "trajectory variance" if mode.mode == "free" else "the posterior's",
              "calls": seen.calls, "extra_calls": seen.extra_calls,
              "check_calls": seen.check_calls,
              "uncertain_steps": list(seen.uncertain), "kept_steps": trajectory.steps.tolist(),
              "notes": notes,
              "all": {name: each.tolist() for name, each in every.items()}}
    lines = [f"mode {mode.mode}{f' ({mode.why})' if mode.why else ''}: {seen.calls} network calls,"
             f" {seen.extra_calls} extra ones, {seen.check_calls} to check the picture",
             f"{core_scores.DEFAULT}: {_numbers(scores)}"]
    if mode.mode != "free":
        lines.append(f"variance of the posterior, summed: {_numbers(report['summed_variance'])}")
    shown = {"viewer": viewer.shown(viewer.of_trajectory, trajectory),
             "notes": notes,
             "schedule": {"mode": mode.mode, "steps": len(trajectory.sigmas) - 1,
                          "uncertain": list(seen.uncertain),
                          "calls": seen.calls, "extra_calls": seen.extra_calls,
                          "check_calls": seen.check_calls, "kept": trajectory.steps.tolist(),
                          "flow": sampling.samples_flow(trajectory)}}
    mean = latent["samples"] if mode.mode != "paper" else \
        trajectory.latent_mean().to(latent["samples"])
    return io.NodeOutput(latent, {**latent, "samples": variance.to(latent["samples"])},
                         trajectory, scores, as_text(report), {**latent, "samples": mean},
                         ui={**ui.PreviewText("\n".join([*lines, *notes])).as_dict(),
                             "bayesdiff": [shown], **reported(report)})


def _numbers(values: list[float]) -> str:
    return ", ".join(f"{value:.4g}" for value in values)
