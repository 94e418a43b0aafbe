"""`streamdp run` as a process of its own: started, listened to, signalled, ended."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from queue import Empty, Queue
from signal import SIGTERM, Signals
from threading import Thread

from tests.support.forking import Forked, parent

MAIN = "from streamdp.cli import main; main()"
INTERPRETER = (sys.executable, "-c")

LONG = 240.0
"""Seconds after which something that should have happened counts as never happening."""


@dataclass
class Process:
    """One process, and every line of its log."""

    popen: subprocess.Popen[bytes] | Forked
    lines: list[dict[str, object]] = field(default_factory=list)
    other: list[str] = field(default_factory=list)
    _queue: Queue[bytes | None] = field(default_factory=Queue)
    _ear: Thread = field(default_factory=Thread)

    @classmethod
    def start(
        cls,
        *arguments: str,
        environment: Mapping[str, str] | None = None,
        file_limit: int | None = None,
        program: str = MAIN,
        interpreter: Sequence[str] = (),
    ) -> Process:
        """`streamdp` with these arguments; with a limit no file may grow beyond it.

        In a fork of what has imported it (`tests.support.forking`), or in an interpreter of its own
        where the program must come before any import.
        """
        popen: subprocess.Popen[bytes] | Forked
        if interpreter:
            popen = subprocess.Popen(
                [*interpreter, program, *arguments],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env={**os.environ, **(environment or {})},
            )
        else:
            popen = parent().start(
                program,
                arguments,
                stderr=subprocess.PIPE,
                environment=environment,
                file_limit=file_limit,
            )
        process = cls(popen)
        process._ear = Thread(target=process._listen, daemon=True)
        process._ear.start()
        return process

    def _listen(self) -> None:
        assert self.popen.stderr is not None
        with self.popen.stderr as lines:
            for line in lines:
                self._queue.put(line)
        self._queue.put(None)

    def hear(self, event: str) -> dict[str, object]:
        """Wait for the next line of an event."""
        deadline = time.monotonic() + LONG
        while (line := self._next(deadline)) is not None:
            if line.get("event") == event:
                return line
        raise AssertionError(f"it ended without {event}: {self.lines} {self.other}")

    def _next(self, deadline: float) -> dict[str, object] | None:
        try:
            text = self._queue.get(timeout=max(0.0, deadline - time.monotonic()))
        except Empty:
            raise AssertionError(f"nothing more was said: {self.lines} {self.other}") from None
        if text is None:
            return None
        try:
            line: dict[str, object] = json.loads(text)
        except ValueError:
            self.other.append(text.decode())
            return {}
        self.lines.append(line)
        return line

    def signal(self, number: Signals) -> None:
        """Send it."""
        self.popen.send_signal(number)

    def ended(self) -> int:
        """Its exit code, when it has ended by itself and everything it said was read."""
        deadline = time.monotonic() + LONG
        while self._next(deadline) is not None:
            pass
        return self.popen.wait(LONG)

    def end(self, number: Signals = SIGTERM) -> int:
        """Signal it, and wait."""
        self.signal(number)
        return self.ended()

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        if self.popen.poll() is None:
            self.popen.kill()
        self.popen.wait(LONG)
        self._ear.join(LONG)

    def said(self, event: str) -> list[dict[str, object]]:
        """Every line of an event so far."""
        return [line for line in self.lines if line.get("event") == event]


def until(what: Callable[[], bool]) -> None:
    """Wait until something is so, which only another process can make so."""
    deadline, pause = time.monotonic() + LONG, 0.01
    while not what():
        assert time.monotonic() < deadline, "it never came to be"
        time.sleep(pause)
        pause = min(0.2, pause * 1.5)  # asking takes from the time of who is waited for


def ended_at_once(*arguments: str) -> subprocess.CompletedProcess[str]:
    """`streamdp` with these arguments, to its end."""
    return parent().run(MAIN, arguments, timeout=LONG)
