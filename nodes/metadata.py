"""What saved pictures tell about themselves."""

from comfy_api.latest import io

KEY = "bayesdiff"
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
