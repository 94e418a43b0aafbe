"""The lists that a stream's owners took in an epoch, as its ledger says them.

A ledger names columns from the first list on. With `room` the last ones had no name when the epoch
began: which names they had then stands in the configuration alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Self

from streamdp.core.errors import InvalidConfig, StateMismatch
from streamdp.core.events import SPARE, names_in
from streamdp.core.learners.feedback import FEEDBACK_RECIPES
from streamdp.wire.lines import Charge, TakenList
from streamdp.wire.published import decode_ledger
from streamdp.wire.retracing import Method


@dataclass(frozen=True)
class TakenLists:
    """Lists, and the names that columns have by the newest of them."""

    lists: tuple[TakenList, ...] = ()
    columns: tuple[str, ...] = ()  # of a stream with room
    room: int = 0  # how many of them had no name when the epoch began

    @classmethod
    def of(
        cls, lists: Sequence[TakenList], room: int, *, configured: tuple[str, ...] | None
    ) -> Self:
        """Those of an epoch that began with the configured names, and room for so many more."""
        if not room:
            return cls(tuple(lists))
        if configured is None:
            expected = f"those of the stream's configuration, which has room for {room} more"
            raise InvalidConfig("--actions", "none", expected=expected, got="none")
        columns = (*configured, *[SPARE] * room)
        if lists:
            columns = tuple(max(lists, key=lambda of: of.list_ordinal).actions)
        if columns[:-room] != configured:
            expected = f"{', '.join(columns[:-room])}, as when the epoch began (--ledger)"
            raise InvalidConfig("--actions", "others", expected=expected, got=", ".join(configured))
        return cls(tuple(lists), columns, room)

    @property
    def names(self) -> tuple[str, ...]:
        """The names that columns have, with room."""
        return names_in(self.columns)

    def learner(self, text: str) -> str:
        """A candidate with the stream's spare columns."""
        roomy = self.room and text.partition(":")[0] in FEEDBACK_RECIPES
        return f"{text}:room={self.room}" if roomy else text

    def known(self, partition: int, offset: int, ordinal: int | None) -> int:
        """How many columns had a name for a request that knew a list; else for its record."""
        known = len(self.columns) - self.room
        for of in self._adding:
            after = of.next_offset <= offset if ordinal is None else of.list_ordinal <= ordinal
            if of.partition == partition and after:
                known = max(known, of.named)
        return known

    @cached_property
    def _adding(self) -> list[TakenList]:
        """Those of each partition that name more columns than those before."""
        most, adding = dict[int, int](), list[TakenList]()
        for of in self.lists:
            if of.named > most.get(of.partition, len(self.columns) - self.room):
                most[of.partition] = of.named
                adding.append(of)
        return adding


NO_LISTS = TakenLists()
"""Of a stream of which no ledger is given."""


def read_taken_lists(
    ledger: Path, stream: str, epoch: int, *, configured: tuple[str, ...] | None
) -> TakenLists:
    """What a file of ledger lines says of an epoch that began with the configured names."""
    try:
        lines = [decode_ledger(line) for line in ledger.read_bytes().splitlines()]
    except (OSError, StateMismatch) as error:
        expected = "the lines of `streamdp ledger show --json`"
        raise InvalidConfig("--ledger", "unreadable", expected=expected, got=error) from None
    mine = [line for line in lines if (line.stream, line.epoch) == (stream, epoch)]
    room = max((Method.of(line).spare for line in mine if isinstance(line, Charge)), default=0)
    lists = [line for line in mine if isinstance(line, TakenList)]
    return TakenLists.of(lists, room, configured=configured)
