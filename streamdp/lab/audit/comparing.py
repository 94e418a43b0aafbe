"""Compares what the engine did in a story with the fold of its log and releases.

For each block and key: that it was released once, with its own slots, records and charge; that each
release was drawn once, from the fold's columns and nothing else; that it is what the random words
say by the textbook; that no word comes twice; what is in force; the ledger; and the law of some
choices, with the sums and bonuses that they got, against the charge.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from streamdp.core.arrays import Bools, Ints, Words
from streamdp.core.events import OPENING, SPARE, Key
from streamdp.core.kinds.kind import BlockRelease
from streamdp.core.ledger import Run
from streamdp.core.randomness import Purpose
from streamdp.core.releases import Releases
from streamdp.lab.audit.fold import (
    Blocks,
    Followed,
    Lives,
    blocks_of,
    followed,
    ids_of,
    under,
)
from streamdp.lab.audit.laws import TOLERANCE, Choice, scaled
from streamdp.lab.audit.neighbours import blank_law, innermost, neighbours_of, price
from streamdp.lab.audit.stories import Story, TakenHere, named_at
from streamdp.lab.audit.telling import Told, standing
from streamdp.lab.audit.watching import Drawing, Toss, Watch

_DISTINCT = 1 << 17  # words that are compared: two are equal with probability 5e-10
_CLOSE = 1e-6  # of two log-probabilities: long sums of floats
_PRICED = 24  # draws of a release whose law is computed
_MOST_PRICED_ACTIONS = 8


def compared(told: Told) -> Iterator[str]:
    """Yield the first difference of each sort."""
    comparison = _Comparison(told)
    if told.watch is not None:
        yield from told.watch.strange
    yield from comparison.of_slots()
    if comparison.follows is None:
        return
    yield from comparison.follows.wrong[:1]
    yield from comparison.of_what_is_in_force(comparison.follows)
    yield from comparison.of_what_is_allowed()
    if told.watch is not None:
        yield from comparison.of_openings(told.watch)
        for name in comparison.released:
            yield from comparison.of_draws(told.watch, name, comparison.follows)
        yield from _repeated(told.watch, seeded=told.randomness.seeded)
        yield from _prices(told, told.watch)
    yield from comparison.of_charges()


@dataclass(slots=True)
class _Comparison:
    """A story, and the fold of its log and releases."""

    told: Told
    story: Story = field(init=False)  # without keys that get no row
    lives: Lives = field(init=False)
    opened: Releases = field(init=False)
    opens: Ints = field(init=False)  # the life of each opening
    blocks: Blocks = field(init=False)
    released: dict[str, Releases] = field(default_factory=dict)
    follows: Followed | None = None  # None: openings or blocks do not fit

    def __post_init__(self) -> None:
        """Number lives and openings."""
        self.story = self.told.story.heard
        self.lives = Lives.of_story(self.story)
        self.opened = self.told.released(OPENING)
        self.opens = self.lives.numbered(self.opened)

    def of_slots(self) -> Iterator[str]:
        """Check that each block is released once, with its slots, records and charge; fold all."""
        told, kind, story, lives = self.told, self.told.kind, self.story, self.lives
        if not np.array_equal(np.sort(self.opens), np.arange(len(lives.keys))):
            yield "a key does not open exactly once"
            return
        known, first = self.opened.carried or {}, np.zeros(len(lives.keys), dtype=np.int64)
        names = zip(self.opened.keys, self.opened.born.tolist(), strict=True)
        carried = [known.get(name) for name in names]
        first[self.opens] = [0 if of is None else of.block for of in carried]
        tossed = {} if told.watch is None else _tossed(told, told.watch, lives, first)
        self.blocks = blocks = blocks_of(kind, story, lives, first, tossed)
        for release in kind.releases:
            if not len(due := self.due(release)):
                continue
            released = self.released[release.name] = told.released(release.name)
            ids = lives.ids(released)
            if not np.array_equal(np.sort(ids), due):
                yield f"{release.name}: a block is not released exactly once"
                return
            at, wrong = np.searchsorted(blocks.ids, ids), np.zeros(len(ids), dtype=np.bool_)
            for name in ("start", "stop", "first_offset", "last_offset"):
                wrong |= getattr(released, name) != getattr(blocks, name)[at]
            yield from self.first(wrong, at, f"{release.name}: it names other slots or records")
            if told.charges(release.name) - {release.epsilon}:
                yield f"{release.name}: it says another charge than the kind's"
        votes = self.released[kind.releases[0].name]
        begins = zip(self.opened.numbers, carried, strict=True)
        openings = dict(zip(self.opens.tolist(), begins, strict=True))
        in_order = votes.numbers[np.argsort(lives.ids(votes))]
        self.follows = followed(kind, blocks, lives, openings, in_order, self.lists)

    @property
    def lists(self) -> list[tuple[int, TakenHere]]:
        """What is allowed, and from which record on."""
        return [(int(self.story.offsets[at]), taken) for at, taken in self.story.lists]

    def due(self, release: BlockRelease) -> Ints:
        """The ids of the blocks that end with this release."""
        return self.blocks.ids[self.blocks.ended & release.due(self.blocks.lengths)]

    def first(self, wrong: Bools, at: Ints, what: str) -> Iterator[str]:
        """Report the first wrong row, by its place in `Blocks`."""
        if wrong.any():
            yield f"block {self.blocks.block[at[int(wrong.argmax())]]}: {what}"

    def of_what_is_in_force(self, follows: Followed) -> Iterator[str]:
        """Check what is in force: as stated with each release, and by the engine at the end."""
        told, lives = self.told, self.lives
        expected = np.array([follows.opened[life] for life in self.opens.tolist()])
        if not np.array_equal(expected, standing(self.opened)):
            yield "what is in force at an opening is not what it says"
        answers, votes = innermost(told.kind).evidence.answers, told.kind.releases[0].name
        ended, known = np.flatnonzero(self.blocks.ended), np.array(follows.in_force)
        for name, released in self.released.items():
            if answers == "action" and name != votes:
                continue  # an estimate is one number
            place = np.searchsorted(self.blocks.ids[ended], lives.ids(released))
            wrong = (known[place] != standing(released)).reshape(len(place), -1).any(axis=1)
            what = "a release does not say what is in force after it"
            yield from self.first(wrong, ended[place], what)
        newest = dict(zip(lives.keys.tolist(), range(len(lives.keys)), strict=True))
        for number, life in newest.items():
            said = _said(told, self.story.keys[number], answers)
            if said is not None and (said != follows.standing[life]).any():
                yield "what is in force does not follow from the releases"
                return

    def of_what_is_allowed(self) -> Iterator[str]:
        """Check that policies have no part for what their list does not allow, or has no name."""
        kind = innermost(self.told.kind)
        if not (many := kind.evidence.listed):
            return
        named = np.array([name != SPARE for name in kind.actions[:many]])
        said = [(self.opened.born, self.opened)]
        said += [(of.last_offset, of) for of in self.released.values()]
        for offsets, releases in said:
            for here, allowed in under(self.lists, offsets):
                parts = standing(releases)[here].reshape(-1, many)
                if parts[:, ~(named if allowed is None else allowed)].any():
                    yield "a policy has a part for what is not allowed or has no name"
                    return

    def of_openings(self, watch: Watch) -> Iterator[str]:
        """Check that each opening was drawn once, and is what its bits say."""
        drawings = watch.drawings(OPENING)
        life = np.concatenate([self.lives.numbered(one) for one in drawings])
        if not np.array_equal(np.sort(life), np.arange(len(self.lives.keys))):
            yield "an opening was not drawn exactly once"
            return
        if innermost(self.told.kind).evidence.answers != "action":
            return
        words = np.concatenate([one.words for one in drawings])[np.argsort(life), 0]
        plain = scaled(words, np.full(len(words), len(self.told.kind.actions)))
        carried = self.opened.carried or {}
        names = zip(self.opened.keys, self.opened.born.tolist(), strict=True)
        drawn = np.array([name not in carried for name in names])
        if (plain[self.opens] != self.opened.numbers[:, 0])[drawn].any():
            yield "the opening is not what its bits say"

    def of_draws(self, watch: Watch, name: str, follows: Followed) -> Iterator[str]:
        """Check what each release was drawn from, and that it is what its words say.

        What is published of a draw has no number of a column without a name.
        """
        kind, blocks, drawings = self.told.kind, self.blocks, watch.drawings(name)
        ids = np.concatenate([np.zeros(0, np.int64), *(self.lives.ids(one) for one in drawings)])
        published = self.lives.ids(self.released[name])
        if not np.array_equal(np.sort(ids), np.sort(published)):
            yield f"{name}: not drawn exactly once for each release"
            return
        at, ended = np.searchsorted(blocks.ids, ids), np.flatnonzero(blocks.ended)
        during = np.searchsorted(ended, at)
        order = np.argsort(published)[np.searchsorted(np.sort(published), ids)]
        drawn, row = np.concatenate([one.released for one in drawings]), neighbours_of(kind)
        unpublished = drawn - row.published(drawn, named_at(self.lists, blocks.last_offset[at]))
        numbers = self.released[name].numbers[order] + unpublished
        wrong = (numbers != drawn).any(axis=1)
        yield from self.first(wrong, at, f"{name}: the release is not what was drawn")
        for column, exact in blocks.columns.items():
            got = np.concatenate([one.private[column] for one in drawings])
            wrong = (got != exact[at]).reshape(len(at), -1).any(axis=1)
            yield from self.first(wrong, at, f"{name}: drawn from other {column} than the log's")
        for column, known in follows.during.items():
            got = np.concatenate([one.public[column] for one in drawings])
            wrong = (got != known[during]).reshape(len(at), -1).any(axis=1)
            what = f"{name}: drawn with other {column} than earlier releases say"
            yield from self.first(wrong, at, what)
        for some, one in _places(drawings):
            private = {of: exact[at[some]] for of, exact in blocks.columns.items()}
            public = {of: column[during[some]] for of, column in follows.during.items()}
            law = row.law(name, private, public)
            wrong = np.zeros(len(one.released), dtype=np.bool_)
            if one.words.shape[1]:
                wrong = law.broken(numbers[some], one.words)
            elif law.words:
                wrong |= True
            if one.again is not None:
                wrong |= (one.again != numbers[some]).any(axis=1)
            if wrong.any():
                yield from self.first(wrong, at[some], f"{name}: not what its law and bits say")
                return
            if len(kind.actions) > _MOST_PRICED_ACTIONS:
                continue
            first = (
                {of: column[:1] for of, column in private.items()},
                {of: column[:1] for of, column in public.items()},
            )
            stated = kind.law(name, *first, numbers[some][:1])
            plain = row.law(name, *first).log_probability(numbers[some][:1])
            if np.abs(stated - plain).max() > _CLOSE:
                yield f"{name}: the kind states another law than its definition's"
                return

    def of_charges(self) -> Iterator[str]:
        """Check the ledger of every key: what each block's releases cost, once.

        Of keys that were away it may say too much: see `core.engine.Charges`.
        """
        told, lives, blocks = self.told, self.lives, self.blocks
        if not told.kind.releases[0].epsilon or len(lives.keys) > len(self.story.keys):
            return
        charged: dict[Key, list[Run]] = {}
        for key, run in told.engine.ledger.export():
            charged.setdefault(key, []).append(run)
        ended, length = blocks.ended, blocks.lengths[blocks.ended]
        cost_of = {
            one: sum(
                (of.epsilon for of in told.kind.releases if of.due(np.array([one]))[0]), Fraction(0)
            )
            for one in set(length.tolist())
        }
        expected: dict[Key, list[Run]] = {}
        columns = (lives.keys[blocks.life[ended]], blocks.start[ended], blocks.stop[ended], length)
        for number, start, stop, slots in zip(*(of.tolist() for of in columns), strict=True):
            run = Run(start, stop, cost_of[slots])
            expected.setdefault(self.story.keys[number], []).append(run)
        if told.engine.ledger.highest() != max(cost_of.values(), default=0):
            yield "the ledger says another highest charge than that of its blocks"
        for key in (*expected, *charged):
            if _joined(charged.get(key, [])) != _joined(expected.get(key, [])):
                yield "the ledger does not say what its blocks cost"
                return


def _tossed(told: Told, watch: Watch, lives: Lives, first: Ints) -> dict[int, tuple[Ints, Words]]:
    """The words of windows (by the ids of blocks) and coins (by the places of slots in the log).

    A rebuilt engine draws the windows and coins of replayed blocks anew. What counts is the latest
    draw before the block's first release was drawn.
    """
    schedule, vote = told.kind.schedule, told.kind.releases[0].name
    drawn: set[int] = set()
    latest: dict[int, dict[int, Words]] = {}
    order = np.lexsort((lives.place, lives.of))
    begins = np.searchsorted(lives.of[order], np.arange(len(lives.keys)))
    for one in watch.noted:
        if isinstance(one, Drawing):
            if one.name == vote:
                drawn.update(lives.ids(one).tolist())
            continue
        life = lives.numbered(one)
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


def _said(told: Told, key: Key, answers: str) -> Ints | None:
    """The engine's answer; None for a key that is away."""
    if answers == "policy":
        return told.engine.in_force(key)
    action = told.engine.action(key)
    return None if action is None else np.array(told.kind.actions.index(action))


