"""Recomputes priors from a ledger's votes or sums, for `verification`.

A ledger of a stream with a crowd has a line for each prior. It stands behind the lines of the
record with which the prior became due, and before the first draw that used it. Checked here:

1. Each opening and vote names the newest prior (0 before the first; an opening that was carried
   over was not drawn and names 0, and so does a line of the control group), and all lines of an
   epoch name the same crowd.
2. A prior comes exactly when it is due, and says after how many votes.
3. A prior follows from the newest votes of all keys, and of the pool (`Crowd.follows`).
4. Where keys donate, no short block has a vote, and the pool's blocks tile the donated slots: at
   any line there are no more of them than keys' lines have announced, and no fewer than the slots
   behind which their keys have gone on. Numbers may be any, for anybody may have written the
   ledger: blocks that are missing are counted, not gone through one by one.
5. Each vote of a key or of the pool is drawn by permute-and-flip and charges the ε of the rate in
   the crowd's name; the same ε is announced for a donated slot. What the rate costs is proven for
   every bonus vector (`calibration.permute_and_flip_charge`), so a smaller ε means a wrong ledger,
   whatever the budget.

In a feedback stream releases of sums take the place of votes: a prior follows from what they have
made known of each key that counts (`PooledMeans.follows`), and a policy uses the prior.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
from msgspec import UNSET

from streamdp.core.arrays import Floats, Ints
from streamdp.core.calibration import permute_and_flip_charge
from streamdp.core.errors import InvalidConfig, StateMismatch
from streamdp.core.events import ACTION, OPENING, SUMS, CrowdPrior, Key
from streamdp.core.evidence.crowd import WIDTH, Crowd, Votes, are_priors, cast, due, newest
from streamdp.core.evidence.crowd_names import crowd_of
from streamdp.core.evidence.donation import NEWEST, donated_below_by, pool_schedule
from streamdp.core.evidence.pooled_means import PooledMeans
from streamdp.core.schedule import LAST_SLOT
from streamdp.service.agreements import Agreements
from streamdp.wire.lines import CarriedOver, Charge, Donates, PoolLine, PriorLine

MECHANISM = "permute_and_flip"
"""The mechanism of every vote in a stream with a crowd; its ε is proven for every bonus vector."""


@dataclass(slots=True)
class PoolLines:
    """Follows what keys donate, and the votes of their pool."""

    blocks: int = 0  # blocks of the pool that have ended
    due: tuple[int, int] | None = None  # the slots of the next block, once asked for
    last: int = -1  # the last record of the newest block
    announced: int = 0  # the most slots that may have been donated
    sure: int = 0  # slots that were certainly donated
    settled: int = 0  # the same, behind records before that of the newest line
    reached: int = -1  # the record of the newest line
    open: dict[Key, tuple[int, int]] = field(default_factory=dict)  # born, and slots announced
    kept: list[Ints] = field(default_factory=list)  # the newest votes, the last one first

    def read(self, crowd: Crowd, line: Charge) -> Iterator[str]:
        """Yield the faults in what a key's line says about its donations."""
        key, born, length = line.identity.key, line.born, line.stop - line.start
        below = donated_below_by(key, crowd.donates, crowd.control)
        yield from self._passed(crowd, line.last_offset)
        if line.kind == ACTION and length < below:
            yield f"block {line.block} of {length} slots votes; below {below} all donate"
        before = self.open.pop(key, None)
        if before is not None and before[0] == born:
            self.sure += before[1]
        if isinstance(line.donates, Donates):
            gift = line.donates
            if not below:
                yield f"block {line.block}: a donation of a key of the control group"
            if not gift.blocks <= gift.slots <= gift.blocks * (crowd.donates - 1):
                yield f"{gift.blocks} blocks of {gift.slots} slots announced, too long to donate"
            yield from _charges(crowd, gift.epsilon, f"a slot donated behind block {line.block}")
            if line.stop + gift.slots - 1 > LAST_SLOT:
                yield (
                    f"{gift.slots} slots announced from slot {line.stop} on; expected none behind"
                    f" slot {LAST_SLOT}"
                )
                return
            self.announced += gift.slots
            self.open[key] = born, gift.slots

    def voted(self, crowd: Crowd, line: PoolLine) -> Iterator[str]:
        """Yield the faults of a vote of the pool."""
        yield from self._passed(crowd, line.last_offset)
        start, stop = self._due(crowd)
        if (line.block, line.start, line.stop) != (self.blocks, start, stop):
            yield (
                f"block {line.block} of the pool charges slots [{line.start}, {line.stop}) where"
                f" block {self.blocks} with [{start}, {stop}) was due"
            )
        if line.stop - 1 > self.announced:
            yield f"the pool charges {line.stop - 1} slots; keys donated {self.announced} at most"
        if line.first_offset < self.last or line.last_offset < line.first_offset:
            yield f"block {line.block} of the pool reads records of the block before"
        yield from _drawn(crowd, line, f"block {line.block} of the pool")
        self._ended(self.blocks + 1)
        self.last = line.last_offset
        vote = cast(
            crowd, prior=np.array([0]), stayed=np.array([False]),
            vote=np.array([min(line.index, crowd.actions - 1)]),
            length=np.array([stop - start]), group=np.array([0]),
        )[0]  # fmt: skip
        self.kept = [vote, *self.kept[: NEWEST - 1]]

    def _passed(self, crowd: Crowd, offset: int) -> Iterator[str]:
        """Check that behind earlier records than this one the pool has drawn all that was due."""
        if offset > self.reached:
            self.settled, self.reached = self.sure, offset
        settled = min(self.settled, LAST_SLOT)
        if self._due(crowd)[1] - 1 > settled:
            return
        first, now = self.blocks, pool_schedule(crowd.donates).block_of(settled + 1)
        missing = f"the vote of block {first} of the pool is missing before record {offset}"
        if now - first > 1:
            missing += f", and so are those of the next {now - first - 1} blocks"
        yield missing
        self._ended(now)

    def _due(self, crowd: Crowd) -> tuple[int, int]:
        """The slots of the pool's next block."""
        if self.due is None:
            schedule = pool_schedule(crowd.donates)
            self.due = schedule.start(self.blocks), schedule.stop(self.blocks)
        return self.due

    def _ended(self, blocks: int) -> None:
        """Note that so many blocks of the pool have ended."""
        self.blocks, self.due = blocks, None


