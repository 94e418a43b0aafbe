"""Configuration files of a small shop, and of one that joins requests and outcomes."""

from __future__ import annotations

from pathlib import Path

from streamdp.service.config import Configuration

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


FEEDBACK_SHOP = """
app = "shop"
[transport]
kind = "sqlite"
path = "shop.db"
[topics.shown]
budget = "1"
[streams.clicks]
input = "shown"
start = "earliest"
observes = "feedback"
actions = ["a", "b", "c"]
[streams.clicks.learner]
epsilon = "1/2"
[streams.clicks.feedback]
content = "reward"
salt = "pepper"
"""


def read(
    folder: Path, text: str, *, instead: tuple[str, str] = ("", ""), more: str = ""
) -> Configuration:
    """A configuration, with some text in the place of another and with more lines."""
    path = folder / "shop.toml"
    path.write_text((text.replace(*instead) if instead[0] else text) + more)
    return Configuration.load(path, {})


def joined_shop(
    *,
    app: str = "",
    transport: str = 'kind = "sqlite"\npath = "shop.db"',
    of_topics: str = "",
    actions: str = '["grid", "list"]',
    feedback: str = 'content = "reward"',
    of_stream: str = "",
    tables: str = "",
    combine: str = "max",
    of_assembly: str = "",
) -> str:
    """A shop whose stream `clicks` learns from the events of the assembly `join`.

    With more lines of its topics, its stream and its assembly, and more tables before the assembly:
    their first lines are the learner's. The topics of an app that is named begin with its name, for
    a log that several apps share.
    """
    start = f"{app}." if app else ""
    return f"""
app = "{app or "shop"}"
[transport]
{transport}
[topics."{start}requests"]
budget = "1"
{of_topics}
[topics."{start}events"]
budget = "1"
{of_topics}
[streams.clicks]
input = "{start}events"
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
requests = "{start}requests"
outcomes = "{start}outcomes"
stream = "clicks"
start = "earliest"
mode = "feedback"
window = "1s"
combine = "{combine}"
{of_assembly}
"""
