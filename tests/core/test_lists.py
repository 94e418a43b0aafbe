"""Policies over what a list allows: as if a learner had no other actions, and as private.

Exact over neighbours: every replacement of one event's content, in the shipped engine, with equal
released numbers. Whatever the engine shows beside those must be the same bytes. Each mutant breaks
one rule of the list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from streamdp.core.arrays import Bools, Columns, Floats, Ints
from streamdp.core.engine import Engine
from streamdp.core.engine.releasing import Draws, Ended
from streamdp.core.errors import InvalidConfig, StateMismatch
from streamdp.core.events import NO_ARM, OPENING, SPARE, Batch, Carried
from streamdp.core.evidence.carrying import Passage
from streamdp.core.evidence.context_model import ContextModel
from streamdp.core.evidence.contexts import Contexts
from streamdp.core.evidence.evidence import STAYS_AWAY, PublicRow
from streamdp.core.evidence.policies import ReleasedSums
from streamdp.core.evidence.policy import PARTS, Policy
from streamdp.core.evidence.released_tables import ReleasedTables
from streamdp.core.grid import NULL, UNIT
from streamdp.core.kinds.feedback import (
    PLAYED,
    FeedbackAdder,
    FeedbackContents,
    PolicyLearner,
)
from streamdp.core.kinds.kind import BitsOf
from streamdp.core.kinds.names import is_name
from streamdp.core.learners import RECIPES as RECIPES_OF_LOSSES
from streamdp.core.learners.feedback import FEEDBACK_RECIPES
from streamdp.core.randomness import SeededRandomness
from streamdp.core.releases import Releases
from streamdp.core.segments import BatchSlots
from streamdp.lab.audit.long_blocks import TELLINGS
from streamdp.lab.audit.stories import lists
from tests.support.batches import feedback_batch
from tests.support.mutants.late_feedback import gives_columns_without_a_name_a_floor

ACTIONS = ("a", "b", "c")
RECIPES = ("policy_blocks", "policy_elimination", "policy_following", "policy_weights")
NOTHING = np.zeros(0, dtype=np.int64)


def learner(recipe: str, actions: Sequence[str] = ACTIONS, **options: str) -> PolicyLearner:
    options = {"schedule": "capped 4", **options}
    return FEEDBACK_RECIPES[recipe](actions=list(actions), epsilon="1", **options)


def released(blocks: int, arms: int = 3, *, seed: int = 3) -> Ints:
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
    batch = neighbours(learner("policy_blocks"))
    for of, allowed in (
        (learner("policy_blocks"), np.zeros(3, dtype=np.bool_)),
        (learner("policy_blocks"), np.ones(2, dtype=np.bool_)),
        (in_contexts(), np.ones(6, dtype=np.bool_)),
    ):
        with pytest.raises(InvalidConfig, match=r"batch\.allowed"):
            engine(of).apply_batch(replace(batch, allowed=allowed))
    of_losses = engine(RECIPES_OF_LOSSES["incumbent_leader"](actions=["a", "b"], epsilon="1"))
    losses = Batch.of_losses([b"k"], [[0, 1]], [0])
    with pytest.raises(InvalidConfig, match=r"batch\.allowed"):
        of_losses.apply_batch(replace(losses, allowed=np.array([True, False])))


def test_evidence_refuses_a_list_of_other_actions() -> None:
    for of in (learner("policy_blocks"), in_contexts(), in_contexts(ROOMY, room="2")):
        with pytest.raises(StateMismatch, match="list: actions"):
            PublicRow.opened(of.evidence, NOTHING).in_force(4, np.ones(7, dtype=np.bool_))


@pytest.mark.parametrize("played", PLAYED)
@pytest.mark.parametrize("recipe", RECIPES)
def test_spare_columns_change_no_bit_of_what_the_named_ones_have(recipe: str, played: str) -> None:
    """Whatever noise they are drawn with: the policies of a learner without them, and their
    chances."""
    blocks, plain = numbers_of(played, released(5)), learner(recipe, played=played)
    noise = np.random.default_rng(5).integers(-9 * UNIT, 9 * UNIT, (5, 4))
    exact = noise[:, 2:] * (played == "value")
    wide = np.concatenate([blocks[:, :3], noise[:, :2], blocks[:, 3:], exact], axis=1)
    of = roomy(recipe, played)
    assert (of.actions, of.schedule) == ((*ACTIONS, SPARE, SPARE), plain.schedule)
    for many in range(6):
        row = row_after(of, of.evidence.of_named(wide[:many]))
        alone = row_after(plain, blocks[:many])
        policy = row.in_force(4)
        assert policy.tolist() == [*alone.in_force(4).tolist(), 0, 0]
        chances, others = row.likely_best(), alone.likely_best()
        assert (chances is None) == (others is None)
        if chances is not None and others is not None:
            assert chances.tolist() == [*others.tolist(), 0.0, 0.0]


@pytest.mark.parametrize("played", PLAYED)
@pytest.mark.parametrize("recipe", RECIPES)
def test_an_action_that_gets_a_spare_column_begins_as_one_without_history(
    recipe: str, played: str
) -> None:
    """Equal bits to a learner of four actions, of which the last was never shown."""
    allowed, blocks = np.arange(5) < 4, numbers_of(played, released(4))
    zeros = np.zeros((4, 1), dtype=np.int64)
    wide = np.concatenate([blocks[:, :3], zeros, zeros, blocks[:, 3:], zeros, zeros], axis=1)
    four = np.concatenate([blocks[:, :3], zeros, blocks[:, 3:], zeros], axis=1)
    policy = row_after(roomy(recipe, played), wide).in_force(4, allowed)
    assert policy[3]
    assert not policy[4]
    of_four = replace(learner(recipe, played=played), actions=(*ACTIONS, "d"))
    assert policy[:4].tolist() == row_after(of_four, four).in_force(4).tolist()


def test_room_leaves_two_names() -> None:
    columns = [*ACTIONS, SPARE]
    for room in ("-1", "3", "9"):
        with pytest.raises(InvalidConfig, match=r"room|actions"):
            learner("policy_following", columns, room=room)
    whole = FIELDS.arms((*ACTIONS, SPARE))
    for arms, room in (whole, "9"), (whole, "3"), (whole[:-1], "1"), (("1",) * 8001, "7999"):
        with pytest.raises(InvalidConfig, match=r"room|actions|table does not fit"):
            FEEDBACK_RECIPES["policy_contexts"](
                actions=arms, epsilon="1", context=FIELDS, room=room
            )


@pytest.mark.parametrize(
    ("text", "may"),
    [("grid", True), ("é" * 50, True), ("é" * 51, False), ("", False), ("a\n", False)],
)
def test_a_name_that_comes_has_at_most_100_bytes_and_no_control_character(
    text: str, may: bool
) -> None:
    assert is_name(text) is may


def test_a_learner_is_carried_by_the_names_of_its_columns() -> None:
    """Columns without a name go nowhere, and none of them is where a name goes."""
    before = FEEDBACK_RECIPES["policy_blocks"](
        actions=["a", "b", "c", SPARE], epsilon="1", room="2"
    )
    now = FEEDBACK_RECIPES["policy_blocks"](actions=["c", "a", SPARE], epsilon="1", room="1")
    moves = Passage(before, now).moves
    assert moves is not None
    assert moves.tolist() == [1, STAYS_AWAY, 0, STAYS_AWAY]


def roomy(recipe: str, played: str = "header") -> PolicyLearner:
    """The learner with two spare columns."""
    return learner(recipe, [*ACTIONS, SPARE, SPARE], room="2", played=played)


def numbers_of(played: str, blocks: Ints) -> Ints:
    """The same sums and counts as a stream releases them whose counts are noisy, or exact."""
    if played == "header":
        return blocks
    gains, counts = np.split(blocks, 2, axis=1)
    return np.concatenate([NULL * counts + gains, NULL * counts - gains], axis=1)


# -- contexts --------------------------------------------------------------------------------------

FIELDS = Contexts.read('{"device":["phone"]}')


ROOMY = [*ACTIONS, SPARE, SPARE]


def in_contexts(
    actions: Sequence[str] = ACTIONS, played: str = "header", **options: str
) -> PolicyLearner:
    return FEEDBACK_RECIPES["policy_contexts"](
        actions=FIELDS.arms(tuple(actions)), epsilon="1", context=FIELDS, played=played,
        **{"schedule": "capped 4", **options},
    )  # fmt: skip


def lived_through(
    of: PolicyLearner, shows: Ints, rewards: Floats, *lists: Bools | None
) -> list[Any]:
    """Blocks without noise of so many shows of each arm; what followed under these lists: table and
    policy."""
    row, seen = PublicRow.opened(of.evidence, NOTHING), []
    assert isinstance(of.rule, ContextModel)
    gains = np.rint(shows * (rewards - 0.5) * UNIT).astype(np.int64)
    for allowed in lists:
        sums = of.rule.summed(int(row.columns["table"][0]), gains[None])[0]
        numbers = np.concatenate([sums, np.zeros(shows.size - sums.size, np.int64), shows])
        row.fold(numbers, int(shows.sum()), allowed)
        policy = row.in_force(1 << 12, allowed).reshape(FIELDS.cells, -1)
        seen.append((int(row.columns["table"][0]), policy.tolist()))
    return seen


def test_in_each_cell_chances_are_those_of_the_allowed_actions_among_themselves() -> None:
    """None that is paused has any; while nothing is known the others have equal ones."""
    allowed = np.array([True, False, True])
    shows, rewards = np.array([90, 0, 60, 80, 0, 70]), np.array([0.4, 0, 0.1, 0.1, 0, 0.4])
    row = PublicRow.opened(in_contexts().evidence, NOTHING)
    assert row.in_force(4, allowed).tolist() == [PARTS // 2, 0, PARTS // 2] * FIELDS.cells
    policies = [of for _, of in lived_through(in_contexts(), shows, rewards, *[allowed] * 6)]
    assert all(parts[1] == 0 < min(parts[0], parts[2]) for of in policies for parts in of)
    assert policies[-1][0][0] > 0.9 * PARTS < policies[-1][1][2]


def test_beside_a_paused_action_that_is_the_best_the_others_are_still_told_apart() -> None:
    """By the tables that are released while it is paused: those of what it is not among."""
    shows, rewards = np.array([800] * 6), np.array([0.9, 0.2, 0.1, 0.9, 0.1, 0.2])
    before = lived_through(in_contexts(), shows, rewards, *[None] * 6)
    assert before[-1][0] == 0  # what is the best is known
    paused = np.array([False, True, True])
    after = lived_through(in_contexts(), shows, rewards, *[None] * 6, *[paused] * 3)
    assert after[5] == before[-1]
    assert after[6][0] > 0


def wide(numbers: Any, beside: Ints | int = 0) -> NDArray[Any]:
    """Numbers of arms of three actions, as those of five."""
    of_cells = np.reshape(numbers, (-1, 3))
    others = np.broadcast_to(np.reshape(beside, (-1, 1)), (len(of_cells), 2))
    return np.concatenate([of_cells, others], axis=1).reshape(-1)


@dataclass
class Twin:
    """One key of a learner without room, and one of a learner with room, in the same world."""

    plain: PublicRow
    roomy: PublicRow
    tables: set[int]

    def block(self, seed: int, rewards: Floats, after: Bools | None) -> None:
        """A block that shows what policies show; spare columns have noise alone."""
        chance, now = np.random.default_rng(seed), self.plain.in_force(400)
        shows = np.rint(now / PARTS * 400).astype(np.int64)
        table = int(self.plain.columns["table"][0])
        self.tables.add(table)
        rule, pairs = self.rule(self.plain), self.plain.evidence.pairs  # type: ignore[attr-defined]
        gains = np.rint(shows * (rewards - 0.5) * UNIT).astype(np.int64)
        exact = (NULL * shows + gains, NULL * shows - gains) if pairs else (gains,)
        sums = [
            rule.summed(table, of[None])[0] + chance.integers(-UNIT, UNIT, rule.size(table))
            for of in exact
        ]
        noise = chance.integers(-9 * UNIT, 9 * UNIT, (2, rule.size(table) // 3))
        halves = sums if pairs else [*sums, shows]
        beside = [wide(of, more) for of, more in zip(sums, noise, strict=False)]
        for row, drawn in (
            (self.plain, halves), (self.roomy, beside if pairs else [*beside, wide(shows)])
        ):  # fmt: skip
            numbers = np.zeros((2, len(row.in_force(400))), dtype=np.int64)
            for half, of in zip(numbers, drawn, strict=True):
                half[: len(of)] = of
            published = row.evidence.of_named(numbers.reshape(1, -1))[0]
            row.fold(published, int(shows.sum()), self.of(row, after))

    def rule(self, row: PublicRow) -> ContextModel:
        assert isinstance(row.evidence, ReleasedTables)
        return row.evidence.rule

    def of(self, row: PublicRow, allowed: Bools | None) -> Bools | None:
        """What a list allows of these columns: no list allows spare ones."""
        if allowed is None or row is self.plain:
            return allowed
        return np.concatenate([allowed, [False, False]])

    def agree(self, allowed: Bools | None) -> bool:
        """Whether they know the same, put the same in force, and carry the same over."""
        policies = [row.in_force(400, self.of(row, allowed)) for row in (self.plain, self.roomy)]
        known = [
            np.frombuffer(row.known().history or b"").reshape(-1)
            for row in (self.plain, self.roomy)
        ]
        tables = [int(row.columns["table"][0]) for row in (self.plain, self.roomy)]
        return (
            wide(policies[0]).tolist() == policies[1].tolist()
            and wide(known[0]).tolist() == known[1].tolist()
            and tables[0] == tables[1]
        )


@pytest.mark.parametrize("played", PLAYED)
def test_in_contexts_room_that_is_not_used_changes_no_bit(played: str) -> None:
    """Over several tables, a change of the world, and under a list; carried over, too."""
    plain, roomy = in_contexts(played=played), in_contexts(ROOMY, played, room="2")
    assert plain.schedule == roomy.schedule
    assert roomy.actions == FIELDS.arms(tuple(ROOMY))
    one, other = (PublicRow.opened(of.evidence, NOTHING) for of in (plain, roomy))
    twin = Twin(one, other, set())
    rewards, paused = np.array([0.4, 0.2, 0.1, 0.1, 0.2, 0.4]), np.array([False, True, True])
    for block in range(24):
        after = paused if 8 <= block < 12 else None
        twin.block(block, rewards if block < 16 else rewards[::-1], after)
        assert twin.agree(after), block
    assert len(twin.tables) > 1
    again = [
        PublicRow.resumed(of.evidence, Carried(0, 2, None, row.known().history), 400)  # type: ignore[arg-type]  # nobody asks after what
        for of, row in ((plain, twin.plain), (roomy, twin.roomy))
    ]
    assert Twin(again[0], again[1], set()).agree(None)
    means, deviations = twin.roomy.evidence.posterior(twin.roomy.columns)  # type: ignore[attr-defined]
    alone = twin.plain.evidence.posterior(twin.plain.columns)  # type: ignore[attr-defined]
    assert means[..., :3].tolist() == alone[0].tolist()
    assert deviations[..., :3].tolist() == alone[1].tolist()
    assert not means[..., 3:].any()


def test_in_contexts_the_fewest_columns_stand_for_any_number() -> None:
    """As two actions do in a learner without room."""
    few = FEEDBACK_RECIPES["policy_contexts"](
        actions=["a", "b", SPARE], epsilon="1", context=FIELDS, room="1"
    )
    assert few.actions == FIELDS.arms(("a", "b", SPARE))


def test_in_contexts_an_engine_with_room_is_told_and_asked_by_names() -> None:
    """Of any cell, though spare columns lie between the actions of two cells."""
    learner, names = in_contexts(ROOMY, room="2"), len(ACTIONS)
    one, other = (
        Engine(stream="s", partition=0, learner=learner, budget="1", randomness=SeededRandomness(7))
        for _ in range(2)
    )
    nothing, first = np.zeros(1, dtype=np.int64), b"k"
    for at in range(60):
        cell, action = at % FIELDS.cells, at // FIELDS.cells % names
        told = one.observe(first, action=ACTIONS[action], loss=1, context=FIELDS.levels(cell))
        arm = np.array([cell * len(ROOMY) + action], dtype=np.int32)
        same = feedback_batch([first], nothing, arm, nothing - UNIT // 2, nothing + at)
        assert list(other.apply_batch(same)) == list(told)
    parts = np.reshape(np.array(one.in_force(first)), (FIELDS.cells, len(ROOMY)))
    for cell in range(FIELDS.cells):
        policy = one.policy(first, FIELDS.levels(cell))
        assert policy == dict(zip(ACTIONS, parts[cell] / PARTS, strict=False))


def test_in_contexts_an_action_that_gets_a_spare_column_begins_as_one_without_history() -> None:
    """Equal bits to a learner of four actions of which the last was not shown; and from then on."""
    roomy, four = in_contexts([*ACTIONS, SPARE], room="1"), in_contexts([*ACTIONS, "d"])
    rows = [PublicRow.opened(of.evidence, NOTHING) for of in (roomy, four)]
    chance, named = np.random.default_rng(2), np.ones(4, dtype=np.bool_)
    rule = four.rule
    assert isinstance(rule, ContextModel)
    for block in range(8):
        shows = chance.integers(20, 90, 8)
        shows[3::4] *= block > 3
        table = int(rows[1].columns["table"][0])
        gains = chance.integers(-9 * UNIT, 9 * UNIT, (1, 8))
        sums = rule.summed(table, gains)[0]
        numbers = np.concatenate([sums, np.zeros(8 - len(sums), np.int64), shows])
        for row in rows:
            row.fold(numbers, int(shows.sum()), named)
        one, other = (row.in_force(400, named).tolist() for row in rows)
        assert one == other
        assert min(one) > 0
        for name in ("remembered", "table"):
            assert rows[0].columns[name].tolist() == rows[1].columns[name].tolist()
    left = named & (np.arange(4) < 3)  # removed again: what was shown of it is still known
    assert rows[0].in_force(400, left).tolist() == rows[1].in_force(400, left).tolist()


# -- neighbours ------------------------------------------------------------------------------------


def engine(of: Any) -> Engine:
    return Engine(
        stream="s", partition=0, learner=of, budget=None if of.releases[0].epsilon == 0 else "9",
        randomness=SeededRandomness(1),
    )  # fmt: skip


SLOTS = 14  # of each key; its blocks end after 1, 3, 7 and 11: the last is open
TAKEN = {"first block": 0, "inside": 5, "last record": 6, "next record": 7, "never": SLOTS}


def neighbours(of: PolicyLearner) -> Batch:
    """A stream of one key, and all that have one other content: each as a key of its own."""
    arms, gains = np.arange(SLOTS) % 3, np.arange(SLOTS) * 1000 % NULL
    rows = [(arms, gains)]
    for at in range(SLOTS):
        others = [at % 3] if of.played == "header" else range(NO_ARM, len(of.actions))
        for arm, gain in product(others, (-NULL, 0, NULL)):
            rows.append((arms.copy(), gains.copy()))
            rows[-1][0][at], rows[-1][1][at] = arm, gain
    many = len(rows)
    played, sizes = (np.stack(columns, axis=1).reshape(-1) for columns in zip(*rows, strict=True))
    return feedback_batch(
        [b"%d" % key for key in range(many)], np.tile(np.arange(many), SLOTS),
        played.astype(np.int32), sizes.astype(np.int64), np.arange(SLOTS * many),
    )  # fmt: skip


PAUSED = np.array([True, False, True])


def lists_of(of: PolicyLearner) -> tuple[Bools | None, Bools]:
    """What is allowed before a list and under it: it pauses `b`, or names the spare column."""
    return None, np.ones(3, dtype=np.bool_) if of.actions[2] == SPARE else PAUSED


def lived(of: PolicyLearner, batch: Batch, taken: int) -> Releases:
    """The logs under a list from each one's slot on; what is drawn is the same for all."""
    machine, parts, many = engine(of), list[Releases](), len(batch.keys)
    for (begin, end), allowed in zip(pairwise((0, taken, SLOTS)), lists_of(of), strict=True):
        named = None if allowed is None else len(allowed)
        if begin < end:
            part = batch.part(slice(begin * many, end * many))
            parts.append(machine.apply_batch(replace(part, allowed=allowed, named=named)))
    return machine.no_releases.joined(parts)


