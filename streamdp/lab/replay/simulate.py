"""The regret of learners on made-up instances, in seconds. NOT PRIVATE.

An instance says what the mean losses are, and when they change (`instances`). Slots are
independent, so a block learner needs no single slots: the sums between the ends of blocks, windows
and phases are binomial (or multinomial), and drawing these gives exactly the distribution of
summing draws slot by slot. Selections are the shipped mechanisms on these sums, with seeded bits.
Regret is Σ_t (mean of the action in force − the least mean of that moment): an expectation over the
losses of each slot, with the same mean as regret by drawn losses, and less variance.

All learners and budgets of a run see the same losses and the same bits (common random numbers), so
their ratios are sharper than their means. Resampling changes nothing here: a Bernoulli loss
resampled is itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import exp, floor, log, log10, sqrt

import numpy as np
from numpy.random import Generator, default_rng  # noqa: TID251 - losses are made up: no secret
from numpy.typing import NDArray

from streamdp.core.arrays import Floats, Ints
from streamdp.core.errors import InvalidConfig, complaint
from streamdp.core.evidence import Standing
from streamdp.core.randomness import Bits, Purpose, SeededRandomness, uniform_integers
from streamdp.core.schedule import Schedule
from streamdp.lab.replay.cells import Candidate, Cell, Epsilon, cells_of, schedules_of
from streamdp.lab.replay.instances import STATIONARY, Instance
from streamdp.lab.replay.spread import standard_error
from streamdp.lab.replay.unprotected import Tracker

HORIZON = 1 << 17
First = Callable[[int], int]
"""At the end of a block: the first of the blocks whose losses count."""

_STREAM = "simulate"
_VALUES = 1 << 22  # of sums held at once: 32 MB
_ROUNDING = 1e-9  # of a mean: a standard error below it is that of sums of floats
_MOST_BLOCKS = 10_000


INSTANCES = STATIONARY

DEFAULT = "remembering_leader"
GROWING = "incumbent_leader"
"""The earlier default: blocks grow for ever, and the newest release is in force."""

PAPERS = (
    "prefix_softmax",
    "prefix_softmax:cap=none",
    "noisy_leader:noise=laplace",
    "noisy_leader:noise=gumbel",
    "noisy_leader:noise=exponential",
)
"""The papers' learners, calibrated anew; the first is as its theorem states it."""

LEARNERS = (DEFAULT, GROWING, *PAPERS, "naive_noisy_leader", "follow_the_leader")


FOLLOWERS = (
    DEFAULT,
    GROWING,
    f"{GROWING}:schedule=geometric 5/2 to 8192",
    f"{GROWING}:schedule=geometric 5/2 to 2048",
    f"{GROWING}:schedule=capped 512",
)
"""The learners of changing worlds: memory, blocks that grow for ever, blocks that stop growing."""

LONG_HORIZON = 1 << 20


@dataclass(frozen=True, slots=True)
class CellOutcome:
    """The regret of one cell on one instance, run by run."""

    instance: Instance
    cell: Cell
    regrets: Floats

    @property
    def mean(self) -> float:
        """The mean regret."""
        return float(self.regrets.mean())

    @property
    def error(self) -> float:
        """The standard error of the mean."""
        return standard_error(self.regrets)

    def __str__(self) -> str:
        """The form used in tables."""
        known = self.error > _ROUNDING * abs(self.mean)  # below it, sums of equal runs were rounded
        digits = max(0, 1 - floor(log10(self.error))) if known else 0
        return f"{self.mean:.{digits}f} ± {self.error:.{digits}f}"


@dataclass(frozen=True, slots=True)
class SimulationSize:
    """How a simulation is run."""

    runs: int = 400
    horizon: int = HORIZON
    seed: int = 1

    def __post_init__(self) -> None:
        """Refuse sizes without a standard error or without a block."""
        if self.runs < 2 or not 1 <= self.horizon <= 1 << 40:
            got = f"{self.runs} runs of {self.horizon} slots"
            raise InvalidConfig(
                complaint("simulate", "size", expected="2 runs or more of 1 … 2**40 slots", got=got)
            )


