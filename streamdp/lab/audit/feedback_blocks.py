"""Does the shipped engine release what a feedback stream's log and the drawn bits say?

The exact audit (`feedback`) enumerates streams of a few slots, without noise. Here the engine goes
through every block of up to 256 slots as in production: it charges and draws, and is saved and
rebuilt on the way. The stories (`feedback_stories`) are told

1. *by turns*, in batches, under seeded bits; also at once and without a witness;
2. *slot by slot*, under the system's bits;
3. with *idle keys*, whose rows are dropped;
4. with *thousands of actions*.

Each release must be the sums of exactly the slots that its block has, by a loop over the log, plus
the noise of the bits that were drawn for it. The noise is computed again from their words: the
difference of two geometric variables by floats, within their rounding. A block is drawn once, and
no word comes twice. Each policy must follow from the releases before it, also after a carry-over,
and the ledger must say the charge for the slots of every block that ended.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import chain, count, islice
from typing import NamedTuple

import numpy as np

from streamdp.core.arrays import Floats, Ints, Words
from streamdp.core.errors import StreamdpError
from streamdp.core.events import OPENING, SUMS, FeedbackBatch, Key, Release
from streamdp.core.evidence.policy_rules import Intervals
from streamdp.core.grid import NULL
from streamdp.core.learners.feedback import PolicyLearner
from streamdp.core.randomness import Randomness, SeededRandomness, SystemRandomness
from streamdp.lab.audit.feedback_stories import (
    WIDE_ACTIONS,
    FeedbackRun,
    FeedbackStory,
    FeedbackTelling,
    at_once,
    by_turns,
    slot_by_slot,
    story_of_feedback,
    visits_of,
    wide_story,
)
from streamdp.lab.audit.witness import Witness

_DISTINCT = 1 << 17  # words that are compared: two are equal with probability 5e-10
_ROUNDING = 2.0**-48, 2.0**-50  # of −scale·ln V by floats: of its value, and of the scale


def misdeeds_of_feedback(learner: PolicyLearner) -> Iterator[str]:
    """Yield what the shipped engine does wrong in long blocks, story by story."""
    story, visits = story_of_feedback(learner), visits_of(learner)
    seeded, fresh = SeededRandomness("audit"), SystemRandomness()
    yield from _named("by turns", _watched_and_not(learner, story, seeded))
    few = story.of(story.log.keys[:2])
    yield from _named("slot by slot", _watched(learner, few, slot_by_slot(few), fresh))
    yield from _named("idle keys", _watched(learner, visits, by_turns(visits), seeded))


def misdeeds_of_wide_feedback(learner: PolicyLearner) -> Iterator[str]:
    """Yield what it does wrong with so many numbers that they are drawn in parts.

    How policies are computed has no part in this, so the cheapest rule stands in for all.
    """
    names = tuple(map(str, range(WIDE_ACTIONS)))
    wide = replace(learner, actions=names, rule=Intervals(Fraction(2)))
    story, seeded = wide_story(wide), SeededRandomness("audit")
    yield from _named("thousands of actions", _watched(wide, story, at_once(story), seeded))


def _named(name: str, faults: Iterator[str]) -> Iterator[str]:
    """The faults found in one story; an engine that raises is a fault too."""
    try:
        yield from (f"{name}: {what}" for what in faults)
    except StreamdpError as error:
        yield f"{name}: the engine refuses to go on: {error}"


def _watched_and_not(
    learner: PolicyLearner, story: FeedbackStory, seeded: Randomness
) -> Iterator[str]:
    """Tell a story by turns, and with the same seed at once and without a witness."""
    witness = _witness(story, seeded)
    run = FeedbackRun(learner, story, by_turns(story), witness)
    yield from _faults(run, witness)
    unwatched = FeedbackRun(learner, story, at_once(story), seeded)
    if run.releases != unwatched.releases:
        yield "unwatched and in one batch: other releases"


def _watched(
    learner: PolicyLearner, story: FeedbackStory, telling: FeedbackTelling, bits: Randomness
) -> Iterator[str]:
    """Tell a story, and compare the releases with the log and the drawn bits."""
    witness = _witness(story, bits)
    yield from _faults(FeedbackRun(learner, story, telling, witness), witness)


def _witness(story: FeedbackStory, bits: Randomness) -> Witness:
    return Witness(bits, {key: number for number, key in enumerate(story.log.keys)})


# -- what each release should be -----------------------------------------------------------------


def _faults(run: FeedbackRun, witness: Witness) -> Iterator[str]:
    """Yield the first fault of each kind."""
    openings = [release for release in run.releases if release.kind == OPENING]
    lives = {(key, int(run.story.log.offsets[life[0]])): life for key, life in run.story.lives()}
    opened = Counter((release.key, release.identity.born) for release in openings)
    ended = [release for release in run.releases if release.kind == SUMS]
    due = dict(_due(run, openings, lives))
    if opened != Counter(lives.keys()):
        yield "a key does not open exactly once"
    elif Counter(map(_name, ended)) != Counter(due.keys()):
        yield "a block is not released exactly once"
    else:
        for checks in (
            _records(run.learner, ended, due),
            _draws(run.learner, ended, witness),
            _words(run.learner, witness),
            _numbers(run.learner, ended, due, witness),
            _policies(run),
            _in_force(run),
            _charges(run, due),
        ):
            yield from islice(checks, 1)


class _Block(NamedTuple):
    """A block that ended, by a loop over the log."""

    start: int
    stop: int
    first_offset: int
    last_offset: int
    exact: tuple[Ints, Ints]  # sums and counts


_Name = tuple[Key, int, int]
"""A block's key, born and number."""


