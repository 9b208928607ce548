"""What the browser says: every word in every language, with the same values in it; help pages."""

import ast
import json
import re

import pytest

from tools.places import REPOSITORY

WEB = REPOSITORY / "web"
LANGUAGES = sorted(WEB.glob("locales/*.json"))
PAGES = sorted(WEB.glob("docs/*.md"))
TRANSLATED = sorted(WEB.glob("docs/*/*.md"))  # where the front end looks for another language
CHINESE = re.compile("[\u4e00-\u9fff]")


def values_in(words: str) -> set[str]:
    return set(re.findall(r"\{(\w+)\}", words))


def english() -> dict[str, str]:
    """The table of words.js; a value may go on over lines that begin with +."""
    source = (WEB / "words.js").read_text("utf-8")
    table = re.search(r"const WORDS = \{\n(.*?)\n\};", source, re.S)[1]
    table = re.sub(r'"\n\s+\+ "', "", table)
    return dict(re.findall(r'^  (\w+): "(.*)",$', table, re.M))


def test_every_language_has_all_words_and_no_others():
    words = english()
    assert len(words) > 60
    for path in LANGUAGES:
        theirs = json.loads(path.read_text("utf-8"))["words"]
        assert theirs.keys() == words.keys(), path.name
        for key in words:
            assert values_in(theirs[key]) == values_in(words[key]), key


def test_a_translated_report_has_the_values_of_its_english():
    for path in LANGUAGES:
        for line, theirs in json.loads(path.read_text("utf-8"))["reports"].items():
            assert values_in(theirs) == values_in(line), line


@pytest.mark.parametrize("path", LANGUAGES, ids=lambda path: path.stem)
def test_words_are_said_only_if_they_are_in_the_table(path):
    said = set()
    for source in WEB.glob("*.js"):
        said |= set(re.findall(r'say\("(\w+)"', source.read_text("utf-8")))
    assert said <= english().keys()
    assert all(CHINESE.search(words) for words in
               json.loads(path.read_text("utf-8"))["words"].values())


def test_scripts_ask_no_slot_for_its_links():
    """Newer front ends keep links elsewhere: a slot's own are deprecated, and a message says so."""
    for path in WEB.glob("*.js"):
        source = path.read_text("utf-8")
        assert re.findall(r"(?<!graph)\.links?\b", source) == [], path.name


def told_by_the_pack() -> str:
    """All that the Python source says, values left out."""
    said = []
    for folder in ("nodes", "bayesdiff_core"):
        for path in (REPOSITORY / folder).rglob("*.py"):
            said += [node.value for node in ast.walk(ast.parse(path.read_text("utf-8")))
                     if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return "\n".join(said)


@pytest.mark.parametrize("path", LANGUAGES, ids=lambda path: path.stem)
def test_reports_are_translated_from_what_nodes_still_say(path):
    said = told_by_the_pack()
    for line in json.loads(path.read_text("utf-8"))["reports"]:
        for part in re.split(r"\{\w+\}", line):
            # a line may be put together of several strings
            assert len(part) < 25 or part[:20] in said or part[-10:] in said, line


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_help_page_says_what_to_do_then_shows_it_and_explains_last(page):
    text = page.read_text("utf-8")
    heads = re.findall("^## (.*)$", text, re.M)
    assert re.match(r"# \S", text) and heads[-1] == "How it works"
    assert text.index("![") < text.index("\n## ")
    for picture in re.findall(r"!\[[^]]*\]\(([^)]*)\)", text):
        assert (page.parent / picture).is_file(), picture


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_tables_of_a_help_page_are_narrow(page):
    rows = re.findall(r"^\|.*\|$", page.read_text("utf-8"), re.M)
    for row in rows:
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        assert len(cells) == 2 and len(cells[0]) <= 34 and len(cells[1]) <= 110, row


def table_of(text: str) -> list[str]:
    """The first cells of all rows, without what is not the same in every language."""
    cells = re.findall(r"^\| ([^|]+) \|", text, re.M)
    return [" ".join(sorted(set(re.findall(r"[a-z]+_[a-z_]+", cell)))) for cell in cells]


def test_every_help_page_is_there_in_every_language():
    pages = {page.stem for page in PAGES}
    for path in LANGUAGES:
        theirs = {page.parent.name for page in TRANSLATED if page.stem == path.stem}
        assert theirs == pages, path.stem


@pytest.mark.parametrize("page", TRANSLATED, ids=lambda page: page.parent.name)
def test_a_translated_help_page_has_the_parts_of_its_english(page):
    """Headings, pictures, rows and the settings they are about, files and papers."""
    text = page.read_text("utf-8")
    english = (page.parent.parent / f"{page.parent.name}.md").read_text("utf-8")
    for part in (r"^#+ ", r"\]\(([^)]*)\)", r"^\d\. ", r"^- ", r"arXiv\s+(\d+\.\d+)",
                 r"`benchmarks/[^`]*`"):
        assert re.findall(part, text, re.M) == re.findall(part, english, re.M), part
    assert table_of(text) == table_of(english)
    heads = re.findall("^#+ (.*)$", text, re.M)
    assert all(CHINESE.search(head) for head in heads)
