"""`check_kind`: does a learner keep the promises that engine and ledger rely on? Ours or yours.

    def test_my_learner() -> None:
        check_kind(my_learner(actions=["a", "b", "c"], epsilon="1"))

The promises, in the order in which they are checked:

1. *A value.* Its recipe is registered; its configuration is text, and reading it back gives an
   equal learner with the same digest; another ε or other actions give another digest.
2. *The price.* When one content is replaced, no log-probability of its releases moves by more than
   the charge: in all short streams, and for choices from blocks of up to 256 slots.
3. *Determinism.* The same seed gives the same releases and saved rows; a policy adds up.
4. *Batches.* Batches cut anywhere, or slot by slot, give the same releases and saved rows.
5. *Charges.* Blocks tile the slots of each key; every slot of a closed block is charged the
   learner's charge once, and an open block nothing.
6. *Boundaries.* The number, time and slots of releases do not depend on content.
7. *Rebuilding* from saved rows, the log and the recorded releases gives the same engine.
8. *The draws* of an engine follow the learner's laws, by χ² tests.
9. *Long blocks.* In blocks of up to 64 slots, with nulls at every place, saves, rebuilds, idle keys
   and new epochs, under seeded bits and the system's: each release is drawn once, from what the log
   adds up to and what earlier releases say, is what the drawn bits say, and is charged once; what
   is in force follows from releases alone (`streamdp.lab.audit.misdeeds`, which goes to 256 slots
   in an audit).

A learner without a charge need not keep promise 2. `audit`, if given, runs last: pass
`streamdp.lab.audit.audit_kind`, which enumerates more streams. Check a selection mechanism of your
own with `streamdp.lab.kits.selection.check_selection` as well.

A failure is an `AssertionError` that names the broken promise. Seeds are fixed; the χ² tests of a
sound learner fail for fewer than one seed in 10⁶.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from streamdp.core.engine import Engine, rebuild, recorded
from streamdp.core.errors import InvalidConfig
from streamdp.core.events import Batch, Key, Release
from streamdp.core.evidence.policy import PARTS
from streamdp.core.kinds.kind import Kind
from streamdp.core.learners import RECIPES, Learner, learner_of
from streamdp.core.learners.feedback import FEEDBACK_RECIPES, feedback_learner_of
from streamdp.core.randomness import SeededRandomness
from streamdp.lab.audit import TOLERANCE, misdeeds, neighbours_of, sample, sweep
from streamdp.lab.audit.exposure import designs, exposed
from streamdp.lab.audit.laws import Choice
from streamdp.lab.audit.neighbours import blank_law, of_actions
from streamdp.lab.audit.stories import made_up
from streamdp.lab.audit.sweep import sweep_wide
from streamdp.lab.audit.transcripts import worst_ratios

MOST_ACTIONS = 5  # the price is tried on all corners of the cube of losses

KEYS: tuple[Key, ...] = (b"fr", None, b"", b"\xff")
SLOTS = 132  # enough for blocks of 16 slots to end after the crash
_DRAWN_KEYS = 20_000
_LONG_BLOCK = 64  # slots
_FEW = 3  # actions of the streams that are enumerated


class Audited(Protocol):
    """An audit's verdict."""

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


def check_kind(learner: Learner, *, audit: Callable[[Kind], Audited] | None = None) -> None:
    """Raise `AssertionError` unless the learner, of 2 to 5 actions, keeps every promise."""
    few = len(learner.actions) <= MOST_ACTIONS
    require(few, f"give the kit a learner of 2 to {MOST_ACTIONS} actions", learner)
    _check_value(learner)
    if learner.private:
        _check_price(learner)
    log = _log(learner, seed=1)
    whole = _run(learner, [log])
    again = _run(learner, [log])
    require(again.releases == whole.releases, "the same seed, the same releases", learner)
    require(again.rows == whole.rows, "the same seed, the same rows", learner)
    parts = {
        int(np.frombuffer(of.policy, "<u4").sum(dtype=np.int64))
        for of in again.releases
        if of.policy
    }
    whole_cells = not any(of % PARTS for of in parts)  # contexts: a policy in each cell
    require(whole_cells, "a policy adds up", learner)
    for step in (1, 2, 7, 32):
        cut = _run(learner, [log.part(slice(at, at + step)) for at in range(0, SLOTS, step)])
        require(cut.releases == whole.releases, "no cut changes a release", learner)
        require(cut.rows == whole.rows, "no cut changes a row", learner)
    _check_charges(learner, whole)
    _check_boundaries(learner, whole)
    _check_rebuilding(learner, log, whole)
    if learner.private:
        tests = sample(learner, randomness=SeededRandomness("kit"), samples=_DRAWN_KEYS)
        wrong = [what for what, fit in tests if not fit.passed]
        require(not wrong, "; ".join(["draws follow the law", *wrong]), learner)
    faults = misdeeds(learner, longest=_LONG_BLOCK)
    require(not faults, "; ".join(["in long blocks", *faults]), learner)
    if audit is not None:
        verdict = audit(learner)
        require(verdict.passed, "; ".join(["the audit", *verdict.failures]), learner)


@dataclass(frozen=True, slots=True)
class _Ran:
    """The result of a new seeded engine over some batches."""

    engine: Engine
    releases: list[Release]
    rows: dict[Key, bytes]


def _engine(learner: Learner, *, seed: int = 1) -> Engine:
    """A seeded engine with a budget for exactly the learner's charge."""
    return Engine(
        stream="kit",
        partition=0,
        learner=learner,
        budget=learner.charge,
        randomness=SeededRandomness(seed),
    )


