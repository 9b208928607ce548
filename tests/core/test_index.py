"""The reader's indices, from the paper's equations to functions, name what there is."""

import importlib
import re

import pytest

from tools.places import REPOSITORY

NAME = r"(?:paper\.)?[a-z_]+\.[A-Za-z]\w*(?:\.\w+)?"


def indexed(page: str, start: str, pattern: str) -> set[str]:
    text = (REPOSITORY / page).read_text(encoding="utf-8")
    return set(re.findall(pattern, text[text.index(start):]))


def is_there(name: str) -> bool:
    module, *rest = name.removeprefix("paper.").split(".")
    package = "bayesdiff_core.paper" if name.startswith("paper.") else "bayesdiff_core"
    found = importlib.import_module(f"{package}.{module}")
    for part in rest:
        found = getattr(found, part, None)
    return found is not None


@pytest.mark.parametrize("page, start, pattern, least", [
    ("bayesdiff_core/__init__.py", "The paper, and where it is", rf"\b{NAME}", 20),
    ("docs/architecture.md", "## Equations", f"`({NAME})`", 20)])
def test_every_name_of_an_index_is_there(page, start, pattern, least):
    names = indexed(page, start, pattern)
    assert len(names) >= least and {name for name in names if not is_there(name)} == set()
