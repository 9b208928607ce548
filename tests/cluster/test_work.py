"""What a fleet does, with one crew of two real workers for all tests."""

import contextlib
import errno
import json
import os
import signal
import threading
import time

import psutil
import pytest
import torch
from PIL import Image

from fleet import FleetError, cluster, command, fitting, ledger, plan
from fleet.cluster import Crew
from fleet.driver import Driver, Pace
from fleet.ledger import DRAW, FINISH
from fleet.worker import JobFault, Lacking, Order, Place, Worker, WorkerFault, fault_of, written
from tests.cluster.helpers import PATIENCE, Fleet, dice, ours, pixels, servers, wait_for
from tools import server as real_server

SEED = plan.Widget("5", "seed")
STEPS = 5


@pytest.fixture(scope="module")
def joined(nodes):
    with cluster.connected(nodes.address, 2, on_cpu=True) as room:
        assert room == (2, True)
        yield


@pytest.fixture(scope="module")
def crew(joined, host):
    place = Place(str(host), os.environ["COMFYUI_PYTHON"], on_cpu=True)
    crew = Crew(cluster.comfyui_worker(place), 2)
    end = time.monotonic() + PATIENCE
    while crew.alive() < 2 and time.monotonic() < end:
        assert crew.poll(0.5) == []
    yield crew
    crew.stop()


@pytest.fixture
def graph(crew):
    return plan.graph(dice(STEPS), crew.object_info())


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


@pytest.fixture
def fleet(crew, monkeypatch, capsys, tmp_path):
    """The command line, with our crew in place of servers of its own."""
    monkeypatch.setattr(command, "fleet_at_work",
                        lambda options: contextlib.nullcontext((crew, lambda: False)))

    def run(name, *arguments, prompt=None, steps=STEPS) -> tuple[int, str]:
        file = tmp_path / "workflow.json"
        file.write_text(json.dumps(prompt or dice(steps)))
        code = command.main([name, *([] if name == "choose" else [str(file)]),
                             *map(str, arguments)])
        return code, capsys.readouterr().out
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
    prompt = dice(STEPS)
    prompt["5"]["inputs"].update(widgets)
    return single(prompt)


def test_servers_yield_to_nobody_and_have_one_thread_where_they_asked_for_one_cpu(crew):
    found = servers()
    assert len(found) == 2 and {server.nice() for server in found} == {psutil.Process().nice()}
    assert {server.environ()["OMP_NUM_THREADS"] for server in found} == {"1"}


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


def test_a_table_a_grid_and_seeds_are_drawn_to_a_url_and_chosen_from(fleet, single, tmp_path):
    table, bucket, out = tmp_path / "prompts.csv", tmp_path / "bucket", tmp_path / "out"
    table.write_text("2.name\ndie\nsmiley\n")
    command = ["--seeds", "3,4", "--csv", table, "--set", "5.cfg=1.5|2.5", "--output", out]
    code, said = fleet("draw", *command, "--pictures", bucket.as_uri(), "--save", "SaveImage")
    assert code == 0 and "8 done, 0 failed, 0 left" in said
    with ledger.read_only(out) as book:
        rows = list(book.pictures())
    assert [(row.prompt, json.loads(row.widgets), row.seed) for row in rows] == [
        (name, {"2.name": name, "5.cfg": cfg}, seed) for name in ("die", "smiley")
        for cfg in (1.5, 2.5) for seed in (3, 4)]
    assert pixels(bucket / rows[3].file) == alone(single, seed=4)[0]
    with pytest.raises(FleetError, match="8 of 8 pictures are not in"):
        fleet("choose", out)
    bucket.rename(out / "pictures")
    assert "4 kept, 4 rejected" in fleet("choose", out, "--criterion", "keep n")[1]
    with pytest.raises(FleetError, match="results of another workflow"):
        fleet("draw", *command, steps=STEPS + 1)


def test_a_picture_keeps_the_ending_that_its_node_gave_it(draw, book, tmp_path):
    prompt = dice(STEPS)
    prompt["7"] = {"class_type": "SaveAnimatedWEBP", "inputs": {
        "images": prompt["7"]["inputs"]["images"], "filename_prefix": "w", "fps": 6.0,
        "lossless": True, "quality": 80, "method": "default"}}
    assert draw(seeds(3), order=Order(plan.Graph(prompt, None, {}, "5", SEED)))
    row, = book.pictures()
    assert row.file.endswith(".webp")
    assert Image.open(tmp_path / "pictures" / row.file).format == "WEBP"


def test_pictures_carry_the_workflow_that_draws_them_again(crew, draw, book, tmp_path):
    prompt = dice(STEPS)
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


