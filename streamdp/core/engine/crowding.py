"""The crowd of one partition: which prior its draws use, and when the next prior is made.

Everything here follows from the partition's own releases in the order of its log:

1. *When.* The next prior is made after the record by which enough votes have been released
   (`evidence.crowd.due`). That is a count of blocks that end, known before anything is drawn. A
   batch is cut there, so that how records were cut into batches changes nothing.
2. *Of what.* The newest vote of the newest learner of each key, including keys that are away. A row
   keeps its own vote (`Bank.remembered`, after the memory's columns), so that saved rows, recorded
   releases and the priors are all that a rebuild needs.
3. *How long.* Old priors are kept: votes drawn under them may still be the newest of their keys.

A feedback stream's crowd counts releases of sums in the same way. Its evidence is what rows
remember of them (`evidence.pooled_means`), and policies use the prior, not draws.

A control group's draws use prior 0, and plain votes do not even know the action in force; see
`evidence.control`. The crowd counts plain votes as what they are: drawn under no bonus.

Draws that a crash lost were seen by nobody; they are drawn anew, and priors made anew. Recorded
ones are read back: a rebuild makes no prior.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

import numpy as np

from streamdp.core.arrays import Bools, Ints
from streamdp.core.bank import Bank
from streamdp.core.engine.plan import Batch, Plan, part_of
from streamdp.core.errors import StateMismatch, complaint
from streamdp.core.events import ACTION, CrowdPrior, Key
from streamdp.core.evidence.crowd import Crowd, cast, due, newest
from streamdp.core.evidence.pooled_means import PooledMeans

if TYPE_CHECKING:
    from streamdp.core.engine.pooling import Pool


class Side(Enum):
    """What a draw knows beforehand."""

    TOLD = "told"  # the newest prior and the action in force
    ALONE = "alone"  # the action in force only: keys of the control group
    PLAIN = "plain"  # nothing


@dataclass(frozen=True, slots=True)
class CrowdStanding:
    """The state of a partition's crowd at its checkpoint."""

    votes: int  # how many were released
    priors: tuple[CrowdPrior, ...]  # all, by number from 1 on
    pool: bytes = field(default=b"", repr=False)  # the pool's row, where keys donate; NOT PRIVATE


