"""Memory settings for a process that moves megabytes many times a second.

Nothing here can change a result. Both were measured on the Kafka benchmark, rows of float32:

- **The cycle collector** looks at all young objects whenever 700 more were made than freed. Every
  record is such an object and is freed by its reference count once its batch is applied, so the
  looks found nothing and took a quarter of the CPU time. Now it looks only when far more objects
  stay than batches hold, and never at what was there from the start.
- **The C library** gives large blocks back to the system as soon as they are freed, and the next
  batch faults them in again page by page: a quarter of the time for frames of 100 KB. Now freed
  memory is kept for the next batch, up to a bound. This is set for GNU's library only.
"""

from __future__ import annotations

import ctypes
import gc
import platform
from collections.abc import Iterator
from contextlib import contextmanager

YOUNG_OBJECTS = 50_000
"""Objects that may stay before the collector looks: several batches of records."""

# Young looks before one at the middle generation, and middle looks before a full one.
_YOUNG_LOOKS, _MIDDLE_LOOKS = 20, 100

KEPT_BYTES = 128 << 20
"""Freed memory at the end of the heap is given back to the system beyond this many bytes."""

LARGE_BYTES = 32 << 20
"""A block of this many bytes or more is mapped by itself (the most that GNU's library allows)."""

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h
_IS_GNU = platform.libc_ver()[0] == "glibc"


def set_up_memory() -> None:
    """Call this once, after all imports and before the work begins."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, _YOUNG_LOOKS, _MIDDLE_LOOKS)
    if _IS_GNU:
        library = ctypes.CDLL(None)
        library.mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)
        library.mallopt(_M_MMAP_THRESHOLD, LARGE_BYTES)


_takes = 0  # how many partitions are being taken: all in the event loop's own thread


@contextmanager
def without_collecting() -> Iterator[None]:
    """Take a partition without the cycle collector, which never looks at what is there afterwards.

    A million keys are millions of objects without cycles. A look at all of them holds up every
    thread, the operations listener's too, for seconds. What was needed for the taking alone, as
    entries and recorded releases are, goes back to the system.
    """
    global _takes
    _takes += 1
    gc.disable()
    try:
        yield
    finally:
        _takes -= 1
        if _takes == 0:
            gc.collect()  # or its garbage would stay for good; rows and keys are not looked at
            gc.freeze()
            gc.enable()
            if _IS_GNU:
                ctypes.CDLL(None).malloc_trim(0)
