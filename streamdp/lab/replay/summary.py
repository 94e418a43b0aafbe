"""The summary in plain words: statements that are computed from the figures, never written by hand.

Each statement says what it was read from. Its numbers are those of the table and the curves; where
an interval is too wide to say something, it says that.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from streamdp.core.errors import counted
from streamdp.lab.common.answer import Answer, Z
from streamdp.lab.common.cells import RUNNING, epsilon_text
from streamdp.lab.common.words import Statement, number, per_thousand
from streamdp.lab.logs.clipping import repaired
from streamdp.lab.replay.figures import gap, share_reached
from streamdp.lab.replay.replaying import Replay


def summary(replay: Replay) -> list[Statement]:
    """The statements at the top of a report."""
    if replay.summed.nulls == replay.slots:
        nothing = "Nothing: every action has lost the same, so no figure here compares anything."
        return [
            *_repaired(replay),
            Statement("What follows", nothing),
            *_charges(replay),
            *_still_open(replay),
        ]
    return [
        *_privacy(replay),
        *_settling(replay),
        *_charges(replay),
        *_still_open(replay),
        *_repaired(replay),
    ]


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
    of = "" if keys > 1 else f" ({replay.actions[int(replay.summed.totals[0].argmin())]})"
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
    tied = [a.cell.name for a in rivals if a is not best and a.like(best)]
    if tied:
        sure += f" On these seeds it cannot be told from {' and '.join(tied)}."
    if not any(answer.cell.candidate.private for answer in replay.answers):
        sure += " No learner that was asked for has an ε."
    return {"compared": compared, "worth": worth, "sure": sure}


def firsts(replay: Replay) -> list[Answer]:
    """The first candidate at each ε; one that has none is at ε = inf."""
    first = replay.question.candidates[0]
    return [answer for answer in replay.answers if answer.cell.candidate == first]


def middle(replay: Replay) -> Answer:
    """The cell that single-ε pictures show: the first candidate at its middle private ε."""
    cells = firsts(replay)
    private = [answer for answer in cells if answer.cell.epsilon is not None]
    if private:
        return private[len(private) // 2]
    return cells[0]


def _privacy(replay: Replay) -> Iterator[Statement]:
    cells = firsts(replay)
    free = next((answer for answer in cells if answer.cell.epsilon is None), None)
    private = [answer for answer in cells if answer.cell.epsilon is not None]
    if not private:
        return
    name = private[0].cell.name
    best = best_without_privacy(replay)
    reached = [f"{share_text(answer, replay)} at {_epsilon(answer)}" for answer in private]
    text = (
        f"{name} reached {', '.join(reached)} of what the best fixed action gains over uniform play"
        f" ({number(float(replay.base.uniform_regret[-1]))} losses); without privacy"
        f" {best.cell.name} reached {share_text(best, replay)}. {name} lost more than that:"
        f" {_more(private, best, replay.slots)}."
    )
    if replay.running is None:
        text += f" Not compared with {RUNNING}, which looks after every slot: ask for it by name."
    if free is None:
        text += " Add ε = inf to the question to see the same learner without privacy."
    elif free is not best:
        text += (
            f" Of this its noise alone, against the same blocks without noise (regret"
            f" {number(free.mean)} ± {number(Z * free.error)}):"
            f" {_more(private, free, replay.slots)}."
        )
    yield Statement("What privacy costs", text)


def best_without_privacy(replay: Replay) -> Answer:
    """The learner without privacy that lost least on this log, in hindsight."""
    shown = [*replay.answers, replay.leader, *([replay.running] if replay.running else [])]
    free = [answer for answer in shown if answer.cell.epsilon is None]
    return min(free, key=lambda answer: answer.mean)


def _epsilon(answer: Answer) -> str:
    return f"ε = {epsilon_text(answer.cell.epsilon)}"


def share_text(answer: Answer, replay: Replay) -> str:
    """The share of the stake that a learner reached."""
    share = share_reached(answer, replay)
    return "none" if share is None else f"{share:.0%}".replace("-", "−")


def _more(private: list[Answer], free: Answer, slots: int) -> str:
    """How much more each lost than a learner without privacy, seed by seed."""
    return "; ".join(f"{_epsilon(answer)}: {_paid(answer, free, slots)}" for answer in private)


def _paid(answer: Answer, free: Answer, slots: int) -> str:
    """What privacy cost, or what its noise happened to save on this log."""
    mean, error = answer.behind(free)
    half = number(error if np.isfinite(error) else 0.0)
    amount = f"{number(abs(mean))} ± {half} losses"
    rate = f"{number(per_thousand(abs(mean), slots))} in a thousand slots"
    if abs(mean) <= error < np.inf:
        return f"nothing beyond chance ({number(mean)} ± {half} losses)"
    if mean < 0:
        return f"nothing; its noise saved {amount} here, {rate}, which no one may count on"
    return f"{amount}, {rate}"


def _settling(replay: Replay) -> Iterator[Statement]:
    parts, never = [], []
    for answer in firsts(replay):
        at = answer.settled
        name = f"ε = {epsilon_text(answer.cell.epsilon)}"
        if at is None:
            never.append(name)
        else:
            parts.append(f"from slot {at:,} at {name}")
    name = replay.question.candidates[0].text
    text = ""
    if parts:
        text = f"{name} has the best action in force in 90 % of slots and seeds {', '.join(parts)}."
    if never:
        text += (
            f" {'It' if parts else name} never settles for good at {', '.join(never)}: the second"
            f" best action is worse by {gap(replay):.2g} a slot, which is too little for a log of"
            f" this length, or the best one changes."
        )
    yield Statement("When it settles", text.strip())


def _charges(replay: Replay) -> Iterator[Statement]:
    less = []
    for answer in replay.answers:
        charged, epsilon = answer.cell.learner.charge, answer.cell.epsilon
        if charged is not None and epsilon is not None and charged < epsilon:
            less.append(f"{answer.cell.name} at ε = {epsilon_text(epsilon)} spends {charged}")
    text = (
        "Every event is charged once, in the block that holds it, whatever the length of the log."
    )
    if less:
        text += f" Not all of ε is used: {'; '.join(less)}."
    yield Statement("What it spends", text)


def _still_open(replay: Replay) -> Iterator[Statement]:
    """How much of the log lies in blocks that have not ended."""
    charged = middle(replay).charge
    if charged.open_slots:
        share = charged.open_slots / replay.slots
        yield Statement(
            "What is still open",
            f"{charged.open_slots:,} of {replay.slots:,} slots ({share:.0%}) lie in blocks that had"
            " not ended when the log did: nothing was learned from them yet, and nothing was"
            f" charged ({middle(replay).cell.name}).",
        )


def _repaired(replay: Replay) -> Iterator[Statement]:
    """Slots whose losses did not count as they stand in the log."""
    text = repaired(replay.summed.clipped, replay.summed.nulls, slots=replay.slots)
    if text:
        yield Statement("What was repaired", text)
