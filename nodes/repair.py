"""Draws the doubtful parts of a picture again, several times, and keeps the surest try."""

import torch
from comfy_api.latest import io, ui

from ..bayesdiff_core import checks, doubt, evidence
from ..bayesdiff_core.checks import BayesDiffError
from .host.masks import laid_on
from .host.run import sampling
from .host.run.by_mode import Options
from .metadata import ANSWERS_FROM_CACHE, as_text, reported
from .samplers import ksampler_inputs, observer_for


class BayesDiffRepair(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="BayesDiff_RepairWhereUnsure",
            display_name="Repair Where Unsure",
            category="bayesdiff",
            description="Redraws the masked part of a picture a few times and keeps the try that"
                        " the model doubts least. The rest of the picture stays as it is.",
            inputs=[
                *ksampler_inputs(
                    seed="Seed of the first try. The next tries take the seeds after it.",
                    sampler="The sampler, as in KSampler.",
                    latent="The latent to repair, one or a batch."),
                io.Mask.Input("mask", tooltip=(
                    "What to redraw, 0 to 1, any size. One mask for all images, or one each. From"
                    " Uncertainty Heatmap, or your own.")),
                io.Int.Input("tries", default=4, min=1, max=64, tooltip=(
                    "How often to redraw it, 1 to 64. Each try takes one KSampler run, plus"
                    f" {evidence.QUICK.calls} network calls to judge it.")),
            ],
            outputs=[
                io.Latent.Output(display_name="latent", tooltip=(
                    "The try that the model doubts least, for each image.")),
                io.Float.Output(display_name="scores", is_output_list=True, tooltip=(
                    "Its doubt, above 0. Higher is less sure.")),
                io.String.Output(display_name="report", tooltip=(
                    "JSON: doubt of every try, which one was kept, its seed, network calls.")),
            ],
            search_aliases=["repair", "fix", "mend", "inpaint", "detailer", "hands", "bad hands",
                            "artifacts", "broken", "redraw", "quality", "uncertainty"],
            **ANSWERS_FROM_CACHE,
        )

    @classmethod
    def execute(cls, model, seed, steps, cfg, sampler_name, scheduler, positive, negative,
                latent_image, denoise, mask, tries) -> io.NodeOutput:
        checks.at_least("tries", tries, 1)
        masked = {**latent_image, "noise_mask": _mask_of(mask, latent_image["samples"])}
        best, values, calls, notes = None, [], 0, []
        for number in range(tries):
            observer = observer_for("free", model, None, masked, Options(check="quick"))
            latent, seen = sampling.sample(model, observer, (seed + number) % 2**64, steps, cfg,
                                           sampler_name, scheduler, positive, negative, masked,
                                           denoise)
            values.append(_doubt(seen.trajectory))
            calls, notes = calls + seen.calls + seen.check_calls, [*notes, *seen.notes]
            best = latent if best is None else _chosen(best, latent, values)
        values = torch.stack(values)  # tries x B
        number = _rank(values).argmin(0)
        kept = values.gather(0, number[None])[0]
        report = {"tries": values.tolist(), "kept": number.tolist(), "scores": kept.tolist(),
                  "seeds": [(seed + place) % 2**64 for place in number.tolist()], "calls": calls,
                  "notes": list(dict.fromkeys(notes))}
        best = {key: value for key, value in best.items() if key != "noise_mask"}
        return io.NodeOutput(best, report["scores"], as_text(report),
                             ui={**ui.PreviewText(_text(report)).as_dict(), **reported(report)})


def _mask_of(mask: torch.Tensor, samples: torch.Tensor) -> torch.Tensor:
    mask = laid_on(samples.shape, mask)
    if len(mask) not in (1, len(samples)):
        frames = ", or one for each frame" if samples.ndim == 5 else ""
        raise BayesDiffError(f"the mask input holds {len(mask)} masks for {len(samples)} images:"
                             f" link one for all, or one for each{frames}.")
    if not mask.any():
        raise BayesDiffError("the mask is empty, so there is nothing to redraw: lower the threshold"
                             " of Uncertainty Heatmap, or paint something.")
    return mask


def _doubt(trajectory) -> torch.Tensor:
    """By the finished picture alone: tries share what is outside the mask, and their runs begin
    part way. Where it could not be checked, by the run."""
    maps = trajectory.maps()
    checked = {name: maps[name] for name in evidence.CHECKS if name in maps}
    return doubt.doubt(checked or maps, trajectory.picture).values


def _chosen(best: dict, latent: dict, values: list[torch.Tensor]) -> dict:
    """The latent where it is surer than all before, image by image."""
    better = _rank(values[-1]) < _rank(torch.stack(values[:-1])).amin(0)
    rows = better.to(best["samples"].device).reshape(-1, *[1] * (best["samples"].ndim - 1))
    return {**best, "samples": torch.where(rows, latent["samples"], best["samples"])}


def _rank(values: torch.Tensor) -> torch.Tensor:
    """A picture that overflowed (NaN) comes last."""
    return values.nan_to_num(nan=torch.inf, posinf=torch.inf)


def _text(report: dict) -> str:
    tries = len(report["tries"])
    return "\n".join([
        f"{tries} {'try' if tries == 1 else 'tries'}, {report['calls']} network calls",
        *(f"image {image + 1}: try {number + 1} kept, doubt {score:.4g}"
          for image, (number, score) in enumerate(zip(report["kept"], report["scores"]))),
        *report["notes"]])
