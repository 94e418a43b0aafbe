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
from streamdp.core.events import Batch, Key
from streamdp.core.releases import NOT_SAID, RecordedReleases, Release, Releases
from streamdp.core.schedule import LAST_SLOT
from streamdp.core.snapshot import Loading


class Rebuilding:
    """Restores a new engine to a committed position: feed it the log, then finish.

    >>> rebuilding = Rebuilding(engine, rows=saved, releases=releases)   # doctest: +SKIP
    >>> for batch in log: rebuilding.feed(batch)                         # doctest: +SKIP
    >>> engine = rebuilding.finish(position=position, rows=len(saved))   # doctest: +SKIP
    """

    def __init__(
        self,
        engine: Engine,
        *,
        rows: Iterable[tuple[Key, bytes]] | Loading,
        releases: Iterable[Release] | RecordedReleases,
        ages: Ages | None = None,
    ) -> None:
        """`rows`: saved rows, or what has put them into this engine's bank.

        `releases`: all of this epoch, as the engine gave them, whose blocks no saved row is behind.

        `ages`: the checkpoint's time, where keys went idle.
        """
        loading = rows if isinstance(rows, Loading) else engine.loading()
        if len(engine) != len(loading.valid_at) or engine.position:
            raise StateMismatch("rebuild", "engine", expected="a new one", got=engine)
        if not isinstance(rows, Loading):
            loading.put(dict(rows))
        self._engine, self._ages = engine, ages
        self._bank = engine._bank
        self._releases = RecordedReleases.like(engine.no_releases, releases)
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
        for part in self._releases.chunks():
            openings = part.at(np.flatnonzero(part.opens))
            rows = bank.rows(openings.keys)
            later = np.flatnonzero((rows < 0) | (bank.born[rows] < openings.born))
            for at, since in zip(later.tolist(), openings.born[later].tolist(), strict=True):
                key = openings.keys[at]
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

    def _check_records(self, now: Releases) -> None:
        """Refuse recorded releases with other records, or another action or policy, than now."""
        then = self._releases.at(self._releases.places(now))
        drawn = (then.numbers == now.numbers).all(axis=1)
        drawn &= then.first_offset == now.first_offset
        drawn &= then.last_offset == now.last_offset
        for at in np.flatnonzero(now.opens).tolist() if then.carried or now.carried else ():
            of = now.keys[at], int(now.born[at])
            drawn[at] &= (then.carried or {}).get(of) == (now.carried or {}).get(of)
        same = np.ones(len(now), dtype=np.bool_)
        if then.in_force is not None and now.in_force is not None:
            unsaid, same = then.in_force == NOT_SAID, then.in_force == now.in_force
            if now.has_policies:
                unsaid, same = ~then.in_force.any(axis=1), same.all(axis=1)
            same |= unsaid
        for at in np.flatnonzero(~(drawn & same))[:1].tolist():
            name, before, after = now[at].identity, then[at], now[at]
            problem = f"another {'policy' if now.has_policies else 'action'} was in force"
            expected, got = f"the recorded one, {_standing(before)}", _standing(after)
            if same[at]:
                problem, got = (
                    "drawn over other records",
                    f"{after.first_offset} … {after.last_offset}",
                )
                expected = f"records {before.first_offset} … {before.last_offset}"
            where = f"rebuild: {name.kind} of block {name.block} born at {name.born}"
            raise StateMismatch(where, problem, expected=expected, got=got)

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
        for of in self._releases.chunks():
            rows, born = bank.rows(of.keys), of.born
            behind = (rows >= 0) & (bank.born[rows] == born)
            behind &= of.opens | (bank.block[rows] > of.block)
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
                    expected=f"records past {of.kinds[of.kind[at]]} of block {of.block[at]}"
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


def _standing(release: Release) -> str:
    """An action's number, or the checksum of a policy; both are public."""
    policy = release.policy
    return str(release.in_force) if policy is None else f"CRC-32 {crc32(policy):08x}"


def rebuild(
    engine: Engine,
    *,
    rows: Sequence[tuple[Key, bytes]],
    releases: Iterable[Release] | RecordedReleases,
    log: Iterable[Batch],
    position: int,
    expected_rows: int,
) -> Engine:
    """Rebuild a new engine to `position` in one call; see `Rebuilding`."""
    rebuilding = Rebuilding(engine, rows=rows, releases=releases)
    for batch in log:
        rebuilding.feed(batch)
    return rebuilding.finish(position=position, rows=expected_rows)
