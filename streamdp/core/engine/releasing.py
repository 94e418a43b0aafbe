"""Releases that were drawn together, and how they become the releases of a batch, as columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np

from streamdp.core.arrays import Bools, Ints
from streamdp.core.bank import Bank
from streamdp.core.events import OPENING, Carried, FeedbackColumns, Key, Releases
from streamdp.core.evidence.evidence import InForce
from streamdp.core.kinds.kind import Kind


@dataclass(frozen=True, slots=True, repr=False)
class Ended:
    """Blocks of different rows that end together, and their records."""

    rows: Ints
    block: Ints
    start: Ints
    stop: Ints
    first_offset: Ints
    last_offset: Ints
    place: Ints  # of the record that ended the block, in the batch

    def only(self, of: Bools) -> Ended:
        """Some of the blocks."""
        return Ended(*(getattr(self, name)[of] for name in self.__slots__))


@dataclass(frozen=True, slots=True, repr=False)
class Wave:
    """Releases of one name that were drawn together.

    Codes of names: 0 is an opening, 1 the kind's first release, 2 its second, and so on. Releases
    of one record come in this order.
    """

    code: int
    ended: Ended
    released: Ints  # R × the release's width
    in_force: InForce  # afterwards
    carried: dict[tuple[Key, int], Carried] | None = None  # of openings


class Releasing:
    """Makes the releases of one engine."""

    __slots__ = ("_bank", "_kind", "nothing")

    def __init__(self, *, stream: str, partition: int, epoch: int, kind: Kind, bank: Bank) -> None:
        self._kind, self._bank = kind, bank
        none, releases = np.zeros(0, dtype=np.int64), kind.releases
        self.nothing = Releases(
            stream=stream,
            partition=partition,
            epoch=epoch,
            kinds=(OPENING, *(release.name for release in releases)),
            charges=(Fraction(0), *(release.epsilon for release in releases)),
            keys=(),
            kind=none.astype(np.uint8),
            born=none, block=none, value=none, start=none, stop=none, first_offset=none,
            last_offset=none,
        )  # fmt: skip
        """The releases of a batch in which no block ends: empty columns."""

    def of(self, waves: Sequence[Wave]) -> Releases:
        """Releases in the order of the records that ended their blocks."""
        if not waves:
            return self.nothing
        codes = np.repeat(
            np.array([wave.code for wave in waves], dtype=np.uint8),
            [len(wave.released) for wave in waves],
        )

        def column(name: str) -> Ints:
            return np.concatenate([getattr(wave.ended, name) for wave in waves])

        order = np.lexsort((codes, column("block"), column("place")))
        rows = column("rows")[order]
        released = np.concatenate([wave.released for wave in waves])[order]
        in_force = np.concatenate([wave.in_force for wave in waves])[order]
        return replace(
            self.nothing,
            keys=[self._bank.keys[row] for row in rows.tolist()],
            kind=codes[order],
            born=self._bank.born[rows],
            block=column("block")[order],
            start=column("start")[order],
            stop=column("stop")[order],
            first_offset=column("first_offset")[order],
            last_offset=column("last_offset")[order],
            carried=next((wave.carried for wave in waves if wave.carried), None),
            **self._kind.columns(released, in_force),
        )

    def joined(self, released: Sequence[Releases]) -> Releases:
        """Releases of several parts of a batch, one after the other."""
        some = [part for part in released if len(part)]
        if len(some) < 2:
            return some[0] if some else self.nothing

        in_force = [part.in_force for part in some if part.in_force is not None]
        columns: dict[str, Any] = {
            name: np.concatenate([getattr(part, name) for part in some]) for name in _COLUMNS
        }
        return replace(
            some[0],
            keys=[key for part in some for key in part.keys],
            in_force=np.concatenate(in_force) if in_force else None,
            feedback=FeedbackColumns.joined(part.feedback for part in some),
            carried={at: of for part in some for at, of in (part.carried or {}).items()} or None,
            **columns,
        )


_COLUMNS = ("kind", "born", "block", "value", "start", "stop", "first_offset", "last_offset")
