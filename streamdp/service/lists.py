"""The list of actions that policies follow: what a feedback stream is read under.

Readers obey a stream's list at once. Its owners *take* it at a position, and from there on policies
are computed over what it allows. It goes the way of schemas (`wire.renewals`): a list holds from
the first record of a fetch on, is saved in the commit that first has a record from there, and never
changes afterwards; a rebuild goes through the same lists at the same positions. That commit also
has a line of the ledger for it (`wire.lines.TakenList`).

The loop reads the catalogue to its end for each batch, after a fetch and before any record of it is
decoded. When a list is taken follows from that alone, never from what a record holds. If the
catalogue is out of reach, the list that was taken goes on, and it is asked again after a while.

Streams of losses take none, for their events have losses of all actions. What is paused there is
only the readers' concern.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import msgspec

from streamdp.core.arrays import Bools
from streamdp.core.errors import StateMismatch
from streamdp.wire.formats import Format
from streamdp.wire.lines import ListLine, allowed_of
from streamdp.wire.published import decode_list
from streamdp.wire.renewals import Renewal, RenewalSource

LIST = "list"
"""What renewals of this sort are."""

_paused_decoder = msgspec.json.Decoder(list[str])


class TakenNames(NamedTuple):
    """A list that was taken: which names it pauses, and what that leaves of the columns."""

    ordinal: int  # 0: no list was taken
    paused: tuple[str, ...]
    allowed: Bools | None  # None: all

    @property
    def without_part(self) -> tuple[str, ...]:
        """The names that have no part of policies: a list that allows none changes nothing."""
        return () if self.allowed is None else self.paused


NO_LIST = TakenNames(0, (), None)


@dataclass(slots=True)
class Catalogue:
    """The newest list of a stream that this process has read."""

    newest: ListLine | None = None
    failures: int = 0  # in a row
    again_at: float = 0.0  # after a failure: not asked before this time

    def read(self, value: bytes | None) -> None:
        """Note the newest record of the topic; `StateMismatch` if this version cannot read it."""
        if value is None:
            return
        line = decode_list(value)
        if self.newest is None or line.ordinal > self.newest.ordinal:
            self.newest = line


@dataclass(frozen=True, slots=True)
class ListedFormat:
    """A stream's format, and the list that was taken."""

    format: Format
    actions: tuple[str, ...]
    catalogue: Catalogue | None = field(default=None, repr=False)  # None: no list is taken
    taken: Renewal | None = None  # the list that holds; those before it hold for earlier records
    newest: TakenNames = field(init=False, compare=False, repr=False, default=NO_LIST)

    def __post_init__(self) -> None:
        """Read the list that holds; `StateMismatch` if the state has something else."""
        if self.taken is not None:
            paused = tuple(paused_by(self.taken))
            names = TakenNames(self.taken.number, paused, allowed_of(self.actions, paused))
            object.__setattr__(self, "newest", names)

    @property
    def renewals(self) -> Sequence[Renewal]:
        """The format's, and the list."""
        return (*self.format.renewals, *([] if self.taken is None else [self.taken]))

    @property
    def source(self) -> RenewalSource | None:
        """The format's; lists come from the transport."""
        return self.format.source

    def renewed(self, since: int, /) -> ListedFormat:
        """With what the format's source knows, and the newest list, from a position on."""
        format_, taken = self.format.renewed(since), self.taken
        line = None if self.catalogue is None else self.catalogue.newest
        if line is not None and line.ordinal > self.newest.ordinal:
            taken = _renewal(line, self.actions, since)
        if format_ is self.format and taken is self.taken:
            return self
        return replace(self, format=format_, taken=taken)

    def resumed(self, saved: Sequence[Renewal], /) -> ListedFormat:
        """With these alone: the newest of the lists."""
        lists = [of for of in saved if of.what == LIST]
        others = [of for of in saved if of.what != LIST]
        format_ = self.format if lists and not others else self.format.resumed(others)
        taken = max(lists, key=lambda of: (of.since, of.number), default=None)
        return replace(self, format=format_, taken=taken)


def _renewal(line: ListLine, actions: Sequence[str], since: int) -> Renewal:
    """A list as the state holds it: what it pauses of the stream's actions."""
    gone = set(line.paused)
    paused = [name for name in actions if name in gone]
    content = {"paused": msgspec.json.encode(paused).decode()}
    return Renewal(what=LIST, number=line.ordinal, since=since, content=content)


def paused_by(taken: Renewal) -> Sequence[str]:
    """The names that a saved list pauses."""
    try:
        return _paused_decoder.decode(taken.content["paused"])
    except (KeyError, msgspec.MsgspecError) as error:
        expected, got = "a list of names", type(error).__name__
        raise StateMismatch(repr(taken), "damaged", expected=expected, got=got) from None
