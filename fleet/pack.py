"""Modules of the pack that need no host, in a process without one."""

import importlib
import sys
import types

from tools.places import REPOSITORY

ROOT = "bayesdiff_pack"


def module(name: str):
    """By its name in the pack. The pack's own __init__, which only a host can run, is left out."""
    if ROOT not in sys.modules:
        root = types.ModuleType(ROOT)
        root.__path__ = [str(REPOSITORY)]
        sys.modules[ROOT] = root
    return importlib.import_module(f"{ROOT}.{name}")
