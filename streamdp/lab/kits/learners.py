"""`check_learner`: does a learner keep the promises that engine and ledger rely on? Ours or yours.

    def test_my_leader() -> None:
        check_learner(my_leader(actions=["a", "b", "c"], epsilon="1"))

The promises, in the order in which they are checked:

1. *A value.* Its recipe is registered; its configuration is text, and reading it back gives an
   equal learner with the same digest; another ε or other actions give another digest.
2. *The price.* When one loss vector is replaced, no log-probability of a selection moves by more
   than the charge, for blocks of one slot to 256, whatever action is in force.
3. *Determinism.* The same seed gives the same releases.
4. *Batches.* Batches cut anywhere, or slot by slot, give the same releases and saved rows.
5. *Charges.* Blocks tile the slots of each key; every slot of a closed block is charged the
   learner's charge once, and an open block nothing.
6. *Boundaries.* The number, time and slots of releases do not depend on content.
7. *Bad content* takes its slot as the null loss and changes nothing else.
8. *Rebuilding* from saved rows, the log and the recorded releases gives the same engine.
9. *The draws* of an engine follow the law that the learner claims, by a χ² test.
10. *The action in force* follows from the releases alone, by the learner's memory.
11. *Long blocks.* In blocks of up to 64 slots, with nulls at every place, saves and rebuilds, under
    seeded bits and the system's: each selection gets its window's sums and the bonus of earlier
    releases, and the winner for the drawn bits is released, once, at its charge
    (`streamdp.lab.audit.misdeeds`, which goes to 256 slots in an audit).

A learner without a charge need not keep promise 2. `audit`, if given, runs last: pass
`streamdp.lab.audit.audit_learner`, which enumerates whole streams. Check a selection mechanism of
your own with `streamdp.lab.kits.selection.check_selection` as well.

A failure is an `AssertionError` that names the broken promise. Seeds are fixed; the χ² test of a
sound learner fails for fewer than one seed in 10⁶.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import product

import numpy as np

from streamdp.core.arrays import Floats, Ints
from streamdp.core.errors import InvalidConfig
from streamdp.core.events import ACTION, OPENING, Key, LossBatch, Release
from streamdp.core.evidence import Standing
from streamdp.core.grid import UNIT
from streamdp.core.learners import RECIPES, Leader, learner_of
from streamdp.core.randomness import Purpose, SeededRandomness
from streamdp.lab.audit import misdeeds
from streamdp.lab.kits.selection import chi_square
from streamdp.testing.promises import (
    DRAWN_KEYS,
    FALSE_ALARM,
    KEYS,
    SLOTS,
    TOLERANCE,
    Audited,
    Ran,
    check_charges,
    check_cuts,
    check_rebuilding,
    new_engine,
    require,
    run,
)

MOST_ACTIONS = 5  # the price is tried on all corners of the cube of losses

_LONG_BLOCK = 64  # slots


def check_learner(learner: Leader, *, audit: Callable[[Leader], Audited] | None = None) -> None:
    """Raise `AssertionError` unless the learner, of 2 to 5 actions, keeps every promise."""
    few = len(learner.actions) <= MOST_ACTIONS
    require(few, f"give the kit a learner of 2 to {MOST_ACTIONS} actions", learner)
    _check_value(learner)
    if learner.private:
        _check_price(learner)
    log = _log(len(learner.actions), seed=1)
    whole = run(learner, [log])
    _check_determinism(learner, log, whole)
    check_cuts(learner, log, whole)
    check_charges(learner, whole, kind=ACTION)
    _check_boundaries(learner, log, whole)
    _check_bad_content(learner, log)
    check_rebuilding(learner, log, whole)
    _check_draws(learner)
    _check_in_force(learner, whole)
    _check_long_blocks(learner)
    if audit is not None:
        verdict = audit(learner)
        require(verdict.passed, "; ".join(["the audit", *verdict.failures]), learner)


def _log(actions: int, *, seed: int) -> LossBatch:
    """Slots of a few keys with losses of every size, two bad rows, and gaps in the offsets."""
    slots = np.arange(SLOTS)
    tags = np.zeros((SLOTS, 16), dtype=np.uint8)
    words = SeededRandomness(seed).bits("kit log", Purpose.OPENING, tags, slots).words(0, actions)
    losses = (words >> np.uint64(40)).astype(np.float32) / np.float32(2**24)
    losses[[11, 40], [0, 1]] = [np.nan, np.inf]
    return LossBatch(KEYS, slots * 5 % 7 % len(KEYS), losses, slots * 2)


# -- the promises ------------------------------------------------------------------------------


def _check_value(learner: Leader) -> None:
    """Promise 1."""
    config = learner.to_config()
    text = all(isinstance(word, str) for pair in config.items() for word in pair)
    require(learner.recipe in RECIPES, "a recipe that is registered", learner)
    require(text, "a configuration is text", learner)
    again = _read(learner, config)
    require(again == learner, "its configuration is the learner again", learner)
    require(hash(again) == hash(learner), "equal learners have equal hashes", learner)
    require(again.digest() == learner.digest(), "equal learners have equal digests", learner)
    require(str(learner).startswith(learner.recipe), "its line begins with its recipe", learner)
    others = [learner_of(config, actions=learner.actions[::-1])]
    if "epsilon" in config:
        others.append(_read(learner, config | {"epsilon": "0.0625"}))
    for other in others:
        distinct = other.digest() != learner.digest() and other != learner
        require(distinct, "another learner has another digest", learner)


def _read(learner: Leader, config: Mapping[str, str]) -> Leader:
    """The learner of a configuration for the same actions."""
    try:
        return learner_of(config, actions=learner.actions)
    except InvalidConfig as error:
        raise AssertionError(f"its configuration can be read: {error} ({learner})") from error


def _check_price(learner: Leader) -> None:
    """Promise 2: at corners of the cube of losses, on bases near, far, ahead and behind."""
    actions = len(learner.actions)
    corners = np.array(list(product((0, 1), repeat=actions)))
    for others in (0, 3, 31, 255):
        graded = others * np.arange(actions) // (2 * actions)
        ahead = others * (1 - np.eye(actions, dtype=np.int64))
        for base in [np.zeros(actions, dtype=np.int64), graded, *ahead, *(others - ahead)]:
            for favoured in range(actions) if learner.bonus else (0,):
                sums = (base + corners) * UNIT
                logs = [learner.log_probabilities(row, in_force=favoured) for row in sums]
                sound = np.isfinite(logs).all() and np.ptp(logs, axis=0).max() <= _charge(learner)
                require(sound, "a replaced loss vector costs at most the charge", learner)


def _charge(learner: Leader) -> float:
    return float(learner.charge or 0) + TOLERANCE


def _check_determinism(learner: Leader, log: LossBatch, whole: Ran) -> None:
    """Promise 3."""
    again = run(learner, [log])
    require(again.releases == whole.releases, "the same seed, the same releases", learner)
    require(again.rows == whole.rows, "the same seed, the same rows", learner)


def _check_boundaries(learner: Leader, log: LossBatch, whole: Ran) -> None:
    """Promise 6: other content, bad content, extreme content."""
    nothing, everything = np.full_like(log.losses, np.nan), np.full_like(log.losses, 1e30)
    for losses in (_log(len(learner.actions), seed=2).losses, nothing, everything):
        other = run(learner, [LossBatch(log.keys, log.index, losses, log.offsets)], seed=2)
        same = list(map(_public, other.releases)) == list(map(_public, whole.releases))
        require(same, "which releases there are does not depend on content", learner)


def _public(release: Release) -> tuple[object, ...]:
    """The public part of a release: all but its value."""
    offsets = release.first_offset, release.last_offset
    return release.identity, release.start, release.stop, *offsets, release.epsilon


def _check_bad_content(learner: Leader, log: LossBatch) -> None:
    """Promise 7: a bad row anywhere is the null loss there."""
    bad, null = log.losses.copy(), log.losses.copy()
    bad[::3, 0] = np.nan
    null[~np.isfinite(bad).all(axis=1)] = 0.5
    runs = [
        run(learner, [LossBatch(log.keys, log.index, losses, log.offsets)])
        for losses in (bad, null)
    ]
    same = runs[0].releases == runs[1].releases and runs[0].rows == runs[1].rows
    require(same, "bad content is the null loss in its slot", learner)


def _check_draws(learner: Leader) -> None:
    """Promise 9: many keys with the same losses of 0 and 1, so that resampling changes nothing."""
    schedule, actions = learner.schedule, len(learner.actions)
    block = next((b for b in range(1, 6) if schedule.stop(b) - schedule.start(b) > 2), 1)
    slots = np.arange(1, schedule.stop(block))
    losses = ((slots[:, None] + 2 * np.arange(actions)) % (np.arange(actions) + 2) == 0) * 1
    index = np.tile(np.arange(DRAWN_KEYS), len(slots))  # so that releases of a block are by key
    batch = LossBatch(
        keys=[b"%d" % key for key in range(DRAWN_KEYS)],
        index=index,
        losses=np.repeat(losses, DRAWN_KEYS, axis=0).astype(np.float32),
        offsets=np.arange(len(index)),
    )
    releases = new_engine(learner).apply_batch(batch)
    chosen = releases.kind == releases.kinds.index(ACTION)
    after = releases.value[chosen & (releases.block == block)]
    standing = releases.value if releases.in_force is None else releases.in_force
    before = standing[chosen & (releases.block == block - 1)]
    for favoured in np.unique(before).tolist():
        law = _law(learner, losses, block, favoured)
        fits = chi_square(after[before == favoured], law) > FALSE_ALARM / MOST_ACTIONS
        require(fits, "draws follow the law", learner)


def _check_in_force(learner: Leader, whole: Ran) -> None:
    """Promise 10: computed again from what each release says, one vote at a time."""
    known: dict[Key, Standing] = {}
    for release in whole.releases:
        if release.kind == OPENING:
            nothing = np.zeros((1, learner.memory.width), dtype=np.int64)
            known[release.key] = Standing(np.array([release.value]), nothing)
        else:
            vote, length = np.array([release.value]), np.array([release.stop - release.start])
            known[release.key] = learner.memory.after(known[release.key], vote, length)
        in_force = int(known[release.key].in_force[0])
        require(in_force == release.standing, "what is in force follows from the releases", learner)
    for key, standing in known.items():
        action = learner.actions[int(standing.in_force[0])]
        require(whole.engine.action(key) == action, "an engine says what is in force", learner)


def _check_long_blocks(learner: Leader) -> None:
    """Promise 11."""
    faults = misdeeds(learner, longest=_LONG_BLOCK)
    require(not faults, "; ".join(["in long blocks", *faults]), learner)


def _law(learner: Leader, losses: Ints, block: int, favoured: int) -> Floats:
    """The chances after a block with these losses: over its windows, the mean of their laws."""
    begin, end = (
        (0 if learner.window == "running" else learner.schedule.start(block) - 1),
        len(losses),
    )
    half = (end - begin) // 2
    ends = range(begin + half + 1, end + 1) if learner.window == "random_prefix" else (end,)
    laws = [
        np.exp(learner.log_probabilities(losses[begin:last].sum(axis=0) * UNIT, in_force=favoured))
        for last in ends
    ]
    return np.asarray(np.mean(laws, axis=0))
