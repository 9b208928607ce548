"""The samplers: the stock picture, and beside it where and how much the model was unsure."""

import json

import comfy.samplers
from comfy_api.latest import io, ui

from ..bayesdiff_core import scores as core_scores
from ..bayesdiff_core.checks import BayesDiffError
from ..bayesdiff_core.deviations import MEANINGS
from ..bayesdiff_core.trajectory import mixed_seed
from . import viewer
from .host import sampling
from .host.free import Free
from .host.ghosts import Ghosts
from .host.paper import Paper
from .host.predicting import Predictor
from .sockets import LLLA, TRAJECTORY

# Extra calls as a share of the steps.
SHARES = {"light": 0.2, "accurate": 0.5}
MODES = ["free", *SHARES, "paper"]
PAPER_SAMPLES = 10  # S, where none is given


class BayesDiffKSampler(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="BayesDiff_KSampler",
            display_name="BayesDiff KSampler",
            category="bayesdiff",
            description="KSampler's picture, bit for bit (but for mode paper), and the variance"
                        " that the model's uncertainty gives it.",
            inputs=[
                *ksampler_inputs(
                    seed="The seed of the noise, as in KSampler.",
                    sampler="The sampler. dpm_adaptive works in mode free only; mode paper takes"
                            " ddim, euler and dpm_2 (its DPM-Solver-2).",
                    latent="The latent to denoise."),
                *_inputs(),
            ],
            outputs=_outputs(),
            search_aliases=ALIASES,
        )

    @classmethod
    def execute(cls, model, seed, steps, cfg, sampler_name, scheduler, positive, negative,
                latent_image, denoise, posterior=None, **options) -> io.NodeOutput:
        watcher = watcher_for(model, posterior, latent_image, **options)
        latent = sampling.sample(model, watcher, seed, steps, cfg, sampler_name, scheduler,
                                 positive, negative, latent_image, denoise)
        return _results(latent, latent_image, watcher, options, posterior)


class BayesDiffSamplerCustom(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="BayesDiff_SamplerCustom",
            display_name="BayesDiff Sampler Custom",
            category="bayesdiff",
            description="SamplerCustomAdvanced's picture, bit for bit (but for mode paper), and the"
                        " variance that the model's uncertainty gives it.",
            inputs=[
                io.Noise.Input("noise", tooltip="The initial noise."),
                io.Guider.Input("guider", tooltip="The model with its prompts: BasicGuider or"
                                                  " CFGGuider; in mode free any."),
                io.Sampler.Input("sampler", tooltip="One of ComfyUI's own samplers; in mode free"
                                                    " any."),
                io.Sigmas.Input("sigmas", tooltip="The noise levels, falling."),
                io.Latent.Input("latent_image", tooltip="The latent to denoise."),
                *_inputs(),
            ],
            outputs=_outputs(),
            search_aliases=ALIASES,
        )

    @classmethod
    def execute(cls, noise, guider, sampler, sigmas, latent_image, posterior=None,
                **options) -> io.NodeOutput:
        watcher = watcher_for(guider.model_patcher, posterior, latent_image, **options)
        latent, _ = sampling.sample_guider(guider, watcher, noise, sampler, sigmas, latent_image)
        return _results(latent, latent_image, watcher, options, posterior)


ALIASES = ["uncertainty", "variance", "confidence", "bayesian", "ksampler"]


def ksampler_inputs(seed: str, sampler: str, latent: str) -> list:
    """KSampler's inputs in KSampler's order; of some the tooltip is given."""
    return [
        io.Model.Input("model", tooltip="The model used for denoising the latent."),
        io.Int.Input("seed", default=0, min=0, max=0xffffffffffffffff,
                     control_after_generate=True, tooltip=seed),
        io.Int.Input("steps", default=20, min=1, max=10000,
                     tooltip="The number of denoising steps, 1 to 10000."),
        io.Float.Input("cfg", default=8.0, min=0.0, max=100.0, step=0.1, round=0.01,
                       tooltip="Classifier-free guidance scale, 0 to 100."),
        io.Combo.Input("sampler_name", options=comfy.samplers.KSampler.SAMPLERS, tooltip=sampler),
        io.Combo.Input("scheduler", options=comfy.samplers.KSampler.SCHEDULERS,
                       tooltip="How noise is removed over the steps."),
        io.Conditioning.Input("positive", tooltip="What the image should show."),
        io.Conditioning.Input("negative", tooltip="What the image should not show."),
        io.Latent.Input("latent_image", tooltip=latent),
        io.Float.Input("denoise", default=1.0, min=0.0, max=1.0, step=0.01,
                       tooltip="The amount of denoising, 0 to 1."),
    ]


