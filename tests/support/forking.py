"""Starts programs as forks of a process that has imported streamdp, for tests that start many.

An interpreter that begins anew spends half a second of processor time on imports before it does
anything, and tests start `streamdp` hundreds of times. The parent here has imported what the
commands import and has never run one; a fork of it is what a fresh process is after its imports:
`python -c PROGRAM ARGUMENTS` with its own environment, standard streams, limits and signals. What
depends on the imports themselves (how fast a command starts, a module that is missing) is asked of
real interpreters in test_startup.py; the command that was installed runs in README's story, and in
those of the documents where it has a shell's redirections.

The parent has one thread. It answers one question at a time over a socket:

    {"program": …, "arguments": …, …}   and three files: a new process; answers its pid
    {"pid": 4711}                       waits until that process has ended; answers its exit code

A process is a zombie until it was asked for, so its pid is nobody else's. The parent ends, and
kills what is left, when its socket closes.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import json
import os
import pkgutil
import random
import resource
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryFile
from threading import Lock
from types import TracebackType
from typing import IO, Any

BEGIN = f"""
import sys
sys.path.append({str(Path(__file__).resolve().parents[2])!r})  # behind the streamdp that is tested
from tests.support.forking import main
main()
"""
_MOST_BYTES = 1 << 17  # of a question, which holds an environment


class Forked:
    """A started program, as `subprocess.Popen` would show it."""

    def __init__(
        self, parent: Parent, pid: int, stdout: IO[bytes] | None, stderr: IO[bytes] | None
    ) -> None:
        self.pid = pid
        self.stdout, self.stderr = stdout, stderr
        self.returncode: int | None = None
        self._parent = parent
        self._ended = os.pidfd_open(pid)
        self._asking = Lock()

    def poll(self) -> int | None:
        """Its exit code, if it has ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code, when it has ended; minus the number of the signal that has ended it."""
        with self._asking:
            if self.returncode is None:
                if not select.select([self._ended], [], [], timeout)[0]:
                    raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
                self.returncode = self._parent.ask({"pid": self.pid})
                os.close(self._ended)
            return self.returncode

    def send_signal(self, number: int) -> None:
        """Signal it, if it still runs."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Ask it to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it at once."""
        self.send_signal(signal.SIGKILL)

    def __enter__(self) -> Forked:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        for stream in (self.stdout, self.stderr):
            if stream is not None:
                stream.close()
        self.wait()


class Parent:
    """The parent of a tester's programs."""

    def __init__(self) -> None:
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with its:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", BEGIN, str(its.fileno())],
                pass_fds=[its.fileno()],
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # a fork has no other threads
            )
        self._socket = ours
        self._asking = Lock()
        atexit.register(self._close)

    def start(
        self,
        program: str,
        arguments: Sequence[str],
        *,
        stderr: int,
        stdout: int = subprocess.DEVNULL,
        environment: Mapping[str, str] | None = None,
        folder: Path | None = None,
        file_limit: int | None = None,
    ) -> Forked:
        """The program with these arguments; what it says goes nowhere, to a file, or to us."""
        asked = {
            "program": program,
            "arguments": list(arguments),
            "environment": {**os.environ, **(environment or {})},
            "folder": str(folder or Path.cwd()),
            "file_limit": file_limit,
        }
        with _open(os.devnull, os.O_RDWR) as nothing, contextlib.ExitStack() as stack:

            def ends(file: int) -> tuple[int, IO[bytes] | None]:
                """Where it writes, and where we read."""
                if file != subprocess.PIPE:
                    return nothing if file == subprocess.DEVNULL else file, None
                read, write = os.pipe()
                stack.callback(os.close, write)
                return write, os.fdopen(read, "rb")

            (out, said), (errors, heard) = ends(stdout), ends(stderr)
            return Forked(self, self.ask(asked, nothing, out, errors), said, heard)

    def run(
        self,
        program: str,
        arguments: Sequence[str],
        *,
        timeout: float,
        environment: Mapping[str, str] | None = None,
        folder: Path | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """The program with these arguments, to its end, and what it has said."""
        with TemporaryFile("w+") as out, TemporaryFile("w+") as errors:
            with self.start(
                program,
                arguments,
                stdout=out.fileno(),
                stderr=errors.fileno(),
                environment=environment,
                folder=folder,
            ) as process:
                try:
                    code = process.wait(timeout)
                finally:
                    process.kill()
            out.seek(0)
            errors.seek(0)
            return subprocess.CompletedProcess(arguments, code, out.read(), errors.read())

    def ask(self, question: Mapping[str, Any], *files: int) -> int:
        """One question, one answer."""
        with self._asking:
            socket.send_fds(self._socket, [json.dumps(question).encode()], files)
            return int(self._socket.recv(_MOST_BYTES))

    def _close(self) -> None:
        """Let it end."""
        self._socket.close()
        self._process.wait()


@contextlib.contextmanager
def _open(path: str, how: int) -> Iterator[int]:
    file = os.open(path, how)
    try:
        yield file
    finally:
        os.close(file)


@cache
def parent() -> Parent:
    """The one of this process, which ends with it."""
    return Parent()


# -- in the parent -----------------------------------------------------------------------------


def answer(asking: socket.socket) -> Mapping[str, Any] | None:
    """Answer until nobody asks any more; in a fork, what it is to be."""
    living: set[int] = set()
    while True:
        text, files, _, _ = socket.recv_fds(asking, _MOST_BYTES, 3)
        if not text:
            break
        question: dict[str, Any] = json.loads(text)
        if "program" in question:
            pid = os.fork()
            if pid == 0:
                asking.close()
                _become(question, files)
                return question
            living.add(pid)
            for file in files:
                os.close(file)
        else:
            living.discard(question["pid"])
            pid = os.waitstatus_to_exitcode(os.waitpid(question["pid"], 0)[1])
        asking.send(str(pid).encode())
    for pid in living:
        os.kill(pid, signal.SIGKILL)
    return None


def _become(asked: Mapping[str, Any], files: Sequence[int]) -> None:
    """A process as `python -c` begins: streams, environment, folder, limits, arguments."""
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(asked["environment"])
    os.chdir(asked["folder"])
    if asked["file_limit"] is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (asked["file_limit"], asked["file_limit"]))
    random.seed()  # a fork would go on where its parent is
    sys.argv = ["-c", *asked["arguments"]]


def imported() -> None:
    """Import what the commands and the service import."""
    for room in ("streamdp.cli", "streamdp.service", "streamdp.client", "streamdp.assembly",
                 "streamdp.core", "streamdp.wire", "streamdp_adapters"):  # fmt: skip
        for module in pkgutil.walk_packages(import_module(room).__path__, f"{room}."):
            import_module(module.name)


def main() -> None:
    """Import everything; then fork whatever is asked for."""
    imported()
    gc.freeze()
    asked = answer(socket.socket(fileno=int(sys.argv[1])))
    if asked is not None:
        exec(compile(asked["program"], "<string>", "exec"), {"__name__": "__main__"})