def shown(releases: Releases, some: Ints, key: int) -> tuple[bytes, ...]:
    """Everything that the releases of a key say beside their numbers."""
    names = ("kind", "block", "start", "stop", "in_force")
    places = (
        getattr(releases, name)[some] - key for name in ("born", "first_offset", "last_offset")
    )
    return *(getattr(releases, name)[some].tobytes() for name in names), *map(bytes, places)


def faults(of: PolicyLearner, taken: int) -> Iterator[str]:
    """What is wrong with a list that was taken at a slot, over all neighbours."""
    batch = neighbours(of)
    releases, many = lived(of, batch, taken), len(batch.keys)
    some = [np.flatnonzero(releases.born == key) for key in range(many)]
    if len({shown(releases, of_key, key) for key, of_key in enumerate(some)}) > 1:
        yield "depends on content"
    row = PublicRow.opened(of.evidence, NOTHING)
    for at in some[0].tolist():
        policy = releases.in_force[at]  # type: ignore[index]
        allowed = lists_of(of)[bool(releases.last_offset[at] >= taken * many)]
        named = np.arange(3) < 2 + (of.actions[2] != SPARE) if allowed is None else allowed
        drawn = policy.reshape(-1, len(ACTIONS)) > 0
        if (drawn & ~named).any():
            yield "what is not allowed is drawn"
        if (named & ~drawn).any():
            yield "what is allowed is not drawn"
        if of.pairs and allowed is None and releases.numbers[at].reshape(-1, 3)[:, ~named].any():
            yield "noise of a column without a name is published"
        due = 0
        if releases.kind[at] != releases.kinds.index(OPENING):
            row.fold(releases.numbers[at], int(releases.stop[at] - releases.start[at]), allowed)
            due = int(releases.block[at]) + 1
        length = int(of.schedule.lengths(np.array([due]))[0])
        if policy.tolist() != row.in_force(length, allowed).tolist():
            yield "a policy does not follow from releases and list"