@dataclass(slots=True)
class PartitionCrowd:
    """The priors of one partition, and how many votes it has released."""

    crowd: Crowd | PooledMeans
    bank: Bank = field(repr=False)
    pool: Pool | None = None  # where keys donate
    votes: int = 0
    priors: dict[int, CrowdPrior] = field(default_factory=dict, repr=False)
    away: dict[Key, Ints] = field(default_factory=dict, repr=False)  # newest votes of dropped rows

    def __post_init__(self) -> None:
        """Prior 0 favours nothing."""
        self.priors[0] = self.crowd.nothing

    @property
    def current(self) -> CrowdPrior:
        """The newest prior."""
        return self.priors[len(self.priors) - 1]

    def prior_for(self, rows: Ints, side: Side) -> tuple[CrowdPrior, Ints]:
        """The prior that draws of these rows use now, and the groups of their keys."""
        return self.current if side is Side.TOLD else self.crowd.nothing, self._groups(rows)

    def _groups(self, rows: Ints) -> Ints:
        if self.crowd.groups.count == 1:
            return np.zeros_like(rows)
        return self.crowd.groups.numbers([self.bank.keys[row] for row in rows.tolist()])

    def sides(self, rows: Ints, kind: str) -> Iterator[tuple[Side, Ints]]:
        """The places among these rows, by what their draws know beforehand."""
        control = self.crowd.control
        if not control.share:
            yield Side.TOLD, np.arange(len(rows))
            return
        apart = np.array([control.holds(self.bank.keys[row]) for row in rows.tolist()], bool)
        plain = self._plain(rows) if kind == ACTION else np.zeros_like(apart)
        for side, which in (
            (Side.TOLD, ~(apart | plain)), (Side.ALONE, apart & ~plain), (Side.PLAIN, plain),
        ):  # fmt: skip
            places = np.flatnonzero(which)
            if len(places):
                yield side, places

    def _plain(self, rows: Ints) -> Bools:
        """Which of these rows' blocks end in plain votes."""
        bank, plain = self.bank, self.crowd.control.plain
        columns = (rows, bank.born[rows], bank.block[rows])
        of = zip(*(column.tolist() for column in columns), strict=True)
        return np.array([plain(bank.keys[row], born, block) for row, born, block in of], bool)

    @property
    def due(self) -> int:
        """How many votes must have been released when the next prior is made."""
        return due(self.current.after)

    def standing(self, position: int) -> CrowdStanding:
        """For a checkpoint at this position."""
        pool = b"" if self.pool is None else self.pool.standing(position)
        return CrowdStanding(self.votes, tuple(self.priors.values())[1:], pool)

    def learn(self, standing: CrowdStanding) -> None:
        """Take over the priors of a checkpoint."""
        for number, prior in enumerate(standing.priors, start=1):
            fits = self.crowd.fits(prior)
            if prior.number != number or prior.after > standing.votes or not fits:
                raise StateMismatch(
                    complaint(
                        "crowd",
                        "priors on record",
                        expected=f"prior {number} of {self.crowd.size} bonuses, made after at"
                        f" most {standing.votes} votes",
                        got=f"prior {prior.number} after {prior.after} votes",
                    )
                )
            self.priors[number] = prior

    def begin(self, standing: CrowdStanding) -> None:
        """Go on from a checkpoint whose priors `learn` took over, once the rows are restored."""
        self.votes = standing.votes
        latest = self.crowd.latest_told(self._kept(np.arange(len(self.bank))))
        if self.votes >= self.due or latest > self.current.number:
            raise StateMismatch(
                complaint(
                    "crowd",
                    "a prior is missing",
                    expected=f"one after {self.due} votes, and prior {latest}",
                    got=f"{self.votes} votes and {self.current.number} priors",
                )
            )

    def parts(self, batch: Batch, plan: Plan) -> Iterator[Batch]:
        """Cut the batch after each record that makes a prior due."""
        offsets, votes, last = np.sort(self._ends(plan)), self.votes, self.due
        cuts = []
        while last - votes <= len(offsets):
            cut = offsets[last - votes - 1]
            ended = int(np.searchsorted(offsets, cut, side="right"))
            votes, offsets = votes + ended, offsets[ended:]
            last = due(votes)
            cuts.append(int(cut))
        places = np.searchsorted(batch.offsets, cuts, side="right").tolist()
        first = 0
        for place in [*places, len(batch.offsets)]:
            if place > first:
                yield part_of(batch, slice(first, place))
            first = place

    def released(self, votes: int) -> tuple[CrowdPrior, ...]:
        """Count votes; make and return the prior that is due by now, if any."""
        self.votes += votes
        if self.votes < self.due:
            return ()
        kept = self._kept(np.arange(len(self.bank)))
        if self.away:
            kept = np.concatenate([kept, np.stack(list(self.away.values()))])
        if self.pool is not None:
            kept = np.concatenate([kept, self.pool.votes()])
        made = self._next(kept)
        self.priors[made.number] = made
        return (made,)

    def _next(self, kept: Ints) -> CrowdPrior:
        """The next prior from what rows keep."""
        if isinstance(self.crowd, PooledMeans):
            return self.crowd.made_from(kept, self.priors, after=self.votes)
        return self.crowd.made(newest(kept), self.priors, after=self.votes)

    def note(self, rows: Ints, votes: Ints, *, priors: Ints, lengths: Ints) -> None:
        """Note the votes of these rows, before they change the actions in force."""
        assert isinstance(self.crowd, Crowd)
        kept = cast(
            self.crowd,
            prior=priors,
            stayed=(votes == self.bank.action[rows]) & ~self._plain(rows),
            vote=votes,
            length=lengths,
            group=self._groups(rows),
        )
        self.bank.remembered[rows, -self.crowd.width :] = kept

    def leave(self, keys: Sequence[Key], rows: Ints) -> None:
        """Keep the newest votes of rows that are dropped."""
        kept = self._kept(rows)
        counts = self.crowd.counts(kept).tolist()
        self.away |= {keys[at]: kept[at] for at in range(len(keys)) if counts[at]}

    def _kept(self, rows: Ints) -> Ints:
        """What these rows remember that counts in priors."""
        return self.bank.remembered[rows, -self.crowd.width :].astype(np.int64)

    def come_back(self, key: Key) -> None:
        """Forget the votes of a key's previous learner: the key has a new one."""
        self.away.pop(key, None)

    def _ends(self, plan: Plan) -> Ints:
        """The offsets of the records that end blocks from which votes are drawn."""
        segments, closes = plan.segments, plan.segments.closes
        if self.pool is not None and plan.gives is not None:
            closes = closes & ~plan.gives
        ends = plan.offset_at(segments.begin[closes] + segments.length[closes] - 1)
        return ends if self.pool is None else np.concatenate([ends, self.pool.ends(plan)])