def _name(release: Release) -> _Name:
    return release.key, release.identity.born, release.identity.block


def _due(
    run: FeedbackRun, openings: Iterable[Release], lives: Mapping[tuple[Key, int], Ints]
) -> Iterator[tuple[_Name, _Block]]:
    """The blocks that end, by the places of each learner's slots."""
    log, schedule = run.story.log, run.learner.schedule
    for opening in openings:
        key, born = opening.key, opening.identity.born
        places = lives.get((key, born), np.zeros(0, dtype=np.int64))
        for block in count(0 if opening.carried is None else opening.carried.block):
            start, stop = schedule.start(block), schedule.stop(block)
            here, places = places[: stop - start], places[stop - start :]
            if len(here) < stop - start:
                break
            first, last = log.offsets[here[[0, -1]]].tolist()
            exact = _sums(log, here, arms=len(run.learner.actions))
            yield (key, born, block), _Block(start, stop, first, last, exact)


def _sums(log: FeedbackBatch, places: Ints, *, arms: int) -> tuple[Ints, Ints]:
    """The sums and counts of some slots."""
    gains, shown = np.zeros(arms, dtype=np.int64), np.zeros(arms, dtype=np.int64)
    for arm, gain in zip(log.played[places].tolist(), log.gain[places].tolist(), strict=True):
        if 0 <= arm < arms:
            gains[arm] += max(-NULL, min(NULL, gain))
            shown[arm] += 1
    return gains, shown


def _records(
    learner: PolicyLearner, ended: Sequence[Release], due: Mapping[_Name, _Block]
) -> Iterator[str]:
    """Check the slots, records and charge that each release names."""
    for release in ended:
        named = release.start, release.stop, release.first_offset, release.last_offset
        if named != due[_name(release)][:4]:
            yield f"block {release.identity.block}: it names other slots or records than its own"
        if release.epsilon != (learner.charge or 0):
            yield f"block {release.identity.block}: it says another charge than the learner's"


def _draws(learner: PolicyLearner, ended: Sequence[Release], witness: Witness) -> Iterator[str]:
    """Check that noise is drawn once for each release."""
    drawn = _drawn(learner, witness)
    times = Counter({name: len(rows) for name, rows in drawn.items()})
    released = Counter((witness.keys[release.key], release.identity.block) for release in ended)
    if learner.private and times != released:
        yield "noise is not drawn exactly once for each release"


def _words(learner: PolicyLearner, witness: Witness) -> Iterator[str]:
    """Check that no word comes twice, in one draw or in two."""
    rows = chain.from_iterable(_drawn(learner, witness).values())
    read = np.concatenate([np.zeros(0, dtype=np.uint64), *rows])[:_DISTINCT]
    if (np.diff(np.sort(read)) == 0).any():
        yield "random words come twice"


def _drawn(learner: PolicyLearner, witness: Witness) -> dict[tuple[int, int], list[Words]]:
    """The words that were drawn for the noise of each key and block, in order."""
    drawn: dict[tuple[int, int], list[Words]] = defaultdict(list)
    for draw in witness.draws if learner.private else ():
        words = draw.bits.words(0, _words_of(learner))
        for key, block, row in zip(draw.keys.tolist(), draw.indices.tolist(), words, strict=True):
            drawn[key, block].append(row)
    return drawn


