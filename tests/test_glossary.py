"""Does the glossary hold: is every word used as it says, and no other word in its place?"""

import re
from functools import cache
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


@cache
def texts() -> dict[str, str]:
    """What speaks the project's language, its code and its pages, each as one line."""
    paths = [ROOT / "README.md", *ROOT.glob("docs/*.md"), *ROOT.glob(".github/**/*.md")]
    paths += [*ROOT.glob("deploy/*.md"), *ROOT.glob("streamdp/**/*.py")]
    paths += [*ROOT.glob("adapters/**/*.py"), *ROOT.glob("streamdp/**/*.toml")]
    paths.remove(ROOT / "docs" / "glossary.md")
    return {
        str(path.relative_to(ROOT)): re.sub(r"\s*\n[ \t]*(?:# )?", " ", path.read_text()).lower()
        for path in paths
    }


def using(phrase: str) -> list[str]:
    """Where a word or a phrase stands, in the singular or the plural."""
    used = re.compile(rf"\b{re.escape(phrase.lower())}s?\b")
    return [
        where for where, text in texts().items() if phrase.lower() in text and used.search(text)
    ]


def test_every_word_of_the_glossary_is_used() -> None:
    words = [word for words, _, _ in ROWS for word in words.split(", ")]
    assert [word for word in words if len(using(word)) < 2] == []


@pytest.mark.parametrize("place", sorted({place for _, _, place in ROWS}))
def test_what_the_glossary_names_in_code_exists(place: str) -> None:
    names = place.split(".")
    named: object = None
    for depth in range(1, len(names) + 1):
        try:
            named = import_module(".".join(names[:depth]))
        except ModuleNotFoundError:
            for name in names[depth - 1 :]:
                named = getattr(named, name)
            break
    assert named is not None


def test_the_glossary_has_words_of_both_kinds() -> None:
    """So that a table whose form has changed is not an empty list of tests."""
    assert len(ROWS) == MEANINGS.count("\n| ") - 1 > 30
    assert len(NOT_TO_USE) > 8


def test_no_other_word_stands_in_the_place_of_one() -> None:
    assert {word: using(word) for word in NOT_TO_USE if using(word)} == {}
