"""What saved pictures tell about themselves, and what /history tells of a run."""

import math

from comfy_api.latest import io

KEY = "bayesdiff"
REPORT = "bayesdiff_report"  # in a node's outputs of /history
HIDDEN = (io.Hidden.extra_pnginfo, io.Hidden.unique_id)


def record(cls, entry: dict) -> bool:
    """Adds an entry of this node to what SaveImage writes, and says whether there is a place.

    The host hands one extra_pnginfo to all nodes of a prompt, so what runs later saves what is
    added here. A prompt sent without a workflow has none.
    """
    shared = cls.hidden.extra_pnginfo if cls.hidden else None
    if not isinstance(shared, dict):
        return False
    shared.setdefault(KEY, {})[cls.hidden.unique_id] = entry
    return True


def reported(report: dict) -> dict:
    """A node's report for programs that read /history: one JSON object, valid whatever it holds."""
    return {REPORT: [_valid(report)]}


def _valid(value):
    """NaN and infinity are no JSON: null in their place."""
    if isinstance(value, dict):
        return {key: _valid(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_valid(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
