"""Front ends of ComfyUI beside the host's own, in the user cache. The host's own stays as it is.

    BAYESDIFF_FRONT_END=newest python run.py test browser       (or a version, such as 1.58.1)
"""

import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from tools.places import cache_folder

PACKAGE = "comfyui-frontend-package"
STATIC = "comfyui_frontend_package/static/"


def folder(version: str) -> Path:
    """For the host's option --front-end-root; fetched by pip where it is not there yet. newest is
    asked for anew each time."""
    kept = cache_folder() / "front_ends"
    if version != "newest" and (kept / version).is_dir():
        return kept / version
    kept.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=kept) as aside:
        wanted = PACKAGE if version == "newest" else f"{PACKAGE}=={version}"
        subprocess.run([sys.executable, "-m", "pip", "--disable-pip-version-check", "download",
                        "--quiet", "--no-deps", "--dest", aside, wanted], check=True)
        wheel = next(Path(aside).glob("*.whl"))
        target = kept / wheel.name.split("-")[1]
        if not target.is_dir():
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(aside, [name for name in archive.namelist()
                                           if name.startswith(STATIC)])
            shutil.move(Path(aside, STATIC), target)
    return target
