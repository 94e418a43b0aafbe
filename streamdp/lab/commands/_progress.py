"""Progress on standard error, and a Ctrl-C that waits for a safe place to stop.

A terminal shows bars. If standard error is a pipe or a file, a line is written every few seconds: a
script's log then shows that work goes on, and how fast.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Protocol, TextIO

import typer

if TYPE_CHECKING:
    from types import FrameType

    from rich.progress import Progress


_SECONDS_BETWEEN_LINES = 5.0
"""Seconds between lines: often enough to see progress, and an hour's work is 720 lines."""


class Screen(Protocol):
    """Shows the stages of work."""

    def stage(self, name: str, total: int) -> Callable[[int], None]:
        """Show a new stage; call the returned function with the amount done."""
        ...

    def close(self) -> None:
        """Stop showing."""
        ...


class BarProgress:
    """Bars on a terminal."""

    def __init__(self, bars: Progress) -> None:
        self._bars = bars
        bars.start()

    def stage(self, name: str, total: int) -> Callable[[int], None]:
        """A new bar."""
        task = self._bars.add_task(name, total=total)
        return lambda done: self._bars.update(task, completed=done)

    def close(self) -> None:
        """Remove the bars."""
        self._bars.stop()


@dataclass(slots=True)
class LineProgress:
    """Lines in a pipe or a file, one every few seconds.

    >>> now = iter([0, 1, 6, 7])
    >>> tell = LineProgress(sys.stdout, clock=lambda: next(now)).stage("writing log.ndjson", 2000)
    >>> tell(500), tell(1500), tell(2000)
    writing log.ndjson: 1,500 of 2,000 (75 %), 200/s, 2 s left
    (None, None, None)
    """

    file: TextIO
    clock: Callable[[], float] = monotonic

    def stage(self, name: str, total: int) -> Callable[[int], None]:
        """A new stage; its first line comes when it has taken a while."""
        told_at, shown = self.clock(), -1

        def tell(done: int) -> None:
            nonlocal told_at, shown
            now, since = self.clock(), told_at
            if shown < 0:  # resumed work does not begin at 0
                told_at, shown = now, done
            elif now >= since + _SECONDS_BETWEEN_LINES:
                rate = (done - shown) / (now - since)
                told_at, shown = now, done
                self._write(name, done, total, rate=rate)

        return tell

    def _write(self, name: str, done: int, total: int, *, rate: float) -> None:
        share = f" of {total:,} ({100 * done // total} %)" if total else ""
        left = f", {(total - done) / rate:,.0f} s left" if rate else ""
        self.file.write(f"{name}: {done:,}{share}, {rate:,.0f}/s{left}\n")
        self.file.flush()

    def close(self) -> None:
        """Clear the screen's line."""


class Bars:
    """Shows stages, and remembers an interruption until it is asked for."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._stop = False

    def stage(self, name: str, total: int) -> Callable[[int], None]:
        """A new stage."""
        return self._screen.stage(name, total)

    def stoppable(self, name: str, total: int) -> Callable[[int], None]:
        """A new stage of work that can stop whenever it reports progress."""
        bar = self.stage(name, total)

        def tell(done: int) -> None:
            bar(done)
            self.rest()

        return tell

    def rest(self) -> None:
        """Stop here if Ctrl-C was pressed: between two stages."""
        if self._stop:
            raise KeyboardInterrupt

    def interrupt(self, number: int, frame: FrameType | None) -> None:
        """Stop at the next safe place; a second Ctrl-C stops at once."""
        signal.signal(signal.SIGINT, signal.default_int_handler)
        self._stop = True


def screen() -> Screen:
    """Bars on a terminal, lines anywhere else."""
    if not sys.stderr.isatty():
        return LineProgress(sys.stderr)
    from rich.console import Console
    from rich.progress import Progress

    return BarProgress(Progress(console=Console(stderr=True), transient=True))


@contextmanager
def watching() -> Iterator[Bars]:
    """Show progress inside the block."""
    shown = screen()
    bars = Bars(shown)
    before = signal.signal(signal.SIGINT, bars.interrupt)
    try:
        yield bars
    except KeyboardInterrupt:
        shown.close()
        typer.echo("interrupted", err=True)
        raise typer.Exit(130) from None
    finally:
        shown.close()
        signal.signal(signal.SIGINT, before)
