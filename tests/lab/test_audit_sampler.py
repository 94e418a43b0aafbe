"""Does the χ² test of whole transcripts pass the shipped engine? Broken ones: `test_mutants`.

All seeds are fixed. A sound engine fails one of these tests with probability at most 1e-9 each.
"""

from __future__ import annotations

import numpy as np
import pytest

from streamdp.core.arrays import Ints
from streamdp.core.evidence.contexts import Contexts
from streamdp.core.kinds.kind import Kind
from streamdp.core.learners import Leader, learner_of
from streamdp.core.learners.feedback import FEEDBACK_RECIPES
from streamdp.core.randomness import (
    Purpose,
    Randomness,
    SeededRandomness,
    SystemRandomness,
)
from streamdp.lab.audit import Chi2, Findings, sampler
from streamdp.lab.audit.sampler import chi2
from streamdp.lab.commands.audit import SHIPPED
from tests.support.structures import one_of_each


def shipped(options: dict[str, str], *, actions: int = 2) -> Leader:
    names = [f"a{i}" for i in range(actions)]
    return learner_of({**options, "epsilon": "3"}, actions=names)


def sample(kind: Kind, *, randomness: Randomness, samples: int) -> Chi2:
    """The test of a kind's choices over two blocks."""
    ((_, fit),) = sampler.sample(kind, randomness=randomness, samples=samples)
    return fit


@pytest.mark.slow
@pytest.mark.parametrize(
    "learner",
    one_of_each(
        (shipped(options, actions=3) for options in SHIPPED),
        and_of_each=lambda learner: type(learner.choose),
    ),
    ids=str,
)
def test_transcripts_of_the_shipped_engine_follow_their_law(learner: Leader) -> None:
    """Of each structure and kind of choice; with two actions in `test_audit_exact`."""
    fit = sample(learner, randomness=SeededRandomness(11), samples=20_000)
    assert fit.passed, fit
    assert fit.samples == 60_000  # openings, and two choices of each key


def test_system_randomness_follows_the_law_too() -> None:
    """Unseeded; fails a sound engine with probability at most 1e-9."""
    learner = shipped(SHIPPED[0], actions=3)
    assert sample(learner, randomness=SystemRandomness(), samples=20_000).passed


def test_a_seed_that_is_used_again_on_changed_data_gives_an_event_away() -> None:
    """Redrawn with the same bits after an event was replaced: some pairs of releases never come.

    Each draw alone follows its law, so no χ² of single draws sees it. But an action that wins while
    it is behind wins with the same bits while it is ahead: a pair that fresh bits give one time in
    eighty never comes, and an observer of both is certain. That is why a release is read back.
    """
    learner = shipped({"recipe": "noisy_leader", "noise": "exponential"})
    tags = np.zeros((4000, 16), dtype=np.uint8)
    first_behind = np.array([[1 << 20, 0]]).repeat(4000, axis=0)
    first_ahead = first_behind[:, ::-1].copy()

    def drawn(sums: Ints, seed: int) -> Ints:
        bits = SeededRandomness(seed).bits("s", Purpose.SELECTION, tags, np.arange(4000))
        return learner.choose.select(sums, bits)

    wins_behind = drawn(first_behind, 1) == 0
    assert 300 < wins_behind.sum() < 600
    assert not (wins_behind & (drawn(first_ahead, 1) == 1)).any()
    assert (wins_behind & (drawn(first_ahead, 2) == 1)).any()


def test_chi2_pools_what_is_rare() -> None:
    expected = np.array([50.0, 40.0, 4.0, 3.0, 3.0])
    fit = chi2(np.array([50, 40, 4, 3, 3]), expected)
    assert fit.statistic == 0
    assert fit.passed
    assert not Chi2(fit.limit + 1, fit.limit, 100).passed
    rare = np.array([60.0, 39.0, 1.0])
    assert chi2(np.array([60, 40, 0]), rare).statistic < 1
    assert not chi2(np.array([0, 0, 100]), rare).passed


def test_noise_is_compared_where_keys_have_it() -> None:
    """Keys of one table that gets finer are at tables of their own: a number of the finer ones has
    noise for some of them alone.
    """
    fields = Contexts.read({"device": ["phone"]})
    kind = FEEDBACK_RECIPES["policy_contexts"](
        actions=fields.arms(("a", "b")), epsilon="1", context=fields, played="value"
    )
    few = Findings(kind, 0, 256).few
    tests = list(
        sampler.sample(few, randomness=SeededRandomness("audit"), samples=200, longest=256)
    )
    assert len({fit.samples for _, fit in tests}) > 1
    assert all(fit.passed for _, fit in tests)
