"""What the browser says: every word in every language, with the same values in it."""

import json
import re

import pytest

from tools.places import REPOSITORY

WEB = REPOSITORY / "web"
LANGUAGES = sorted(WEB.glob("locales/*.json"))
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
