"""Does the audit see engines that go wrong only where blocks are long, keys many or bits real?

The broken engines are in `engine_mutants.py`. Seeds are fixed, but where the system's bits are
what is tested; a sound engine fails one of these tests with probability at most 1e-8.
"""

from __future__ import annotations

import re

import pytest

from streamdp.audit import (
    flaws_of_races,
    flaws_of_system_bits,
    misdeeds,
    sample_long,
)
from streamdp.core.randomness import SystemRandomness
from tests.engine_mutants import MUTANTS, Mutant


def findings(mutant: Mutant) -> list[str]:
    """What the layers of the audit that look at the engine find."""
    learner = mutant.learner
    fit = sample_long(learner, randomness=SystemRandomness(), samples=2000, longest=64)
    return [
        *misdeeds(learner, mutant.estimates, longest=64),
        *flaws_of_system_bits(),
        *flaws_of_races(learner.choose),
        *([] if fit.passed else ["releases of long blocks"]),
    ]


@pytest.mark.parametrize("name", MUTANTS)
def test_a_broken_engine_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant = MUTANTS[name]
    mutant.patch(monkeypatch)
    found = findings(mutant)
    assert any(re.search(mutant.said, what) for what in found), found
