"""Lets one process at a time use a pair of files: an operating system's lock beside them.

1. A worker's process holds it from `join` to `close`. A worker of another process is refused at
   once and told who holds the lock: there is no group here that would ever give a partition back,
   so a second process, however short, would end the first one's work for good.
2. The kernel releases it when the process ends, however it ends: no restart waits for it.
3. It belongs to the process: its workers share it, and fence each other. A forked child has no
   lock.
4. It is on a file of its own (``home.db-lock``, mode 0600), which stays: removing it would let two
   processes hold two locks of one name, and on some systems a lock on the trusted file itself
   conflicts with SQLite's own locks.
5. It prevents a mistake; privacy rests on the owner's number in the trusted file. On a system or
   file system without such locks there is no lock: a fenced worker ends there.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from streamdp.core.errors import Occupied
from streamdp_adapters.sqlite.files import unmade

try:
    import fcntl
except ImportError:
    IS_UNIX = False
else:
    IS_UNIX = True

Release = Callable[[], None]
Lock = Callable[[Path, str], Release]
"""Takes the lock of a trusted file for a worker; returns a function that releases it, once."""

_LONGEST_NAME = 200  # bytes of the holder's name that are read

_Identity = tuple[int, int]  # device and inode of a lock file


@dataclass(slots=True)
class _Held:
    """A lock of this process, and the number of its workers that share it."""

    descriptor: int
    workers: int = 1


_held: dict[_Identity, _Held] = {}
_turn = threading.Lock()


def lock_of(path: Path) -> Path:
    """The lock file of a trusted file, by whatever name that was opened."""
    path = path.resolve()
    return path.with_name(f"{path.name}-lock")


def locked(path: Path, worker: str) -> Release:
    """Lock a trusted file; `Occupied` if another process has the lock."""
    if not IS_UNIX:
        return _nothing
    with _turn:
        descriptor = _opened(lock_of(path))
        place = os.fstat(descriptor)
        identity = (place.st_dev, place.st_ino)
        if identity in _held:
            os.close(descriptor)
            _held[identity].workers += 1
        elif _took(descriptor, path):
            _held[identity] = _Held(descriptor)
            _sign(descriptor, worker)
        else:
            return _nothing
    return partial(_let_go, identity)


def _opened(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise unmade(path, error) from error


def _took(descriptor: int, path: Path) -> bool:
    """Whether this process has the lock now; if not, or without locks, close the descriptor."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(descriptor, _LONGEST_NAME, 0).decode(errors="replace").strip()
        os.close(descriptor)
        raise Occupied(
            f"{path}",
            "another process uses it: stop that one first",
            expected="a free file",
            got=f"one locked by {holder or 'an unnamed worker'}",
        ) from None
    except OSError:  # such as ENOLCK, ENOTSUP: this file system has no locks
        os.close(descriptor)
        return False
    return True


def _sign(descriptor: int, worker: str) -> None:
    """Write the holder's name into the lock file; ignore a full disk."""
    with suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"worker {worker}, process {os.getpid()}\n".encode(), 0)


def _let_go(identity: _Identity) -> None:
    """Count one worker less; the last one unlocks."""
    with _turn:
        held = _held.get(identity)
        if held is None:  # this is a forked child
            return
        held.workers -= 1
        if not held.workers:
            del _held[identity]
            with suppress(OSError):
                os.ftruncate(held.descriptor, 0)
            os.close(held.descriptor)


def _disown() -> None:
    """In a forked child: the lock stays its parent's, and ends with the parent."""
    global _turn  # another thread may hold it at the time of the fork
    _turn = threading.Lock()
    for held in _held.values():
        os.close(held.descriptor)
    _held.clear()


def _nothing() -> None:
    """Release nothing: there was no lock."""


if IS_UNIX:
    os.register_at_fork(after_in_child=_disown)
