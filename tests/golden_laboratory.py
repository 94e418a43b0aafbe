"""What the laboratory answers: figures of ten replays, five simulations and three plans.

Each is a command on a small made-up log, and of its JSON the figures that do not hang on how it is
laid out. They are what the laboratory's rooms may be rebuilt on: a difference is another answer.

    python -m tests.golden laboratory    # writes all of them anew
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

GOLDEN = Path(__file__).parent / "golden" / "laboratory.json"

Json = Any
Asked = dict[str, tuple[str, ...]]

FIELDS = '{"device": ["phone", "desktop"], "country": ["de", "fr"]}'
PAPERS = "lazy_ucb,dp_se,adap_ucb"

ASKED: Asked = {
    "replay: losses": (
        "replay", "losses", "losses.ndjson", "--seeds", "4", "--epsilon", "0.1,1,inf",
        "--learners", "remembering_leader,incumbent_leader,prefix_softmax,follow_the_leader",
    ),
    "replay: losses of many keys, at any slot": (
        "replay", "losses", "keys.ndjson", "--seeds", "3", "--epsilon", "1/3,2,inf",
        "--learners", "remembering_leader:schedule=geometric 2 to 8,noisy_leader:noise=gumbel",
    ),
    "replay: losses of many short keys": (
        "replay", "losses", "short.ndjson", "--seeds", "2", "--epsilon", "1,inf",
        "--learners", "remembering_leader,prefix_softmax,follow_the_leader:window=running",
    ),
    "replay: losses of many short keys, as feedback": (
        "replay", "shown", "short.ndjson", "--seeds", "2", "--epsilon", "1",
        "--learners", "policy_following,thompson",
    ),
    "replay: losses drawn anew": (
        "replay", "losses", "losses.ndjson", "--seeds", "3", "--epsilon", "1",
        "--learners", "noisy_leader:noise=gumbel:resample=bernoulli",
    ),
    "replay: losses as feedback": (
        "replay", "shown", "keys.ndjson", "--seeds", "2", "--epsilon", "1",
        "--learners", "policy_following,policy_weights,thompson",
    ),
    "replay: losses as feedback, by phases": (
        "replay", "shown", "losses.ndjson", "--seeds", "2", "--epsilon", "1",
        "--learners", PAPERS,
    ),
    "replay: propensities": (
        "replay", "shown", "uneven.ndjson", "--seeds", "3", "--epsilon", "1,4",
        "--learners", "policy_blocks,policy_elimination,thompson",
    ),
    "replay: uniform draws": (
        "replay", "shown", "even.ndjson", "--seeds", "2", "--epsilon", "1",
        "--learners", "policy_following,policy_weights",
    ),
    "replay: uniform draws, by phases": (
        "replay", "shown", "even.ndjson", "--seeds", "2", "--epsilon", "2",
        "--learners", PAPERS,
    ),
    "replay: what a service released": (
        "replay", "shown", "even.ndjson", "--seeds", "1", "--epsilon", "1",
        "--logged", "service", "--learners", "policy_blocks:schedule=capped 256",
    ),
    "replay: contexts": (
        "replay", "shown", "even.ndjson", "--seeds", "2", "--epsilon", "4",
        "--context", FIELDS, "--learners", "policy_contexts,policy_blocks",
    ),
    "simulate: stationary": (
        "simulate", "--runs", "8", "--slots", "4096", "--epsilon", "1/2", "--learners",
        "remembering_leader,prefix_softmax,noisy_leader:noise=laplace,follow_the_leader",
    ),
    "simulate: drifting, beside learners without privacy": (
        "simulate", "--worlds", "drifting", "--runs", "8", "--slots", "8192", "--epsilon", "1",
        "--not-private",
    ),
    "simulate: feedback": (
        "simulate", "--observes", "feedback", "--runs", "6", "--slots", "4096", "--epsilon", "1",
        "--learners", "policy_blocks,policy_following,thompson", "--delay", "64",
    ),
    "simulate: feedback by phases": (
        "simulate", "--observes", "feedback", "--runs", "4", "--slots", "2048", "--epsilon", "1",
        "--learners", PAPERS, "--world", "graded",
    ),
    "simulate: contexts": (
        "plan", "--observes", "feedback", "--context", "3,3", "--horizon", "20000",
        "--epsilon", "1", "--interactions", "none", "--actions", "4", "--rate", "0.03",
        "--gap", "0.02",
    ),
    "plan: losses": (
        "plan", "--actions", "5", "--epsilon", "0.5,2", "--gap", "0.2", "--horizon", "2048",
    ),
    "plan: feedback": (
        "plan", "--observes", "feedback", "--actions", "4", "--epsilon", "1", "--gap", "0.1",
        "--rate", "0.1", "--horizon", "20000", "--learner", "policy_blocks",
    ),
    "plan: a best action that changes": (
        "plan", "--actions", "3", "--epsilon", "1", "--gap", "0.3", "--horizon", "2048",
        "--changes-every", "512",
    ),
}  # fmt: skip
"""The command of each; a log stands in the folder that it is called in."""


def logs(folder: Path) -> None:
    """Losses of one key and of many, and draws of which one is uniform."""
    chance = np.random.default_rng(40)
    worse = np.array([0.0, 0.15, 0.1, 0.2])
    losses = np.clip(chance.random((3000, 4)) + worse, 0, 1).round(4).tolist()
    actions = ["a", "b", "c", "d"]
    events: list[Json] = [{"losses": dict(zip(actions, row, strict=True))} for row in losses]
    _write(folder / "losses.ndjson", events)
    keys = [f"k{number}" for number in (chance.zipf(1.5, len(events)) % 7).tolist()]
    keyed = [event | {"key": key} for event, key in zip(events, keys, strict=True)]
    _write(folder / "keys.ndjson", keyed)
    short = [f"k{number}" for number in (np.arange(len(events)) * 7 % 800).tolist()]
    _write(folder / "short.ndjson", [e | {"key": k} for e, k in zip(events, short, strict=True)])
    for name, shares in (("uneven", [0.5, 0.2, 0.3]), ("even", [1 / 3] * 3)):
        _write(folder / f"{name}.ndjson", _shown(chance, shares))


def _shown(chance: np.random.Generator, shares: list[float]) -> Iterable[Json]:
    """6,000 draws: phones want the first action and desktops the last, whatever the country."""
    rates = {"phone": [0.6, 0.3, 0.2], "desktop": [0.2, 0.3, 0.5]}
    for _ in range(6000):
        device = "phone" if chance.random() < 0.7 else "desktop"
        action = int(chance.choice(3, p=shares))
        yield {
            "key": "home" if chance.random() < 0.9 else "away",
            "action": ("boots", "coats", "hats")[action],
            "reward": int(chance.random() < rates[device][action]),
            "pscore": shares[action],
            "device": device,
            "country": "de" if chance.random() < 0.5 else "fr",
        }


def _write(path: Path, events: Iterable[Json]) -> None:
    path.write_text("".join(json.dumps(event) + "\n" for event in events))


# -- the figures of an answer --------------------------------------------------------------------


def of_replay(told: Json) -> Json:
    """Each cell's regret, reward and charge; what the log itself has."""
    of_log = ("slots", "keys", "uniform_regret", "best_fixed_reward", "uniform_reward", "always")
    last = told.get("uniform_regret")
    kept = {name: told[name] for name in of_log if name in told}
    if last is not None:
        kept["uniform_regret"] = last[-1]
    if "always" in told:
        kept["always"] = {name: of["dr"]["value"] for name, of in told["always"].items()}
    if "releases" in told:
        kept["releases"] = sha256(json.dumps(told["releases"]).encode()).hexdigest()
    for part in ("cells", "as_live"):
        kept[part] = [_cell(cell) for cell in told.get(part, ())]
    return kept


