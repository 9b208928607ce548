"""The ledger and what is chosen from it, without a cluster."""

import csv
import json
import statistics
import subprocess
import sys
import time

import psutil
import pytest

from fleet import FleetError, choosing, export, gallery, guard, ledger, plan
from fleet.command import CRITERIA, main
from fleet.driver import Bar
from fleet.ledger import DRAW, Picture
from tests.cluster.helpers import wait_for

PIXEL = (b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00\x00\x00\x01\x00\x00\x00\x01\x08\x02\x00\x00\x00"
         b"\x90wS\xde\x00\x00\x00\x0cIDATx\x9cc\xf8\xcf\xc0\x00\x00\x03\x01\x01\x00\xc9\xfe\x92\xef"
         b"\x00\x00\x00\x00IEND\xaeB`\x82")


def picture(job, seed, score, prompt="die", **widgets):
    return Picture(job, 0, seed, prompt, json.dumps(widgets), score,
                   json.dumps({"relative change": score, "sum": -score}), 20, 0, 0.5, "worker0",
                   f"{job:07}_0.png", time.time())


@pytest.fixture
def filled(tmp_path):
    """Two prompts of 10 pictures; the second one's scores are a hundred times higher."""
    folder = tmp_path / "out"
    (folder / "pictures").mkdir(parents=True)
    rows = [picture(10 * group + i + 1, i, (1 + (i * 7) % 10) * 100**group, prompt)
            for group, prompt in enumerate(["die", "smiley"]) for i in range(10)]
    with ledger.opened(folder) as book:
        book.plan(DRAW, ([plan.Change("2", "name", row.prompt), plan.Change("5", "seed", row.seed)]
                         for row in rows))
        book.record(rows)
    for row in rows:
        (folder / "pictures" / row.file).write_bytes(PIXEL)
    return folder, rows


def test_jobs_are_planned_once_and_come_back_in_order(tmp_path):
    with ledger.opened(tmp_path) as book:
        changes = [[plan.Change("5", "seed", seed)] for seed in range(2500)]
        assert book.plan(DRAW, changes) == 2500
        assert book.plan(DRAW, changes[:10] + [[plan.Change("5", "seed", 9999)]]) == 1
        assert [job.changes[0].value for job in book.waiting(DRAW)] == [*range(2500), 9999]
        book.record([picture(3, 2, 0.1)])
        assert 2 not in [job.changes[0].value for job in book.waiting(DRAW)]


def test_seeds_of_64_bits_come_back_as_they_were(tmp_path):
    with ledger.opened(tmp_path) as book:
        book.record([picture(1, 2**64 - 1, 0.1), picture(2, 2**63, 0.2), picture(3, 5, 0.3)])
        assert [row.seed for row in book.pictures()] == [2**64 - 1, 2**63, 5]


def test_a_second_driver_is_refused_and_a_reader_is_not(tmp_path):
    with ledger.opened(tmp_path):
        with pytest.raises(FleetError, match="another fleet is at work"):
            ledger.opened(tmp_path).__enter__()
        with ledger.read_only(tmp_path) as book:
            assert list(book.pictures()) == []
    with ledger.opened(tmp_path):
        pass


@pytest.mark.parametrize("whom", ["guard", "its parent"])
def test_a_guarded_program_ends_with_its_guard_and_with_who_started_it(whom, tmp_path):
    """Killed, not asked: nothing else could stop the program, nor remove its folder."""
    folder, models = tmp_path / "scratch", tmp_path / "models"
    folder.mkdir()
    models.mkdir()
    (folder / "models").symlink_to(models)
    start = ("import subprocess, sys, time\n"
             "guard = subprocess.Popen([sys.executable, *sys.argv[1:], sys.executable, '-c',"
             " 'import os, time; print(os.getpid(), flush=True); time.sleep(600)'],"
             " stdin=subprocess.PIPE)\nprint(guard.pid, flush=True)\ntime.sleep(600)")
    parent = subprocess.Popen([sys.executable, "-c", start, guard.__file__, str(folder)], text=True,
                              stdout=subprocess.PIPE)
    pids = {int(parent.stdout.readline()), int(parent.stdout.readline())}
    found = [psutil.Process(pid) for pid in pids]
    program, = (process for process in found if process.ppid() in pids)
    (psutil.Process(program.ppid()) if whom == "guard" else parent).kill()
    try:
        program.wait(60)
        if whom == "its parent":
            wait_for(lambda: not folder.exists())
        assert models.is_dir(), "what is linked there is the user's"
    finally:
        parent.kill()
        parent.wait()


