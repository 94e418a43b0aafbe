"""An engine again, from saved rows, the log and the recorded releases.

Sums are a function of the input, so a row need not be saved each time it changes: the log is the
changelog. A rebuild reads the log again from the oldest record that some save does not hold, gives
each record only to rows that are older than it, and takes the recorded release wherever a block
ends. It arrives at the committed position with the sums and the actions that were there before.

Private randomness that no release has used yet (an open prefix window, resampled bits) may be
drawn anew: nobody has seen it.

A key without a saved row starts at the `born` of its recorded opening; before that it was beyond
the limit of rows.

What was recorded must lie behind when all is read, and be of the records that its block now has.
Else the log had a hole, then or now, and a record would be drawn from a second time (P4, P5).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from streamdp.core import snapshot
from streamdp.core.bank import CLEAN
from streamdp.core.engine.draws import FromRecord, Recorded, recorded
from streamdp.core.engine.machine import MOST_ROWS, Engine
from streamdp.core.engine.plan import Batch, check, only
from streamdp.core.errors import StateMismatch, complaint
from streamdp.core.events import OPENING, Key, Release
from streamdp.core.schedule import LAST_SLOT

Ints = NDArray[np.int64]


class Rebuilding:
    """Turns a new engine into the one that was: feed it the log, then finish.

    >>> rebuilding = Rebuilding(engine, rows=saved, releases=recorded)   # doctest: +SKIP
    >>> for batch in log: rebuilding.feed(batch)                         # doctest: +SKIP
    >>> engine = rebuilding.finish(position=position, rows=len(saved))   # doctest: +SKIP
    """

    def __init__(
        self, engine: Engine, *, rows: Sequence[tuple[Key, bytes]], releases: Recorded
    ) -> None:
        if len(engine) or engine.position:
            raise StateMismatch(complaint("rebuild", "engine", expected="a new one", got=engine))
        self._engine = engine
        self._bank = engine._bank
        self._releases = releases
        self._record = FromRecord(engine.estimates, releases)
        self._born = {name.key: name.born for name in releases if name.kind == OPENING}
        self._valid_at = snapshot.load(engine.layout, self._bank, rows)
        self._check_blocks()
        engine._fresh.tag(self._bank, np.arange(len(rows)))
        self._bank.first_unsaved[: len(rows)] = CLEAN
        engine._book_past()

    def valid_at(self) -> dict[Key, int]:
        """The position that each saved row holds its learner at."""
        keys = self._bank.keys[: len(self._valid_at)]
        return dict(zip(keys, self._valid_at.tolist(), strict=True))

    def open_since(self, *, end: int) -> int:
        """The oldest record of a block that is open in the rows as they are by now, or `end`."""
        return self._engine.open_since(end=end)

    def feed(self, batch: Batch) -> None:
        """Records again, in order; each goes only to rows that are older than it."""
        engine = self._engine
        check(batch, learner=engine.learner, position=engine.position)
        wanted = only(batch, self._wanted(batch))
        waves = engine._step(wanted, self._record, limit=MOST_ROWS, read=batch)
        for release in engine._released(waves):
            self._check_records(release)

    def finish(self, *, position: int, rows: int) -> Engine:
        """The engine, at the committed position, if everything fits."""
        engine = self._engine
        engine._check_whole()
        if engine.position > position or (len(self._valid_at) and self._valid_at.max() > position):
            raise StateMismatch(
                complaint(
                    "rebuild", "past the checkpoint", expected=f"at most {position}", got="more"
                )
            )
        if len(engine) != rows:
            raise StateMismatch(complaint("rebuild", "rows", expected=rows, got=len(engine)))
        self._check_all_behind()
        engine.position = position
        engine.slots_refused = 0
        return engine

    def _check_records(self, release: Release) -> None:
        """A release was drawn over the records that its block has now, and remembered as now."""
        (found,) = recorded([release]).items()
        name, now = found
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
