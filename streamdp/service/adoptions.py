"""Checks what the partitions of a stream adopted of each other against their ledgers.

A prior of a crowd across partitions names the snapshots that it was made of. Each snapshot was told
when another partition made one of its own priors, so that partition's ledger says what the snapshot
counts: the votes up to that prior's line. `verification` checks here that:

1. A prior names snapshots of other partitions only, each once, and no more than a partition may
   adopt.
2. Its bonuses lie within the bounds of a prior.
3. Each snapshot has the digest that the other partition's ledger gives.
4. The prior follows from the votes before it and those that its snapshots count (`Crowd.follows`).

While the service runs, one partition's lines may name lines of another whose ledger was read too
early to have them. The commit that publishes a prior's line also tells its snapshot, and another
partition can name it in a later commit only. So where a line is missing (`lacks`), the lines that
the ledger has got since are read, once; the priors among them are counted (`unjudged`) and not
judged, or reading would never end. What a ledger lacks even then, its partition has never told.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from streamdp.core.events import Adopted, CrowdPrior
from streamdp.core.evidence.adoption import MOST_ADOPTED, CrowdSnapshot, are_priors, together
from streamdp.core.evidence.crowd import Crowd, Votes
from streamdp.wire.lines import PriorLine

_Place = tuple[int, int, int]
"""A partition, an epoch and the number of a prior."""


@dataclass(frozen=True, slots=True)
class _Claim:
    """A prior that is to be judged once all ledgers are read."""

    place: _Place
    crowd: Crowd
    prior: CrowdPrior
    votes: Votes  # the partition's own
    priors: Mapping[int, CrowdPrior]


@dataclass(slots=True)
class Adoptions:
    """Follows the priors of all partitions of one stream."""

    reads_on: bool = False  # whether lines come that were not there yet at the first reading
    unjudged: int = 0  # priors among these lines: nobody has checked what they were made of
    _snapshots: dict[_Place, CrowdSnapshot] = field(default_factory=dict)
    _newest: dict[tuple[int, int], int] = field(default_factory=dict)
    _claims: list[_Claim] = field(default_factory=list)
    _missing: dict[tuple[int, int], int] = field(default_factory=dict)
    """By partition and epoch the latest prior that is named and was not read yet."""

    def read(
        self,
        line: PriorLine,
        prior: CrowdPrior,
        crowd: Crowd,
        *,
        own: Votes,
        shared: Votes,
        priors: Mapping[int, CrowdPrior],
    ) -> Iterator[str]:
        """Yield the faults of a prior that its own partition's lines before it show.

        `own`: the votes that it was made of; `shared`: those of them that other partitions are
        told.
        """
        at = line.partition, line.epoch
        of = [name.partition for name in prior.adopted]
        if line.partition in of or len(set(of)) < len(of) or len(of) > MOST_ADOPTED:
            yield f"prior {prior.number} names {len(of)} snapshots, not all of other partitions"
        elif not crowd.fits(prior) or not are_priors(crowd, prior.bonuses):
            yield f"prior {prior.number} has bonuses that no shares of keys give"
        elif not self.reads_on:
            self._claims.append(_Claim((*at, prior.number), crowd, prior, own, priors))
            self._note_missing(prior)
        else:
            self.unjudged += 1
        self._newest[at] = prior.number
        if self._missing.get(at, prior.number + 1) <= prior.number:
            del self._missing[at]
        self._snapshots[(*at, prior.number)] = CrowdSnapshot.of(
            crowd, shared, priors, partition=line.partition, epoch=line.epoch, number=prior.number
        )

    @property
    def lacks(self) -> bool:
        """Whether priors name a snapshot of which no line was read yet."""
        return bool(self._missing)

    def _note_missing(self, prior: CrowdPrior) -> None:
        for name in prior.adopted:
            at = name[:2]
            if name.number > max(self._newest.get(at, 0), self._missing.get(at, 0)):
                self._missing[at] = name.number

    def judge(self) -> Iterator[tuple[int, str]]:
        """Yield the faults that show once all ledgers are read, each with its partition."""
        claims, self._claims = self._claims, []
        for claim in claims:
            partition, _, number = claim.place
            others = []
            for name in claim.prior.adopted:
                snapshot = self._snapshots.get((name.partition, name.epoch, name.number))
                if snapshot is not None and snapshot.digest == name.digest:
                    others.append(snapshot)
                else:
                    yield partition, f"prior {number} was made of {self._not_given(name, snapshot)}"
            if len(others) < len(claim.prior.adopted):
                continue
            votes, priors = together(claim.votes, claim.priors, others, size=claim.crowd.size)
            if not claim.crowd.follows(claim.prior, votes, priors):
                yield partition, f"prior {number} does not follow from the votes that it names"

    def _not_given(self, name: Adopted, snapshot: CrowdSnapshot | None) -> str:
        """A snapshot that the other partition's ledger does not give."""
        what = (
            f"a snapshot (prior {name.number}, epoch {name.epoch}) that the ledger of partition"
            f" {name.partition} does not give: expected {name.digest[:40]}"
        )
        if snapshot is not None:
            return f"{what}, got {snapshot.digest}"
        return f"{what}, got {self._newest.get(name[:2], 0)} priors in that epoch"
