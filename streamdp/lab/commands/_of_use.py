"""Options that were given and would change nothing: refused, so that nobody believes they did."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import typer

Rule = tuple[Sequence[str], bool, str]
"""Options, whether they are of use here, and where they are."""


def refuse_useless(context: typer.Context, rules: Iterable[Rule], *, got: str) -> None:
    """Refuse the first option that stands on the command line and is of no use there."""
    from streamdp.core.errors import InvalidConfig

    given = _given(context)
    for options, of_use, expected in rules:
        for option in options:
            if option in given and not of_use:
                raise InvalidConfig(option, "of no use", expected=expected, got=got)


def _given(context: typer.Context) -> set[str]:
    """The options on the command line, also where they say what is usual."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return {
        option
        for parameter in context.command.params
        if (source := sources.get(parameter.name or "")) and source.name == "COMMANDLINE"
        for option in parameter.opts
    }
