"""Does the shipped engine follow its learner's definition in long blocks, draw by draw?

The exact audit (`exposure`) enumerates streams of a few slots, so it cannot see an engine that goes
wrong later. Here the engine runs through every block of up to 256 slots, with a null at every
place, with saves and rebuilds on the way, and with real bits: in batches of many keys, of one key,
and slot by slot; and through many short blocks, because it may count them. A `Witness` at its two
ports notes every draw and everything that each selection got; `Fold` computes from the log alone
what that should have been. They must be equal: sums, windows, resampled losses, the public bonus,
the winner for the drawn bits, estimates, charges, and the action in force. Then the engine is as
private as the fold, and the law of selections with these inputs is compared with the charge.

An engine might behave differently when it is watched, so the same seed also runs without a witness:
the releases must be the same. Under the system's bits no run can be repeated; there the witness is
used key by key and for all keys at once, and no word may come twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from streamdp.core.arrays import Ints
from streamdp.core.errors import StreamdpError
from streamdp.core.events import ACTION
from streamdp.core.learners import RECIPES, Leader, learner_of
from streamdp.core.randomness import Purpose, Randomness, SeededRandomness, SystemRandomness
from streamdp.core.regret import Estimate
from streamdp.lab.audit.comparing import compared, fold_of, losers, missing, where
from streamdp.lab.audit.fold import bonuses
from streamdp.lab.audit.standing import standings_of
from streamdp.lab.audit.stories import (
    Story,
    Telling,
    affordable,
    at_once,
    in_short_blocks,
    noise,
    story_of,
    story_of_few,
    story_of_many_blocks,
    told_as_frames,
    told_by_turns,
    told_key_by_key,
    told_slot_by_slot,
)
from streamdp.lab.audit.telling import StoryResult, tell
from streamdp.lab.audit.witness import Selected

LONGEST = 256
"""Blocks of up to so many slots are tested with a null at every place."""

MANY = 130
"""So many blocks of one and two slots are gone through."""

_ALONE = 14  # keys that are run one by one
_OTHER_KEYS = 2
_LONGEST_TOSSED = 32  # slots of a block, told one by one, where each slot's losses are resampled
_DISTINCT = 1 << 17  # words that are compared: two are equal with probability 5e-10


@dataclass(frozen=True, slots=True)
class OtherSize:
    """A story of another number of actions than the learner's, and the learner for that many."""

    name: str
    learner: Leader
    estimates: tuple[Estimate, ...]
    most_slots: int


def misdeeds(
    learner: Leader,
    estimates: Sequence[Estimate] = (),
    *,
    longest: int = LONGEST,
    randomness: Randomness | None = None,
) -> list[str]:
    """What the shipped engine does wrong, by its learner's definition; empty if all is well.

    Every place of blocks of up to `longest` slots is tried. The system's bits are those of
    production; `randomness` replaces them.
    """
    system = SystemRandomness() if randomness is None else randomness
    return list(dict.fromkeys(each_misdeed(learner, tuple(estimates), longest, system)))


def each_misdeed(
    learner: Leader, estimates: tuple[Estimate, ...], longest: int, system: Randomness
) -> Iterator[str]:
    """Yield the misdeeds story by story, so that a caller can stop at the first."""
    yield from at_its_size(learner, estimates, longest, system)
    for other in other_sizes(learner, estimates):
        yield from at_another_size(other)


def at_its_size(
    learner: Leader, estimates: tuple[Estimate, ...], longest: int, system: Randomness
) -> Iterator[str]:
    """Yield the misdeeds of stories with as many actions as the learner has."""
    story = story_of(learner, longest=longest)
    seeded = SeededRandomness("audit")
    by_turns = told_by_turns(story)
    twice = _watched_and_not(learner, estimates, story, by_turns, seeded)
    yield from named_faults(f"{story.name}, seeded", twice)
    few = _some(story)
    alone = _compared(learner, estimates, few, told_key_by_key(few), system)
    yield from named_faults(f"{story.name}, system bits, key by key", alone)
    yield from slot_by_slot(learner, estimates, longest, system)
    short = in_short_blocks(learner)
    many = story_of_many_blocks(short, blocks=MANY)
    late = _compared(short, estimates, many, told_by_turns(many), seeded)
    yield from named_faults(f"{many.name}, seeded", late)
    together = _together(learner, estimates, story, by_turns, system)
    yield from named_faults(f"{story.name}, system bits", together)


def slot_by_slot(
    learner: Leader, estimates: tuple[Estimate, ...], longest: int, system: Randomness
) -> Iterator[str]:
    """Yield the misdeeds of a story whose events come alone."""
    story = story_of_few(learner, longest=_longest_alone(learner, longest))
    alone = _compared(learner, estimates, story, told_slot_by_slot(story), system)
    yield from named_faults(f"{story.name}, system bits, slot by slot", alone)


