"""Rooms import downwards only: read from the sources, nothing is imported for it.

docs/architecture.md draws the same picture.
"""

import ast
import re
import sys
from pathlib import Path

import pytest

from tools.places import REPOSITORY

# From the ground up. A module belongs to the longest name that it starts with, and may import from
# its own room and those above it in this list. The last one is the pack's __init__.
ROOMS = ["bayesdiff_core", "bayesdiff_core.paper", "nodes.host.network", "nodes.host",
         "nodes.host.run", "nodes.version", "nodes.files", "nodes.pictures", "nodes", ""]
SHIPPED = {"torch", "numpy", "PIL", "safetensors"}  # with every ComfyUI
# What of the host stock nodes use too, so nodes may; the rest of it is known to nodes/host alone.
PUBLIC = {"comfy_api.latest", "comfy_execution.graph_utils", "comfy.model_management",
          "comfy.samplers", "comfy.utils", "folder_paths"}
HOST = {"comfy", "comfy_api", "comfy_execution", "comfy_extras", "folder_paths", "latent_preview",
        "node_helpers", "nodes", "server", "aiohttp"}
KSAMPLER_LISTS = "comfy.samplers.KSampler"  # all that nodes read of comfy.samplers


def sources(root: Path) -> dict[str, str]:
    """Name of a module in the pack -> its text."""
    files = [root / "__init__.py", *root.glob("bayesdiff_core/**/*.py"),
             *root.glob("nodes/**/*.py")]
    return {".".join(file.relative_to(root).with_suffix("").parts).removesuffix("__init__")
            .rstrip("."): file.read_text(encoding="utf-8") for file in files}


def imports(name: str, pack: dict[str, str]) -> tuple[set[str], set[str]]:
    """What a module imports: modules of the pack, and others."""
    own, others = set(), set()
    is_package = any(other.startswith(f"{name}.") for other in pack) or name == ""
    for node in ast.walk(ast.parse(pack[name])):
        if isinstance(node, ast.Import):
            others |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            others |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            parts = name.split(".") if name else []
            parts = parts[:len(parts) - (node.level - is_package)]
            base = ".".join([*parts, *(node.module or "").split(".")]).strip(".")
            own |= {full if (full := f"{base}.{alias.name}".strip(".")) in pack else base
                    for alias in node.names}
    return own, others


def room_of(name: str) -> str:
    return max((room for room in ROOMS if name == room or name.startswith(f"{room}.")), key=len,
               default="")


def complaints(pack: dict[str, str]) -> list[str]:
    found = []
    inner = {}
    for name, text in pack.items():
        room = room_of(name)
        inner[name], others = imports(name, pack)
        found += [f"{name} imports {other}, which is above it" for other in sorted(inner[name])
                  if ROOMS.index(room_of(other)) > ROOMS.index(room)]
        found += [f"{name} imports {other}, which is not for {room}" for other in sorted(others)
                  if not _may(room, other)]
        if not room.startswith("nodes.host"):
            found += [f"{name} uses {used}, which is not for {room}" for used in _attributes(text)
                      if used.startswith("comfy.samplers.") and used.count(".") == 2
                      and used != KSAMPLER_LISTS]
    return found + [f"a circle: {' -> '.join(circle)}" for circle in _circles(inner)]


def _may(room: str, module: str) -> bool:
    top = module.split(".")[0]
    if room.startswith("bayesdiff_core"):
        return top in sys.stdlib_module_names or top in {"torch", "numpy"}
    if top in sys.stdlib_module_names or top in SHIPPED:
        return True
    if room.startswith("nodes.host"):
        return top in HOST
    return any(module == public or module.startswith(f"{public}.") for public in PUBLIC)


def _attributes(text: str) -> set[str]:
    return {ast.unparse(node) for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.Attribute)}


def _circles(inner: dict[str, set[str]]) -> list[list[str]]:
    """Of packages, only what they themselves import counts: the importing of a.b runs a too, but
    in all of ours that is empty or at the top."""
    done, circles = set(), []

    def follow(name: str, way: list[str]) -> None:
        if name in way:
            circles.append([*way[way.index(name):], name])
        elif name not in done:
            for other in sorted(inner.get(name, ())):
                follow(other, [*way, name])
            done.add(name)

    for name in sorted(inner):
        follow(name, [])
    return circles


def test_rooms_import_downwards_only_and_in_no_circle():
    pack = sources(REPOSITORY)
    assert {room_of(name) for name in pack} >= {*ROOMS} - {"nodes.version"}
    assert complaints(pack) == []


def test_every_package_but_the_top_is_free_of_imports():
    pack = sources(REPOSITORY)
    for name in ("bayesdiff_core", "bayesdiff_core.paper", "nodes", "nodes.host", "nodes.host.run",
                 "nodes.host.network", "nodes.host.run.modes", "nodes.files", "nodes.pictures"):
        assert imports(name, pack) == (set(), set()), name


