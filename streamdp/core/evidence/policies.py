"""Noisy sums: the evidence of feedback streams. A rule computes the policy in force from them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import prod
from typing import Literal

import numpy as np

from streamdp.core.arrays import Bools, Columns, Field, Floats, Ints
from streamdp.core.errors import StateMismatch
from streamdp.core.events import Carried
from streamdp.core.evidence.evidence import STAYS_AWAY, Known, PublicEvidence
from streamdp.core.evidence.policy import Policy
from streamdp.core.evidence.policy_best import chances_of_best
from streamdp.core.evidence.policy_posterior import NoiseVariance
from streamdp.core.evidence.policy_rule import CARRIED_PER_ARM, Carries, PolicyRule
from streamdp.core.grid import UNIT


def gains_and_counts(released: Ints, *, pairs: bool) -> tuple[Floats, Floats]:
    """What the two numbers of each arm say of it: its sum of centred gains, in loss, and its count.

    The last axis has the first numbers of all arms, then the second ones. They are grid sums of
    gains, and counts; in `pairs` grid sums of rewards R and of losses Q, which say (R − Q)/2 and
    R + Q.

    >>> gains_and_counts(np.array([3 * UNIT, UNIT]), pairs=True)
    (array([1.]), array([4.]))
    """
    first, second = np.split(released, 2, axis=-1)
    if not pairs:
        return first / UNIT, second.astype(np.float64)
    return (first - second) / (2 * UNIT), (first + second) / UNIT


def without_unnamed(released: Ints, *, columns: int, named: int) -> Ints:
    """The numbers of the first so many columns, of each cell; 0 in place of the others.

    >>> without_unnamed(np.array([[1, 2, 3, 4, 5, 6]]), columns=3, named=2)
    array([[1, 2, 0, 4, 5, 0]])
    """
    there = np.arange(released.shape[1]) % columns < named
    return np.asarray(np.where(there, released, 0))


@dataclass(frozen=True, slots=True)
class ReleasedSums:
    """The history of each row: numbers whose shape and meaning the rule gives.

    A history is multiplied by `forgetting` before a block is learned from.
    """

    numbers: int  # of each sort: one for each arm
    rule: PolicyRule
    forgetting: Fraction
    noise: NoiseVariance
    pairs: bool = False  # whether an arm's numbers are its rewards and losses
    room: int = 0  # how many of the arms, the last ones, are spare: no event has named them
    answers: Literal["policy"] = "policy"
    adds_up: bool = True
    says_more: bool = True

    @property
    def listed(self) -> int:
        """All arms."""
        return self.numbers

    @property
    def carries(self) -> Carries:
        """Posteriors of the arms; the numbers of other rules mean nothing under another rule."""
        return self.rule.history.carries

    @property
    def fields(self) -> tuple[Field, ...]:
        """The history."""
        return (Field("remembered", np.float64, (prod(self.rule.history.shape(self.numbers)),)),)

    def of_named(self, released: Ints, named: int | None = None) -> Ints:
        """Noisy counts of named arms alone; exact ones say themselves what was never shown."""
        if not self.room or not self.pairs:
            return released
        named = self.numbers - self.room if named is None else named
        return without_unnamed(released, columns=self.numbers, named=named)

    def opened(self, released: Ints) -> Columns:
        """Nothing is known: histories are 0."""
        return {}

    def resumed(
        self, carried: Sequence[Carried], lengths: Ints, allowed: Bools | None = None
    ) -> Columns:
        """The carried histories."""
        histories = [known.history or b"" for known in carried]
        size = 8 * CARRIED_PER_ARM * self.numbers
        if any(len(history) != size for history in histories):
            got = sorted({len(history) for history in histories})
            raise StateMismatch("carried history", "length", expected=f"{size} bytes", got=got)
        numbers = np.frombuffer(b"".join(histories), "<f8").astype(np.float64)
        begun = self.rule.history.resumed(numbers.reshape(-1, CARRIED_PER_ARM, self.numbers))
        return {"remembered": begun.reshape(len(begun), -1)}

    def fold(
        self, public: Columns, released: Ints, lengths: Ints, allowed: Bools | None = None
    ) -> Columns:
        """Learn from blocks with these releases."""
        now = self.learned(self.histories(public), released)
        return {"remembered": now.reshape(len(now), -1)}

    def learned(self, state: Floats, released: Ints) -> Floats:
        """The histories after a block with this release."""
        gains, shown = gains_and_counts(released, pairs=self.pairs)
        return self.rule.learned(state * float(self.forgetting), gains, shown, self.noise)

    def in_force(self, public: Columns, lengths: Ints, allowed: Bools | None = None) -> Policy:
        """The policies that follow; rows of which nothing is known have the same one.

        They are those of the allowed arms alone, as if a key had no others: an arm that is not
        allowed has no chance and no floor. What is known of it stays in the history. Where nothing
        says what is allowed, these are the arms that are not spare.
        """
        state = self.histories(public)
        allowed = self.named if allowed is None else allowed
        if allowed is None:
            return self._following(state, lengths)
        if len(allowed) != self.numbers:
            raise StateMismatch("list", "actions", expected=self.numbers, got=len(allowed))
        policies = np.zeros((len(state), len(allowed)), dtype=np.uint32)
        policies[:, allowed] = self._following(self.rule.history.of_arms(state, allowed), lengths)
        return policies

    def _following(self, state: Floats, lengths: Ints) -> Policy:
        if len(state) > 1 and not state.any() and (lengths == lengths[0]).all():
            return np.repeat(self.rule.policy(state[:1], lengths[:1]), len(state), axis=0)
        return self.rule.policy(state, lengths)

    @property
    def named(self) -> Bools | None:
        """The arms that are not spare; None: all."""
        return np.arange(self.numbers) < self.numbers - self.room if self.room else None

    def likely_best(self, public: Columns) -> Floats | None:
        """By the posterior of the arms, if the rule keeps one; 0 for spare arms never shown."""
        state, history = self.histories(public), self.rule.history
        laws = history.posterior(state)
        if laws is None or not self.room:
            return None if laws is None else chances_of_best(*laws)
        chances = np.zeros((len(state), self.numbers))
        for row in range(len(state)):
            some = np.any(history.carried(state[row : row + 1])[0] != 0, axis=0)
            some[: self.numbers - self.room] = True
            of_some = history.posterior(history.of_arms(state[row : row + 1], some))
            assert of_some is not None, "as of all arms"
            chances[row, some] = chances_of_best(*of_some)[0]
        return chances

    def wrong(self, public: Columns, released: Ints, length: int) -> str:
        """Two numbers for each arm; exact counts of no more shows than there are slots."""
        if released.shape != (2 * self.numbers,):
            return "sums and counts of another number of actions"
        shown = released[self.numbers :]
        if self.pairs:
            return ""
        if shown.astype(np.float64).sum() > length:
            return "actions were shown more often than it has slots"
        return "an action has a count below 0" if (shown < 0).any() else ""

    def known(self, public: Columns) -> Iterator[Known]:
        """What of the history a key carries over."""
        carried = self.rule.history.carried(self.histories(public)).astype("<f8")
        return (Known(0, history.tobytes()) for history in carried)

    def moved(self, known: Known, moves: Ints, before: PublicEvidence) -> Known | None:
        """An arm that stays keeps its two numbers; a new arm has none: zeros.

        >>> of = ReleasedSums(3, None, Fraction(1), NoiseVariance(0.0, 0.0))
        >>> kept = Known(0, np.array([[1.0, 2.0], [3.0, 4.0]]).tobytes())
        >>> np.frombuffer(of.moved(kept, np.array([1, STAYS_AWAY]), of).history).tolist()
        [0.0, 1.0, 0.0, 0.0, 3.0, 0.0]
        """
        stays = moves != STAYS_AWAY
        if not stays.any():
            return None
        history = np.frombuffer(known.history or b"", "<f8").reshape(CARRIED_PER_ARM, -1)
        renumbered = np.zeros((CARRIED_PER_ARM, self.numbers))
        renumbered[:, moves[stays]] = history[:, stays]
        return Known(0, renumbered.astype("<f8").tobytes())

    def histories(self, public: Columns) -> Floats:
        """The whole histories, R × their rule's shape."""
        kept: Floats = public["remembered"]
        return kept.reshape(len(kept), *self.rule.history.shape(self.numbers))
