"""A partition's saved entries, as a transport reads them: rows go straight into a new engine.

A state of a million keys is read once, and none of its rows is in memory a second time. Recorded
releases wait as they are, because most of them are deleted by a later entry. Once there are many,
those that are surely published are looked at, by the newest checkpoint:

- One whose last record lies before `low_water` is behind its key's saved row. No rebuild reads it,
  so nothing is kept but its name, and that only until an entry deletes it.
- Of any other, a rebuild needs what was drawn (`RecordedReleases`).

Of earlier epochs' rows the public columns are read, once an entry says what they mean: keys carry
them over (`carrying`). Other rows, and earlier epochs' releases, stay whole.
"""

from __future__ import annotations

import re
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import compress
from typing import TYPE_CHECKING

import numpy as np

from streamdp.core.errors import StateMismatch
from streamdp.core.events import Key
from streamdp.core.releases import Identity, RecordedReleases
from streamdp.ports import LiveEntries, Partition, Taken, Value
from streamdp.service.carrying import Heritage, loading_of
from streamdp.service.spec import StreamSpec
from streamdp.wire.entries import PLAIN, Entries, parse_entry, read_key
from streamdp.wire.recorded import heads_of
from streamdp.wire.rereading import Rereading
from streamdp.wire.state import SavedState, decode_checkpoint, decode_learner, read_state

if TYPE_CHECKING:  # a check of the configuration needs no engine
    from streamdp.core.engine import Engine
    from streamdp.core.snapshot import Loading

_MANY = 10_000
"""Entries that wait as they are."""

_AT_ONCE = 2000  # recorded releases read together


class EntryKeys:
    """Keys of entries, by their hashes, as a few dozen bytes each."""

    def __init__(self, beginning: bytes) -> None:
        """All of them begin so."""
        self._beginning = beginning
        self._hashes = array("q")
        self._lines = bytearray()  # what follows; JSON has no line's end

    def __len__(self) -> int:
        """How many."""
        return len(self._hashes)

    def __iter__(self) -> Iterator[bytes]:
        """All of them, in their order."""
        for line in re.finditer(rb"[^\n]+", self._lines):
            yield self._beginning + line[0]

    def add(self, places: list[bytes]) -> None:
        """Add some that are not there."""
        length = len(self._beginning)
        self._hashes.extend(map(hash, places))
        self._lines += b"".join([place[length:] + b"\n" for place in places])

    def discard(self, places: list[bytes]) -> list[bytes]:
        """Forget some; return those that were not there."""
        gone = np.fromiter(map(hash, places), dtype=np.int64, count=len(places))
        here = np.array(self._hashes, dtype=np.int64)
        unknown, stays = ~np.isin(gone, here), ~np.isin(here, gone)
        if not stays.all():
            lines = np.frombuffer(self._lines, dtype=np.uint8)
            lengths = np.diff(np.flatnonzero(lines == ord("\n")), prepend=-1)
            self._lines = bytearray(lines[np.repeat(stays, lengths)].tobytes())
            self._hashes = array("q", here[stays].tobytes())
        return list(compress(places, unknown.tolist()))


