"""Does all that is told outside the guarantee say so itself, in JSON too?

That each of these outputs has its label is tested beside the commands (`test_cli_service`,
`test_replay_report`, `test_http_process`); here it is asked whether any command was forgotten, and
whether there is one place for the words.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

import typer

from streamdp.cli import application
from streamdp.wire.unprotected import LABEL, MEMBER, NOT_PRIVATE, labelled
from tests.conftest import ROOT

EXACT = {"state inspect", "doctor", "replay losses", "replay shown"}
"""What they print may be content: each object with some of it has the label."""

PUBLIC = {
    "actions",
    "check",
    "ledger show",
    "ledger verify",
    "mode",
    "send",
    "topics check",
    "topics create",
    "topics expand",
    "watch",
    "worth",
}
"""What was published or configured, and how many records the caller has sent itself."""

INVENTED = {"simulate", "plan", "reproduce", "audit"}
"""They read no events but those that they make up, or that are public data sets."""


def commands(app: typer.Typer) -> dict[str, set[str]]:
    """Every command with the options that it takes."""
    options_of: dict[str, set[str]] = {}

    def walk(command: object, words: tuple[str, ...]) -> None:
        inner = getattr(command, "commands", {})
        options = {opt for parameter in getattr(command, "params", []) for opt in parameter.opts}
        options_of[" ".join(words)] = options
        for name, inner_command in inner.items():
            walk(inner_command, (*words, name))

    walk(typer.main.get_command(app), ())
    return options_of


def test_is_every_command_with_json_known_to_be_exact_or_not() -> None:
    """A new one has to be put into one of the three, with a test if it is the first."""
    with_json = {name for name, options in commands(application()).items() if "--json" in options}
    assert with_json == EXACT | PUBLIC | INVENTED


def test_are_the_words_in_one_place() -> None:
    """A label in code is made from the constant; help and docstrings may write it out."""
    written = [
        str(path.relative_to(ROOT))
        for path in (ROOT / "streamdp").rglob("*.py")
        if NOT_PRIVATE.split()[-1] in (source := path.read_text())
        for text in _texts(ast.parse(source))
        if NOT_PRIVATE in text
    ]
    assert written == ["streamdp/wire/unprotected.py"]


def _texts(node: ast.AST) -> Iterator[str]:
    """The literal texts of some code, without docstrings and help."""
    for child in ast.iter_child_nodes(node):
        is_help = isinstance(child, ast.keyword) and child.arg in ("help", "description")
        if is_help or (isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)):
            continue
        if isinstance(child, ast.Constant) and isinstance(child.value, str):
            yield child.value
        yield from _texts(child)


def test_comes_the_label_first() -> None:
    """Whoever reads the beginning of an object has read it."""
    labelled_sums = labelled({"sums": [1.0]})
    assert list(labelled_sums) == [MEMBER, "sums"]
    assert str(labelled_sums[MEMBER]).startswith(NOT_PRIVATE)
    assert "leave the guarantee" in LABEL
