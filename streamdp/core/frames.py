"""Reads columns of a data frame (pandas, polars, pyarrow) by narwhals, an extra.

Names and types of columns are code, so a wrong one is refused. What a column holds is data: a
missing number is NaN, which counts as the null loss (P1).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamdp.core.errors import refuse


class Frame:
    """A frame whose columns are looked up by name."""

    def __init__(self, frame: object, names: Sequence[str]) -> None:
        """Refuse what is no frame, and names that it does not have or that are given twice."""
        library = load_narwhals()
        try:
            self._frame: Any = library.from_native(frame, eager_only=True)
        except TypeError:
            expected = "a frame of pandas or polars, or a table of pyarrow"
            refuse("frame", "no frame", expected, type(frame).__name__)
        has = list(self._frame.columns)
        missing = [repr(name) for name in names if name not in has]
        if missing:
            refuse("frame", "has no such column", f"some of {has}", ", ".join(missing))
        if len(set(names)) < len(names):
            refuse("columns", "one is named twice", "each once", list(names))

    def __len__(self) -> int:
        """The number of rows."""
        return len(self._frame)

    def keys(self, name: str) -> list[bytes | None]:
        """A column of texts or bytes as keys; a missing one is the null key."""
        keys: list[bytes | None] = []
        for value in self._frame[name].to_list():
            if isinstance(value, str):
                keys.append(value.encode())
            elif isinstance(value, bytes):
                keys.append(value)
            elif value is None or value != value:
                keys.append(None)
            else:
                refuse(f"column {name!r}", "no keys", "texts or bytes", type(value).__name__)
        return keys

    def texts(self, name: str) -> list[str | None]:
        """A column of texts; a missing one is None."""
        values = self._frame[name].to_list()
        texts = [None if value is None or value != value else value for value in values]
        for text in texts:
            if text is not None and not isinstance(text, str):
                refuse(f"column {name!r}", "no names", "texts", type(text).__name__)
        return texts

    def values(self, name: str) -> list[object]:
        """A column of anything."""
        return list(self._frame[name].to_list())

    def numbers(self, names: Sequence[str]) -> NDArray[np.float64]:
        """Columns of numbers, one beside the other; a missing number is NaN."""
        columns = []
        for name in names:
            column = self._frame[name]
            if not column.dtype.is_numeric():
                expected, got = "numbers", str(column.dtype)
                refuse(f"column {name!r}", "no numbers", expected, got)
            columns.append(np.asarray(column.cast(load_narwhals().Float64).to_numpy(), np.float64))
        return np.column_stack(columns) if columns else np.empty((len(self), 0))


def load_narwhals() -> Any:
    """The library that reads all sorts of frames; an extra."""
    try:
        import narwhals
    except ImportError:
        expected = 'pip install "streamdp[frames]"'
        refuse("frames", "are an extra", expected, "no narwhals")
    return narwhals
