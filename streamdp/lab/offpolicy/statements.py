"""A replay of feedback in sentences, and its figures in JSON. NOT PRIVATE.

Text, page and JSON all use these, so that they say the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from streamdp.core.errors import counted
from streamdp.core.kinds.recipe import config_of
from streamdp.lab.common.answer import Answer, arms_as_json
from streamdp.lab.common.cells import epsilon_option, epsilon_text
from streamdp.lab.common.estimates import MeanReward, PolicyValues, ValueEstimate
from streamdp.lab.common.words import Statement, in_1000
from streamdp.lab.offpolicy.fold import release_as_json
from streamdp.lab.offpolicy.likelihood import FEWEST
from streamdp.lab.offpolicy.question import FeedbackReplay, Method
from streamdp.wire.unprotected import labelled

_NAMED = 5  # candidates in a sentence
_WEIGHT_OFF = 0.1  # of a mean weight from 1


METHODS: Mapping[Method, Statement] = {
    "exact": Statement(
        "Exact",
        "The log holds the losses of all actions, so each learner drew its own actions and was told"
        " what came of them. There is nothing to estimate: intervals are over seeds. This stops"
        " being true where the losses of actions that were not shown were made up, or where what"
        " was shown changed what came next.",
    ),
    "propensities": Statement(
        "Estimated from propensities",
        "The log holds what came of the actions that were shown, and how likely each was. Each"
        " block is weighed by the policy that a learner has made from earlier blocks of this log,"
        " so the values are those of policies that learn from the log's draws. Live, a learner"
        " learns from its own.",
    ),
    "uniform": Statement(
        "As it would have run live",
        "The log's actions were drawn uniformly, so each learner could draw its own and learn from"
        " the records where both agree: about one in K. Beside it stand the estimates from all"
        " records, of policies that learn from the log's draws.",
    ),
    "service": Statement(
        "Released, not valued",
        "These are the releases that a service with this stream, epoch, seed and learner makes from"
        " these records, bit for bit. What other policies would have won is not said: that takes"
        " the probabilities with which actions were drawn.",
    ),
}


def headline(answer: Answer) -> MeanReward:
    """The mean reward of a record: unknown if the log does not tell."""
    return answer.reward or MeanReward(float("nan"), 0.0, 1.0, 0.0)


def enough(reward: MeanReward) -> bool:
    """Whether its interval can be relied on, and so the value compared."""
    return reward.clicks is None or reward.clicks >= FEWEST


def summary(replay: FeedbackReplay) -> list[Statement]:
    """The conclusions of a replay, in sentences."""
    said = [METHODS[replay.method]]
    shown = replay.rejected or replay.answers
    if replay.fixed is not None:
        said += [_always(replay), *_doubts(shown)]
    if replay.best_of_cells is not None:
        text = (
            "It is against the best fixed action: below 0, contexts won more than any such action."
        )
        said.append(Statement("Regret", text))
    said += list(_counted(replay))
    return said


def lead(replay: FeedbackReplay) -> dict[str, str]:
    """What was compared, what it is worth in rewards, and how sure that is."""
    shown, log = replay.rejected or replay.answers, replay.findings
    compared = (
        f"{counted(len(shown), 'candidate')} on {counted(log.slots, 'record')} of"
        f" {counted(log.keys, 'key')} and {len(replay.actions)} actions."
    )
    if replay.method == "service":
        worth, sure = METHODS["service"].about + ".", METHODS["service"].says
        return {"compared": compared, "worth": worth, "sure": sure}
    if replay.rejected:
        met = np.mean([np.mean(answer.accepted) for answer in shown if answer.accepted is not None])
        compared += (
            f" Each learned from the records that show what it drew: {met:,.0f} of {log.slots:,},"
            f" one in {len(replay.actions)}."
        )
    known = [answer for answer in _rivals(replay) if enough(headline(answer))]
    if not known:
        worth = "What they are worth is not known."
        sure = f"No candidate has {FEWEST:.0f} effective clicks: a longer log can tell."
        return {"compared": compared, "worth": worth, "sure": sure}
    best = max(known, key=lambda answer: headline(answer).value)
    reward = headline(best)
    worth = f"{best.cell} has the highest reward: {in_1000(reward.value)} in 1,000 records"
    if replay.best is not None and replay.uniform is not None:
        of_cells = replay.best_of_cells
        worth += (
            f", where the best fixed action of each key has {in_1000(replay.best)}"
            f"{'' if of_cells is None else f', the best of each cell {in_1000(of_cells)},'}"
            f" and uniform play {in_1000(replay.uniform)}."
        )
    elif replay.fixed is not None:
        worth += f", where the log's own draws have {in_1000(replay.fixed.logged.value)}."
    else:
        worth += "."
    sure = f"Between {in_1000(reward.low)} and {in_1000(reward.high)} with 95 %."
    near = [a for a in known if a is not best and headline(a).value >= reward.low]
    if near:
        sure += f" That it is the best is not known: {_names(near)} may be."
    few = sum(not enough(headline(answer)) for answer in shown)
    if few:
        sure += f" Not compared: {counted(few, 'candidate')} with too few clicks."
    return {"compared": compared, "worth": worth, "sure": sure}


def _rivals(replay: FeedbackReplay) -> list[Answer]:
    """What is compared: the candidates at one ε, the middle one, and those without privacy."""
    epsilons = sorted({of.cell.epsilon for of in replay.answers if of.cell.epsilon is not None})
    one = (*epsilons[len(epsilons) // 2 :][:1], None)
    return [of for of in replay.rejected or replay.answers if of.cell.epsilon in one]


def _names(answers: Sequence[Answer]) -> str:
    more = len(answers) - _NAMED
    names = ", ".join(str(answer.cell) for answer in answers[:_NAMED])
    return f"{names} and {more} more" if more > 0 else names


def _always(replay: FeedbackReplay) -> Statement:
    always = best_always(replay)
    if always is None:
        says = f"no action has {FEWEST:.0f} effective clicks, so none can be compared."
    else:
        name, reward = always
        says = (
            f"{name!r} is estimated best: {reward} a record. It was picked from"
            f" {len(replay.actions)} by these records, so it seems better than it is."
        )
    return Statement("Always the same action", says)


def best_always(replay: FeedbackReplay) -> tuple[str, MeanReward] | None:
    """The single action with the highest estimate, of those with enough clicks."""
    assert replay.fixed is not None
    pairs = zip(replay.actions, replay.fixed.always, strict=True)
    known = [(name, value.reward) for name, value in pairs if enough(value.reward)]
    return max(known, key=lambda pair: pair[1].value) if known else None


def _doubts(shown: Sequence[Answer]) -> Iterator[Statement]:
    """Warnings about estimates that cannot be trusted."""
    few = [answer for answer in shown if not enough(headline(answer))]
    if few:
        yield Statement(
            "Few effective clicks",
            f"{_names(few)}: clicks that would have been shown as often carry the weight of fewer"
            f" than {FEWEST:.0f}. These values are not compared, and their intervals may miss; only"
            " the bounds for certain hold.",
        )
    off = [a for a in shown if a.value and abs(a.value.mean_weight.value - 1) > _WEIGHT_OFF]
    if off:
        yield Statement(
            "Mean weight",
            f"{_names(off)}: the mean weight is not within {_WEIGHT_OFF:g} of 1, so this log hardly"
            " showed what they would show, or these are not the propensities of the draws.",
        )


def _counted(replay: FeedbackReplay) -> Iterator[Statement]:
    log = replay.findings
    parts = [
        (log.refused, "have a key that is too long for a learner (--most-key-bytes)"),
        (log.unnamed, "name no known action"),
        (log.without if replay.method != "service" else 0, "have no propensity"),
        (log.settled, "were not drawn (propensity 1)"),
        (log.clipped, "have numbers outside [0, 1], which were clipped"),
    ]
    counts = [f"{count:,} {what}" for count, what in parts if count]
    if counts:
        yield Statement("Of the records", "; ".join(counts) + ".")


# -- for programs --------------------------------------------------------------------------------


def as_json(replay: FeedbackReplay) -> dict[str, object]:
    """The report's content as JSON."""
    question, log = replay.question, replay.findings
    facts: dict[str, object] = {
        "log": replay.log,
        "lead": lead(replay),
        "summary": [said._asdict() for said in summary(replay)],
        "observes": "feedback",
        "method": replay.method,
        "means": METHODS[replay.method].says,
        "actions": list(replay.actions),
        "slots": log.slots,
        "keys": log.keys,
        "watched_key": log.watched,
        "refused_slots": log.refused,
        "unnamed_slots": log.unnamed,
        "slots_without_propensity": log.without,
        "slots_not_drawn": log.settled,
        "clipped_slots": log.clipped,
        "fewest_clicks": FEWEST,
        "seeds": list(question.seeds),
        "stream": question.stream,
        "epoch": question.epoch,
        "cells": [_answer(answer, replay) for answer in replay.answers],
    }
    if replay.rejected:
        facts["as_live"] = [_answer(answer, replay) for answer in replay.rejected]
    if replay.fixed is not None:
        facts["logged"] = replay.fixed.logged.as_json()
        facts["uniform"] = _value(replay.fixed.uniform)
        facts["always"] = {
            name: _value(value)
            for name, value in zip(replay.actions, replay.fixed.always, strict=True)
        }
    if replay.best is not None:
        facts["best_fixed_reward"], facts["uniform_reward"] = replay.best, replay.uniform
    if replay.best_of_cells is not None:
        facts["best_of_cells_reward"] = replay.best_of_cells
    if replay.releases:
        facts["releases"] = [
            {
                "learner": cell.name,
                "epsilon": epsilon_text(cell.epsilon),
                "seed": seed,
                "releases": [
                    release_as_json(release, pairs=cell.learner.pairs) for release in releases
                ],
            }
            for cell, seed, releases in replay.releases
        ]
    return labelled(facts)


