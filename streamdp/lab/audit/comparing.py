"""Compares what the engine did in a story with the fold of its log and releases.

For each block and key: that it was released once, with its own slots, records and charge; that each
release was drawn once, from the fold's columns and nothing else; that it is what the random words
say by the textbook; that no word comes twice; what is in force; the ledger; and the law of some
choices, with the sums and bonuses that they got, against the charge.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction

import numpy as np

from streamdp.core.arrays import Bools, Ints, Words
from streamdp.core.events import OPENING, SPARE, Key
from streamdp.core.grid import UNIT
from streamdp.core.kinds.kind import BlockRelease
from streamdp.core.ledger import Run
from streamdp.core.randomness import Purpose
from streamdp.lab.audit.fold import (
    Blocks,
    Followed,
    Lives,
    Opening,
    blocks_of,
    followed,
    ids_of,
    under,
)
from streamdp.lab.audit.laws import TOLERANCE, Choice, scaled
from streamdp.lab.audit.neighbours import innermost, neighbours_of
from streamdp.lab.audit.telling import Column, Told, column_of
from streamdp.lab.audit.watching import Drawing, Toss, Watch, in_order

_DISTINCT = 1 << 17  # words that are compared: two are equal with probability 5e-10
_CLOSE = 1e-6  # of two log-probabilities: long sums of floats
_PRICED = 24  # choices whose law is computed
_MOST_PRICED_ACTIONS = 8


def compared(told: Told) -> Iterator[str]:
    """Yield the first difference of each sort."""
    kind, story, watch = told.kind, told.story, told.watch
    lives, opened = Lives.of_story(story), column_of(told, OPENING)
    if watch is not None:
        yield from watch.strange
    at = lives.numbered(opened.keys, opened.born)
    if not np.array_equal(np.sort(at), np.arange(len(lives.keys))):
        yield "a key does not open exactly once"
        return
    first = np.zeros(len(lives.keys), dtype=np.int64)
    first[at] = [0 if carried is None else carried.block for carried in opened.carried]
    blocks = blocks_of(
        kind, story, lives, first, {} if watch is None else _tossed(told, lives, first)
    )
    columns: dict[str, Column] = {}
    for release in kind.releases:
        due = blocks.ids[blocks.ended & release.due(blocks.lengths)]
        if not len(due):
            continue
        column = columns[release.name] = column_of(told, release.name)
        ids = ids_of(lives.numbered(column.keys, column.born), column.block)
        if not np.array_equal(np.sort(ids), due):
            yield f"{release.name}: a block is not released exactly once"
            return
        yield from _records(release, column, ids, blocks)
    votes = _sorted(columns[kind.releases[0].name], lives)
    openings = [
        Opening(int(life), numbers, carried)
        for life, numbers, carried in zip(at, opened.numbers, opened.carried, strict=True)
    ]
    lists = [(int(story.offsets[at]), allowed) for at, allowed in story.lists]
    follows = followed(kind, blocks, lives, openings, votes, lists)
    yield from follows.wrong[:1]
    yield from _in_force(told, lives, blocks, follows, opened, columns)
    yield from _allowed(told, lists, opened, columns)
    if watch is not None:
        yield from _openings(told, watch, lives, opened, at)
        for release in kind.releases:
            if release.name in columns:
                yield from _draws(
                    told, watch, release, lives, blocks, follows, columns[release.name]
                )
        yield from _repeated(watch, seeded=told.randomness.seeded)
        yield from _prices(told, watch)
    yield from _charges(told, blocks, lives)


def _sorted(column: Column, lives: Lives) -> Ints:
    """The numbers of a column in the order of `Blocks`."""
    order = np.argsort(ids_of(lives.numbered(column.keys, column.born), column.block))
    return column.numbers[order]


def _tossed(told: Told, lives: Lives, first: Ints) -> dict[int, tuple[Ints, Words]]:
    """The words of windows (by the ids of blocks) and coins (by the places of slots in the log).

    A rebuilt engine draws the windows and coins of replayed blocks anew. What counts is the latest
    draw before the block's first release was drawn.
    """
    assert told.watch is not None
    schedule, vote = told.kind.schedule, told.kind.releases[0].name
    drawn: set[int] = set()
    latest: dict[int, dict[int, Words]] = {}
    order = np.lexsort((lives.place, lives.of))
    begins = np.searchsorted(lives.of[order], np.arange(len(lives.keys)))
    for one in in_order(told.watch):
        life = lives.numbered(one.keys, one.born)
        if isinstance(one, Drawing):
            if one.name == vote:
                drawn.update(ids_of(life, one.blocks).tolist())
            continue
        block, names = one.indices, ids_of(life, one.indices)
        if one.purpose == Purpose.RESAMPLE:
            block = schedule.blocks_of(one.indices)
            names = order[begins[life] + one.indices - schedule.starts(first)[life]]
        known = latest.setdefault(one.purpose, {})
        for name, words, of in zip(names, one.words, ids_of(life, block), strict=True):
            if int(of) not in drawn:
                known[int(name)] = words
    return {
        purpose: (np.array(sorted(known)), np.array([known[name] for name in sorted(known)]))
        for purpose, known in latest.items()
    }


def _records(release: BlockRelease, column: Column, ids: Ints, blocks: Blocks) -> Iterator[str]:
    """Check the slots, records and charge that each release names."""
    at = np.searchsorted(blocks.ids, ids)
    wrong = np.zeros(len(ids), dtype=np.bool_)
    for name in ("start", "stop", "first_offset", "last_offset"):
        wrong |= getattr(column, name) != getattr(blocks, name)[at]
    yield from _first(wrong, at, blocks, f"{release.name}: it names other slots or records")
    if column.charge - {release.epsilon}:
        yield f"{release.name}: it says another charge than the kind's"


def _first(wrong: Bools, at: Ints, blocks: Blocks, what: str) -> Iterator[str]:
    """Report the first wrong row, by its place in `Blocks`."""
    if wrong.any():
        block = blocks.block[at[int(wrong.argmax())]]
        yield f"block {block}: {what}"


def _in_force(
    told: Told,
    lives: Lives,
    blocks: Blocks,
    follows: Followed,
    opened: Column,
    columns: dict[str, Column],
) -> Iterator[str]:
    """Check what is in force: as stated with each release, and by the engine at the end."""
    answers, keys = innermost(told.kind).evidence.answers, told.story.keys
    at = lives.numbered(opened.keys, opened.born)
    expected = np.array([follows.opened[life] for life in at.tolist()])
    if not np.array_equal(expected, opened.in_force):
        yield "what is in force at an opening is not what it says"
    ended, followed = np.flatnonzero(blocks.ended), np.array(follows.in_force)
    for name, column in columns.items():
        if answers == "action" and name != told.kind.releases[0].name:
            continue  # an estimate is one number
        ids = ids_of(lives.numbered(column.keys, column.born), column.block)
        place = np.searchsorted(blocks.ids[ended], ids)
        wrong = (followed[place] != column.in_force).reshape(len(place), -1).any(axis=1)
        yield from _first(
            wrong, ended[place], blocks, "a release does not say what is in force after it"
        )
    newest = dict(zip(lives.keys.tolist(), range(len(lives.keys)), strict=True))
    for number, life in newest.items():
        expected = follows.standing[life]
        said = _said(told, keys[number], answers)
        if said is not None and (said != expected).any():
            yield "what is in force does not follow from the releases"
            return


def _allowed(
    told: Told,
    lists: Sequence[tuple[int, Bools]],
    opened: Column,
    columns: dict[str, Column],
) -> Iterator[str]:
    """Check that policies have no part for what their list does not allow, or has no name."""
    kind = innermost(told.kind)
    if not (many := kind.evidence.listed):
        return
    named = np.array([name != SPARE for name in kind.actions[:many]])
    said = [(opened.born, opened.in_force)]
    said += [(of.last_offset, of.in_force) for of in columns.values()]
    for offsets, policies in said:
        for here, allowed in under(lists, offsets):
            parts = policies[here].reshape(-1, many)
            if parts[:, ~(named if allowed is None else allowed)].any():
                yield "a policy has a part for what is not allowed or has no name"
                return


def _said(told: Told, key: Key, answers: str) -> Ints | None:
    """The engine's answer; None for a key that is away."""
    if answers == "policy":
        return told.engine.in_force(key)
    action = told.engine.action(key)
    return None if action is None else np.array(told.kind.actions.index(action))


