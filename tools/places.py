"""Where things are kept: one user cache folder, outside the checkout. Standard library only."""

import os
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent


def cache_folder() -> Path:
    """BAYESDIFF_CACHE if set, else the platform's user cache folder."""
    if chosen := os.environ.get("BAYESDIFF_CACHE"):
        return Path(chosen).expanduser().resolve()
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "bayesdiff"
