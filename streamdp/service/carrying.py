"""What a new epoch carries over from earlier ones, and which entries of the state that needs.

1. A key's newest learner decides, whichever earlier epoch it is of: its saved row, and the recorded
   releases that are newer than the row. Of a row only public columns are read
   (`loading_of`); the open block is abandoned with its sums (P9).
2. The state says beside an epoch's rows what they mean (`EpochLearner`).
3. A key's entries stay until its new opening is recorded; the opening then says everything. Entries
   of keys for which nothing is carried over are deleted at once. A cut deletes a bounded number of
   entries, and a crash may follow any cut: so the oldest entry of a key goes first, and the one
   that decides goes last.
4. Whether an epoch carries over is decided where it begins, and stands in its own `EpochLearner`.
   Changing the option later affects the next epoch.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import (
    Callable,
    Container,
    Iterable,
    Iterator,
    Mapping,
    MutableMapping,
    Sequence,
)
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Any, Self

import numpy as np

from streamdp.core.arrays import Bools
from streamdp.core.bank import Bank
from streamdp.core.events import OPENING, SPARE, After, Carried, Key
from streamdp.core.evidence import NEWEST
from streamdp.core.evidence.carrying import Passage
from streamdp.core.evidence.evidence import STAYS_AWAY, Known, PublicEvidence, PublicRow
from streamdp.core.evidence.votes import Votes
from streamdp.core.kinds.kind import Kind
from streamdp.core.learners.recipes import is_name_of, kind_of, kind_written
from streamdp.core.schedule import Schedule
from streamdp.core.snapshot import Layout, Loading
from streamdp.service.spec import StreamSpec
from streamdp.wire.entries import Entries, release_entry
from streamdp.wire.lines import ENDS_BLOCK, Carries
from streamdp.wire.state import EpochEntries, EpochLearner, Recorded, SavedState, fields_of

_AT_ONCE = 1 << 14  # rows that are looked at together


class Begins(Enum):
    """Whether taking a partition begins an epoch, and how."""

    NOT = "not"
    CARRYING = "carrying"
    ANEW = "anew"  # nothing is carried: the option says so, or the state is not the newest


class Heritage(MutableMapping[Key, Carried]):
    """What keys carry over when they open.

    Of most keys it follows from the public columns of their saved rows, and is made when it is
    asked for.
    """

    def __init__(self) -> None:
        """Nothing yet."""
        self._made: dict[Key, Carried] = {}
        self._rows: list[_CarriedRows] = []

    def adopt(self, other: Heritage) -> None:
        """Take in what another one has."""
        self._made |= other._made
        self._rows += other._rows

    def add(self, rows: _CarriedRows, made: Mapping[Key, Carried]) -> None:
        """Add what the keys of one epoch carry over."""
        self._rows.append(rows)
        self._made |= made

    def __len__(self) -> int:
        """How many keys carry something over."""
        return len(self._made) + sum(rows.carrying for rows in self._rows)

    def __iter__(self) -> Iterator[Key]:
        """Those keys."""
        yield from self._made
        for rows in self._rows:
            yield from rows

    def __contains__(self, key: object) -> bool:
        """Whether a key carries something over."""
        return key in self._made or any(key in rows for rows in self._rows)

    def __getitem__(self, key: Key) -> Carried:
        """What a key carries over."""
        for rows in self._rows:
            if key in rows:
                return rows.carried(key)
        return self._made[key]

    def __setitem__(self, key: Key, carried: Carried) -> None:
        """Let a key carry over something else."""
        for rows in self._rows:
            rows.discard(key)
        self._made[key] = carried

    def __delitem__(self, key: Key) -> None:
        """Let a key carry nothing over."""
        for rows in self._rows:
            if rows.discard(key):
                return
        del self._made[key]


@dataclass(slots=True)
class CarriedEntries:
    """What keys carry over when they open, and the entries of the state that hold it."""

    carried: Heritage = field(default_factory=Heritage, repr=False)
    rows: list[_CarriedRows] = field(default_factory=list, repr=False)
    releases: dict[Key, list[bytes]] = field(default_factory=dict, repr=False)
    gone: list[bytes] = field(default_factory=list, repr=False)  # entries to delete

    @property
    def holds(self) -> bool:
        """Whether any entry waits for its key to open."""
        return bool(self.releases) or any(rows.waiting for rows in self.rows)

    def let_go(self, key: Key) -> list[bytes]:
        """The entries of a key that has opened, in the order in which they may be deleted."""
        rows = [place for rows in self.rows for place in rows.let_go(key)]
        return rows + self.releases.pop(key, [])


def has_its_scale(settings: Mapping[str, str], before: EpochLearner) -> bool:
    """Whether rewards of an earlier epoch are shares of the same `most`: else nothing is carried.

    Sums cannot be rescaled where rewards were clipped, and how many were is known to nobody.
    """
    return before.settings.get("format.most") == settings.get("format.most")


def carries(spec: StreamSpec, before: EpochLearner) -> Carries:
    """What the ledger's mark of an epoch says: which actions stay, by name."""
    names = set(spec.learner.actions)
    moves = Passage(LearnerBefore.of(before), spec.learner).moves
    assert moves is not None, "another learner"
    return Carries(
        removed=[name for name in before.actions if name not in names and name != SPARE],
        kept=list(runs((now, old) for old, now in enumerate(moves.tolist()) if now != STAYS_AWAY)),
    )


