"""Keeps the images the model was surest of, and everything that belongs to them in step."""

from typing import NamedTuple

import comfy.model_management
import torch
from comfy_api.latest import io, ui
from comfy_execution.graph_utils import ExecutionBlocker

from ..bayesdiff_core import filtering
from ..bayesdiff_core.checks import BayesDiffError
from ..bayesdiff_core.scores import DEFAULT, IN_MASK, SCORES, default
from . import metadata
from .files import reference_file, taught_file
from .files.names import state
from .host import waiting
from .pictures import viewer
from .pictures.histogram import histogram
from .scores import scores_of, silences, with_taught
from .sockets import (
    TRAJECTORY,
    check_choices,
    images_in,
    latents_in,
    scores_in,
    trajectories_of,
)

COMPARE, ADD = "only compare", "add"
BY_CRITERION, ALL, STOP = "keep by criterion", "keep all", "stop the run"
BLOCK, BEST, EMPTY, NONE = "stop what follows", "the best one", "empty list", "none"


class BayesDiffFilter(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="BayesDiff_UncertaintyScoreFilter",
            display_name="Uncertainty Score Filter",
            category="bayesdiff",
            description="Splits a batch into keep and reject. Lower scores are kept; latents and"
                        " masks go with their images.",
            inputs=[
                io.Float.Input("scores", optional=True, force_input=True, tooltip=(
                    "One score per image, in the order of the batch: from a BayesDiff sampler or"
                    " Uncertainty Score.")),
                TRAJECTORY.Input("trajectory", optional=True, tooltip=(
                    "Instead of scores: takes the doubt of each image, or the score chosen"
                    " below.")),
                io.Image.Input("images", optional=True, tooltip=(
                    "A batch or a list, one image per score. For videos, link the latents too.")),
                io.Latent.Input("latents", optional=True, tooltip=(
                    "A batch or a list, one latent per score. Each keeps its batch_index, so that"
                    " it can be sampled again.")),
                io.Mask.Input("masks", optional=True, tooltip=(
                    "A batch or a list, one mask per score.")),
                io.Combo.Input("criterion", options=filtering.CRITERIA, default=filtering.SIGMA,
                               tooltip=(
                    "What to keep. mean + z sigma: scores up to z standard deviations above the"
                    " mean. drop top percent: all but the highest. keep n: the n lowest. threshold:"
                    " up to that score. reference: compared with stored scores. picked: what you"
                    " click.")),
                io.Float.Input("z", default=1.0, min=-10.0, max=10.0, step=0.1, tooltip=(
                    "mean + z sigma: standard deviations above the mean, -10 to 10. The paper uses"
                    " 1.")),
                io.Float.Input("percent", default=16.0, min=0.0, max=100.0, step=0.5, tooltip=(
                    "drop top percent: share to drop, 0 to 100, rounded to whole images. reference:"
                    " share of the stored scores that counts as too high.")),
                io.Int.Input("keep", default=1, min=0, max=100000, tooltip=(
                    "keep n: how many images to keep of each group, 0 to 100000.")),
                io.Float.Input("threshold", default=0.0, min=-1e12, max=1e12, step=0.001,
                               round=False, tooltip=(
                    "threshold: the highest score to keep, in the score's own units.")),
                io.Boolean.Input("allow_empty", default=False, advanced=True, tooltip=(
                    "Off: the lowest score of each group is always kept. On: everything may be"
                    " rejected; see when_empty.")),
                io.String.Input("groups", default="", advanced=True, tooltip=(
                    "Judges each prompt by itself. One label per image, such as 0,0,1,1, or one per"
                    " prompt if all have equally many images. Empty: one group.")),
                io.String.Input("reference", default="", advanced=True, tooltip=(
                    "Name of the stored scores, 1 to 100 characters, no slashes. Use one per model,"
                    " prompt, size, sampler, number of steps and score.")),
                io.Combo.Input("reference_mode", options=[COMPARE, ADD], default=COMPARE,
                               advanced=True, tooltip=(
                    "add: stores these scores under the name in reference, after deciding. only"
                    " compare: stores nothing.")),
                io.String.Input("picked", default="", optional=True, advanced=True, tooltip=(
                    "picked: the images to keep, counted from 1: 1,3,4. Click pictures in the node"
                    " to fill it in.")),
                io.Combo.Input("score", options=[*(name for name in SCORES if name != IN_MASK),
                                                 *taught_file.options()],
                               default=DEFAULT, optional=True, advanced=True, tooltip=(
                    "Which score to take from a trajectory; see Uncertainty Score. Not used if"
                    " scores are linked.")),
                io.Boolean.Input("wait_for_choice", default=False, optional=True, tooltip=(
                    "On: the run pauses here and continues with the pictures you click. Runs sent"
                    " by a script do not pause.")),
                io.Int.Input("wait_seconds", default=600, min=1, max=86400, optional=True,
                             advanced=True, tooltip=(
                    "wait_for_choice: how long to wait, 1 to 86400 seconds.")),
                io.Combo.Input("no_answer", options=[BY_CRITERION, ALL, STOP], default=BY_CRITERION,
                               optional=True, advanced=True, tooltip=(
                    "wait_for_choice: what to do if nobody chooses in time, or no browser shows"
                    " this workflow.")),
                io.Combo.Input("when_empty", options=[BLOCK, BEST, EMPTY, NONE], default=BLOCK,
                               optional=True, advanced=True, tooltip=(
                    "What an empty side passes on. stop what follows: nodes after it do not run."
                    " the best one: the lowest score is kept after all. empty list: for nodes that"
                    " take lists. none: for switches, which then use their next input.")),
                io.Int.Input("first_index", default=0, min=0, max=1, optional=True, advanced=True,
                             tooltip=(
                    "What kept_indices and rejected_indices call the first image: 0, as ComfyUI's"
                    " batch nodes do, or 1.")),
            ],
            outputs=[
                *(kind.Output(display_name=f"{side}_{name}", is_output_list=True, tooltip=(
                    f"The {side} {name}: a batch if a batch came in, a list if a list came in."))
                  for name, kind in (("images", io.Image), ("latents", io.Latent),
                                     ("masks", io.Mask)) for side in ("kept", "rejected")),
                *(io.String.Output(display_name=f"{side}_indices", tooltip=(
                    f"Which ones were {side}, separated by commas, counted from first_index."))
                  for side in ("kept", "rejected")),
                io.Float.Output(display_name="sorted_scores", is_output_list=True, tooltip=(
                    "All scores, lowest first.")),
                io.Image.Output(display_name="histogram", tooltip=(
                    "Kept and rejected scores with the threshold, 480 x 240 pixels.")),
                io.String.Output(display_name="report", tooltip=(
                    "JSON: scores, what was kept, threshold and reason for each group.")),
            ],
            hidden=list(metadata.HIDDEN),
            is_output_node=True,
            is_input_list=True,
            search_aliases=["sort", "sort images", "filter images", "best of batch", "quality",
                            "confidence", "unsure", "broken", "hands", "artifacts", "gallery",
                            "choose images", "pick", "cull", "rejection", "uncertainty"],
        )

    @classmethod
    def fingerprint_inputs(cls, criterion=(None,), reference=(None,), score=("",),
                           wait_for_choice=(False,), **others):
        """Runs again when the stored scores have changed, more was taught, or you are to be asked:
        NaN is unlike itself."""
        if wait_for_choice[0]:
            return float("nan")
        taught = taught_file.state_of(score[0])
        if criterion[0] != filtering.REFERENCE or not reference[0]:
            return taught
        try:
            return state(reference_file.path_of(reference[0])), taught
        except BayesDiffError:
            return None  # execute says what is wrong

    @classmethod
    def execute(cls, criterion, z, percent, keep, threshold, allow_empty, groups, reference,
                reference_mode, picked=("",), score=(DEFAULT,), wait_for_choice=(False,),
                wait_seconds=(600,), no_answer=(BY_CRITERION,), when_empty=(BLOCK,),
                first_index=(0,), scores=None, trajectory=None, images=None, latents=None,
                masks=None) -> io.NodeOutput:
        check_choices(cls, criterion=criterion[0], reference_mode=reference_mode[0],
                      no_answer=no_answer[0], when_empty=when_empty[0])
        latents = None if latents is None else latents_in("latents", latents)
        images, masks = (value if value is None else images_in(name, value)
                         for name, value in (("images", images), ("masks", masks)))
        trajectory = None if trajectory is None else trajectories_of(trajectory)
        values, told = _scores(scores, trajectory, score[0])
        clips = _are_clips(latents, trajectory)
        inputs = [_images("images", images, len(values), clips),
                  _latents(latents, len(values)), _images("masks", masks, len(values), clips)]
        decision, notes = decided(values, criterion[0], z[0], percent[0], keep[0], threshold[0],
                                  allow_empty[0], ",".join(map(str, groups)), reference[0],
                                  reference_mode[0], picked[0], when_empty[0])
        first = {owner: row for part in reversed(inputs[0])
                 for owner, row in zip(reversed(part.owners), part.value.flip(0))}
        thumbnails = viewer.shown(viewer.thumbnails, [first[i] for i in sorted(first)])
        if wait_for_choice[0]:
            decision, answer = cls._chosen(values, decision, thumbnails, wait_seconds[0],
                                           no_answer[0])
            decision, more = _not_empty(decision, values, when_empty[0])
            notes += [answer, *more]
        notes = [*told, *notes, *silences(values, trajectory if scores is None else None)]
        if reference_mode[0] == ADD:
            path = reference_file.path_of(reference[0])
            new = reference_file.add(path, values)
            notes.append(f"{new} scores added to the reference {path.stem}")

        report = {"criterion": criterion[0], "scores": values, **told_of(decision), "notes": notes}
        metadata.record(cls, {"node": "Uncertainty Score Filter", **report})
        shown = {**report, "thumbnails": thumbnails}
        indices = [",".join(str(index + first_index[0]) for index in side)
                   for side in (decision.kept, decision.rejected)]
        nothing = {EMPTY: [], NONE: [None]}.get(when_empty[0], ExecutionBlocker(None))
        return io.NodeOutput(
            *(_side(parts, side, nothing) for parts in inputs for side in (decision.kept,
                                                                           decision.rejected)),
            *indices, sorted(values), histogram(values, decision), metadata.as_text(report),
            ui={**ui.PreviewText(_words(decision, notes, len(values))).as_dict(),
                "bayesdiff": [shown], **metadata.reported(report)})

    @classmethod
    def _chosen(cls, scores: list[float], decision: filtering.Decision, thumbnails, seconds: int,
                no_answer: str) -> tuple[filtering.Decision, str]:
        """What the user picks, or what is to be done when nobody does; and how it came about."""
        report = {"scores": scores, **told_of(decision), "thumbnails": thumbnails}
        answer = waiting.choice(cls.hidden.unique_id, metadata.workflow_of(cls), report, seconds)
        if answer.picked is not None:
            return _keeping(scores, answer.picked), f"you picked {len(answer.picked)}"
        if no_answer == STOP:
            raise comfy.model_management.InterruptProcessingException
        if no_answer == ALL:
            return _keeping(scores, range(len(scores))), f"all are kept: {answer.why}"
        return decision, f"kept by criterion: {answer.why}"