def _answer(answer: Answer, replay: FeedbackReplay) -> dict[str, Any]:
    arms = answer.arms
    facts: dict[str, Any] = {
        "learner": answer.cell.name,
        "epsilon": epsilon_option(answer.cell.epsilon),
        "config": config_of(answer.cell.learner),
        "over_time": {
            "of": "regret" if len(answer.regret) else "mean reward",
            **answer.course.as_json(),
        },
        "policy_over_time": answer.shares.as_json(),
        "experiment": None if arms is None else arms_as_json(arms),
        "ledger": answer.charge.as_json(),
    }
    if replay.method != "service":
        facts["mean_reward"] = headline(answer).as_json()
        facts["mean_reward_by_seed"] = answer.rewards.tolist()
    if answer.value is not None:
        facts["value"] = _value(answer.value)
    if answer.accepted is not None:
        facts["records_met"] = answer.accepted.tolist()
    if len(answer.regret):
        facts["regret"], facts["regret_error"] = answer.mean, answer.error
        facts["regret_by_seed"] = answer.regret.tolist()
    return facts


def _estimate(estimate: ValueEstimate) -> dict[str, float | None]:
    finite = np.isfinite(estimate.error)
    return {
        "value": estimate.value if np.isfinite(estimate.value) else None,
        "standard_error": estimate.error if finite else None,
    }


def _value(value: PolicyValues) -> dict[str, object]:
    return {
        "records": value.records,
        "effective_records": value.effective,
        "effective_clicks": value.clicks,
        "mean_weight": _estimate(value.mean_weight),
        "ips": _estimate(value.ips),
        "snips": _estimate(value.snips),
        "dr": _estimate(value.dr),
        "interval": [value.interval.low, value.interval.high],
        "certain_bounds": [value.bounds.low, value.bounds.high],
    }
