"""Progress bars on standard error, and a Ctrl-C that waits for a place to go on from."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from types import FrameType

    from rich.progress import Progress


WITH_CHECKPOINT = "with --checkpoint the same command goes on"


class Bars:
    """Shows stages as bars; remembers an interruption until someone asks."""

    def __init__(self, bars: Progress) -> None:
        self._bars = bars
        self._stop = False

    def stage(self, name: str, total: int) -> Callable[[int], None]:
        """A new bar."""
        task = self._bars.add_task(name, total=total)
        return lambda done: self._bars.update(task, completed=done)

    def stoppable(self, name: str, total: int) -> Callable[[int], None]:
        """A new bar of work that can stop wherever it tells how far it is."""
        bar = self.stage(name, total)

        def tell(done: int) -> None:
            bar(done)
            if self._stop:
                raise KeyboardInterrupt

        return tell

    def interrupted(self) -> bool:
        """Whether Ctrl-C was pressed."""
        return self._stop

    def interrupt(self, number: int, frame: FrameType | None) -> None:
        """Stop at the next place; a second Ctrl-C stops at once."""
        signal.signal(signal.SIGINT, signal.default_int_handler)
        self._stop = True


@contextmanager
def watching(hint: str = WITH_CHECKPOINT) -> Iterator[Bars]:
    """Bars for as long as the block lasts; `hint` tells who interrupts it how to go on."""
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        bars = Bars(progress)
        before = signal.signal(signal.SIGINT, bars.interrupt)
        try:
            yield bars
        except KeyboardInterrupt:
            progress.stop()
            typer.echo(f"interrupted; {hint}", err=True)
            raise typer.Exit(130) from None
        finally:
            signal.signal(signal.SIGINT, before)