def _openings(told: Told, watch: Watch, lives: Lives, opened: Column, at: Ints) -> Iterator[str]:
    """Check that each opening was drawn once, and is what its bits say."""
    drawings = [one for one in watch.drawings if one.name == OPENING]
    life = np.concatenate([lives.numbered(one.keys, one.born) for one in drawings])
    if not np.array_equal(np.sort(life), np.arange(len(lives.keys))):
        yield "an opening was not drawn exactly once"
        return
    if innermost(told.kind).evidence.answers != "action":
        return
    words = np.concatenate([one.words for one in drawings])[np.argsort(life), 0]
    plain = scaled(words, np.full(len(words), len(told.kind.actions)))
    drawn = np.array([carried is None for carried in opened.carried])
    if (plain[at] != opened.numbers[:, 0])[drawn].any():
        yield "the opening is not what its bits say"


def _draws(
    told: Told,
    watch: Watch,
    release: BlockRelease,
    lives: Lives,
    blocks: Blocks,
    follows: Followed,
    published: Column,
) -> Iterator[str]:
    """Check what each release was drawn from, and that it is what its words say."""
    name, row = release.name, neighbours_of(told.kind)
    drawings = [one for one in watch.drawings if one.name == name]
    drawn_of = [ids_of(lives.numbered(one.keys, one.born), one.blocks) for one in drawings]
    ids = np.concatenate([np.zeros(0, dtype=np.int64), *drawn_of])
    due = blocks.ids[blocks.ended & release.due(blocks.lengths)]
    if not np.array_equal(np.sort(ids), due):
        yield f"{name}: not drawn exactly once for each release"
        return
    at, ended = np.searchsorted(blocks.ids, ids), np.flatnonzero(blocks.ended)
    during = np.searchsorted(ended, at)
    drawn = np.concatenate([one.released for one in drawings])
    order = np.argsort(ids_of(lives.numbered(published.keys, published.born), published.block))[
        np.searchsorted(due, ids)
    ]
    wrong = (published.numbers[order] != drawn).any(axis=1)
    yield from _first(wrong, at, blocks, f"{name}: the release is not what was drawn")
    for column, exact in blocks.columns.items():
        got = np.concatenate([one.private[column] for one in drawings])
        wrong = (got != exact[at]).reshape(len(at), -1).any(axis=1)
        yield from _first(wrong, at, blocks, f"{name}: drawn from other {column} than the log's")
    for column, known in follows.during.items():
        got = np.concatenate([one.public[column] for one in drawings])
        wrong = (got != known[during]).reshape(len(at), -1).any(axis=1)
        yield from _first(
            wrong, at, blocks, f"{name}: drawn with other {column} than earlier releases say"
        )
    for some, one in _places(drawings):
        private = {of: exact[at[some]] for of, exact in blocks.columns.items()}
        public = {of: column[during[some]] for of, column in follows.during.items()}
        law = row.law(name, private, public)
        wrong = np.zeros(len(one.released), dtype=np.bool_)
        if one.words.shape[1]:
            wrong = law.broken(published.numbers[order[some]], one.words)
        elif law.words:
            wrong |= True
        if one.again is not None:
            wrong |= (one.again != published.numbers[order[some]]).any(axis=1)
        if wrong.any():
            yield from _first(wrong, at[some], blocks, f"{name}: not what its law and bits say")
            return
        if len(told.kind.actions) > _MOST_PRICED_ACTIONS:
            continue
        one_private = {of: column[:1] for of, column in private.items()}
        one_public = {of: column[:1] for of, column in public.items()}
        released = published.numbers[order[some]][:1]
        stated = told.kind.law(name, one_private, one_public, released)
        plain = row.law(name, one_private, one_public).log_probability(released)
        if np.abs(stated - plain).max() > _CLOSE:
            yield f"{name}: the kind states another law than its definition's"
            return


