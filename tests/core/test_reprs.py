"""P8: does anything in the core show content, a draw or its bits when it is printed?"""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from importlib import import_module
from pkgutil import walk_packages

import pytest

from streamdp import core
from streamdp.core.evidence.policies import ReleasedSums
from streamdp.core.releases import Release

HIDDEN = {
    "losses", "gain", "gains", "sums", "counted", "totals", "nulls", "numbers", "recorded", "value",
    "numerator",
}  # fmt: skip
"""Names of fields that hold content, what was made of it, what was drawn, or random bits."""

COUNTS = {(ReleasedSums, "numbers")}
"""Fields of such a name that say how many there are, which is public."""


def dataclasses() -> list[type]:
    """Every dataclass that is defined in the core."""
    modules = [
        import_module(module.name) for module in walk_packages(core.__path__, "streamdp.core.")
    ]
    named = [(module.__name__, member) for module in modules for member in vars(module).values()]
    return [
        member
        for name, member in named
        if isinstance(member, type) and is_dataclass(member) and member.__module__ == name
    ]


def shown(kind: type) -> list[str]:
    """The fields that must be hidden and are not, since the class prints all that it has."""
    if not hasattr(kind.__repr__, "__wrapped__"):  # not made by `dataclass`
        return []
    hidden = HIDDEN - {name for of, name in COUNTS if of is kind}
    return [field.name for field in fields(kind) if field.repr and field.name in hidden]


@pytest.mark.parametrize("kind", dataclasses(), ids=lambda kind: kind.__name__)
def test_is_content_hidden_when_state_is_printed(kind: type) -> None:
    """A dataclass shows all its fields unless it says otherwise; these must say otherwise."""
    assert kind is Release or shown(kind) == []


def test_would_it_be_noticed() -> None:
    """A release is a value that its caller was given to show."""
    assert shown(Release) == ["numbers"]
