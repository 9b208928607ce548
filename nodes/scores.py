"""One score per image from a variance or a trajectory."""

import torch
from comfy_api.latest import io, ui
from comfy_execution.graph_utils import ExecutionBlocker

from ..bayesdiff_core import checks, taught
from ..bayesdiff_core import scores as core
from ..bayesdiff_core.checks import BayesDiffError
from ..bayesdiff_core.trajectory import Trajectory
from . import metadata
from .files import taught_file
from .sockets import TRAJECTORY, latent_of, latents_in, trajectories_of

TAUGHT = "how likely you would dislike it, 0 to 1, as far as Uncertainty Self-check was taught"
MISSING = {core.IN_MASK: "a mask", **dict.fromkeys(
    (core.DOUBT, core.TRAJECTORY, core.RELATIVE), "a trajectory")}


class BayesDiffScore(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="BayesDiff_UncertaintyScore",
            display_name="Uncertainty Score",
            category="bayesdiff",
            description="Gives one score per image. Higher is less sure. Only compare images of one"
                        " prompt and one setting.",
            inputs=[
                io.Latent.Input("variance", optional=True, tooltip=(
                    "Variance from a BayesDiff sampler: one, a batch or a list. If a trajectory is"
                    " linked too, that is used.")),
                TRAJECTORY.Input("trajectory", optional=True, tooltip=(
                    "From a BayesDiff sampler, a batch or a list. Needed for doubt, trajectory"
                    " variance, relative change and taught scores.")),
                io.Mask.Input("mask", optional=True, tooltip=(
                    "Only for the score inside mask: 0 to 1, any size. One for all images, or one"
                    " each.")),
                io.Image.Input("images", optional=True, tooltip=(
                    "Passed through unchanged. Put Save Image after this node, and its files carry"
                    " the scores.")),
                io.Combo.Input("score", options=[*core.SCORES, *taught_file.options()],
                               default=core.DEFAULT, tooltip=(
                    "doubt: the default, and what the samplers give. sum: all variance added up, as"
                    " in the paper. mean: its average. local contrast, worst patch, inside mask:"
                    " the variance where it stands out, is highest, or is masked. trajectory"
                    " variance, relative change: how much the picture changed late. taught: what"
                    " you taught Uncertainty Self-check, 0 to 1.")),
            ],
            outputs=[
                io.Float.Output(display_name="scores", is_output_list=True, tooltip=(
                    "One score per image or clip, 0 or more, in the order of the batch. Higher is"
                    " less sure.")),
                io.String.Output(display_name="report", tooltip=(
                    "JSON: the chosen score, and every other score that the inputs allow.")),
                io.Image.Output(display_name="images", is_output_list=True, tooltip=(
                    "The images, unchanged.")),
            ],
            hidden=list(metadata.HIDDEN),
            is_output_node=True,
            is_input_list=True,
            search_aliases=["sort", "sort images", "quality", "quality score", "confidence",
                            "unsure", "doubt", "broken", "artifacts", "variance",
                            "trajectory variance", "uncertainty"],
        )

    @classmethod
    def fingerprint_inputs(cls, score=("",), **others):
        """Runs again when more was taught."""
        return taught_file.state_of(score[0])

    @classmethod
    def execute(cls, score, variance=None, trajectory=None, mask=None,
                images=None) -> io.NodeOutput:
        name = score[0]
        trajectory = None if trajectory is None else trajectories_of(trajectory)
        found, notes = with_taught(name, scores_of(variance, trajectory, mask), trajectory)
        notes = [*notes, *silences(found[name], trajectory)]
        report = {"score": name, "measures": core.MEASURES.get(name, TAUGHT),
                  "scores": found[name], "all": found, "notes": notes}
        saved = metadata.record(cls, {"node": "Uncertainty Score", **report})
        lines = [f"{len(found[name])} images, score: {name}",
                 *(f"{each}: {', '.join(f'{value:.4g}' for value in values)}"
                   for each, values in found.items()), *notes]
        if not saved:
            lines.append("saved images will not carry the scores: the prompt came without a"
                         " workflow (extra_pnginfo)")
        return io.NodeOutput(found[name], metadata.as_text(report),
                             images or ExecutionBlocker(None),
                             ui={**ui.PreviewText("\n".join(lines)).as_dict(),
                                 **metadata.reported(report)})


def with_taught(name: str, found: dict[str, list[float]], trajectories: list | None
                ) -> tuple[dict[str, list[float]], list[str]]:
    """The scores and, where that is chosen, the taught one too; and what is to be said of it.
    Refused if the chosen one cannot be had."""
    if name.startswith(taught_file.OPTION) and trajectories is not None:
        path = taught_file.path_of(name.removeprefix(taught_file.OPTION))
        if not path.is_file():
            raise BayesDiffError(f"score is {name[:120]!r}, and output/{taught_file.KIND.folder}"
                                 f" has no {path.name}: refresh the list and choose another, or"
                                 " teach Uncertainty Self-check under that name.")
        try:
            values, notes = taught.score(taught.learn(taught_file.read(path)), found)
        except BayesDiffError as error:
            raise BayesDiffError(f"score is {name!r}: {error}") from error
        return {**found, name: values}, notes
    if not name.startswith(taught_file.OPTION):
        checks.one_of("score", name, core.SCORES)
    if name not in found:
        others = ", ".join(other for other in core.SCORES if other in found)
        raise BayesDiffError(f"score is {name!r}, which needs {MISSING.get(name, 'a trajectory')},"
                             f" and none is linked: link it, or choose one of {others}.")
    return found, []


def silences(values: list[float], trajectories: list[Trajectory] | None) -> list[str]:
    """What must not be passed on without a word: scores that say nothing."""
    notes = [] if any(values) else ["all scores are 0, so they say nothing: look at the notes of"
                                    " the node that made them"]
    if trajectories and all(map(core.is_still, trajectories)):
        notes.append(core.STILL)
    return notes


def scores_of(variances: list[dict] | None, trajectories: list | None,
              masks: list[torch.Tensor] | None) -> dict[str, list[float]]:
    """Every score that the inputs allow, by name, over all entries of a list."""
    trajectories = None if trajectories is None else trajectories_of(trajectories)
    variances = None if variances is None else latents_in("variance", variances)
    parts = trajectories if trajectories is not None else variances
    if not parts:
        raise BayesDiffError("neither a variance nor a trajectory is linked, or the list is empty;"
                             " at least 1 was expected: link an output of a BayesDiff sampler.")
    if masks is not None and len(masks) not in (1, len(parts)):
        raise BayesDiffError(f"{len(masks)} masks come as a list, and {len(parts)} latents: link"
                             " one for all, or a list of the same length.")
    masks = masks or [None]
    found = {}
    for index, part in enumerate(parts):
        mask = masks[index % len(masks)]
        each = core.all_scores(latent_of(part), mask=mask) if trajectories is None else \
            core.of_trajectory(part, mask)
        for name, values in each.items():
            found.setdefault(name, []).extend(values.tolist())
    return found
