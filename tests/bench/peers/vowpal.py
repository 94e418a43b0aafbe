"""Vowpal Wabbit in a made-up world with contexts: no privacy, and each reward known at once.

Reads a world as JSON from the standard input; prints the regret in percent of uniform play's. Each
event has a feature for each field's level; an action has one of its own. Both, and each pair of
fields with the action, are crossed (`--interactions`), so every effect that the world may have, but
for single cells, can be learned.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module

import numpy as np

INTERACTIONS = "-q sa --interactions ssa"


def main() -> None:
    """Play every event."""
    asked = json.load(sys.stdin)
    rng = np.random.default_rng([asked["seed"], 9])
    phases = np.array(asked["rates"])
    slots, shape = asked["slots"], asked["shape"]
    actions = phases.shape[2]
    levels = np.stack(np.unravel_index(np.arange(phases.shape[1]), shape), axis=1).tolist()
    shared = ["shared |s " + " ".join(f"f{n}={at}" for n, at in enumerate(of)) for of in levels]
    plain = [f"|a a={action}" for action in range(actions)]
    learner = import_module("vowpalwabbit").Workspace(
        f"--quiet {asked['options']} {INTERACTIONS} --random_seed {asked['seed']}"
    )
    lost = uniform = 0.0
    cells = rng.choice(len(levels), size=slots, p=np.array(asked["shares"]))
    draws, clicks = rng.random(slots), rng.random(slots)
    for at, cell in enumerate(cells.tolist()):
        rates = phases[at * len(phases) // slots, cell]
        chances = learner.predict([shared[cell], *plain])
        total = np.cumsum(chances)
        action = min(int(np.searchsorted(total, draws[at] * total[-1])), actions - 1)
        cost = -float(clicks[at] < rates[action])
        lines = plain.copy()
        lines[action] = f"0:{cost}:{chances[action]} {plain[action]}"
        learner.learn([shared[cell], *lines])
        lost += rates.max() - rates[action]
        uniform += rates.max() - rates.mean()
    print(100 * lost / uniform)


if __name__ == "__main__":
    main()