def _cell(cell: Json) -> Json:
    names = (
        "learner", "epsilon", "regret", "standard_error", "settled_at", "regret_by_seed",
        "mean_reward", "mean_reward_by_seed", "records_met", "ledger",
    )  # fmt: skip
    found = {name: cell[name] for name in names if name in cell}
    if "value" in cell:
        found["value"] = {name: cell["value"][name]["value"] for name in ("ips", "snips", "dr")}
    return found


def of_simulation(told: Json) -> Json:
    """Each learner's regret in each world."""
    return [
        {
            "instance": of["world"],
            "learner": of["learner"],
            "epsilon": None if of["epsilon"] == "inf" else str(Fraction(of["epsilon"])),
            "mean_regret": of["regret"],
            "standard_error": of["standard_error"],
            "worst_percent": of["worst_percent"],
        }
        for of in told["answers"]
    ]


def of_plan(told: Json) -> Json:
    """The regret, when the best action is found, and each learner where it changes."""
    if isinstance(told, list):  # worlds with contexts
        return told
    (world,), rows = told["worlds"], told["answers"]
    if world["changes"]:
        best = min(rows, key=lambda of: of["regret"])
        return {
            "epsilon": best["epsilon"],
            "runs": best["runs"],
            "uniform_regret": world["uniform_regret"],
            "recommended": best["learner"],
            "changes": world["changes"],
            "learners": [
                {
                    "learner": of["learner"],
                    "regret": of["regret"],
                    "interval": 1.96 * of["standard_error"],
                    "behind_recommended": of["behind_best"],
                    "votes_of_a_key": of["blocks"],
                }
                for of in rows
            ],
        }
    names = ("learner", "epsilon", "runs", "regret", "standard_error")
    more = ("bound", "found_after", "found_after_by_formula")
    found = [
        {
            **{name: of[name] for name in names},
            "uniform_regret": world["uniform_regret"],
            **{name: of[name] for name in more},
        }
        for of in rows
    ]
    return found if len(found) > 1 else found[0]


