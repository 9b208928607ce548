"""The example workflows that need no download, as files, over HTTP."""

import urllib.parse
import urllib.request

import pytest

from tools import workflow
from tools.make_workflows import EXAMPLES, GRAPHS
from tools.server import PACK, ask, run_prompt


@pytest.fixture(scope="module")
def object_info(server):
    return ask(server.address, "/object_info")


@pytest.fixture
def shown(server, object_info):
    """Runs a workflow; gives the number of pictures that each node shows, by the node's title."""

    def run(name):
        graph = workflow.read(EXAMPLES / f"{name}.json")
        prompt = workflow.api_prompt(graph, object_info)
        outputs = run_prompt(server.address, prompt, extra_data={"extra_pnginfo": {
            "workflow": graph}})
        return {prompt[number]["_meta"]["title"]: len(output["images"])
                for number, output in outputs.items() if output.get("images")}

    return run


def test_the_server_offers_every_example_with_its_picture(server):
    assert sorted(ask(server.address, "/api/workflow_templates")[PACK]) == sorted(GRAPHS)
    for name in GRAPHS:
        file = urllib.parse.quote(f"{name}.jpg")
        picture = f"{server.address}/api/workflow_templates/{PACK}/{file}"
        with urllib.request.urlopen(picture, timeout=30) as answer:
            assert answer.read(2) == b"\xff\xd8"  # a JPG


def test_the_first_one_has_at_most_eight_nodes_and_runs(server, object_info):
    graph = workflow.read(EXAMPLES / "1 See what went wrong.json")
    assert len(graph["nodes"]) <= 8
    prompt = workflow.api_prompt(graph, object_info)
    outputs = run_prompt(server.address, prompt)
    panel, = outputs[workflow.numbered(prompt, "Uncertainty Heatmap")]["bayesdiff"]
    assert len(panel["images"]) == 8


def test_a_quarter_is_dropped_and_the_rest_upscaled(shown):
    pictures = shown("2 Keep the good ones")
    assert (pictures["Save kept"], pictures["Rejected"]) == (12, 4)


def test_what_glows_is_drawn_again_in_every_picture_of_the_batch(shown):
    pictures = shown("3 Mend the red parts")
    assert pictures["Mask"] == pictures["Save mended"] == 4


def test_variations_and_another_prompt_come_from_one_run(shown):
    pictures = shown("4 Variations from a step")
    assert pictures["Original"] == 1
    assert (pictures["Save variations"], pictures["Save changed"]) == (8, 4)


def test_pictures_of_the_stock_sampler_are_scored_and_parted_by_that_score(server, object_info):
    graph = workflow.read(EXAMPLES / "5 Check any picture.json")
    prompt = workflow.api_prompt(graph, object_info)
    outputs = run_prompt(server.address, prompt)
    score, = outputs[workflow.numbered(prompt, "Score An Image")]["bayesdiff_report"]
    assert len(score["scores"]) == 8 and min(score["scores"]) > 0


@pytest.mark.parametrize("name", ["6 Calibrate your checkpoint", "7 Flux"])
def test_those_with_models_of_others_lack_nothing_but_the_models(server, object_info, name):
    prompt = workflow.api_prompt(workflow.read(EXAMPLES / f"{name}.json"), object_info)
    for node in prompt.values():
        required = object_info[node["class_type"]]["input"].get("required", {})
        assert required.keys() <= node["inputs"].keys(), node


def test_workflows_of_an_unknown_node_or_other_widgets_are_refused(object_info):
    node = {"id": 1, "type": "KSampler", "widgets_values": [0, "fixed", 20]}
    with pytest.raises(ValueError, match="has 3 widget values, 7 were expected: seed"):
        workflow.api_prompt({"nodes": [node], "links": []}, object_info)
    with pytest.raises(ValueError, match="is a Nobody"):
        workflow.api_prompt({"nodes": [{**node, "type": "Nobody"}], "links": []}, object_info)
    with pytest.raises(ValueError, match="in mode 4"):
        workflow.api_prompt({"nodes": [{**node, "mode": 4}], "links": []}, object_info)
