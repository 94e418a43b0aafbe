"""Tables for people, in which no name of a learner is broken, however narrow the terminal is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table


def add_columns(table: Table, names: Sequence[str], *, whole: Sequence[str] = ("learner",)) -> None:
    """Names to the left, whole; numbers to the right, folded where there is no room."""
    for name in names:
        if name in whole:
            table.add_column(name, no_wrap=True)
        else:
            table.add_column(name, justify="right", overflow="fold")


def show(table: Table) -> None:
    """Print a table: wider than the terminal, if its names are."""
    from rich.console import Console
    from rich.measure import Measurement

    for column in table.columns:
        if column.no_wrap:  # rich would take the longest of a name's words for enough
            column.min_width = max((len(str(cell)) for cell in column.cells), default=0)
    console = Console()
    least = Measurement.get(console, console.options.update(max_width=1 << 12), table).minimum
    Console(width=max(console.width, least)).print(table)
