"""A replay of feedback in sentences, and its figures in JSON. NOT PRIVATE.

Text, page and JSON all use these, so that they say the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from streamdp.core.evidence.experiment import Arms
from streamdp.lab.offpolicy.answers import FeedbackAnswer
from streamdp.lab.offpolicy.estimators import PolicyValues, ValueEstimate
from streamdp.lab.offpolicy.fold import release_as_json
from streamdp.lab.offpolicy.question import FeedbackReplay, Method
from streamdp.lab.replay.cells import epsilon_text
from streamdp.wire.unprotected import labelled

FEW = 100.0
"""Effective records below which a normal interval cannot be trusted."""


class Said(NamedTuple):
    """One paragraph."""

    about: str
    says: str


METHODS: Mapping[Method, Said] = {
    "exact": Said(
        "Exact",
        "The log holds the losses of all actions, so each learner drew its own actions and was told"
        " what came of them. There is nothing to estimate: intervals are over seeds. This stops"
        " being true where the losses of actions that were not shown were made up, or where what"
        " was shown changed what came next.",
    ),
    "propensities": Said(
        "Estimated from propensities",
        "The log holds what came of the actions that were shown, and how likely each was. Each"
        " block is weighed by the policy that a learner has made from earlier blocks of this log,"
        " so the values are those of policies that learn from the log's draws. Live, a learner"
        " learns from its own.",
    ),
    "uniform": Said(
        "As it would have run live",
        "The log's actions were drawn uniformly, so each learner could draw its own and learn from"
        " the records where both agree: about one in K. Beside it stand the estimates from all"
        " records, of policies that learn from the log's draws.",
    ),
    "service": Said(
        "Released, not valued",
        "These are the releases that a service with this stream, epoch, seed and learner makes from"
        " these records, bit for bit. What other policies would have won is not said: that takes"
        " the probabilities with which actions were drawn.",
    ),
}


def headline(answer: FeedbackAnswer) -> ValueEstimate:
    """The mean reward of a record: 0 with an infinite error if the log does not tell."""
    return answer.estimate or ValueEstimate(0.0, float("inf"))


def summary(replay: FeedbackReplay) -> list[Said]:
    """The conclusions of a replay, in sentences."""
    said = [METHODS[replay.method]]
    shown = replay.rejected or replay.answers
    if replay.method != "service":
        best = max(shown, key=lambda answer: headline(answer).value)
        said.append(Said("Best here", f"{best.cell}: {interval(headline(best))} a record."))
    if replay.fixed is not None:
        said.append(Said("The log itself", f"{interval(replay.fixed.logged)} a record."))
        said.append(_always(replay))
        said += list(_doubts(replay))
    if replay.best is not None and replay.uniform is not None:
        means = f"the best fixed action of each key {replay.best:.4g}, uniform play"
        said.append(Said("Yardsticks", f"A record's reward: {means} {replay.uniform:.4g}."))
    said += list(_counted(replay))
    return said


def _always(replay: FeedbackReplay) -> Said:
    assert replay.fixed is not None
    always = replay.fixed.always
    best = int(np.argmax([value.snips.value for value in always]))
    name, value = replay.actions[best], always[best].snips
    return Said(
        "Always the same action",
        f"{name!r} is estimated best: {interval(value)} a record. It was picked from"
        f" {len(always)} by these records, so it seems better than it is.",
    )


def _doubts(replay: FeedbackReplay) -> Iterator[Said]:
    """Warnings about intervals that cannot be trusted."""
    few = [answer for answer in replay.answers if answer.value and answer.value.effective < FEW]
    if few:
        names = ", ".join(str(answer.cell) for answer in few[:5])
        yield Said(
            "Few effective records",
            f"For {names}{' and others' if len(few) > 5 else ''} fewer than {FEW:.0f} records of"
            " equal weight remain: do not trust the ± there, only the certain bounds.",
        )


def _counted(replay: FeedbackReplay) -> Iterator[Said]:
    log = replay.findings
    parts = [
        (log.unnamed, "name no known action"),
        (log.without if replay.method != "service" else 0, "have no propensity"),
        (log.settled, "were not drawn (propensity 1)"),
        (log.clipped, "have numbers outside [0, 1], which were clipped"),
    ]
    counts = [f"{count:,} {what}" for count, what in parts if count]
    if counts:
        yield Said("Of the records", "; ".join(counts) + ".")


def interval(estimate: ValueEstimate) -> str:
    """A value with its 95 % interval."""
    if not np.isfinite(estimate.error):
        return "unknown"
    return f"{estimate.value:.4g} ± {estimate.high - estimate.value:.2g}"


def charge_text(answer: FeedbackAnswer) -> str:
    """The charge on an event."""
    return "not private" if answer.charge.epsilon is None else str(answer.charge.epsilon)


def likeliest(answer: FeedbackAnswer, actions: tuple[str, ...]) -> str:
    """The action that is most likely the best, by the released sums of the watched key."""
    if answer.arms is None:
        return "—"
    best = int(answer.arms.chances.argmax())
    return f"{actions[best]} ({answer.arms.chances[best]:.0%})"


# -- for programs --------------------------------------------------------------------------------


def as_json(replay: FeedbackReplay) -> dict[str, object]:
    """The page's content as JSON."""
    question, log = replay.question, replay.findings
    facts: dict[str, object] = {
        "log": replay.log,
        "observes": "feedback",
        "method": replay.method,
        "means": METHODS[replay.method].says,
        "actions": list(replay.actions),
        "slots": log.slots,
        "keys": log.keys,
        "watched_key": log.watched,
        "unnamed_slots": log.unnamed,
        "slots_without_propensity": log.without,
        "slots_not_drawn": log.settled,
        "clipped_slots": log.clipped,
        "seeds": list(question.seeds),
        "stream": question.stream,
        "epoch": question.epoch,
        "cells": [_answer(answer, replay) for answer in replay.answers],
    }
    if replay.rejected:
        facts["as_live"] = [_answer(answer, replay) for answer in replay.rejected]
    if replay.fixed is not None:
        facts["logged"] = _estimate(replay.fixed.logged)
        facts["uniform"] = _value(replay.fixed.uniform)
        facts["always"] = {
            name: _value(value)
            for name, value in zip(replay.actions, replay.fixed.always, strict=True)
        }
    if replay.best is not None:
        facts["best_fixed_reward"], facts["uniform_reward"] = replay.best, replay.uniform
    if replay.releases:
        facts["releases"] = [
            {
                "learner": cell.text,
                "epsilon": epsilon_text(cell.epsilon),
                "seed": seed,
                "releases": [release_as_json(release) for release in releases],
            }
            for cell, seed, releases in replay.releases
        ]
    return labelled(facts)


