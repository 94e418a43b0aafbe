"""What a partition tells the others of its votes, and what it adopts of theirs.

A prior is made of the newest votes of a partition's keys (`crowd`). Where the crowd reaches across
partitions it is made of those of other partitions too, as these have told them. The words:

- A *snapshot* (`CrowdSnapshot`) is what one prior of a partition was made of: its own newest votes,
  counted, and the priors that they were drawn under. It is named after that prior (partition,
  epoch, number), so anybody can make it again from the partition's ledger.
- A partition *adopts* snapshots of others when it makes a prior, and at no other moment. The prior
  says which (`Adopted`); they stay adopted until newer ones of the same partitions take their
  place.

Rules:

1. *Only what is public.* A snapshot counts votes that are on its partition's ledger before it: of
   no key that a control group keeps apart, and no vote that others told. So nothing comes back to
   a partition as if it were evidence of somebody else's.
2. *A prior of what was told is still a prior of votes.* Others' votes enter with the priors that
   they were drawn under in the likelihood, as one's own do: votes for what a prior favoured are no
   evidence, wherever they were cast.
3. *When* others' snapshots arrive is up to clocks and networks, so which ones a prior adopts
   follows from nothing that is on record before it. It is decided once for each prior, and recorded
   with it. What was recorded is used again, whatever has arrived since.
4. *Bounds.* A snapshot has `MOST_CELLS` cells and `most_priors` priors at most, those with the most
   votes; a partition adopts the snapshots of `MOST_ADOPTED` others, the next ones by number.

A snapshot that somebody else wrote can make a prior worse, and nothing more: every prior is bounded
by the crowd's floor, and costs no ε whatever it was made of, unless that was private. It is held
against the crowd it claims to be of (`check`), since the sums of a prior must not overflow.
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
"""Of a snapshot: 192 KiB."""

MOST_PRIORS = 64
"""Priors that the votes of a snapshot were drawn under. Making a prior takes time in proportion to
them; newest votes of keys of very different ages were drawn under about sixty."""

MOST_PRIOR_BYTES = 1 << 17
"""Of them together, so that a snapshot of many actions fits into a record."""

MOST_NUMBERS = 1 << 16
"""Rows of a snapshot times a prior's numbers: what making a prior computes with, for each snapshot.
So the time that a prior takes is bounded, whoever wrote what it adopts."""

MOST_ADOPTED = 15
"""Other partitions whose snapshots a prior is made of. More of them say little that is new, and
take as long again to count."""

COLUMNS = 6
"""Of a cell: the prior's place among those told, the block's length, whether the vote was for the
action in force, the vote, its key's group, and how many keys."""

_WIDTH = 4  # bytes of an integer
_LONG = (1 << 63) - 1


def most_priors(crowd: Crowd) -> int:
    """How many priors a snapshot of this crowd has at most."""
    return max(1, min(MOST_PRIORS, MOST_PRIOR_BYTES // (_WIDTH * crowd.size)))


def most_rows(crowd: Crowd) -> int:
    """How many rows of votes that were drawn alike a snapshot of this crowd has at most."""
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
        """A fingerprint of all of it."""
        named = b"%d %d %d %d " % (self.partition, self.epoch, self.number, len(self.priors))
        return sha256(named + self.priors + self.cells).hexdigest()[:32]

    @property
    def name(self) -> Adopted:
        """What a prior says that was made of it."""
        return Adopted(self.partition, self.epoch, self.number, self.digest)

    def check(self, crowd: Crowd) -> None:
        """Refuse what no partition with this crowd can have told."""
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
                    "none that this crowd can have",
                    expected=f"at most {most_priors(crowd)} priors of {crowd.size} bonuses and"
                    f" {MOST_CELLS} cells, every number within its range",
                    got=f"{len(self.priors)} and {len(self.cells)} bytes",
                )
            )

    def evidence(self, size: int, *, first: int) -> tuple[Votes, dict[int, CrowdPrior]]:
        """The votes and the priors that they were drawn under, which get numbers from `first` down.

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
    """A partition's own votes and priors, and those of others: their priors' numbers are below 0.

    Without others, its own as they are.
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
    """Decides what a partition adopts when it makes a prior."""

    def __call__(
        self, number: int, adopted: Mapping[int, CrowdSnapshot]
    ) -> Mapping[int, CrowdSnapshot]:
        """What prior `number` is made of beside its own votes, by partition.

        `adopted`: what the prior before it was made of.
        """
        ...


@dataclass(frozen=True, slots=True)
class Offers:
    """The newest that others have told so far, which a partition at work adopts."""

    partition: int  # whose own snapshots are none of others
    newest: dict[int, CrowdSnapshot] = field(default_factory=dict)

    def offer(self, snapshot: CrowdSnapshot) -> None:
        """What a partition has told takes the place of what it told before."""
        self.newest[snapshot.partition] = snapshot

    def __call__(
        self, number: int, adopted: Mapping[int, CrowdSnapshot]
    ) -> Mapping[int, CrowdSnapshot]:
        """The newest of each, or what was adopted before of those that are not heard of again."""
        there = {**adopted, **self.newest}
        there.pop(self.partition, None)
        nearest = sorted(there, key=lambda other: (other < self.partition, other))
        return {other: there[other] for other in nearest[:MOST_ADOPTED]}


@dataclass(frozen=True, slots=True)
class OnRecord:
    """Adopts what priors on record name: to make again what was."""

    names: Mapping[int, tuple[Adopted, ...]]  # by the number of the prior
    snapshots: Mapping[Adopted, CrowdSnapshot]

    def __call__(
        self, number: int, adopted: Mapping[int, CrowdSnapshot]
    ) -> Mapping[int, CrowdSnapshot]:
        """The snapshots that prior `number` names; none of a prior that is not on record."""
        missing = [name for name in self.names.get(number, ()) if name not in self.snapshots]
        if missing:
            raise StateMismatch(
                complaint(
                    f"prior {number}",
                    "was made of a snapshot that is not there",
                    expected=f"prior {missing[0].number} of partition {missing[0].partition}",
                    got=f"{len(self.snapshots)} others",
                )
            )
        return {name.partition: self.snapshots[name] for name in self.names.get(number, ())}


def _most_counted(crowd: Crowd, votes: Votes) -> Ints:
    """The cells of a snapshot: of the priors with most votes, those with most votes."""
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
    """A number for each cell: those with the same one are one row where a prior is made.

    Votes that stayed are counted apart for each action: their rows depend on the action's bonus.
    """
    row = np.zeros_like(place)
    for column in (place, length, stayed, vote * stayed, group):
        _, numbered = np.unique(column, return_inverse=True)
        _, row = np.unique(row * (len(column) + 1) + numbered, return_inverse=True)
    return row


def are_priors(crowd: Crowd, bonuses: Ints) -> bool:
    """Whether these follow from shares of keys: each e^b within bounds, and K in all."""
    least, most = (
        round_(log(of)) for round_, of in ((floor, float(crowd.floor)), (ceil, crowd.actions))
    )
    if (bonuses < (least << POINT)).any() or (bonuses > (most << POINT)).any():
        return False
    shares = np.exp(bonuses.reshape(-1, crowd.actions) / (1 << POINT)).sum(axis=1)
    return bool((np.abs(shares / crowd.actions - 1) < 1e-3).all())
