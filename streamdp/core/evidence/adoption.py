"""The snapshots of votes that partitions send each other, and how a prior adopts them.

A prior is made of the newest votes of a partition's keys (`crowd`). Where the crowd reaches across
partitions it is also made of the votes in other partitions' snapshots. The words:

- A *snapshot* (`CrowdSnapshot`) holds a partition's own newest votes, counted, as one of its priors
  used them, and the priors that they were drawn under. It is named after that prior (partition,
  epoch, number), so anybody can make it again from the partition's ledger.
- A partition *adopts* snapshots of others when it makes a prior, and at no other moment. The prior
  names them (`Adopted`); they stay adopted until newer ones of the same partitions replace them.

Rules:

1. *Only what is public.* A snapshot counts votes that are on its partition's ledger before it. It
   counts no key of a control group, and no vote from other partitions' snapshots: so a partition's
   own votes never come back to it as somebody else's evidence.
2. *Adopted votes are evaluated like own ones.* They enter the likelihood with the priors that they
   were drawn under: votes for what a prior favoured are no evidence, wherever they were cast.
3. *When* snapshots arrive depends on clocks and networks, so the record before a prior does not
   determine which snapshots it adopts. That is decided once for each prior, and recorded with it. A
   recorded decision is used again, whatever has arrived since.
4. *Bounds.* A snapshot has `MOST_CELLS` cells and `most_priors` priors at most, those with the most
   votes; a partition adopts the snapshots of `MOST_ADOPTED` others, the next ones by number.

A forged snapshot can make a prior worse, and nothing more: every prior is bounded by the crowd's
floor, and costs no ε whatever it was made of, unless that was private. `check` compares a snapshot
with the crowd that it claims to be of, since the sums of a prior must not overflow.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from math import ceil, floor, log
from typing import Protocol

import numpy as np

from streamdp.core.arrays import Ints
from streamdp.core.errors import StateMismatch, complaint
from streamdp.core.events import Adopted, CrowdPrior
from streamdp.core.evidence.crowd import POINT, Crowd, Votes, longest_told

MOST_CELLS = 8192
"""The most cells of a snapshot: 192 KiB."""

MOST_PRIORS = 64
"""The most priors that the votes of a snapshot were drawn under. A prior takes time in proportion
to them; the newest votes of keys of very different ages were drawn under about sixty."""

MOST_PRIOR_BYTES = 1 << 17
"""The size of these priors together, so that a snapshot of many actions fits into a record."""

MOST_NUMBERS = 1 << 16
"""Rows of a snapshot times the numbers of a prior: the work for each snapshot. It bounds the time
that a prior takes, even where a snapshot is forged."""

MOST_ADOPTED = 15
"""The most snapshots that a prior adopts. More of them add little that is new, and take as long
again to count."""

COLUMNS = 6
"""The columns of a cell: the prior's place in the snapshot, the block's length, whether the vote
was for the action in force, the vote, its key's group, and how many keys."""

_WIDTH = 4  # bytes of an integer
_LONG = (1 << 63) - 1