NAMED = ["a", "b", SPARE]
OF = {
    **{f"by {of}": learner("policy_blocks", played=of) for of in PLAYED},
    **{f"contexts by {of}": in_contexts(played=of) for of in PLAYED},
}
WITH_ROOM = {
    **{f"room by {of}": learner("policy_blocks", NAMED, room="1", played=of) for of in PLAYED},
    **{f"contexts with room by {of}": in_contexts(NAMED, of, room="1") for of in PLAYED},
}
NOISY = {name: of for name, of in WITH_ROOM.items() if of.pairs}
EVERYONE = OF | WITH_ROOM


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a block releases follows from earlier releases alone: of its table, filled up."""

    def drawn(
        self: PolicyLearner, name: str, private: Columns, public: Columns, bits: object
    ) -> NDArray[np.int64]:
        known = np.count_nonzero(public["remembered"], axis=1)
        numbers = np.stack(
            [released(8, len(self.actions), seed=5)[of % 8] for of in known.tolist()]
        )
        if isinstance(self.rule, ContextModel):
            for row, table in enumerate(public["table"].tolist()):
                numbers[row, self.rule.size(table) : len(self.actions)] = 0
        return numbers

    monkeypatch.setattr(PolicyLearner, "draw", drawn)


@pytest.mark.usefixtures("scripted")
@pytest.mark.parametrize("taken", TAKEN.values(), ids=list(TAKEN))
@pytest.mark.parametrize("of", EVERYONE.values(), ids=list(EVERYONE))
def test_nothing_that_a_list_does_depends_on_content(of: PolicyLearner, taken: int) -> None:
    """Taken in a key's first block, inside one, with its last record, with the next, or never."""
    assert list(faults(of, taken)) == []