@pytest.mark.parametrize("name, text, words", [
    ("bayesdiff_core.scores", "import comfy.utils", "comfy.utils, which is not for"),
    ("bayesdiff_core.scores", "from scipy import stats", "scipy.stats, which is not for"),
    ("bayesdiff_core.scores", "from PIL import Image", "PIL.Image, which is not for"),
    ("bayesdiff_core.scores", "from ..nodes import sockets", "nodes.sockets, which is above"),
    ("bayesdiff_core.scores", "def f():\n    from .paper import rules", "paper.rules, which is"),
    ("bayesdiff_core.scores", "from .paper.rules import ddim", "paper.rules, which is above"),
    ("bayesdiff_core.checks", "from . import scores", "a circle: bayesdiff_core.checks -> "),
    ("nodes.host.network.tap", "from ..run import sampling", "run.sampling, which is above"),
    ("nodes.host.memory", "from ..files import names", "nodes.files.names, which is above"),
    ("nodes.host.run.sampling", "from ... import sockets", "nodes.sockets, which is above"),
    ("nodes.files.names", "from ..sockets import LLLA", "nodes.sockets, which is above"),
    ("nodes.pictures.plot", "from .. import filter", "nodes.filter, which is above"),
    ("nodes.pictures.plot", "import server", "server, which is not for nodes.pictures"),
    ("nodes.filter", "import requests", "requests, which is not for nodes"),
    ("nodes.filter", "from comfy.k_diffusion import sampling", "sampling, which is not for nodes"),
    ("nodes.filter", "import comfy.patcher_extension", "patcher_extension, which is not for nodes"),
    ("nodes.filter", "import comfy.samplers\nx = comfy.samplers.KSAMPLER(f)",
     "uses comfy.samplers.KSAMPLER, which is not for nodes"),
    ("nodes.filter", "from .. import comfy_entrypoint", "imports , which is above"),
])
def test_what_is_not_allowed_is_found(name, text, words):
    names = ["", "bayesdiff_core", "bayesdiff_core.paper", "bayesdiff_core.paper.rules",
             "bayesdiff_core.checks", "bayesdiff_core.scores", "nodes", "nodes.sockets",
             "nodes.filter", "nodes.host", "nodes.host.memory", "nodes.host.network",
             "nodes.host.network.tap", "nodes.host.run", "nodes.host.run.sampling", "nodes.files",
             "nodes.files.names", "nodes.pictures", "nodes.pictures.plot"]
    pack = {each: "" for each in names} | {"bayesdiff_core.scores": "from .checks import check"}
    assert complaints(pack) == []
    found = complaints(pack | {name: text})
    assert len(found) == 1 and words in found[0], found


def test_what_is_allowed_is_not_complained_about():
    assert complaints({
        "": "from comfy_api.latest import io\nfrom .nodes import filter",
        "bayesdiff_core": "", "bayesdiff_core.checks": "import math\nimport torch.nn.functional",
        "bayesdiff_core.paper": "", "bayesdiff_core.paper.rules": "from ..checks import a",
        "nodes": "", "nodes.sockets": "from comfy_api.latest import io",
        "nodes.filter": "import comfy.samplers\nfrom .sockets import A\nfrom .host.run import b\n"
                        "x = comfy.samplers.KSampler.SAMPLERS",
        "nodes.host": "", "nodes.host.run": "", "nodes.host.run.b":
            "import nodes as host_nodes\nfrom comfy.k_diffusion import sampling\n"
            "from ....bayesdiff_core.paper.rules import ddim"}) == []


def test_the_page_about_them_names_every_room_and_only_what_there_is():
    page = (REPOSITORY / "docs" / "architecture.md").read_text(encoding="utf-8")
    pack = sources(REPOSITORY)
    for room in ("bayesdiff_core", "bayesdiff_core.paper", "nodes.host.network", "nodes.host",
                 "nodes.host.run", "nodes.files", "nodes.pictures"):
        assert f"`{room.replace('.', '/')}/`" in page
    for path in re.findall(r"`((?:bayesdiff_core|nodes|tests)/[\w/]+\.py)`", page):
        assert (REPOSITORY / path).is_file(), path
    named = re.findall(r"`((?:\w+\.)+\w+)`", page.partition("## Equations")[2])
    assert len(named) > 15
    for name in named:
        module, _, function = f"bayesdiff_core.{name}".rpartition(".")
        defined = {node.name for node in ast.parse(pack[module]).body
                   if isinstance(node, ast.FunctionDef | ast.ClassDef)}
        assert function in defined, name