def _places(drawings: Sequence[Drawing]) -> Iterator[tuple[slice, Drawing]]:
    """Each drawing, with the places of its rows among all of them."""
    begin = 0
    for one in drawings:
        yield slice(begin, begin + len(one.released)), one
        begin += len(one.released)


def _repeated(watch: Watch, *, seeded: bool) -> Iterator[str]:
    """Check that no random word comes twice, in one draw or in two; tosses may, by a seed."""
    drawings = [one.words.ravel() for one in watch.noted if isinstance(one, Drawing)]
    tosses = [] if seeded else [one.words.ravel() for one in watch.noted if isinstance(one, Toss)]
    read = np.concatenate([*drawings, *tosses])[:_DISTINCT]
    if len(np.unique(read)) != len(read):
        yield "random words come twice"


def _joined(runs: Sequence[Run]) -> list[Run]:
    """Join neighbouring runs of one charge."""
    joined: list[Run] = []
    for run in runs:
        if joined and joined[-1].stop == run.start and joined[-1].epsilon == run.epsilon:
            run = Run(joined.pop().start, run.stop, run.epsilon)
        joined.append(run)
    return joined


def _prices(told: Told, watch: Watch) -> Iterator[str]:
    """Check the laws of some releases with the columns that they got against the charge."""
    kind = told.kind
    if not kind.releases[0].epsilon:
        return
    choice = isinstance(blank_law(kind, kind.releases[0].name), Choice)
    for at, release in enumerate(kind.releases):
        drawings = watch.drawings(release.name)
        if choice and not at and len(kind.actions) > _MOST_PRICED_ACTIONS:
            continue
        for one in drawings[:: max(1, -(-len(drawings) // _PRICED))]:
            row = [len(one.released) // 2]
            private = {of: column[row] for of, column in one.private.items()}
            public = {of: column[row] for of, column in one.public.items()}
            if price(kind, release.name, private, public) > release.epsilon + TOLERANCE:
                yield f"block {one.block[row[0]]}: {release.name} costs more than is charged"
                return
