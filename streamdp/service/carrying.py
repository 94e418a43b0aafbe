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
from dataclasses import dataclass, field, replace
from enum import Enum

import numpy as np

from streamdp.core import snapshot
from streamdp.core.arrays import Floats
from streamdp.core.errors import StateMismatch
from streamdp.core.events import OPENING, After, Carried, Key, Release
from streamdp.core.evidence import NEWEST
from streamdp.core.evidence.carrying import STAYS_AWAY, Known, Passage
from streamdp.core.evidence.policy_rule import CARRIED_PER_ARM
from streamdp.core.evidence.votes import Votes
from streamdp.core.kinds.recorded import Drawn
from streamdp.core.learners import Learner, PolicyLearner
from streamdp.core.learners.feedback.learner import feedback_learner_of
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
    moves = _passage(spec.learner, before).moves.tolist()
    return Carries(
        removed=[name for name in before.actions if name not in names],
        kept=list(runs((now, old) for old, now in enumerate(moves) if now != STAYS_AWAY)),
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
    noted_from: int, rows: Iterable[tuple[Key, Known]], releases: Iterable[Drawn]
) -> set[Key]:
    """Keys whose newest learner is older than the entries that mark withheld releases."""
    born = {key: known.after.born for key, known in rows}
    for name in releases:
        born[name.key] = max(born.get(name.key, 0), name.born)
    return {key for key, at in born.items() if at < noted_from}


def _carried(
    learner: Learner, epoch: int, source: EpochEntries, opened: Set[Key]
) -> dict[Key, Carried]:
    """What is carried over from an epoch, for keys that have not opened since."""
    if source.learner is None:
        return {}
    passage = _passage(learner, source.learner)
    known = _known(epoch, source)
    carried = {key: passage.carried(row) for key, row in known.items() if key not in opened}
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
    for recorded in sorted(source.releases.values(), key=_age):
        identity = recorded.release.identity
        place = release_entry(identity)
        places[identity.key] += [] if place in waiting else [place]
    return dict(places)


def _age(recorded: Recorded) -> tuple[int, int]:
    """Sorts the releases of a key from the oldest to the newest."""
    return recorded.release.identity.born, recorded.release.stop


def _passage(learner: Learner, before: EpochLearner) -> Passage:
    """How to get from an epoch's learner to this one."""
    histories = False
    if before.learner and learner.evidence.carries == "posterior":
        histories = _policy_learner(before).evidence.carries == "posterior"
    return Passage(
        actions_before=before.actions,
        actions_now=learner.actions,
        schedule_before=_schedule(before),
        schedule_now=learner.schedule,
        histories=histories,
    )


def _schedule(before: EpochLearner) -> Schedule:
    prefix, tail = before.schedule
    return Schedule("of an earlier epoch", None, tuple(prefix), tuple(tail))


def _policy_learner(before: EpochLearner) -> PolicyLearner:
    """Make a feedback stream's learner of an earlier epoch again, by its recipe."""
    return feedback_learner_of(json.loads(before.learner), actions=before.actions)


def _known(epoch: int, source: EpochEntries) -> dict[Key, Known]:
    """The public part of each key's newest learner in an epoch, if nothing of it was withheld."""
    assert source.learner is not None
    known = dict(_of_rows(epoch, source.learner, source.rows))
    releases: defaultdict[Key, list[Recorded]] = defaultdict(list)
    for recorded in source.releases.values():
        if recorded.release.kind in (OPENING, *ENDS_BLOCK):
            releases[recorded.release.key].append(recorded)
    withheld = set(source.withheld)
    policy = _policy_learner(source.learner) if source.learner.learner else None
    for key, of_key in releases.items():
        of_key.sort(key=_age)
        if _is_withheld(of_key, histories=policy is not None):
            withheld.add(key)  # its entry may have been deleted already
        for recorded in of_key:
            now = _gone_on(known.pop(key, None), recorded.release, source.learner, policy)
            if now is not None:
                known[key] = now
    rows = {key: row for key, row in known.items() if key not in withheld}
    if policy is None:
        return rows
    return {key: replace(row, history=_carried_history(policy, row)) for key, row in rows.items()}


def _carried_history(policy: PolicyLearner, known: Known) -> Floats:
    """What of a row's whole history its key carries over."""
    assert known.history is not None, "each learner of a feedback stream has a history"
    carried: Floats = policy.rule.history.carried(known.history[None])[0]
    return carried


def _is_withheld(releases: Sequence[Recorded], *, histories: bool) -> bool:
    """Whether a key's newest release, or one that its history depends on, was drawn in shadow."""
    newest = releases[-1]
    if not histories:
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


def _of_rows(
    epoch: int, learner: EpochLearner, rows: Mapping[Key, bytes]
) -> Iterator[tuple[Key, Known]]:
    """The public part of saved rows; of a feedback stream with the whole history."""
    layout = _layout(epoch, learner)
    rows = _readable(layout, rows)
    if not rows:
        return
    columns = snapshot.public_columns(layout, list(rows.items()))
    known: Iterator[tuple[int, Floats | None]]
    if learner.learner:
        known = ((0, whole) for whole in _policy_learner(learner).evidence.histories(columns))
    else:
        known = Votes(NEWEST).known(columns)
    at = zip(columns["born"].tolist(), columns["block"].tolist(), strict=True)
    for key, (born, block), (action, history) in zip(rows, at, known, strict=True):
        yield key, Known(After(epoch, born, block), action, history)


def _gone_on(
    before: Known | None, release: Release, learner: EpochLearner, policy: PolicyLearner | None
) -> Known | None:
    """The public part after one more release; None if the release before it is gone already."""
    _, _, _, epoch, born, block, kind = release.identity
    if before is not None and (before.after.born, before.after.block) > (born, block):
        return before  # the row holds it already
    if kind == OPENING:
        first = 0 if release.carried is None else release.carried.block
        history = None if policy is None else policy.nothing_known(1)[0]
        if policy and release.carried is not None and release.carried.history is not None:
            flat = np.frombuffer(release.carried.history, "<f8")
            carried = flat.reshape(1, CARRIED_PER_ARM, len(learner.actions))
            history = policy.rule.history.resumed(carried)[0]
        return Known(After(epoch, born, first), release.standing, history)
    history = None
    if policy is not None:
        if before is None:
            return None
        assert before.history is not None, "each learner of a feedback stream has a history"
        assert release.sums is not None, "a recorded release has what a rebuild needs"
        gains, shown = (column[None] for column in release.sums.arrays())
        history = policy.learned(before.history[None], gains, shown)[0]
    return Known(After(epoch, born, block + 1), release.standing, history)