def runs(pairs: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int, int]]:
    """Group pairs of numbers that rise together into runs.

    >>> list(runs([(0, 0), (1, 1), (5, 2), (6, 4)]))
    [(0, 0, 2), (5, 2, 1), (6, 4, 1)]
    """
    run: tuple[int, int, int] | None = None
    for now, before in pairs:
        if run is not None and (now, before) == (run[0] + run[2], run[1] + run[2]):
            run = (run[0], run[1], run[2] + 1)
            continue
        if run is not None:
            yield run
        run = (now, before, 1)
    if run is not None:
        yield run


def carried_entries(
    spec: StreamSpec,
    partition: int,
    saved: SavedState,
    *,
    begins: Begins,
    waiting: set[bytes],
    opened_now: Callable[[Key], bool],
) -> CarriedEntries:
    """What the keys of a partition carry over into the epoch that begins, or is under way.

    `opened_now` tells whether a key has opened in the latter, beside the keys in `saved`.

    `waiting`: recorded releases that are still to be published; they are deleted after that, as
    always.
    """
    result, entries = CarriedEntries(), Entries(spec.name, partition)
    sources = dict(saved.older)
    opened: list[Container[Key]] = []
    if begins is Begins.NOT:
        opened.append({*saved.rows, *(identity.key for identity in saved.releases)})
    elif saved.checkpoint is not None:
        sources[saved.checkpoint.epoch] = saved.now
    gone_of: list[list[bytes]] = []
    for epoch in sorted(sources, reverse=True):
        source, gone = sources[epoch], list[bytes]()
        rows, carried = None, dict[Key, Carried]()
        if source.learner is not None and begins is not Begins.ANEW:
            rows, carried = _carried(spec.learner, epoch, source, opened, entries)
            for key in [key for key in (*carried, *rows) if opened_now(key)]:
                rows.discard(key)
                carried.pop(key, None)
            rows.keep_places(carried)
            result.carried.add(rows, carried)
            result.rows.append(rows)
        for key in _with_rows(source):
            if rows is None or not rows.holds(key):
                gone.append(entries.row(key, epoch=epoch))
        releases = _release_places(source, waiting)
        for key, places in releases.items():
            if key in carried or (rows is not None and key in rows):
                result.releases[key] = places
            else:
                gone += places
        opened += [source.rows, source.loaded or (), releases]
        if source.learner is not None and not carried and not rows:
            gone.append(entries.learner(epoch=epoch))
        gone_of.append(gone)
    result.gone = [place for gone in reversed(gone_of) for place in gone]
    return result


def _carried(
    learner: Kind,
    epoch: int,
    source: EpochEntries,
    opened: Sequence[Container[Key]],
    entries: Entries,
) -> tuple[_CarriedRows, dict[Key, Carried]]:
    """What is carried over from an epoch, for keys that have not opened since: by keys whose row
    says it, and by others."""
    assert source.learner is not None
    before = LearnerBefore.of(source.learner)
    passage, loaded = Passage(before, learner), _loaded(epoch, source)
    newest = _newest(epoch, source, before, loaded)
    known = {
        key: passage.carried(*of)
        for key, of in newest.items()
        if of is not None and not any(key in some for some in opened)
    }
    rows = _CarriedRows(epoch, loaded, passage, partial(entries.row, epoch=epoch))
    rows.begin([newest, *opened])
    return rows, {key: of for key, of in known.items() if of is not None}