def at_another_size(other: OtherSize) -> Iterator[str]:
    """Yield the misdeeds of the story of another number of actions."""
    schedule, name = other.learner.schedule, other.name  # blocks may depend on K
    blocks = affordable(schedule, other.most_slots)
    if not blocks:
        return
    slots = schedule.stop(blocks - 1) - 1
    losses = noise(name, _OTHER_KEYS, slots, len(other.learner.actions))
    losses[:, 3 :: 1 + slots // 15, 0] = np.nan
    story = Story(name, (b"one", None)[:_OTHER_KEYS], losses, blocks)
    seeded = SeededRandomness("audit")
    telling = told_as_frames(story)
    yield from named_faults(name, _compared(other.learner, other.estimates, story, telling, seeded))


def _compared(
    learner: Leader,
    estimates: tuple[Estimate, ...],
    story: Story,
    telling: Telling,
    bits: Randomness,
) -> Iterator[str]:
    yield from compared(tell(learner, estimates, story, telling, bits))


def named_faults(name: str, faults: Iterator[str]) -> Iterator[str]:
    """The faults found in one story; an engine that raises is a fault too."""
    try:
        yield from (f"{name}: {what}" for what in faults)
    except StreamdpError as error:
        yield f"{name}: the engine refuses to go on: {error}"


def _longest_alone(learner: Leader, longest: int) -> int:
    """The longest block that is told slot by slot.

    Where a learner tosses bits for every slot, an engine has one way for all slots.
    """
    return longest if learner.resample == "none" else min(longest, _LONGEST_TOSSED)


def _some(story: Story) -> Story:
    """A few evenly spaced keys of a story."""
    places = np.linspace(0, len(story.keys) - 1, min(_ALONE, len(story.keys))).astype(int)
    keys = tuple(story.keys[place] for place in places)
    return replace(story, keys=keys, losses=story.losses[places])


def other_sizes(learner: Leader, estimates: tuple[Estimate, ...]) -> list[OtherSize]:
    """A story with blocks of thousands of slots, which are streamed; and one of many actions.

    Learners that differ in their number of actions alone have the same ones.
    """
    return [
        OtherSize(name, of_actions(learner, actions), estimates, slots)
        for name, actions, slots in (
            ("thousands of slots", 8, 16_400),  # streamed: from 8,192 rows of 8 actions on
            ("thousands of actions", 40_000, 16),  # more than two chunks of a race
        )
    ]


def of_actions(learner: Leader, many: int) -> Leader:
    """The learner for another number of actions; its recipe runs again, as rates may read K."""
    further = (f"action {number}" for number in range(many))
    names = tuple(dict.fromkeys([*learner.actions, *further]))[:many]
    if names == learner.actions:
        return learner
    if learner.recipe in RECIPES:
        return learner_of(learner.to_config(), actions=names)
    return replace(learner, actions=names)


def _watched_and_not(
    learner: Leader,
    estimates: tuple[Estimate, ...],
    story: Story,
    telling: Telling,
    seeded: Randomness,
) -> Iterator[str]:
    """Compare a story with its log, and with the same seed without a witness in one batch."""
    seen = tell(learner, estimates, story, telling, seeded)
    yield from compared(seen)
    unseen = tell(learner, estimates, story, at_once(telling), seeded, watched=None)
    if (seen.openings != unseen.openings).any():
        yield "unwatched: other openings"
    for kind in seen.kinds:
        wrong = seen.values[kind] != unseen.values[kind]
        yield from where(wrong, f"unwatched: {kind}: another value")


def _together(
    learner: Leader,
    estimates: tuple[Estimate, ...],
    story: Story,
    telling: Telling,
    system: Randomness,
) -> Iterator[str]:
    """Check many keys at once under the system's bits, which do not tell their keys."""
    result = tell(learner, estimates, story, telling, system)
    yield from result.wrong
    yield from result.strange
    yield from missing(result)
    yield from _repeated(result)
    for call in result.selected:
        yield from losers(learner, call)
    if learner.window == "random_prefix" or learner.resample == "bernoulli":
        return
    fold, votes = fold_of(result), result.values[ACTION]
    standings = standings_of(learner, result.openings, votes)
    handed = np.concatenate([_row_by_row(call) for call in result.selected])
    for block in range(story.blocks):
        sums, prior = fold.windows[:, block], learner.prior(standings.during[:, block])
        due = np.column_stack([sums, bonuses(prior, *sums.shape)[0], votes[:, block]])
        if not _same_rows(handed[handed[:, 0] == block, 1:], due):
            yield f"block {block}: selections read other sums or bonuses, or were changed"


def _row_by_row(call: Selected) -> Ints:
    """Block, sums, bonuses and winner of each row of a call."""
    bonus = bonuses(call.prior, *call.sums.shape)[0]
    return np.column_stack([call.blocks, call.sums, bonus, call.winners])


def _same_rows(one: Ints, other: Ints) -> bool:
    """Whether two tables have the same rows, in any order."""
    return np.array_equal(one[np.lexsort(one.T)], other[np.lexsort(other.T)])


def _repeated(result: StoryResult) -> Iterator[str]:
    """Check that no random word comes twice, in one draw or in two."""
    actions = len(result.learner.actions)
    some = {Purpose.SELECTION: actions, Purpose.RESAMPLE: -(-actions // 3), Purpose.NOISE: 2}
    words = [
        draw.bits.words(0, some.get(Purpose(min(draw.purpose, Purpose.NOISE)), 1)).ravel()
        for draw in result.draws
    ]
    read = np.concatenate(words)[:_DISTINCT]
    if len(np.unique(read)) != len(read):
        yield "random words come twice"
