"""Where services that are to be killed are born: forked from a process that has imported all.

A service that begins with an interpreter of its own spends most of its processor time on imports,
and the crash tests begin hundreds. The nursery has imported the service (`tests.crash.process`)
and has never run one, so that a fork of it is what a fresh process is after its imports. It has
one thread, and answers lines of JSON:

    {"asked": {…}, "log": "path"}   a new service, its stderr in this file; answers its pid
    {"pid": 4711}                   waits until this service has ended; answers its exit code

A service is a zombie until it was asked for, so its pid is nobody else's. The nursery ends, and
kills what is left, when its input ends.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import random
import select
import signal
import subprocess
import sys
import traceback
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


class Victim:
    """A service in a process of its own, as `subprocess.Popen` would show it."""

    def __init__(self, nursery: Nursery, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._nursery = nursery
        self._ended = os.pidfd_open(pid)

    def poll(self) -> int | None:
        """Its exit code, if it has ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code, when it has ended; minus the number of the signal that has ended it."""
        if self.returncode is None:
            if not select.select([self._ended], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(f"service {self.pid}", timeout or 0.0)
            self.returncode = self._nursery.ask({"pid": self.pid})
            os.close(self._ended)
        return self.returncode

    def send_signal(self, number: signal.Signals) -> None:
        """Signal it, if it still runs."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it at once."""
        self.send_signal(signal.SIGKILL)


class Nursery:
    """The parent of victims."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.crash.nursery"],
            cwd=ROOT,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # threads would not be there in a fork
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        atexit.register(self._close)

    def start(self, asked: dict[str, Any], *, log: Path) -> Victim:
        """A new service."""
        return Victim(self, self.ask({"asked": asked, "log": str(log)}))

    def ask(self, question: dict[str, Any]) -> int:
        """One question, one answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def _close(self) -> None:
        """Let it end."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()


@cache
def nursery() -> Nursery:
    """The one of this process, which ends with it."""
    return Nursery()


def born(asked: dict[str, Any], log: str) -> int:
    """Fork a service; its pid."""
    from tests.crash.process import run

    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644), 2)
        os.dup2(os.open(os.devnull, os.O_RDWR), 0)
        os.dup2(0, 1)
        random.seed()  # a fork would go on where its parent is
        code = run(asked)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def main() -> None:
    """Answer until nobody asks any more."""
    from tests.crash import process  # what takes long, before anybody waits for a service

    del process
    living: set[int] = set()
    for line in sys.stdin:
        question = json.loads(line)
        if "asked" in question:
            answer = born(question["asked"], question["log"])
            living.add(answer)
        else:
            living.discard(question["pid"])
            answer = os.waitstatus_to_exitcode(os.waitpid(question["pid"], 0)[1])
        print(answer, flush=True)
    for pid in living:
        os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main()
