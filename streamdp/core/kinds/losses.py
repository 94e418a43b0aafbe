"""Streams of losses: sums of a window, a private choice at each block's end, and estimates.

Privacy: ε-DP for replacing one event's loss vector, given earlier releases, with ε = `charge` for
the vote and each estimate's own ε beside it. Sensitivity: a vector in [0, 1]^K enters one sum, of
one block, so the difference of two actions' sums moves by at most 2 (`calibration`); an estimate's
is stated with it. Why: a vote is one selection by the learner's mechanism, whose prior follows from
earlier releases; an estimate is a statistic with discrete Laplace noise. Votes and estimates of a
block add up, and the ledger books both before either is drawn.

A *window* says which losses of a block count:

whole          all of them
random_prefix  those of a random prefix, drawn when the block's first slot comes
running        all since the learner was born: not private, as slots are read again

With *Bernoulli resampling* (Wu & Wang 2026, Theorem 3) each loss becomes 1 with its own
probability, else 0, before it is summed. A loss on the grid is g/2**20 with an integer g, and 20
random bits, read as an integer, are below g with exactly that probability. Three coordinates share
a word; the words are addressed by learner and slot, so that neither order nor batches matter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from streamdp.core.arrays import Columns, Field, Floats, Ints
from streamdp.core.errors import InvalidConfig
from streamdp.core.events import ACTION, Batch
from streamdp.core.evidence.votes import NEWEST, Memory, Votes
from streamdp.core.grid import GRID_BITS, as_rows, quantise
from streamdp.core.kinds.estimates import Estimate
from streamdp.core.kinds.kind import (
    BitsOf,
    BlockRelease,
    check_columns,
    check_even,
)
from streamdp.core.kinds.names import read_actions
from streamdp.core.kinds.recipe import Recipe, Selection
from streamdp.core.noise import discrete_laplace, log_probabilities
from streamdp.core.randomness import Bits, Purpose, uniform_integers
from streamdp.core.schedule import Schedule
from streamdp.core.segments import Adder, BatchSlots
from streamdp.core.selection import Mechanism, Prior

_COLUMNS = frozenset({"losses"})  # of a batch
_PER_WORD = 64 // GRID_BITS
_MASK = np.uint64((1 << GRID_BITS) - 1)


def resampled(losses: NDArray[np.float32], bits: Bits) -> NDArray[np.float32]:
    """Losses as exact Bernoulli draws; `bits` has a row for each slot."""
    n, actions = losses.shape
    grid, _ = quantise(losses)
    words = bits.words(0, -(-actions // _PER_WORD))
    shifts = (np.arange(_PER_WORD) * GRID_BITS).astype(np.uint64)
    drawn = ((words[:, :, None] >> shifts) & _MASK).reshape(n, -1)[:, :actions]
    return (drawn < grid.astype(np.uint64)).astype(np.float32)


Window = Literal["whole", "random_prefix", "running"]


def prefixes(lengths: Ints, bits: Bits) -> Ints:
    """The length of a random prefix of each block.

    Privacy: a window depends on bits and on the block's length only, never on content, so the
    window's selection is as private as that of a whole block.
    """
    half = lengths // 2  # Cesari & Colomboni 2026, §4: uniform on {⌊n/2⌋+1, …, n}
    drawn: Ints = half + 1 + uniform_integers(bits, lengths - half)
    return drawn


Resample = Literal["none", "bernoulli"]


@dataclass(frozen=True)
class Leader:
    """A full-information block learner: schedule + window + selection (+ resampling and memory).

    `window` says which losses of a block count. `charge` is what the ledger books for each slot of
    a block; None means that the learner is not private. `bonus` is the head start of the action in
    force in the next selection, in noise units: a public prior, since the action in force follows
    from earlier releases. `memory` computes the action in force from the newest vote, or from more
    votes.
    """

    actions: tuple[str, ...]
    schedule: Schedule
    window: Window
    resample: Resample
    choose: Mechanism
    charge: Fraction | None
    bonus: Fraction = Fraction(0)
    memory: Memory = NEWEST
    name: str = "leader"
    options: tuple[tuple[str, str], ...] = field(default=(), compare=False)
    """Of the recipe, as text; not compared: "0.5" and "1/2" make equal learners."""
    estimates: tuple[Estimate, ...] = ()
    """What is released of a block beside the vote; a stream's configuration adds them."""

    def __post_init__(self) -> None:
        """Refuse a learner that no engine could run."""
        object.__setattr__(self, "actions", read_actions(self.actions))
        if self.charge is not None and self.charge <= 0:
            raise InvalidConfig(self.name, "no charge", expected="> 0", got=self.charge)
        if self.charge is not None and self.window == "running":
            raise InvalidConfig(
                self.name,
                "a running window reads slots again",
                expected="no charge",
                got=self.charge,
            )

    # -- as a value ------------------------------------------------------------------------------

    @property
    def remembers(self) -> bool:
        """Whether another action than the newest vote may be in force."""
        return self.memory != NEWEST

    def with_estimates(self, estimates: Sequence[Estimate]) -> Leader:
        """The same learner, releasing these estimates."""
        return replace(self, estimates=tuple(estimates)) if estimates else self

    def prior(self, in_force: Ints) -> Prior | None:
        """The prior of selections while these actions are in force."""
        return Prior.incumbent(in_force, self.bonus) if self.bonus else None

    def log_probabilities(self, sums: Ints, *, in_force: int) -> Floats:
        """The exact law of a selection from a window's K sums, for audits and tests.

        Sums are on the grid and, where losses are resampled, of the resampled losses.
        """
        return self.choose.log_probabilities(sums, self.prior(np.array([in_force])))

    def __str__(self) -> str:
        """One line for tables and logs."""
        options = ", ".join(f"{name}={value}" for name, value in self.options)
        return f"{self.name}({options}) of {len(self.actions)} actions"

    @cached_property
    def recipe(self) -> Recipe:
        """How it was made; a selection is drawn at its rate."""
        state: dict[str, object] = {
            "recipe": self.name,
            "actions": self.actions,
            "schedule": [self.schedule.name, self.schedule.prefix, self.schedule.tail],
            "window": self.window,
            "resample": self.resample,
            "choose": [self.choose.name, str(self.choose.rate)],
            "charge": str(self.charge),
            "bonus": str(self.bonus),
        }
        if self.remembers:
            state["memory"] = self.memory.name
        return Recipe(
            name=self.name,
            options=self.options,
            mechanism=self.choose.name,
            state=state,
            memory=self.memory.name,
            selection=Selection(
                self.choose.rate, self.window, self.resample, self.bonus, self.memory.since
            ),
        )

    # -- as a kind -------------------------------------------------------------------------------

    @property
    def fields(self) -> tuple[Field, ...]:
        """The window's sums; where estimates are released, sums and nulls of the whole block."""
        shape = (len(self.actions),)
        fields = [Field("sums", np.int64, shape, cleared=self.window != "running")]
        if self.window == "random_prefix":
            fields.append(Field("window", np.int64, cleared=False))  # how many slots count
        if self.estimates:
            fields += [Field("totals", np.int64, shape), Field("nulls", np.int64)]
        return tuple(fields)

    @property
    def releases(self) -> tuple[BlockRelease, ...]:
        """The vote, and the estimates."""
        return (
            BlockRelease(ACTION, self.charge or Fraction(0), 1),
            *(BlockRelease(of.name, of.epsilon, 1, of.min_length) for of in self.estimates),
        )

    @property
    def evidence(self) -> Votes:
        """Votes, with the learner's memory."""
        return Votes(self.memory, len(self.actions))

    def checked(self, batch: Batch) -> Batch:
        """The batch, its losses as float32."""
        check_columns(batch, _COLUMNS)
        losses, actions = batch.content["losses"], len(self.actions)
        if losses.dtype != np.float32:
            losses = as_rows(losses, actions=actions)
            batch = replace(batch, content={"losses": losses})
        if losses.shape != (len(losses), actions):
            got, expected = f"{losses.shape} {losses.dtype}", f"n × {actions} float32"
            raise InvalidConfig("batch.losses", "shape", expected=expected, got=got)
        check_even(batch)
        return batch

    def adder(self, private: Columns) -> LossAdder:
        """Adds losses to sums."""
        return LossAdder(self, private)

    def opening(self, rows: int, bits: Callable[[int], Bits]) -> Ints:
        """Uniform over the actions: no data, no charge."""
        return uniform_integers(bits(Purpose.OPENING), np.full(rows, len(self.actions)))[:, None]

    def draw(
        self, name: str, private: Columns, public: Columns, bits: Callable[[int], Bits]
    ) -> Ints:
        """The private choice from the window's sums, or an estimate."""
        in_force = public["action"].astype(np.int64)
        if name == ACTION:
            bits_of = bits(Purpose.SELECTION)
            return self.choose.select(private["sums"], bits_of, self.prior(in_force))[:, None]
        which = [estimate.name for estimate in self.estimates].index(name)
        exact, scale = self._statistic(which, private, in_force)
        noisy: Ints = exact + discrete_laplace(scale, bits(Purpose.NOISE + which))
        return noisy[:, None]

    def law(self, name: str, private: Columns, public: Columns, released: Ints) -> Floats:
        """The selection's law, or the noise's around an estimate's statistic."""
        in_force = public["action"].astype(np.int64)
        if name == ACTION:
            rows = zip(private["sums"], in_force.tolist(), released[:, 0].tolist(), strict=True)
            laws = [
                self.log_probabilities(sums, in_force=action)[vote] for sums, action, vote in rows
            ]
            return np.array(laws, dtype=np.float64)
        which = [estimate.name for estimate in self.estimates].index(name)
        exact, scale = self._statistic(which, private, in_force)
        return log_probabilities(scale, released[:, 0] - exact)

    def _statistic(self, which: int, private: Columns, in_force: Ints) -> tuple[Ints, Fraction]:
        """NOT PRIVATE: what an estimate estimates, and the scale of its noise."""
        of = self.estimates[which]
        exact = of.statistic(private["totals"], action=in_force, nulls=private["nulls"])
        return exact, of.scale(actions=len(self.actions))