def test_a_folder_without_a_ledger_is_refused(tmp_path):
    with pytest.raises(FleetError, match="holds no ledger"):
        ledger.read_only(tmp_path).__enter__()
    assert list(tmp_path.iterdir()) == []


def test_choosing_goes_by_each_prompts_own_scores(filled):
    folder, rows = filled
    with ledger.read_only(folder) as book:
        choice = choosing.choose(book, choosing.filtering.Rule("mean + z sigma", z=1.0))
    for prompt in ("die", "smiley"):
        scores = [row.score for row in rows if row.prompt == prompt]
        limit = statistics.mean(scores) + statistics.pstdev(scores)
        kept = {each.score for each in choice.pictures if each.kept and each.group == prompt}
        assert kept == {score for score in scores if score <= limit} and len(kept) < 10
    assert [each.score for each in choice.pictures] == sorted(row.score for row in rows)


@pytest.mark.parametrize("criterion, options, count", [
    ("mean + z sigma", ["--z", 0], 5), ("drop top percent", ["--percent", 30], 7),
    ("keep n", ["--keep", 3], 3), ("threshold", ["--threshold", 4], 4)])
def test_the_command_knows_the_filters_criteria(filled, capsys, criterion, options, count):
    """Of the first prompt; of the second one all scores are above the threshold."""
    folder, rows = filled
    assert main(["choose", *map(str, [folder, "--criterion", criterion, *options])]) == 0
    kept = {path.name[7:] for path in (folder / "kept").iterdir()}
    assert len([row for row in rows if row.file in kept and row.prompt == "die"]) == count
    assert max(row.score for row in rows if row.file in kept and row.prompt == "die") == count
    assert f"{len(kept)} kept, {20 - len(kept)} rejected by relative change" \
        in capsys.readouterr().out
    assert set(CRITERIA) < set(choosing.filtering.CRITERIA)


def test_pictures_that_are_elsewhere_are_to_be_fetched_before_one_chooses(filled, tmp_path):
    folder, rows = filled
    with ledger.opened(folder) as book:
        book.tell(pictures="s3://bucket/run")
    (folder / "pictures").rename(tmp_path / "bucket")
    with pytest.raises(FleetError, match="20 of 20 pictures.*fetch them.*s3://bucket/run"):
        main(["choose", str(folder)])
    assert not (folder / "kept").exists()
    (tmp_path / "bucket").rename(folder / "pictures")
    assert main(["choose", str(folder)]) == 0
    with ledger.opened(folder) as book:  # a folder that all machines share
        book.tell(pictures=str(tmp_path / "shared"))
    (folder / "pictures").rename(tmp_path / "shared")
    assert main(["choose", str(folder)]) == 0
    assert all(path.read_bytes() == PIXEL for path in (folder / "kept").iterdir())


def test_another_score_turns_the_choice_round_and_an_unknown_one_is_refused(filled):
    folder, _ = filled
    rule = choosing.filtering.Rule("keep n", keep=1)
    with ledger.read_only(folder) as book:
        kept = [each.picture.score for each in choosing.choose(book, rule, "sum").pictures
                if each.kept]
        assert sorted(kept) == [10, 1000]
        with pytest.raises(FleetError, match="choose one of relative change, sum"):
            choosing.choose(book, rule, "beauty")


def test_a_taught_score_counts_within_prompts(filled, tmp_path):
    """Disliked were the higher half of relative change."""
    folder, rows = filled
    taught, file = choosing.taught, tmp_path / "mine.json"
    runs = []
    for run in range(3):
        scores = {"relative change": [1.3**i + run for i in range(12)],
                  "sum": [1 + (5 * i) % 12 for i in range(12)]}
        runs = taught.added(runs, taught.run_of(scores, list(range(6)), list(range(6, 12))))
    choosing.pack.module("nodes.files.taught_file").write(file, runs)
    with ledger.opened(folder) as book:  # one that overflowed
        book.record([picture(99, 99, 0)._replace(score=None, scores='{"doubt": null}')])
    with ledger.read_only(folder) as book:
        choice = choosing.choose(book, choosing.filtering.Rule("keep n", keep=3),
                                 taught_file=file)
    for base, prompt in ((1, "die"), (100, "smiley")):
        kept = {each.picture.score for each in choice.pictures if each.kept
                and each.group == prompt}
        assert kept == {base, 2 * base, 3 * base}
    assert all(0 <= each.score <= 1 for each in choice.pictures)
    assert len(choice.pictures) == len(rows) and "left out" in choice.notes[0]


