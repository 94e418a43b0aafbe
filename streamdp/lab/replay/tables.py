"""The report's tables of the log itself: each action's loss rate, and each key's.

They are computed from the log, so they are not private. No learner takes part in them, except for
one learner's regret with each key.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from streamdp.core.events import Key
from streamdp.lab.replay.cells import epsilon_text
from streamdp.lab.replay.figures import per_thousand
from streamdp.lab.replay.following import Placed, half_interval
from streamdp.lab.replay.replaying import Replay
from streamdp.lab.replay.summary import middle, number

Rows = Sequence[Sequence[str]]

MOST_ACTIONS = 30
MOST_KEYS = 30
"""Rows of a table; further rows are only counted."""


def by_action(replay: Replay) -> tuple[list[str], Rows]:
    """Each action's loss rate over the log, the least first, and how many keys it is best for."""
    totals, slots = replay.base.totals.sum(axis=0), replay.slots
    best = np.bincount(replay.base.totals.argmin(axis=1), minlength=len(replay.actions))
    order = np.argsort(totals, kind="stable")[:MOST_ACTIONS]
    rows = [
        [
            replay.actions[at],
            f"{totals[at] / slots:.4f}",
            number(per_thousand(float(totals[at] - totals.min()), slots)),
            f"{best[at]:,}",
        ]
        for at in order.tolist()
    ]
    head = ["action", "loss a slot", "more than the best, in 1,000 slots", "best for keys"]
    return head, rows


def by_key(replay: Replay) -> tuple[list[str], Rows]:
    """The keys with the most slots: their best action, and the shown learner's regret there."""
    shown, slots = middle(replay), replay.summed.slots
    totals, rows = replay.base.totals, []
    for row in np.argsort(-slots, kind="stable")[:MOST_KEYS].tolist():
        best, many = int(totals[row].argmin()), int(slots[row])
        regret = float(shown.curves.by_row[row].mean())
        rows.append(
            [
                key_text(replay.summed.rows.keys[row], replay.summed.rows.partitions[row]),
                f"{many:,}",
                replay.actions[best],
                f"{totals[row, best] / many:.4f}",
                f"{totals[row].mean() / many:.4f}",
                number(regret),
                number(per_thousand(regret, many)),
            ]
        )
    head = ["key", "slots", "best action", "its loss a slot", "uniform choice's"]
    return [*head, "regret", "in 1,000 slots"], rows


def by_following(replay: Replay) -> tuple[list[str], Rows]:
    """Memory, growing and capped blocks: two regrets each, and how far behind the winner."""
    rows = []
    above = replay.base.above_stretches
    for result in replay.followed:
        for placed in result.placed:
            half = placed.half
            interval = f" ± {number(half)}" if np.isfinite(half) else ""
            rows.append(
                [
                    epsilon_text(result.epsilon),
                    placed.kind.value,
                    placed.cell.name,
                    f"{number(placed.mean)}{interval}",
                    f"{number(placed.mean + above)}{interval}",
                    number(per_thousand(placed.mean + above, replay.slots)),
                    _behind(placed, won=placed is result.winner),
                ]
            )
    head = ["ε", "kind", "learner", "regret", "regret by stretch", "in 1,000 slots"]
    return [*head, "more than the winner"], rows


def _behind(placed: Placed, *, won: bool) -> str:
    """How much more than the winner a learner lost, and whether that is beyond chance."""
    if won:
        return "least"
    half = half_interval(placed.behind)
    if not np.isfinite(half):
        return number(float(placed.behind.mean()))
    chance = ", within chance" if placed.alike else ""
    return f"{number(float(placed.behind.mean()))} ± {number(half)}{chance}"


def key_text(key: Key, partition: int) -> str:
    """A key for people."""
    name = "(no key)" if key is None else key.decode(errors="backslashreplace")
    return name if partition == 0 else f"{name} in partition {partition}"
