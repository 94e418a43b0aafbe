"""Does the documentation tell the truth: do its commands run, its links lead somewhere?"""

import inspect
import re
import tomllib
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path

import pytest

from docs.api import modules
from streamdp.core.learners import RECIPES
from streamdp.core.learners.feedback.learner import FEEDBACK_RECIPES
from streamdp.service.view import Reason
from tests.support.asking import free_port
from tests.support.documents import PAGES, ROOT, Story, needs_broker, needs_programs

LINKED = [
    *PAGES,
    *sorted((ROOT / ".github").rglob("*.md")),
    ROOT / "deploy" / "RUNBOOK.md",
    ROOT / "CHANGELOG.md",
]
HERE = [
    pytest.param(
        page,
        id=page.stem,
        marks=[pytest.mark.system(*programs)] if (programs := needs_programs(page)) else [],
    )
    for page in PAGES
    if not needs_broker(page.read_text())
]


QUICKER = {
    "--target-regret 300 --horizon 100000": "--target-regret 100 --horizon 5000",
    "--horizon 100000": "--horizon 10000",
    "--traffic 2000": "--traffic 2000 --horizon 50000",
    "--gap 0.01": "--gap 0.01 --horizon 20000",
}
"""Options of a page's commands, and with what they compute for seconds less."""


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("page", HERE)
def test_a_page_that_needs_no_broker_can_be_followed(page: Path, tmp_path: Path) -> None:
    wording = {"127.0.0.1:8080": f"127.0.0.1:{free_port()}", **QUICKER}
    # the first page as whoever has installed it
    Story(tmp_path, wording, installed=page.stem == "README").follow(page.read_text())


def anchors(page: Path) -> set[str]:
    """What can be linked to in a page, named as forges name it."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    kept = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {heading.replace(" ", "-") for heading in kept}


@pytest.mark.parametrize("page", LINKED, ids=lambda page: str(page.stem))
def test_every_link_leads_somewhere(page: Path) -> None:
    broken = []
    for link in re.findall(r"\]\((?!https?:)([^)\s]+)\)", page.read_text()):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        missing_anchor = anchor and (target.suffix != ".md" or anchor not in anchors(target))
        if not target.exists() or missing_anchor:
            broken.append(link)
    assert broken == []


@pytest.mark.parametrize("page", LINKED, ids=lambda page: str(page.stem))
def test_what_a_page_names_of_the_repository_exists(page: Path) -> None:
    """Paths, modules and their names, and targets of make, in backticks."""
    text = page.read_text()
    paths = re.findall(
        r"`((?:streamdp|adapters|tests|deploy|docs|requirements)/[\w./-]*\w)/?`", text
    )
    assert [path for path in paths if not (ROOT / path).exists()] == []
    dotted = re.findall(r"`((?:streamdp|streamdp_adapters)(?:\.[A-Za-z_]\w*)+)[`(]", text)
    assert [name for name in dotted if not exists(name)] == []
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert set(re.findall(r"`make (?:[A-Z]+=\S+ )?([a-z]+)", text)) <= set(targets)


def exists(name: str) -> bool:
    """Whether this is a module, or a name in one."""
    head, _, tail = name.rpartition(".")
    try:
        import_module(name)
    except ModuleNotFoundError:
        return bool(head) and hasattr(import_module(head), tail)
    return True


def test_every_page_can_be_reached_from_the_readme() -> None:
    linked = set(re.findall(r"\]\((docs/[^)#]+)", (ROOT / "README.md").read_text()))
    assert {f"docs/{page.name}" for page in PAGES[1:]} <= linked


def reference(page: str) -> dict[str, dict[str, str]]:
    """The arguments of each recipe, with their defaults, as a page's table has them."""
    text = (ROOT / "docs" / page).read_text()
    table = text.partition("| recipe | argument | default | means |\n")[2].partition("\n\n")[0]
    by_recipe: dict[str, dict[str, str]] = {}
    recipe = ""
    for row in table.splitlines()[1:]:
        named, arguments, defaults, *_ = (cell.strip() for cell in row.split("|")[1:])
        recipe = named.strip("`") or recipe
        names = re.findall(r"`([^`]+)`", arguments)
        values = re.findall(r"`([^`]+)`", defaults) or [""] * len(names)
        by_recipe.setdefault(recipe, {}).update(zip(names, values, strict=True))
    return by_recipe


PRIVATE_POLICIES = {
    name: made
    for name, made in FEEDBACK_RECIPES.items()
    if "epsilon" in inspect.signature(made).parameters
}


@pytest.mark.parametrize(
    ("page", "recipes"), [("learning.md", RECIPES), ("feedback.md", PRIVATE_POLICIES)]
)
def test_has_the_reference_every_argument_of_every_recipe(
    page: str, recipes: Mapping[str, Callable[..., object]]
) -> None:
    """With its default, and an example of each recipe."""
    documented = reference(page)
    of_all = documented.pop("all", {}) | documented.pop("all but the default", {})
    example = (ROOT / "docs" / page).read_text()
    for name, recipe in recipes.items():
        arguments = inspect.signature(recipe).parameters.values()
        wanted = {
            parameter.name: "" if parameter.default is parameter.empty else str(parameter.default)
            for parameter in arguments
            if parameter.name not in ("actions", "epsilon") and parameter.default is not None
        }
        assert wanted.items() <= (of_all | documented[name]).items(), name
        assert f"sd.{name}(" in example
    assert documented.keys() == recipes.keys()


def test_the_runbook_quotes_what_a_halted_partition_says() -> None:
    entry = (ROOT / "deploy" / "RUNBOOK.md").read_text().partition("### StreamdpPartitionHalted")[2]
    table = entry.partition("\n### ")[0]
    said = "".join(
        path.read_text()
        for folder in ("streamdp", "adapters/streamdp_adapters")
        for path in (ROOT / folder).rglob("*.py")
    )
    quoted = [quote.partition(";")[0] for quote in re.findall(r'"([^"]+)"', table)]
    assert len(quoted) > 5
    assert [quote for quote in quoted if f'"{quote}' not in said] == []
    assert set(re.findall(r"^\| `(\w+)`", table, re.MULTILINE)) == {
        reason.value for reason in Reason
    }


def test_the_package_of_a_newcomers_format_is_one() -> None:
    """The whole `pyproject.toml` that CONTRIBUTING shows is read as one."""
    text = (ROOT / ".github" / "CONTRIBUTING.md").read_text()
    shown = re.search(r"^   ```toml\n(.*?)^   ```$", text, re.MULTILINE | re.DOTALL)
    assert shown is not None
    table = tomllib.loads(shown[1])
    assert table["build-system"]["build-backend"] == "hatchling.build"
    ((name, place),) = table["project"]["entry-points"]["streamdp.formats"].items()
    assert place.partition(":")[0] == name
    assert table["tool"]["hatch"]["build"]["targets"]["wheel"]["only-include"] == [f"{name}.py"]


# -- the API documentation -------------------------------------------------------------------------


def test_the_documentation_has_a_page_for_every_public_module() -> None:
    """`make docs` makes them; a name that begins with an underscore has none."""
    documented = set(modules())
    assert {
        "streamdp",
        "streamdp.core.learners.noisy_leader",
        "streamdp_adapters.kafka",
    } <= documented
    assert not any("._" in name for name in documented)
