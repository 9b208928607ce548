"""The archive that the registry makes: what .comfyignore leaves of the repository."""

import shutil
from pathlib import Path

from tools.places import REPOSITORY


def unpack(folder: Path) -> Path:
    """Writes what it holds to a folder that is not there yet."""
    patterns = (REPOSITORY / ".comfyignore").read_text().split()
    return shutil.copytree(REPOSITORY, folder, ignore=shutil.ignore_patterns(
        ".git", "__pycache__", "output", *(pattern.rstrip("/") for pattern in patterns)))
