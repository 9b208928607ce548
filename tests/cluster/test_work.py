"""What a fleet does, with one crew of two real workers for all tests."""

import errno
import json
import os
import signal
import threading
import time

import pytest
import torch
from PIL import Image

from fleet import FleetError, cluster, fitting, ledger, plan, staged
from fleet.cluster import Crew
from fleet.driver import Driver, Pace
from fleet.ledger import DRAW, FINISH, FIT, START
from fleet.worker import Order, Place
from tests.cluster.helpers import PATIENCE, Fleet, dice, ours, pixels, servers, wait_for
from tools import server as real_server

SEED = plan.Widget("5", "seed")


@pytest.fixture(scope="module")
def crew(nodes, host):
    place = Place(str(host), os.environ["COMFYUI_PYTHON"], on_cpu=True)
    with cluster.connected(nodes.address, 2, on_cpu=True):
        crew = Crew(cluster.comfyui_worker(place), 2)
        end = time.monotonic() + PATIENCE
        while crew.alive() < 2 and time.monotonic() < end:
            assert crew.poll(0.5) == []
        yield crew
        crew.stop()


@pytest.fixture
def graph(crew):
    return plan.graph(dice(steps=10), crew.object_info())


@pytest.fixture
def book(tmp_path):
    (tmp_path / "pictures").mkdir()
    with ledger.opened(tmp_path) as book:
        yield book


@pytest.fixture
def draw(crew, graph, book, tmp_path):
    def run(jobs, **options):
        book.plan(DRAW, jobs)
        crew.take(options.pop("order", Order(graph)))
        return Driver(book, crew, graph, tmp_path / "pictures", **options).run(DRAW)
    yield run
    rest(crew)


def rest(crew):
    """What is still at work, where a driver gave up, is let go."""
    while crew.busy():
        crew.poll(0.5)


def seeds(*values, **widgets):
    return [[*(plan.Change("5", name, value) for name, value in widgets.items()),
             plan.Change(*SEED, seed)] for seed in values]


def alone(single, **widgets):
    prompt = dice(steps=10)
    prompt["5"]["inputs"].update(widgets)
    return single(prompt)


def test_a_prompt_that_always_fails_is_told_of_and_the_rest_goes_on(draw, book):
    """Mode light has no posterior here, whoever tries it."""
    assert draw([*seeds(0, 1), *seeds(7, mode="light"), *seeds(2, 3)], retries=2)
    assert [row.seed for row in book.pictures()] == [0, 1, 2, 3]
    (_, changes, tries, words), = book.failures()
    assert changes[0] == ("5", "mode", "light") and tries == 2 and "needs a posterior" in words
    assert [job for *_, job, _ in book.faults()] == [3, 3]


def test_where_every_prompt_fails_it_ends_early_and_says_why(draw):
    with pytest.raises(FleetError, match=r"first 5 jobs all failed.*needs a posterior"):
        draw(seeds(*range(40), mode="light"), retries=1)


def test_a_server_that_hangs_is_replaced_and_its_seed_drawn_elsewhere(draw, book, single,
                                                                      tmp_path):
    def freeze():
        wait_for(lambda: len(list((tmp_path / "pictures").glob("*.png"))) >= 4)
        os.kill(servers()[0].pid, signal.SIGSTOP)

    thread = threading.Thread(target=freeze)
    thread.start()
    assert draw(seeds(*range(16)), pace=Pace(least=3, times=10))
    thread.join()
    rows = list(book.pictures())
    assert [row.seed for row in rows] == list(range(16))
    lost = {job for _, _, job, words in book.faults() if "server" in words}
    assert 1 <= len(lost) <= cluster.DEPTH, book.faults()
    for late in (row for row in rows if row.job in lost):
        assert pixels(tmp_path / "pictures" / late.file) == alone(single, seed=late.seed)[0]


def test_on_a_full_disk_it_stops_and_goes_on_when_there_is_room(crew, draw, book, tmp_path):
    """The kernel itself says that nothing more can be written, at the third picture."""
    full = tmp_path / "pictures" / "0000003_0.png.part"
    full.symlink_to("/dev/full")
    with pytest.raises(FleetError, match=f"{os.strerror(errno.ENOSPC)}.*make room"):
        draw(seeds(*range(5)))
    assert 3 not in [row.job for row in book.pictures()]
    assert not (tmp_path / "pictures" / "0000003_0.png").exists()
    rest(crew)
    assert draw([])  # room was made
    assert [row.seed for row in book.pictures()] == list(range(5))


