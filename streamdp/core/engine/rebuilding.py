"""An engine again, from saved rows, the log and the recorded releases.

Sums are a function of the input, so a row need not be saved each time it changes: the log is the
changelog. A rebuild reads the log again from the oldest record that some save does not hold, gives
each record only to rows that are older than it, and takes the recorded release wherever a block
ends. It arrives at the committed position with the sums and the actions that were there before.

Private randomness that no release has used yet (an open prefix window, resampled bits) may be
drawn anew: nobody has seen it.

A key without a saved row starts at the `born` of its recorded opening; before that it was beyond
the limit of rows. A key that was away and came back has an opening that is younger than its saved
row: it starts there, and neither that row nor a release of the learner before is believed, or a
record would bring it back under its old `born`.

What was recorded must lie behind when all is read, and be of the records that its block now has.
Else the log had a hole, then or now, and a record would be drawn from a second time (P4, P5).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from streamdp.core import snapshot
from streamdp.core.arrays import Ints
from streamdp.core.bank import CLEAN
from streamdp.core.engine.crowding import CrowdStanding
from streamdp.core.engine.draws import FromRecord, Recorded, recorded
from streamdp.core.engine.idleness import Ages
from streamdp.core.engine.machine import MOST_ROWS, Engine
from streamdp.core.engine.plan import Batch, check, only
from streamdp.core.engine.pooling import NO_SLOT, POOL_KEY
from streamdp.core.errors import StateMismatch, complaint
from streamdp.core.events import OPENING, Key, Release
from streamdp.core.schedule import LAST_SLOT


class Rebuilding:
    """Turns a new engine into the one that was: feed it the log, then finish.

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
        crowd: CrowdStanding | None = None,
    ) -> None:
        """`ages`: how far time was when the rows were counted, where keys went idle; `crowd`: how
        far the crowd was, where there is one."""
        if len(engine) or engine.position:
            raise StateMismatch(complaint("rebuild", "engine", expected="a new one", got=engine))
        self._engine, self._ages = engine, ages
        self._bank = engine._bank
        rows, releases = _newest(engine, rows, releases)
        self._releases = releases
        crowded = engine.crowd() is not None
        self._record = FromRecord(engine.estimates, releases, crowded=crowded)
        self._crowd = CrowdStanding(0, ()) if crowd is None else crowd
        if engine._crowd is not None:
            engine._crowd.learn(self._crowd)  # policies on record were told them
        self._born = {name.key: name.born for name in releases if name.kind == OPENING}
        self._valid_at = snapshot.load(engine.layout, self._bank, rows)
        self._saved = [key for key, _ in rows]
        self._seen = _seen(engine, rows, ages)
        self._check_blocks()
        engine._fresh.tag(self._bank, np.arange(len(rows)))
        self._bank.first_unsaved[: len(rows)] = CLEAN
        if engine.idleness is not None and ages is not None:
            self._bank.seen[: len(rows)] = self._seen
            engine.idleness.begin(ages.low, ages.since)
        engine._book_past()

    def valid_at(self) -> dict[Key, int]:
        """The position that each saved row holds its learner at."""
        return dict(zip(self._saved, self._valid_at.tolist(), strict=True))

    def open_since(self, *, end: int) -> int:
        """The oldest record of a block that is open in the rows as they are by now, or `end`."""
        return self._engine.open_since(end=end)

    def feed(self, batch: Batch) -> None:
        """Records again, in order; each goes only to rows that are older than it."""
        engine = self._engine
        check(batch, learner=engine.learner, position=engine.position)
        engine._check_whole()
        batch = engine._timed(batch)
        wanted = only(batch, self._wanted(batch))
        waves = engine._step(wanted, self._record, limit=MOST_ROWS, read=batch)
        for release in engine._releasing.of(waves):
            self._check_records(release)
        engine._halfway = False

    def finish(self, *, position: int, rows: int) -> Engine:
        """The engine, at the committed position, if everything fits."""
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
        if engine._crowd is not None:
            engine._crowd.begin(self._crowd)
        if engine._pool is not None:
            _check_pool(self._crowd.pool, rows=len(engine))
            _go_on(engine._pool.engine, self._crowd.pool, position=position)
        self._go_on_in_time()
        engine.slots_refused = 0
        return engine

    def _away(self) -> int:
        """How many of the rows were dropped when they were counted."""
        if self._ages is None:
            return 0
        untouched = self._bank.first_unsaved[: len(self._seen)] == CLEAN
        return int(np.count_nonzero(untouched & (self._seen < self._ages.dropped_before())))

    def _go_on_in_time(self) -> None:
        """Time is what it was; the rows of keys that are away are dropped again."""
        idleness, ages = self._engine.idleness, self._ages
        if idleness is None:
            return
        if ages is not None:
            idleness.begin(ages.newest, ages.since)
        elif idleness.newest is not None and idleness.since is not None:
            idleness.begin(idleness.newest, idleness.since)  # keys go idle from this taking on
        else:
            return
        self._engine._drop(idleness.dropped_before())

    def _check_records(self, release: Release) -> None:
        """A release was drawn over the records that its block has now, and remembered as now."""
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
                        expected="the one on record",
                        got="another",
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
        """Every saved row is in the block that its next slot belongs to."""
        slots, block = (
            column[: len(self._bank)] for column in (self._bank.slots, self._bank.block)
        )
        if (slots > LAST_SLOT).any() or (
            block != self._engine.learner.schedule.blocks_of(slots + 1)
        ).any():
            raise StateMismatch(
                complaint(
                    "saved row", "slots and block", expected="those of this schedule", got="others"
                )
            )

    def _check_all_behind(self) -> None:
        """Every recorded release is of a block that has ended, of a learner that is there."""
        bank, names = self._bank, list(self._releases)
        rows = bank.rows([name.key for name in names])
        born = np.array([name.born for name in names], dtype=np.int64)
        ended = [-1 if name.kind == OPENING else name.block for name in names]
        behind = (rows >= 0) & (bank.born[rows] == born)
        behind &= bank.block[rows] > np.array(ended, dtype=np.int64)
        if not behind.all():
            name = names[int(behind.argmin())]
            raise StateMismatch(
                complaint(
                    "rebuild",
                    "a recorded release lies ahead",
                    expected=f"{name.kind} of block {name.block} born at {name.born} behind",
                    got="a log with too few records",
                )
            )

    def _wanted(self, batch: Batch) -> NDArray[np.bool_]:
        """Which slots some row has not seen yet."""
        rows = self._bank.rows(batch.keys)
        since = np.full(len(rows), CLEAN, dtype=np.int64)
        saved = (rows >= 0) & (rows < len(self._valid_at))
        since[saved] = self._valid_at[rows[saved]]
        since[rows >= len(self._valid_at)] = 0
        for at in np.flatnonzero(rows < 0).tolist():
            since[at] = self._born.get(batch.keys[at], CLEAN)
        return np.asarray(batch.offsets >= since[batch.index], dtype=np.bool_)