class SavedEntries(LiveEntries):
    """All entries but the rows, and the published releases, of the epoch: these are apart."""

    def __init__(
        self,
        spec: StreamSpec,
        partition: Partition,
        *,
        told: Callable[[int], None] = lambda _: None,
    ) -> None:
        """`told` gets the number of entries after each reading, in the thread that reads."""
        super().__init__()
        self._told = told
        self.heritage = Heritage()
        self.engine: Engine = spec.engine(partition.number, heritage=self.heritage)
        self.rows: Loading = self.engine.loading()
        self._epoch = spec.epoch_of(partition.number)
        self._loaded = {self._epoch: self.rows}  # by epoch
        nothing = self.engine.no_releases
        self.published = RecordedReleases(nothing)
        self._deleted: list[bytes] = []  # keys of releases that do not wait here as they are
        self.entered = 0
        self._entries = Entries(partition.stream, partition.number)
        self._where = f"state of {partition}"
        self._row, self._learner = map(self._entries.all_of, ("row", "learner"))
        self._plain_row = re.compile(
            re.escape(self._row) + rb'([1-9]\d{0,17}),"([^"\\\x00-\x1f\x7f-\xff]*)"\]'
        )
        self._release = self._entries.beginning("release", epoch=self._epoch)
        self.behind = EntryKeys(self._release)  # published releases that no rebuild reads
        self._rereading = Rereading(self._entries, nothing, where=self._where)
        self._most = _MANY

    @classmethod
    def of(cls, spec: StreamSpec, partition: Partition, taken: Taken) -> SavedEntries:
        """What a transport has read into it, or the same of entries that were read otherwise."""
        if isinstance(taken.state, SavedEntries):
            return taken.state
        entries = cls(spec, partition)
        entries.enter(list(taken.state), list(taken.state.values()))
        return entries

    def opened(self, key: Key) -> bool:
        """Whether a key has opened in this epoch."""
        return key in self.rows or self.published.of_key(key)

    def enter(self, places: Sequence[bytes], values: Sequence[Value]) -> None:
        """Let entries take the place of earlier ones, in this order; None deletes."""
        self.entered += len(places)
        self._told(self.entered)
        if not self._put_plain(places, values):
            is_row = [place.startswith(self._row) for place in places]
            rows = list(compress(places, is_row)), list(compress(values, is_row))
            entries = zip(places, values, strict=True)
            others = [entry for entry, row in zip(entries, is_row, strict=True) if not row]
            whole = [] if others and self._put_plain(*rows) else self._put_rows(*rows)
            self._enter_others([*whole, *others])
        if len(self) > self._most:
            self._sort()
            self._most = _MANY + 2 * len(self)
        if len(self._deleted) > _MANY + len(self.behind) // 4:
            self._delete()

    def _put_plain(self, places: Sequence[bytes], values: Sequence[Value]) -> bool:
        """Put rows of one epoch, without a look at each; False if there is anything else.

        That is a deletion too, and a row whose key JSON does not write as it is.
        """
        first = self._plain_row.fullmatch(places[0]) if places else None
        if first is None or (epoch := int(first[1])) not in self._loaded:
            return False
        lines = b"\n".join(places)
        begin = lines[: first.start(2)]
        keys = lines[len(begin) : -2].split(b'"]\n' + begin)
        rows = [value for value in values if value is not None]
        one_each = len(keys) == lines.count(b"\n") + 1 == len(places) == len(rows)
        if not one_each or lines[-2:] != b'"]' or b"".join(keys).translate(None, PLAIN):
            return False
        self._loaded[epoch].put(dict(zip(keys, rows, strict=True)))
        return True

    def _put_rows(
        self, places: Sequence[bytes], values: Sequence[Value]
    ) -> list[tuple[bytes, Value]]:
        """Put rows where they belong; return those that stay as they are."""
        rows: defaultdict[int, dict[Key, bytes]] = defaultdict(dict)
        others: list[tuple[bytes, Value]] = []
        for place, value in zip(places, values, strict=True):
            epoch, key = self._row_at(place)
            if epoch not in self._loaded:
                others.append((place, value))
            elif value is not None:
                rows[epoch][key] = value
            else:
                self._loaded[epoch].put(rows.pop(epoch, {}))
                self._loaded[epoch].drop([key])
        for epoch, of_epoch in rows.items():
            self._loaded[epoch].put(of_epoch)
        return others

    def _enter_others(self, entries: list[tuple[bytes, Value]]) -> None:
        for place, value in entries:
            if value is not None:
                self[place] = value
                if place.startswith(self._learner):
                    self._learn(place, value)
            elif self.pop(place, None) is None and place.startswith(self._release):
                self._deleted.append(place)

    def _learn(self, place: bytes, value: bytes) -> None:
        """Read the rows of an earlier epoch from now on: an entry says what they mean."""
        try:
            _, epoch, _ = parse_entry(place, self._entries, where=self._where)
            learner = decode_learner(value, where=self._where)
        except StateMismatch:
            return  # whoever reads it next says so
        if epoch < self._epoch and epoch not in self._loaded:
            self._loaded[epoch] = loading_of(epoch, learner)
            begin = self._entries.beginning("row", epoch=epoch)
            rows = [row for row in self if row.startswith(begin)]
            self.enter(rows, [self.pop(row) for row in rows])
            self.entered -= len(rows)

    @property
    def earlier(self) -> dict[int, Loading]:
        """The rows of earlier epochs that are not among the entries."""
        return {of: rows for of, rows in self._loaded.items() if of != self._epoch and len(rows)}

    def keep_needed(self) -> None:
        """Keep of releases that are surely published what a rebuild needs of them."""
        self._sort()
        self._delete()

    def _sort(self) -> None:
        value = self.get(self._entries.checkpoint)
        try:
            point = None if value is None else decode_checkpoint(value)
        except StateMismatch:
            return  # whoever reads it next says so
        published, low_water = 0, 0
        if point is not None:
            published = point.lines_published
            low_water = point.low_water if point.epoch == self._epoch else 0
        behind: list[bytes] = []
        releases: list[tuple[bytes, bytes]] = []
        waiting = [(place, of) for place, of in self.items() if place.startswith(self._release)]
        for first in range(0, len(waiting), _AT_ONCE):
            places, values = zip(*waiting[first : first + _AT_ONCE], strict=True)
            heads, whole = heads_of(places, values)
            passed = whole & (heads["last_offset"] < low_water) & (heads["ordinal"] <= published)
            behind += compress(places, passed.tolist())
            releases += compress(zip(places, values, strict=True), (~passed).tolist())
        for place in behind:
            del self[place]
        self.behind.add(behind)
        for first in range(0, len(releases), _AT_ONCE):
            known, read = self._rereading.read(releases[first : first + _AT_ONCE])
            shown = read.ordinal <= published
            self.published.add(read.at(np.flatnonzero(shown)))
            for place in compress(known, shown.tolist()):
                del self[place]

    def _delete(self) -> None:
        """Forget what entries have deleted."""
        deleted, self._deleted = self.behind.discard(self._deleted), []
        if not len(self.published):
            return
        names = list[Identity]()
        for place in deleted:
            with suppress(StateMismatch):
                names.append(self._rereading.identity(place))
        self.published.discard(names)

    def _row_at(self, place: bytes) -> tuple[int, Key]:
        """The epoch and key of a row, from its entry's key; of a foreign one, none."""
        plain = self._plain_row.fullmatch(place)
        if plain is not None:
            return int(plain[1]), plain[2]
        try:
            _, epoch, rest = parse_entry(place, self._entries, where=self._where)
            return epoch, read_key(rest[-1], where=self._where)
        except StateMismatch:  # whoever reads it says so
            return 0, None

    def check_epoch(self) -> None:
        """Refuse rows or releases of an epoch that has not begun."""
        ahead = max([self._epoch] * bool(len(self.rows) + len(self.published)) + [*self.earlier, 0])
        if not ahead:
            return
        point = self.get(self._entries.checkpoint)
        newest = None if point is None else decode_checkpoint(point, where=self._where).epoch
        if newest is None or newest < ahead:
            raise StateMismatch(
                self._where,
                "a row ahead of all",
                expected="no entry without a checkpoint" if newest is None else newest,
                got=f"epoch {ahead}",
            )


def read(partition: Partition, taken: Taken) -> SavedState:
    """All live entries of a partition, however they were read; `StateMismatch` unless they fit."""
    state = taken.state
    loaded = state.earlier if isinstance(state, SavedEntries) else None
    return read_state(state, stream=partition.stream, partition=partition.number, loaded=loaded)
