"""Compares the engine's result for a story with the fold of its log.

It compares sums, bonuses, winners, estimates, charges and actions in force, for each key and block;
and the law of some selections, with the sums and bonuses that they got, with the charge.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from streamdp.core.arrays import Bools
from streamdp.core.events import ACTION
from streamdp.core.grid import UNIT
from streamdp.core.learners import Leader
from streamdp.core.ledger import Run
from streamdp.core.noise import discrete_laplace
from streamdp.core.randomness import Purpose
from streamdp.lab.audit.fold import Fold, bonuses, plain_winners, scaled
from streamdp.lab.audit.standing import Standings, standings_of
from streamdp.lab.audit.telling import StoryResult, purpose_of
from streamdp.lab.audit.transcripts import TOLERANCE
from streamdp.lab.audit.witness import NOBODY, Selected

_PRICED = 24  # selections whose law is computed
_MOST_PRICED_ACTIONS = 8


def compared(result: StoryResult) -> Iterator[str]:
    """Yield what differs; the key of each draw must be known."""
    yield from result.wrong
    yield from result.strange
    yield from missing(result)
    fold = fold_of(result)
    standings = standings_of(result.learner, result.openings, result.values[ACTION])
    yield from _openings(result)
    yield from _selections(result, fold, standings)
    yield from _estimates(result, fold, standings)
    yield from _said(result, standings)
    yield from charges(result)
    yield from _prices(result)


def fold_of(result: StoryResult) -> Fold:
    """The sums that selections should have read, given the words of windows and coins."""
    story, blocks = result.story, result.story.blocks
    _, slots, actions = story.losses.shape
    windows = result.latest(Purpose.WINDOW, columns=blocks, words=1)[..., 0]
    coins = np.zeros((len(story.keys), 0, 1), dtype=np.uint64)
    if result.learner.resample == "bernoulli":
        fields = -(-actions // 3)
        coins = result.latest(Purpose.RESAMPLE, columns=slots, words=fields, first=1)
    return Fold.of(result.learner, story, windows=windows, coins=coins)


def missing(result: StoryResult) -> Iterator[str]:
    """Check that every block's action was released once, and every estimate where it is due."""
    lengths = result.learner.schedule.lengths(np.arange(result.story.blocks))
    due = [np.ones_like(lengths), *(estimate.due(lengths) for estimate in result.estimates)]
    for kind, expected in zip(result.kinds, due, strict=True):
        wrong = result.times[kind] != np.broadcast_to(expected, result.times[kind].shape)
        yield from where(wrong, f"{kind}: not released exactly once")
    if (result.openings < 0).any():
        yield "an opening is missing"


def _openings(result: StoryResult) -> Iterator[str]:
    words = result.latest(Purpose.OPENING, columns=1, words=1)[:, 0, 0]
    actions = np.full(len(words), len(result.learner.actions))
    wrong = scaled(words, actions) != result.openings
    yield from where(wrong[:, None], "the opening is not what its bits say")
    drawn = np.concatenate([draw.keys for draw in result.drawn(Purpose.OPENING)])
    if len(drawn) != len(result.openings):
        yield "an opening was not drawn exactly once"


def _selections(result: StoryResult, fold: Fold, standings: Standings) -> Iterator[str]:
    """Check what each selection got and chose, and that this was released."""
    times = np.zeros(fold.windows.shape[:2], dtype=np.int64)
    for call in result.selected:
        keys, blocks = call.keys, call.blocks
        if (keys == NOBODY).any() or (blocks >= result.story.blocks).any():
            yield "a selection was drawn for no key or block of the story"
            continue
        np.add.at(times, (keys, blocks), 1)
        wrong = (call.sums != fold.windows[keys, blocks]).any(axis=1)
        yield from _at(call, wrong, "the selection read other sums than its window's")
        expected = result.learner.prior(standings.during[keys, blocks])
        one, two = (bonuses(prior, *call.sums.shape) for prior in (call.prior, expected))
        wrong = (one[0] * two[1] != two[0] * one[1]).any(axis=1)
        yield from _at(call, wrong, "the bonus is not what earlier releases say")
        yield from losers(result.learner, call)
        wrong = result.values[ACTION][keys, blocks] != call.winners
        yield from _at(call, wrong, "the release is not what was selected")
    yield from where(times != 1, "not selected from exactly once")


