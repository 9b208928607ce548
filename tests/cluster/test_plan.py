"""What is to be drawn, and what is refused before anything is started or written."""

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile

import pytest

from fleet import FleetError, cluster, ledger, plan
from fleet.command import _picture_url, place_of
from fleet.worker import Place, Worker, WorkerFault, python_of
from tests.cluster.helpers import dice
from tools import workflow as files
from tools.places import REPOSITORY
from tools.server import ask

NODES = {node["class_type"]: {} for node in dice().values()}


def jobs(seeds=None, grid=(), table=None, graph=None):
    made = plan.variations(seeds, list(grid), table)
    found = list(made.jobs(graph or plan.graph(dice(), NODES)))
    assert len(found) == made.pictures
    return found


@pytest.mark.parametrize("words, seeds", [
    ("0:3", [0, 1, 2]), ("5:12:3", [5, 8, 11]), ("8,3,8", [8, 3]), ("7", [7]),
    ("18446744073709551615", [2**64 - 1])])
def test_seeds_are_ranges_or_lists(words, seeds):
    assert jobs(words) == [[("5", "seed", seed)] for seed in seeds]


def test_every_row_meets_every_choice_and_every_seed(tmp_path):
    table = tmp_path / "prompts.csv"
    table.write_text("2.name,steps\ndie,10\nsmiley,20\n")
    found = jobs("0:3", ["5.cfg=2|3.5"], table)
    assert found == [[("2", "name", name), ("5", "steps", steps), ("5", "cfg", cfg),
                      ("5", "seed", seed)]
                     for name, steps in (("die", 10), ("smiley", 20)) for cfg in (2, 3.5)
                     for seed in range(3)]


def test_an_order_of_widgets_does_not_make_another_job():
    one, other = plan.Change("5", "cfg", 2), plan.Change("5", "seed", 1)
    assert plan.key([one, other]) == plan.key([other, one]) != plan.key([one])


@pytest.mark.parametrize("words, told", [
    ("5:5", "holds no seed"), ("9:3", "holds no seed"), ("0:1000000000", "at most 1,000,000"),
    ("a:b", "FIRST:END"), ("-3:5", "FIRST:END"), ("0:10:0", "step of 1"), ("1:2:3:4", "FIRST:END"),
    ("18446744073709551616", "2\\^64 - 1"), ("0:18446744073709551615", "at most 1,000,000"),
    ("9" * 5000, "FIRST:END")])
def test_bad_seeds_are_refused_in_words(words, told):
    with pytest.raises(FleetError, match=told):
        jobs(words)


def test_widgets_that_are_not_there_or_not_single_are_refused():
    with pytest.raises(FleetError, match="names 0 widgets"):
        jobs("0:3", ["5.nothing=1"])
    with pytest.raises(FleetError, match=r"names 2 widgets.*2.name .*3.name"):
        jobs("0:3", ["name=smiley"])
    with pytest.raises(FleetError, match="names 0 widgets"):  # a link is not a widget
        jobs("0:3", ["5.model=1"])
    with pytest.raises(FleetError, match="nothing is varied"):
        jobs()
    with pytest.raises(FleetError, match="at most 1,000,000"):
        jobs(grid=[f"5.{name}=" + "|".join("0123456789") for name in "abcdefghijklmnopqrstuvwxyz"])


def test_a_widget_that_is_not_there_is_refused_before_a_job_is_written():
    made = plan.variations("0:3", ["5.nothing=1"], None)
    with pytest.raises(FleetError, match="names 0 widgets"):
        made.jobs(plan.graph(dice(), NODES))


def test_the_seed_is_found_behind_a_noise_node_and_a_link():
    prompt = dice()
    prompt["5"]["class_type"] = "BayesDiff_SamplerCustom"
    del prompt["5"]["inputs"]["seed"]
    prompt["5"]["inputs"]["noise"] = ["8", 0]
    prompt["8"] = {"class_type": "RandomNoise", "inputs": {"noise_seed": ["9", 0]}}
    prompt["9"] = {"class_type": "PrimitiveInt", "inputs": {"value": 4}}
    info = {node["class_type"]: {} for node in prompt.values()}
    assert plan.graph(prompt, info).seed == ("9", "value")
    prompt["8"]["inputs"]["noise_seed"] = 4
    assert plan.graph(prompt, info).seed == ("8", "noise_seed")
    del prompt["8"]["inputs"]["noise_seed"]
    with pytest.raises(FleetError, match="no seed widget"):
        plan.graph(prompt, info)


