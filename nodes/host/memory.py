"""When memory runs out."""

from contextlib import contextmanager

import comfy.model_management as management

EXTRA_CALLS = ("memory ran out in the extra calls, each as large as one of the sampler's: use a"
               " smaller batch or picture, or mode free.")


def ran_out(error: Exception) -> bool:
    """Newer hosts know more kinds of it than the one exception."""
    return getattr(management, "is_oom", lambda e: isinstance(e, management.OOM_EXCEPTION))(error)


@contextmanager
def advice(words: str):
    """Tells what would help; the exception stays one for which the host frees its memory."""
    try:
        yield
    except Exception as error:
        if not ran_out(error):
            raise
        raise management.OOM_EXCEPTION(f"{words} ({error})") from error