class LossAdder:
    """Adds the losses of batches to the sums of rows."""

    __slots__ = ("_adder", "_leader", "_private")

    def __init__(self, leader: Leader, private: Columns) -> None:
        self._leader, self._private = leader, private
        self._adder = Adder(len(leader.actions))

    def contents(self, slots: BatchSlots, bits: BitsOf) -> LossContents:
        """The sums of each segment: over its window, and where needed over all its slots."""
        leader, segments, grouped = self._leader, slots.segments, slots.grouped
        windows, counted = None, segments.length
        if leader.window == "random_prefix":
            windows = self._windows(slots, bits)
            counted = np.clip(windows - segments.into, 0, segments.length)
        given, changed = slots.batch.content["losses"], leader.resample == "bernoulli"
        losses = given
        if changed:
            losses = resampled(given, bits(Purpose.RESAMPLE, slots.slot_rows, slots.numbers))
        sums, nulls = self._adder.sums(losses, grouped, segments.begin, counted)
        contents = LossContents(self._private, sums, windows)
        if not leader.estimates:
            return contents
        contents.totals = sums
        if changed or windows is not None:
            contents.totals, nulls = self._adder.sums(
                given, grouped, segments.begin, segments.length
            )
        in_order = nulls[grouped.places(np.arange(len(nulls)))].astype(np.int64)
        contents.nulls = np.add.reduceat(in_order, segments.begin)
        return contents

    def _windows(self, slots: BatchSlots, bits: BitsOf) -> Ints:
        """How many slots of each segment's block count; drawn here for blocks that begin."""
        segments, rows = slots.segments, slots.segment_rows
        windows: Ints = self._private["window"][rows]
        begins = np.flatnonzero(segments.into == 0)
        if len(begins):
            blocks = segments.block[begins]
            drawn = bits(Purpose.WINDOW, rows[begins], blocks)
            windows[begins] = prefixes(self._leader.schedule.lengths(blocks), drawn)
        return windows


@dataclass(slots=True, repr=False)
class LossContents:
    """What the segments of a batch add: to the window's sums, and over all their slots."""

    private: Columns
    sums: Ints  # S × K
    windows: Ints | None  # S: how many slots of its block count, where that is drawn
    totals: Ints | None = None  # S × K, for estimates
    nulls: Ints | None = None  # S

    def add(self, which: Any, rows: Ints) -> None:
        """Add these segments to their rows."""
        private = self.private
        if self.windows is not None:
            private["window"][rows] = self.windows[which]
        private["sums"][rows] += self.sums[which]
        if self.totals is not None and self.nulls is not None:
            private["totals"][rows] += self.totals[which]
            private["nulls"][rows] += self.nulls[which]
