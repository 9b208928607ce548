"""Whether a score agrees with its user."""

import json

from comfy_api.latest import io, ui

from ..bayesdiff_core.filtering import check_scores, indices_of
from ..bayesdiff_core.selfcheck import self_check


class BayesDiffSelfCheck(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="BayesDiff_UncertaintySelfCheck",
            display_name="Uncertainty Self-check",
            category="bayesdiff",
            description="Says whether a score tells images you dislike from images you like better"
                        " than chance, for this model and prompt.",
            inputs=[
                io.Float.Input("scores", force_input=True, tooltip=(
                    "One score an image, finite; images of one prompt and one setting.")),
                io.String.Input("liked", default="", tooltip=(
                    "Places of images you like, from 0, separated by commas: 0,3,5. At least 1; 4"
                    " or more are needed to show anything.")),
                io.String.Input("disliked", default="", tooltip=(
                    "Places of images you dislike, in the same form. Images in neither list do not"
                    " count; liked and disliked together at most 200.")),
            ],
            outputs=[
                io.String.Output(display_name="report", tooltip=(
                    "JSON: AUROC, 95 % interval, p-value, verdict in words.")),
                io.Float.Output(display_name="auroc", tooltip=(
                    "How often a disliked image scores higher than a liked one, 0 to 1; 0.5 is"
                    " chance.")),
            ],
            is_output_node=True,
            is_input_list=True,
            search_aliases=["uncertainty", "auroc", "roc", "validate score", "evaluate"],
        )

    @classmethod
    def execute(cls, scores, liked, disliked) -> io.NodeOutput:
        values = [float(score) for score in scores]
        check_scores(values)
        sides = [indices_of(name, ",".join(map(str, side)), len(values))
                 for name, side in (("liked", liked), ("disliked", disliked))]
        found = self_check(values, *sides)
        text = "\n".join([
            found.verdict,
            f"AUROC {found.auroc:.2f}, 95 % interval {found.low:.2f} to {found.high:.2f}"
            " (Newcombe's method 5); 0.5 is chance",
            f"p = {found.p_value:.2g} (exact permutation test, two-sided)"])
        return io.NodeOutput(json.dumps(found._asdict()), found.auroc, ui=ui.PreviewText(text))
