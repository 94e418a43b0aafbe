"""Does the audit see engines that go wrong only where blocks are long, keys many or bits real?

The broken engines are in `engine_mutants.py`. Seeds are fixed, but where the system's bits are
what is tested; a sound engine fails one of these tests with probability at most 1e-8. `make soak`
repeats what is random.
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Callable, Iterable

import numpy as np
import pytest

from streamdp.core.learners import Leader, learner_of
from streamdp.core.randomness import SystemRandomness
from streamdp.lab.audit import (
    Memo,
    audit_learner,
    flaws_of_races,
    flaws_of_system_bits,
    misdeeds,
    sample_long,
)
from streamdp.lab.audit.long_blocks import each_misdeed, slot_by_slot
from streamdp.lab.commands.audit import SHIPPED
from tests.support.engine_mutants import INCUMBENT, MUTANTS, Mutant
from tests.support.kind_mutants import folds_what_it_drew_from
from tests.support.remembering import remembering

pytestmark = pytest.mark.slow


TIMES = int(os.environ.get("STREAMDP_SOAK", "1"))
SYSTEM = SystemRandomness()


def shipped(options: dict[str, str], *, actions: int = 2) -> Leader:
    return learner_of({**options, "epsilon": "1"}, actions=["a", "b", "c"][:actions])


def findings(mutant: Mutant) -> Iterable[str]:
    """What the layer of the audit that is to find a broken engine finds, one by one."""
    if mutant.layer == "bits":
        return flaws_of_system_bits()
    if mutant.layer == "races":
        return flaws_of_races(mutant.learner.choose)
    if mutant.layer == "alone":
        return slot_by_slot(mutant.learner, mutant.estimates, mutant.longest, SYSTEM)
    return each_misdeed(mutant.learner, mutant.estimates, mutant.longest, SYSTEM)


@pytest.mark.parametrize("name", MUTANTS)
def test_is_a_broken_engine_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each passed an audit that went through three blocks; `said` is what is found."""
    mutant = MUTANTS[name]
    mutant.patch(monkeypatch)
    flaws: list[str] = []
    for what in findings(mutant):
        flaws.append(what)
        if re.search(mutant.said, what):
            return
    pytest.fail(f"found {flaws}")


def test_does_the_shipped_engine_pass_with_estimates() -> None:
    """Recipes and schedules go through the conformance kit; here are estimates, and 256 slots."""
    mutant = MUTANTS["halves_the_noise_of_long_blocks"]
    assert misdeeds(mutant.learner, mutant.estimates) == []


@pytest.mark.parametrize(
    "name",
    [
        "shortens_the_window_of_a_block_that_begins_with_a_null",
        "favours_the_best_of_long_blocks",
        "draws_again_where_the_worst_won",
        "is_good_while_it_is_watched",
    ],
)
def test_is_a_broken_engine_seen_from_outside(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing stands between the engine and its bits: what comes out does not follow the law."""
    mutant = MUTANTS[name]
    mutant.patch(monkeypatch)
    assert not sample_long(mutant.learner, randomness=SYSTEM, samples=4000, longest=64).passed


@pytest.mark.parametrize("options", [SHIPPED[0], SHIPPED[2], SHIPPED[6]])
def test_do_releases_of_long_blocks_follow_their_law(options: dict[str, str]) -> None:
    """Under the system's bits, for whole blocks, windows and resampled losses; 1e-9 each."""
    for _ in range(TIMES):
        learner = shipped(options, actions=3)
        fit = sample_long(learner, randomness=SYSTEM, samples=4000, longest=64)
        assert fit.passed, fit


def test_is_a_broken_engine_a_failed_audit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The verdict of `streamdp audit` says what is wrong."""
    mutant = MUTANTS["favours_the_best_of_long_blocks"]
    sound = Memo()
    assert audit_learner(mutant.learner, samples=5000, longest=64, memo=sound).failures == ()
    mutant.patch(monkeypatch)
    known = Memo(leaks=sound.leaks, races=sound.races, bits=sound.bits)  # of what is not broken
    audit = audit_learner(mutant.learner, samples=5000, longest=64, memo=known)
    assert audit.verdict == "FAILS"
    assert any("the bonus is not what earlier releases say" in what for what in audit.failures)
    assert any(what.startswith("releases of long blocks: χ²") for what in audit.failures)


# -- what is in force -----------------------------------------------------------------------------


def test_is_what_is_in_force_recomputed_from_releases(monkeypatch: pytest.MonkeyPatch) -> None:
    """A learner that remembers passes; one whose memory looks at the sums does not."""
    learner = remembering(shipped(INCUMBENT))
    assert misdeeds(learner, longest=64) == []

    folds_what_it_drew_from(monkeypatch, shortest=16)
    flaws = misdeeds(learner, longest=64)
    assert any("a release does not say what is in force after it" in what for what in flaws)
    assert any("the bonus is not what earlier releases say" in what for what in flaws)


# -- the bits of production -----------------------------------------------------------------------

Entropy = Callable[[int], bytes]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (lambda entropy: lambda count: entropy(4) * 8, "asks for"),
        (lambda entropy: lambda count: entropy(count // 2) * 2, "asks for"),
        (lambda entropy: lambda count: entropy(count)[:4] * 8, "not AES-256"),
        (lambda entropy: lambda count: zlib.crc32(entropy(count)).to_bytes(32, "big"), "not AES"),
        (lambda entropy: lambda count: entropy(count)[:31] + b"\0", "not AES-256"),
    ],
)
def test_is_a_key_with_less_entropy_found(changed: Callable[[Entropy], Entropy], said: str) -> None:
    """Whatever is made of the operating system's bytes: 256 bits of them have to be the key."""
    assert flaws_of_system_bits() == []
    flaws = flaws_of_system_bits(lambda entropy: SystemRandomness(changed(entropy)))
    assert any(said in what for what in flaws), flaws


def test_is_every_batch_of_draws_keyed_anew() -> None:
    """No first word comes twice; with keys of 32 bits, one of 400,000 (`make soak`) nearly surely
    would, however they were made. A false alarm: 1e-8 even there."""
    tags, one = np.zeros((1, 0), np.uint8), np.zeros(1, np.int64)
    batches = 20_000 * TIMES
    words = {int(SYSTEM.bits("s", 1, tags, one).words(0, 1)[0, 0]) for _ in range(batches)}
    assert len(words) == batches
