"""Bars on a terminal's standard error while work goes on, and a Ctrl-C that ends it in one line."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from streamdp.lab.logs.stages import Watch


@contextmanager
def watching() -> Iterator[Watch]:
    """Show each stage of work inside the block; nothing where standard error is no terminal."""
    from rich.console import Console
    from rich.progress import Progress

    shown = sys.stderr.isatty()
    bars = Progress(console=Console(stderr=True), transient=True, disable=not shown)

    def stage(name: str, total: int) -> Callable[[int], None]:
        task = bars.add_task(name, total=total)
        return lambda done: bars.update(task, completed=done)

    try:
        with bars:
            yield stage
    except KeyboardInterrupt:
        typer.echo("interrupted", err=True)
        raise typer.Exit(130) from None
