"""`streamdp plan --changes-every`: what to expect when the best action changes.

The world of a plan (one action better than all others by the gap, Bernoulli losses) with one more
number: how many slots of a key the best action lasts on average. Then another action, drawn evenly,
becomes the best; the change comes anywhere within half that time before or after. The three
learners of `following` are compared: the default's memory, blocks that grow for ever, and memory's
blocks with the newest vote in force. The result is regret against the best action of each moment,
in losses: how much more is lost than by always playing the best action. All three see the same
losses and bits, so they are compared run by run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.random import default_rng  # noqa: TID251 - the times of made-up changes: no secret

from streamdp.core.errors import InvalidConfig, complaint
from streamdp.core.schedule import Schedule
from streamdp.lab.replay.cells import Cell, Epsilon, epsilon_text
from streamdp.lab.replay.figures import per_thousand
from streamdp.lab.replay.following import Result, contests, half_interval, result_of
from streamdp.lab.replay.instances import Instance
from streamdp.lab.replay.planning import Wish
from streamdp.lab.replay.simulate import SimulationSize, simulate

_WORK = 1 << 24  # blocks × actions × runs of one simulation
_RUNS = (8, 200)
_MOST_CHANGES = 10_000


@dataclass(frozen=True, slots=True)
class ChangePlan:
    """The expected regret of the three learners, the least first."""

    wish: Wish
    changes_every: int
    changes: int  # within the horizon
    result: Result

    @property
    def epsilon(self) -> Epsilon:
        """The ε of an event."""
        return self.result.epsilon

    @property
    def runs(self) -> int:
        """The number of simulated runs."""
        return len(self.result.winner.final)

    def mean_loss(self, regret: float) -> float:
        """The mean loss of a slot, by the regret at the horizon."""
        return self.wish.best + regret / self.wish.horizon


def plan_changes(wish: Wish, epsilon: Epsilon, *, every: int) -> ChangePlan:
    """Simulate memory, growing and capped blocks in a world that changes."""
    count = wish.horizon // every if every > 0 else 0
    if every < 1 or count > _MOST_CHANGES:
        raise InvalidConfig(
            complaint(
                "--changes-every",
                "slots",
                expected=f"{max(1, wish.horizon // _MOST_CHANGES)} or more",
                got=every,
            )
        )
    world = _world(wish, every, count)
    actions = [str(action) for action in range(wish.actions)]
    (contest,) = contests([epsilon], actions=actions, slots=1, seeds=1)
    cells: tuple[Cell, ...] = tuple(contest.cells.values())
    blocks = max(_blocks(cell.leader.schedule, wish.horizon) for cell in cells)
    runs = int(np.clip(_WORK // (blocks * wish.actions), *_RUNS))
    outcomes = simulate(
        [cell.candidate for cell in cells],
        [epsilon],
        instances=[world],
        bench=SimulationSize(runs=runs, horizon=wish.horizon, seed=wish.seed),
    )
    finals = {outcome.cell: outcome.regrets for outcome in outcomes}
    changes = sum(begin < wish.horizon for begin in world.starts(wish.horizon)[1:].tolist())
    return ChangePlan(wish, every, changes, result_of(contest, finals))


def _blocks(schedule: Schedule, horizon: int) -> int:
    return schedule.block_of(horizon) + 1


def _world(wish: Wish, every: int, count: int) -> Instance:
    """Another best action after each change; the last of them may come after the horizon."""
    generator = default_rng(wish.seed)
    shifts = generator.uniform(-0.5, 0.5, count)
    best, later = 0, []
    for at, shift in enumerate(shifts.tolist(), start=1):
        best = (best + 1 + int(generator.integers(wish.actions - 1))) % wish.actions
        later.append((min(1.0, (at + shift) * every / wish.horizon), _means(wish, best)))
    return Instance("changes", _means(wish, 0), tuple(later))


def _means(wish: Wish, best: int) -> tuple[float, ...]:
    return tuple(wish.best if action == best else wish.others for action in range(wish.actions))


def as_json(plan: ChangePlan) -> dict[str, Any]:
    """A plan in JSON."""
    wish, result = plan.wish, plan.result
    return {
        "changes_every": plan.changes_every,
        "changes": plan.changes,
        "actions": wish.actions,
        "epsilon": epsilon_text(plan.epsilon),
        "gap": wish.gap,
        "best_mean_loss": wish.best,
        "keys": wish.keys,
        "horizon": wish.horizon,
        "runs": plan.runs,
        "recommended": result.winner.cell.candidate.text,
        "cannot_be_told_from": [placed.cell.candidate.text for placed in result.tied],
        "learners": [
            {
                "kind": placed.kind.value,
                "learner": placed.cell.candidate.text,
                "regret": placed.mean,
                "interval": placed.half,
                "regret_in_1000_slots": per_thousand(placed.mean, wish.horizon),
                "mean_loss": plan.mean_loss(placed.mean),
                "regret_of_all_keys": placed.mean * wish.keys,
                "behind_recommended": float(placed.behind.mean()),
                "interval_of_difference": half_interval(placed.behind),
                "votes_of_a_key": _blocks(placed.cell.leader.schedule, wish.horizon + 1) - 1,
            }
            for placed in result.placed
        ],
    }
