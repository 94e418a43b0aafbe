"""Configuration files of a small shop, and of one that joins requests and outcomes."""

from __future__ import annotations

from pathlib import Path

SHOP = """
app = "shop"
[transport]
kind = "sqlite"
path = "shop.db"
[topics.feedback]
budget = "1"
[streams.home]
input = "feedback"
start = "earliest"
actions = ["a", "b", "c"]
[streams.home.learner]
epsilon = "1/2"
"""


def shop(folder: Path, *more: str, instead: tuple[str, str] = ("", "")) -> Path:
    """The configuration above with more lines, or with some text in the place of another."""
    old, new = instead
    assert old in SHOP
    path = folder / "shop.toml"
    path.write_text("\n".join([SHOP.replace(old, new) if old else SHOP, *more]))
    return path


def second(name: str, *, epsilon: str = '"1/4"', topic: str = "feedback", more: str = "") -> str:
    """Another stream."""
    return f"""
[streams.{name}]
input = "{topic}"
start = "latest"
actions = ["x", "y"]
{more}
[streams.{name}.learner]
epsilon = {epsilon}
"""


def joined_shop(
    *,
    actions: str = '["grid", "list"]',
    feedback: str = 'content = "reward"',
    of_stream: str = "",
    tables: str = "",
    of_assembly: str = "",
) -> str:
    """A shop whose stream `clicks` learns from the events of an assembly.

    With more lines of its stream and of its assembly, and more tables before the assembly.
    """
    return f"""
app = "shop"
[transport]
kind = "sqlite"
path = "shop.db"
[topics.requests]
budget = "1"
[topics.shown]
budget = "1"
[streams.clicks]
input = "shown"
start = "earliest"
observes = "feedback"
actions = {actions}
{of_stream}
[streams.clicks.feedback]
{feedback}
[streams.clicks.learner]
epsilon = "1"
{tables}
[assemblies.join]
requests = "requests"
outcomes = "outcomes"
stream = "clicks"
start = "earliest"
mode = "feedback"
window = "1s"
combine = "max"
{of_assembly}
"""
