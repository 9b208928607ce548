"""A real ComfyUI with this pack and stand-ins for its neighbours; a second one as its worker."""

import shutil
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tools import server as real_server
from tools.places import REPOSITORY


class Place(NamedTuple):
    address: str
    base: Path


@pytest.fixture(scope="session")
def started(host, tmp_path_factory):
    def start():
        base = tmp_path_factory.mktemp("neighbours")
        shutil.copytree(REPOSITORY / "tests" / "neighbours" / "stand_ins",
                        base / "custom_nodes" / "stand_ins")
        return base, real_server.running(host, Path(sys.executable), base, log=base / "server.log")
    return start


@pytest.fixture(scope="session")
def master(started):
    base, running = started()
    with running as address:
        yield Place(address, base)


@pytest.fixture(scope="session")
def worker(started):
    base, running = started()
    with running as address:
        yield Place(address, base)