@dataclass(slots=True)
class CrowdLines:
    """Follows the lines of one partition's epoch."""

    crowd: Crowd | PooledMeans | None = None
    name: str | None = None  # None before the first line that names one
    votes: int = 0
    late: int = -1  # the record with which the next prior became due
    priors: dict[int, CrowdPrior] = field(default_factory=dict)
    kept: dict[Key, Ints] = field(default_factory=dict)
    in_force: dict[Key, int] = field(default_factory=dict)
    agreements: Agreements = field(default_factory=Agreements)
    pool: PoolLines = field(default_factory=PoolLines)

    def read(self, line: Charge) -> Iterator[str]:
        """Yield the faults of an opening's or a vote's line, given the lines before it."""
        if line.kind not in (OPENING, ACTION, SUMS):
            crowd, length = self.crowd, line.stop - line.start
            if isinstance(crowd, Crowd) and length < donated_below_by(
                line.identity.key, crowd.donates, crowd.control
            ):
                yield f"block {line.block} of {length} slots has an estimate, but is donated"
            return
        name = line.crowd if isinstance(line.crowd, str) else ""
        yield from self._begun(name)
        if self.crowd is None:
            if line.prior is not UNSET:
                yield f"block {line.block}: names a prior, but no crowd"
            return
        control, identity = self.crowd.control, line.identity
        plain = line.kind == ACTION and control.plain(identity.key, identity.born, identity.block)
        none = plain or control.holds(identity.key) or isinstance(line.carried, CarriedOver)
        due = 0 if none else len(self.priors) - 1
        if line.prior != due:
            yield f"block {line.block} was drawn under prior {line.prior} where {due} was due"
        yield from self._late(line.last_offset)
        if isinstance(self.crowd, Crowd) and self.crowd.donates:
            yield from self.pool.read(self.crowd, line)
        elif line.donates is not UNSET:
            yield f"block {line.block}: donates, in a crowd without a pool"
        if isinstance(self.crowd, Crowd):
            yield from self._voted(self.crowd, line, plain=plain)
        elif line.kind != OPENING:
            self._count(line.last_offset)
        self.agreements.read(line)

    def pooled(self, line: PoolLine) -> Iterator[str]:
        """Yield the faults of a vote of the pool, given the lines before it."""
        yield from self._begun(line.crowd)
        if not isinstance(self.crowd, Crowd) or not self.crowd.donates:
            yield f"block {line.block} of a pool, in a stream without one"
            return
        if line.index >= self.crowd.actions:
            yield f"block {line.block} of the pool: a vote for action {line.index}"
        yield from self._late(line.last_offset)
        yield from self.pool.voted(self.crowd, line)
        self._count(line.last_offset)

    def learned(self, line: Charge, history: Floats | None) -> None:
        """Take in what is known of a feedback stream's key by its sums so far, if anything is."""
        crowd = self.crowd
        if not isinstance(crowd, PooledMeans):
            return
        known = np.zeros(crowd.width, dtype=np.int64)
        if history is not None and history.size == crowd.size:
            known[:-1] = np.ascontiguousarray(history).reshape(-1).view(np.int64)
        self.kept[line.identity.key] = known

    def prior_of(self, number: int | None) -> CrowdPrior | None:
        """The prior with this number, if it was read."""
        return None if number is None else self.priors.get(number)

    def read_prior(self, line: PriorLine) -> Iterator[str]:
        """Yield the faults of a prior's line."""
        yield from self._begun(line.crowd)
        crowd = self.crowd
        if crowd is None:
            return
        try:
            prior = line.prior()
        except StateMismatch as error:
            yield str(error)
            return
        if prior.number != len(self.priors):
            yield f"prior {prior.number} where {len(self.priors)} was due"
            return
        if self.late < 0 or prior.after != self.votes:
            yield f"prior {prior.number} after {prior.after} votes of {self.votes}, none was due"
        elif not self._follows(crowd, prior):
            yield f"prior {prior.number} does not follow from the votes before it"
        fits = crowd.fits(prior)  # else later priors could not be computed with it
        fits = fits and (isinstance(crowd, PooledMeans) or are_priors(crowd, prior.bonuses))
        self.priors[prior.number], self.late = prior if fits else crowd.nothing, -1

    def _follows(self, crowd: Crowd | PooledMeans, prior: CrowdPrior) -> bool:
        if isinstance(crowd, PooledMeans):
            return crowd.follows(prior, np.array(list(self.kept.values())), self.priors)
        return crowd.follows(prior, self._newest(), self.priors)

    def _begun(self, name: str) -> Iterator[str]:
        """The epoch's first line names the crowd; all others must name the same."""
        if self.name is None:
            self.name = name
            try:
                self.crowd = crowd_of(name) if name else None
            except InvalidConfig as error:
                yield str(error)
            if self.crowd is not None:
                self.priors[0] = self.crowd.nothing
        if name != self.name:
            yield f"another crowd than before: {name[:80]!r}, not {self.name[:80]!r}"

    def _voted(self, crowd: Crowd, line: Charge, *, plain: bool) -> Iterator[str]:
        key = line.identity.key
        if not isinstance(line.index, int) or not 0 <= line.index < crowd.actions:
            yield f"block {line.block} ({line.kind}) does not say what was drawn"
            return
        if line.kind == OPENING:
            self.kept.pop(key, None)
        else:
            number = line.prior if isinstance(line.prior, int) else 0
            self.kept[key] = cast(
                crowd,
                prior=np.array([min(number, len(self.priors) - 1)]),
                stayed=np.array([self.in_force.get(key) == line.index and not plain]),
                vote=np.array([line.index]),
                length=np.array([min(max(line.stop - line.start, 0), LAST_SLOT)]),
                group=crowd.groups.numbers([key]),
            )[0]
            self._count(line.last_offset)
            yield from _drawn(crowd, line, f"block {line.block}")
        self.in_force[key] = line.index if line.in_force is UNSET else line.in_force

    def _newest(self) -> Votes:
        """The votes that make a prior."""
        return _counted([*self.kept.values(), *self.pool.kept])

    def _count(self, offset: int) -> None:
        """Count one more vote; note the record with which the next prior becomes due."""
        self.votes += 1
        if self.votes >= due(self.priors[len(self.priors) - 1].after) and self.late < 0:
            self.late = offset

    def _late(self, offset: int) -> Iterator[str]:
        """Report a prior that should stand before a line about this record."""
        if 0 <= self.late < offset:
            yield f"prior {len(self.priors)} is missing, due behind record {self.late}"
            self.late = -1


def _drawn(crowd: Crowd, line: Charge | PoolLine, of: str) -> Iterator[str]:
    """Yield the faults of a vote's mechanism and charge."""
    if line.mechanism != MECHANISM:
        yield f"{of} was drawn by {line.mechanism[:40]!r}; expected {MECHANISM}"
    yield from _charges(crowd, line.epsilon, of)


def _charges(crowd: Crowd, epsilon: str, of: str) -> Iterator[str]:
    """Check that the charge is the cost of a draw at the crowd's rate."""
    expected = permute_and_flip_charge(crowd.rate)
    if Fraction(epsilon) != expected:
        yield (
            f"{of} is charged ε = {epsilon[:40]}; expected {expected}, as draws at rate"
            f" {crowd.rate} cost"
        )


def _counted(votes: list[Ints]) -> Votes:
    """Count the kept votes; there may be none."""
    return newest(np.array(votes, dtype=np.int64).reshape(-1, WIDTH))
