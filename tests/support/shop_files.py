"""Configuration files of a small shop."""

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