Patch = Callable[[pytest.MonkeyPatch], None]


def draws_what_is_paused(patch: pytest.MonkeyPatch) -> None:
    """A floor for everybody."""
    for evidence in (ReleasedSums, ReleasedTables):
        in_force = evidence.in_force

        def generous(
            self: Any,
            public: Columns,
            lengths: Ints,
            allowed: Bools | None = None,
            of: Any = in_force,
        ) -> Policy:
            policy: Policy = of(self, public, lengths, allowed)
            if allowed is not None:
                policy[:, allowed.argmax()] -= np.uint32(16)
                policy[:, allowed.argmin()] += np.uint32(16)
            return policy

        patch.setattr(evidence, "in_force", generous)


def looks_at_open_sums(patch: pytest.MonkeyPatch) -> None:
    """Under a list the best action of the block that just ended has all, in every cell."""
    close = Engine._close

    def peeking(
        self: Engine, ended: Ended, paid: Sequence[Bools], draws: Draws, batch: Batch
    ) -> Iterator[Releases]:
        sums = next(iter(self._bank.private.values()))[ended.rows]
        for releases in close(self, ended, paid, draws, batch):
            if (allowed := batch.allowed) is not None:
                of_cells = sums.reshape(len(sums), -1, len(allowed))
                best = np.where(allowed, of_cells, np.iinfo(np.int64).min).argmax(axis=2)
                chosen = np.eye(len(allowed), dtype=np.uint32)[best] * np.uint32(PARTS)
                releases = replace(releases, in_force=chosen.reshape(len(sums), -1))
            yield releases

    patch.setattr(Engine, "_close", peeking)