def _answer(answer: FeedbackAnswer, replay: FeedbackReplay) -> dict[str, Any]:
    course, arms, shares, charge = answer.course, answer.arms, answer.shares, answer.charge
    facts: dict[str, Any] = {
        "learner": answer.cell.text,
        "epsilon": epsilon_text(answer.cell.epsilon).replace("∞", "inf"),
        "config": answer.cell.learner.to_config(),
        "over_time": {
            "of": "regret" if answer.regret is not None else "mean reward",
            "slots": course.slots.tolist(),
            "mean": course.mean.tolist(),
            "low": course.low.tolist(),
            "high": course.high.tolist(),
        },
        "policy_over_time": {
            "starts": shares.starts.tolist(),
            "policy": shares.shares.tolist(),
        },
        "experiment": None if arms is None else arms_as_json(arms),
        "ledger": {
            "epsilon_per_event": None if charge.epsilon is None else str(charge.epsilon),
            "blocks": charge.blocks,
            "slots_charged": charge.slots,
            "slots_open": charge.open_slots,
        },
    }
    if replay.method != "service":
        facts["mean_reward"] = _estimate(headline(answer))
        facts["mean_reward_by_seed"] = answer.by_seed.tolist()
    if answer.value is not None:
        facts["value"] = _value(answer.value)
    if answer.accepted is not None:
        facts["records_met"] = answer.accepted.tolist()
    if answer.regret is not None:
        facts["regret"] = float(answer.regret.mean())
        facts["regret_by_seed"] = answer.regret.tolist()
    return facts


def arms_as_json(arms: Arms) -> dict[str, object]:
    """The released numbers of each arm, as JSON."""
    return {
        "blocks": arms.blocks,
        "shown": arms.shown.tolist(),
        "mean_loss": [None if np.isnan(mean) else mean for mean in arms.means.tolist()],
        "low": arms.low.tolist(),
        "high": arms.high.tolist(),
        "chance_of_best": arms.chances.tolist(),
    }


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
        "mean_weight": _estimate(value.mean_weight),
        "ips": _estimate(value.ips),
        "snips": _estimate(value.snips),
        "dr": _estimate(value.dr),
        "certain_bounds": [value.bounds.low, value.bounds.high],
    }
