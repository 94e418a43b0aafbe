"""NDJSON: one event a line, `{"losses": [...]}` or `{"losses": {"a": 0.1, …}}`, maybe a `key`.

The first line with losses decides whether they are lists or mappings, and the order of the actions,
unless the actions are given. The live JSON format itself reads the losses (`streamdp.wire`), so a
line means what its event means live: finite numbers outside [0, 1] are clipped, and counted. Beside
`losses` a line may have `key` (text or null), `offset` and `partition` (whole numbers); other
fields are ignored.

`"losses": null` is an intended null loss. An unusable line is an error that names the line, or with
`on_bad = "null"` the null loss that it would be live. An empty line is not an event.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamdp.core.events import numbered
from streamdp.lab.logs import ReadOptions
from streamdp.lab.logs.clipping import decoded
from streamdp.lab.logs.log import (
    Columns,
    FileLog,
    Log,
    OnBad,
    Portion,
    check_spelling,
    numbered_actions,
    portions_of,
    wrong,
)
from streamdp.wire.json_format import JsonFormat

_LINES = 1 << 13  # a portion
_BLOCK = 1 << 24  # bytes of a part, about


class _Beside(msgspec.Struct, gc=False):
    """The other members of a line."""

    key: str | None = None
    offset: int | None = None
    partition: int | None = None


class _Losses(msgspec.Struct, gc=False):
    """A line's losses, not decoded yet."""

    losses: msgspec.Raw = msgspec.Raw(b"")


_beside = msgspec.json.Decoder(_Beside)
_raw = msgspec.json.Decoder(_Losses)


@dataclass(frozen=True, slots=True)
class Lines:
    """Consecutive lines of a file."""

    path: Path
    begin: int  # of its bytes
    lines: int
    line: int  # how many lines are before it
    first: int  # the number of its first event in the log
    slots: int

    @property
    def file(self) -> str:
        """The path as text."""
        return str(self.path)

    def read(self) -> Iterator[tuple[list[bytes], list[int], range]]:
        """Some thousands of events at a time: texts, line numbers from 1, numbers as rows."""
        row, line, end = self.first, self.line, self.line + self.lines
        with self.path.open("rb") as file:
            file.seek(self.begin)
            while lines := list(islice(file, min(_LINES, end - line))):
                events = [text for text in lines if not text.isspace()]
                numbers = [line + at for at, text in enumerate(lines, 1) if not text.isspace()]
                line += len(lines)
                if events:
                    yield events, numbers, range(row, row + len(events))
                row += len(events)


def lines_of(path: Path, *, first: int = 0) -> Iterator[Lines]:
    """The lines of a file in parts, whose rows are numbered from `first` on."""
    begin = line = row = 0
    with path.open("rb") as file:
        while lines := file.readlines(_BLOCK):
            events = sum(not text.isspace() for text in lines)
            yield Lines(path, begin, len(lines), line, first + row, events)
            begin, line, row = begin + sum(map(len, lines)), line + len(lines), row + events