def _places(drawings: Sequence[Drawing]) -> Iterator[tuple[slice, Drawing]]:
    """Each drawing, with the places of its rows among all of them."""
    begin = 0
    for one in drawings:
        yield slice(begin, begin + len(one.released)), one
        begin += len(one.released)


def _repeated(watch: Watch, *, seeded: bool) -> Iterator[str]:
    """Check that no random word comes twice, in one draw or in two; tosses may, by a seed."""
    noted: list[Drawing | Toss] = [*watch.drawings, *([] if seeded else watch.tosses)]
    read = np.concatenate([one.words.ravel() for one in noted])[:_DISTINCT]
    if len(np.unique(read)) != len(read):
        yield "random words come twice"


def _charges(told: Told, blocks: Blocks, lives: Lives) -> Iterator[str]:
    """Check the ledger of every key: what each block's releases cost, once.

    Of keys that were away it may say too much: see `core.engine.Charges`.
    """
    if not told.kind.releases[0].epsilon or len(lives.keys) > len(told.story.keys):
        return
    charged: dict[Key, list[Run]] = {}
    for key, run in told.engine.ledger.export():
        charged.setdefault(key, []).append(run)
    expected: dict[Key, list[Run]] = {}
    ended, length = blocks.ended, blocks.lengths[blocks.ended]
    cost_of = {
        one: sum(
            (of.epsilon for of in told.kind.releases if of.due(np.array([one]))[0]), Fraction(0)
        )
        for one in set(length.tolist())
    }
    columns = (lives.keys[blocks.life[ended]], blocks.start[ended], blocks.stop[ended], length)
    for number, start, stop, slots in zip(*(of.tolist() for of in columns), strict=True):
        run = Run(start, stop, cost_of[slots])
        expected.setdefault(told.story.keys[number], []).append(run)
    for key, runs in expected.items():
        if _joined(charged.pop(key, [])) != _joined(runs):
            yield "the ledger does not say what its blocks cost"
            return
    if any(charged.values()):
        yield "the ledger does not say what its blocks cost"


