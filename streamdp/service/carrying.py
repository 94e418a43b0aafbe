"""What a new epoch carries over from earlier ones, and which entries of the state that needs.

1. A key's newest learner decides, whichever earlier epoch it is of: its saved row, and the recorded
   releases that are newer than the row. Of a row only public columns are read
   (`snapshot.public_columns`); the open block is abandoned with its sums (P9).
2. The state says beside an epoch's rows what they mean (`EpochLearner`). An epoch that began
   without that entry (under the version before, or without the options that need it) carries
   nothing over: nothing says for which keys a release was withheld.
3. Only published facts are carried over. A key whose newest release was withheld (shadow mode)
   opens like a new one, since nobody could check what it carries. In a feedback stream every
   release since the learner was born counts, because its history depends on all of them.
4. A key's entries stay until its new opening is recorded; the opening then says everything. Entries
   of keys for which nothing is carried over are deleted at once. A cut deletes a bounded number of
   entries, and a crash may follow any cut: so the oldest entry of a key goes first, and the one
   that decides goes last.
5. Whether an epoch carries over is decided where it begins, and stands in its own `EpochLearner`.
   Changing the option later affects the next epoch.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from enum import Enum
from typing import Self

import numpy as np

from streamdp.core import snapshot
from streamdp.core.arrays import Columns
from streamdp.core.errors import StateMismatch
from streamdp.core.events import OPENING, After, Carried, Key, Release
from streamdp.core.evidence import NEWEST
from streamdp.core.evidence.carrying import Passage
from streamdp.core.evidence.evidence import STAYS_AWAY, Known, PublicEvidence, PublicRow
from streamdp.core.evidence.votes import Votes
from streamdp.core.kinds.kind import Kind
from streamdp.core.kinds.recorded import Drawn, named
from streamdp.core.learners import kind_of
from streamdp.core.schedule import Schedule
from streamdp.service.spec import StreamSpec
from streamdp.wire.entries import Entries, release_entry
from streamdp.wire.lines import ENDS_BLOCK, Carries
from streamdp.wire.state import EpochEntries, EpochLearner, Recorded, SavedState, fields_of


class Begins(Enum):
    """Whether taking a partition begins an epoch, and how."""

    NOT = "not"
    CARRYING = "carrying"
    ANEW = "anew"  # nothing is carried: the option says so, or the state is not the newest


@dataclass(slots=True)
class Heritage:
    """What keys carry over when they open, and the entries of the state that hold it."""

    carried: dict[Key, Carried] = field(default_factory=dict, repr=False)
    places: dict[Key, list[bytes]] = field(default_factory=dict, repr=False)
    gone: list[bytes] = field(default_factory=list, repr=False)  # entries to delete


def carries(spec: StreamSpec, before: EpochLearner) -> Carries:
    """What the ledger's mark of an epoch says: which actions stay, by name."""
    names = set(spec.learner.actions)
    moves = Passage(LearnerBefore.of(before), spec.learner).moves
    assert moves is not None, "another learner"
    return Carries(
        removed=[name for name in before.actions if name not in names],
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


def heritage(
    spec: StreamSpec,
    partition: int,
    saved: SavedState,
    *,
    begins: Begins,
    waiting: set[bytes],
    opened_now: Callable[[Key], bool],
) -> Heritage:
    """What the keys of a partition carry over into the epoch that begins, or is under way.

    `opened_now` tells whether a key has opened in the latter, beside the keys in `saved`.

    `waiting`: recorded releases that are still to be published; they are deleted after that, as
    always.
    """
    result, entries = Heritage(), Entries(spec.name, partition)
    sources, opened = dict(saved.older), set[Key]()
    if begins is Begins.NOT:
        opened = {*saved.rows, *(identity.key for identity in saved.releases)}
    elif saved.checkpoint is not None:
        sources[saved.checkpoint.epoch] = saved.now
    gone_of: list[list[bytes]] = []
    for epoch in sorted(sources, reverse=True):
        source, gone = sources[epoch], list[bytes]()
        places = _places(epoch, source, entries, waiting)
        carried = {} if begins is Begins.ANEW else _carried(spec.learner, epoch, source, opened)
        for key, of_key in places.items():
            if key in carried and not opened_now(key):
                result.carried[key], result.places[key] = carried[key], of_key
            else:
                gone += of_key
        opened |= places.keys() | source.withheld
        gone += [entries.withheld(key, epoch=epoch) for key in source.withheld]
        if source.learner is not None and not carried:
            gone.append(entries.learner(epoch=epoch))
        gone_of.append(gone)
    result.gone = [place for gone in reversed(gone_of) for place in gone]
    return result


def born_before(
    noted_from: int, rows: Iterable[tuple[Key, After, Known]], releases: Iterable[Drawn]
) -> set[Key]:
    """Keys whose newest learner is older than the entries that mark withheld releases."""
    born = {key: after.born for key, after, _ in rows}
    for name in releases:
        born[name.key] = max(born.get(name.key, 0), name.born)
    return {key for key, at in born.items() if at < noted_from}


def _carried(
    learner: Kind, epoch: int, source: EpochEntries, opened: Set[Key]
) -> dict[Key, Carried]:
    """What is carried over from an epoch, for keys that have not opened since."""
    if source.learner is None:
        return {}
    passage, known = Passage(LearnerBefore.of(source.learner), learner), _known(epoch, source)
    carried = {key: passage.carried(*row) for key, row in known.items() if key not in opened}
    return {key: row for key, row in carried.items() if row is not None}


def _places(
    epoch: int, source: EpochEntries, entries: Entries, waiting: set[bytes]
) -> dict[Key, list[bytes]]:
    """Each key's entries of an epoch, in the order in which they may be deleted: the newest last.

    A release that is newer than the row is deleted after the row, so that an older state of the
    learner never looks like the newest.
    """
    places: defaultdict[Key, list[bytes]] = defaultdict(list)
    for key in source.rows:
        places[key].append(entries.row(key, epoch=epoch))
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
        kind = kind_of(json.loads(described.learner), actions=described.actions)
        return cls(kind.actions, schedule, kind, kind.evidence)

    def newest(
        self, row: tuple[After, PublicRow] | None, releases: Sequence[Release]
    ) -> tuple[After, Known] | None:
        """What a key carries over after the releases that are newer than its row.

        None if a release that counts is gone already.
        """
        after, public = (None, None) if row is None else row
        known = None if public is None else public.known()
        for release in releases:
            drawn, kept = named(release)
            if after is not None and (after.born, after.block) > (drawn.born, drawn.block):
                continue  # the row holds it already
            opens, first = release.kind == OPENING, release.carried and release.carried.block
            block = (first or 0) if opens else drawn.block + 1
            after = After(release.identity.epoch, drawn.born, block)
            if self.kind is None:
                known = Known(release.standing)
                continue
            numbers = self.kind.read(drawn.kind, np.array([kept.value]), [kept.sums])[0]
            if release.carried is not None:
                length = int(self.schedule.lengths(np.array([block]))[0])
                public = PublicRow.resumed(self.evidence, release.carried, length)
            elif opens:
                public = PublicRow.opened(self.evidence, numbers)
            elif public is not None:
                public.fold(numbers, release.stop - release.start)
            known = None if public is None else public.known()
        return None if after is None or known is None else (after, known)


@dataclass(slots=True)
class _Rows:
    """The public columns of an epoch's saved rows."""

    evidence: PublicEvidence
    after: dict[Key, After]
    columns: Columns = field(repr=False)

    @classmethod
    def read(
        cls,
        epoch: int,
        learner: EpochLearner,
        rows: Mapping[Key, bytes],
        evidence: PublicEvidence,
    ) -> Self:
        """Read the rows that are whole."""
        layout = _layout(epoch, learner)
        rows = _readable(layout, rows)
        columns = snapshot.public_columns(layout, list(rows.items()))
        at = zip(columns["born"].tolist(), columns["block"].tolist(), strict=True)
        after = [After(epoch, born, block) for born, block in at]
        return cls(evidence, dict(zip(rows, after, strict=True)), columns)

    def known(self) -> Iterator[tuple[After, Known]]:
        """What each key may carry over."""
        if self.after:
            yield from zip(self.after.values(), self.evidence.known(self.columns), strict=True)

    def row(self, at: int) -> PublicRow:
        """One row by its place."""
        columns = {name: column[at : at + 1] for name, column in self.columns.items()}
        return PublicRow(self.evidence, columns)


def _known(epoch: int, source: EpochEntries) -> dict[Key, tuple[After, Known]]:
    """The public part of each key's newest learner in an epoch, if nothing of it was withheld."""
    assert source.learner is not None
    before = LearnerBefore.of(source.learner)
    rows = _Rows.read(epoch, source.learner, source.rows, before.evidence)
    known = dict(zip(rows.after, rows.known(), strict=True))
    places = {key: at for at, key in enumerate(rows.after)}
    releases: defaultdict[Key, list[Recorded]] = defaultdict(list)
    for recorded in source.releases.values():
        if recorded.release.kind in (OPENING, *ENDS_BLOCK):
            releases[recorded.release.key].append(recorded)
    withheld = set(source.withheld)
    for key, of_key in releases.items():
        of_key.sort(key=_age)
        if _is_withheld(of_key, adds_up=before.evidence.adds_up):
            withheld.add(key)  # its entry may have been deleted already
        row = (rows.after[key], rows.row(places[key])) if key in places else None
        newest = before.newest(row, [of.release for of in of_key])
        if newest is not None:
            known[key] = newest
    return {key: row for key, row in known.items() if key not in withheld}


def _is_withheld(releases: Sequence[Recorded], *, adds_up: bool) -> bool:
    """Whether a key's newest release, or one that its history depends on, was drawn in shadow."""
    newest = releases[-1]
    if not adds_up:
        return newest.action is None
    born = newest.release.identity.born
    return any(r.action is None and r.release.identity.born == born for r in releases)


def _layout(epoch: int, learner: EpochLearner) -> snapshot.Layout:
    """The layout of an epoch's rows."""
    digest = bytes.fromhex(learner.row_digest)
    return snapshot.Layout(digest, epoch, fields_of(learner.private), fields_of(learner.public))


def is_readable(epoch: int, source: EpochEntries) -> bool:
    """Whether every row of an epoch is whole. One damaged row means that nothing of the partition
    is carried over: whoever verifies the ledger cannot know of the damage."""
    if source.learner is None:
        return True
    return len(_readable(_layout(epoch, source.learner), source.rows)) == len(source.rows)


def _readable(layout: snapshot.Layout, rows: Mapping[Key, bytes]) -> Mapping[Key, bytes]:
    """The rows that are whole."""
    if not rows:
        return rows
    try:
        snapshot.public_columns(layout, list(rows.items()))
    except StateMismatch:
        return {key: row for key, row in rows.items() if _is_whole(layout, key, row)}
    return rows


def _is_whole(layout: snapshot.Layout, key: Key, row: bytes) -> bool:
    try:
        snapshot.public_columns(layout, [(key, row)])
    except StateMismatch:
        return False
    return True
