"""Does the shipped engine follow a crowd's definition in long blocks and in many, draw by draw?

The transcripts of `crowd` are few, short lives: an engine may go wrong in a later block, in a long
block of the pool, for one kind of key, or where events come alone. Here keys of every kind live
through every block of up to 256 slots, and through some hundred short ones, which give the pool
long blocks; with saves and rebuilds on the way. A `Witness` notes every draw, and `CrowdFold` says
from the log and the releases what it should have read: the sums of its block or of the pool's, the
bonus of the prior that was the newest, the winner for the drawn bits, charges, what is in force,
and each prior. Then a changed event reaches one draw, through its sums, and the draw's law is that
of permute-and-flip at the rate that is charged for.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from streamdp.core.events import ACTION, OPENING, Key, Release
from streamdp.core.learners import Leader
from streamdp.core.randomness import Purpose, Randomness, SeededRandomness
from streamdp.lab.audit.comparing import charges, fold_of, losers
from streamdp.lab.audit.crowd_fold import CrowdFold, DueDraw, Values
from streamdp.lab.audit.fold import bonuses
from streamdp.lab.audit.long_blocks import MANY, named_faults
from streamdp.lab.audit.stories import (
    Story,
    Telling,
    at_once,
    in_short_blocks,
    story_of_few,
    story_of_many_blocks,
    told_by_turns,
    told_slot_by_slot,
)
from streamdp.lab.audit.telling import StoryResult, tell
from streamdp.lab.audit.witness import POOLED, Selected, Witness

KEYS: tuple[Key, ...] = (b"y", b"x", b"", None, b"xx", b"yy", b"\xff", b"z")
"""Keys of each group and side of the audit's crowds; the first three have all."""

_FEW, _FEWER = KEYS[:4], KEYS[:3]
_DRAWN = frozenset({Purpose.SELECTION, Purpose.OPENING})


def misdeeds_of_crowd(learner: Leader, *, longest: int, system: Randomness) -> list[str]:
    """What the shipped engine does wrong, by the definition of the learner and its crowd."""
    return list(dict.fromkeys(each_misdeed_of_crowd(learner, longest, system)))


def each_misdeed_of_crowd(learner: Leader, longest: int, system: Randomness) -> Iterator[str]:
    """Yield the misdeeds story by story, so that a caller can stop at the first."""
    seeded, short = SeededRandomness("audit"), in_short_blocks(learner)
    story = story_of_many_blocks(short, _FEWER, blocks=MANY)
    late = _compared(short, story, told_by_turns(story), seeded)
    yield from named_faults(f"{story.name}, seeded", late)
    story = story_of_few(learner, KEYS, longest=longest)
    by_turns = _watched_and_not(learner, story, told_by_turns(story), seeded)
    yield from named_faults(f"{story.name}, seeded", by_turns)
    story = story_of_few(learner, _FEW, longest=longest)
    one_by_one = _compared(learner, story, told_slot_by_slot(story), system)
    yield from named_faults(f"{story.name}, system bits, slot by slot", one_by_one)


def _watched_and_not(
    learner: Leader, story: Story, telling: Telling, seeded: Randomness
) -> Iterator[str]:
    """Compare a story with its log, and with the same seed without a witness in one batch."""
    seen = _told(learner, story, telling, seeded)
    yield from _faults(seen, telling)
    unseen = tell(learner, (), story, at_once(telling), seeded, watched=None)
    if _lines(seen) != _lines(unseen):
        yield "unwatched: other openings, votes or priors"


def _compared(learner: Leader, story: Story, telling: Telling, bits: Randomness) -> Iterator[str]:
    yield from _faults(_told(learner, story, telling, bits), telling)


def _told(learner: Leader, story: Story, telling: Telling, bits: Randomness) -> StoryResult:
    watched = partial(Witness, purposes=_DRAWN)
    return tell(learner, (), story, telling, bits, watched=watched)


def _lines(result: StoryResult) -> list[object]:
    """Openings, votes, and the pool's votes and priors between them, in order."""
    lines: list[object] = []
    for batch in result.released:
        between = batch.between()
        for at, release in enumerate([*batch, None]):
            lines += [line for place, line, _ in between if place == at]
            lines += [] if release is None else [release]
    return lines


