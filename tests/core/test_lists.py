"""Policies over what a list allows: as if a learner had no other actions, and as private.

Exact over neighbours: every replacement of one event's content, in the shipped engine, with equal
released numbers. Whatever the engine shows beside those must be the same bytes. Each mutant breaks
one rule of the list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from streamdp.core.arrays import Bools, Columns, Ints
from streamdp.core.bank import Gathered
from streamdp.core.engine import Engine
from streamdp.core.engine.releasing import Draws, Ended
from streamdp.core.errors import InvalidConfig, StateMismatch
from streamdp.core.events import NO_ARM, OPENING, Batch
from streamdp.core.evidence.contexts import Contexts
from streamdp.core.evidence.evidence import PublicRow
from streamdp.core.evidence.policies import ReleasedSums
from streamdp.core.evidence.policy import PARTS, Policy
from streamdp.core.grid import NULL, UNIT
from streamdp.core.kinds.feedback import PolicyLearner
from streamdp.core.learners import RECIPES as RECIPES_OF_LOSSES
from streamdp.core.learners.feedback import FEEDBACK_RECIPES
from streamdp.core.randomness import SeededRandomness
from streamdp.core.releases import Releases
from streamdp.lab.audit.long_blocks import at_its_size
from streamdp.lab.audit.stories import lists
from tests.support.batches import feedback_batch

ACTIONS = ("a", "b", "c")
RECIPES = ("policy_blocks", "policy_elimination", "policy_following", "policy_weights")
NOTHING = np.zeros(0, dtype=np.int64)


def learner(recipe: str, actions: Sequence[str] = ACTIONS, **options: str) -> PolicyLearner:
    options = {"schedule": "capped 4", **options}
    return FEEDBACK_RECIPES[recipe](actions=list(actions), epsilon="1", **options)


def released(blocks: int, *, arms: int = 3, seed: int = 3) -> Ints:
    """Sums and counts of some blocks, which show the first action less than others."""
    chance = np.random.default_rng(seed)
    gains = chance.integers(-2 * UNIT, 2 * UNIT, (blocks, arms))
    counts = chance.integers(0, 3, (blocks, arms))
    counts[:, 0] //= 2
    return np.concatenate([gains, counts], axis=1)


def row_after(of: PolicyLearner, blocks: Ints) -> PublicRow:
    row = PublicRow.opened(of.evidence, NOTHING)
    for block in blocks:
        row.fold(block, 4)
    return row


@pytest.mark.parametrize("paused", [0, 1, 2])
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_paused_action_has_no_chance_and_no_floor(recipe: str, paused: int) -> None:
    """The others have all of the parts, after any number of blocks."""
    of, allowed = learner(recipe), np.arange(3) != paused
    for blocks in range(6):
        policy = row_after(of, released(blocks)).in_force(4, allowed)
        assert policy[paused] == 0
        assert policy[allowed].all()
        assert policy.sum() == PARTS


@pytest.mark.parametrize("recipe", ["policy_blocks", "policy_weights"])
def test_the_policy_is_that_of_a_learner_with_the_allowed_actions_alone(recipe: str) -> None:
    """While the other has nothing to tell: equal bits, so spare columns change nothing either."""
    blocks = released(5)
    blocks[:, [1, 4]] = 0
    allowed = np.array([True, False, True])
    of_three = row_after(learner(recipe), blocks).in_force(4, allowed)
    two = learner(recipe, ["a", "c"])
    of_two = row_after(two, blocks[:, [0, 2, 3, 5]]).in_force(4)
    assert of_three[allowed].tolist() == of_two.tolist()


@pytest.mark.parametrize("recipe", RECIPES)
def test_what_is_known_of_a_paused_action_stays(recipe: str) -> None:
    """A list changes no history: the policy after it is as if it had never been."""
    row, other = (row_after(learner(recipe), released(4)) for _ in range(2))
    row.in_force(4, np.array([True, False, True]))
    assert row.in_force(4).tolist() == other.in_force(4).tolist()


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_list_that_pauses_nothing_changes_nothing(recipe: str) -> None:
    row = row_after(learner(recipe), released(4))
    assert row.in_force(4, np.ones(3, dtype=np.bool_)).tolist() == row.in_force(4).tolist()


def test_a_change_that_only_a_paused_action_shows_leaves_a_policy() -> None:
    """The likeliest regime may know nothing of what is left, and the others be very unlikely."""
    of = learner("policy_following")
    blocks = np.zeros((12, 6), dtype=np.int64)
    blocks[:, 3:] = [400, 4, 4]
    blocks[:6, 0], blocks[6:, 0] = 200 * UNIT, -200 * UNIT
    blocks[6:, 4:] = 0
    row = row_after(of, blocks)
    policy = row.in_force(4, np.array([False, True, True]))
    assert policy[0] == 0
    assert policy[1:].all()
    assert policy.sum() == PARTS


def test_a_single_action_that_is_left_has_everything() -> None:
    for recipe in RECIPES:
        policy = row_after(learner(recipe), released(3)).in_force(4, np.arange(3) == 1)
        assert policy.tolist() == [0, PARTS, 0]


def test_an_engine_refuses_a_list_that_allows_nothing_or_is_of_others() -> None:
    batch = log()
    for of, allowed in (
        (learner("policy_blocks"), np.zeros(3, dtype=np.bool_)),
        (learner("policy_blocks"), np.ones(2, dtype=np.bool_)),
        (in_contexts(), np.ones(4, dtype=np.bool_)),
    ):
        with pytest.raises(InvalidConfig, match=r"batch\.allowed"):
            engine(of).apply_batch(replace(batch, allowed=allowed))
    of_losses = engine(RECIPES_OF_LOSSES["incumbent_leader"](actions=["a", "b"], epsilon="1"))
    losses = Batch.of_losses([b"k"], [[0, 1]], [0])
    with pytest.raises(InvalidConfig, match=r"batch\.allowed"):
        of_losses.apply_batch(replace(losses, allowed=np.array([True, False])))


def test_evidence_refuses_a_list_of_other_actions() -> None:
    with pytest.raises(StateMismatch, match="list: actions"):
        row_after(learner("policy_blocks"), released(1)).in_force(4, np.ones(5, dtype=np.bool_))


def in_contexts() -> PolicyLearner:
    fields = Contexts.read('{"device":["phone"]}')
    return FEEDBACK_RECIPES["policy_contexts"](
        actions=fields.arms(("a", "b")), epsilon="1", context=fields
    )


# -- neighbours ------------------------------------------------------------------------------------


def engine(of: Any) -> Engine:
    return Engine(
        stream="s", partition=0, learner=of, budget=None if of.releases[0].epsilon == 0 else "9",
        randomness=SeededRandomness(1),
    )  # fmt: skip


SLOTS = 14  # blocks end after 1, 3, 7 and 11 slots: the last is open
TAKEN = {"first block": 0, "inside": 5, "last record": 6, "next record": 7, "never": SLOTS}


def log(at: int = -1, content: tuple[int, int] = (0, 0)) -> Batch:
    """A stream of one key; the content of one slot is replaced."""
    arms, gains = np.arange(SLOTS) % 3, np.arange(SLOTS) * 1000 % NULL
    if at >= 0:
        arms[at], gains[at] = content
    slots = np.arange(SLOTS)
    return feedback_batch([b"k"], slots * 0, arms.astype(np.int32), gains.astype(np.int64), slots)


def lived(of: PolicyLearner, batch: Batch, taken: int) -> Releases:
    """The log under a list from a record on; what is drawn is the same for all logs."""
    machine, parts = engine(of), list[Releases]()
    for (begin, end), allowed in zip(
        pairwise((0, taken, SLOTS)), (None, np.array([True, False, True])), strict=True
    ):
        if begin < end:
            part = batch.part(slice(begin, end))
            parts.append(machine.apply_batch(replace(part, allowed=allowed)))
    return machine.no_releases.joined(parts)


def shown(of: PolicyLearner, batch: Batch, taken: int) -> tuple[bytes, ...]:
    """Everything that releases say beside their numbers."""
    releases = lived(of, batch, taken)
    names = ("kind", "born", "block", "start", "stop", "first_offset", "last_offset", "in_force")
    return tuple(getattr(releases, name).tobytes() for name in names)


def neighbours(played: str) -> Iterator[Batch]:
    yield log()
    for at in range(SLOTS):
        arms = (at % 3,) if played == "header" else (NO_ARM, 0, 1, 2)
        for arm in arms:
            for gain in (-NULL, 0, NULL):
                yield log(at, (arm, gain))


def faults(of: PolicyLearner, taken: int) -> Iterator[str]:
    """What is wrong with a list that was taken at a record, over all neighbours."""
    seen = {shown(of, batch, taken) for batch in neighbours(of.played)}
    if len(seen) > 1:
        yield "depends on content"
    releases = lived(of, log(), taken)
    for at in range(len(releases)):
        policy, block = releases.in_force[at], released_of(releases, at)  # type: ignore[index]
        under = int(releases.last_offset[at]) >= taken
        if under and policy[1]:
            yield "a paused action is drawn"
        if not under and not policy[1]:
            yield "a list is known before its position"
        expected = row_after(of, block).in_force(4, np.arange(3) != 1 if under else None)
        if policy.tolist() != expected.tolist():
            yield "a policy does not follow from releases and list"


def released_of(releases: Releases, at: int) -> Ints:
    """What the blocks up to a release have released."""
    some = releases.kind[: at + 1] != releases.kinds.index(OPENING)
    numbers: Ints = releases.numbers[: at + 1][some]
    return numbers


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a block releases is a function of its number alone."""

    def drawn(
        self: PolicyLearner, name: str, private: Columns, public: Columns, bits: object
    ) -> NDArray[np.int64]:
        known = np.count_nonzero(public["remembered"], axis=1)
        return np.stack([released(8, seed=5)[int(many) % 8] for many in known])

    monkeypatch.setattr(PolicyLearner, "draw", drawn)