def test_the_best_of_n_are_those_of_single_runs_in_fewer_calls(fleet, single, tmp_path):
    command = ["best", "--seeds", "0:6", "--keep", 2, "--stop-at", 0.6, "--rank-by",
               "relative change", "--output", tmp_path / "out"]
    code, said = fleet(*command)
    with ledger.read_only(tmp_path / "out") as book:
        parts, rows = book.parts(), list(book.pictures())
        finished = book.changes(FINISH)
    assert code == 0 and len(parts) == 6 and len(finished) == 2
    chosen = sorted(parts, key=lambda part: part.score)[:2]
    assert {row.seed for row in rows} == {part.seed for part in chosen}
    for row in rows:
        image, report = alone(single, seed=row.seed)
        assert pixels(tmp_path / "out" / "pictures" / row.file) == image
        assert row.score == report["scores"][0]
    assert [part.calls - part.ahead_calls for part in parts] == [3] * 6
    assert [row.calls for row in rows] == [STEPS - 3] * 2
    made = sum(part.calls for part in parts) + sum(r.calls + r.extra_calls for r in rows)
    whole = 6 * (STEPS + rows[0].extra_calls)
    assert f"in {made} network calls, where all would have taken {whole}: {whole - made} saved" \
        in said
    code, said = fleet(*command)  # once more
    assert code == 0 and "0 to do, 6 of 6 done before" in said and "0 to do, 2 of 2" in said


@pytest.mark.parametrize("source", ["own samples", "latents"])
def test_a_fit_in_parts_is_the_fit_of_one_machine(fleet, tmp_path, source):
    prompt = {number: dice()[number] for number in ("1", "2")} | {
        "3": {"class_type": "BayesDiff_LLLAFit", "inputs": {
            "model": ["1", 0], "positive": ["2", 0], "structure": "full", "num_latents": 24,
            "size": 32, "timesteps": "uniform", "prior": "evidence", "prior_precision": 1.0,
            "temperature": 1.0, "empty_share": 0.25, "seed": 3}}}
    if source == "latents":
        prompt["4"] = {"class_type": "EmptyImage", "inputs": {
            "width": 32, "height": 32, "batch_size": 5, "color": 0x804020}}
        prompt["3"]["inputs"] |= {"images": ["4", 0], "vae": ["1", 1]}
    most = {"own samples": 3, "latents": 24}[source]  # with something to do
    with pytest.raises(FleetError, match=f"at most {most} were expected"):
        fleet("fit", "--parts", most + 1, "--output", tmp_path / "none", prompt=prompt)
    assert not (tmp_path / "none").exists()
    for parts in (1, 3):
        code, said = fleet("fit", "--parts", parts, "--output", tmp_path / f"{parts}",
                           prompt=prompt)
        assert code == 0 and f"posterior of {parts} parts" in said
    graph = plan.Graph(prompt, None, {}, "3", plan.Widget("3", "part"))
    assert [fitting.usual_parts(graph, workers) for workers in (2, 64)] == [2, 3]
    assert "0 to do, 3 of 3 done before" in fleet(
        "fit", "--output", tmp_path / "3", prompt=prompt)[1]  # whatever the cluster's size is now
    read = fitting.pack.module("nodes.files.llla_file").read
    one, merged = (read(tmp_path / parts / fitting.POSTERIOR) for parts in "13")
    assert one.about.latents == merged.about.latents == 24
    assert [read(file).about.latents for file in (tmp_path / "3" / "parts").iterdir()] == [8, 8, 8]
    torch.testing.assert_close(merged.ggn, one.ggn, rtol=1e-5, atol=1e-5 * one.ggn.max().item())
    torch.testing.assert_close(merged.energy_sums, one.energy_sums, rtol=1e-5, atol=1e-8)
    assert torch.equal(merged.energy_counts, one.energy_counts)
    assert merged.posterior.prior_precision == pytest.approx(one.posterior.prior_precision, 1e-4)
    rows = one.sketch
    variance = fitting.pack.module("bayesdiff_core.llla").row_variance
    torch.testing.assert_close(variance(merged.posterior, rows), variance(one.posterior, rows),
                               rtol=1e-3, atol=0)


