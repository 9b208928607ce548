"""A real Ray cluster of two nodes on this machine, and a single server to compare with."""

import json
import os
from pathlib import Path

import pytest

from tests.cluster.helpers import PATIENCE, SECOND, dice, one_thread, pixels
from tools import server as real_server

# Before Ray is imported: nothing but 127.0.0.1, servers like any other, as in fleet/cluster.py.
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["RAY_worker_niceness"] = "0"


@pytest.fixture(scope="session")
def workflow(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("workflow") / "die.json"
    path.write_text(json.dumps(dice()))
    return path


@pytest.fixture(scope="session")
def nodes():
    """The cluster; its second node may be taken away and put back."""
    from ray.cluster_utils import Cluster
    cluster = Cluster(initialize_head=True, head_node_args={
        "num_cpus": 1, "node_ip_address": "127.0.0.1", "include_dashboard": False,
        "object_store_memory": 200 * 2**20})
    cluster.add_node(**SECOND)
    yield cluster
    cluster.shutdown()


@pytest.fixture(scope="session")
def single(host, tmp_path_factory):
    """Pixels, and the report of our sampler, of a prompt on one plain server."""
    base = tmp_path_factory.mktemp("single")
    python = Path(os.environ["COMFYUI_PYTHON"])
    with one_thread(), real_server.running(host, python, base, log=base / "log") as address:
        known = {}  # the host tells nothing of what it has done before

        def run(prompt: dict) -> tuple[bytes, dict]:
            key = json.dumps(prompt)
            if key not in known:
                known[key] = fresh(prompt)
            return known[key]

        def fresh(prompt: dict) -> tuple[bytes, dict]:
            outputs = real_server.run_prompt(address, prompt, PATIENCE)
            image = outputs["7"]["images"][0]
            return (pixels(base / "output" / image["subfolder"] / image["filename"]),
                    outputs["5"]["bayesdiff_report"][0])
        run.address = address
        yield run