def test_of_several_seeds_one_is_to_be_named_and_both_formats_change_alike(single):
    found = files.read(REPOSITORY / "example_workflows" / "3 Mend the red parts.json")
    sampler, = (node for node in found["nodes"] if node["type"] == "BayesDiff_KSampler")
    seed = sampler["widgets_values"][0]
    found["nodes"].append({**sampler, "id": 15, "title": "Another sampler"})
    info = ask(single.address, "/object_info")
    with pytest.raises(FleetError, match=r"several seeds.*6.seed.*15.seed"):
        plan.graph(found, info)
    graph = plan.graph(found, info, "BayesDiff KSampler.seed")
    assert graph.sampler == "6" and plan.prompt_text(graph.prompt, "6") == "hand"
    prompt, saved = graph.changed([plan.Change("6", "seed", 99), plan.Change("3", "name", "moon")])
    assert files.api_prompt(saved, info) == prompt
    assert prompt["6"]["inputs"]["seed"] == 99 and plan.prompt_text(prompt, "6") == "moon"
    assert files.api_prompt(found, info)["6"]["inputs"]["seed"] == seed, "the workflow was changed"


def test_a_workflow_is_the_same_when_it_was_moved_and_saved_again_and_another_when_it_draws_another(
        single):
    found = files.read(REPOSITORY / "example_workflows" / "3 Mend the red parts.json")
    info = ask(single.address, "/object_info")
    mark = plan.mark(plan.graph(found, info).prompt)
    moved = json.loads(json.dumps(found))
    moved["extra"]["ds"] = {"scale": 2, "offset": [5, 5]}
    for node in moved["nodes"]:
        node["pos"], node["title"] = [1, 2], f"mine {node['id']}"
    assert plan.mark(plan.graph(moved, info).prompt) == mark
    name, = (node for node in moved["nodes"] if node["widgets_values"] == ["hand"])
    name["widgets_values"] = ["die"]
    assert plan.mark(plan.graph(moved, info).prompt) != mark


@pytest.mark.parametrize("content, told", [
    ("{", "is no JSON"), ("[]", "is no workflow"), ('{"a": 1}', "is no workflow"),
    (json.dumps({"1": {"class_type": "KSampler", "inputs": {}}}), "has no BayesDiff_KSampler")])
def test_what_is_no_workflow_of_ours_is_refused(tmp_path, content, told):
    path = tmp_path / "w.json"
    path.write_text(content)
    with pytest.raises(FleetError, match=told):
        plan.read(path)
    with pytest.raises(FleetError, match="cannot read"):
        plan.read(tmp_path / "none.json")


@pytest.mark.parametrize("arguments, told", [
    (["--seeds", "3:3"], "holds no seed"),
    (["--seeds", "0:3", "--address", "127.0.0.1:1"], "no cluster answers at 127.0.0.1:1"),
    (["--seeds", "0:3", "--address", "ray://x"], "HOST:PORT"),
    (["--seeds", "0:3", "--comfyui", "nowhere"], "holds no ComfyUI"),
    (["--seeds", "0:3", "--pictures", "nonsense://bucket"], "Protocol not known"),
])
def test_bad_commands_say_why_and_write_nothing(workflow, tmp_path, arguments, told):
    code, said = command([workflow, *arguments, "--cpu", "--output", tmp_path / "out"])
    assert code == 1 and told in said and "Traceback" not in said
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_read_or_written_is_told_in_words(tmp_path):
    (tmp_path / ledger.FILE).write_text("no ledger at all")
    with ledger.opened(tmp_path / "sound"):
        pass
    for arguments, told in [(["status", tmp_path], "is no ledger, or a damaged one"),
                            (["export", tmp_path / "sound", "--to", tmp_path / "none" / "a.csv"],
                             "No such file or directory")]:
        code, said = command(arguments)
        assert code == 1 and told in said and "Traceback" not in said
    assert (tmp_path / ledger.FILE).read_text() == "no ledger at all"


def test_nodes_of_the_page_only_are_refused_and_a_button_for_uploads_is_no_value(single):
    found = files.read(REPOSITORY / "example_workflows" / "3 Mend the red parts.json")
    info = ask(single.address, "/object_info")
    found["nodes"].append({"id": 90, "type": "LoadImage", "inputs": [], "mode": 0,
                           "widgets_values": ["a.png", "image"]})
    assert plan.graph(found, info).prompt["90"]["inputs"] == {"image": "a.png"}
    for values in (["a.png", "image", "more"], {"image": "a.png"}):
        found["nodes"][-1]["widgets_values"] = values
        with pytest.raises(FleetError, match=r"LoadImage.*widget values.*Export \(API\)"):
            plan.graph(found, info)
    found["nodes"][-1] = {"id": 90, "type": "Reroute", "inputs": [], "mode": 0}
    with pytest.raises(FleetError, match=r"90 is a Reroute.*Export \(API\)"):
        plan.graph(found, info)