def _numbers(
    learner: PolicyLearner,
    ended: Sequence[Release],
    due: Mapping[_Name, _Block],
    witness: Witness,
) -> Iterator[str]:
    """Check each number: the log's sum or count, plus the noise of the words drawn for it."""
    scales, arms = (learner.sums_scale, learner.counts_scale), len(learner.actions)
    drawn, no_words = _drawn(learner, witness), np.zeros(_words_of(learner), dtype=np.uint64)
    for release in ended:
        assert release.sums is not None
        block = release.identity.block
        draws = drawn[witness.keys[release.key], block]
        words = draws.pop(0) if draws else no_words
        columns = zip(release.sums.arrays(), due[_name(release)].exact, scales, strict=True)
        for released, exact, scale in columns:
            low, high = np.zeros(arms), np.zeros(arms)
            if scale is not None:
                low, high = noise_bounds(scale, words[: 2 * arms])
                words = words[2 * arms :]
            noise = released - exact
            if (noise < low).any() or (noise > high).any():
                yield f"block {block}: other sums than the log's with the noise that was drawn"


def _words_of(learner: PolicyLearner) -> int:
    """How many words a block's noise reads: two for each number that has noise."""
    noisy = [scale for scale in (learner.sums_scale, learner.counts_scale) if scale is not None]
    return 2 * len(learner.actions) * len(noisy)


def noise_bounds(scale: Fraction, words: Words) -> tuple[Floats, Floats]:
    """The least and the most that noise of these words can be: ⌊scale·E⌋ − ⌊scale·E'⌋, E = −ln V.

    Words come in pairs. V is the real number that begins with a word's digits.

    >>> low, high = noise_bounds(Fraction(1 << 20), np.array([1 << 62, 1 << 63], dtype=np.uint64))
    >>> low.tolist(), high.tolist()
    ([726817.0], [726817.0])
    """
    values = -np.log((words.astype(np.float64) + 0.5) * 2.0**-64) * float(scale)
    slack = values * _ROUNDING[0] + float(scale) * _ROUNDING[1]
    least, most = np.floor(values - slack), np.floor(values + slack)
    return least[0::2] - most[1::2], most[0::2] - least[1::2]


def _policies(run: FeedbackRun) -> Iterator[str]:
    """Check each release's policy, by the history of its key's releases up to it."""
    learner = run.learner
    known: dict[Key, Floats] = defaultdict(lambda: learner.nothing_known(1))
    rows: list[tuple[Floats, int, bytes | None]] = []
    for release in run.releases:
        key, block, carried = release.key, 0, release.carried
        if release.sums is not None:
            gains, shown = release.sums.arrays()
            known[key] = learner.learned(known[key], gains[None], shown[None])
            block = release.identity.block + 1
        elif carried is None:
            known[key] = learner.nothing_known(1)
        else:
            block = carried.block
            kept = learner.rule.history
            history = kept.carried(known[key])
            if carried.history != history.astype("<f8").tobytes():
                yield "a key carries over another history than its releases say"
            known[key] = kept.resumed(history)
        rows.append((known[key], block, release.policy))
    histories, blocks, said = zip(*rows, strict=True)
    policies = learner.policy(np.concatenate(histories), np.array(blocks))
    if [policy.astype("<u4").tobytes() for policy in policies] != list(said):
        yield "a policy is not what its releases say"


def _in_force(run: FeedbackRun) -> Iterator[str]:
    """Check the policies that the engine says at the end; it has none for keys that are away."""
    latest = {release.key: release.policy for release in run.releases}
    for key, policy in latest.items():
        in_force = run.engine.policy(key)
        if in_force is not None and in_force.astype("<u4").tobytes() != policy:
            yield "the policy in force is not the one that was released"


def _charges(run: FeedbackRun, due: Mapping[_Name, _Block]) -> Iterator[str]:
    """Check the ledger: the charge for each slot of the blocks that ended, and nothing else.

    Of keys that were away it may say too much: see `engine.charges`.
    """
    charge = run.learner.charge
    if charge is None or run.story.idle is not None:
        return
    ends = {key: block.stop for (key, _, _), block in due.items()}
    booked: dict[Key, int] = {}
    for key, booking in run.engine.ledger.export():
        sound = booking.epsilon == charge and booking.start == booked.get(key, 1)
        booked[key] = booking.stop if sound else 0
    if booked != ends:
        yield "the ledger does not say what its blocks cost"