@pytest.mark.usefixtures("scripted")
@pytest.mark.parametrize("taken", TAKEN.values(), ids=list(TAKEN))
@pytest.mark.parametrize("played", ["header", "value"])
def test_nothing_that_a_list_does_depends_on_content(played: str, taken: int) -> None:
    """Taken in a key's first block, inside one, with its last record, with the next, or never."""
    assert list(faults(learner("policy_blocks", played=played), taken)) == []


Patch = Callable[[pytest.MonkeyPatch], None]


def draws_what_is_paused(patch: pytest.MonkeyPatch) -> None:
    """A floor for everybody."""
    in_force = ReleasedSums.in_force

    def generous(
        self: ReleasedSums, public: Columns, lengths: Ints, allowed: Bools | None = None
    ) -> Policy:
        policy = in_force(self, public, lengths, allowed)
        if allowed is not None:
            policy[:, allowed.argmax()] -= np.uint32(16)
            policy[:, allowed.argmin()] += np.uint32(16)
        return policy

    patch.setattr(ReleasedSums, "in_force", generous)


def looks_at_open_sums(patch: pytest.MonkeyPatch) -> None:
    """Under a list the best action of the block that just ended has all."""
    close = Engine._close

    def peeking(
        self: Engine, ended: Ended, paid: Sequence[Bools], draws: Draws, allowed: Bools | None
    ) -> Iterator[Releases]:
        sums = Gathered(self._bank.private, ended.rows)["sums"].copy()
        for releases in close(self, ended, paid, draws, allowed):
            if allowed is not None:
                best = np.where(allowed, sums, np.iinfo(np.int64).min).argmax(axis=1)
                chosen = np.zeros_like(releases.in_force)
                chosen[np.arange(len(best)), best] = PARTS
                releases = replace(releases, in_force=chosen)
            yield releases

    patch.setattr(Engine, "_close", peeking)


