"""The policies of one key over time, recomputed from the ledger's sums on demand.

The policy after a block is a public function of all releases of the learner so far. Computing it
takes over a tenth of a millisecond for each block, too long for a start that reads a long ledger;
so only the released numbers are kept, and none for a key with more than `MOST_BLOCKS` blocks. No
policy can be computed if the learner's opening was not read. A carried-over history stands in the
opening's line, and the policies begin with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from msgspec import UNSET

from streamdp.core.arrays import Bools, Floats, Ints
from streamdp.core.errors import InvalidConfig, StateMismatch
from streamdp.core.evidence.block_tables import BlockTables
from streamdp.core.evidence.evidence import PublicRow
from streamdp.core.evidence.lift import Lift
from streamdp.core.evidence.policies import ReleasedSums, gains_and_counts
from streamdp.core.evidence.policy import PARTS
from streamdp.core.evidence.released_tables import ReleasedTables
from streamdp.wire.lines import Charge, from_base64
from streamdp.wire.retracing import Learners, Method

MOST_BLOCKS = 128
"""Most blocks of a key whose policies are computed: doubling blocks never reach it."""

MOST_POINTS = 32
"""Policies that are computed at once, spread evenly over the blocks, beside the newest."""


class PolicyPoint(NamedTuple):
    """The policy in force from a slot on, after a number of blocks."""

    slot: int
    blocks: int
    shares: Sequence[float]
    likely_best: Sequence[float] | None  # by what the policy follows from; None: not said


class PolicyHistory:
    """Keeps what one learner released, from its opening on."""

    __slots__ = (
        "_allowed",
        "_apart",
        "_computed",
        "_opening",
        "_released",
        "_slots",
        "by_field",
        "lifted",
        "newest",
        "open_until",
        "released_by",
    )

    def __init__(self, opening: Charge, allowed: Bools | None = None) -> None:
        """`allowed`: what the policy may show that begins with this line; None: all."""
        self._opening = opening
        self._allowed = [allowed]
        self._slots = [opening.stop]  # from which each policy is in force
        self._released: list[bytes] | None = []  # None: no policy can be computed
        self._computed: list[PolicyPoint] = []  # by the newest call
        self._apart: list[Floats] = []  # how far apart policies were in the cells of each table
        self.released_by: list[int] = []  # of contexts: the number of each block's table
        self.open_until = opening.stop  # the slot at which the block ends that is open
        self.by_field: tuple[object, object] = (0, None)  # of contexts, after so many blocks
        self.lifted: tuple[int, Lift | None] = (0, None)  # of contexts, after so many blocks
        self.newest: PublicRow | None = None  # what the newest policy of `points` follows from

    def add(self, line: Charge, released: Ints | None, allowed: Bools | None = None) -> None:
        """Keep what a block released, and what the policy after it may show."""
        if self._released is None:
            return
        if (
            released is None
            or Method.of(line) != Method.of(self._opening)
            or line.start != self._slots[-1]
            or len(self._released) == MOST_BLOCKS
        ):
            self._released, self._computed = None, []
            return
        self._released.append(released.tobytes())
        self._slots.append(line.stop)
        self._allowed.append(allowed)

    def released(self) -> Ints | None:
        """What each block released, blocks × numbers; None where policies cannot be computed."""
        if not self._released:
            return None
        blocks: Ints = np.frombuffer(b"".join(self._released), np.int64)
        return blocks.reshape(len(self._released), -1)

    def goes_on_from(self, earlier: PolicyHistory) -> bool:
        """Whether it began with all that an earlier learner knew: then it has the same actions.

        Ledgers have no names. An action that went, or has another place, took its numbers along;
        one of which nothing was known made no difference.
        """
        carried = self._opening.carried
        if carried is UNSET or carried.history is UNSET:
            return False
        try:
            history = from_base64(carried.history, "history")
        except StateMismatch:  # the ledger is read, not trusted
            return False
        if not earlier.points() or earlier.newest is None:
            return False
        return earlier.newest.known().history == history

    def points(self) -> list[PolicyPoint]:
        """The policies, the oldest first; empty if they cannot be computed."""
        if not self._released:
            return []
        last = len(self._released)
        if not self._computed or self._computed[-1].blocks != last:
            try:
                self._computed = self._points(self._released)
            except (InvalidConfig, StateMismatch):  # the ledger is read, not trusted
                self._released, self._computed = None, []
        return self._computed

    def tables(self, *, named: int | None = None) -> tuple[BlockTables, dict[int, Floats]] | None:
        """What each block released, and policies by the number of blocks that led to them.

        Of the first `named` actions, if it is said: columns beyond have no name yet.
        """
        points, released = self.points(), self.released()
        if not points or released is None or self.newest is None:
            return None
        evidence = self.newest.evidence
        if isinstance(evidence, ReleasedTables):
            each = np.array(self.released_by), np.array(self._apart)
            found = evidence.block_tables(released, *each)
        elif isinstance(evidence, ReleasedSums):
            sums = gains_and_counts(released, pairs=evidence.pairs)
            gains, shown = (of[:, None] for of in sums)
            found = BlockTables(gains, shown, evidence.noise)
        else:
            return None
        policies = {
            point.blocks: np.reshape(point.shares, found.gains.shape[1:])[:, :named]
            for point in points
            if point.blocks < len(released)
        }
        some = found.gains[..., :named], found.shown[..., :named]
        return replace(found, gains=some[0], shown=some[1]), policies

    def lift(self) -> Lift | None:
        """What was earned beside other shares, with contexts; None: cannot be said."""
        found = self.tables()
        if found is None or found[0].noise.on_counts:
            return None
        tables, _ = found
        assert self.newest is not None, "it has tables"
        if not isinstance(self.newest.evidence, ReleasedTables):
            return None
        if self.lifted[0] != tables.blocks:
            named = self.newest.evidence.named
            might = [named if of is None else of for of in self._allowed[: tables.blocks]]
            self.lifted = tables.blocks, Lift.of_tables(tables, might)
        return self.lifted[1]

    def _points(self, released: Sequence[bytes]) -> list[PolicyPoint]:
        method = Method.of(self._opening)
        actions = method.actions_of("released", len(released[0]) // 8)
        learners = Learners(method, actions=actions)
        first = learners.begin(0, self._opening, self._allowed[0])
        row, kind = learners.row(0), method.kind(actions)
        every, last = -(-len(self._slots) // MOST_POINTS), len(released)
        wanted, points = {*range(0, last + 1, every), last}, []
        if kind is None:
            return []
        lengths, evidence = np.diff(self._slots).tolist(), kind.evidence
        tables, apart = list[int](), list[Floats]()
        for at, (numbers, allowed) in enumerate(zip((b"", *released), self._allowed, strict=True)):
            if at:
                drawn = np.frombuffer(numbers, np.int64)
                if kind.evidence.wrong(row.columns, drawn, lengths[at - 1]):
                    return []
                row.fold(drawn, lengths[at - 1], allowed)
            due = int(kind.schedule.lengths(np.array([first + at]))[0])
            if isinstance(evidence, ReleasedTables) and at < last:
                tables.append(int(row.columns["table"][0]))
                apart.append(evidence.apart(row.in_force(due, allowed), tables[-1]))
            if at in wanted:
                shares = (row.in_force(due, allowed) / PARTS).tolist()
                chances = row.likely_best() if at == last else None
                likely = None if chances is None else chances.tolist()
                points.append(PolicyPoint(self._slots[at], at, shares, likely))
        self.newest, self.released_by, self._apart = row, tables, apart
        self.open_until = self._slots[-1] + due
        return points