def _with_rows(source: EpochEntries) -> Iterator[Key]:
    """The keys that have a saved row."""
    yield from source.rows
    yield from source.loaded or ()


def _release_places(source: EpochEntries, waiting: set[bytes]) -> dict[Key, list[bytes]]:
    """The entries of each key's releases, in the order in which they may be deleted: newest last.

    They are deleted after the key's row, so that an older state of the learner never looks like
    the newest.
    """
    places: defaultdict[Key, list[bytes]] = defaultdict(list)
    for release in sorted(source.releases.values(), key=_age):
        identity = release.release.identity
        place = release_entry(identity)
        places[identity.key] += [] if place in waiting else [place]
    return dict(places)


def _age(recorded: Recorded) -> tuple[int, int]:
    """Sorts the releases of a key from the oldest to the newest."""
    return recorded.release.identity.born, recorded.release.stop


@dataclass(frozen=True)
class LearnerBefore:
    """The learner of an earlier epoch, as the state describes it."""

    actions: tuple[str, ...]
    schedule: Schedule
    kind: Kind | None  # None where the newest release of a key says what it carries over
    evidence: PublicEvidence

    @classmethod
    def of(cls, described: EpochLearner) -> Self:
        """Make it again; one whose releases add up, by its recipe."""
        prefix, tail = described.schedule
        schedule = Schedule("of an earlier epoch", None, tuple(prefix), tuple(tail))
        if not described.learner:
            return cls(tuple(described.actions), schedule, None, Votes(NEWEST))
        kind = kind_written(described.learner, actions=described.actions)
        return cls(kind.actions, schedule, kind, kind.evidence)

    def newest(
        self, row: tuple[After, PublicRow] | None, releases: Sequence[Recorded]
    ) -> tuple[After, Known] | None:
        """What a key carries over after the releases that are newer than its row.

        None if a release that counts is gone already.
        """
        after, public = (None, None) if row is None else row
        known = None if public is None else public.known()
        for recorded in releases:
            release = recorded.release
            named, numbers = release.identity, np.array(release.numbers, dtype=np.int64)
            if after is not None and (after.born, after.block) > (named.born, named.block):
                continue  # the row holds it already
            opens, first = release.kind == OPENING, release.carried and release.carried.block
            block = (first or 0) if opens else named.block + 1
            after = After(named.epoch, named.born, block)
            if self.kind is None:
                known = Known(release.standing)
                continue
            if release.carried is not None:
                length = int(self.schedule.lengths(np.array([block]))[0])
                public = PublicRow.resumed(self.evidence, release.carried, length, recorded.allowed)
            elif opens:
                public = PublicRow.opened(self.evidence, numbers)
            elif public is not None:
                public.fold(numbers, release.stop - release.start, recorded.allowed)
            known = None if public is None else public.known()
        return None if after is None or known is None else (after, known)


