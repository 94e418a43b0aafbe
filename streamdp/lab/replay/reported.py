"""A replay of losses as JSON: what `--json` writes, and all that the page shows. NOT PRIVATE.

It begins with what was at stake, in the units of the log. Figures of the log itself (each action's
and each key's loss) stand beside those of the learners.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from streamdp.core.kinds.recipe import config_of
from streamdp.lab.common.answer import BAND
from streamdp.lab.common.cells import epsilon_option, epsilon_text
from streamdp.lab.common.words import counted, number, per_thousand
from streamdp.lab.logs.log import key_text
from streamdp.lab.replay import following
from streamdp.lab.replay.figures import Z, bounds, gap, settled_at, share_reached, timeline
from streamdp.lab.replay.replaying import Replay, ReplayAnswer
from streamdp.lab.replay.summary import (
    best_without_privacy,
    cannot_be_told_apart,
    firsts,
    middle,
    share_text,
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
            for name, total in zip(replay.actions, replay.base.totals.sum(axis=0), strict=True)
        },
        "best_for_keys": np.bincount(
            replay.base.totals.argmin(axis=1), minlength=len(replay.actions)
        ).tolist(),
        "shown": {
            "learner": shown.cell.name,
            "epsilon": epsilon_option(shown.cell.epsilon),
            "slots_open": 0 if shown.charged is None else shown.charged.open_slots,
        },
        "by_key": list(_by_key(replay, shown)),
        "in_force": _in_force(replay),
        "following": following.as_json(
            replay.followed,
            above=replay.base.above_stretches,
            stretches=len(following.stretch_ends(points, replay.summed.longest)),
        ),
        "cells": list(_cells(replay)),
    }
    return labelled(facts)


def lead(replay: Replay) -> dict[str, str]:
    """What was compared, what it is worth in losses, and how sure that is."""
    epsilon, stake = middle(replay).cell.epsilon, float(replay.base.uniform_regret[-1])
    rivals = [answer for answer in replay.answers if answer.cell.epsilon == epsilon]
    best = min(rivals, key=lambda answer: answer.mean)
    keys, seeds = len(replay.summed.rows), len(replay.question.seeds)
    learners, budgets = len(replay.question.candidates), len(replay.question.epsilons)
    compared = (
        f"{counted(learners, 'learner')} at {counted(budgets, 'budget')} on"
        f" {replay.slots:,} slots of {counted(keys, 'key')} and {len(replay.actions)} actions."
    )
    if stake <= 0:
        worth = "Nothing was at stake: every action has lost the same."
        return {"compared": compared, "worth": worth, "sure": f"Over {counted(seeds, 'seed')}."}
    of = "" if keys > 1 else f" ({replay.actions[int(replay.base.totals[0].argmin())]})"
    gained = stake - best.mean
    amount = f"{number(abs(gained))} of {number(stake)} losses"
    rate = f"{number(per_thousand(abs(gained), replay.slots))} in a thousand slots"
    start = f"At ε = {epsilon_text(epsilon)} {best.cell.name}"
    over = f"the best fixed action{of} gains over uniform play"
    worth = f"{start} reached {share_text(best, replay)} of what {over}: {amount}, {rate}."
    if gained < 0:
        worth = f"{start} lost more than uniform play, by {amount} that {over}, {rate}."
    free = best_without_privacy(replay)
    if free is not best:
        worth += f" Without privacy {free.cell.name} reached {share_text(free, replay)}."
    sure = "One seed: how sure that is cannot be said."
    if seeds > 1:
        sure = (
            f"± {number(Z * best.error)} losses with 95 % over {seeds} seeds, on this log; another"
            " log may differ."
        )
    tied = [a.cell.name for a in rivals if a is not best and cannot_be_told_apart(a, best)]
    if tied:
        sure += f" On these seeds it cannot be told from {' and '.join(tied)}."
    return {"compared": compared, "worth": worth, "sure": sure}


def _by_key(replay: Replay, shown: ReplayAnswer) -> Iterator[dict[str, object]]:
    """The keys with the most slots: their best action, and the shown learner's regret there."""
    totals, slots = replay.base.totals, replay.summed.slots
    for row in np.argsort(-slots, kind="stable")[:MOST_KEYS].tolist():
        many = int(slots[row])
        yield {
            "key": key_text(replay.summed.rows.keys[row], replay.summed.rows.partitions[row]),
            "slots": many,
            "best_action": replay.actions[int(totals[row].argmin())],
            "best_loss": float(totals[row].min()) / many,
            "uniform_loss": float(totals[row].mean()) / many,
            "regret": float(shown.curves.by_row[row].mean()),
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
    row, slots = int(replay.summed.slots.argmax()), replay.summed.longest
    points = replay.base.points[replay.base.points <= slots]
    wanted = np.linspace(0, slots, _SLICES + 1)[1:]
    cuts = np.unique(points[np.minimum(np.searchsorted(points, wanted), len(points) - 1)])
    sums = replay.summed.sums.at(replay.summed.sums.places(np.full(len(cuts), row), cuts))
    best = np.diff(sums, axis=0, prepend=0).argmin(axis=1)
    starts = np.append(0, cuts[:-1]) + 1
    return [
        list(part) for part in zip(starts.tolist(), (cuts + 1).tolist(), best.tolist(), strict=True)
    ]


def _cells(replay: Replay) -> Iterator[dict[str, object]]:
    """Every cell once: a candidate that is also a baseline is a candidate."""
    roles: list[tuple[str, Sequence[ReplayAnswer]]] = [
        ("candidate", replay.answers),
        ("leader", [replay.leader]),
        ("running", [] if replay.running is None else [replay.running]),
    ]
    points, seen = replay.base.points, set()
    for role, answers in roles:
        for answer in answers:
            if answer.cell in seen:
                continue
            seen.add(answer.cell)
            regret, charged = answer.curves.regret, answer.charged
            limit = bounds(replay, answer.cell)
            yield {
                "learner": answer.cell.name,
                "candidate": answer.cell.candidate.text,
                "role": role,
                "epsilon": epsilon_option(answer.cell.epsilon),
                "config": config_of(answer.cell.learner),
                "regret": answer.mean,
                "standard_error": answer.error,
                "share_of_stake": share_reached(answer, replay),
                "regret_by_seed": answer.final.tolist(),
                "settled_at": settled_at(answer, points),
                "regret_over_time": regret.mean(axis=0).tolist(),
                "regret_band": np.percentile(regret, BAND, axis=0).tolist(),
                "best_in_force": answer.curves.leading.tolist(),
                "bound": None
                if limit is None
                else {
                    "regret": limit[1][-1],
                    "source": limit[2],
                    "slots": limit[0].tolist(),
                    "over_time": limit[1].tolist(),
                },
                "ledger": None if charged is None else charged.as_json(),
            }
