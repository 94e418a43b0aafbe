"""Rebuilds an engine from saved rows, the log and the recorded releases.

Sums are a function of the input, so a row need not be saved each time it changes: the log is the
changelog. A rebuild reads the log again from the oldest record that some row's save lacks, gives
each record only to rows that were saved before it, and takes the recorded release wherever a block
ends. It arrives at the committed position with the sums and the actions that were there before.

Private randomness that no release has used yet (an open prefix window, resampled bits) may be
drawn anew: nobody has seen it.

A key without a saved row starts at the `born` of its recorded opening; before that it was beyond
the limit of rows. A key that was away and came back has an opening that is younger than its saved
row: it starts there. That row and the releases of the learner before are ignored, because with them
a record would bring the key back under its old `born`.

At the end every recorded release must lie behind the rebuilt rows, and must have been drawn from
the records that its block has now. Otherwise the log had a hole, then or now, and a record would be
drawn from a second time (P4, P5).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from zlib import crc32

import numpy as np

from streamdp.core import snapshot
from streamdp.core.arrays import Bools, Ints
from streamdp.core.bank import CLEAN
from streamdp.core.engine.draws import FromRecord
from streamdp.core.engine.idleness import Ages
from streamdp.core.engine.machine import MOST_ROWS, Engine
from streamdp.core.errors import StateMismatch, complaint
from streamdp.core.events import OPENING, Batch, Key, Release
from streamdp.core.kinds.recorded import Recorded, recorded
from streamdp.core.schedule import LAST_SLOT


class Rebuilding:
    """Restores a new engine to a committed position: feed it the log, then finish.

    >>> rebuilding = Rebuilding(engine, rows=saved, releases=recorded)   # doctest: +SKIP
    >>> for batch in log: rebuilding.feed(batch)                         # doctest: +SKIP
    >>> engine = rebuilding.finish(position=position, rows=len(saved))   # doctest: +SKIP
    """

    def __init__(
        self,
        engine: Engine,
        *,
        rows: Sequence[tuple[Key, bytes]],
        releases: Recorded,
        ages: Ages | None = None,
    ) -> None:
        """`ages`: the checkpoint's time, where keys went idle."""
        if len(engine) or engine.position:
            raise StateMismatch(complaint("rebuild", "engine", expected="a new one", got=engine))
        self._engine, self._ages = engine, ages
        self._bank = engine._bank
        rows, releases = _newest(engine, rows, releases)
        self._releases = releases
        self._record = FromRecord(engine.kind, self._bank, releases)
        self._born = {name.key: name.born for name in releases if name.kind == OPENING}
        self._valid_at = snapshot.load(engine.layout, self._bank, rows)
        self._saved = [key for key, _ in rows]
        self._seen = _seen(engine, rows, ages)
        self._check_blocks()
        engine._fresh.tag(np.arange(len(rows)))
        self._bank.first_unsaved[: len(rows)] = CLEAN
        if engine.idleness is not None and ages is not None:
            self._bank.seen[: len(rows)] = self._seen
            engine.idleness.begin(ages.low, ages.since)
        engine._book_past()

    def valid_at(self) -> dict[Key, int]:
        """The position as of which each row was saved."""
        return dict(zip(self._saved, self._valid_at.tolist(), strict=True))

    def open_since(self, *, end: int) -> int:
        """The oldest record of a block that is open in the rows so far, or `end`."""
        return self._engine.open_since(end=end)

    def feed(self, batch: Batch) -> None:
        """Apply records again, in order; each goes only to rows that were saved before it."""
        engine = self._engine
        batch = engine._timed(engine._checked(batch))
        want = self._wanted(batch)
        wanted = batch if want.all() else batch.part(want)
        waves = engine._step(wanted, self._record, limit=MOST_ROWS, read=batch)
        for release in engine._releasing.of(waves):
            self._check_records(release)
        engine._halfway = False

    def finish(self, *, position: int, rows: int) -> Engine:
        """Return the engine at the committed position; `StateMismatch` if anything does not fit."""
        engine = self._engine
        engine._check_whole()
        furthest = max(engine.position, int(self._valid_at.max(initial=0)))
        if furthest > position:
            expected = f"at most {position}"
            raise StateMismatch(
                complaint("rebuild", "past the checkpoint", expected=expected, got=furthest)
            )
        if len(engine) - self._away() != rows:
            rebuilt = len(engine) - self._away()
            raise StateMismatch(complaint("rebuild", "rows", expected=rows, got=rebuilt))
        self._check_all_behind()
        engine.position = position
        self._go_on_in_time()
        engine.slots_refused = 0
        return engine

    def _away(self) -> int:
        """How many of the saved rows were dropped at the checkpoint."""
        if self._ages is None:
            return 0
        untouched = self._bank.first_unsaved[: len(self._seen)] == CLEAN
        return int(np.count_nonzero(untouched & (self._seen < self._ages.dropped_before())))

    def _go_on_in_time(self) -> None:
        """Set time to the checkpoint's, and drop the rows of keys that are away again."""
        idleness, ages = self._engine.idleness, self._ages
        if idleness is None:
            return
        if ages is not None:
            idleness.begin(ages.newest, ages.since)
        elif idleness.newest is not None and idleness.since is not None:
            idleness.begin(idleness.newest, idleness.since)  # the first time that keys go idle
        else:
            return
        self._engine._drop(idleness.dropped_before())

    def _check_records(self, release: Release) -> None:
        """Refuse a recorded release with other records, or another action or policy, than now."""
        (again,) = recorded([release]).items()
        name, now = again
        then = self._releases[name]
        for what, on_record, found_now in (
            ("action", then.in_force, now.in_force),
            ("policy", then.policy, now.policy),
        ):
            if on_record is not None and on_record != found_now:
                raise StateMismatch(
                    complaint(
                        f"rebuild: {name.kind} of block {name.block} born at {name.born}",
                        f"another {what} was in force",
                        expected=f"the recorded one, {_shown(on_record)}",
                        got=_shown(found_now),
                    )
                )
        if then._replace(in_force=now.in_force, policy=now.policy) != now:
            raise StateMismatch(
                complaint(
                    f"rebuild: {name.kind} of block {name.block} born at {name.born}",
                    "drawn over other records",
                    expected=f"records {then.first_offset} … {then.last_offset}",
                    got=f"{now.first_offset} … {now.last_offset}",
                )
            )

    def _check_blocks(self) -> None:
        """Refuse a saved row that is not in the block of its next slot."""
        slots, block = (
            column[: len(self._bank)] for column in (self._bank.slots, self._bank.block)
        )
        expected = self._engine.kind.schedule.blocks_of(slots + 1)
        wrong = (slots > LAST_SLOT) | (block != expected)
        if wrong.any():
            row = int(wrong.argmax())
            raise StateMismatch(
                complaint(
                    "saved row",
                    "slots and block",
                    expected=f"block {expected[row]} after {slots[row]} of {LAST_SLOT} slots",
                    got=f"block {block[row]}",
                )
            )

    def _check_all_behind(self) -> None:
        """Refuse a recorded release of a learner that is not there or of a block that is open."""
        bank, names = self._bank, list(self._releases)
        rows = bank.rows([name.key for name in names])
        born = np.array([name.born for name in names], dtype=np.int64)
        ended = [-1 if name.kind == OPENING else name.block for name in names]
        behind = (rows >= 0) & (bank.born[rows] == born)
        behind &= bank.block[rows] > np.array(ended, dtype=np.int64)
        if not behind.all():
            at = int(behind.argmin())
            name, row = names[at], int(rows[at])
            reached = f"block {bank.block[row]} born at {bank.born[row]}" if row >= 0 else "no row"
            raise StateMismatch(
                complaint(
                    "rebuild",
                    "a recorded release lies ahead",
                    expected=f"records past {name.kind} of block {name.block} born at {name.born}",
                    got=f"{reached} at the end of the log",
                )
            )

    def _wanted(self, batch: Batch) -> Bools:
        """Which slots their rows have not seen yet."""
        rows = self._bank.rows(batch.keys)
        since = np.full(len(rows), CLEAN, dtype=np.int64)
        saved = (rows >= 0) & (rows < len(self._valid_at))
        since[saved] = self._valid_at[rows[saved]]
        since[rows >= len(self._valid_at)] = 0
        for at in np.flatnonzero(rows < 0).tolist():
            since[at] = self._born.get(batch.keys[at], CLEAN)
        return np.asarray(batch.offsets >= since[batch.index], dtype=np.bool_)


