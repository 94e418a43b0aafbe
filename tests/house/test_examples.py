"""Do the examples in docstrings work, and can every module be imported?"""

import doctest
import importlib
import importlib.util
import pkgutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import streamdp
import streamdp_adapters


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
