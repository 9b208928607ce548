"""The archive that the registry makes: what .comfyignore leaves of it loads in a host."""

import subprocess
import sys

from tools import archive
from tools.server import PACK


def test_the_archive_loads(host, tmp_path):
    pack = archive.unpack(tmp_path / "custom_nodes" / PACK)
    assert not {"tests", "tools", "fleet", "run.py", ".github"} \
        & {path.name for path in pack.iterdir()}
    done = subprocess.run(
        [sys.executable, str(host / "main.py"), "--base-directory", str(tmp_path), "--cpu",
         "--disable-api-nodes", "--quick-test-for-ci", "--database-url", "sqlite:///:memory:"],
        cwd=host, text=True, capture_output=True, timeout=300)
    said = done.stdout + done.stderr
    assert done.returncode == 0 and PACK in said.split("Import times")[-1], said[-3000:]
    assert "IMPORT FAILED" not in said