def _joined(runs: Sequence[Run]) -> list[Run]:
    """Join neighbouring runs of one charge."""
    joined: list[Run] = []
    for run in runs:
        if joined and joined[-1].stop == run.start and joined[-1].epsilon == run.epsilon:
            run = Run(joined.pop().start, run.stop, run.epsilon)
        joined.append(run)
    return joined


def _prices(told: Told, watch: Watch) -> Iterator[str]:
    """Check the law of choices with the columns that they got: one more slot holds each vertex of
    the first actions' cube, and no probability may move by more than the charge.
    """
    kind, row = told.kind, neighbours_of(told.kind)
    first, actions = kind.releases[0], len(kind.actions)
    charge, name = first.epsilon, first.name
    drawings = [one for one in watch.drawings if one.name == name]
    if not charge or actions > _MOST_PRICED_ACTIONS or not drawings:
        return
    corners = np.zeros((8, actions), dtype=np.int64)
    corners[:, : min(actions, 3)] = np.indices((2, 2, 2)).reshape(3, 8).T[:, : min(actions, 3)]
    for one in drawings[:: -(-len(drawings) // _PRICED)]:
        law, at = row.law(name, one.private, one.public), len(one.released) // 2
        if not isinstance(law, Choice):
            return
        prior = None if law.prior is None else law.prior.part(at, at + 1)
        logs = [
            law.mechanism.log_probabilities(law.sums[at] + corner * UNIT, prior)
            for corner in np.unique(corners, axis=0)
        ]
        if not np.isfinite(logs).all() or np.ptp(logs, axis=0).max() > charge + TOLERANCE:
            yield f"block {one.blocks[at]}: a choice costs more than is charged"
            return
