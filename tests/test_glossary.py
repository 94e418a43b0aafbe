"""Does the glossary hold: is every word used as it says, and no other word in its place?"""

import re
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
GLOSSARY = (ROOT / "docs" / "glossary.md").read_text()
MEANINGS, _, REFUSED = GLOSSARY.partition("\n## Words not to use\n")
ROWS = re.findall(r"^\| ([^|]+) \| ([^|]+) \| `([^`]+)` \|$", MEANINGS, re.MULTILINE)
NOT_TO_USE = [
    word.strip()
    for words in re.findall(r"^\| ([^|]+) \| [^|]+ \|$", REFUSED, re.MULTILINE)[1:]
    for word in words.split(",")
]


def texts() -> dict[str, str]:
    """What speaks the project's language: its code and its pages."""
    paths = [ROOT / "README.md", *ROOT.glob("docs/*.md"), *ROOT.glob(".github/**/*.md")]
    paths += [*ROOT.glob("deploy/*.md"), *ROOT.glob("streamdp/**/*.py")]
    paths += [*ROOT.glob("adapters/**/*.py"), *ROOT.glob("streamdp/**/*.toml")]
    paths.remove(ROOT / "docs" / "glossary.md")
    return {
        str(path.relative_to(ROOT)): re.sub(r"\s*\n[ \t]*(?:# )?", " ", path.read_text()).lower()
        for path in paths
    }


TEXTS = texts()


@pytest.mark.parametrize(("words", "place"), [(row[0], row[2]) for row in ROWS])
def test_a_word_of_the_glossary_is_used_and_its_place_exists(words: str, place: str) -> None:
    for word in words.split(", "):
        used = re.compile(rf"\b{re.escape(word)}s?\b")
        assert sum(1 for text in TEXTS.values() if used.search(text)) > 1, word
    names = place.split(".")
    found: object = None
    for depth in range(1, len(names) + 1):
        try:
            found = import_module(".".join(names[:depth]))
        except ModuleNotFoundError:
            for name in names[depth - 1 :]:
                found = getattr(found, name)
            break
    assert found is not None


def test_the_glossary_has_words_of_both_kinds() -> None:
    """So that a table whose form has changed is not an empty list of tests."""
    assert len(ROWS) == MEANINGS.count("\n| ") - 1 > 30
    assert len(NOT_TO_USE) > 8


@pytest.mark.parametrize("word", NOT_TO_USE)
def test_no_other_word_stands_in_its_place(word: str) -> None:
    used = re.compile(rf"\b{re.escape(word.lower())}s?\b")
    assert [where for where, text in TEXTS.items() if used.search(text)] == []
