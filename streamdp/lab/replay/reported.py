"""A replay of losses as JSON: what `--json` writes, and all that the page shows. NOT PRIVATE.

It begins with what was at stake, in the units of the log. Figures of the log itself (each action's
and each key's loss) stand beside those of the learners.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from streamdp.core.grid import UNIT
from streamdp.core.kinds.recipe import config_of
from streamdp.lab.common.answer import Answer
from streamdp.lab.common.cells import epsilon_option
from streamdp.lab.logs.log import key_text
from streamdp.lab.replay.figures import bounds, gap, share_reached, timeline
from streamdp.lab.replay.replaying import Replay
from streamdp.lab.replay.summary import (
    firsts,
    lead,
    middle,
    summary,
)
from streamdp.wire.unprotected import labelled

MOST_KEYS = 30
"""Keys with figures of their own; further ones are only counted."""

_SLICES = 50


def as_json(replay: Replay) -> dict[str, object]:
    """The report's content as JSON."""
    points, question, shown = replay.base.points, replay.question, middle(replay)
    facts: dict[str, object] = {
        "log": replay.log,
        "lead": lead(replay),
        "summary": [said._asdict() for said in summary(replay)],
        "actions": list(replay.actions),
        "slots": replay.slots,
        "keys": len(replay.summed.rows),
        "null_slots": replay.summed.nulls,
        "clipped_slots": replay.summed.clipped,
        "seeds": list(question.seeds),
        "stream": question.stream,
        "epoch": question.epoch,
        "gap_in_hindsight": gap(replay),
        "points": points.tolist(),
        "uniform_regret": replay.base.uniform_regret.tolist(),
        "best_fixed_loss": replay.base.best.tolist(),
        "loss_by_action": {
            name: float(total) / replay.slots
            for name, total in zip(
                replay.actions, replay.summed.totals.sum(axis=0) / UNIT, strict=True
            )
        },
        "best_for_keys": np.bincount(
            replay.summed.totals.argmin(axis=1), minlength=len(replay.actions)
        ).tolist(),
        "shown": {
            "learner": shown.cell.name,
            "epsilon": epsilon_option(shown.cell.epsilon),
            "slots_open": shown.charge.open_slots,
        },
        "by_key": list(_by_key(replay, shown)),
        "in_force": _in_force(replay),
        "cells": list(_cells(replay)),
    }
    return labelled(facts)


def _by_key(replay: Replay, shown: Answer) -> Iterator[dict[str, object]]:
    """The keys with the most slots: their best action, and the shown learner's regret there."""
    keys = replay.summed.rows.keys
    for place, row in enumerate(replay.summed.order[:MOST_KEYS].tolist()):
        (partition, key), many = keys[row], int(replay.summed.slots[row])
        totals = replay.summed.totals[row] / UNIT
        yield {
            "key": key_text(key, partition),
            "slots": many,
            "best_action": replay.actions[int(totals.argmin())],
            "best_loss": float(totals.min()) / many,
            "uniform_loss": float(totals.mean()) / many,
            "regret": float(shown.by_key[place]),
        }


def _in_force(replay: Replay) -> dict[str, object]:
    """The action most often in force, by stretches of the longest key; and the best of each 1/50.

    A stretch is [first slot, slot after the last, action], and the share of seeds.
    """
    slots = replay.summed.longest
    return {
        "learner": replay.question.candidates[0].text,
        "slots": slots,
        "best_by_slice": _best_by_slice(replay),
        "runs": [
            {
                "epsilon": epsilon_option(answer.cell.epsilon),
                "stretches": [
                    [stretch.start, stretch.stop, stretch.action, stretch.share]
                    for stretch in timeline(answer, slots=slots)
                ],
            }
            for answer in firsts(replay)
        ],
    }


def _best_by_slice(replay: Replay) -> list[list[int]]:
    """The best action of each fiftieth of the longest key."""
    slots, longest = replay.summed.longest, replay.summed.sums.of(range(1))
    points = replay.base.points[replay.base.points <= slots]
    wanted = np.linspace(0, slots, _SLICES + 1)[1:]
    cuts = np.unique(points[np.minimum(np.searchsorted(points, wanted), len(points) - 1)])
    sums = longest.upto(np.zeros_like(cuts), cuts)
    best = np.diff(sums, axis=0, prepend=0).argmin(axis=1)
    starts = np.append(0, cuts[:-1]) + 1
    return [
        list(part) for part in zip(starts.tolist(), (cuts + 1).tolist(), best.tolist(), strict=True)
    ]


def _cells(replay: Replay) -> Iterator[dict[str, object]]:
    """Every cell once: a candidate that is also a baseline is a candidate."""
    running = [] if replay.running is None else [replay.running]
    roles = {
        answer.cell: role
        for role, answers in (
            ("running", running),
            ("leader", [replay.leader]),
            ("candidate", replay.answers),
        )
        for answer in answers
    }
    every = {answer.cell: answer for answer in (*replay.answers, replay.leader, *running)}
    for cell, answer in every.items():
        limit, best = bounds(replay, cell), answer.best
        yield {
            "learner": cell.name,
            "candidate": cell.candidate.text,
            "role": roles[cell],
            "epsilon": epsilon_option(cell.epsilon),
            "config": config_of(cell.learner),
            "regret": answer.mean,
            "standard_error": answer.error,
            "share_of_stake": share_reached(answer, replay),
            "regret_by_seed": answer.regret.tolist(),
            "settled_at": answer.settled,
            "regret_over_time": answer.course.mean.tolist(),
            "regret_band": [answer.course.low.tolist(), answer.course.high.tolist()],
            "best_in_force": best.tolist(),
            "charge": None if cell.learner.charge is None else str(cell.learner.charge),
            "bound": None
            if limit is None
            else {
                "regret": limit[1][-1],
                "source": limit[2],
                "slots": limit[0].tolist(),
                "over_time": limit[1].tolist(),
            },
            "ledger": None if cell.learner.charge is None else answer.charge.as_json(),
        }