def knows_a_list_too_early(patch: pytest.MonkeyPatch) -> None:
    """From the log's first record on."""
    apply_batch = Engine.apply_batch

    def early(self: Engine, batch: Batch) -> Releases:
        known = np.ones(3, dtype=np.bool_) if self.learner.actions[2] == SPARE else PAUSED
        return apply_batch(self, replace(batch, allowed=known))

    patch.setattr(Engine, "apply_batch", early)


def chooses_tables_by_open_sums(patch: pytest.MonkeyPatch) -> None:
    """Under a list the next table follows from what the first action has gained."""
    close, fold, sums = Engine._close, ReleasedTables.fold, list[Ints]()

    def noted(self: Engine, ended: Ended, *of: Any) -> Iterator[Releases]:
        sums.append(next(iter(self._bank.private.values()))[ended.rows])
        return close(self, ended, *of)

    def peeking(self: ReleasedTables, *of: Any) -> Columns:
        folded, private = fold(self, *of), sums.pop() if sums else None
        if private is None or of[-1] is None:
            return folded
        return {**folded, "table": private[:, 0] > 0}

    patch.setattr(Engine, "_close", noted)
    patch.setattr(ReleasedTables, "fold", peeking)


CAUGHT = [
    *((draws_what_is_paused, of, "what is not allowed is drawn") for of in OF),
    *(
        (gives_columns_without_a_name_a_floor, of, "what is not allowed is drawn")
        for of in WITH_ROOM
    ),
    *((looks_at_open_sums, of, "depends on content") for of in EVERYONE),
    *((knows_a_list_too_early, of, "what is allowed is not drawn") for of in OF),
    *((knows_a_list_too_early, of, "what is not allowed is drawn") for of in WITH_ROOM),
]