def knows_a_list_too_early(patch: pytest.MonkeyPatch) -> None:
    """From the log's first record on."""
    apply_batch = Engine.apply_batch

    def early(self: Engine, batch: Batch) -> Releases:
        return apply_batch(self, replace(batch, allowed=np.array([True, False, True])))

    patch.setattr(Engine, "apply_batch", early)


MUTANTS: dict[Patch, str] = {
    draws_what_is_paused: "a paused action is drawn",
    looks_at_open_sums: "depends on content",
    knows_a_list_too_early: "before its position",
}


@pytest.mark.usefixtures("scripted")
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_broken_list_is_caught(mutant: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant(monkeypatch)
    found = list(faults(learner("policy_blocks"), TAKEN["inside"]))
    assert any(MUTANTS[mutant] in fault for fault in found)


@pytest.mark.slow
@pytest.mark.parametrize("mutant", [looks_at_open_sums, knows_a_list_too_early])
def test_the_audit_of_kinds_catches_it_too(mutant: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a story of its own, where lists are taken at ends of blocks and inside them."""
    of = learner("policy_blocks", schedule="geometric 2")
    assert list(at_its_size(of, 16, SeededRandomness("audit"))) == []
    mutant(monkeypatch)
    found = at_its_size(of, 16, SeededRandomness("audit"))
    assert any(what.startswith("lists, seeded") for what in found)


def test_no_story_of_lists_is_told_where_none_is_followed() -> None:
    of_losses = RECIPES_OF_LOSSES["incumbent_leader"](actions=["a", "b"], epsilon="1")
    assert [*lists(of_losses, longest=8), *lists(in_contexts(), longest=8)] == []
