"""Does one event move what keys and their pool release by its charge at most?

Two keys' learners donate to a pool. They are run through the shipped engine under transcripts of
all their draws, and under every content of one record; between records the engine is saved and made
again from its saves. A transcript's probability is the product of the laws of its draws, each from
the sums and the prior that the engine handed to that draw. Nothing is assumed about which event
reaches which draw: that is what is being checked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import replace
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from numpy.typing import NDArray

import streamdp as sd
from streamdp.core.engine import Rebuilding
from streamdp.core.engine.machine import Engine
from streamdp.core.engine.plan import Plan
from streamdp.core.engine.pooling import Pool
from streamdp.core.events import DONATED, Key, LossBatch
from streamdp.lab.audit.crowd import Forced
from streamdp.lab.audit.transcripts import TOLERANCE
from tests.support.crowd_mutants import (
    counted_in_its_own_block_too,
    given_again_by_a_rebuild,
)
from tests.support.crowded import crowded
from tests.support.forced import EPSILON, TWO, largest_ratios
from tests.support.recorder import Recorder

pytestmark = pytest.mark.usefixtures("priors_are_made_once")

KEYS: tuple[Key, ...] = (b"x", b"y")
BASE = np.array([[0, 1], [1, 0], [0, 1], [1, 0], [0, 1], [0, 1], [1, 1], [0, 1], [1, 0], [0, 1],
                 [1, 0], [0, 1]], np.float32)  # fmt: skip
"""Records of two keys in turn. Blocks are 1, 2, 1, 2 slots, and those of 1 are donated: the pool
gets slots 1 and 4 of either key (records 0, 1, 6, 7), and its blocks are 1 and 3 slots. The draws:
an opening of x, the pool's vote, an opening of y, votes of x and y, the pool's vote, votes of both.
"""


PLAIN = sd.incumbent_leader(actions=TWO, epsilon=EPSILON, schedule="restarting 3")
CHOOSE = PLAIN.choose


def new_engine(choose: Forced | None = None) -> Engine:
    """An engine whose keys donate blocks of one slot."""
    learner = crowded(PLAIN, donates=2)
    if choose is not None:
        learner = replace(learner, choose=choose)
    return Engine(
        stream="home", partition=0, learner=learner, budget="4",
        randomness=sd.SeededRandomness(1),
    )  # fmt: skip


def record(at: int, vector: NDArray[np.float32]) -> LossBatch:
    """One record, of the two keys in turn."""
    return LossBatch([KEYS[at % 2]], np.zeros(1, np.int64), vector[None], np.array([at]))


def rebuilt(recorder: Recorder, losses: NDArray[np.float32], choose: Forced) -> Engine:
    """The engine again, from what was saved and the records since."""
    machine = recorder.machine
    rebuilding = Rebuilding(
        new_engine(choose), rows=list(recorder.rows.items()), releases=recorder.releases,
        crowd=machine.crowd(),
    )  # fmt: skip
    for at in range(machine.low_water(), machine.position):
        rebuilding.feed(record(at, losses[at]))
    return rebuilding.finish(position=machine.position, rows=machine.rows)


def forced(
    losses: NDArray[np.float32], script: tuple[int, ...], crashes: Set[int] = frozenset()
) -> list[float]:
    """The log-probabilities of a run's draws; it is made again before some records."""
    choose = Forced(CHOOSE, script)
    recorder = Recorder(new_engine(choose))
    for at, vector in enumerate(losses):
        if at in crashes:
            recorder.machine = rebuilt(recorder, losses, choose)
        recorder.step(record(at, vector), saves=at % 2)
    assert len(choose.logs) == len(script)
    return choose.logs


def worst(
    varied: Sequence[int], scripts: Iterator[tuple[int, ...]], crashes: Set[int] = frozenset()
) -> dict[int, float]:
    """The largest log-ratio that the content of each record makes, over these transcripts."""
    return largest_ratios(
        BASE, varied, scripts, lambda losses, script: sum(forced(losses, script, crashes))
    )


def transcripts() -> Iterator[tuple[int, ...]]:
    """Every way that the pool's votes can go, and a key's."""
    for pool, x, again in product((0, 1), repeat=3):
        yield (0, pool, 1, x, 1 - x, again, 1 - x, x)


@pytest.mark.slow
def test_does_an_event_cost_its_charge_at_most() -> None:
    """Donated or not, with saves and rebuilds before and behind it: once ε, and no less."""
    ratios = worst([0, 1, 7, 2, 11], transcripts(), crashes={1, 5, 7, 9})
    for ratio in ratios.values():
        assert 0.5 < ratio <= EPSILON + TOLERANCE