class _CarriedRows:
    """What the keys of one epoch's saved rows carry over, as columns, until they have opened."""

    def __init__(
        self, epoch: int, loaded: Loading, passage: Passage, place: Callable[[Key], bytes]
    ) -> None:
        self._epoch, self._loaded, self._passage, self._place = epoch, loaded, passage, place
        self._carries = np.zeros(len(loaded.bank), dtype=np.bool_)
        self._waits = self._carries
        self.carrying = self.waiting = 0
        """How many keys carry something over, and how many entries wait for their key to open."""

    def begin(self, others: Sequence[Container[Key]]) -> None:
        """Find the rows that something is carried over from, but of none of these keys."""
        bank = self._loaded.bank
        for first in range(0, len(bank), _AT_ONCE):
            some = slice(first, min(first + _AT_ONCE, len(bank)))
            for at, (after, known) in enumerate(self._known(some), first):
                key = bank.keys[at]
                self._carries[at] = (
                    self._loaded.row(key) is not None
                    and not any(key in of for of in others)
                    and self._passage.carried(after, known) is not None
                )
        self.carrying = int(self._carries.sum())

    def keep_places(self, others: Iterable[Key]) -> None:
        """Let the rows' entries wait, and those of these keys."""
        self._waits = self._carries.copy()
        rows = [self._loaded.row(key) for key in others]
        self._waits[[row for row in rows if row is not None]] = True
        self.waiting = int(self._waits.sum())

    def __len__(self) -> int:
        """How many keys carry something over."""
        return self.carrying

    def __iter__(self) -> Iterator[Key]:
        """Those keys."""
        return (self._loaded.bank.keys[at] for at in np.flatnonzero(self._carries).tolist())

    def __contains__(self, key: object) -> bool:
        """Whether a key carries something over."""
        return self._is(self._carries, key)

    def holds(self, key: Key) -> bool:
        """Whether the entry of a key's row waits."""
        return self._is(self._waits, key)

    def carried(self, key: Key) -> Carried:
        """What a key carries over."""
        at = self._loaded.row(key)
        assert at is not None
        carried = self._passage.carried(*next(self._known(slice(at, at + 1))))
        assert carried is not None
        return carried

    def discard(self, key: Key) -> bool:
        """Let a key carry nothing over; return whether it did."""
        did = key in self
        if did:
            self._carries[self._loaded.row(key)] = False
            self.carrying -= 1
        return did

    def let_go(self, key: Key) -> list[bytes]:
        """The entry of a key's row, if it waits."""
        if not self.holds(key):
            return []
        self._waits[self._loaded.row(key)] = False
        self.waiting -= 1
        return [self._place(key)]

    def _is(self, flags: Bools, key: Any) -> bool:
        at = self._loaded.row(key)
        return at is not None and bool(flags[at])

    def _known(self, some: slice) -> Iterator[tuple[After, Known]]:
        bank = self._loaded.bank
        columns = {name: column[some] for name, column in bank.public.items()}
        known = self._passage.before.evidence.known(columns)
        for born, block, of in zip(
            bank.born[some].tolist(), bank.block[some].tolist(), known, strict=True
        ):
            yield After(self._epoch, born, block), of


def _newest(
    epoch: int, source: EpochEntries, before: LearnerBefore, loaded: Loading
) -> dict[Key, tuple[After, Known] | None]:
    """The public part of each key's newest learner in an epoch, where its row does not say it; None
    where nothing says it any more."""
    releases: defaultdict[Key, list[Recorded]] = defaultdict(list)
    for recorded in sorted(source.releases.values(), key=_age):
        if recorded.release.kind in (OPENING, *ENDS_BLOCK):
            releases[recorded.release.key].append(recorded)
    return {
        key: before.newest(_row(epoch, loaded, before.evidence, key), of_key)
        for key, of_key in releases.items()
    }


def _row(
    epoch: int, loaded: Loading, evidence: PublicEvidence, key: Key
) -> tuple[After, PublicRow] | None:
    """The public columns of a key's saved row, if it has one."""
    at, bank = loaded.row(key), loaded.bank
    if at is None:
        return None
    columns = {name: column[at : at + 1] for name, column in bank.public.items()}
    after = After(epoch, int(bank.born[at]), int(bank.block[at]))
    return after, PublicRow(evidence, columns)


def loading_of(epoch: int, learner: EpochLearner) -> Loading:
    """What reads the public part of an epoch's rows; the open block's sums are not taken in."""
    digest = bytes.fromhex(learner.row_digest)
    private, public = fields_of(learner.private), fields_of(learner.public)
    layout = Layout(digest, epoch, private, public)
    return Loading(layout, Bank(private=(), public=public))


def _loaded(epoch: int, source: EpochEntries) -> Loading:
    """The public part of an epoch's rows."""
    if isinstance(source.loaded, Loading):
        return source.loaded
    assert source.learner is not None
    loaded = loading_of(epoch, source.learner)
    loaded.put(source.rows)
    return loaded


def is_readable(epoch: int, source: EpochEntries) -> bool:
    """Whether this version has the learner of an epoch, and every row is whole. One damaged row
    means that nothing of the partition is carried over: whoever verifies the ledger cannot know of
    the damage."""
    described = source.learner
    if described is None:
        return True
    if described.learner:
        kind = kind_of(json.loads(described.learner), actions=described.actions)
        if not is_name_of(described.learner, kind):
            return False
    return _loaded(epoch, source).whole
