"""Do arrays that grow where they are keep what is in them, and what is looked at?"""

from __future__ import annotations

import mmap

import numpy as np
import pytest

from streamdp.core import columns
from streamdp.core.columns import Column

ROWS = (10, 5_000, 300_000, 300_001, 900_000)
"""Small, then memory of its own, then extended."""


@pytest.mark.parametrize("shape", [(), (3,), (0,)])
@pytest.mark.parametrize("kind", [np.int32, np.int64, np.uint8])
def test_are_rows_kept_and_new_ones_zero(kind: type[np.generic], shape: tuple[int, ...]) -> None:
    column = Column(kind, shape)
    wanted = np.zeros((0, *shape), dtype=kind)
    for rows in ROWS:
        begin = len(wanted)
        column.grow(rows)
        assert column.array.shape == (rows, *shape)
        assert not column.array[begin:].any()
        assert np.array_equal(column.array[:begin], wanted)
        column.array[begin:] = np.arange(begin, rows).reshape(-1, *(1 for _ in shape)) % 251
        wanted = column.array.copy()


def test_is_what_is_looked_at_left_where_it_is() -> None:
    """A view of the old rows keeps them, and writing to the new ones does not change it."""
    column = Column(np.int64, (4,))
    column.grow(100_000)
    column.array[:] = 7
    held = column.array[10:20]
    column.grow(200_000)
    column.array[:] = 8
    assert (held == 7).all()
    assert len(column.array) == 200_000


def test_does_growing_need_the_rows_but_once() -> None:
    """Where memory can be extended, it is: there is no second array, however far it grows."""
    column = Column(np.int64, (100,))
    column.grow(10_000)
    memory = column._memory
    column.grow(40_000)
    assert column._memory is memory
    assert len(memory or b"") == 40_000 * 100 * 8


class Small(mmap.mmap):
    """Memory on a kernel without huge pages."""

    def madvise(self, *asked: int) -> None:
        """Refuse, as such a kernel does."""
        raise OSError(22, "Invalid argument")


def test_is_a_kernel_without_huge_pages_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mmap, "mmap", Small)
    column = Column(np.int64, (4,))
    column.grow(100_000)
    assert isinstance(column._memory, Small)
    column.array[:] = 5
    column.grow(200_000)
    assert (column.array[:100_000] == 5).all()


def test_do_systems_that_cannot_extend_memory_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "_LINUX", False)
    column = Column(np.int64, (4,))
    column.grow(100_000)
    column.array[:] = 5
    column.grow(200_000)
    assert column._memory is None
    assert (column.array[:100_000] == 5).all()
    assert not column.array[100_000:].any()