@dataclass(frozen=True, slots=True)
class _Part:
    """Lines with losses."""

    lines: Lines
    actions: tuple[str, ...]
    layout: Any
    on_bad: OnBad

    @property
    def path(self) -> Path:
        return self.lines.path

    def portions(self) -> Iterator[Portion]:
        """The events, some thousands at a time."""
        format_ = JsonFormat(actions=self.actions, layout=self.layout)
        for events, numbers, rows in self.lines.read():
            losses, clipped = self._losses(format_, events, numbers)
            columns = self._columns(events, numbers)
            yield from portions_of({"losses": losses}, columns, rows, clipped=clipped)

    def keyed(self) -> Iterator[Portion]:
        """The events without losses."""
        for events, numbers, rows in self.lines.read():
            yield from portions_of({}, self._columns(events, numbers), rows)

    def _losses(
        self, format_: JsonFormat, events: list[bytes], numbers: list[int]
    ) -> tuple[NDArray[np.float32], int]:
        """The rows, and how many of them were clipped."""
        decoding, clipped = decoded(format_, events)
        losses = decoding.content["losses"]
        if self.on_bad == "refuse":
            for at in np.flatnonzero(np.isnan(losses[:, 0])).tolist():
                self._explain(format_, events[at], numbers[at])
            if self.layout == "mapping":
                self._check_names(events, numbers)
        return losses, clipped

    def _explain(self, format_: JsonFormat, event: bytes, number: int) -> None:
        try:
            if bytes(_raw.decode(event).losses) == b"null":
                return
        except msgspec.MsgspecError:
            pass
        where = f"{self.path}: line {number}"
        why = format_.explain(event) or "no finite numbers"
        shape = "list" if self.layout == "list" else "mapping"
        expected = f'{{"losses": {shape} of {len(self.actions)} numbers}}'
        raise wrong(where, "unusable", expected=expected, got=why)

    def _check_names(self, events: list[bytes], numbers: list[int]) -> None:
        """Refuse an unknown action, which would silently be ignored."""
        known = set(self.actions)
        for event, number in zip(events, numbers, strict=True):
            given = msgspec.json.decode(event).get("losses")
            unknown = sorted(set(given) - known) if isinstance(given, dict) else []
            if unknown:
                where = f"{self.path}: line {number}"
                raise wrong(where, "unknown action", expected=sorted(known)[:20], got=unknown[0])

    def _columns(self, events: list[bytes], numbers: list[int]) -> Columns:
        members = []
        for event, number in zip(events, numbers, strict=True):
            try:
                members.append(_beside.decode(event))
            except msgspec.ValidationError as error:
                if self.on_bad == "refuse":
                    where = f"{self.path}: line {number}"
                    expected = "a text as key, whole numbers as offset and partition"
                    raise wrong(where, "wrong type", expected=expected, got=error) from None
                members.append(_Beside())
            except (msgspec.MsgspecError, UnicodeError):
                members.append(_Beside())
        keyed = any(member.key is not None for member in members)
        return Columns(
            numbered([None if m.key is None else m.key.encode() for m in members])
            if keyed
            else None,
            self._whole("offset", [member.offset for member in members], numbers),
            self._whole("partition", [member.partition for member in members], numbers),
        )

    def _whole(
        self, name: str, values: list[int | None], numbers: list[int]
    ) -> NDArray[np.int64] | None:
        if all(value is None for value in values):
            return None
        for value, number in zip(values, numbers, strict=True):
            if value is None:
                where = f"{self.path}: line {number}"
                raise wrong(where, f"no {name}", expected="one in every line", got="none")
            if value < 0:
                raise wrong(f"{self.path}: line {number}", name, expected="0 or more", got=value)
        return np.array(values, dtype=np.int64)


def open_files(paths: Sequence[Path], how: ReadOptions, *, name: str) -> Log:
    """The log in files of JSON lines, one behind the other."""
    parts: list[Lines] = []
    for path in paths:
        parts += lines_of(path, first=sum(part.slots for part in parts))
    if not parts:
        raise wrong(name, "empty", expected="one event a line", got="no lines")
    names, layout = _first_losses(paths, how, name)
    read = tuple(_Part(lines, names, layout, how.on_bad) for lines in parts)
    return FileLog(name, names, sum(part.slots for part in parts), read)


def _first_losses(
    paths: Sequence[Path], how: ReadOptions, name: str
) -> tuple[tuple[str, ...], Any]:
    for path in paths:
        for number, text in _numbered_lines(path):
            given = None if text.isspace() else _given(text)
            if given is None:
                continue
            beside = msgspec.json.decode(text)
            check_spelling(beside, _Beside.__struct_fields__, where=f"{path}: line {number}")
            if isinstance(given, dict):
                names = how.actions or tuple(given)
                layout = "mapping"
            elif isinstance(given, list):
                names, layout = how.actions or numbered_actions(len(given)), "list"
            else:
                where = f"{path}: line {number}: losses"
                raise wrong(
                    where, "wrong type", expected="list or mapping", got=type(given).__name__
                )
            if len(names) < 2:
                where = f"{path}: line {number}: losses"
                raise wrong(where, "too few", expected="2 or more numbers", got=len(names))
            return names, layout
    raise wrong(name, "no losses", expected='lines with "losses"', got="none")


def _numbered_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    with path.open("rb") as file:
        yield from enumerate(file, 1)


def _given(text: bytes) -> Any:
    try:
        event = msgspec.json.decode(text)
    except (msgspec.MsgspecError, UnicodeError):
        return None
    return event.get("losses") if isinstance(event, dict) else None
