"""Priors, computed again from a ledger's votes: for `verification`.

A ledger of a stream with a crowd has a line for each prior, behind the lines of the record with
which it became due and before the first draw that was told it. Here:

1. Each opening and vote names the newest prior (0 before the first; an opening that was carried
   over was not drawn, and names 0; so does what a control group keeps apart), and the crowd that
   all lines of the epoch name.
2. A prior comes when it is due, not before and not later, and says after how many votes.
3. It is what the newest votes of all keys make of it (`Crowd.follows`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from msgspec import UNSET

from streamdp.core.arrays import Ints
from streamdp.core.errors import InvalidConfig, StateMismatch
from streamdp.core.events import ACTION, OPENING, CrowdPrior, Key
from streamdp.core.evidence.crowd import Crowd, cast, due, named, newest
from streamdp.service.agreements import Agreements
from streamdp.wire.lines import CarriedOver, Charge, PriorLine


@dataclass(slots=True)
class CrowdLines:
    """Follows the lines of one partition's epoch."""

    crowd: Crowd | None = None
    name: str | None = None  # None before the first line that could say it
    votes: int = 0
    late: int = -1  # the record with which the next prior became due
    priors: dict[int, CrowdPrior] = field(default_factory=dict)
    kept: dict[Key, Ints] = field(default_factory=dict)
    in_force: dict[Key, int] = field(default_factory=dict)
    agreements: Agreements = field(default_factory=Agreements)

    def read(self, line: Charge) -> Iterator[str]:
        """What is wrong with the line of an opening or a vote, given those before it."""
        if line.kind not in (OPENING, ACTION):
            return
        name = line.crowd if isinstance(line.crowd, str) else ""
        yield from self._begun(name)
        if self.crowd is None:
            if line.prior is not UNSET:
                yield f"block {line.block}: a prior, but no crowd that says why"
            return
        control, identity = self.crowd.control, line.identity
        plain = line.kind == ACTION and control.plain(identity.key, identity.born, identity.block)
        none = plain or control.holds(identity.key) or isinstance(line.carried, CarriedOver)
        told = 0 if none else len(self.priors) - 1
        if line.prior != told:
            yield f"block {line.block} was drawn under prior {line.prior} where {told} was due"
        if 0 <= self.late < line.last_offset:
            yield f"prior {len(self.priors)} is missing, due behind record {self.late}"
            self.late = -1
        yield from self._voted(self.crowd, line, plain=plain)
        self.agreements.read(line)

    def told(self, line: PriorLine) -> Iterator[str]:
        """What is wrong with a prior's line."""
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
        elif not crowd.follows(prior, newest(np.array(list(self.kept.values()))), self.priors):
            yield f"prior {prior.number} does not follow from the votes before it"
        fits = crowd.fits(prior)  # else later priors could not be computed with it
        self.priors[prior.number], self.late = prior if fits else crowd.nothing, -1

    def _begun(self, name: str) -> Iterator[str]:
        """The epoch's first line says the crowd; all others the same."""
        if self.name is None:
            self.name = name
            try:
                self.crowd = named(name) if name else None
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
            self.votes += 1
            number = line.prior if isinstance(line.prior, int) else 0
            self.kept[key] = cast(
                crowd,
                prior=np.array([min(number, len(self.priors) - 1)]),
                stayed=np.array([self.in_force.get(key) == line.index and not plain]),
                vote=np.array([line.index]),
                length=np.array([line.stop - line.start]),
                group=crowd.groups.numbers([key]),
            )[0]
            if self.votes >= due(self.priors[len(self.priors) - 1].after) and self.late < 0:
                self.late = line.last_offset
        self.in_force[key] = line.index if line.in_force is UNSET else line.in_force
