"""What ``plan --context`` and ``simulate --context`` print."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from streamdp.lab.context_worlds import Learned, Table

ContextOption = Annotated[
    str | None,
    typer.Option(
        "--context",
        help="Feedback with contexts: how many levels each field has, such as 8,3,4,6: after how"
        " many events each of some worlds is learned.",
    ),
]

InteractionsOption = Annotated[
    str | None,
    typer.Option(
        help="With --context: a table in parts, of fields that are called f1, f2 and so on, such as"
        " 'f1 x f2', or none: each field by itself."
    ),
]


def show(tables: Sequence[Table], *, as_json: bool) -> None:
    """Simulate each table's worlds and print them."""
    from streamdp.lab import context_worlds

    def note(world: str) -> None:
        typer.echo(f"simulating: what is best depends on {world}", err=True)

    found = [(table, list(context_worlds.learned(table, progress=note))) for table in tables]
    if as_json:
        reports = [context_worlds.as_json(*of) for of in found]
        typer.echo(json.dumps(reports, indent=1, ensure_ascii=False))
        return
    for table, worlds in found:
        _print(table, worlds)
        typer.echo(verdict(worlds))


def verdict(worlds: Iterable[Learned]) -> str:
    """Where contexts are not worth it, in a sentence."""
    idle = [of.world for of in worlds if not of.worth]
    if not idle:
        return "Contexts are worth it in each of these worlds."
    return (
        f"Contexts are not worth it where what is best depends on {' or on '.join(idle)}:"
        " so many events teach as much without."
    )


def _print(table: Table, worlds: Iterable[Learned]) -> None:
    from rich.console import Console
    from rich.table import Table as Drawn

    cells = "x".join(map(str, table.shape))
    parts = "" if table.interactions == "all" else f" in parts ({table.interactions})"
    drawn = Drawn(
        title=f"{cells} cells{parts}, K = {table.actions}, ε = {table.epsilon}",
        caption=f"Clicks: the best action's rate is {table.rate + table.gap:g}, all others'"
        f" {table.rate:g}. Mean of {table.runs} runs of {table.slots:,} events. Learned: nine runs"
        " of ten lose at most a quarter of what uniform play loses.",
    )
    for name in ("the best action depends on", "learned after", "regret, %", "without contexts, %"):
        drawn.add_column(name, justify="left" if name.startswith("the") else "right")
    for of in worlds:
        after = "–" if of.contexts.learned is None else f"{of.contexts.learned:,}"
        drawn.add_row(of.world, after, str(of.contexts), str(of.without))
    Console().print(drawn)
