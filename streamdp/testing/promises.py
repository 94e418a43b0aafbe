"""Shared parts of the learners' kits: a seeded run, and the promises of both kinds of learner.

`check_learner` (losses of all actions) and `check_feedback_learner` (of the shown one) number the
promises and define the order of the checks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Protocol, TypeVar

from streamdp.core.engine import Engine, rebuild, recorded
from streamdp.core.events import FeedbackBatch, Key, LossBatch, Release
from streamdp.core.learners import Learner
from streamdp.core.randomness import SeededRandomness

FALSE_ALARM = 1e-6
TOLERANCE = 1e-9  # of a log-probability: the error of quadrature
KEYS: tuple[Key, ...] = (b"fr", None, b"", b"\xff")
SLOTS = 132  # enough for blocks of 16 slots to end after the crash
DRAWN_KEYS = 20_000

B = TypeVar("B", LossBatch, FeedbackBatch)


class Audited(Protocol):
    """An audit's verdict on a learner."""

    @property
    def passed(self) -> bool:
        """Whether the audit found no failure."""

    @property
    def failures(self) -> Sequence[str]:
        """The failures that the audit found."""


def require(held: object, promise: str, learner: object) -> None:
    """Raise with the broken promise; `python -O` would strip an `assert`."""
    if not held:
        raise AssertionError(f"{promise} ({learner})")


def new_engine(learner: Learner, *, seed: int = 1) -> Engine:
    """A seeded engine with a budget for exactly the learner's charge."""
    return Engine(
        stream="kit",
        partition=0,
        learner=learner,
        budget=learner.charge,
        randomness=SeededRandomness(seed),
    )


@dataclass(frozen=True, slots=True, eq=False)
class Ran:
    """The result of a new seeded engine over some batches; equal if releases and rows are."""

    engine: Engine
    releases: list[Release]
    rows: dict[Key, bytes]

    def __eq__(self, other: object) -> bool:
        """Equal releases and rows."""
        if not isinstance(other, Ran):
            return NotImplemented
        return (self.releases, self.rows) == (other.releases, other.rows)

    __hash__ = None  # type: ignore[assignment]


def run(learner: Learner, batches: Sequence[B], *, seed: int = 1) -> Ran:
    """Apply the batches, then save."""
    engine = new_engine(learner, seed=seed)
    releases = [release for batch in batches for release in engine.apply_batch(batch)]
    return Ran(engine, releases, dict(engine.save()))


def part(batch: B, begin: int, end: int) -> B:
    """Some slots of a batch; its keys stay."""
    columns = {
        column.name: getattr(batch, column.name)[begin:end]
        for column in fields(batch)
        if column.name != "keys" and getattr(batch, column.name) is not None
    }
    return replace(batch, **columns)


def check_cuts(learner: Learner, log: B, whole: Ran) -> None:
    """*Batches.* Cut anywhere, or slot by slot: the same releases and saved rows."""
    for step in (1, 2, 7, 32):
        cut = run(learner, [part(log, at, at + step) for at in range(0, SLOTS, step)])
        require(cut.releases == whole.releases, "no cut changes a release", learner)
        require(cut.rows == whole.rows, "no cut changes a row", learner)


def check_charges(learner: Learner, whole: Ran, *, kind: str) -> None:
    """*Charges.* Blocks tile a key's slots; a closed one is charged once, an open one nothing."""
    ends: dict[Key, int] = {}
    charge = learner.charge or 0
    for release in whole.releases:
        if release.kind == kind:
            tiles = release.start == ends.get(release.key, 1) < release.stop
            require(tiles, "blocks tile the slots", learner)
            require(release.epsilon == charge, "a block is charged what the learner says", learner)
            ends[release.key] = release.stop
    ledger = whole.engine.ledger
    for key, stop in ends.items():
        charged = {ledger.spent(key, slot=slot) for slot in range(1, stop)}
        require(charged == {charge}, "every slot of a closed block is charged once", learner)
        require(ledger.spent(key, slot=stop) == 0, "an open block is charged nothing", learner)


def check_rebuilding(learner: Learner, log: B, whole: Ran) -> None:
    """*Rebuilding*: saves from a third of the log, a crash at two thirds, then the rest."""
    save, crash = SLOTS // 3, 2 * SLOTS // 3
    engine = new_engine(learner)
    kept = recorded(engine.apply_batch(part(log, 0, save)))
    rows = engine.save(most=2)
    kept |= recorded(engine.apply_batch(part(log, save, crash)))
    again = rebuild(
        new_engine(learner),
        rows=rows,
        releases=kept,
        log=[part(log, 0, crash)],
        position=engine.position,
        expected_rows=len(engine),
    )
    last = list(again.apply_batch(part(log, crash, SLOTS)))
    resumed = last == whole.releases[len(whole.releases) - len(last) :]
    require(resumed, "a rebuilt engine goes on as it would", learner)
    require(dict(again.save()) == whole.rows, "a rebuilt engine has the rows that were", learner)