FIGURES: Mapping[str, Callable[[Json], Json]] = {
    "replay": of_replay,
    "simulate": of_simulation,
    "plan": of_plan,
}


def answered(name: str, folder: Path, call: Callable[..., str]) -> Json:
    """The figures of one answer; `call` runs the program and gives what it prints."""
    command, *rest = ASKED[name]
    placed = [str(folder / part) if part.endswith(".ndjson") else part for part in rest]
    printed = call(command, *placed, *(["--json", "-"] if command == "replay" else ["--json"]))
    return FIGURES[command](json.loads(printed))


def differences(before: Json, now: Json, where: str = "") -> list[str]:
    """Where two answers differ: numbers by more than 1e-9 of them."""
    if isinstance(before, dict) and isinstance(now, dict) and before.keys() == now.keys():
        parts = [differences(of, now[name], f"{where}.{name}") for name, of in before.items()]
        return [line for part in parts for line in part]
    if isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        pairs = enumerate(zip(before, now, strict=True))
        parts = [differences(*pair, f"{where}[{at}]") for at, pair in pairs]
        return [line for part in parts for line in part]
    numbers = isinstance(before, int | float) and isinstance(now, int | float)
    same = math.isclose(before, now, rel_tol=1e-9, abs_tol=1e-9) if numbers else before == now
    return [] if same else [f"{where}: {before} was expected, got {now}"]


def _called(*arguments: str) -> str:
    """What the program prints."""
    whole = [sys.executable, "-m", "streamdp", *arguments]
    return subprocess.run(whole, check=True, stdout=subprocess.PIPE, text=True).stdout


def main() -> None:
    """Write the file anew."""
    with TemporaryDirectory() as folder:
        logs(Path(folder))
        found = {name: answered(name, Path(folder), _called) for name in ASKED}
    lines = [f"{json.dumps(name)}: {json.dumps(of)}" for name, of in found.items()]
    GOLDEN.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
