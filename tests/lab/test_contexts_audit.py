"""Does one replaced event cost at most ε, with public and with private contexts; and what if not?

Exact: all replacements of one event's content in a short stream, through the shipped engine. Noise
of scale s makes a number that moves by d cost |d|/s, so the price of a pair of streams is known
without sampling. Readers that break a rule stand here; learners and engines in `test_mutants`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields
from fractions import Fraction

import numpy as np
import pytest

from streamdp.core.arrays import Columns, Floats, Ints
from streamdp.core.engine import Engine
from streamdp.core.events import NO_ARM, Batch
from streamdp.core.evidence.context_model import ContextModel
from streamdp.core.evidence.contexts import Contexts
from streamdp.core.grid import NULL
from streamdp.core.kinds.feedback import PolicyLearner
from streamdp.core.learners.feedback import FEEDBACK_RECIPES
from streamdp.core.noise import log_probabilities
from streamdp.core.randomness import Bits, SeededRandomness
from streamdp.wire.feedback import Feedback
from streamdp.wire.formats import Format, configure
from tests.support.batches import feedback_batch, observe

FIELDS = Contexts.read('{"device":["phone"],"country":["fr"]}')
ACTIONS = ("a", "b")
ARMS = FIELDS.arms(ACTIONS)
EPSILON = Fraction(1, 2)
Content = tuple[int, int]  # an arm, which is content in value mode only, and a gain


def learner(played: str, interactions: str = "all") -> PolicyLearner:
    return FEEDBACK_RECIPES["policy_contexts"](
        actions=ARMS, epsilon=EPSILON, context=FIELDS, played=played, schedule="capped 4",
        interactions=interactions,
    )  # fmt: skip


def stream(contents: list[Content]) -> Batch:
    arms, gains = zip(*contents, strict=True)
    slots = np.arange(len(contents))
    return feedback_batch(
        [b"k"], slots * 0, np.array(arms, np.int32), np.array(gains, np.int64), slots
    )


BESIDE: list[Content] = [(0, NULL), (3, -NULL), (6, 1000), (NO_ARM, 0), (1, 0), (7, -NULL), (2, 7)]


def contents(played: str) -> list[Content]:
    """All that one event may say: every arm of every cell, or none; all sizes; unusable."""
    arms = range(-1, len(ARMS)) if played == "value" else [5]
    return [(arm, gain) for arm in arms for gain in (-NULL, 0, NULL)] + [(NO_ARM, 0)] * (
        played == "value"
    )


def private_sums(of: PolicyLearner, batch: Batch) -> list[Columns]:
    """The private columns at the end of each block: from the shipped engine."""
    seen: list[Columns] = []

    class Recorded(type(of)):  # type: ignore[misc]
        """Notes what it would draw from."""

        def draw(
            self, name: str, private: Columns, public: Columns, bits: Callable[[int], Bits]
        ) -> Ints:
            seen.append({column.name: private[column.name].copy() for column in of.fields})
            return np.zeros((len(private[of.fields[0].name]), 2 * len(of.actions)), np.int64)

    machine = Engine(
        stream="s", partition=0, learner=as_kind(Recorded, of), budget=of.charge,
        randomness=SeededRandomness(1),
    )  # fmt: skip
    machine.apply_batch(batch)
    return seen


def as_kind(kind: type[PolicyLearner], of: PolicyLearner) -> PolicyLearner:
    return kind(**{field.name: getattr(of, field.name) for field in fields(of)})


def prices(of: PolicyLearner, privates: list[Columns], table: int) -> Floats:
    """The largest log-ratio of any two streams' releases of one table, from their sums.

    A number that has no noise tells them apart for certain if it moves.
    """
    told = [of.exact(private, {"table": np.array([table])}) for private in privates]
    exact = np.concatenate([numbers for numbers, _ in told])
    noisy = np.concatenate([many for _, many in told])
    moved, many = np.abs(exact[:, None] - exact), len(of.actions)
    hidden = np.arange(many) < np.minimum.outer(noisy, noisy)[..., None]
    total = np.zeros((len(told), len(told)))
    for at, scale in enumerate(of.scales):
        part = moved[..., at * many : (at + 1) * many]
        known = part * hidden if scale else part * 0
        total += np.where(
            (part > known).any(axis=-1), np.inf, known.sum(axis=-1) / float(scale or 1)
        )
    return total


def most(of: PolicyLearner, streams: Iterator[Batch]) -> float:
    """The highest price of any two of these streams, over every way from table to table.

    A block's price does not depend on the tables of others, so the dearest way has each block's
    dearest table.
    """
    sums = [private_sums(of, batch) for batch in streams]
    assert isinstance(of.rule, ContextModel)
    tables = range(len(of.rule.tables))
    blocks = zip(*sums, strict=True)
    dearest = [np.max([prices(of, [*ended], table) for table in tables], 0) for ended in blocks]
    return float(np.sum(dearest, axis=0).max())


def neighbours(played: str) -> Iterator[Batch]:
    return (stream([*BESIDE[:2], content, *BESIDE[2:]]) for content in contents(played))


@pytest.mark.parametrize("interactions", ["all", "none"])
@pytest.mark.parametrize("played", ["header", "value"])
def test_a_replaced_event_costs_exactly_what_is_charged(played: str, interactions: str) -> None:
    """Nothing above ε, whichever tables blocks release, one after the other; and ε itself is
    reached: less noise would be too little.
    """
    of = learner(played, interactions)
    assert most(of, neighbours(played)) == pytest.approx(float(EPSILON), abs=1e-9)


@pytest.mark.parametrize("played", ["header", "value"])
def test_the_next_table_follows_from_what_was_released(played: str) -> None:
    """Two engines that release the same choose the same, whatever they keep private."""
    of, random = learner(played), np.random.default_rng(3)
    noise = random.integers(-(10**7), 10**7, (7, 2 * len(ARMS)))

    class Same(PolicyLearner):
        """Releases the same numbers, filled up as the table says, whatever it has."""

        def draw(
            self, name: str, private: Columns, public: Columns, bits: Callable[[int], Bits]
        ) -> Ints:
            tables.append(public["table"].tolist())
            return noise[len(tables) - 1 : len(tables)]

    ways = []
    for batch in neighbours(played):
        tables: list[list[int]] = []
        machine = Engine(
            stream="s", partition=0, learner=as_kind(Same, of), budget=of.charge,
            randomness=SeededRandomness(1),
        )  # fmt: skip
        machine.apply_batch(batch)
        ways.append(tables)
    assert ways == [ways[0]] * len(ways)


def test_an_end_that_follows_from_a_draw_costs_more() -> None:
    """A block of one event that ends if its noisy sum is positive, and else is drawn again after a
    second event, has read the first one twice. Ends follow from slot numbers.
    """
    scale = Fraction(1) / EPSILON  # of sums in whole gains, which move by 1
    ends = np.arange(1, 200)
    logs = []
    for gain in (0, 1):
        goes_on = 1 - np.exp(log_probabilities(scale, (ends - gain)[:, None])).sum()
        logs.append(np.log(goes_on) + log_probabilities(scale, np.array([[-50 - gain]]))[0, 0])
    assert abs(logs[0] - logs[1]) > 1.2 * float(EPSILON)
    schedules = {learner(played).schedule for played in ("header", "value")}
    assert [of.start(block) for of in schedules for block in range(4)] == [1, 2, 4, 8]


def as_shipped(format_: Format, values: list[bytes]) -> np.ndarray:
    headers = [[("streamdp-action", b"a"), ("streamdp-context", b"device=phone")]] * len(values)
    return observe(format_, values, headers).played


def from_content(format_: Format, values: list[bytes]) -> np.ndarray:
    """The cell follows from the number in the content."""
    return np.array([0 if b"1" in value else 6 for value in values], np.int32)


def by_earlier_contents(format_: Format, values: list[bytes]) -> np.ndarray:
    """The cell says whether the event before was a click: a level learned from content."""
    before = [b"0", *values[:-1]]
    return np.array([0 if b"1" in value else 6 for value in before], np.int32)


@pytest.mark.parametrize(
    ("read", "sound"),
    [(as_shipped, True), (from_content, False), (by_earlier_contents, False)],
)
def test_public_cells_do_not_follow_from_contents(
    read: Callable[[Format, list[bytes]], np.ndarray], sound: bool
) -> None:
    """A count that a content decides is published without noise: ε = ∞."""
    format_ = configure("json", feedback=Feedback(ACTIONS, "reward", contexts=FIELDS))
    streams = []
    for reward in (b"0", b"1"):
        values = [b'{"reward":%s}' % number for number in (b"1", reward, b"0", b"0")]
        arms = read(format_, values).tolist()
        gains = observe(format_, values, [[]] * 4).gain.tolist()
        streams.append(stream([*zip(arms, gains, strict=True), *BESIDE]))
    highest = most(learner("header"), iter(streams))
    assert highest == (pytest.approx(float(EPSILON)) if sound else float("inf"))


def test_a_level_that_earlier_contents_decide_spends_private_epsilon_twice() -> None:
    """In value mode: the replaced event, and the one after it, whose cell says what it was."""
    streams = []
    for arm, gain, after in ((0, NULL, 1), (7, -NULL, 6)):
        streams.append(stream([*BESIDE[:2], (arm, gain), (after, 0), *BESIDE[2:]]))
    assert most(learner("value"), iter(streams)) > 1.3 * float(EPSILON)


def test_lengths_name_no_level() -> None:
    """Private events have one width, whatever the cell, the action and the number."""
    contexts = Contexts.read('{"device":["phone","a very long name"],"age":{"cuts":[1.5,30]}}')
    format_ = configure(
        "json",
        feedback=Feedback(("a", "another one"), "reward", "value", contexts=contexts),
        options={"padding": "fixed"},
    )
    lengths = {
        len(format_.encode(np.array([number], np.float32), played=[arm]))
        for arm in range(2 * contexts.cells)
        for number in (0, 1, 0.1, 1 / 3, 1e-30)
    }
    assert len(lengths) == 1
