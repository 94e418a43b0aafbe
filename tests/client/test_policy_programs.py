"""Do the programs of docs/policies.md compute every policy, and draw from it, as streamdp does?"""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import streamdp as sd
import streamdp.client
from docs.programs import policies as programs
from tests.support.deployment import accepted
from tests.support.histories import history_after, nothing_known, policy_after

PROGRAMS = Path(programs.__file__).parent
VECTORS = [Path(streamdp.client.__file__).parent / f"{of}.tsv" for of in ("choices", "filtered")]


@pytest.mark.slow
@pytest.mark.parametrize("arms", [2, 3, 5, 12])
def test_the_program_computes_the_policies_of_every_recipe(arms: int) -> None:
    """Bit for bit, through a dozen blocks, whether a header or the value says what was shown."""
    random = np.random.default_rng(arms)
    names = [f"arm {number}" for number in range(arms)]
    for recipe in ("policy_blocks", "policy_following", "policy_elimination", "policy_weights"):
        for played, on_sums, on_counts in (("header", 2.0, 0.0), ("value", 4.0, 16.0)):
            forgets = {} if recipe == "policy_following" else {"forgetting": "3/4"}
            make: Any = getattr(sd, recipe)
            learner = make(actions=names, epsilon="1/2", played=played, **forgets)
            noise = {"on_sums": on_sums / 0.25, "on_counts": on_counts / 0.25}
            state, w, g = nothing_known(learner), [0.0] * arms, [0.0] * arms
            hypotheses = [(0.0, w, g)] * 6
            for block in range(12):
                length = int(learner.schedule.lengths(np.array([block]))[0])
                shown = random.multinomial(length, [1 / arms] * arms)
                gains = (random.random(arms) - 0.6) * shown * 2**20
                sums = np.rint(gains + random.laplace(0, 2**21, arms)).astype(np.int64)
                drawn = (sums, shown)
                known = (sums.tolist(), shown.tolist())
                if played == "value":
                    noisy = np.rint(random.laplace(0, 2**21, arms)).astype(np.int64)
                    rewards, losses = shown * 2**19 + sums, shown * 2**19 - sums + noisy
                    drawn = (rewards, losses)
                    known = (
                        ((rewards - losses) / 2).tolist(),
                        ((rewards + losses) / 2**20).tolist(),
                    )
                state = history_after(learner, state, drawn[0][None], drawn[1][None])
                length = int(learner.schedule.lengths(np.array([block + 1]))[0])
                if recipe == "policy_following":
                    hypotheses = programs.following_learned(
                        hypotheses, known[0], known[1], hazard=Decimal("0.001"), **noise
                    )
                    laws = programs.mixed_posterior(hypotheses)
                    wide = float(Fraction(dict(learner.options)["spread"]))
                    policy = programs.blocks(*laws, spread=wide, shows=4 / 0.5, length=length)
                elif recipe == "policy_weights":
                    w, g = programs.weights_learned(w, g, *known, forgetting=0.75)
                    policy = programs.weights(w, g, mixing=0.05)
                else:
                    w, g = programs.learned(w, g, known[0], known[1], forgetting=0.75, **noise)
                    if recipe == "policy_blocks":
                        laws = programs.posterior(w, g)
                        policy = programs.blocks(*laws, spread=6 / 5, shows=8 / 0.5, length=length)
                    else:
                        policy = programs.elimination(w, g, width=2.5)
                theirs = policy_after(learner, state, np.array([block + 1]))[0]
                assert policy == theirs.tolist(), (recipe, played, block)


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(("node", PROGRAMS / "draw.mjs"), marks=pytest.mark.system("node"), id="Node"),
        pytest.param(
            ("java", PROGRAMS / "Draw.java"), marks=pytest.mark.system("javac"), id="Java"
        ),
    ],
)
def test_a_program_in_another_language_draws_as_choose_does(command: tuple[str, Path]) -> None:
    """From the folder of the test vectors; it ends with an error at the first that differs."""
    said = accepted(*command, folder=VECTORS[0].parent)
    draws = sum(len(file.read_text().splitlines()) - 1 for file in VECTORS)
    assert said == f"{draws} draws agree\n"