@pytest.mark.usefixtures("scripted")
@pytest.mark.parametrize(("mutant", "of", "said"), CAUGHT)
def test_a_broken_list_is_caught(
    mutant: Patch, of: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)
    assert said in set(faults(EVERYONE[of], TAKEN["inside"]))


@pytest.mark.usefixtures("scripted")
@pytest.mark.parametrize("played", PLAYED)
def test_a_table_that_follows_from_open_sums_is_caught(
    played: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    chooses_tables_by_open_sums(monkeypatch)
    assert "depends on content" in faults(in_contexts(played=played), TAKEN["inside"])


@pytest.mark.slow
@pytest.mark.parametrize("mutant", [looks_at_open_sums, knows_a_list_too_early])
def test_the_audit_of_kinds_catches_it_too(mutant: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a story of its own, where lists are taken at ends of blocks and inside them."""
    of = learner("policy_blocks", schedule="geometric 2")
    told, system = TELLINGS["lists"], SeededRandomness("audit")
    assert list(told.faults(of, 16, system)) == []
    mutant(monkeypatch)
    assert list(told.faults(of, 16, system))


def test_no_story_of_lists_is_told_where_none_is_followed() -> None:
    of_losses = RECIPES_OF_LOSSES["incumbent_leader"](actions=["a", "b"], epsilon="1")
    assert [*lists(of_losses, longest=8)] == []


# -- noisy counts ----------------------------------------------------------------------------------


def named_by(of: PolicyLearner, arms: Ints, taken: int) -> Releases:
    """What is drawn under one seed, where these arms were shown and a list names all columns from a
    slot on."""
    slots = np.arange(SLOTS)
    batch = feedback_batch(
        [b"k"], 0 * slots, arms.astype(np.int32), slots * 1000 % NULL, slots
    )  # fmt: skip
    return lived(of, batch, taken)


SHOWN = np.arange(SLOTS) % 2 * 2  # the last arm of three has no name before the list


def too_early(taken: int) -> Ints:
    """The same arms without those that had no name."""
    return np.where((SHOWN == 2) & (np.arange(SLOTS) < taken), NO_ARM, SHOWN)


@pytest.mark.parametrize("taken", TAKEN.values(), ids=list(TAKEN))
@pytest.mark.parametrize("of", NOISY.values(), ids=list(NOISY))
def test_an_event_that_names_a_column_without_a_name_is_the_null_observation(
    of: PolicyLearner, taken: int
) -> None:
    """Bit for bit, also in the block in which the column gets its name."""
    assert list(named_by(of, SHOWN, taken)) == list(named_by(of, too_early(taken), taken))


@pytest.mark.parametrize("taken", TAKEN.values(), ids=list(TAKEN))
@pytest.mark.parametrize("of", NOISY.values(), ids=list(NOISY))
def test_a_column_counts_from_the_end_of_the_block_in_which_it_gets_its_name(
    of: PolicyLearner, taken: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the events since it has it: one of each was added, where there is no noise."""
    monkeypatch.setattr(PolicyLearner, "scales", (None, None))
    releases = named_by(of, SHOWN, taken)
    blocks = releases.kind != releases.kinds.index(OPENING)
    for numbers, first, last in zip(
        releases.numbers[blocks], releases.first_offset[blocks], releases.last_offset[blocks],
        strict=True,
    ):  # fmt: skip
        counts = numbers.reshape(2, -1, 3).sum(axis=(0, 1))[2]
        since = np.arange(max(first, taken), last + 1)
        assert counts == UNIT * np.count_nonzero(SHOWN[since] == 2)


def believes_noise_of_columns_without_a_name(patch: pytest.MonkeyPatch) -> None:
    for evidence in (ReleasedSums, ReleasedTables):
        patch.setattr(evidence, "of_named", lambda self, released, named=None: released)


def counts_events_of_columns_without_a_name(patch: pytest.MonkeyPatch) -> None:
    """They are kept until the column has a name."""
    contents = FeedbackAdder.contents

    def all_of_them(self: FeedbackAdder, slots: BatchSlots, bits: BitsOf) -> FeedbackContents:
        batch = replace(slots.batch, named=len(self._kind.actions))
        return contents(self, replace(slots, batch=batch), bits)

    patch.setattr(FeedbackAdder, "contents", all_of_them)


@pytest.mark.usefixtures("scripted")
@pytest.mark.parametrize("of", NOISY.values(), ids=list(NOISY))
def test_noise_that_is_believed_is_caught(
    of: PolicyLearner, monkeypatch: pytest.MonkeyPatch
) -> None:
    believes_noise_of_columns_without_a_name(monkeypatch)
    assert any("noise of a column" in fault for fault in faults(of, TAKEN["inside"]))


@pytest.mark.parametrize("of", NOISY.values(), ids=list(NOISY))
def test_an_event_that_is_counted_too_early_is_caught(
    of: PolicyLearner, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts_events_of_columns_without_a_name(monkeypatch)
    taken = TAKEN["inside"]
    assert list(named_by(of, SHOWN, taken)) != list(named_by(of, too_early(taken), taken))


@pytest.mark.slow
@pytest.mark.parametrize("contexts", [False, True])
def test_the_audit_of_kinds_reads_names_and_catches_what_heeds_none(
    contexts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Draw by draw, where lists name columns at ends of blocks and inside them."""
    make = in_contexts if contexts else partial(learner, "policy_blocks")
    of = make(ROOMY, played="value", room="2", schedule="geometric 2")
    told, system = TELLINGS["new names"], SeededRandomness("audit")
    assert list(told.faults(of, 16, system)) == []
    for mutant, said in (
        (believes_noise_of_columns_without_a_name, "the release is not what was drawn"),
        (counts_events_of_columns_without_a_name, "drawn from other rewards than the log's"),
    ):
        with monkeypatch.context() as patch:
            mutant(patch)
            assert any(said in fault for fault in told.faults(of, 16, system))