def test_workers_write_to_a_url_themselves(draw, book, graph, single, tmp_path):
    target = tmp_path / "bucket"
    target.mkdir()
    assert draw(seeds(3, 4), order=Order(graph, url=target.as_uri()))
    assert [pixels(target / row.file) for row in book.pictures()] \
        == [alone(single, seed=seed)[0] for seed in (3, 4)]
    assert not list((tmp_path / "pictures").iterdir())


def test_a_picture_keeps_the_ending_that_its_node_gave_it(draw, book, tmp_path):
    prompt = dice(steps=10)
    prompt["7"] = {"class_type": "SaveAnimatedWEBP", "inputs": {
        "images": prompt["7"]["inputs"]["images"], "filename_prefix": "w", "fps": 6.0,
        "lossless": True, "quality": 80, "method": "default"}}
    assert draw(seeds(3), order=Order(plan.Graph(prompt, None, {}, "5", SEED)))
    row, = book.pictures()
    assert row.file.endswith(".webp")
    assert Image.open(tmp_path / "pictures" / row.file).format == "WEBP"


def test_pictures_carry_the_workflow_that_draws_them_again(crew, draw, book, tmp_path):
    prompt = dice(steps=10)
    saved = {"nodes": [{"id": 5, "type": "BayesDiff_KSampler", "widgets_values": [0, "fixed"]}]}
    graph = plan.Graph(prompt, saved, {"5": ["seed", "control"]}, "5", SEED)
    assert draw(seeds(42), order=Order(graph))
    row, = book.pictures()
    words = Image.open(tmp_path / "pictures" / row.file).info
    assert json.loads(words["workflow"])["nodes"][0]["widgets_values"][0] == 42
    assert json.loads(words["prompt"])["5"]["inputs"]["seed"] == 42


def test_what_a_server_has_drawn_before_is_told_again(draw, book, tmp_path):
    """Two settings that differ behind the sampler only: its server need not run it again."""
    assert draw([[plan.Change("7", "filename_prefix", name), plan.Change(*SEED, 77)]
                 for name in "abcd"])
    rows = list(book.pictures())
    assert len(rows) == 4 and len({row.score for row in rows}) == 1
    assert len({pixels(tmp_path / "pictures" / row.file) for row in rows}) == 1
    assert book.faults() == []


def test_a_batch_is_a_row_for_each_picture(draw, book, tmp_path):
    assert draw([[plan.Change("4", "batch_size", 3), plan.Change(*SEED, 5)]])
    rows = list(book.pictures())
    assert [(row.seed, row.place) for row in rows] == [(5, 0), (5, 1), (5, 2)]
    assert len({row.score for row in rows}) == 3
    assert len({pixels(tmp_path / "pictures" / row.file) for row in rows}) == 3


def test_the_best_of_n_are_those_of_single_runs_in_fewer_calls(crew, graph, book, single,
                                                               tmp_path):
    (tmp_path / "parts").mkdir()
    start, finish = staged.graphs(graph, crew.object_info(), 0.6, "relative change")
    book.plan(START, seeds(*range(6)))
    crew.take(Order(start, file=staged.FILE, named=staged.name_of(graph)))
    assert Driver(book, crew, graph, tmp_path / "parts").run(START)
    changes = book.changes(START)
    chosen = staged.best(book.parts(), graph, changes, keep=2)
    assert [part.score for part in chosen] == sorted(part.score for part in book.parts())[:2]
    book.plan(FINISH, [changes[part.job] for part in chosen])
    crew.take(Order(finish, named=staged.name_of(graph)))
    assert Driver(book, crew, graph, tmp_path / "pictures", files_for=staged.files_for(
        book.parts(), tmp_path / "parts", changes)).run(FINISH)
    rows = list(book.pictures())
    assert {row.seed for row in rows} == {part.seed for part in chosen}
    for row in rows:
        image, report = alone(single, seed=row.seed)
        assert pixels(tmp_path / "pictures" / row.file) == image
        assert row.score == report["scores"][0]
    assert [part.calls - part.ahead_calls for part in book.parts()] == [6] * 6
    assert [row.calls for row in rows] == [4, 4]
    made = sum(part.calls for part in book.parts()) + sum(r.calls + r.extra_calls for r in rows)
    whole = 6 * (10 + rows[0].extra_calls)
    assert f"in {made} network calls, where all would have taken {whole}: {whole - made} saved" \
        in staged.savings(book, chosen)


