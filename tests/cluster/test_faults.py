"""What a fleet survives, on a real cluster of two nodes with real servers."""

import os
import signal
from pathlib import Path

import pytest

from fleet import ledger
from tests.cluster.helpers import SECOND, Fleet, actor_of, dice, pixels, servers, wait_for

SEEDS = 24


@pytest.fixture(scope="module")
def survivor(nodes, workflow, tmp_path_factory):
    """24 seeds; a worker is killed, the driver is killed and started again, a node leaves."""
    folder = tmp_path_factory.mktemp("fleet") / "out"
    command = [workflow, "--seeds", f"0:{SEEDS}", "--workers", 2, "--cpu", "--address",
               nodes.address]
    fleet = Fleet(*command, folder=folder)
    fleet.until(4)
    wait_for(lambda: len(servers()) == 2 or len(fleet.rows()) > SEEDS // 2)
    server = servers()[0]
    scratch = Path(server.cmdline()[server.cmdline().index("--base-directory") + 1])
    known = len(fleet.rows())
    os.kill(actor_of(server).pid, signal.SIGKILL)
    fleet.until(max(known + 2, 8))
    fleet.kill()
    before = fleet.rows()
    wait_for(lambda: not servers())  # nobody stops them but their guards
    wait_for(lambda: not scratch.exists())
    fleet = Fleet(*command, folder=folder)
    fleet.until(max(len(before) + 2, 12))
    wait_for(lambda: len(servers()) == 2 or len(fleet.rows()) > SEEDS - 4)
    nodes.remove_node(list(nodes.worker_nodes)[0], allow_graceful=False)
    code = fleet.end()
    nodes.add_node(**SECOND)
    assert code == 0, fleet.said()
    return folder, before, fleet


def test_every_seed_is_drawn_once_whatever_happens(survivor):
    folder, before, fleet = survivor
    assert 8 <= len(before) < SEEDS, "the driver was to be killed half way"
    rows = fleet.rows()
    assert [row.seed for row in rows] == list(range(SEEDS))
    assert {row: row for row in before}.keys() <= {row: row for row in rows}.keys()
    with ledger.read_only(folder) as book:
        assert book.counts(ledger.DRAW) == {"waiting": 0, "done": SEEDS, "failed": 0}
        assert any("died" in words or "actor" in words.lower() for *_, words in book.faults())


def test_their_pictures_and_scores_are_those_of_single_runs(survivor, single):
    folder, _, fleet = survivor
    rows = fleet.rows()
    for row in rows[::5]:
        prompt = dice()
        prompt["5"]["inputs"]["seed"] = row.seed
        image, report = single(prompt)
        assert pixels(folder / "pictures" / row.file) == image
        assert row.score == report["scores"][0] and row.calls == report["calls"] == 12
    assert len({pixels(folder / "pictures" / row.file) for row in rows}) == SEEDS


def test_no_server_and_no_half_written_file_is_left(survivor):
    folder, _, _ = survivor
    wait_for(lambda: not servers())
    assert not list(folder.rglob("*.part"))