def _faults(result: StoryResult, telling: Telling) -> Iterator[str]:
    """Yield what differs from the fold of the log."""
    yield from result.wrong
    yield from result.strange
    pooled = [vote for batch in result.released for part in batch.pooled for vote in part]
    values = Values(result.openings, result.values[ACTION], [vote.value for vote in pooled])
    fold = CrowdFold(result.learner, result.story, fold_of(result), values)
    fold.read(telling)
    yield from _of_draws(result, fold, values)
    yield from _of_pool(result.learner, pooled)
    yield from _of_releases(result, fold)
    yield from charges(result)


def _of_draws(result: StoryResult, fold: CrowdFold, values: Values) -> Iterator[str]:
    """Check what each draw read and chose, that it was released, and that none came twice."""
    owed = {(due.purpose, due.key, due.block): due for due in fold.draws}
    for call in result.selected:
        yield from losers(result.learner, call)
        for row, key in enumerate(call.keys.tolist()):
            block = int(call.blocks[row])
            due = owed.pop((call.purpose, key, block), None)
            if due is None:
                yield f"block {block} of key {key}: a draw that is not due, or drawn again"
                continue
            yield from (f"block {block} of key {key}: {what}" for what in _wrong(call, row, due))
            if int(call.winners[row]) != _value(values, due):
                yield f"block {block} of key {key}: the release is not what was selected"
    for due in owed.values():
        yield f"block {due.block} of key {due.key}: not drawn"


def _value(values: Values, due: DueDraw) -> int:
    """The released value of a draw; -1 if there is none."""
    if due.key == POOLED:
        return values.pooled[due.block] if due.block < len(values.pooled) else -1
    opening = due.purpose == Purpose.OPENING
    return int(values.openings[due.key] if opening else values.votes[due.key, due.block])


def _wrong(call: Selected, row: int, due: DueDraw) -> Iterator[str]:
    """Compare a row of a selection with the draw that was due."""
    if (call.sums[row] != due.sums).any():
        yield "the selection read other sums than its block's"
    read = None if call.prior is None else call.prior.part(row, row + 1)
    one, two = (bonuses(prior, 1, len(due.sums)) for prior in (read, due.prior))
    if (one[0] * two[1] != two[0] * one[1]).any():
        yield "the bonus is not that of the newest prior and the action in force"


def _of_pool(learner: Leader, pooled: list[Release]) -> Iterator[str]:
    """Check that the pool's votes tile the donated slots, and charge each of them once."""
    schedule = None if learner.pool is None else learner.pool.schedule
    for block, vote in enumerate(pooled):
        assert schedule is not None
        slots = schedule.start(block), schedule.stop(block)
        said = vote.identity.block, vote.start, vote.stop, vote.epsilon
        if said != (block, *slots, learner.charge):
            yield f"block {block} of the pool: its vote says other slots or another charge"


def _of_releases(result: StoryResult, fold: CrowdFold) -> Iterator[str]:
    """Check priors, that each release came once, the prior that it names, and what is in force."""
    made = [prior for batch in result.released for prior in batch.priors]
    if made != list(fold.priors.values())[1:]:
        yield "a prior does not follow from the votes before it, or was made at another time"
    numbers = {key: number for number, key in enumerate(result.story.keys)}
    expected = {
        (due.purpose, due.key, due.block): due.prior_number
        for due in fold.draws
        if due.key != POOLED
    }
    for release in (release for batch in result.released for release in batch):
        key, block = numbers[release.key], release.identity.block
        opening = release.kind == OPENING
        number = expected.pop((Purpose.OPENING if opening else Purpose.SELECTION, key, block), None)
        if number is None or release.prior != number:
            yield f"block {block} of key {key}: the release names another prior, or comes twice"
        elif not opening and release.standing != fold.in_force[key, block]:
            yield f"block {block} of key {key}: the release does not say what is in force after it"
    assert result.in_force is not None, "the story has been told"
    if expected or result.in_force.tolist() != fold.now():
        yield "releases are missing, or what is in force does not follow from them"
