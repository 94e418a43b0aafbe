"""Makes `tests/golden/obp.json`: what Open Bandit Pipeline says of small logs.

obp needs torch, pandas and more, so it is no dependency of ours, not even of the tests. In an
environment of its own, outside the repository:

    python -m venv obp && obp/bin/pip install "obp==0.4.1" "numpy<2" "scikit-learn<1.6"
    obp/bin/python tests/obp_numbers.py > tests/golden/obp.json

The logs stand in the file with the numbers, so that a test depends on nobody's generator.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from typing import Any

import numpy as np


def log_of(seed: int, *, records: int, actions: int, guessed: bool) -> dict[str, Any]:
    """A log with propensities, a policy for each record, and guesses of the rewards."""
    chance = np.random.default_rng(seed)
    given = chance.dirichlet(np.full(actions, 2.0), records)
    action = np.array([chance.choice(actions, p=row) for row in given])
    reward = (chance.random(records) < 0.2 + 0.6 * action / actions).astype(float)
    if guessed:
        reward = np.round(chance.random(records), 6)
    policy = chance.dirichlet(np.ones(actions), records)
    best = np.zeros((records, actions))
    best[np.arange(records), chance.integers(0, actions, records)] = 1.0
    return {
        "action": action.tolist(),
        "reward": reward.tolist(),
        "pscore": given[np.arange(records), action].tolist(),
        "policy": policy.tolist(),
        "deterministic": best.tolist(),
        "guesses": chance.random((records, actions)).tolist(),
    }


def said_of(log: dict[str, Any]) -> dict[str, float]:
    """What obp's estimators say."""
    obp = import_module("obp.ope")
    columns = {name: np.array(log[name]) for name in ("action", "reward", "pscore")}
    position = np.zeros(len(columns["action"]), dtype=int)
    shared = {**columns, "position": position, "action_dist": np.array(log["policy"])[:, :, None]}
    guesses = np.array(log["guesses"])[:, :, None]
    single = np.array(log["deterministic"])[:, :, None]
    return {
        "ips": obp.InverseProbabilityWeighting().estimate_policy_value(**shared),
        "snips": obp.SelfNormalizedInverseProbabilityWeighting().estimate_policy_value(**shared),
        "dr": obp.DoublyRobust().estimate_policy_value(
            **shared, estimated_rewards_by_reg_model=guesses
        ),
        "replay": obp.ReplayMethod().estimate_policy_value(
            reward=columns["reward"],
            action=columns["action"],
            action_dist=single,
            position=position,
        ),
    }


def main() -> None:
    """Print the file."""
    logs = [
        log_of(1, records=40, actions=2, guessed=False),
        log_of(2, records=60, actions=5, guessed=True),
        log_of(3, records=25, actions=12, guessed=True),
    ]
    numbers = {"obp": "0.4.1", "logs": [{**log, "said": said_of(log)} for log in logs]}
    json.dump(numbers, sys.stdout)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
