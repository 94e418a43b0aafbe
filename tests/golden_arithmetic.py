"""What each named arithmetic makes of fixed histories: one digest for each name, for good.

Memories and policies are computed again from ledgers that other versions wrote. A ledger says how
by a name: a memory's name, a feedback learner's recipe with its options. So **a name stands for one
arithmetic**: whoever changes what is computed, by a single bit, gives it a new name, and the old
name goes on computing the old thing. There is no version number beside the names, which could be
forgotten: this file fails instead.

    python -m tests.golden    # adds names that are new here; it never changes a line of them
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from fractions import Fraction
from hashlib import sha256
from inspect import signature
from pathlib import Path

import numpy as np

from streamdp.core.evidence import Standing, VoteFilter
from streamdp.core.grid import UNIT
from streamdp.core.learners.feedback import FEEDBACK_RECIPES, PolicyLearner
from streamdp.lab.play import totals
from tests.golden_engine import plain
from tests.support.histories import history_after, nothing_known, policy_after

GOLDEN = Path(__file__).parent / "golden" / "arithmetic.json"
ROWS, BLOCKS, VOTES = 8, 24, 300
_HOUSE = "streamdp."  # tests register recipes of their own
OPTIONS: dict[str, list[dict[str, str]]] = {
    "policy_blocks": [
        {},
        {"schedule": "capped 64", "forgetting": "3/4", "spread": "1", "floor": "4"},
        {"played": "value"},
    ],
    "policy_following": [
        {},
        {"schedule": "capped 64", "hazard": "1/9", "spread": "6/5", "floor": "8"},
        {"played": "value"},
        {"spread": "1"},
        {"spread": "1", "played": "value"},
    ],
    "policy_elimination": [{}, {"schedule": "capped 4096", "forgetting": "7/8"}],
    "policy_weights": [{}, {"mixing": "1/10", "schedule": "geometric 2"}],
}
"""Of private recipes of feedback: some options that change what is computed, beside defaults."""


def private() -> list[str]:
    """The shipped recipes that a service runs, so that a ledger may name them."""
    shipped = [
        name for name, made in FEEDBACK_RECIPES.items() if made.__module__.startswith(_HOUSE)
    ]
    return [name for name in shipped if "epsilon" in signature(FEEDBACK_RECIPES[name]).parameters]


def arithmetics() -> Iterator[tuple[str, str]]:
    """Each name with the digest of what it computes."""
    yield from recipes(private())
    yield from memories()


def recipes(named: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Those of some learners of feedback."""
    for recipe in named:
        for options in OPTIONS.get(recipe, [{}]):
            for actions in (2, 5, 40):
                names = [str(arm) for arm in range(actions)]
                learner = plain(FEEDBACK_RECIPES[recipe], names, **options)
                arms = len(learner.actions)
                yield f"{learner.recipe.learner} of {arms}", of_policies(learner)


def memories() -> Iterator[tuple[str, str]]:
    """Those of memories of votes."""
    for actions, since, hazard in ((2, 3, "1/100"), (5, 64, "1/9"), (40, 1, "1/1000")):
        memory = VoteFilter(actions, since, Fraction(hazard))
        yield memory.name, of_votes(memory)


def of_policies(learner: PolicyLearner) -> str:
    """After each of some blocks of some keys: sums by arithmetic, from small to far out."""
    arms, digest = len(learner.actions), sha256()
    cells = np.arange(ROWS * arms, dtype=np.int64).reshape(ROWS, arms)
    state = nothing_known(learner, ROWS)
    for block in range(BLOCKS):
        length = learner.schedule.stop(block) - learner.schedule.start(block)
        shown = (cells * 7 + block * 3) % 11 * length // (11 * arms) + (cells + block) % 2
        noise = (cells * 7919 + block * 104_729) % 2001 - 1000
        swing = (cells % arms * 1400) // arms - 700 + noise * 3 // 10  # later arms are better
        gains = shown * swing * UNIT // 2000 + (cells * 31 + block) % 17 * UNIT - 8 * UNIT
        state = history_after(learner, state, *totals(learner, gains, shown).values())
        policy = policy_after(learner, state, np.full(ROWS, block + 1, dtype=np.int64))
        digest.update(policy.astype("<u4").tobytes())
    return digest.hexdigest()


def of_votes(memory: VoteFilter) -> str:
    """What is in force and remembered after each of some votes of some keys."""
    keys, digest = np.arange(ROWS, dtype=np.int64), sha256()
    standing = Standing(keys % memory.actions, np.zeros((ROWS, memory.width), dtype=np.int64))
    for number in range(VOTES):
        best, odd = number // 60 + keys, (number * 37 + keys * 11) % 7 == 0
        votes = np.where(odd, number * 13 + keys, best) % memory.actions
        standing = memory.after(standing, votes, np.full(ROWS, number + 1, dtype=np.int64))
        digest.update(standing.in_force.astype("<i8").tobytes())
        digest.update(standing.remembered.astype("<i8").tobytes())
    return digest.hexdigest()


def known() -> dict[str, str]:
    """The digests that hold for good."""
    digests: dict[str, str] = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
    return digests


def main() -> None:
    """Add what has no line yet."""
    lines = dict(arithmetics()) | known()
    GOLDEN.write_text(json.dumps(lines, indent=1, ensure_ascii=False) + "\n")
