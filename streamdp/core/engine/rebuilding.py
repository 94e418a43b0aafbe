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

from streamdp.core.arrays import Bools, Ints
from streamdp.core.bank import CLEAN
from streamdp.core.engine.idleness import Ages
from streamdp.core.engine.machine import MOST_ROWS, Engine
from streamdp.core.engine.releasing import FromRecord
from streamdp.core.errors import StateMismatch
from streamdp.core.events import OPENING, SUMS, Batch, BlockSums, Key, Release, Releases
from streamdp.core.kinds.recorded import (
    NOT_RECORDED,
    NOTHING,
    ManyRecorded,
    Names,
    Recorded,
    Rest,
    recorded,
)
from streamdp.core.schedule import LAST_SLOT
from streamdp.core.snapshot import Loading


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
        rows: Iterable[tuple[Key, bytes]] | Loading,
        releases: Recorded,
        ages: Ages | None = None,
    ) -> None:
        """`rows`: saved rows, or what has put them into this engine's bank.

        `ages`: the checkpoint's time, where keys went idle.
        """
        loading = rows if isinstance(rows, Loading) else engine.loading()
        if len(engine) != len(loading.valid_at) or engine.position:
            raise StateMismatch("rebuild", "engine", expected="a new one", got=engine)
        if not isinstance(rows, Loading):
            loading.put(dict(rows))
        self._engine, self._ages = engine, ages
        self._bank = engine._bank
        self._releases = ManyRecorded.of(releases)
        self._record = FromRecord(engine.kind, self._bank, self._releases)
        loading.check()
        self._born = self._born_later()
        loading.drop(self._born)  # rows of learners that were replaced
        loading.check()
        self._valid_at = loading.valid_at
        self._valid_by_key: dict[Key, int] | None = None
        self._check_blocks()
        saved = slice(len(engine))
        engine._fresh.tag(np.arange(len(engine)))
        self._bank.first_unsaved[saved] = CLEAN
        self._seen = np.zeros(0, dtype=np.int64)
        if ages is not None:
            self._seen = np.where(loading.seen == 0, ages.since, loading.seen)
        if engine.idleness is not None and ages is not None:
            self._bank.seen[saved] = self._seen
            engine.idleness.begin(ages.low, ages.since)
        paid = engine.kind.schedule.starts(self._bank.block[saved])
        self._bank.charged[saved] = paid
        engine._furthest = int(paid.max(initial=1))

    def _born_later(self) -> dict[Key, int]:
        """When learners without a saved row were born: their keys' newest openings."""
        born: dict[Key, int] = {}
        bank = self._bank
        for names, _ in self._releases.parts():
            if names.kind != OPENING:
                continue
            rows = bank.rows(names.keys)
            later = np.flatnonzero((rows < 0) | (bank.born[rows] < names.born))
            for at, since in zip(later.tolist(), names.born[later].tolist(), strict=True):
                key = names.keys[at]
                born[key] = max(born.get(key, 0), since)
        return born

    def valid_at(self, keys: Sequence[Key]) -> Ints:
        """The positions as of which the rows of keys were saved; 0 without one."""
        if self._valid_by_key is not None:
            return np.array([self._valid_by_key.get(key, 0) for key in keys], dtype=np.int64)
        rows, valid_at = self._bank.rows(keys), np.zeros(len(keys), dtype=np.int64)
        saved = (rows >= 0) & (rows < len(self._valid_at))
        valid_at[saved] = self._valid_at[rows[saved]]
        return valid_at

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
        self._check_records(engine._releasing.of(waves))
        engine._halfway = False

    def finish(self, *, position: int, rows: int) -> Engine:
        """Return the engine at the committed position; `StateMismatch` if anything does not fit."""
        engine = self._engine
        engine._check_whole()
        furthest = max(engine.position, int(self._valid_at.max(initial=0)))
        if furthest > position:
            expected = f"at most {position}"
            raise StateMismatch("rebuild", "past the checkpoint", expected=expected, got=furthest)
        if len(engine) - self._away() != rows:
            rebuilt = len(engine) - self._away()
            raise StateMismatch("rebuild", "rows", expected=rows, got=rebuilt)
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
        names = self._bank.keys[: len(self._valid_at)]  # dropping keys moves the rows of others
        self._valid_by_key = dict(zip(names, self._valid_at.tolist(), strict=True))
        self._engine._drop(idleness.dropped_before())

    def _check_records(self, releases: Releases) -> None:
        """Refuse recorded releases with other records, or other actions or policies, than now."""
        for code, kind in enumerate(releases.kinds):
            some = np.flatnonzero(releases.kind == code)
            keys = [releases.keys[at] for at in some.tolist()]
            names = Names(kind, keys, releases.born[some], releases.block[some])
            then = self._releases.kept(self._releases.places(names))
            equal = then.value == releases.value[some]
            equal &= then.first_offset == releases.first_offset[some]
            equal &= then.last_offset == releases.last_offset[some]
            in_force = then.in_force
            if releases.in_force is not None:
                in_force = np.where(in_force == NOT_RECORDED, NOT_RECORDED, releases.in_force[some])
            equal &= then.in_force == in_force
            equal &= _known_again(kind, then.rest, releases, some)
            for at in some[~equal].tolist():
                self._check_release(releases[at])

    def _check_release(self, release: Release) -> None:
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
                    f"rebuild: {name.kind} of block {name.block} born at {name.born}",
                    f"another {what} was in force",
                    expected=f"the recorded one, {_shown(on_record)}",
                    got=_shown(found_now),
                )
        if then._replace(in_force=now.in_force, policy=now.policy) != now:
            raise StateMismatch(
                f"rebuild: {name.kind} of block {name.block} born at {name.born}",
                "drawn over other records",
                expected=f"records {then.first_offset} … {then.last_offset}",
                got=f"{now.first_offset} … {now.last_offset}",
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
                "saved row",
                "slots and block",
                expected=f"block {expected[row]} after {slots[row]} of {LAST_SLOT} slots",
                got=f"block {block[row]}",
            )

    def _check_all_behind(self) -> None:
        """Refuse a recorded release of a learner that is not there or of a block that is open.

        Releases of a key's earlier learners wait to be deleted.
        """
        bank = self._bank
        for names, _ in self._releases.parts():
            rows, born = bank.rows(names.keys), names.born
            behind = (rows >= 0) & (bank.born[rows] == born)
            if names.kind != OPENING:
                behind &= bank.block[rows] > names.block
            behind |= (rows >= 0) & (bank.born[rows] > born)
            if not behind.all():
                at = int(behind.argmin())
                row = int(rows[at])
                reached = (
                    f"block {bank.block[row]} born at {bank.born[row]}" if row >= 0 else "no row"
                )
                raise StateMismatch(
                    "rebuild",
                    "a recorded release lies ahead",
                    expected=f"records past {names.kind} of block {names.block[at]}"
                    f" born at {born[at]}",
                    got=f"{reached} at the end of the log",
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


def _known_again(kind: str, then: Sequence[Rest], releases: Releases, some: Ints) -> Bools:
    """Which recorded sums and policies are those of these releases; False where others are."""
    feedback = releases.feedback
    if feedback is None:
        return np.array([of is NOTHING for of in then], dtype=np.bool_)
    tables = (
        feedback.policy.astype("<u4"),
        feedback.first.astype("<i8"),
        feedback.second.astype("<i8"),
    )
    rows = zip(*(map(bytes, table[some]) for table in tables), strict=True)
    return np.array(
        [
            of.carried is None
            and of.policy in (None, policy)
            and of.sums == (BlockSums(first, second, feedback.pairs) if kind == SUMS else None)
            for of, (policy, first, second) in zip(then, rows, strict=True)
        ],
        dtype=np.bool_,
    )


def _shown(in_force: int | bytes | None) -> str:
    """An action's number, or the checksum of a policy; both are public."""
    return f"CRC-32 {crc32(in_force):08x}" if isinstance(in_force, bytes) else str(in_force)


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
