"""How often plain votes agree with the action in force, of a control group and of all other keys.

Read from a partition's ledger lines, in order, like anybody can (`core.evidence.control` says what
it measures). A vote counts where the line before it of the same learner was read too. Lines of
another epoch begin anew; whoever reads says when.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache

from streamdp.core.errors import InvalidConfig
from streamdp.core.events import ACTION, OPENING, Key
from streamdp.core.evidence.control import NO_CONTROL, Agreement, Control
from streamdp.core.evidence.crowd import named
from streamdp.wire.lines import Charge

MOST_KEYS = 1_000_000


@dataclass(slots=True)
class _Learner:
    """What is known of a key's newest learner."""

    born: int
    in_force: int
    votes: int = 0  # plain ones
    agreed: int = 0


@dataclass(slots=True)
class Agreements:
    """Both sides of one partition's epoch."""

    alone: Agreement = field(default_factory=Agreement)  # keys of the control group
    together: Agreement = field(default_factory=Agreement)  # all others
    _learners: dict[Key, _Learner] = field(default_factory=dict, repr=False)

    def read(self, line: Charge) -> None:
        """Take in the next line of an opening or a vote; others say nothing here."""
        control = control_of(line)
        if not control.share or line.kind not in (OPENING, ACTION):
            return
        if not isinstance(line.index, int):
            return
        key, born = line.identity.key, line.born
        in_force = line.in_force if isinstance(line.in_force, int) else line.index
        learner = self._learners.get(key)
        if learner is None or learner.born != born:
            if learner is not None or len(self._learners) < MOST_KEYS:
                self._learners[key] = _Learner(born, in_force)
            return
        if line.kind == ACTION and control.plain(key, born, line.block):
            again = line.index == learner.in_force
            side = self.alone if control.holds(key) else self.together
            side.add(learner.votes, learner.agreed, again=again)
            learner.votes, learner.agreed = learner.votes + 1, learner.agreed + again
        learner.in_force = in_force


def control_of(line: Charge) -> Control:
    """The control group that a line names; none where it cannot be read."""
    return _control(line.crowd) if isinstance(line.crowd, str) else NO_CONTROL


def of_all(parts: Iterable[Agreements]) -> Agreements:
    """Those of several partitions added up: their learners are different ones."""
    total = Agreements()
    for part in parts:
        total.alone.include(part.alone)
        total.together.include(part.together)
    return total


@lru_cache(maxsize=64)
def _control(crowd: str) -> Control:
    try:
        return named(crowd).control
    except InvalidConfig:  # `crowd_lines` tells that
        return NO_CONTROL