def losers(learner: Leader, call: Selected) -> Iterator[str]:
    """Check the winners of a call against its sums, bonuses and bits."""
    choose = learner.choose
    plain = plain_winners(choose.name, choose.rate, call.sums, call.words, call.prior)
    if plain is not None:
        wrong = (plain[0] != call.winners) & plain[1]
        yield from _at(call, wrong, "another action wins with these bits")


def _at(call: Selected, wrong: Bools, what: str) -> Iterator[str]:
    """Report the first wrong row of a call."""
    if wrong.any():
        row = int(wrong.argmax())
        yield f"block {call.blocks[row]} of key {call.keys[row]}: {what}"


def _estimates(result: StoryResult, fold: Fold, standings: Standings) -> Iterator[str]:
    """Check estimates: the fold's statistic plus the noise of the drawn bits."""
    actions = len(result.learner.actions)
    for number, estimate in enumerate(result.estimates):
        times = np.zeros_like(result.times[estimate.name])
        for draw in result.drawn(purpose_of(number)):
            keys, blocks = draw.keys, draw.indices
            if (keys == NOBODY).any() or (blocks >= result.story.blocks).any():
                yield f"{estimate.name}: drawn for no key or block of the story"
                continue
            np.add.at(times, (keys, blocks), 1)
            exact = estimate.statistic(
                fold.totals[keys, blocks],
                action=standings.during[keys, blocks],
                nulls=fold.nulls[keys, blocks],
            )
            noisy = exact + discrete_laplace(estimate.scale(actions=actions), draw.bits)
            if (noisy != result.values[estimate.name][keys, blocks]).any():
                yield f"{estimate.name}: not the block's statistic with the noise that was drawn"
        yield from where(times != result.times[estimate.name], f"{estimate.name}: drawn again")


def _said(result: StoryResult, standings: Standings) -> Iterator[str]:
    """Check the actions in force that the engine states: at the end, and with each release."""
    if result.in_force is not None and (result.in_force != standings.after[:, -1]).any():
        yield "what is in force does not follow from the releases"
    wrong = (result.standing >= 0) & (result.standing != standings.after)
    yield from where(wrong, "a release does not say what is in force after it")


def charges(result: StoryResult) -> Iterator[str]:
    """Check the ledger of every key: each block's action and estimates, once."""
    charge = result.learner.charge
    if charge is None:
        return
    schedule, runs = result.learner.schedule, []
    for block in range(result.story.blocks):
        start, stop = schedule.start(block), schedule.stop(block)
        due = (spec.epsilon for spec in result.estimates if stop - start >= spec.min_length)
        runs.append(Run(start, stop, sum(due, charge)))
    expected = _joined(runs)
    for number, key in enumerate(result.story.keys):
        if _joined(result.charged.get(key, [])) != expected:
            yield f"key {number}: the ledger does not say what its blocks cost"
            return


def _joined(runs: Sequence[Run]) -> list[Run]:
    """Join neighbouring runs of one charge."""
    joined: list[Run] = []
    for run in runs:
        if joined and joined[-1].stop == run.start and joined[-1].epsilon == run.epsilon:
            run = Run(joined.pop().start, run.stop, run.epsilon)
        joined.append(run)
    return joined


def _prices(result: StoryResult) -> Iterator[str]:
    """Check the law of selections with the sums and bonuses that they got: one more slot holds
    each vertex of the first actions' cube, and no probability may move by more than the charge.
    """
    charge, actions = result.learner.charge, len(result.learner.actions)
    if charge is None or actions > _MOST_PRICED_ACTIONS:
        return
    corners = np.zeros((8, actions), dtype=np.int64)
    corners[:, : min(actions, 3)] = np.indices((2, 2, 2)).reshape(3, 8).T[:, : min(actions, 3)]
    calls = result.selected
    for call in calls[:: -(-len(calls) // _PRICED)]:
        at = len(call.sums) // 2
        prior = None if call.prior is None else call.prior.part(at, at + 1)
        logs = [
            result.learner.choose.log_probabilities(call.sums[at] + corner * UNIT, prior)
            for corner in np.unique(corners, axis=0)
        ]
        if not np.isfinite(logs).all() or np.ptp(logs, axis=0).max() > charge + TOLERANCE:
            yield f"block {call.blocks[at]}: a selection costs more than is charged"
            return


def where(wrong: Bools, what: str) -> Iterator[str]:
    """Report the first wrong key and block."""
    if wrong.any():
        key, block = np.unravel_index(int(wrong.argmax()), wrong.shape)
        yield f"block {block} of key {key}: {what}"