def test_kept_and_rejected_are_files_in_order_of_score_and_a_page(filled):
    folder, rows = filled
    with ledger.read_only(folder) as book:
        choice = choosing.choose(book, choosing.filtering.Rule("keep n", keep=4))
    for copies in (False, True):
        choosing.write(choice, folder / "pictures", folder, copies)
        names = {side: sorted((folder / side).iterdir()) for side in choosing.SIDES}
        assert len(names["kept"]) == 8 and len(names["rejected"]) == 12
        assert all(path.read_bytes() == PIXEL and path.is_symlink() != copies
                   for side in names.values() for path in side)
        ranks = [int(path.name[:6]) for path in names["kept"]]
        by_rank = [choice.pictures[rank].score for rank in ranks]
        assert by_rank == sorted(by_rank)
    page = gallery.write(choice, folder / "pictures", folder, "a <b> title").read_text()
    assert page.count("<figure") == 20 and page.count('<figure class="kept"') == 8
    assert "a &lt;b&gt; title" in page and 'src="pictures/0000001_0.png"' in page
    assert page.index("0000001_0.png") < page.index("0000004_0.png")  # scores 1 and 2


@pytest.mark.parametrize("name", ["t.csv", "t.parquet"])
def test_exported_it_has_a_row_a_picture(filled, tmp_path, name):
    folder, rows = filled
    with ledger.read_only(folder) as book:
        assert export.write(book, tmp_path / name) == 20
    if name == "t.csv":
        with open(tmp_path / name, newline="") as file:
            found = [(int(row["seed"]), float(row["score relative change"]), row["prompt"])
                     for row in csv.DictReader(file)]
    else:
        import pyarrow.parquet
        table = pyarrow.parquet.read_table(tmp_path / name).to_pydict()
        found = list(zip(table["seed"], table["score relative change"], table["prompt"]))
    assert found == [(row.seed, row.score, row.prompt) for row in rows]
    with ledger.read_only(folder) as book, pytest.raises(FleetError, match="neither"):
        export.write(book, tmp_path / "t.txt")


def test_words_and_numbers_of_one_column_and_a_seed_of_64_bits_are_exported(tmp_path):
    values = ["die", 7, 2.5, True, 2**64 - 1]
    with ledger.opened(tmp_path) as book:
        book.record([picture(number + 1, 2**64 - 1, 0.5, **{"2.name": value, "5.cfg": number or 0.5,
                                                            "5.steps": number})
                     for number, value in enumerate(values)])
        assert export.write(book, tmp_path / "t.parquet") == export.write(book, tmp_path / "t.csv")
    import pyarrow.parquet
    table = pyarrow.parquet.read_table(tmp_path / "t.parquet").to_pydict()
    assert table["widget 2.name"] == [str(value) for value in values]
    assert table["widget 5.cfg"] == [0.5, 1, 2, 3, 4] and table["widget 5.steps"] == [0, 1, 2, 3, 4]
    assert table["seed"] == [2**64 - 1] * 5
    with open(tmp_path / "t.csv", newline="") as file:
        assert [row["widget 2.name"] for row in csv.DictReader(file)] == table["widget 2.name"]


def test_without_pyarrow_it_says_how_to_get_it_and_csv_is_written(filled, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with ledger.read_only(filled[0]) as book:
        with pytest.raises(FleetError, match="pip install pyarrow, or export to .csv"):
            export.write(book, tmp_path / "t.parquet")
        assert export.write(book, tmp_path / "t.csv") == 20
    assert not list(tmp_path.glob("*.parquet*"))


def test_the_bar_counts_jobs_and_tells_pictures_a_second(monkeypatch):
    bar = Bar(total=12, done=2, failed=1)
    bar.done, bar.made, bar.lost = 7, 20, 1  # five batches of four in ten seconds
    line = bar.line(workers=2, now=bar._began + 10)
    assert "7/12  2.00 pictures/s  8 s left  1 failed, 1 workers lost, 2 at work" in line