@pytest.mark.slow
def test_is_a_slot_that_its_own_key_counts_too_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would reach the pool's vote and its key's."""
    counted_in_its_own_block_too(monkeypatch)
    assert worst([0], transcripts())[0] > EPSILON + 0.5


@pytest.mark.slow
def test_is_a_slot_that_a_rebuild_gives_again_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would count twice in one vote: a row was saved before the pool was."""
    assert worst([1], transcripts(), crashes={2})[1] <= EPSILON + TOLERANCE
    given_again_by_a_rebuild(monkeypatch)
    assert worst([1], transcripts(), crashes={2})[1] > EPSILON + 0.3


def lines(machine: Engine) -> tuple[Counter[tuple[Key, int]], list[sd.Release]]:
    """How often a line charges each slot of each key, over all records; the pool's votes."""
    charged: Counter[tuple[Key, int]] = Counter()
    votes: list[sd.Release] = []
    for at, vector in enumerate(BASE):
        released = machine.apply_batch(record(at, vector))
        votes += [vote for released_votes in released.pooled for vote in released_votes]
        for line in (
            *released,
            *(line for released_lines in released.donated for line in released_lines),
        ):
            if line.kind in ("action", DONATED):
                charged.update((line.key, slot) for slot in range(line.start, line.stop))
    return charged, votes


def sound(machine: Engine) -> bool:
    """Whether lines and ledger charge each slot ε once, and the pool each donated slot."""
    try:
        charged, votes = lines(machine)
    except sd.BudgetExceeded:
        return False
    slots = {(key, slot) for key in KEYS for slot in range(1, 7)}
    once = all(machine.ledger.spent(key, slot=slot) == EPSILON for key, slot in slots)
    tiled = [(vote.start, vote.stop, vote.epsilon) for vote in votes]
    pool = machine._pool
    assert pool is not None
    booked = [pool.engine.ledger.spent(b"", slot=slot) == EPSILON for slot in range(1, 5)]
    right = charged == Counter(slots) and tiled == [(1, 2, EPSILON), (2, 5, EPSILON)]
    return once and right and all(booked)


def charged_twice(patch: pytest.MonkeyPatch) -> None:
    """Mutant: a donated block is booked where it begins and where it ends."""
    plain = Engine._book

    def book(self: Engine, accounts: NDArray[np.int64], blocks: NDArray[np.int64]) -> None:
        plain(self, accounts, blocks)
        crowd = getattr(self.learner, "crowd", None)
        if crowd is not None and crowd.donates:
            given = self.learner.schedule.lengths(blocks) < crowd.donates
            plain(self, accounts[given], blocks[given])

    patch.setattr(Engine, "_book", book)


def charged_never(patch: pytest.MonkeyPatch) -> None:
    """Mutant: only blocks from which their own key draws are booked."""
    plain = Plan.charged.fget  # type: ignore[attr-defined]

    def charged(self: Plan) -> NDArray[np.bool_]:
        plain_charged: NDArray[np.bool_] = plain(replace(self, gives=None))
        return plain_charged if self.gives is None else plain_charged & ~self.gives

    patch.setattr(Plan, "charged", property(charged))


@pytest.mark.parametrize("break_it", [None, charged_twice, charged_never])
def test_is_a_donated_slot_charged_once(
    break_it: Callable[[pytest.MonkeyPatch], None] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not twice, and not never, in the ledger and in the lines; a draw follows its charge."""
    if break_it is not None:
        break_it(monkeypatch)
    assert sound(new_engine()) == (break_it is None)


def test_is_a_donated_slot_charged_before_the_pool_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where its own block has not ended: the pool may draw from its first slot."""
    seen: list[Fraction] = []
    plain = Pool.take

    def take(self: Pool, plan: Plan) -> None:
        if len(plan.gifts):
            seen.append(machine.ledger.spent(b"x", slot=1))
        plain(self, plan)

    monkeypatch.setattr(Pool, "take", take)
    learner = crowded(
        sd.incumbent_leader(actions=TWO, epsilon=EPSILON, schedule="capped 4"), donates=3
    )
    machine = Engine(
        stream="home", partition=0, learner=learner, budget="2", randomness=sd.SeededRandomness(1)
    )
    machine.apply_batch(record(0, BASE[0]))
    assert seen == [EPSILON]
