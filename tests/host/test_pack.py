"""The pack as the host sees it."""

import ast
import asyncio
import json
import re

import folder_paths
import pytest

from tools.places import REPOSITORY

SOURCES = [REPOSITORY / "__init__.py", *sorted((REPOSITORY / "nodes").rglob("*.py")),
           *sorted((REPOSITORY / "bayesdiff_core").rglob("*.py"))]


@pytest.fixture
def node_classes(pack):
    extension = asyncio.run(pack.root.comfy_entrypoint())
    return asyncio.run(extension.get_node_list())


def test_model_folder_llla_is_registered_for_safetensors(pack):
    assert [path.rsplit("llla")[-1] for path in folder_paths.get_folder_paths("llla")] == [""]
    assert folder_paths.folder_names_and_paths["llla"][1] == {".safetensors"}


def test_every_node_is_named_placed_described_and_documented(node_classes):
    for node in node_classes:
        schema = node.GET_SCHEMA()
        assert schema.node_id.startswith("BayesDiff_") and schema.category == "bayesdiff"
        assert schema.display_name and schema.description
        assert (REPOSITORY / "web" / "docs" / f"{schema.node_id}.md").is_file()
        for port in [*schema.inputs, *schema.outputs]:
            assert port.tooltip, f"{schema.node_id}: {port} has no tooltip"


@pytest.mark.parametrize("word, node", [
    ("hands", "RepairWhereUnsure"), ("artifacts", "UncertaintyHeatmap"), ("unsure", "KSampler"),
    ("overlay", "UncertaintyHeatmap"), ("detailer", "RepairWhereUnsure"),
    ("inpaint", "RepairWhereUnsure"), ("sort", "UncertaintyScoreFilter"),
    ("broken", "UncertaintyHeatmap"), ("confidence", "KSampler"), ("best of", "BestOfN"),
    ("quality", "ScoreAnImage")])
def test_a_word_that_artists_search_for_finds_its_node(node_classes, word, node):
    schemas = {node.GET_SCHEMA().node_id: node.GET_SCHEMA() for node in node_classes}
    assert word in schemas[f"BayesDiff_{node}"].search_aliases


def test_tooltips_are_short_and_end_as_sentences(node_classes):
    for node in node_classes:
        schema = node.GET_SCHEMA()
        for port in [*schema.inputs, *schema.outputs]:
            options = len(getattr(port, "options", None) or [])  # each has its few words
            assert len(port.tooltip) <= 170 + 60 * options, (schema.node_id, port.tooltip)
            assert port.tooltip.endswith("."), (schema.node_id, port.tooltip)


@pytest.mark.parametrize("language", ["en", "zh"])
def test_every_node_and_port_is_in_each_locale(node_classes, language):
    path = REPOSITORY / "locales" / language / "nodeDefs.json"
    words = json.loads(path.read_text(encoding="utf-8"))
    for node in node_classes:
        schema = node.GET_SCHEMA()
        entry = words[schema.node_id]
        assert list(entry["inputs"]) == [port.id for port in schema.inputs]
        assert len(entry["outputs"]) == len(schema.outputs)
        if language == "en":
            said = [*entry["inputs"].values(), *entry["outputs"].values()]
            assert [one["tooltip"] for one in said] == \
                [port.tooltip for port in [*schema.inputs, *schema.outputs]]
            assert entry["display_name"] == schema.display_name
            assert entry["description"] == schema.description


def test_pack_exports_the_v3_entry_only(pack):
    assert not hasattr(pack.root, "NODE_CLASS_MAPPINGS")
    assert (REPOSITORY / pack.root.WEB_DIRECTORY).is_dir()


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_source_is_plain(path):
    """ASCII, no print, and node classes that tools which read the source can find."""
    tree = ast.parse(path.read_bytes().decode("ascii"))
    names = {node.func.id for node in ast.walk(tree)
             if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    assert not names & {"print", "eval", "exec"}


def test_tools_that_read_the_source_find_every_node(node_classes, pack):
    """As Manager does: direct subclasses of io.ComfyNode, and ids that are written out."""
    node_classes = [*node_classes, pack.stages.BayesDiffStage]  # only a fleet's servers offer it
    classes, ids = set(), []
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and "io.ComfyNode" in map(ast.unparse, node.bases):
                classes.add(node.name)
            if isinstance(node, ast.keyword) and node.arg == "node_id":
                ids.append(ast.literal_eval(node.value))
    assert classes == {node.__name__ for node in node_classes}
    assert sorted(ids) == sorted(node.GET_SCHEMA().node_id for node in node_classes)


def test_pack_knows_the_hosts_own_nodes_module_from_its_own(pack):
    assert hasattr(pack.sampling.host_nodes, "common_ksampler")


def test_tools_that_read_the_whole_repository_find_no_other_nodes(node_classes, pack):
    """Manager's scanner walks all folders, and takes a class's name where its id is not written
    out: nodes that only tests have must not be listed as ours."""
    found = set()
    for path in REPOSITORY.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and any(
                    ast.unparse(base).split(".")[-1] == "ComfyNode" for base in node.bases):
                found.add(node.name)
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"_CLASS_MAPPINGS\s*(:|=|\[|\.update)",
                             re.sub("'.*'|\".*\"", "", text)), path
        # Ways to register that it knows of from other packs.
        assert not re.search(r'@register_node\(|"\w+"\s*:\s*{"class":\s*\w+\s*', text), path
    assert found == {node.__name__ for node in [*node_classes, pack.stages.BayesDiffStage]}


def test_every_row_about_a_neighbour_says_how_it_was_seen():
    page = (REPOSITORY / "docs" / "neighbours.md").read_text(encoding="utf-8")
    rows = [line.split("|") for line in page.splitlines()
            if line.startswith("| ") and not line.startswith("| pack |")]
    assert len(rows) > 15
    for *_, seen, _ in rows:
        assert re.match(" (tried|stand-in|habit|read|.*`tests/)", seen), seen
