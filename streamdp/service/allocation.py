"""How a process that moves megabytes many times a second keeps its memory.

Nothing here can change a result. Both were measured on the Kafka benchmark, rows of float32:

- **The cycle collector** looks at all young objects whenever 700 more were made than freed. Every
  record is such an object, and dies by its reference count when its batch was applied: the looks
  find nothing, and took a quarter of the CPU time. So it looks only when far more objects stay
  than batches hold, and never at what was there from the start.
- **The C library** gives large blocks back to the system as soon as they are freed, and the next
  batch faults them in again page by page, a quarter of the time for frames of 100 KB. So freed
  memory is kept for the next batch, up to a bound. Other C libraries than GNU's are left alone.
"""

from __future__ import annotations

import ctypes
import gc
import platform

YOUNG_OBJECTS = 50_000
"""Objects that may stay before the collector looks: several batches of records."""

_YOUNG_LOOKS, _MIDDLE_LOOKS = 20, 100  # before a look at the middle-aged, and at all

KEPT_BYTES = 128 << 20
"""Freed memory at the end of the heap is given back beyond this."""

LARGE_BYTES = 32 << 20
"""From this size on a block is the system's own (as large as GNU's library allows)."""

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h


def set_up_memory() -> None:
    """Call once, when everything was imported and before the work begins."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, _YOUNG_LOOKS, _MIDDLE_LOOKS)
    if platform.libc_ver()[0] == "glibc":
        library = ctypes.CDLL(None)
        library.mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)
        library.mallopt(_M_MMAP_THRESHOLD, LARGE_BYTES)