def test_who_saves_is_one_of_the_nodes():
    graph = plan.graph(dice(), NODES)
    for name in (None, "7", "SaveImage"):
        plan.check_saver(graph, name)
    with pytest.raises(FleetError, match="--save is 'Save'.*7 SaveImage"):
        plan.check_saver(graph, "Save")


def test_without_ray_it_says_how_to_get_it(workflow, tmp_path):
    """By the isolated mode of Python, which sees no installed packages."""
    code, said = command([workflow, "--seeds", "0:3", "--cpu", "--output", tmp_path / "out"],
                         "-S")
    assert code == 1 and "pip install" in said and "Traceback" not in said
    assert list(tmp_path.iterdir()) == []


def test_a_port_that_answers_and_is_not_rays_is_told_of_and_nothing_is_written(workflow, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = "{}:{}".format(*server.getsockname())
        code, said = command(
            [workflow, "--seeds", "0:3", "--address", address, "--output", tmp_path / "out"],
            RAY_gcs_rpc_server_connect_timeout_s="1", RAY_py_gcs_connect_timeout_s="1")  # not 40 s
    assert code == 1 and f"cannot join the cluster at {address}" in said
    assert "Traceback" not in said and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("address, warned", [("127.0.0.1", False), ("127.0.0.2", True)])
def test_a_cluster_on_another_address_than_this_machines_own_is_warned_of(capsys, address, warned):
    with socket.create_server((address, 0)) as server:
        cluster.check_reachable(f"{address}:{server.getsockname()[1]}")
    assert ("open to a network" in capsys.readouterr().err) == warned


def test_a_folder_for_pictures_is_the_same_for_workers_that_run_elsewhere(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert _picture_url("shared/run") == str(tmp_path / "shared" / "run")
    assert _picture_url("memory://bucket/run") == "memory://bucket/run"


def test_other_machines_find_comfyui_by_links_and_pythons_of_their_own(monkeypatch, tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "ComfyUI").symlink_to(tmp_path / "disk")
    for name in ("COMFYUI_PATH", "COMFYUI_PYTHON"):
        monkeypatch.setenv(name, "")  # and put back afterwards
    options = argparse.Namespace(comfyui=str(tmp_path / "ComfyUI"), address="10.0.0.1:6379",
                                 cpu=True, python=None, base=None, server_option=[],
                                 start_timeout=5)
    assert place_of(options)[:2] == (str(tmp_path / "ComfyUI"), None)
    assert python_of(tmp_path / "ComfyUI") == sys.executable
    own = tmp_path / "disk" / "venv" / "bin" / "python"
    own.parent.mkdir(parents=True)
    own.touch()
    assert python_of(tmp_path / "ComfyUI") == str(tmp_path / "ComfyUI" / own.relative_to(
        tmp_path / "disk"))
    (tmp_path / "disk" / "main.py").touch()
    options.address, options.python = None, "/my/python"
    assert place_of(options).python == os.environ["COMFYUI_PYTHON"] == "/my/python"


@pytest.mark.parametrize("on_cpu, threads", [(True, "1"), (False, "None")])
def test_a_server_that_does_not_start_tells_why_and_leaves_nothing(monkeypatch, tmp_path, on_cpu,
                                                                   threads):
    """Ray's one thread is for a worker that asks for one CPU, not for one that asks for a GPU."""
    (tmp_path / "main.py").write_text("import os, sys\n"
                                      "sys.exit(f'threads: {os.environ.get(\"OMP_NUM_THREADS\")}')")
    for name, value in {"OMP_NUM_THREADS": "1", "COMFYUI_PATH": str(tmp_path),
                        "COMFYUI_PYTHON": sys.executable, "BAYESDIFF_FLEET": ""}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(WorkerFault, match=f"code 1 while starting:\nthreads: {threads}$"):
        Worker("worker0", Place("", None, on_cpu)).start()
    assert [path.name for path in tmp_path.iterdir()] == ["main.py"]


def command(arguments, *options, **environ) -> tuple[int, str]:
    done = subprocess.run([sys.executable, *options, "-m", "fleet", *map(str, arguments)],
                          cwd=REPOSITORY, text=True, capture_output=True, timeout=120,
                          env={**os.environ, **environ})
    return done.returncode, done.stdout + done.stderr
