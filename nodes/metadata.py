"""What saved pictures tell about themselves, and what /history tells of a run."""

import json
import math

from comfy_api.latest import io

KEY = "bayesdiff"
REPORT = "bayesdiff_report"  # in a node's outputs of /history
HIDDEN = (io.Hidden.extra_pnginfo, io.Hidden.unique_id)
# For a Schema: a node that is not run because all that follows is cached tells its report and its
# panel all the same. Older hosts do not know of it.
ANSWERS_FROM_CACHE = {"has_intermediate_output": True} \
    if "has_intermediate_output" in io.Schema.__dataclass_fields__ else {}


def record(cls, entry: dict) -> bool:
    """Adds an entry of this node to what SaveImage writes, and says whether there is a place.

    The host hands one extra_pnginfo to all nodes of a prompt, so what runs later saves what is
    added here. A prompt sent without a workflow has none.
    """
    shared = cls.hidden.extra_pnginfo if cls.hidden else None
    if not isinstance(shared, dict):
        return False
    shared.setdefault(KEY, {})[cls.hidden.unique_id] = _valid(entry)
    return True


def workflow_of(cls) -> str | None:
    """The id of the workflow that a run was sent with, where a page sent it."""
    shared = cls.hidden.extra_pnginfo if cls.hidden else None
    return ((shared or {}).get("workflow") or {}).get("id")


def reported(report: dict) -> dict:
    """A node's report for programs that read /history (docs/api.md): one JSON object, valid
    whatever it holds."""
    return {REPORT: [_valid(report)]}


def as_text(report: dict) -> str:
    """The same for a STRING output."""
    return json.dumps(_valid(report), allow_nan=False)


def _valid(report: dict) -> dict:
    """NaN and infinity are no JSON: null in their place, and a note that says so."""
    gone = 0

    def valid(value):
        nonlocal gone
        if isinstance(value, dict):
            return {key: valid(each) for key, each in value.items()}
        if isinstance(value, list | tuple):
            return [valid(each) for each in value]
        if isinstance(value, float) and not math.isfinite(value):
            gone += 1
            return None
        return value

    found = {"notes": [], **valid(report)}
    if gone:
        found["notes"] = [*found["notes"], f"{gone} of the numbers are NaN or infinite, and shown"
                                           " as null: try a higher precision (fp32)"]
    return found