def _keeping(scores: list[float], indices) -> filtering.Decision:
    rule = filtering.Rule(filtering.PICKED, picked=tuple(indices))
    return filtering.decide(scores, rule, allow_empty=True)


def told_of(decision: filtering.Decision) -> dict:
    """As JSON has it."""
    return {**decision._asdict(), "groups": [group._asdict() for group in decision.groups]}


def decided(scores: list[float], criterion: str, z: float, percent: float, keep: int,
            threshold: float, allow_empty: bool, groups: str, reference: str, reference_mode: str,
            picked: str, when_empty: str = BLOCK) -> tuple[filtering.Decision, list[str]]:
    """What is kept of the scores by the widgets, and notes; the node and its panel go by it."""
    rule, notes = filtering.Rule(criterion, z, percent, keep, threshold), []
    if criterion == filtering.PICKED:
        rule = rule._replace(picked=tuple(filtering.indices_of("picked", picked, len(scores))))
    if criterion == filtering.REFERENCE:
        rule, notes = _with_reference(rule, reference_file.path_of(reference), scores,
                                      reference_mode == ADD)
    labels = filtering.group_labels(groups, len(scores))
    decision, more = _not_empty(filtering.decide(scores, rule, labels, allow_empty), scores,
                                when_empty)
    return decision, [*notes, *more]