def simulate(
    candidates: Sequence[Candidate],
    epsilons: Sequence[Epsilon],
    *,
    instances: Sequence[Instance] = INSTANCES,
    bench: SimulationSize | None = None,
    trackers: Sequence[Tracker] = (),
    progress: Callable[[Instance], None] = lambda instance: None,
) -> list[CellOutcome]:
    """Every candidate at every ε on every instance, instance by instance.

    `trackers` are baselines without privacy that are played too.
    """
    bench, outcomes = bench or SimulationSize(), []
    for number, instance in enumerate(instances):
        progress(instance)
        names = [str(action) for action in range(instance.actions)]
        cells = cells_of(candidates, epsilons, actions=names)
        running = [cell.name for cell in cells if cell.running]
        if running:
            expected = "learners that look at blocks"
            raise InvalidConfig(
                complaint("simulate", "a running window", expected=expected, got=running)
            )
        firsts: dict[Cell, First] = {tracker.cell(names): tracker.first for tracker in trackers}
        cells = (*cells, *firsts)
        cuts = len(_fixed(cells, instance, bench.horizon))
        at_once = max(1, _VALUES // (max(64, cuts) * len(names)))
        regrets = [
            _regrets(instance, cells, firsts, runs=range(first, stop), number=number, bench=bench)
            for first in range(0, bench.runs, at_once)
            for stop in [min(first + at_once, bench.runs)]
        ]
        for at, cell in enumerate(cells):
            outcomes.append(
                CellOutcome(instance, cell, np.concatenate([part[at] for part in regrets]))
            )
    return outcomes


def _regrets(
    instance: Instance,
    cells: Sequence[Cell],
    firsts: Mapping[Cell, First],
    *,
    runs: range,
    number: int,
    bench: SimulationSize,
) -> list[Floats]:
    """The regret of every cell in some runs of one instance."""
    randomness = SeededRandomness(bench.seed)
    tags = b"".join(randomness.tag(_STREAM, number, b"%d" % run, 1, 0) for run in runs)
    draws = _Draws(randomness, np.frombuffer(tags, np.uint8).reshape(len(runs), 16))
    prefixed = [cell for cell in cells if cell.leader.window == "random_prefix"]
    windows = {
        schedule: draws.windows(schedule, bench.horizon) for schedule in schedules_of(prefixed)
    }
    fixed = _fixed(cells, instance, bench.horizon)
    ends = [np.tile(fixed, (len(runs), 1)), *windows.values()]
    generator = default_rng((bench.seed, number, runs.start))
    paths = _Paths.drawn(np.concatenate(ends, axis=1), instance, generator, bench.horizon)
    return [
        _play(
            instance,
            cell,
            paths,
            draws,
            windows=windows.get(cell.leader.schedule),
            first=firsts.get(cell, _this_block),
            horizon=bench.horizon,
        )
        for cell in cells
    ]


def _this_block(block: int) -> int:
    """The first block whose sums a private learner uses when a block ends: this block alone."""
    return block


def _fixed(cells: Sequence[Cell], instance: Instance, horizon: int) -> Ints:
    """The slots where sums are always needed: the ends of blocks and of phases."""
    cuts = [_ends(schedule, horizon) for schedule in schedules_of(cells)]
    return np.unique(np.concatenate([*cuts, instance.starts(horizon), [horizon]]))


def _ends(schedule: Schedule, horizon: int) -> Ints:
    """The slots at which each block within the horizon ends, from 0 on."""
    blocks = schedule.block_of(horizon + 1)
    if blocks > _MOST_BLOCKS:
        raise InvalidConfig(
            complaint("simulate", "too many blocks", expected=f"≤ {_MOST_BLOCKS}", got=blocks)
        )
    starts = schedule.starts(np.arange(blocks + 1))
    ends: Ints = starts - 1
    return ends


@dataclass(frozen=True, slots=True)
class _Draws:
    """The bits of some runs."""

    randomness: SeededRandomness
    tags: NDArray[np.uint8]

    def bits_of(self, purpose: int, block: int) -> Bits:
        """The bits of one draw of every run."""
        return self.randomness.bits(
            _STREAM, purpose, self.tags, np.full(len(self.tags), block, dtype=np.int64)
        )

    def windows(self, schedule: Schedule, horizon: int) -> Ints:
        """The slots at which the random prefix of each block ends; runs × blocks."""
        ends = _ends(schedule, horizon)
        columns = []
        for block, (begin, end) in enumerate(pairwise(ends.tolist())):
            half, length = (end - begin) // 2, np.full(len(self.tags), end - begin)
            bits = self.bits_of(Purpose.WINDOW, block)
            columns.append(begin + half + 1 + uniform_integers(bits, length - half))
        return np.stack(columns, axis=1)


@dataclass(frozen=True)
class _Paths:
    """Sums of losses at some slots of each run."""

    cuts: Ints  # runs × C, rising
    sums: Ints  # runs × C × K, on the grid

    @classmethod
    def drawn(cls, cuts: Ints, instance: Instance, generator: Generator, horizon: int) -> _Paths:
        """Sums between the cuts, added up."""
        cuts = np.sort(cuts, axis=1)
        before = np.concatenate([np.zeros_like(cuts[:, :1]), cuts[:, :-1]], axis=1)
        phases = np.searchsorted(instance.starts(horizon), before, side="right") - 1
        sums = instance.sums(cuts - before, phases, generator)
        np.cumsum(sums, axis=1, out=sums)
        return cls(cuts, sums)

    def after(self, slot: int) -> Ints:
        """The sums of each run after one slot, which must be a cut of all."""
        return self.at(np.full(len(self.cuts), slot))

    def at(self, slots: Ints) -> Ints:
        """The sums of each run after the given number of slots, which must be one of its cuts."""
        if self.shared:
            place = np.searchsorted(self.cuts[0], slots)
        else:
            place = (self.cuts < slots[:, None]).sum(axis=1)
        sums: Ints = self.sums[np.arange(len(slots)), place]
        return sums

    @cached_property
    def shared(self) -> bool:
        """Whether all runs have the same cuts."""
        return bool((self.cuts == self.cuts[0]).all())


def _play(
    instance: Instance,
    cell: Cell,
    paths: _Paths,
    draws: _Draws,
    *,
    windows: Ints | None,
    first: First,
    horizon: int,
) -> Floats:
    """Play one cell through all its blocks, all runs at once."""
    leader, runs = cell.leader, len(paths.cuts)
    ends = _ends(leader.schedule, horizon)
    costs = np.diff(instance.regret_until(np.append(ends, horizon), horizon), axis=0)
    every = np.full(runs, instance.actions)
    opening = uniform_integers(draws.bits_of(Purpose.OPENING, 0), every)
    known = Standing(opening, np.zeros((runs, leader.memory.width), dtype=np.int64))
    regret: Floats = costs[0][opening]
    for block, (begin, end) in enumerate(pairwise(ends.tolist())):
        until = np.full(runs, end)
        if leader.window == "random_prefix" and windows is not None:
            until = windows[:, block]
        sums = paths.at(until) - paths.after(int(ends[first(block)]))
        bits = draws.bits_of(Purpose.SELECTION, block)
        votes = leader.choose.select(sums, bits, leader.prior(known.in_force))
        known = leader.memory.after(known, votes, np.full(runs, end - begin))
        regret = regret + costs[block + 1][known.in_force]
    return regret


@dataclass(frozen=True, slots=True)
class Relative:
    """A learner's regret relative to another's: geometric mean over instances and budgets."""

    candidate: Candidate
    ratio: float
    error: float

    def __str__(self) -> str:
        """The form used in tables."""
        return f"{self.ratio:.3f} ± {self.error:.3f}"


def relative(
    outcomes: Sequence[CellOutcome], *, reference: str, beside: Sequence[str] = ()
) -> list[Relative]:
    """Each private candidate relative to one, with the standard error of the paired comparison.

    `beside` names baselines that take no ε: each is compared with the reference at every ε.

    The logarithm of a ratio of means moves by x/mean(x) − y/mean(y) for each run. The same runs
    serve all budgets, so these terms are added over budgets before their spread is taken.
    """
    shown = [o for o in outcomes if o.cell.epsilon or o.cell.name in beside]
    table = {(o.instance, o.cell.epsilon, o.cell.name): o for o in shown}
    candidates = dict.fromkeys(o.cell.candidate for o in shown)
    if all(candidate.text != reference for candidate in candidates):
        raise InvalidConfig(
            complaint("simulate", "no such learner", expected="a simulated one", got=reference)
        )
    if any(not outcome.mean for outcome in table.values()):
        raise InvalidConfig(
            complaint(
                "simulate",
                "a learner without any regret cannot be compared",
                expected="more runs or slots",
                got=[str(outcome.cell) for outcome in table.values() if not outcome.mean],
            )
        )
    budgets = dict.fromkeys((instance, epsilon) for instance, epsilon, _ in table if epsilon)
    results = []
    for candidate in candidates:
        logs, moves = 0.0, dict.fromkeys((instance for instance, _ in budgets), np.zeros(1))
        for instance, epsilon in budgets:
            own = None if candidate.text in beside else epsilon
            mine = table[instance, own, candidate.text]
            other = table[instance, epsilon, reference]
            logs += log(mine.mean / other.mean)
            move = mine.regrets / mine.mean - other.regrets / other.mean
            moves[instance] = moves[instance] + move
        ratio = exp(logs / len(budgets))
        variance = sum(float(move.var(ddof=1)) / len(move) for move in moves.values())
        results.append(Relative(candidate, ratio, ratio * sqrt(variance) / len(budgets)))
    return results


def best_paper(outcomes: Sequence[CellOutcome]) -> str:
    """The paper's learner with the least regret, by geometric mean."""
    simulated = {outcome.cell.name for outcome in outcomes}
    papers = [name for name in PAPERS if name in simulated]
    if not papers:
        raise InvalidConfig(
            complaint("simulate", "nothing to compare with", expected=PAPERS, got=sorted(simulated))
        )
    table = relative(outcomes, reference=papers[0])
    return min((r.ratio, r.candidate.text) for r in table if r.candidate.text in papers)[1]
