"""Raw little-endian rows: float32 or float16, one row or (with `frames`) many in a record.

A row is K numbers of 4 or 2 bytes, nothing else. Without frames every record is one slot, and is
usable if it has exactly the length of a row. With frames a record of b bytes takes
n = max(1, ⌊b / row bytes⌋) slots; when b is no multiple, nobody can tell where its rows begin, and
all its slots are null. With Confluent's prefix b is counted without its five bytes.

Everything here depends on encoded lengths alone: no branch is taken on content, so that the time
does not depend on values, good or bad. Numbers that are not finite are passed on; the core nulls
their row, and only that.

A feedback stream's row is one number: the loss or reward of the action that the header names. With
`played = "value"` in a stream with contexts a row is a cell's number, an action's number (uint32
each) and the loss or reward (float32).

A batch of well-formed records is one join and one view, with no work for each record beyond its
length. `bytes` objects are aligned well enough for float32.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from streamdp.core.arrays import Ints
from streamdp.core.errors import InvalidConfig
from streamdp.core.events import NO_ARM
from streamdp.wire.decoded import Decoded, Headers, Setting, Value, checked_option
from streamdp.wire.feedback import Feedback
from streamdp.wire.formats import (
    CONFLUENT_PREFIX,
    Prefix,
    checked_actions,
    checked_names,
    checked_rows,
    record_lengths,
)
from streamdp.wire.renewals import unchanged

Scalar = Literal["float32", "float16"]

_WIRE_TYPES: dict[Scalar, np.dtype[Any]] = {
    "float32": np.dtype("<f4"),
    "float16": np.dtype("<f2"),
}
_MOST_FLOAT16 = 65_504  # the largest that it holds


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RawFormat:
    """Records of rows with a fixed count of numbers of one scalar type."""

    actions: tuple[str, ...]
    scalar: Scalar
    frames: bool = False
    prefix: Prefix = "none"
    feedback: Feedback | None = None

    renewals, source = (), None  # it reads all records alike
    renewed = resumed = unchanged

    def __post_init__(self) -> None:
        """Check actions and options; a row of one number has no place for an action's name."""
        checked_actions(self.actions)
        checked_option(self.frames, where="format.frames", allowed=(False, True))
        checked_option(self.prefix, where="format.prefix", allowed=("none", "confluent"))
        feedback = self.feedback
        if feedback is not None and self.scalar == "float16" and feedback.largest > _MOST_FLOAT16:
            got, expected = str(feedback.most), f"at most {_MOST_FLOAT16}, or float32"
            raise InvalidConfig("most", "is more than float16 holds", expected=expected, got=got)
        if feedback is None or feedback.played == "header":
            return
        if feedback.contexts is None or self.scalar != "float32":
            raise InvalidConfig(
                "played",
                f"{self.scalar} records hold one number and no action",
                expected="header, the format json, or float32 in a stream with contexts",
                got="value",
            )

    @property
    def columns(self) -> int:
        """The numbers of a row."""
        if self.feedback is None:
            return len(self.actions)
        return 1 if self.feedback.played == "header" else 3

    @property
    def row_bytes(self) -> int:
        """The length of an encoded row."""
        return self.columns * _WIRE_TYPES[self.scalar].itemsize

    def settings(self) -> Mapping[str, Setting]:
        """Everything that decides how a record is read: part of the configuration's digest."""
        more = {} if self.feedback is None else self.feedback.settings()
        return {"name": self.scalar, "frames": self.frames, "prefix": self.prefix, **more}

    def slots(self, lengths: Ints) -> Ints:
        """How many slots records of these encoded lengths take. Public."""
        if not self.frames:
            return np.ones(len(lengths), dtype=np.int64)
        return np.maximum(1, (lengths - self._skip) // self.row_bytes)

    def decode(self, values: Sequence[Value], headers: Sequence[Headers] = ()) -> Decoded:
        """The slots of a batch of records. Never raises because of content."""
        rows, slots = self._rows(values)
        feedback, played = self.feedback, None
        if feedback is None:
            return Decoded.of_losses(rows, slots)
        if feedback.played == "value":
            assert feedback.contexts is not None, "checked when the format was made"
            whole, count = rows.view(np.uint32), len(self.actions)
            columns = np.int32(len(feedback.in_cell))
            cells = np.minimum(whole[:, 0], np.uint32(feedback.contexts.unknown)).astype(np.int32)
            actions = np.minimum(whole[:, 1], np.uint32(count)).astype(np.int32)
            played = np.where(actions == count, NO_ARM, cells * columns + actions)
        return feedback.observed(rows[:, -1], slots, headers, frames=self.frames, played=played)

    def encode(self, rows: NDArray[np.float32], *, played: Sequence[int] = ()) -> bytes:
        """One record that carries these rows, with zeros in place of Confluent's prefix."""
        feedback, table = self.feedback, checked_rows(self, rows)
        if feedback is not None and feedback.played == "value":
            assert feedback.contexts is not None, "checked when the format was made"
            count = len(feedback.in_cell)
            nothing = feedback.contexts.unknown * count, count  # no action has this number
            arms = [(arm // count, arm % count) if arm != NO_ARM else nothing for arm in played]
            table = np.concatenate([np.array(arms, "<u4").view(np.float32), table], axis=1)
        return b"\0" * self._skip + table.astype(_WIRE_TYPES[self.scalar]).tobytes()

    def explain(self, value: Value) -> str | None:
        """Why a record is unusable, wholly or in part. NOT PRIVATE: for operators only."""
        if value is None:
            return "no value"
        length = len(value) - self._skip
        allowed = f"{self.row_bytes} bytes ({self.columns} × {self.scalar})"
        if length != self.row_bytes and not self.frames:
            return f"{length} bytes, expected {allowed}"
        if length <= 0 or length % self.row_bytes:
            return f"{length} bytes, expected a multiple of {allowed}"
        bad = np.flatnonzero(~np.isfinite(self._rows([value])[0]).all(axis=1))
        return f"{len(bad)} rows with NaN or infinity, the first is {bad[0]}" if len(bad) else None

    def __repr__(self) -> str:
        """Show the format and the number of actions."""
        if self.feedback is None:
            options = f"frames={self.frames}, prefix={self.prefix}"
            return f"RawFormat({self.scalar}, K={len(self.actions)}, {options})"
        return f"RawFormat({self.scalar}, {self.feedback.content}, K={len(self.actions)})"

    @property
    def _skip(self) -> int:
        return CONFLUENT_PREFIX if self.prefix == "confluent" else 0

    def _rows(self, values: Sequence[Value]) -> tuple[NDArray[np.float32], Ints]:
        """The rows of a batch of records, and how many each has."""
        lengths = record_lengths(values)
        slots = self.slots(lengths)
        bodies: Sequence[Value] = values
        misfits = np.flatnonzero(lengths - self._skip != slots * self.row_bytes)
        if len(misfits) or self._skip:
            bodies = self._bodies(values, slots=slots, misfits=misfits)
        joined = b"".join(bodies)  # type: ignore[arg-type]  # a null value is a misfit
        rows = np.frombuffer(joined, dtype=_WIRE_TYPES[self.scalar])
        return _as_float32(rows.reshape(-1, self.columns)), slots

    def _bodies(self, values: Sequence[Value], *, slots: Ints, misfits: Ints) -> list[bytes]:
        """Each record's rows, with rows of NaN for the records whose length does not fit."""
        skip = self._skip
        bodies = [b"" if value is None else value[skip:] for value in values]
        row = np.full(self.columns, np.nan, dtype=_WIRE_TYPES[self.scalar]).tobytes()
        for at in misfits.tolist():
            bodies[at] = row * int(slots[at])
        return bodies


def _as_float32(rows: NDArray[Any]) -> NDArray[np.float32]:
    """The rows as float32 of this machine; a view of the joined bytes where possible."""
    if rows.dtype == np.float32 and sys.byteorder == "little":
        return rows.view(np.float32)
    with np.errstate(invalid="ignore"):  # a signalling NaN is content like any other
        return rows.astype(np.float32)


@dataclass(frozen=True, slots=True)
class RawFactory:
    """The entry point of a raw format."""

    scalar: Scalar

    def configure(
        self,
        *,
        actions: Sequence[str],
        options: Mapping[str, object],
        feedback: Feedback | None = None,
    ) -> RawFormat:
        """The format for these actions, from the options of a stream's configuration."""
        checked_names(options, where="format", known=("frames", "prefix"))
        return RawFormat(
            actions=tuple(actions),
            scalar=self.scalar,
            feedback=feedback,
            **options,  # type: ignore[arg-type]  # RawFormat checks types and values
        )


Float32Format = RawFactory("float32")
Float16Format = RawFactory("float16")