def _not_empty(decision: filtering.Decision, scores: list[float],
               when_empty: str) -> tuple[filtering.Decision, list[str]]:
    if decision.kept or when_empty != BEST:
        return decision, []
    best = scores.index(min(scores))
    return decision._replace(kept=[best], rejected=[i for i in decision.rejected if i != best]), [
        "nothing would be kept, so the lowest score is kept"]


class Part(NamedTuple):
    """An entry of an input list, and which image each of its rows belongs to."""

    value: torch.Tensor | dict
    owners: list[int]


def _scores(scores, trajectories, name: str) -> tuple[list[float], list[str]]:
    """And what is to be said of them."""
    notes = []
    if scores is not None:
        values = scores_in(scores)
    elif trajectories is not None and name == DEFAULT:
        values = [score for part in trajectories for score in default(part).values.tolist()]
    elif trajectories is not None:
        found, notes = with_taught(name, scores_of(None, trajectories, None), trajectories)
        values = found[name]
    else:
        raise BayesDiffError("neither scores nor a trajectory is linked, one of them was expected:"
                             " link an output of a BayesDiff sampler or of Uncertainty Score.")
    filtering.check_scores(values)
    return values, notes


def _are_clips(latents, trajectories) -> bool:
    samples = [latent["samples"] for latent in latents or []]
    samples += [part.mean[0] for part in trajectories or []]
    return any(not one.is_nested and one.ndim == 5 for one in samples)