def _inputs() -> list:
    """What both nodes take beside the stock node's inputs."""
    return [
        LLLA.Input("posterior", optional=True,
                   tooltip="From LLLA Fit or LLLA Load. Modes light, accurate and paper need it."),
        io.Combo.Input("mode", options=MODES, default="free",
                       tooltip="free: trajectory variance, no posterior, no extra calls."
                               " light: extra network calls for a fifth of the steps, 1.2 times"
                               " KSampler's calls (1.1 to 1.3 times its time where it was"
                               " measured). accurate: for half of the steps, 1.5 times (1.4 to"
                               " 1.6). paper: the published algorithm, 2.5 to 11 times; the only"
                               " mode that changes the picture."),
        io.Int.Input("nodes", default=0, min=0, max=100, advanced=True,
                     tooltip="light and accurate: noise levels at which deviations are measured,"
                             " 0 to 100; 0 lets the mode choose. More cost more calls."),
        io.Int.Input("skip_interval", default=4, min=0, max=1000, advanced=True,
                     tooltip="paper: plain steps between two uncertain ones, 0 to 1000; 0 makes"
                             " every step uncertain."),
        io.Int.Input("deviations", default=0, min=0, max=256, advanced=True,
                     tooltip="light and accurate: deviations carried beside each image; paper: the"
                             " Monte Carlo sample size S. 0 to 256; 0 lets the mode choose."),
        io.Combo.Input("meaning", options=list(MEANINGS), default="independent", advanced=True,
                       tooltip="independent: fresh noise at every step, the paper's meaning."
                               " shared: one draw of the last layer's weights for all steps and"
                               " images, spatially coherent; needs more deviations."),
        io.Int.Input("uncertainty_seed", default=0, min=0, max=0xffffffffffffffff, advanced=True,
                     tooltip="Seed of the deviations. It never changes the picture, but in mode"
                             " paper."),
        io.Int.Input("keep_steps", default=10, min=2, max=1000, advanced=True,
                     tooltip="States that the trajectory keeps, first and last included, 2 to 1000;"
                             " fewer where they would take more than 512 MB."),
    ]


def _outputs() -> list:
    return [
        io.Latent.Output(display_name="latent", tooltip="The stock sampler's latent."),
        io.Latent.Output(display_name="variance", tooltip="Variance of each latent value, in the"
                                                          " latent's own scale squared."),
        TRAJECTORY.Output(display_name="trajectory", tooltip="Mean, variance and deviations at the"
                                                             " kept steps."),
        io.Float.Output(display_name="scores", is_output_list=True,
                        tooltip="Relative change of each image, from 0: how much it still changed"
                                " in the last 40 % of the steps, over its own detail. High means"
                                " unsure, not bad. Uncertainty Score gives others."),
        io.String.Output(display_name="report", tooltip="JSON: mode, scores, summed variance,"
                                                        " calls, notes."),
    ]


def watcher_for(model, posterior, latent, *, mode, uncertainty_seed, keep_steps, nodes=0,
                skip_interval=0, deviations=0, meaning="independent"):
    samples = latent["samples"]
    if getattr(samples, "is_nested", False):
        raise BayesDiffError("the latent holds several tensors (video with sound), one was"
                             " expected: use the stock sampler for this model.")
    if not len(samples):
        raise BayesDiffError(f"the latent holds no image (its shape is {tuple(samples.shape)}), at"
                             " least one was expected: look at the node that makes it.")
    indices = latent.get("batch_index") or range(len(samples))
    seeds = [mixed_seed(uncertainty_seed, index) for index in indices]
    if mode == "free":
        return Free(seeds, keep_steps)
    if posterior is None:
        raise BayesDiffError(f"mode {mode} needs a posterior, and none is connected: connect LLLA"
                             " Fit or LLLA Load, or choose mode free.")
    predictor = Predictor(model, posterior)
    if mode == "paper":
        return Paper(predictor, seeds, keep_steps, skip_interval, deviations or PAPER_SAMPLES)
    return Ghosts(predictor, seeds, keep_steps, share=SHARES[mode], nodes=nodes,
                  deviations=deviations, meaning=meaning,
                  weight_seed=mixed_seed(uncertainty_seed, -1))


def _results(latent: dict, latent_image: dict, watcher, options: dict,
             posterior) -> io.NodeOutput:
    trajectory = sampling.with_latents(watcher.trajectory, latent_image, latent)
    variance = trajectory.latent_variance()
    scores = core_scores.default(trajectory).tolist()
    notes = list(watcher.notes)
    if options["mode"] == "free" and posterior is not None:
        notes.append("a posterior is connected, but mode free does not use it")
    report = {"mode": options["mode"], "score": core_scores.DEFAULT, "scores": scores,
              "summed_variance": core_scores.total(variance).tolist(), "calls": watcher.calls,
              "extra_calls": watcher.extra_calls,
              "kept_steps": trajectory.steps.tolist(), "notes": notes}
    text = "\n".join([
        f"mode {options['mode']}: {watcher.calls} calls and {watcher.extra_calls} extra ones",
        f"scores: {', '.join(f'{score:.4g}' for score in scores)}", *notes])
    shown = {"viewer": viewer.shown(viewer.of_trajectory, trajectory),
             "schedule": {"steps": len(trajectory.sigmas) - 1,
                          "uncertain": list(watcher.uncertain),
                          "calls": watcher.calls, "extra_calls": watcher.extra_calls,
                          "flow": sampling.samples_flow(trajectory)}}
    return io.NodeOutput(latent, {**latent, "samples": variance.to(latent["samples"])},
                         trajectory, scores, json.dumps(report),
                         ui={**ui.PreviewText(text).as_dict(), "bayesdiff": [shown]})
