"""Fixtures of more than one tier. Nothing heavy is imported before a test asks for it."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tools import front_end
from tools import server as real_server
from tools.places import REPOSITORY

# Some virtual machines say that they have AMX and die of its first instruction, in 16 bits.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")


@pytest.fixture(scope="session")
def host() -> Path:
    folder = os.environ.get("BAYESDIFF_HOST")
    if not folder:
        pytest.exit("no ComfyUI is named: run these tests with python run.py test", returncode=2)
    return Path(folder)


@pytest.fixture
def tried(record_property):
    """Notes what a test went through, for docs/reliability.md."""
    def note(what: str, count: int, **figures: float) -> None:
        record_property("tried", json.dumps({"what": what, "count": count, **figures}))
    return note


class Server(NamedTuple):
    address: str
    log: Path
    base: Path


@pytest.fixture(scope="session")
def server(host, tmp_path_factory) -> Server:
    """A real ComfyUI with this pack and the tiny models, one for all tests."""
    base = tmp_path_factory.mktemp("comfyui")
    write_tiny_models(host, base / "models" / "diffusion_models")
    shutil.copytree(REPOSITORY / "tests" / "server" / "faults", base / "custom_nodes" / "faults")
    log = base / "server.log"
    with real_server.running(host, Path(sys.executable), base, log=log,
                             options=server_options()) as address:
        yield Server(address, log, base)


def server_options() -> list[str]:
    """BAYESDIFF_FRONT_END names another front end than the host's own."""
    version = os.environ.get("BAYESDIFF_FRONT_END")
    return ["--front-end-root", str(front_end.folder(version))] if version else []


def write_tiny_models(host: Path, folder: Path) -> None:
    """In another process, as the host's modules would not leave this one again."""
    subprocess.run([sys.executable, "-m", "tools.tiny_models", str(folder)], check=True,
                   cwd=REPOSITORY, env={**os.environ, "BAYESDIFF_HOST": str(host)})