def _images(name: str, values, count: int, clips: bool) -> list[Part]:
    """One row an image; of clips, each entry of a list or as many rows each."""
    values = [value if name == "images" or value.ndim > 2 else value[None]
              for value in values or []]
    rows = sum(map(len, values))
    if not values or rows == count:
        owner_of = list(range(rows))
    elif len(values) == count and rows:
        owner_of = [index for index, value in enumerate(values) for _ in range(len(value))]
    elif clips and rows and rows % count == 0:
        owner_of = [row // (rows // count) for row in range(rows)]
    else:
        video = "" if clips else " For the frames of a video, link the latents too."
        raise BayesDiffError(f"the {name} input holds {rows} in {len(values)} entries, and there"
                             f" are {count} scores: link what belongs to the same batch.{video}")
    return _dealt(values, map(len, values), owner_of)


def _latents(values, count: int) -> list[Part]:
    values = values or []
    if any(latent["samples"].is_nested for latent in values):
        raise BayesDiffError("the latent holds several tensors (video with sound), one was"
                             " expected: filter the decoded images instead.")
    sizes = [len(latent["samples"]) for latent in values]
    if values and sum(sizes) != count:
        raise BayesDiffError(f"the latents input holds {sum(sizes)} latents, and there are {count}"
                             " scores: link what belongs to the same batch.")
    return _dealt(values, sizes, list(range(sum(sizes))))


def _dealt(values, sizes, owners: list[int]) -> list[Part]:
    parts, start = [], 0
    for value, size in zip(values, sizes):
        parts.append(Part(value, owners[start:start + size]))
        start += size
    return parts


def _side(parts: list[Part], chosen: list[int], nothing) -> list | ExecutionBlocker:
    """What of a list is chosen, or `nothing`. What was not linked quietly stops what follows."""
    wanted, found = set(chosen), []
    for value, owners in parts:
        rows = [row for row, owner in enumerate(owners) if owner in wanted]
        if rows:
            found.append(_latent_rows(value, rows) if isinstance(value, dict) else value[rows])
    return found or (nothing if parts else ExecutionBlocker(None))


def _latent_rows(latent: dict, rows: list[int]) -> dict:
    samples, mask = latent["samples"], latent.get("noise_mask")
    places = latent.get("batch_index") or range(len(samples))
    chosen = {**latent, "samples": samples[rows], "batch_index": [places[row] for row in rows]}
    # As the host reads it: fewer masks than latents are repeated, and for a video anything but a
    # mask of five dimensions is frames for all clips.
    if mask is not None and mask.ndim >= (5 if samples.ndim == 5 else 3) and len(mask) > 1:
        chosen["noise_mask"] = mask[[row % len(mask) for row in rows]]
    return chosen


def _with_reference(rule: filtering.Rule, path, values: list[float], adding: bool):
    """The rule with the stored scores, or one that keeps all while they are too few."""
    stored = reference_file.read(path)
    if adding and len(stored) < filtering.LEAST_REFERENCE:
        return (rule._replace(criterion=filtering.COUNT, keep=len(values)),
                [f"the reference has {len(stored)} of the {filtering.LEAST_REFERENCE} scores it"
                 " needs: everything is kept until then"])
    notes = []
    if stored and not any(stored[0] <= value <= stored[-1] for value in values):
        notes.append(f"all scores are outside the stored range, {stored[0]:.4g} to"
                     f" {stored[-1]:.4g}: the reference may be from another model or setting")
    return rule._replace(reference=tuple(stored)), notes


def _words(decision: filtering.Decision, notes: list[str], count: int) -> str:
    kept, rejected = (filtering.numbers_of(side) or "none"
                      for side in (decision.kept, decision.rejected))
    lines = [f"kept {len(decision.kept)} of {count}: {kept}", f"rejected: {rejected}"]
    lines += [f"{f'group {group.label}: ' if group.label else ''}{group.note}"
              for group in decision.groups]
    return "\n".join([*lines, *notes])
