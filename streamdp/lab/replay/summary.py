"""The summary in plain words: statements that are computed from the figures, never written by hand.

Each statement says what it was read from. Its numbers are those of the table and the curves; where
an interval is too wide to say something, it says that.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from streamdp.core.arrays import Floats
from streamdp.lab.common.answer import standard_error
from streamdp.lab.common.cells import RUNNING, epsilon_text
from streamdp.lab.common.words import Statement, number, per_thousand
from streamdp.lab.logs.clipping import repaired
from streamdp.lab.replay.figures import Z, gap, settled_at, share_reached
from streamdp.lab.replay.following import Result, contests, could_differ, half_interval
from streamdp.lab.replay.replaying import Replay, ReplayAnswer


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
        *_following(replay),
        *_best(replay),
        *_privacy(replay),
        *_settling(replay),
        *_charges(replay),
        *_still_open(replay),
        *_repaired(replay),
    ]


def interval(answer: ReplayAnswer) -> str:
    """A mean with its interval."""
    return f"{number(answer.mean)} ± {number(Z * answer.error)}"


def firsts(replay: Replay) -> list[ReplayAnswer]:
    """The first candidate at each ε; one that has none is at ε = inf."""
    first = replay.question.candidates[0]
    return [answer for answer in replay.answers if answer.cell.candidate == first]


def middle(replay: Replay) -> ReplayAnswer:
    """The cell that single-ε pictures show: the first candidate at its middle private ε."""
    cells = firsts(replay)
    private = [answer for answer in cells if answer.cell.epsilon is not None]
    if private:
        return private[len(private) // 2]
    return cells[0]


def _following(replay: Replay) -> Iterator[Statement]:
    """Which of memory, growing and capped blocks the log would have been best served by."""
    about = "Memory, growing or capped blocks"
    if not replay.followed:
        private = any(epsilon is not None for epsilon in replay.question.epsilons)
        if replay.question.contests and private:
            yield Statement(about, f"Not compared: {_why_not_compared(replay)}.")
        return
    parts = [_won(result) for result in replay.followed]
    yield Statement(
        about,
        f"{' '.join(parts)} Regret as in the table, against the best fixed action of each key, mean"
        " over seeds ± 1.96 standard errors; differences seed by seed.",
    )


def _why_not_compared(replay: Replay) -> str:
    question = replay.question
    possible = contests(question.epsilons, actions=replay.actions, slots=1, seeds=1)
    if any(could_differ(contest, replay.summed.longest) for contest in possible):
        return (
            "there are too many blocks and seeds; with fewer seeds, ask for remembering_leader and"
            " incumbent_leader by name"
        )
    return "the keys are too short for blocks to stop growing"


def _won(result: Result) -> str:
    """The comparison at one ε: the winner first, then how far the others are behind."""
    winner, tied = result.winner, result.tied
    others = "; ".join(
        f"{placed.kind} lost {number(float(placed.behind.mean()))}"
        f" ± {_half(half_interval(placed.behind))} more"
        for placed in result.placed[1:]
    )
    text = (
        f"At ε = {epsilon_text(result.epsilon)} {winner.kind} did best,"
        f" {number(winner.mean)} ± {_half(winner.half)}: {others}"
    )
    if tied:
        alike = " and ".join(placed.kind for placed in tied)
        text += f"; {winner.kind} cannot be told from {alike}"
    return f"{text}."


def _half(half: float) -> str:
    """Half of an interval; a single seed has none."""
    return number(half) if np.isfinite(half) else "unknown (one seed)"


def _best(replay: Replay) -> Iterator[Statement]:
    shown = middle(replay)
    epsilon = shown.cell.epsilon
    rivals = [answer for answer in replay.answers if answer.cell.epsilon == epsilon]
    best = min(rivals, key=lambda answer: answer.mean)
    uniform = float(replay.base.uniform_regret[-1])
    text = (
        f"Of those asked for, {best.cell.name} has the least regret at ε ="
        f" {epsilon_text(epsilon)}: {interval(best)} losses over {replay.slots:,} slots, against"
        f" {number(uniform)} for choosing uniformly and {number(replay.leader.mean)} for following"
        " the leader block by block without privacy."
    )
    near = [
        answer.cell.name
        for answer in rivals
        if answer is not best and cannot_be_told_apart(answer, best)
    ]
    if near:
        text += f" Over these seeds it cannot be told from {' and '.join(near)}."
    if not any(answer.cell.candidate.private for answer in replay.answers):
        text += " No learner that was asked for has an ε."
    yield Statement("Which learner", text)


def cannot_be_told_apart(one: ReplayAnswer, other: ReplayAnswer) -> bool:
    """Whether the difference is within chance, seed by seed: both drew the same bits."""
    more = one.final - other.final
    if len(more) < 2:
        return True
    return bool(abs(more.mean()) <= Z * standard_error(more))


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
            f" {interval(free)}): {_more(private, free, replay.slots)}."
        )
    yield Statement("What privacy costs", text)


def best_without_privacy(replay: Replay) -> ReplayAnswer:
    """The learner without privacy that lost least on this log, in hindsight."""
    shown = [*replay.answers, replay.leader, *([replay.running] if replay.running else [])]
    free = [answer for answer in shown if answer.cell.epsilon is None]
    return min(free, key=lambda answer: answer.mean)


def _epsilon(answer: ReplayAnswer) -> str:
    return f"ε = {epsilon_text(answer.cell.epsilon)}"


def share_text(answer: ReplayAnswer, replay: Replay) -> str:
    """The share of the stake that a learner reached."""
    share = share_reached(answer, replay)
    return "none" if share is None else f"{share:.0%}".replace("-", "−")


def _more(private: list[ReplayAnswer], free: ReplayAnswer, slots: int) -> str:
    """How much more each lost than a learner without privacy, seed by seed."""
    parts = []
    for answer in private:
        paid = answer.final - free.final
        parts.append(f"{_epsilon(answer)}: {_paid(paid, Z * standard_error(paid), slots)}")
    return "; ".join(parts)


def _paid(paid: Floats, error: float, slots: int) -> str:
    """What privacy cost, or what its noise happened to save on this log."""
    mean = float(paid.mean())
    amount = f"{number(abs(mean))} ± {number(float(error))} losses"
    rate = f"{number(per_thousand(abs(mean), slots))} in a thousand slots"
    if abs(mean) <= error:
        return f"nothing beyond chance ({number(mean)} ± {number(float(error))} losses)"
    if mean < 0:
        return f"nothing; its noise saved {amount} here, {rate}, which no one may count on"
    return f"{amount}, {rate}"


def _settling(replay: Replay) -> Iterator[Statement]:
    points, parts, never = replay.base.points, [], []
    for answer in firsts(replay):
        at = settled_at(answer, points)
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
    charged = middle(replay).charged
    if charged is not None and charged.open_slots:
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