def _check_pool(saved: bytes, *, rows: int) -> None:
    """Keys that have rows may have donated slots: then the pool is part of the checkpoint."""
    if rows and not saved:
        raise StateMismatch(
            complaint(
                "rebuild: pool", "not saved", expected="the one at the checkpoint", got="none"
            )
        )


def _go_on(pool: Engine, saved: bytes, *, position: int) -> None:
    """The pool from its checkpoint: it is saved with each, so no record is read again for it."""
    rows = [(POOL_KEY, saved)] if saved and saved != NO_SLOT else []
    rebuilding = Rebuilding(pool, rows=rows, releases={})
    for valid_at in rebuilding.valid_at().values():
        if valid_at != position:
            raise StateMismatch(
                complaint("rebuild: pool", "of another checkpoint", expected=position, got=valid_at)
            )
    rebuilding.finish(position=position, rows=len(rows))


def _seen(engine: Engine, rows: Sequence[tuple[Key, bytes]], ages: Ages | None) -> Ints:
    """When the latest record of each saved row came, also where the stream asks no more."""
    if ages is None:
        return np.zeros(len(rows), dtype=np.int64)
    seen = snapshot.public_columns(replace(engine.layout, seen=1), rows).seen
    return np.where(seen == 0, ages.since, seen)


def _newest(
    engine: Engine, rows: Sequence[tuple[Key, bytes]], releases: Recorded
) -> tuple[Sequence[tuple[Key, bytes]], Recorded]:
    """What is of each key's newest learner: what is of an older one is only there to go."""
    openings: dict[Key, int] = {}
    for name in releases:
        if name.kind == OPENING:
            openings[name.key] = max(name.born, openings.get(name.key, 0))
    recorded_keys = {name.key for name in releases}
    twice = [(key, row) for key, row in rows if key in recorded_keys]
    saved = snapshot.public_columns(engine.layout, twice).born.tolist()
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
    """A new engine brought to `position`; see `Rebuilding`."""
    rebuilding = Rebuilding(engine, rows=rows, releases=releases)
    for batch in log:
        rebuilding.feed(batch)
    return rebuilding.finish(position=position, rows=expected_rows)
