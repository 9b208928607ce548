"""What the archive ships, seen by the checkers of others, and what pyproject.toml tells about it.

They run in an environment of their own, which is made when a test first asks for it.
"""

import os
import subprocess

import pytest
from PIL import Image

from tools import archive, environment
from tools.places import REPOSITORY


@pytest.fixture(scope="module")
def pack(tmp_path_factory):
    return archive.unpack(tmp_path_factory.mktemp("archive") / "ComfyUI-BayesDiff")


@pytest.fixture
def check(tmp_path):
    python = environment.python_for_lint()

    def run(pack, *command):
        """What a checker says; it finds no settings of the user, and tells nobody."""
        environ = {**os.environ, "HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path),
                   "DO_NOT_TRACK": "1", "PYTHONPATH": ""}
        done = subprocess.run([python, "-m", *command], cwd=pack, env=environ, text=True,
                              capture_output=True, timeout=300)
        return done.returncode, done.stdout + done.stderr
    return run


def test_comfy_test_finds_nothing_in_what_is_shipped(pack, check):
    code, said = check(pack, "comfy_test", "lint", "--strict", ".")
    assert code == 0, said
    assert "[SYNTAX] PASSED" in said and "[JAVASCRIPT] PASSED" in said


def test_comfy_node_validate_finds_nothing_in_what_is_shipped(pack, check):
    code, said = check(pack, "comfy_cli", "--skip-prompt", "--no-json", "node", "validate")
    assert code == 0, said
    assert "All validation checks passed" in said
    assert "warning" not in said.lower()


@pytest.mark.parametrize("file, text, command, words", [
    ("web/more.js", "document.head.append(document.createElement('p'));",
     ["comfy_test", "lint"], "shared-dom-injection"),
    ("nodes/more.py", "import torch\nlayer = torch.nn.Linear(1, 1)\n",
     ["comfy_test", "lint"], "nn.Linear"),
    ("nodes/more.py", "eval('1')\n", ["comfy_cli", "--skip-prompt", "--no-json", "node",
                                      "validate"], "S307"),
])
def test_the_checkers_do_look(pack, check, file, text, command, words):
    (pack / file).write_text(text)
    try:
        assert words in check(pack, *command)[1]
    finally:
        (pack / file).unlink()


def test_icon_and_banner_have_the_registrys_shapes():
    """A square of at most 400 pixels, and 21 : 9; both where pyproject.toml says."""
    told = (REPOSITORY / "pyproject.toml").read_text()
    for name, shape in [("icon", (400, 400)), ("banner", (1260, 540))]:
        file = REPOSITORY / "assets" / f"{name}.png"
        assert Image.open(file).size == shape and file.stat().st_size < 100_000
        assert f"/main/assets/{file.name}" in told
    assert 1260 * 9 == 540 * 21