@pytest.mark.parametrize("source", ["own samples", "latents"])
def test_a_fit_in_parts_is_the_fit_of_one_machine(crew, book, tmp_path, source):
    prompt = {number: dice()[number] for number in ("1", "2")} | {
        "3": {"class_type": "BayesDiff_LLLAFit", "inputs": {
            "model": ["1", 0], "positive": ["2", 0], "structure": "full", "num_latents": 24,
            "size": 32, "timesteps": "uniform", "prior": "evidence", "prior_precision": 1.0,
            "temperature": 1.0, "empty_share": 0.25, "seed": 3}}}
    if source == "latents":
        prompt["4"] = {"class_type": "EmptyImage", "inputs": {
            "width": 32, "height": 32, "batch_size": 5, "color": 0x804020}}
        prompt["3"]["inputs"] |= {"images": ["4", 0], "vae": ["1", 1]}
    graph = fitting.graph(plan.runnable(prompt, crew.object_info())[0])
    crew.take(Order(graph, file=fitting.FILE, named=fitting.NAME))
    book.plan(FIT, [*fitting.jobs(graph, 1), *fitting.jobs(graph, 3)])
    assert Driver(book, crew, graph, tmp_path / "pictures").run(FIT)
    files = [tmp_path / "pictures" / part.file for part in book.parts()]
    fitting.merged(files[1:], tmp_path / "merged.safetensors")
    read = fitting.pack.module("nodes.files.llla_file").read
    one, merged = read(files[0]), read(tmp_path / "merged.safetensors")
    assert one.about.latents == merged.about.latents == 24
    assert [read(file).about.latents for file in files[1:]] == [8, 8, 8]
    torch.testing.assert_close(merged.ggn, one.ggn, rtol=1e-5, atol=1e-5 * one.ggn.max().item())
    torch.testing.assert_close(merged.energy_sums, one.energy_sums, rtol=1e-5, atol=1e-8)
    assert torch.equal(merged.energy_counts, one.energy_counts)
    assert merged.posterior.prior_precision == pytest.approx(one.posterior.prior_precision, 1e-4)
    rows = one.sketch
    variance = fitting.pack.module("bayesdiff_core.llla").row_variance
    torch.testing.assert_close(variance(merged.posterior, rows), variance(one.posterior, rows),
                               rtol=1e-3, atol=0)


def test_the_report_in_the_history_is_valid_json_with_all_scores(single):
    _, report = alone(single, seed=5)
    strict = json.loads(json.dumps(report), parse_constant=lambda word: pytest.fail(word))
    assert strict["all"][strict["score"]] == strict["scores"]
    assert {"sum", "mean", "worst patch", "trajectory variance"} <= strict["all"].keys()
    assert "BayesDiff_Stage" not in real_server.ask(single.address, "/object_info")


def test_ctrl_c_ends_all_and_nothing_listens_beyond_this_machine(workflow, tmp_path):
    fleet = Fleet(workflow, "--seeds", "0:500", "--cpu", folder=tmp_path / "out")
    fleet.until(2)
    family = ours(fleet.process.pid)
    listening = {connection.laddr.ip for process in family
                 for connection in process.net_connections("tcp") if connection.status == "LISTEN"}
    assert listening and listening <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}
    fleet.process.send_signal(signal.SIGINT)
    assert fleet.end() == 130, fleet.said()
    assert "the same command goes on" in fleet.said()
    wait_for(lambda: not any(process.is_running() and "main.py" in " ".join(process.cmdline())
                             for process in family if _alive(process)))
    with ledger.read_only(tmp_path / "out") as book:
        counts = book.counts(DRAW)
        assert counts["failed"] == 0 and counts["done"] == len(fleet.rows()) >= 2


def _alive(process) -> bool:
    return process.is_running() and process.status() != "zombie"