def most_priors(crowd: Crowd) -> int:
    """How many priors a snapshot of this crowd has at most."""
    return max(1, min(MOST_PRIORS, MOST_PRIOR_BYTES // (_WIDTH * crowd.size)))


def most_rows(crowd: Crowd) -> int:
    """How many rows (see `_rows`) a snapshot of this crowd has at most."""
    return max(1, MOST_NUMBERS // crowd.size)


@dataclass(frozen=True, slots=True)
class CrowdSnapshot:
    """The newest votes of one partition's keys, counted when it made one of its priors."""

    partition: int
    epoch: int
    number: int  # of the prior that was made of them
    priors: bytes = field(repr=False)  # P priors, little-endian int32 each bonus
    cells: bytes = field(repr=False)  # C × `COLUMNS` little-endian int32

    @classmethod
    def of(
        cls,
        crowd: Crowd,
        votes: Votes,
        priors: Mapping[int, CrowdPrior],
        *,
        partition: int,
        epoch: int,
        number: int,
    ) -> CrowdSnapshot:
        """From a partition's own votes, counted; `priors` are its own, by number."""
        stays = _most_counted(crowd, votes)
        numbers, place = np.unique(votes.prior[stays], return_inverse=True)
        bonuses = np.zeros((len(numbers), crowd.size), dtype="<i4")
        for at, prior_number in enumerate(numbers.tolist()):
            bonuses[at] = priors[prior_number].bonuses
        columns = (votes.length, votes.stayed, votes.vote, votes.group, votes.count)
        cells = np.stack([place, *(column[stays] for column in columns)], axis=1).astype("<i4")
        return cls(partition, epoch, number, bonuses.tobytes(), cells.tobytes())

    @property
    def digest(self) -> str:
        """A fingerprint of the whole snapshot."""
        named = b"%d %d %d %d " % (self.partition, self.epoch, self.number, len(self.priors))
        return sha256(named + self.priors + self.cells).hexdigest()[:32]

    @property
    def name(self) -> Adopted:
        """The snapshot's name in the priors that adopt it."""
        return Adopted(self.partition, self.epoch, self.number, self.digest)

    def check(self, crowd: Crowd) -> None:
        """Refuse a snapshot that no partition with this crowd can have made."""
        width = _WIDTH * crowd.size
        names = self.partition, self.epoch, self.number - 1
        fits = min(names) >= 0 and max(names) < _LONG
        fits = fits and len(self.priors) % width == 0 == len(self.cells) % (_WIDTH * COLUMNS)
        fits = fits and len(self.priors) <= width * most_priors(crowd)
        fits = fits and len(self.cells) <= _WIDTH * COLUMNS * MOST_CELLS
        if fits:
            table = self._table()
            tops = (
                len(self.priors) // width, longest_told(crowd) + 1, 2, crowd.actions,
                crowd.groups.count, 1 << 31,
            )  # fmt: skip
            fits = bool((table >= [0, 1, 0, 0, 0, 1]).all() and (table < list(tops)).all())
            fits = fits and len(np.unique(_rows(*table.T[:5]))) <= most_rows(crowd)
            fits = fits and are_priors(crowd, self._bonuses(crowd.size))
        if not fits:
            raise StateMismatch(
                complaint(
                    f"snapshot of partition {self.partition}",
                    "not one of this crowd",
                    expected=f"at most {most_priors(crowd)} priors of {crowd.size} bonuses and"
                    f" {MOST_CELLS} cells, every number within its range",
                    got=f"{len(self.priors)} and {len(self.cells)} bytes",
                )
            )

    def evidence(self, size: int, *, first: int) -> tuple[Votes, dict[int, CrowdPrior]]:
        """The votes, and the priors that they were drawn under, numbered from `first` downwards.

        `size`: how many bonuses a prior has.
        """
        place, length, stayed, vote, group, count = self._table().T
        votes = Votes(first - place, length, stayed, vote, group, count)
        bonuses = self._bonuses(size)
        numbers = range(first, first - len(bonuses), -1)
        return votes, {
            number: CrowdPrior.of(number, after=0, gap=0, bonuses=row)
            for number, row in zip(numbers, bonuses, strict=True)
        }

    def _table(self) -> Ints:
        return np.frombuffer(self.cells, "<i4").reshape(-1, COLUMNS).astype(np.int64)

    def _bonuses(self, size: int) -> Ints:
        return np.frombuffer(self.priors, "<i4").reshape(-1, size).astype(np.int64)


def together(
    votes: Votes,
    priors: Mapping[int, CrowdPrior],
    others: Iterable[CrowdSnapshot],
    *,
    size: int,
) -> tuple[Votes, Mapping[int, CrowdPrior]]:
    """A partition's own votes and priors with those of others, whose priors have numbers below 0.

    Without others, its own unchanged.
    """
    counted, all_priors = [votes], dict(priors)
    for other in others:
        theirs, under = other.evidence(size, first=min(all_priors, default=0) - 1)
        counted.append(theirs)
        all_priors |= under
    if len(counted) == 1:
        return votes, priors
    names = Votes.__dataclass_fields__
    columns = (np.concatenate([getattr(part, name) for part in counted]) for name in names)
    return Votes(*columns), all_priors


class Adopting(Protocol):
    """Decides which snapshots a partition adopts when it makes a prior."""

    def __call__(
        self, number: int, adopted: Mapping[int, CrowdSnapshot]
    ) -> Mapping[int, CrowdSnapshot]:
        """The snapshots that prior `number` adopts, by partition.

        `adopted`: those of the prior before it.
        """
        ...


@dataclass(frozen=True, slots=True)
class Offers:
    """The newest snapshots of other partitions so far, which a live partition adopts."""

    partition: int  # this one, whose own snapshots are left out
    newest: dict[int, CrowdSnapshot] = field(default_factory=dict)

    def offer(self, snapshot: CrowdSnapshot) -> None:
        """Take a partition's snapshot in place of its earlier one: never an older one again."""
        self.newest[snapshot.partition] = snapshot

    def __call__(
        self, number: int, adopted: Mapping[int, CrowdSnapshot]
    ) -> Mapping[int, CrowdSnapshot]:
        """The newest snapshot of each partition, or else the one adopted before."""
        there = {**adopted, **self.newest}
        there.pop(self.partition, None)
        nearest = sorted(there, key=lambda other: (other < self.partition, other))
        return {other: there[other] for other in nearest[:MOST_ADOPTED]}


@dataclass(frozen=True, slots=True)
class OnRecord:
    """Adopts the snapshots that recorded priors name, to make these priors again."""

    names: Mapping[int, tuple[Adopted, ...]]  # by the number of the prior
    snapshots: Mapping[Adopted, CrowdSnapshot]

    def __call__(
        self, number: int, adopted: Mapping[int, CrowdSnapshot]
    ) -> Mapping[int, CrowdSnapshot]:
        """The snapshots that prior `number` names; none for a prior that is not on record."""
        missing = [name for name in self.names.get(number, ()) if name not in self.snapshots]
        if missing:
            raise StateMismatch(
                complaint(
                    f"prior {number}",
                    "names a snapshot that is missing",
                    expected=f"prior {missing[0].number} of partition {missing[0].partition}",
                    got=f"{len(self.snapshots)} others",
                )
            )
        return {name.partition: self.snapshots[name] for name in self.names.get(number, ())}


def _most_counted(crowd: Crowd, votes: Votes) -> Ints:
    """The cells with most votes, among the priors and rows with most votes."""
    _, place = np.unique(votes.prior, return_inverse=True)
    totals = np.zeros(int(place.max(initial=-1)) + 1, dtype=np.int64)
    np.add.at(totals, place, votes.count)
    priors = np.argsort(-totals, kind="stable")[: most_priors(crowd)]
    cells = np.flatnonzero(np.isin(place, priors))
    columns = (votes.length, votes.stayed, votes.vote, votes.group)
    _, row = np.unique(
        _rows(place[cells], *(column[cells] for column in columns)), return_inverse=True
    )
    of_row = np.zeros(int(row.max(initial=-1)) + 1, dtype=np.int64)
    np.add.at(of_row, row, votes.count[cells])
    rows = np.argsort(-of_row, kind="stable")[: most_rows(crowd)]
    cells = cells[np.isin(row, rows)]
    largest = np.argsort(-votes.count[cells], kind="stable")[:MOST_CELLS]
    counted: Ints = np.sort(cells[largest])
    return counted


def _rows(place: Ints, length: Ints, stayed: Ints, vote: Ints, group: Ints) -> Ints:
    """A number for each cell; cells with one number are one row when a prior is made.

    Votes for the action in force have a row for each action: it depends on the action's bonus.
    """
    row = np.zeros_like(place)
    for column in (place, length, stayed, vote * stayed, group):
        _, numbered = np.unique(column, return_inverse=True)
        _, row = np.unique(row * (len(column) + 1) + numbered, return_inverse=True)
    return row


def are_priors(crowd: Crowd, bonuses: Ints) -> bool:
    """Whether these bonuses follow from shares of keys: each e^b within bounds, their sum K."""
    least, most = (
        round_(log(of)) for round_, of in ((floor, float(crowd.floor)), (ceil, crowd.actions))
    )
    if (bonuses < (least << POINT)).any() or (bonuses > (most << POINT)).any():
        return False
    shares = np.exp(bonuses.reshape(-1, crowd.actions) / (1 << POINT)).sum(axis=1)
    return bool((np.abs(shares / crowd.actions - 1) < 1e-3).all())
