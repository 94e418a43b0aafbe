"""Feedback streams: noisy sums and counts of each arm at a block's end, and a policy.

Privacy: ε-DP for replacing one record's content, given earlier releases, with ε = `charge`.
Sensitivity: 1 in L1 for the K centred sums of a block together, because a gain is clipped to ±1/2
and enters one arm's sum, in one block; counts are public, or released with noise of their own
(`played = "value"`, 3 in L1; see `calibration`). Why: each released number has discrete Laplace
noise of the learner's scale. Policies follow from released numbers only.

A slot that names no known arm is the null observation: it takes its slot and adds to nothing.

*Contexts.* Where an event also falls into a cell of a table (`core.evidence.contexts`), an arm is
an action in a cell, and `actions` has the arms. The argument stays the same, whatever the number of
cells: an event enters one arm, in one block. Cell and action stand in the same place. In headers
both are public, and so are the counts of all arms; in the content a replaced record may leave one
arm and enter another, and nothing of a context leaves but through the noise. **A context may follow
from releases or from what is known from elsewhere, never from earlier contents**: in a header it
would publish them, and in a content it would spread one over many later ones.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from hashlib import sha256
from itertools import chain
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from streamdp.core import calibration
from streamdp.core.arrays import Columns, Field, Floats, Ints
from streamdp.core.errors import InvalidConfig, StateMismatch, complaint
from streamdp.core.events import OPENING, SUMS, Batch, BlockSums, FeedbackBatch, FeedbackColumns
from streamdp.core.evidence.context_model import ContextModel
from streamdp.core.evidence.evidence import InForce
from streamdp.core.evidence.experiment import Experiment, Scales
from streamdp.core.evidence.policies import ReleasedSums
from streamdp.core.evidence.policy import Policy
from streamdp.core.evidence.policy_posterior import NoiseVariance
from streamdp.core.evidence.policy_rule import CARRIED_PER_ARM, PolicyRule
from streamdp.core.grid import NULL, UNIT
from streamdp.core.kinds.estimates import Estimate
from streamdp.core.kinds.kind import BitsOf, BlockRelease, Sizes, Watching, check_even
from streamdp.core.kinds.names import read_actions
from streamdp.core.kinds.slots import BatchSlots
from streamdp.core.noise import discrete_laplaces, log_probabilities
from streamdp.core.randomness import Bits, Purpose
from streamdp.core.schedule import Schedule

Played = Literal["header", "value"]
PLAYED: tuple[Played, ...] = ("header", "value")

_WORDS = 1 << 18  # of random bits at once: 2 MB

_SENSITIVITY: Mapping[str, Fraction] = MappingProxyType(
    {
        "header": calibration.SUMS_SENSITIVITY,
        "value": calibration.COUNTS_AND_SUMS_SENSITIVITY,
    }
)


@dataclass(frozen=True)
class PolicyLearner:
    """A learner that sees the loss of the played action only: schedule + noise + policy rule.

    `charge` is what the ledger books for each slot of a block; None means that the learner is not
    private and its releases are exact. `played` says where the action stands: in a header, so that
    counts are public and exact, or in the content (`value`), so that both counts and sums get noise
    of scale 3/ε. Before a block is learned from, a row's history is multiplied by `forgetting`.
    """

    actions: tuple[str, ...]
    schedule: Schedule
    rule: PolicyRule
    charge: Fraction | None
    played: Played = "header"
    forgetting: Fraction = Fraction(1)
    recipe: str = "policy"
    options: tuple[tuple[str, str], ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        """Refuse a learner that no engine could run."""
        object.__setattr__(self, "actions", read_actions(self.actions))
        if self.charge is not None and self.charge <= 0:
            raise InvalidConfig(
                complaint(self.recipe, "no charge", expected="> 0", got=self.charge)
            )
        if self.played not in PLAYED:
            raise InvalidConfig(
                complaint("learner.played", "unknown", expected=" | ".join(PLAYED), got=self.played)
            )
        if not 0 < self.forgetting <= 1:
            raise InvalidConfig(
                complaint(
                    "learner.forgetting", "out of range", expected="0 < … ≤ 1", got=self.forgetting
                )
            )

    # -- as a value ------------------------------------------------------------------------------

    @property
    def private(self) -> bool:
        """Whether the learner is private."""
        return self.charge is not None

    def with_estimates(self, estimates: Sequence[Estimate]) -> PolicyLearner:
        """The learner itself; refuse estimates."""
        if estimates:
            raise InvalidConfig(
                complaint(
                    "estimates",
                    "not on a feedback stream: its sums are released as they are",
                    expected="none",
                    got=[estimate.name for estimate in estimates],
                )
            )
        return self

    @property
    def sums_scale(self) -> Fraction | None:
        """The scale of the noise on every sum, in grid units; None: no noise."""
        if self.charge is None:
            return None
        return calibration.laplace_scale(_SENSITIVITY[self.played], self.charge) * UNIT

    @property
    def counts_scale(self) -> Fraction | None:
        """The scale of the noise on every count; None: counts are exact."""
        if self.charge is None or self.played == "header":
            return None
        return calibration.laplace_scale(_SENSITIVITY[self.played], self.charge)

    @property
    def noise(self) -> NoiseVariance:
        """The variance of the noise on sums (in loss²) and on counts."""
        return NoiseVariance(
            on_sums=_variance(None if self.sums_scale is None else self.sums_scale / UNIT),
            on_counts=_variance(self.counts_scale),
        )

    def nothing_known(self, rows: int) -> Floats:
        """The histories of new rows."""
        return np.zeros((rows, *self.rule.history.shape(len(self.actions))))

    def learned(self, state: Floats, gains: Ints, shown: Ints) -> Floats:
        """The histories after a block with these released sums (grid units) and counts."""
        return self.evidence.learned(state, gains, shown)

    def policy(self, state: Floats, blocks: Ints) -> Policy:
        """The policies in force during these blocks, for rows with these histories."""
        return self.rule.policy(state, self.schedule.lengths(blocks))

    def to_config(self) -> dict[str, str]:
        """The learner's table in a configuration file; `feedback_learner_of` reads it back."""
        return {"recipe": self.recipe, **dict(self.options)}

    def digest(self) -> str:
        """A fingerprint of everything that the learner's state and privacy depend on."""
        parts: dict[str, object] = {
            "observes": "feedback",
            "recipe": self.recipe,
            "actions": self.actions,
            "schedule": [self.schedule.name, self.schedule.prefix, self.schedule.tail],
            "rule": [self.rule.name, dict(self.rule.parameters())],
            "charge": str(self.charge),
            "played": self.played,
            "forgetting": str(self.forgetting),
        }
        return sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    def __str__(self) -> str:
        """One line for tables and logs."""
        options = ", ".join(f"{name}={value}" for name, value in self.options)
        return f"{self.recipe}({options}) of {len(self.actions)} actions"

    @property
    def mechanism(self) -> str:
        """The noise on sums and counts."""
        return "discrete_laplace"

    @property
    def noise_parameters(self) -> dict[str, Fraction | None]:
        """The scale of the noise on every sum."""
        return {"rate": None, "scale": self.sums_scale}

    @property
    def method(self) -> dict[str, str]:
        """The recipe with its options, as `feedback_learner_of` reads it."""
        return {"memory": "", "learner": json.dumps(self.to_config(), separators=(",", ":"))}

    # -- as a kind -------------------------------------------------------------------------------

    @property
    def fields(self) -> tuple[Field, ...]:
        """The block's sums of centred gains, and how often it showed each arm."""
        shape = (len(self.actions),)
        return Field("sums", np.int64, shape), Field("shown", np.int64, shape)

    @property
    def releases(self) -> tuple[BlockRelease, ...]:
        """All arms' sums, then all arms' counts, as one release."""
        return (BlockRelease(SUMS, self.charge or Fraction(0), 2 * len(self.actions)),)

    @property
    def evidence(self) -> ReleasedSums:
        """Noisy sums, with the learner's rule."""
        return ReleasedSums(len(self.actions), self.rule, self.forgetting, self.noise)

    @property
    def experiment(self) -> Experiment | None:
        """Sums and counts, with the scales of their noise; arms of several cells are none."""
        if self.sums_scale is None or isinstance(self.rule, ContextModel):
            return None
        scales = Scales(self.sums_scale / UNIT, self.counts_scale or Fraction(0))
        return Experiment.of(scales, actions=len(self.actions))

    def size(self) -> Sizes:
        """Two numbers for each arm are released, and two kept; a policy has one part for each."""
        arms = len(self.actions)
        return Sizes(sums=16 * arms, policy=4 * arms, history=8 * CARRIED_PER_ARM * arms)

    def checked(self, batch: Batch) -> FeedbackBatch:
        """The batch. Values of `played` and `gain` may be content: they are never refused."""
        if not isinstance(batch, FeedbackBatch):
            got = type(batch).__name__
            raise InvalidConfig(
                complaint("batch", "of another kind", expected="FeedbackBatch", got=got)
            )
        of = (("played", batch.played, "int32"), ("gain", batch.gain, "int64"))
        for name, column, kind in of:
            if column.dtype != np.dtype(kind) or column.shape != batch.played.shape[:1]:
                got = f"{column.shape} {column.dtype}"
                raise InvalidConfig(
                    complaint(f"batch.{name}", "shape", expected=f"n {kind}", got=got)
                )
        check_even(batch, len(batch.played))
        return batch

    def adder(
        self, private: Columns, public: Columns, *, watching: Watching | None = None
    ) -> FeedbackAdder:
        """Adds gains and shows to their arms."""
        if watching is not None:
            raise InvalidConfig(
                complaint(
                    "not_private", "on a feedback stream", expected="none", got="exact totals"
                )
            )
        return FeedbackAdder(len(self.actions), private)

    def opening(self, rows: int, bits: Callable[[int], Bits]) -> Ints:
        """Nothing: a policy needs no draw."""
        return np.zeros((rows, 2 * len(self.actions)), dtype=np.int64)

    def draw(
        self, name: str, private: Columns, public: Columns, bits: Callable[[int], Bits]
    ) -> Ints:
        """Each arm's sum and count plus discrete Laplace noise of the learner's scales."""
        arms = len(self.actions)
        released: Ints = np.concatenate([private["sums"], private["shown"]], axis=1)
        of_rows, at_once = bits(Purpose.NOISE), max(1, _WORDS // (2 * arms))
        for first in range(0, len(released), at_once):
            part, some = of_rows.part(first, first + at_once), released[first : first + at_once]
            if self.sums_scale is not None:
                some[:, :arms] += discrete_laplaces(self.sums_scale, part, arms)
            if self.counts_scale is not None:
                noise = discrete_laplaces(self.counts_scale, part, arms, position=2 * arms)
                some[:, arms:] += noise
        return released

    def law(self, name: str, private: Columns, public: Columns, released: Ints) -> Floats:
        """The noise's law around each sum and each count; what has no noise is as it is."""
        arms, law = len(self.actions), np.zeros(len(released))
        of_columns = (private["sums"], self.sums_scale), (private["shown"], self.counts_scale)
        for at, (exact, scale) in enumerate(of_columns):
            noise = released[:, at * arms : (at + 1) * arms] - exact
            if scale is None:
                law[noise.any(axis=1)] = -np.inf
            else:
                law += log_probabilities(scale, noise).sum(axis=1)
        return law

    def columns(self, released: Ints, in_force: InForce) -> Mapping[str, Any]:
        """Sums, counts and the policy in force."""
        arms = len(self.actions)
        columns = FeedbackColumns(released[:, :arms], released[:, arms:], in_force)
        return {"value": np.zeros(len(released), dtype=np.int64), "feedback": columns}

    def read(self, name: str, values: Ints, sums: Sequence[BlockSums | None]) -> Ints:
        """The recorded sums and counts; an opening has none."""
        arms = len(self.actions)
        if name == OPENING:
            return np.zeros((len(values), 2 * arms), dtype=np.int64)
        pairs = [(of.gains, of.shown) for of in sums if of is not None]
        wrong = [pair for pair in pairs if {len(pair[0]), len(pair[1])} != {8 * arms}]
        if len(pairs) < len(values) or wrong:
            expected = f"sums and counts of {arms} actions"
            got = f"{len(wrong[0][0])} bytes" if wrong else "none"
            raise StateMismatch(
                complaint("rebuild: sums", "not recorded", expected=expected, got=got)
            )
        numbers = np.frombuffer(b"".join(chain.from_iterable(pairs)), dtype="<i8")
        return numbers.reshape(len(values), 2 * arms).astype(np.int64)


def _variance(scale: Fraction | None) -> float:
    """The variance of Laplace noise, 2·scale²; of discrete noise it is about 1/6 unit² smaller."""
    return 0.0 if scale is None else float(2 * scale * scale)


class FeedbackAdder:
    """Adds the gains and counts of batches to the sums of rows."""

    __slots__ = ("_arms", "_private")

    def __init__(self, arms: int, private: Columns) -> None:
        self._arms, self._private = arms, private

    def contents(self, slots: BatchSlots, bits: BitsOf) -> FeedbackContents:
        """Each slot's arm and gain, ordered by wave.

        A null observation adds 0 to the first arm's sum and count: it takes the same steps.
        """
        batch, segments, arms = slots.batch, slots.segments, self._arms
        assert isinstance(batch, FeedbackBatch)
        rows, places, ends = slots.segment_rows, segments.begin, None
        if len(batch.index) > 1:
            rows = np.repeat(rows, segments.length)
            places = slots.grouped.places(np.arange(len(rows)))
        if len(segments.of) > len(slots.rows):
            wave = np.repeat(segments.wave, segments.length)
            order = np.argsort(wave, kind="stable")
            rows, places = rows[order], places[order]
            ends = np.searchsorted(wave[order], np.arange(int(wave.max()) + 2))
        played, gains = batch.played[places], batch.gain[places]
        known = (played >= 0) & (played < arms)
        cells = rows * arms + played * known
        gains = np.minimum(np.maximum(gains, -NULL), NULL) * known
        shows = known.astype(np.int64)
        return FeedbackContents(self._private, segments.wave, ends, cells, gains, shows)


@dataclass(slots=True, repr=False)
class FeedbackContents:
    """The gains and counts that the slots of a batch add, ordered by wave."""

    private: Columns
    wave: Ints  # S: of each segment
    ends: NDArray[np.intp] | None  # where each wave begins, and where the last ends; None: one wave
    cells: Ints  # row · K + arm
    gains: Ints
    shows: Ints  # 1, or 0 for a null observation

    def add(self, which: Any, rows: Ints) -> None:
        """Add the slots of one wave."""
        part = slice(None)
        if self.ends is not None:
            wave = int(self.wave[which[0]])
            part = slice(int(self.ends[wave]), int(self.ends[wave + 1]))
        for name, added in ("sums", self.gains), ("shown", self.shows):
            np.add.at(self.private[name].reshape(-1), self.cells[part], added[part])
