"""Where the parts of a log are worked on: in this process, in a pool of processes, or on Dask.

    auto              in this process, or in a pool where it takes long
    process           in this process
    pool, pool:4      in processes of this machine: as many as it has cores, or so many
    dask:ADDRESS      on the workers of a Dask cluster, as in dask:tcp://scheduler:8786

Work is a function of one part and comes back in the order of the parts, so where it was done
changes no answer. Only a few parts for each worker are on their way at once. Files are read by the
workers: each must find them at the same path, and needs the same version of streamdp.

A worker may be lost (a machine goes, memory ends). Its part is done again, by a new pool or by
another worker of the cluster. A part at which workers are lost again and again is an error.
"""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import (
    BrokenExecutor,
    CancelledError,
    Executor,
    Future,
    ProcessPoolExecutor,
)
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context, parent_process
from os import _exit, environ, sched_getaffinity
from pathlib import Path
from tempfile import TemporaryFile
from threading import Thread
from typing import Any, Protocol, TypeVar

from streamdp.core.errors import InvalidConfig
from streamdp.lab.common.mapped import place_of
from streamdp.lab.common.words import first_line

A = TypeVar("A")
B = TypeVar("B")

_AHEAD = 3  # parts for each worker that are on their way: one at work, and some that wait
_LOSSES = 4  # workers lost at one part until it is given up; as Dask counts them
_LONG = 1 << 28  # losses that one process reads in two or three seconds: a pool begins in one
_CONNECTED = 10  # seconds until a scheduler has answered


class Workers(Protocol):
    """Does work on parts of a log."""

    @property
    def apart(self) -> bool:
        """Whether work is done in other processes."""
        ...

    @property
    def near(self) -> Workers:
        """These, if they find this process's mapped files (`common.mapped`); else this process."""
        ...

    def map(self, work: Callable[[A], B], parts: Iterable[A]) -> Iterator[B]:
        """The result of each part, in their order."""
        ...


class InProcess:
    """Works in this process, when a result is asked for."""

    apart = False

    @property
    def near(self) -> Workers:
        """This process."""
        return self

    def map(self, work: Callable[[A], B], parts: Iterable[A]) -> Iterator[B]:
        """The result of each part, in their order."""
        return map(work, parts)


IN_PROCESS = InProcess()


@dataclass(slots=True)
class Pool:
    """Works by an executor, which is made again when it breaks."""

    make: Callable[[], Executor]
    ahead: int
    of_this_machine: bool = True
    apart: bool = field(default=True, init=False)
    _executor: Executor | None = None

    @classmethod
    def of_processes(cls, count: int) -> Pool:
        """A pool of so many processes of this machine."""

        def make() -> Executor:
            return ProcessPoolExecutor(count, get_context("spawn"), initializer=_begin)

        return cls(make, _AHEAD * count)

    @property
    def near(self) -> Workers:
        """These, if they find this process's mapped files (`common.mapped`); else this process."""
        return self if self.of_this_machine else IN_PROCESS

    def map(self, work: Callable[[A], B], parts: Iterable[A]) -> Iterator[B]:
        """The result of each part, in their order."""
        waiting: deque[tuple[A, Future[B]]] = deque()
        rest, lost = iter(parts), 0
        try:
            while True:
                while len(waiting) < self.ahead:
                    for part in rest:
                        waiting.append((part, self._submit(work, part)))
                        break
                    else:
                        break
                if not waiting:
                    return
                try:
                    result = waiting[0][1].result()
                except BrokenExecutor:
                    lost += 1
                    if lost == _LOSSES:
                        raise _lost(waiting[0][0]) from None
                    self.close()
                    waiting = deque(
                        (part, future if _succeeded(future) else self._submit(work, part))
                        for part, future in waiting
                    )
                    continue
                waiting.popleft()
                lost = 0
                yield result
        finally:
            for _, future in waiting:
                future.cancel()

    def _submit(self, work: Callable[[A], B], part: A) -> Future[B]:
        if self._executor is None:
            self._executor = self.make()
        try:
            return self._executor.submit(work, part)
        except BrokenExecutor as error:  # it broke since the last result: found when this is asked
            future: Future[B] = Future()
            future.set_exception(error)
            return future

    def close(self) -> None:
        """End the executor, if there is one."""
        executor, self._executor = self._executor, None
        if executor is not None:
            executor.shutdown(cancel_futures=True)


def _begin() -> None:
    """Begin a worker: it ends with the process that began the work, however that ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C: that one ends its workers
    Thread(target=_end_with_parent, daemon=True).start()
    environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")  # others keep 10 MB of what is freed


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None
    parent.join()
    _exit(1)


def _succeeded(future: Future[Any]) -> bool:
    return future.done() and not future.cancelled() and future.exception() is None


def _lost(part: object) -> InvalidConfig:
    where, got = f"--executor: {part}", f"{_LOSSES} lost, one after the other"
    expected = "workers with memory for one part of the log and its keys"
    return InvalidConfig(where, "workers are lost", expected=expected, got=got)


@contextmanager
def workers_of(text: str, size: int) -> Iterator[Workers]:
    """The workers that an option names, for so many losses; released behind the block."""
    if text == "auto":
        text = "pool" if size >= _LONG else "process"
    name, colon, rest = text.partition(":")
    if name == "process" and not colon:
        yield InProcess()
    elif name == "pool" and (not colon or (rest.isdecimal() and int(rest) > 0)):
        pool = Pool.of_processes(int(rest) if colon else len(sched_getaffinity(0)))
        try:
            yield pool
        finally:
            pool.close()
    elif name == "dask" and rest:
        with _on_dask(rest) as pool:
            yield pool
    else:
        expected = "auto, process, pool, pool:PROCESSES or dask:ADDRESS"
        raise InvalidConfig("--executor", "unknown", expected=expected, got=text)


@contextmanager
def _on_dask(address: str) -> Iterator[Pool]:
    """The workers of a cluster. Dask itself does the part of a lost worker again."""
    try:
        from distributed import Client, KilledWorker
    except ImportError:
        expected = "the extra `dask`"
        raise InvalidConfig("--executor", "needs Dask", expected=expected, got="none") from None
    try:
        client = Client(address, set_as_default=False, timeout=_CONNECTED)
    except (OSError, ValueError) as error:
        raise _no_cluster(address, first_line(error)) from None
    with client:
        threads = sum(client.nthreads().values())
        if not threads:
            raise _no_cluster(address, "a scheduler without workers")
        executor = client.get_executor(pure=False)
        try:
            with (
                TemporaryFile() as file
            ):  # each must find this very file, and so must the scheduler
                at = place_of(file)
                found = [*client.run(_file_at, at).values(), client.run_on_scheduler(_file_at, at)]
                near = set(found) == {_file_at(at)}
            yield Pool(lambda: executor, _AHEAD * threads, near)
        except KilledWorker as error:
            raise _lost(error.task) from None
        except CancelledError:
            raise _no_cluster(address, "none any more: the work was cancelled") from None


def _file_at(place: str) -> tuple[int, int] | None:
    """Which file is at a place: its device and number."""
    try:
        found = Path(place).stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _no_cluster(address: str, got: str) -> InvalidConfig:
    where = f"--executor dask:{address}"
    return InvalidConfig(where, "no cluster", expected="a scheduler and its workers", got=got)
