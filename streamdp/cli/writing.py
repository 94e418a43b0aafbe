"""Files that a command writes: looked at before the work, and a failure is an error in one line.

A disk that is full, read-only or failing is `DiskFull`; anything else is the user's choice of a
place. Looking opens nothing, so a pipe may be the place too.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from streamdp.core.errors import DiskFull, InvalidConfig, StreamdpError

NO_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO}


def check_writable(path: Path) -> None:
    """Refuse a place that cannot be written to, before there is anything to write."""
    if path.is_dir():
        cause = errno.EISDIR
    elif not path.parent.is_dir():
        cause = errno.ENOENT
    elif not os.access(path if path.exists() else path.parent, os.W_OK):
        cause = errno.EACCES
    else:
        return
    raise unwritten(path, OSError(cause, os.strerror(cause)))


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Inside the block a file is written."""
    try:
        yield
    except OSError as error:
        raise unwritten(error.filename or path, error) from None


def unwritten(where: object, error: OSError) -> StreamdpError:
    """The error for a file that cannot be written.

    >>> unwritten("log.npy", OSError(errno.ENOSPC, "No space left on device"))
    DiskFull('log.npy: cannot be written; expected a working disk, got No space left on device')
    """
    got = error.strerror or type(error).__name__
    if error.errno in NO_DISK:
        return DiskFull(str(where), "cannot be written", expected="a working disk", got=got)
    expected = "a file in a folder that exists, with the right to write it"
    return InvalidConfig(str(where), "cannot be written", expected=expected, got=got)
