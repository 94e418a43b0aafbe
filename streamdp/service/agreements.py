"""How a control group fares beside all other keys, from ledger lines that anybody can read.

For votes: how often a plain vote agrees with the action in force. For a feedback stream: the mean
loss of what was shown, by the released sums with their noise. That loss is what policies are meant
to lower, so no plain release is needed.

Lines of a partition are read in order (`core.evidence.control` says what is measured). A vote
counts only if the line before it of the same learner was read too. Where keys donate, votes of
blocks as short as the donated ones do not count: only the control group has such votes, and they
say little. The caller says when a new epoch begins.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache

from msgspec import UNSET

from streamdp.core.errors import InvalidConfig, StateMismatch
from streamdp.core.events import ACTION, OPENING, SUMS, Key
from streamdp.core.evidence.control import NO_CONTROL, Agreement, Control
from streamdp.core.evidence.crowd_names import crowd_of
from streamdp.core.grid import NULL, UNIT
from streamdp.wire.lines import Charge

MOST_KEYS = 1_000_000


@dataclass(slots=True)
class _Learner:
    """What is known of a key's newest learner."""

    born: int
    in_force: int
    votes: int = 0  # plain votes; of a feedback stream: shows
    agreed: int = 0  # plain votes that agreed; of a feedback stream: losses, in grid units


@dataclass(slots=True)
class Agreements:
    """Both sides of one partition's epoch."""

    alone: Agreement = field(default_factory=Agreement)  # keys of the control group
    together: Agreement = field(default_factory=Agreement)  # all others
    unit: int = 1  # of `agreed`: 2**20 to a loss
    _learners: dict[Key, _Learner] = field(default_factory=dict, repr=False)

    def read(self, line: Charge) -> None:
        """Read the next line of an opening or a vote; other lines say nothing here."""
        control = control_of(line)
        if not control.share or line.kind not in (OPENING, ACTION, SUMS):
            return
        if line.learner is not UNSET:
            self._read_sums(line, control)
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
        kept = line.stop - line.start >= _donated_below(line)
        if line.kind == ACTION and kept and control.plain(key, born, line.block):
            again = line.index == learner.in_force
            side = self.alone if control.holds(key) else self.together
            side.add(learner.votes, learner.agreed, again=again)
            learner.votes, learner.agreed = learner.votes + 1, learner.agreed + again
        learner.in_force = in_force

    def _read_sums(self, line: Charge, control: Control) -> None:
        """Add what a feedback stream's block lost to its key's side."""
        key, born = line.identity.key, line.born
        learner = self._learners.get(key)
        if learner is None or learner.born != born:
            if learner is None and len(self._learners) >= MOST_KEYS:
                return
            learner = self._learners[key] = _Learner(born, 0)
        try:
            sums = line.block_sums()
            gains, shown = (None, None) if sums is None else sums.arrays()
        except (StateMismatch, ValueError):  # the ledger is read, not trusted
            return
        if gains is None or shown is None:
            return
        shows = int(shown.sum())
        lost = shows * NULL - int(gains.sum())
        side = self.alone if control.holds(key) else self.together
        side.add_many(learner.votes, learner.agreed, shows, lost)
        learner.votes, learner.agreed = learner.votes + shows, learner.agreed + lost
        self.unit = UNIT


def told_of(of: Agreement, unit: int) -> dict[str, float | int | None]:
    """One side, for the status page and `ledger verify`."""
    rate, error = (None if value is None else value / unit for value in (of.rate, of.error))
    return {"keys": of.keys, "votes": of.votes, "rate": rate, "error": error}


def control_of(line: Charge) -> Control:
    """The control group that a line names; none if the line's crowd cannot be read."""
    return _crowd(line.crowd)[0] if isinstance(line.crowd, str) else NO_CONTROL


def of_all(parts: Iterable[Agreements]) -> Agreements:
    """Add up several partitions; their learners are different ones."""
    total = Agreements()
    for part in parts:
        total.alone.include(part.alone)
        total.together.include(part.together)
        total.unit = max(total.unit, part.unit)
    return total


def _donated_below(line: Charge) -> int:
    """The length below which keys beside the control group donate their blocks."""
    return _crowd(line.crowd)[1] if isinstance(line.crowd, str) else 0


@lru_cache(maxsize=64)
def _crowd(name: str) -> tuple[Control, int]:
    """The control group that a crowd's name says, and what others donate."""
    try:
        crowd = crowd_of(name)
    except InvalidConfig:  # `crowd_lines` reports it
        return NO_CONTROL, 0
    return crowd.control, crowd.donates
