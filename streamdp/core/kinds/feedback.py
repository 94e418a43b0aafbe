"""Feedback streams: two noisy numbers of each arm at a block's end, and a policy.

Privacy: ε-DP for replacing one record's content, given earlier releases, with ε = `charge`.
Why: each released number that is not public has discrete Laplace noise of the learner's scale.
Policies follow from released numbers only. Sensitivity, in L1 (`calibration` has the reasons):

- `played = "header"`: 1 for the K centred sums of a block together, because a gain is clipped to
  ±1/2 and enters one arm's sum, in one block; counts are public.
- `played = "value"`: 2 for the K sums of rewards and K sums of losses together, because a record
  writes r and 1 − r into one arm. Their sum is the arm's noisy count, half their difference its
  noisy sum of centred gains (`core.evidence.policies.gains_and_counts`).

A slot that names no known arm is the null observation: it takes its slot and adds to nothing.

*Room.* The last columns of a learner may be spare: an action that comes later gets one of them, and
K stays. A column has no chance and no floor in policies until a list says whose it is
(`Batch.allowed`). With contexts they are the last actions of each cell, and the choice of the next
table heeds none that has no name. No event can name a spare column, so exact counts of it are 0,
and its noisy sum says nothing.

Noisy counts would tell of shows that never were. So with `played = "value"` the numbers of a column
that has no name when its block ends are released as 0 (`PublicEvidence.of_named`), and an event
that names it is the null observation. *Why that is private:* all K pairs are drawn as ever, from
the sums of all events, and then some are replaced by a constant. Which ones follows from the list
under which the block's last record was read (`Batch.named`): it is public, and equal for
neighbours. So what is released is a public function of a release that is ε-DP, whatever the
columns' sums are. It costs nothing and gains nothing: charge and scale are those of K columns
without names, where an event enters one pair as well. A column that gets a name inside a block
counts from that block's end on, with all events since.

*Contexts.* Where an event also falls into a cell of a table (`core.evidence.contexts`), an arm is
an action in a cell, and `actions` has the arms. The argument stays the same, whatever the number of
cells: an event enters one arm, in one block. A block releases *one* table of sums over arms: all
cells together, those of some fields' levels, or the arms themselves. An event enters one number of
it, whichever it is, so sensitivity, scale and charge never change. Which table it is stands in a
public column, which follows from earlier releases and lists, and is fixed before the block begins.
The private columns are always those of all arms; a draw adds them up, adds noise to the sums alone,
and fills them up with zeros: width and size do not depend on the table. Cell and action stand in
the same place. In headers both are public, and so are the counts of all arms; in the content a
replaced record may leave one arm and enter another, and nothing of a context leaves but through the
noise.
**A context may follow from releases or from what is known from elsewhere, never from earlier
contents**: in a header it would publish them, and in a content it would spread one over many later
ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamdp.core import calibration
from streamdp.core.arrays import Columns, Field, Floats, Ints
from streamdp.core.errors import InvalidConfig
from streamdp.core.events import SPARE, SUMS, Batch
from streamdp.core.evidence.context_model import ContextModel
from streamdp.core.evidence.contexts import Contexts
from streamdp.core.evidence.policies import ReleasedSums
from streamdp.core.evidence.policy_posterior import NoiseVariance, noise_of
from streamdp.core.evidence.policy_rule import PolicyRule
from streamdp.core.evidence.released_tables import ReleasedTables
from streamdp.core.grid import NULL, UNIT
from streamdp.core.kinds.estimates import Estimate
from streamdp.core.kinds.kind import (
    BitsOf,
    BlockRelease,
    check_columns,
    check_even,
)
from streamdp.core.kinds.names import read_actions
from streamdp.core.kinds.recipe import Played, Recipe
from streamdp.core.noise import discrete_laplaces, log_probabilities
from streamdp.core.randomness import Bits, Purpose
from streamdp.core.releases import names_of_sums
from streamdp.core.schedule import Schedule
from streamdp.core.segments import BatchSlots

PLAYED: tuple[Played, ...] = ("header", "value")

_COLUMNS = frozenset({"played", "gain"})  # of a batch
_WORDS = 1 << 18  # of random bits at once: 2 MB

_SENSITIVITY: Mapping[str, Fraction] = MappingProxyType(
    {
        "header": calibration.SUMS_SENSITIVITY,
        "value": calibration.PAIRS_SENSITIVITY,
    }
)


@dataclass(frozen=True)
class PolicyLearner:
    """A learner that sees the loss of the played action only: schedule + noise + policy rule.

    `charge` is what the ledger books for each slot of a block; None means that the learner is not
    private and its releases are exact. `played` says where the action stands: in a header, so that
    counts are public and exact, or in the content (`value`), so that rewards and losses are summed
    apart, with noise of scale 2/ε on each. Before a block is learned from, a row's history is
    multiplied by `forgetting`.
    """

    actions: tuple[str, ...]
    schedule: Schedule
    rule: PolicyRule | ContextModel
    charge: Fraction | None
    played: Played = "header"
    forgetting: Fraction = Fraction(1)
    name: str = "policy"
    options: tuple[tuple[str, str], ...] = field(default=(), compare=False)
    room: int = 0  # how many of the columns, the last ones, began as spare ones

    def __post_init__(self) -> None:
        """Refuse a learner that no engine could run."""
        self._check_names()
        if self.charge is not None and self.charge <= 0:
            raise InvalidConfig(self.name, "no charge", expected="> 0", got=self.charge)
        if self.played not in PLAYED:
            raise InvalidConfig(
                "learner.played", "unknown", expected=" | ".join(PLAYED), got=self.played
            )
        if not 0 < self.forgetting <= 1:
            raise InvalidConfig(
                "learner.forgetting", "out of range", expected="0 < … ≤ 1", got=self.forgetting
            )

    def _check_names(self) -> None:
        """Refuse names that are none; only the last columns, of each cell, may be without."""
        columns = self.rule.actions if isinstance(self.rule, ContextModel) else len(self.actions)
        cells = [self.actions[at : at + columns] for at in range(0, len(self.actions), columns)]
        unnamed = 0
        while unnamed < self.room and all(cell[-1 - unnamed] == SPARE for cell in cells):
            unnamed += 1
        named = read_actions([name for cell in cells for name in cell[: columns - unnamed]])
        object.__setattr__(self, "actions", tuple(self.actions) if unnamed else named)

    # -- as a value ------------------------------------------------------------------------------

    def with_estimates(self, estimates: Sequence[Estimate]) -> PolicyLearner:
        """The learner itself; refuse estimates."""
        if estimates:
            raise InvalidConfig(
                "estimates",
                "not on a feedback stream: its sums are released as they are",
                expected="none",
                got=[estimate.name for estimate in estimates],
            )
        return self

    @property
    def sums_scale(self) -> Fraction | None:
        """The scale of the noise on every sum, in grid units; None: no noise."""
        if self.charge is None:
            return None
        return calibration.laplace_scale(_SENSITIVITY[self.played], self.charge) * UNIT

    @property
    def scales(self) -> tuple[Fraction | None, Fraction | None]:
        """The scales of the noise on each arm's two numbers, in their units; None: no noise."""
        return self.sums_scale, self.sums_scale if self.pairs else None

    @property
    def pairs(self) -> bool:
        """Whether an arm's two numbers are its rewards and losses, not its gains and shows."""
        return self.played == "value"

    @property
    def noise(self) -> NoiseVariance:
        """The variance of the noise in an arm's sum of gains (in loss²) and in its count."""
        return noise_of((self.sums_scale or Fraction(0)) / UNIT, pairs=self.pairs)

    def __str__(self) -> str:
        """One line for tables and logs."""
        options = ", ".join(f"{name}={value}" for name, value in self.options)
        rule, many = self.rule, len(self.actions)
        cells = many // rule.actions if isinstance(rule, ContextModel) else 1
        of = f"{many // cells - self.room} actions"
        of += f" and room for {self.room}" if self.room else ""
        of += f" in {cells} contexts" if cells > 1 else ""
        return f"{self.name}({options}) of {of}"

    @cached_property
    def recipe(self) -> Recipe:
        """How it was made; sums have noise of its scale."""
        table = isinstance(self.rule, ContextModel)
        return Recipe(
            name=self.name,
            options=self.options,
            mechanism="discrete_laplace",
            state={
                "observes": "feedback",
                "recipe": self.name,
                "actions": self.actions,
                "schedule": [self.schedule.name, self.schedule.prefix, self.schedule.tail],
                "rule": [self.rule.name, dict(self.rule.parameters())],
                "charge": str(self.charge),
                "played": self.played,
                "forgetting": str(self.forgetting),
                **({"room": self.room} if self.room else {}),
            },
            scale=self.sums_scale,
            played=self.played,
            contexts=Contexts.read(dict(self.options)["context"]) if table else None,
        )

    # -- as a kind -------------------------------------------------------------------------------

    @property
    def fields(self) -> tuple[Field, ...]:
        """The block's sums of centred gains, and how often it showed each arm; or the pair's."""
        shape, (first, second) = (len(self.actions),), names_of_sums(pairs=self.pairs)
        return Field(first, np.int64, shape), Field(second, np.int64, shape)

    def added(self, gains: Ints, shown: Ints) -> Columns:
        """What centred gains, and counts, add to the two columns."""
        if self.pairs:
            gains, shown = NULL * shown + gains, NULL * shown - gains
        return dict(zip(names_of_sums(pairs=self.pairs), (gains, shown), strict=True))

    @property
    def releases(self) -> tuple[BlockRelease, ...]:
        """All arms' first numbers, then all arms' second ones, as one release."""
        return (BlockRelease(SUMS, self.charge or Fraction(0), 2 * len(self.actions)),)

    @property
    def evidence(self) -> ReleasedSums | ReleasedTables:
        """Noisy sums, with the learner's rule."""
        rule, noise, pairs = self.rule, self.noise, self.pairs
        if isinstance(rule, ContextModel):
            return ReleasedTables(rule, noise, pairs)
        return ReleasedSums(len(self.actions), rule, self.forgetting, noise, pairs, self.room)

    def checked(self, batch: Batch) -> Batch:
        """The batch. Values of `played` and `gain` may be content: they are never refused."""
        check_columns(batch, _COLUMNS)
        for name, kind in (("played", "int32"), ("gain", "int64")):
            column = batch.content[name]
            if column.dtype != np.dtype(kind) or column.ndim != 1:
                got = f"{column.shape} {column.dtype}"
                raise InvalidConfig(f"batch.{name}", "shape", expected=f"n {kind}", got=got)
        check_even(batch)
        return batch

    def adder(self, private: Columns) -> FeedbackAdder:
        """Adds gains and shows to their arms."""
        return FeedbackAdder(self, private)

    def opening(self, rows: int, bits: Callable[[int], Bits]) -> Ints:
        """Nothing: a policy needs no draw."""
        return np.zeros((rows, 2 * len(self.actions)), dtype=np.int64)

    def draw(
        self, name: str, private: Columns, public: Columns, bits: Callable[[int], Bits]
    ) -> Ints:
        """Each number of the row's table plus discrete Laplace noise of the learner's scales."""
        many = len(self.actions)
        released, noisy = self.exact(private, public)
        of_rows, at_once = bits(Purpose.NOISE), max(1, _WORDS // (2 * many))
        for first in range(0, len(released), at_once):
            part, some = of_rows.part(first, first + at_once), released[first : first + at_once]
            most = int(noisy[first : first + at_once].max(initial=0))
            beyond = np.arange(most) >= noisy[first : first + at_once, None]
            for at, scale in enumerate(self.scales):
                if scale is not None:
                    noise = discrete_laplaces(scale, part, most, position=2 * at * many)
                    noise[beyond] = 0
                    some[:, at * many : at * many + most] += noise
        return released

    def exact(self, private: Columns, public: Columns) -> tuple[Ints, Ints]:
        """What is released but for noise, R × width; how many numbers of a sort have noise, R.

        Of contexts these are the sums of each row's table, filled up with zeros. Exact counts are
        those of all arms.
        """
        whole: Ints = np.concatenate([private[of.name] for of in self.fields], axis=1)
        many, rule = len(self.actions), self.rule
        noisy = np.full(len(whole), many)
        if isinstance(rule, ContextModel):
            for table in np.unique(public["table"]).tolist():
                rows, size = np.flatnonzero(public["table"] == table), rule.size(table)
                noisy[rows] = size
                for at in range(2 if self.pairs else 1):
                    sums = np.zeros((len(rows), many), dtype=np.int64)
                    of_arms = whole[rows, at * many : (at + 1) * many]
                    sums[:, :size] = rule.summed(table, of_arms)
                    whole[rows, at * many : (at + 1) * many] = sums
        return whole, noisy

    def law(self, name: str, private: Columns, public: Columns, released: Ints) -> Floats:
        """The noise's law around each number; what has no noise is as it is."""
        many, law = len(self.actions), np.zeros(len(released))
        exact, noisy = self.exact(private, public)
        beyond = np.arange(many) >= noisy[:, None]
        for at, scale in enumerate(self.scales):
            part = slice(at * many, (at + 1) * many)
            noise = released[:, part] - exact[:, part]
            if scale is None:
                law[noise.any(axis=1)] = -np.inf
            else:
                law[(noise.astype(bool) & beyond).any(axis=1)] = -np.inf
                law += np.where(beyond, 0.0, log_probabilities(scale, noise)).sum(axis=1)
        return law


class FeedbackAdder:
    """Adds what the slots of batches observed to the numbers of rows."""

    __slots__ = ("_kind", "_private")

    def __init__(self, kind: PolicyLearner, private: Columns) -> None:
        self._kind, self._private = kind, private

    def contents(self, slots: BatchSlots, bits: BitsOf) -> FeedbackContents:
        """Each slot's arm and gain, ordered by wave.

        A null observation adds 0 to the first arm's numbers: it takes the same steps.
        """
        batch, segments, arms = slots.batch, slots.segments, len(self._kind.actions)
        rows, places, ends = slots.segment_rows, segments.begin, None
        if len(batch.index) > 1:
            rows = np.repeat(rows, segments.length)
            places = slots.grouped.places(np.arange(len(rows)))
        if len(segments.of) > len(slots.rows):
            wave = np.repeat(segments.wave, segments.length)
            order = np.argsort(wave, kind="stable")
            rows, places = rows[order], places[order]
            ends = np.searchsorted(wave[order], np.arange(int(wave.max()) + 2))
        played, gains = batch.content["played"][places], batch.content["gain"][places]
        known = (played >= 0) & (played < arms)
        if self._kind.room:  # an arm whose numbers would not be published takes none
            of_all = np.ones((1, 2 * arms), dtype=np.int64)
            known &= self._kind.evidence.of_named(of_all, batch.named)[0, played * known] != 0
        places = rows * arms + played * known
        gains = np.minimum(np.maximum(gains, -NULL), NULL) * known
        shows = known.astype(np.int64)
        return FeedbackContents(
            self._kind, self._private, segments.wave, ends, places, gains, shows
        )


@dataclass(slots=True, repr=False)
class FeedbackContents:
    """The gains and shows that the slots of a batch add, ordered by wave."""

    kind: PolicyLearner
    private: Columns
    wave: Ints  # S: of each segment
    ends: NDArray[np.intp] | None  # where each wave begins, and where the last ends; None: one wave
    places: Ints  # row · K + arm
    gains: Ints
    shows: Ints  # 1, or 0 for a null observation

    def add(self, which: Any, rows: Ints) -> None:
        """Add the slots of one wave."""
        some = slice(None)
        if self.ends is not None:
            wave = int(self.wave[which[0]])
            some = slice(int(self.ends[wave]), int(self.ends[wave + 1]))
        added = self.kind.added(self.gains[some], self.shows[some])
        for name, numbers in added.items():
            np.add.at(self.private[name].reshape(-1), self.places[some], numbers)
