"""One score per image from the image alone, by what a model makes of it with noise on it again."""

from comfy_api.latest import io, ui

from ..bayesdiff_core import doubt, evidence
from ..bayesdiff_core.checks import BayesDiffError
from .host import rescore
from .metadata import as_text, reported
from .sockets import check_choices, single

MEASURES = ("how much the model changes the picture when noise is put on it and removed again,"
            " relative to the picture's contrast. Higher is less sure")


class BayesDiffScoreImage(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="BayesDiff_ScoreAnImage",
            display_name="Score An Image",
            category="bayesdiff",
            description="Scores any picture, wherever it comes from, by how much this model would"
                        " change it. Higher is less sure. Only compare pictures of one prompt.",
            inputs=[
                io.Model.Input("model", tooltip=(
                    "The model that judges the pictures. It is run, not changed.")),
                io.Conditioning.Input("positive", tooltip=(
                    "The prompt of the pictures: one for all, or a list with one per latent.")),
                io.Latent.Input("latent", optional=True, tooltip=(
                    "What to score: one, a batch or a list. If an image is linked too, the latent"
                    " is used.")),
                io.Image.Input("image", optional=True, tooltip=(
                    "What to score, if no latent is linked: a batch or a list. It needs the vae.")),
                io.Vae.Input("vae", optional=True, tooltip=(
                    "The VAE of the model. Only needed with image.")),
                io.Conditioning.Input("negative", optional=True, tooltip=(
                    "The negative prompt, one or a list. Only needed if cfg is not 1.")),
                io.Float.Input("cfg", default=1.0, min=0.0, max=100.0, step=0.1, round=0.01,
                               advanced=True, tooltip=(
                    "Guidance scale, 0 to 100. Leave at 1: faster, and the only setting that was"
                    " measured.")),
                io.Combo.Input("effort", options=list(evidence.EFFORTS), default="full",
                               advanced=True, tooltip=(
                    f"full: {evidence.FULL.calls} network calls per batch. quick:"
                    f" {evidence.QUICK.calls}, a little rougher.")),
                io.Int.Input("seed", default=0, min=0, max=2**64 - 1, control_after_generate=False,
                             advanced=True, tooltip=(
                    "Seed of the noise, 0 to 2^64 - 1. The same seed gives the same scores.")),
            ],
            outputs=[
                io.Float.Output(display_name="scores", is_output_list=True, tooltip=(
                    "One score per image or clip, above 0: its doubt. Higher is less sure.")),
                io.Latent.Output(display_name="variance", is_output_list=True, tooltip=(
                    "Where the model would change the picture (doubt squared). Link it to"
                    " Uncertainty Heatmap, with latent as samples.")),
                io.String.Output(display_name="report", tooltip=(
                    "JSON: scores, what they measure, their parts, network calls, notes.")),
                io.Latent.Output(display_name="latent", is_output_list=True, tooltip=(
                    "The latents that were scored.")),
            ],
            is_output_node=True,
            is_input_list=True,
            search_aliases=["score image", "rate image", "quality", "confidence", "unsure", "check",
                            "artifacts", "hands", "broken", "sort", "doubt", "uncertainty"],
        )

    @classmethod
    def execute(cls, model, positive, cfg, effort, seed, latent=None, image=None, vae=None,
                negative=None) -> io.NodeOutput:
        check_choices(cls, effort=effort[0])
        model, = single("model", model)
        latents = rescore.latents_of(model, latent, image, vae[0] if vae else None)
        prompts = prompts_of(positive, negative, cfg[0], len(latents))
        chosen = evidence.EFFORTS[effort[0]]
        seen = rescore.rescored(model, prompts, latents, seed[0], chosen)
        found = [doubt.doubt(one.maps, one.picture) for one in seen]
        variances = [
            {**given, "samples": doubt.doubt_map(one.maps, score.values).expand_as(one.picture)}
            for given, one, score in zip(latents, seen, found)]
        report = {"score": doubt.NAME, "measures": MEASURES, "from": found[0].variant,
                  "scores": [value for one in found for value in one.values.tolist()],
                  "parts": {name: [value for one in found for value in one.parts[name].tolist()]
                            for name in found[0].parts},
                  "weights": doubt.VARIANTS[found[0].variant],
                  "calls": chosen.calls * len(latents),
                  "notes": list(dict.fromkeys(note for one in seen for note in one.notes))}
        return io.NodeOutput(report["scores"], variances, as_text(report), latents,
                             ui={**ui.PreviewText(_text(report)).as_dict(), **reported(report)})


def prompts_of(positive: list, negative: list | None, cfg: float,
               count: int) -> list[rescore.Prompt]:
    """One for each of `count` latents."""
    if cfg != 1 and not negative:
        raise BayesDiffError(f"cfg is {cfg:g} and no negative is linked: link one, or set cfg to 1,"
                             " which needs none.")
    for name, given in (("positive", positive), ("negative", negative)):
        if given and len(given) not in (1, count):
            raise BayesDiffError(f"{len(given)} {name} prompts come as a list, and {count} latents:"
                                 " link one for all, or a list of the same length.")
    against = negative or [None]
    return [rescore.Prompt(positive[i % len(positive)], against[i % len(against)], cfg)
            for i in range(count)]


def _text(report: dict) -> str:
    values = {report["score"]: report["scores"], **report["parts"]}
    return "\n".join([f"{len(report['scores'])} images, {report['calls']} network calls",
                      *(f"{name}: {', '.join(f'{value:.4g}' for value in each)}"
                        for name, each in values.items()), *report["notes"]])