def _run(learner: Learner, batches: Sequence[Batch], *, seed: int = 1) -> _Ran:
    """Apply the batches, then save."""
    engine = _engine(learner, seed=seed)
    releases = [release for batch in batches for release in engine.apply_batch(batch)]
    return _Ran(engine, releases, dict(engine.save()))


def _log(learner: Learner, *, seed: int, content: int | None = None) -> Batch:
    """Slots of a few keys, two of them null, with gaps in the offsets.

    `content`: the number of the only content, if there is one only; public parts stay.
    """
    row, numbers = neighbours_of(learner), np.arange(SLOTS)
    public = row.headers.shape[1]
    slots = made_up(row, f"kit log {seed}", 1, SLOTS)[0]
    slots[:, :public] = made_up(row, "kit log", 1, SLOTS)[0, :, :public]
    slots[[11, 40], public:] = row.contents[[-1, row.extremes]]
    if content is not None:
        slots[:, public:] = row.contents[content]
    return row.batch(KEYS, numbers * 5 % 7 % len(KEYS), slots, numbers * 2, None)


def _check_value(learner: Learner) -> None:
    """Promise 1."""
    config = learner.to_config()
    text = all(isinstance(word, str) for pair in config.items() for word in pair)
    registered = learner.recipe in RECIPES or learner.recipe in FEEDBACK_RECIPES
    require(registered, "a recipe that is registered", learner)
    require(text, "a configuration is text", learner)
    again = _read(learner, config, learner.actions)
    require(again == learner, "its configuration is the learner again", learner)
    require(hash(again) == hash(learner), "equal learners have equal hashes", learner)
    require(again.digest() == learner.digest(), "equal learners have equal digests", learner)
    require(str(learner).startswith(learner.recipe), "its line begins with its recipe", learner)
    others = [_read(learner, config, learner.actions[::-1])]
    if "epsilon" in config:
        others.append(_read(learner, config | {"epsilon": "0.0625"}, learner.actions))
    for other in others:
        distinct = other.digest() != learner.digest() and other != learner
        require(distinct, "another learner has another digest", learner)


def _read(learner: Learner, config: Mapping[str, str], actions: Sequence[str]) -> Learner:
    """The learner of a configuration for these actions."""
    try:
        if learner.recipe in RECIPES:
            return learner_of(config, actions=actions)
        return feedback_learner_of(config, actions=actions)
    except InvalidConfig as error:
        raise AssertionError(f"its configuration can be read: {error} ({learner})") from error


def _check_price(learner: Learner) -> None:
    """Promise 2."""
    few = of_actions(learner, min(_FEW, len(learner.actions)))
    ratios = [
        ratio
        for design in designs(few)
        for ratio in worst_ratios(exposed(few, design), few).values()
    ]
    if isinstance(blank_law(few, few.releases[0].name), Choice):
        ratios.append(sweep(few))
        if len(learner.actions) > _FEW:
            ratios.append(sweep_wide(learner))
    sound = max(ratios) <= float(learner.charge or 0) + TOLERANCE
    require(sound, "a replaced content costs at most the charge", learner)


def _check_charges(learner: Learner, whole: _Ran) -> None:
    """Promise 5."""
    ends: dict[Key, int] = {}
    charge, name = learner.charge or 0, learner.releases[0].name
    for release in whole.releases:
        if release.kind == name:
            tiles = release.start == ends.get(release.key, 1) < release.stop
            require(tiles, "blocks tile the slots", learner)
            require(release.epsilon == charge, "a block is charged what the learner says", learner)
            ends[release.key] = release.stop
    ledger = whole.engine.ledger
    for key, stop in ends.items():
        charged = {ledger.spent(key, slot=slot) for slot in range(1, stop)}
        require(charged == {charge}, "every slot of a closed block is charged once", learner)
        require(ledger.spent(key, slot=stop) == 0, "an open block is charged nothing", learner)


def _check_boundaries(learner: Learner, whole: _Ran) -> None:
    """Promise 6: other content, the worst, and unusable content."""
    logs = [_log(learner, seed=2), *(_log(learner, seed=1, content=at) for at in (0, -1, -2))]
    for log in logs:
        other = _run(learner, [log], seed=2)
        same = list(map(_public, other.releases)) == list(map(_public, whole.releases))
        require(same, "which releases there are does not depend on content", learner)


def _public(release: Release) -> tuple[object, ...]:
    """The public part of a release: all but its value."""
    offsets = release.first_offset, release.last_offset
    return release.identity, release.start, release.stop, *offsets, release.epsilon


def _check_rebuilding(learner: Learner, log: Batch, whole: _Ran) -> None:
    """Promise 7: saves from a third of the log, a crash at two thirds, then the rest."""
    save, crash = SLOTS // 3, 2 * SLOTS // 3
    engine = _engine(learner)
    kept = recorded(engine.apply_batch(log.part(slice(0, save))))
    rows = engine.save(most=2)
    kept |= recorded(engine.apply_batch(log.part(slice(save, crash))))
    again = rebuild(
        _engine(learner),
        rows=rows,
        releases=kept,
        log=[log.part(slice(0, crash))],
        position=engine.position,
        expected_rows=len(engine),
    )
    last = list(again.apply_batch(log.part(slice(crash, SLOTS))))
    resumed = last == whole.releases[len(whole.releases) - len(last) :]
    require(resumed, "a rebuilt engine goes on as it would", learner)
    require(dict(again.save()) == whole.rows, "a rebuilt engine has the rows that were", learner)
