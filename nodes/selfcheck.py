"""Whether a score agrees with its user, and one that learns to."""

from comfy_api.latest import io, ui

from ..bayesdiff_core import taught
from ..bayesdiff_core.checks import BayesDiffError
from ..bayesdiff_core.filtering import check_scores, indices_of
from ..bayesdiff_core.scores import DEFAULT
from ..bayesdiff_core.selfcheck import self_check
from .files import taught_file
from .metadata import as_text, reported
from .scores import scores_of
from .sockets import TRAJECTORY, check_choices, scores_in

CHECK, ADD = "only check", "add"


class BayesDiffSelfCheck(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="BayesDiff_UncertaintySelfCheck",
            display_name="Uncertainty Self-check",
            category="bayesdiff",
            description="Tells whether a score agrees with you: do images you dislike score higher?"
                        " It can also learn a score of your own.",
            inputs=[
                io.Float.Input("scores", optional=True, force_input=True, tooltip=(
                    "One score per image, all of one prompt and one setting. If not linked: the"
                    " doubt of the trajectory.")),
                io.String.Input("liked", default="", tooltip=(
                    "Images you like, counted from 1: 1,4,6. It takes 4 or more to show"
                    " anything.")),
                io.String.Input("disliked", default="", tooltip=(
                    "Images you dislike, in the same form. Up to 200 in both lists together.")),
                TRAJECTORY.Input("trajectory", optional=True, tooltip=(
                    "The run of the same images, at least 4. Needed to teach.")),
                io.String.Input("name", default="", optional=True, tooltip=(
                    "Name for what you teach, 1 to 100 characters, no slashes. Use one per model"
                    " and kind of mistake. Empty: teaches nothing.")),
                io.Combo.Input("teach", options=[CHECK, ADD], default=CHECK, optional=True,
                               tooltip=(
                    "add: learns from the images you listed. Repeat over several runs, until there"
                    " are 8 or more of each kind. only check: learns nothing.")),
            ],
            outputs=[
                io.String.Output(display_name="report", tooltip=(
                    "JSON: AUROC, 95 % interval, p-value, verdict, and what was taught.")),
                io.Float.Output(display_name="auroc", tooltip=(
                    "How often a disliked image scores higher than a liked one, 0 to 1. 0.5 is"
                    " chance.")),
            ],
            is_output_node=True,
            is_input_list=True,
            search_aliases=["quality", "taste", "like", "dislike", "learn", "teach", "train",
                            "auroc", "roc", "validate score", "evaluate", "uncertainty"],
        )

    @classmethod
    def fingerprint_inputs(cls, name=("",), **others):
        """Runs again when more was taught elsewhere."""
        return taught_file.state_of(taught_file.OPTION + name[0])

    @classmethod
    def execute(cls, liked, disliked, scores=None, trajectory=None, name=("",),
                teach=(CHECK,)) -> io.NodeOutput:
        check_choices(cls, teach=teach[0])
        adding = teach[0] == ADD
        if adding and not (trajectory and name[0].strip()):
            raise BayesDiffError(f"teach is {ADD!r}, and"
                                 f" {'name is empty' if trajectory else 'no trajectory is linked'},"
                                 f" both were expected: give them, or choose {CHECK!r}.")
        found = scores_of(None, trajectory, None) if trajectory else {}
        values = _values(scores, found)
        sides = [indices_of(side, ",".join(map(str, places)), len(values))
                 for side, places in (("liked", liked), ("disliked", disliked))]
        if adding and not all(sides):  # a run of which all are liked can be taught, not checked
            report, lines = {"auroc": 0.5}, ["The score was not checked: list images of both kinds"
                                             " to check it."]
        else:
            report = self_check(values, *sides)._asdict()
            lines = _told(report)
        if name[0].strip():
            path = taught_file.path_of(name[0])
            runs = taught_file.read(path)
            if adding:
                before, runs = runs, taught.added(runs, taught.run_of(found, *sides))
                if runs != before:  # a file left alone does not make what reads it run again
                    taught_file.write(path, runs)
            learned = taught.learn(runs)
            report = {**report, "taught": {"name": path.stem, **learned._asdict()}}
            lines += ["", *_told_of(learned, path.stem, len(runs))]
        return io.NodeOutput(as_text(report), report["auroc"],
                             ui={**ui.PreviewText("\n".join(lines)).as_dict(),
                                 **reported(report)})


def _values(scores, found: dict[str, list[float]]) -> list[float]:
    if scores is None and not found:
        raise BayesDiffError("neither scores nor a trajectory is linked, one of them was expected:"
                             " link an output of a BayesDiff sampler or of Uncertainty Score.")
    values = found[DEFAULT] if scores is None else scores_in(scores)
    check_scores(values)
    images = len(found[DEFAULT]) if found else len(values)
    if images != len(values):
        raise BayesDiffError(f"there are {len(values)} scores, and the trajectory holds {images}"
                             " images: link what belongs to the same images.")
    return values


def _told(check: dict) -> list[str]:
    return [check["verdict"],
            f"AUROC {check['auroc']:.2f}, 95 % interval {check['low']:.2f} to {check['high']:.2f}"
            " (Newcombe's method 5); 0.5 is chance",
            f"p = {check['p_value']:.2g} (exact permutation test, two-sided)"]


def _told_of(learned: taught.Taught, name: str, runs: int) -> list[str]:
    lines = [f"taught: {name}, {runs} {'run' if runs == 1 else 'runs'}", learned.verdict]
    if learned.weights:
        lines += [f"AUROC {learned.auroc:.2f}, 95 % interval {learned.low:.2f} to"
                  f" {learned.high:.2f}, cross-validated",
                  "what counts most: " + ", ".join(f"{score} {weight:+.2f}" for score, weight
                                                   in taught.most_weighty(learned))]
    if learned.usable:
        lines.append("press R, then choose it in Uncertainty Score or Uncertainty Score Filter")
    return lines
