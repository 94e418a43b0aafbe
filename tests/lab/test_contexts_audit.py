"""Does one replaced event cost at most ε, with public and with private contexts; and what if not?

Exact: all replacements of one event's content in a short stream, through the shipped engine. Noise
of scale s makes a number that moves by d cost |d|/s, so the price of a pair of streams is known
without sampling. Each mutant is a learner, or a reader, that breaks one rule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest

from streamdp.core.arrays import Columns, Ints
from streamdp.core.engine import Engine
from streamdp.core.engine.releasing import Fresh
from streamdp.core.events import NO_ARM, Batch
from streamdp.core.evidence.contexts import Contexts
from streamdp.core.grid import NULL
from streamdp.core.kinds.feedback import FeedbackAdder, PolicyLearner
from streamdp.core.learners.feedback import FEEDBACK_RECIPES
from streamdp.core.randomness import SeededRandomness
from streamdp.lab.audit import Memo, audit_kind
from streamdp.lab.kits.kinds import check_kind
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


def exact_sums(of: PolicyLearner, batch: Batch) -> list[Ints]:
    """The sums and counts behind each release: from the shipped engine, without noise."""
    machine = Engine(
        stream="s", partition=0, learner=replace(of, charge=None), budget=None,
        randomness=SeededRandomness(1),
    )  # fmt: skip
    releases = machine.apply_batch(batch)
    return [np.stack(release.sums) for release in releases if release.sums is not None]


def price(of: PolicyLearner, one: list[Ints], other: list[Ints]) -> float:
    """The largest log-ratio of two streams' transcripts; infinite if they can be told apart."""
    total = 0.0
    moved = sum(np.abs(a - b).sum(axis=1) for a, b in zip(one, other, strict=True))
    for distance, scale in zip(moved, of.scales, strict=True):
        if distance:
            total += float("inf") if scale is None else float(int(distance) / scale)
    return total


def most(of: PolicyLearner, streams: Iterator[Batch]) -> float:
    """The highest price of any two of these streams."""
    sums = [exact_sums(of, batch) for batch in streams]
    return max(price(of, one, other) for one, other in combinations(sums, 2))


def neighbours(played: str) -> Iterator[Batch]:
    return (stream([*BESIDE[:2], content, *BESIDE[2:]]) for content in contents(played))


@pytest.mark.parametrize("interactions", ["all", "none"])
@pytest.mark.parametrize("played", ["header", "value"])
def test_a_replaced_event_costs_exactly_what_is_charged(played: str, interactions: str) -> None:
    """Nothing above ε, and ε itself is reached: less noise would be too little."""
    of = learner(played, interactions)
    assert most(of, neighbours(played)) == pytest.approx(float(EPSILON), abs=1e-9)


# -- mutants -------------------------------------------------------------------------------------


class TooLittleNoise(PolicyLearner):
    """Adds the noise of public contexts where contexts are content."""

    @property
    def sums_scale(self) -> Fraction | None:
        """1/ε."""
        return replace(learner("header"), charge=self.charge).sums_scale


class ScaleOfOnePart(PolicyLearner):
    """Adds the noise of a table to each of its parts, though an event enters all of them."""

    @property
    def sums_scale(self) -> Fraction | None:
        """1/ε, or 2/ε."""
        return replace(learner(self.played), charge=self.charge).sums_scale


class ScaleOfParts(PolicyLearner):
    """Adds parts/ε where contexts are content: a replaced event leaves cells and enters others."""

    @property
    def sums_scale(self) -> Fraction | None:
        """Parts/ε."""
        return replace(learner("header", "none"), charge=self.charge).sums_scale


class HalfOnLosses(PolicyLearner):
    """Adds half the noise to losses."""

    @property
    def scales(self) -> tuple[Fraction | None, Fraction | None]:
        """2/ε and 1/ε."""
        whole = self.sums_scale
        return whole, None if whole is None else whole / 2


class ExactCounts(PolicyLearner):
    """Publishes how often each cell showed each action, though both are content."""

    @property
    def pairs(self) -> bool:
        """As if cells and actions stood in headers."""
        return False


class Weighted(PolicyLearner):
    """Weights a cell's entries before the noise, as if by one over its propensity."""

    def adder(self, private: Columns) -> FeedbackAdder:
        """Gains of cells 2 and 3 count four times."""

        class Adder(FeedbackAdder):
            """With weights."""

            def contents(self, slots, bits):  # type: ignore[no-untyped-def]
                added = super().contents(slots, bits)
                added.gains = added.gains * np.where(added.flat[0] % len(ARMS) >= 4, 4, 1)
                return added

        return Adder(self, private)


def as_mutant(kind: type[PolicyLearner], played: str) -> PolicyLearner:
    sound = learner(played, "none" if kind in (ScaleOfOnePart, ScaleOfParts) else "all")
    return kind(**{of.name: getattr(sound, of.name) for of in fields(sound)})


@pytest.mark.parametrize(
    ("kind", "played", "at_least"),
    [
        (TooLittleNoise, "value", 2 * float(EPSILON)),
        (HalfOnLosses, "value", 1.5 * float(EPSILON)),
        (ExactCounts, "value", float("inf")),
        (ScaleOfOnePart, "header", 2 * float(EPSILON)),
        (ScaleOfOnePart, "value", 2 * float(EPSILON)),
        (ScaleOfParts, "value", 2 * float(EPSILON)),
        (Weighted, "header", 4 * float(EPSILON)),
        (Weighted, "value", 1.5 * float(EPSILON)),
    ],
)
def test_a_learner_that_breaks_a_rule_costs_more(
    kind: type[PolicyLearner], played: str, at_least: float
) -> None:
    assert most(as_mutant(kind, played), neighbours(played)) >= at_least - 1e-9


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


def test_the_default_s_long_blocks_are_no_way_around_kit_and_audit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both try short streams, in which no shipped block ends; a first block of one slot is none.

    The mutant leaves out the noise in each key's first block, unless that has one slot.
    """
    shipped = FEEDBACK_RECIPES["policy_contexts"](actions=ARMS, epsilon=EPSILON, context=FIELDS)
    assert shipped.schedule.stop(0) > 100
    check_kind(shipped, memo=(memo := Memo()))
    released = Fresh.released

    def exact_at_first(self: Fresh, name: str, rows: Ints) -> Ints:
        bank = self.bank
        exact = np.concatenate([bank.private["sums"][rows], bank.private["shown"][rows]], axis=1)
        at_first = (bank.block[rows] == 0) & (bank.slots[rows] > 1)
        return np.where(at_first[:, None], exact, released(self, name, rows))

    monkeypatch.setattr(Fresh, "released", exact_at_first)
    audit = audit_kind(shipped, samples=1000, longest=8, memo=memo)
    assert "noise does not follow the law of its scale" in str(audit.failures)