def _shown(in_force: int | bytes | None) -> str:
    """An action's number, or the checksum of a policy; both are public."""
    return f"CRC-32 {crc32(in_force):08x}" if isinstance(in_force, bytes) else str(in_force)


def _seen(engine: Engine, rows: Sequence[tuple[Key, bytes]], ages: Ages | None) -> Ints:
    """When the latest record of each saved row came, even if keys no longer go idle."""
    if ages is None:
        return np.zeros(len(rows), dtype=np.int64)
    seen = snapshot.public_columns(engine.layout, rows)["seen"]
    return np.where(seen == 0, ages.since, seen)


def _newest(
    engine: Engine, rows: Sequence[tuple[Key, bytes]], releases: Recorded
) -> tuple[Sequence[tuple[Key, bytes]], Recorded]:
    """The rows and releases of each key's newest learner; older ones wait to be deleted."""
    openings: dict[Key, int] = {}
    for name in releases:
        if name.kind == OPENING:
            openings[name.key] = max(name.born, openings.get(name.key, 0))
    recorded_keys = {name.key for name in releases}
    twice = [(key, row) for key, row in rows if key in recorded_keys]
    saved = snapshot.public_columns(engine.layout, twice)["born"].tolist()
    newest = dict(openings)
    for (key, _), born in zip(twice, saved, strict=True):
        newest[key] = max(born, newest.get(key, 0))
    older = {key for (key, _), born in zip(twice, saved, strict=True) if born < newest[key]}
    return (
        [(key, row) for key, row in rows if key not in older] if older else rows,
        {name: kept for name, kept in releases.items() if name.born >= newest.get(name.key, 0)},
    )


def rebuild(
    engine: Engine,
    *,
    rows: Sequence[tuple[Key, bytes]],
    releases: Recorded,
    log: Iterable[Batch],
    position: int,
    expected_rows: int,
) -> Engine:
    """Rebuild a new engine to `position` in one call; see `Rebuilding`."""
    rebuilding = Rebuilding(engine, rows=rows, releases=releases)
    for batch in log:
        rebuilding.feed(batch)
    return rebuilding.finish(position=position, rows=expected_rows)
