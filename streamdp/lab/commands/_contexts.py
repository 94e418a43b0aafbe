"""What ``plan --context`` and ``simulate --context`` print."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from math import hypot
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
        if any(of.apart is not None for of in worlds):
            typer.echo(compared(table, worlds))


def verdict(worlds: Iterable[Learned]) -> str:
    """Where contexts are not worth it, in a sentence."""
    idle = [of.world for of in worlds if not of.worth]
    if not idle:
        return "Contexts are worth it in each of these worlds."
    return (
        f"Contexts are not worth it where what is best depends on {' or on '.join(idle)}:"
        " so many events teach as much without."
    )


def compared(table: Table, worlds: Iterable[Learned]) -> str:
    """Whether the whole table or each field by itself does better, world by world."""
    says = []
    for of in worlds:
        if of.apart is not None:
            whole, apart = of.contexts, of.apart
            which = "the whole table" if whole.regret < apart.regret else 'interactions = "none"'
            clear = abs(whole.regret - apart.regret) > 2 * hypot(whole.error, apart.error)
            better = f"{which} loses less" if clear else "no difference is clear"
            says.append(f"on {of.world}, {better} ({whole} % whole, {apart} % with none)")
    return (
        f"Over {table.slots:,} events of a key{_days(table, table.slots)}, where what is best"
        f" depends {'; '.join(says)}."
    )


def _days(table: Table, events: int) -> str:
    """How long so many events take, after a space, where the traffic is given."""
    from streamdp.lab.common.words import days_text

    if table.traffic is None:
        return ""
    return f" ({days_text(events / table.traffic)})"


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
    worlds = list(worlds)
    both = any(of.apart is not None for of in worlds)
    none = ["learned with none", "with none, %"] if both else []
    for name in (
        "the best action depends on", "learned after", "regret, %", *none, "without contexts, %",
    ):  # fmt: skip
        drawn.add_column(name, justify="left" if name.startswith("the") else "right")
    for of in worlds:
        columns = []
        for course in (of.contexts, of.apart):
            if course is not None:
                at = course.learned
                columns += ["–" if at is None else f"{at:,}{_days(table, at)}", str(course)]
        drawn.add_row(of.world, *columns, str(of.without))
    Console().print(drawn)
