"""Does what is written to be copied work: the examples in docstrings and in the README?"""

import doctest
import importlib
import importlib.util
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import streamdp
import streamdp_adapters

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()


def modules() -> Iterator[str]:
    """Every module of the product, except the one that runs when it is imported."""
    for package in (streamdp, streamdp_adapters):
        yield package.__name__
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.endswith(".__main__"):
                yield module.name


def has_examples(name: str) -> bool:
    """Whether a module shows a prompt; most do not, and to look through docstrings takes long."""
    spec = importlib.util.find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    return ">>> " in Path(spec.origin).read_text()


def test_every_module_can_be_imported() -> None:
    for name in modules():
        assert importlib.import_module(name).__name__ == name


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in modules() if has_examples(name)])
def test_the_examples_of_a_docstring_run(name: str) -> None:
    result = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
    assert result.failed == 0


def test_the_python_of_the_readme_runs_as_it_stands() -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, "README.md", "exec"), {"__name__": "readme"})


def test_every_make_target_of_the_readme_exists() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = re.findall(
        r"^make (?:[A-Z]+=\S+ )?([a-z]+)|`make (?:[A-Z]+=\S+ )?([a-z]+)`", README, re.M
    )
    assert {first or second for first, second in named} <= targets


def test_every_file_that_the_readme_links_to_exists() -> None:
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", README)
    assert [link for link in links if not (ROOT / link).exists()] == []
