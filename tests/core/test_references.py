"""Does every citation lead to its paper, and does every recipe say what it promises and whence?"""

import doctest
import inspect
import re
import sys
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

import pytest

from streamdp.core.learners import RECIPES
from streamdp.core.learners.feedback import FEEDBACK_RECIPES
from streamdp.lab.papers.learners import BANDIT_RECIPES, EXPERT_RECIPES

ROOT = Path(__file__).resolve().parents[2]
REFERENCES = (ROOT / "docs" / "references.md").read_text()
ENTRIES = re.findall(r"^- \*\*(.+?)\.\*\* ", REFERENCES, re.MULTILINE)

_NAME = r"[A-Z][\w’-]{1,30}"
AUTHORS = re.compile(
    rf"((?:{_NAME} et al\.)|(?:(?:{_NAME}, ){{0,4}}{_NAME} & {_NAME})|[A-Z]\w{{3,30}})$"
)
YEAR = re.compile(r" \(?((?:19|20)\d\d)(?![-–.,]?\d)\b")
NO_AUTHORS = {
    *("January", "February", "March", "April", "May", "June", "July", "August", "September"),
    *("October", "November", "December"),
}
NUMBERED = re.compile(r"(?<![\w.,])00[0-4](?:,? (?:Thm|Theorem|Alg|App|Lemma|§)|\)| = )")


@cache
def texts() -> dict[str, str]:
    """What may cite: modules and pages, each as one line."""
    folders = ("streamdp", "adapters", "tests", "deploy", "requirements")
    paths = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    paths += [ROOT / "README.md", ROOT / "deploy" / "RUNBOOK.md"]
    paths += [path for path in (ROOT / "docs").glob("*.md") if path.name != "references.md"]
    return {
        str(path.relative_to(ROOT)): re.sub(r"\s*\n[ \t]*(?:# )?", " ", path.read_text())
        for path in paths
        if path != Path(__file__)
    }


def citations(text: str) -> set[str]:
    """The papers that a text cites, as `Author & Author 2020`."""
    cited = set()
    for year in YEAR.finditer(text):
        authors = AUTHORS.search(text[max(0, year.start() - 80) : year.start()])
        if authors and authors[1] not in NO_AUTHORS:
            cited.add(f"{authors[1]} {year[1]}")
    return cited


def test_every_citation_has_an_entry_and_every_entry_is_cited() -> None:
    cited = {paper: where for where, text in texts().items() for paper in citations(text)}
    assert {paper: cited[paper] for paper in cited.keys() - set(ENTRIES)} == {}
    assert set(ENTRIES) - cited.keys() == set()


def test_the_entries_are_in_order_and_each_is_there_once() -> None:
    assert len(ENTRIES) == len(set(ENTRIES))
    for part in REFERENCES.split("\n## ")[1:]:
        entries = re.findall(r"^- \*\*(.+?)\.\*\* ", part, re.MULTILINE)
        assert entries == sorted(entries, key=lambda entry: entry.replace(",", "").lower())


def test_the_authors_of_a_paper_are_named_with_its_year() -> None:
    """`Hu et al., Algorithm 1` leads nowhere, and neither does the number of a file."""
    authors = {entry.rpartition(" ")[0] for entry in ENTRIES} - {"Thompson", "Wilson"}
    bare = re.compile(rf"\b({'|'.join(map(re.escape, authors))})(?![\w.]| \(?(?:19|20)\d\d)")
    by_place = {
        where: [match[0] for match in [*bare.finditer(text), *NUMBERED.finditer(text)]]
        for where, text in texts().items()
    }
    assert {where: lines for where, lines in by_place.items() if lines} == {}


@pytest.mark.parametrize(
    ("text", "cited"),
    [
        ("the bound (Wu & Wang 2026, Lemma 6)", {"Wu & Wang 2026"}),
        ("as Even-Dar, Mannor & Mansour (2006) say", {"Even-Dar, Mannor & Mansour 2006"}),
        ("Hu et al. 2025, Algorithm 1; Thompson 1933", {"Hu et al. 2025", "Thompson 1933"}),
        ("on May 2026 and 2026-05-01, 2000 runs", set()),
    ],
)
def test_a_citation_is_recognised(text: str, cited: set[str]) -> None:
    assert citations(text) == cited


EVERY: Mapping[str, Callable[..., object]] = {
    **RECIPES,
    **FEEDBACK_RECIPES,
    **BANDIT_RECIPES,
    **EXPERT_RECIPES,
}


@pytest.mark.parametrize("name", EVERY)
def test_a_recipe_says_its_claim_its_arguments_and_its_paper(name: str) -> None:
    text = inspect.getdoc(EVERY[name]) or ""
    parts = dict(
        re.findall(r"^(Privacy|Arguments|Reference): (.*?)(?=^[A-Z>]|\Z)", text, re.M | re.S)
    )
    assert parts.keys() == {"Privacy", "Arguments", "Reference"}
    assert re.search(r"ε-DP|2η-DP|none \(ε = ∞\)", parts["Privacy"])
    named = set(re.findall(r"`(\w+)`", parts["Arguments"]))
    wanted = set(inspect.signature(EVERY[name]).parameters) - {"actions", "epsilon", "experts"}
    assert wanted <= named
    assert citations(parts["Reference"]) <= set(ENTRIES)
    assert citations(parts["Reference"]) or parts["Reference"].startswith("none")


@pytest.mark.parametrize("name", EVERY)
def test_the_example_of_a_recipe_runs(name: str) -> None:
    """The decorator hides it from the run over all modules."""
    recipe = EVERY[name]
    names = vars(sys.modules[recipe.__module__])
    example = doctest.DocTestParser().get_doctest(recipe.__doc__ or "", dict(names), name, None, 0)
    ran = doctest.DocTestRunner().run(example)
    assert ran.attempted > 0
    assert ran.failed == 0