def test_a_dead_worker_is_replaced_and_a_machine_that_lacks_something_given_up(joined, book):
    """Three that only pretend to draw: one dies of its first job, one lacks what all jobs need."""
    def lack():
        raise Lacking("no model of that name")

    @cluster.ray().remote(num_cpus=0, max_concurrency=4)
    class Pretending:
        def __init__(self, name, at_first):
            self.name, self.at_first = name, at_first

        def start(self):
            return {"name": self.name}

        def beat(self):
            return 0.0

        def stop(self):
            pass

        def draw(self, order, changes, seconds, pace, files, job):
            self.at_first()
            time.sleep(0.1)
            return {"prompt": "die", "calls": 1, "extra_calls": 0, "seconds": 0.1,
                    "with_transfer": 0.1, "worker": self.name, "pictures": [
                        {"seed": job, "score": 0.0, "data": None, "file": "", "scores": {}}]}

    started, at_first = [], {"worker0": lambda: os._exit(1), "worker1": lack}

    def start(name: str):
        started.append(name)
        return Pretending.remote(name, at_first.pop(name, lambda: None))

    crew = Crew(start, 3)
    try:
        while crew.alive() < 3:
            crew.poll(0.5)
        book.plan(DRAW, seeds(*range(100)))
        crew.take(Order(plan.Graph({}, None, {}, SEED.node, SEED)))
        assert Driver(book, crew, None, None).run(DRAW)
    finally:
        crew.stop()
    assert started == ["worker0", "worker1", "worker2", "worker0"]
    assert book.counts(DRAW) == {"waiting": 0, "done": 100, "failed": 0}
    by_worker = {worker: words for _, worker, _, words in book.faults()}
    assert by_worker.keys() == {"worker0", "worker1"}
    assert by_worker["worker1"] == "no model of that name" and "died" in by_worker["worker0"]
    tries, losses = book._db.execute("select sum(tries), sum(losses) from jobs").fetchone()
    assert tries == 0 and 1 <= losses <= cluster.DEPTH, "only what was in hand of the dead one"


def test_what_a_machine_lacks_is_told_from_what_a_job_asks_for(single, tmp_path):
    worker = Worker("worker0", None)
    worker._address, worker._scratch = single.address, tmp_path

    def tried(node, widget, value, varied):
        prompt = dice(STEPS)
        if node == "8":  # beside what can be drawn
            prompt["8"] = {"class_type": "LoadImage", "inputs": {}}
            prompt["9"] = {"class_type": "PreviewImage", "inputs": {"images": ["8", 0]}}
        changes = [plan.Change(node, widget, value)] if varied else []
        if not varied:
            prompt[node]["inputs"][widget] = value
        worker.draw(Order(plan.Graph(prompt, None, {}, "5", SEED)), changes, 60, None, None, 1)

    with pytest.raises(Lacking, match=r"worker0@.* lacks what the workflow needs.*no model"):
        tried("5", "sampler_name", "no model", varied=False)
    with pytest.raises(JobFault, match="no model"):
        tried("5", "sampler_name", "no model", varied=True)
    with pytest.raises(Lacking, match="Invalid image file"):
        tried("8", "image", "nowhere.png", varied=False)
    with pytest.raises(JobFault, match="steps"):
        tried("5", "steps", -1, varied=False)
    with pytest.raises(WorkerFault, match="does not answer"):
        worker._address = "http://127.0.0.1:1"
        tried("5", "steps", 2, varied=True)


@pytest.mark.parametrize("words, kind", [
    ("the prompt failed: CUDA error: an illegal memory access was encountered", WorkerFault),
    ("the prompt failed: [Errno 28] No space left on device: 'a.png'", WorkerFault),
    ("the prompt failed: CUDA out of memory", JobFault), ("needs a posterior", JobFault)])
def test_a_sick_server_is_told_from_a_bad_job(words, kind):
    assert type(fault_of(words)) is kind


def test_only_what_nodes_wrote_is_removed_afterwards():
    """Some nodes show a picture of the input folder, which is a link to the user's."""
    def file(kind):
        return {"filename": "a.png", "subfolder": "", "type": kind}
    entry = {"outputs": {"1": {"images": [file("input"), file("output"), file("temp")]},
                         "2": {"gifs": [file("output")], "text": ["words"], "images": [{"a": 1}],
                               "bayesdiff_report": [{"scores": [1.0]}], "animated": (True,)}}}
    assert written(entry) == [file("output"), file("temp"), file("output")]


def test_a_server_that_hangs_is_replaced_and_its_seed_drawn_elsewhere(draw, book, single,
                                                                      tmp_path):
    def freeze():
        wait_for(lambda: len(list((tmp_path / "pictures").glob("*.png"))) >= 4)
        os.kill(servers()[0].pid, signal.SIGSTOP)

    thread = threading.Thread(target=freeze)
    thread.start()
    assert draw(seeds(*range(12)), pace=Pace(least=3, times=10))
    thread.join()
    rows = list(book.pictures())
    assert [row.seed for row in rows] == list(range(12))
    lost = {job for _, _, job, words in book.faults() if "server" in words}
    assert 1 <= len(lost) <= cluster.DEPTH, book.faults()
    for late in (row for row in rows if row.job in lost):
        assert pixels(tmp_path / "pictures" / late.file) == alone(single, seed=late.seed)[0]


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
        assert book.faults() == []  # what was in hand is as good as before


def _alive(process) -> bool:
    return process.is_running() and process.status() != "zombie"
