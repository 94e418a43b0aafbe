"""The list of actions that policies follow: what a feedback stream is read under.

Readers obey a stream's list at once. Its owners *take* it at a position, and from there on policies
are computed over what it allows. It goes the way of schemas (`wire.renewals`): a list holds from
the first record of a fetch on, is saved in the commit that first has a record from there, and never
changes afterwards; a rebuild goes through the same lists at the same positions. That commit also
has a line of the ledger for it (`wire.lines.TakenList`).

A list may also name actions that are new. Where the stream has room they get its spare columns, in
the list's order, for the rest of the epoch; records from the position on are read with these names,
and what names them before is the null observation. A record that names a new action was written
after its list was, and the loop reads the list after the record: so the name is known in time. A
list of another epoch names nothing, and neither does one whose names are not those that are there.

The loop reads the catalogue to its end for each batch, after a fetch and before any record of it is
decoded. When a list is taken follows from that alone, never from what a record holds. If the
catalogue is out of reach, the list that was taken goes on, and it is asked again after a while.

Streams of losses take none, for their events have losses of all actions. What is paused there is
only the readers' concern, and a new action is a new epoch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import msgspec

from streamdp.core.arrays import Bools
from streamdp.core.errors import StateMismatch
from streamdp.core.events import SPARE, names_in
from streamdp.wire.formats import Format, renamed
from streamdp.wire.lines import ListLine, allowed_of, without_part
from streamdp.wire.published import decode_list
from streamdp.wire.renewals import Renewal, RenewalSource, encode_renewal
from streamdp.wire.state import LONG

LIST = "list"
"""What renewals of this sort are."""

_names_decoder = msgspec.json.Decoder(list[str])


class TakenNames(NamedTuple):
    """A list that was taken: which names it pauses, and what that leaves of the columns."""

    ordinal: int  # 0: no list was taken
    paused: tuple[str, ...]
    allowed: Bools | None  # None: there is no list, so all that have a name without one
    names: tuple[str, ...] = ()  # of all columns, spare ones too

    @property
    def without_part(self) -> tuple[str, ...]:
        """The names that have no part of policies."""
        return tuple(without_part(self.names, self.paused))

    @property
    def named(self) -> int | None:
        """How many columns have a name; None: those that have one without a list."""
        return len(names_in(self.names)) if self.ordinal else None


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
    epoch: int = 0  # the stream's: lists name columns of one epoch
    taken: Renewal | None = None  # the list that holds; those before it hold for earlier records
    newest: TakenNames = field(init=False, compare=False, repr=False, default=NO_LIST)

    def __post_init__(self) -> None:
        """Read the list that holds; `StateMismatch` if the state has something else."""
        if self.taken is not None:
            object.__setattr__(self, "newest", names_by(self.taken, self.actions))

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
            taken = _renewal(line, self._names_in(line), self.actions, since)
        if format_ is self.format and taken is self.taken:
            return self
        return replace(self, format=format_, taken=taken)._renamed()

    def resumed(self, saved: Sequence[Renewal], /) -> ListedFormat:
        """With these alone: the newest of the lists."""
        lists = [of for of in saved if of.what == LIST]
        others = [of for of in saved if of.what != LIST]
        format_ = self.format if lists and not others else self.format.resumed(others)
        taken = max(lists, key=lambda of: (of.since, of.number), default=None)
        return replace(self, format=format_, taken=taken)._renamed()

    def _names_in(self, line: ListLine) -> Sequence[str]:
        """The names of columns under a list: those that are there, and its new ones."""
        known = names_in(self.newest.names or self.actions)
        names = line.named_in(self.epoch)
        goes_on = len(names) <= len(self.actions) and tuple(names[: len(known)]) == known
        return names if goes_on else known

    def _renamed(self) -> ListedFormat:
        """With a format that reads the names that there are."""
        names = names_in(self.newest.names)
        if not names or tuple(self.format.actions) == names:
            return self
        return replace(self, format=renamed(self.format, names))


def _renewal(line: ListLine, names: Sequence[str], actions: Sequence[str], since: int) -> Renewal:
    """A list as the state holds it: what it pauses, and which columns have got a name."""
    gone, first = set(line.paused), len(names_in(actions))
    content = _content([name for name in names if name in gone], names[first:])
    return Renewal(what=LIST, number=line.ordinal, since=since, content=content)


def _content(paused: Sequence[str], added: Sequence[str]) -> dict[str, str]:
    return {"paused": _texts(paused), **({"added": _texts(added)} if added else {})}


def longest_renewal(names: Sequence[str], *, added: Sequence[str]) -> bytes:
    """The largest entry of the state that holds a list."""
    of = Renewal(what=LIST, number=LONG, since=LONG, content=_content(names, added))
    return encode_renewal(of)


def _texts(names: Sequence[str]) -> str:
    return msgspec.json.encode(names).decode()


def names_by(taken: Renewal, actions: Sequence[str]) -> TakenNames:
    """What a saved list says; `actions` are the names that the epoch began with."""
    try:
        paused = tuple(_names_decoder.decode(taken.content["paused"]))
        added = _names_decoder.decode(taken.content.get("added", "[]"))
    except (KeyError, msgspec.MsgspecError) as error:
        expected, got = "a list of names", type(error).__name__
        raise StateMismatch(repr(taken), "damaged", expected=expected, got=got) from None
    first, room = names_in(actions), actions.count(SPARE)
    if len(added) > room:
        expected, got = f"at most {room} names", str(len(added))
        raise StateMismatch(repr(taken), "no room", expected=expected, got=got)
    names = (*first, *added, *[SPARE] * (room - len(added)))
    return TakenNames(taken.number, paused, allowed_of(names, paused), names)
