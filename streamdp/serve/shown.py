"""The status page's data: `/v1/status` and a key's history, as JSON-ready values.

Each number is either exact and public, or a released estimate beside the standard error of its
noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from fractions import Fraction
from math import isnan
from typing import Any

import numpy as np

from streamdp import __version__
from streamdp.client import Answer, Condition
from streamdp.client.filtering import allowed
from streamdp.client.http_wire import in_force, written_key
from streamdp.core.arrays import Floats
from streamdp.core.evidence.context_fields import by_field
from streamdp.core.evidence.context_model import ContextModel
from streamdp.core.evidence.context_value import Value, forward
from streamdp.core.evidence.contexts import Contexts
from streamdp.core.evidence.evidence import PublicRow
from streamdp.core.evidence.experiment import Experiment
from streamdp.core.evidence.policy import PARTS
from streamdp.core.evidence.released_tables import ReleasedTables
from streamdp.core.kinds.estimates import ESTIMATES
from streamdp.ports import Key
from streamdp.serve.about import NO_FALLBACK, About
from streamdp.serve.history import KeyHistory, NoisyMean, StreamReleases
from streamdp.serve.knowledge import Knowledge
from streamdp.serve.metrics import mode_of
from streamdp.serve.policy_history import PolicyHistory, PolicyPoint

CONFIDENCE = 0.95
"""The confidence of an experiment's intervals: for all arms and all looks together."""

MOST_ACTIONS = 100
"""Actions that the page names; of more actions only those with most keys."""


def shown_status(knowledge: Knowledge) -> dict[str, Any]:
    """The status of everything but keys."""
    return {
        "version": __version__,
        "topics": _topics(knowledge),
        "streams": [_stream(knowledge, about) for about in knowledge.about.values()],
    }


def shown_key(knowledge: Knowledge, stream: str, key: Key) -> dict[str, Any]:
    """One key: what is in force, and what was released so far."""
    answer, about = knowledge.cache.answer(stream, key), knowledge.about[stream]
    learners = knowledge.histories[stream].shown.of_key(key)
    condition = knowledge.cache.condition(stream)
    return {
        "stream": stream,
        "key": written_key(key),
        "action": None if by_context(answer) else answer.action or None,
        "source": answer.why.value,
        "release": in_force(answer),
        "policy": _policy(answer, about, condition),
        "paused": list(condition.paused),
        "learners": [
            _learner(about, condition, number, history) for number, history in learners.items()
        ],
    }


def by_context(answer: Answer) -> bool:
    """Whether what is in force depends on the context, so that no action can be named."""
    return answer.held is not None and answer.held.names.contexts is not None


def _policy(answer: Answer, about: About, condition: Condition) -> list[float] | None:
    """The probabilities that readers draw by for a key, cell by cell with contexts.

    What is paused has none, and what is back has some, as for every reader.
    """
    if answer.held is None:
        return None
    cells = 1 if about.contexts is None else about.contexts.cells
    ends = np.array(answer.held.ends, dtype=np.int64).reshape(cells, -1)
    names, back = answer.held.names.actions, answer.back(condition.list)
    if condition.named_in and answer.epoch == condition.named_in:
        new = [name for name in condition.named if name not in names]
        names, back = (*names, *new), (*back, *new)
        ends = np.append(ends, np.full((cells, len(new)), PARTS), axis=1)
    mask = [name not in condition.paused for name in names]
    came = [name in back for name in names]
    if any(mask) and (any(came) or not all(mask)):
        ends = np.array([allowed(of_cell, mask, came) for of_cell in ends.tolist()])
    probabilities: list[float] = (np.diff(ends, axis=1, prepend=0) / PARTS).ravel().tolist()
    return probabilities


def _topics(knowledge: Knowledge) -> list[dict[str, Any]]:
    """The budget of each input, and what its streams charge an event together."""
    inputs = dict[str, list[About]]()
    for about in knowledge.about.values():
        inputs.setdefault(about.topics.input, []).append(about)
    return [
        {
            "topic": name,
            "budget": _exact(streams[0].budget),
            "charged": _exact(sum((about.charge for about in streams), Fraction(0))),
            "shares": {about.name: _exact(about.charge) for about in streams},
        }
        for name, streams in inputs.items()
    ]


def _exact(epsilon: Fraction) -> dict[str, Any]:
    """An exact number, as text and as a float for drawing."""
    return {"exact": str(epsilon), "value": float(epsilon)}


def _stream(knowledge: Knowledge, about: About) -> dict[str, Any]:
    releases = knowledge.histories[about.name].shown
    condition = knowledge.cache.condition(about.name)
    counts = knowledge.cache.counts(about.name)
    common = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:MOST_ACTIONS]
    return {
        "name": about.name,
        "input": about.topics.input,
        "epoch": about.epoch,
        "seeded": about.seeded or releases.seeded,
        "learner": about.learner.recipe.name,
        "observes": "losses" if about.learner.recipe.played is None else "feedback",
        "schedule": f"{about.learner.schedule.name} {about.learner.schedule.parameter}".strip(),
        "mechanism": about.learner.recipe.mechanism,
        "actions": list(_shown(about, condition)[:MOST_ACTIONS]),
        "actions_count": len(_shown(about, condition)),
        "fields": None
        if about.contexts is None
        else {field.name: list(field.names) for field in about.contexts.fields},
        "fallback": None if about.fallback == NO_FALLBACK else about.fallback,
        "in_force": None  # by context
        if about.contexts is not None
        else [{"action": name, "keys": count} for name, count in common if count],
        "list": _list(about, condition),
        "epsilon": _epsilon(about, releases),
        "unit": about.unit or None,
        "most": None if about.most is None else about.largest,
        "earned": _earned(about, releases),
        "keys": condition.keys,
        "several": condition.several,
        "feed": condition.feed.value,
        "stale_seconds": round(condition.stale_seconds, 1),
        "blocks": sum(part.blocks for part in releases.partitions.values()),
        "ledger_whole": releases.whole,  # if not, `blocks` may miss some
        "estimates": [_estimate(estimate.name, releases) for estimate in about.estimates],
        "mode": mode_of(condition),
    }


def _list(about: About, condition: Condition) -> dict[str, Any] | None:
    """The stream's list: its newest change, what readers must not show, and what is new."""
    if not condition.list or condition.listed_at is None:
        return None
    at = f"{condition.listed_at:%Y-%m-%dT%H:%M:%SZ}"
    left, shown = condition.removed, _shown(about, condition)
    return {
        "ordinal": condition.list,
        "at": at,
        "paused": [name for name in condition.paused if name not in left],
        "removed": list(left),
        "added": [name for name in shown[len(about.actions) :] if name not in left],
    }


def _epsilon(about: About, releases: StreamReleases) -> dict[str, Any]:
    return {
        "action": _exact(about.learner.releases[0].epsilon),
        "estimates": {estimate.name: _exact(estimate.epsilon) for estimate in about.estimates},
        "configured": _exact(about.charge),
        "charged_max": _exact(releases.charged()),
        "budget": _exact(about.budget),
    }


def _estimate(kind: str, releases: StreamReleases) -> dict[str, Any]:
    """A released estimate by block: means over keys, per slot, with the error of their noise."""
    latest = releases.latest(kind)
    return {
        "kind": kind,
        "a_slot": ESTIMATES[kind].a_slot,
        "latest": _reading(latest.over(latest.slots)),
        "curve": [
            {"block": block, "slot": mean.stop - 1, **_reading(mean)}
            for block, mean in releases.curve(kind)
        ],
    }


def _reading(mean: NoisyMean) -> dict[str, Any]:
    return {"value": mean.value, "standard_error": mean.standard_error, "keys": mean.keys}


def _shown(about: About, condition: Condition) -> Sequence[str]:
    """The actions that are shown, by their columns: the configured ones, and those that came."""
    return condition.named if condition.named_in == about.epoch else about.actions


def _learner(
    about: About, condition: Condition, number: int, history: KeyHistory
) -> dict[str, Any]:
    """The learner of a key in one partition."""
    configured, contexts = about.partition_epochs.get(number, about.epoch), about.contexts
    names = about.actions if history.epoch == configured else ()  # others are not known
    policies = history.policies.points() if history.policies and names else []
    if policies and len(policies[-1].shares) != len(about.learner.actions):
        policies = []  # the ledger is read, not trusted
    named, weights, fields = len(_shown(about, condition)), None, None
    if contexts is not None:
        weights, fields = _by_field(about, history, policies, named=named)
    arms = None
    if history.experiment is not None:
        arms = _arms(about, history.experiment, history.since, named=named)
    if (
        arms is not None and about.learner.evidence.carries == "posterior"
    ):  # the sums of all blocks would deny a change
        likely = policies[-1].likely_best if policies else None
        arms["chance_of_best"] = None if likely is None else likely[:named]
    return {
        "partition": number,
        "epoch": history.epoch,
        "born": history.born,
        "blocks": history.blocks,
        "slots": history.stop - 1,
        "charged": _exact(history.charged),
        "points": [point._asdict() for point in history.points or ()],
        "actions": [
            {"block": acted.block, "stop": acted.stop, "action": names[acted.action]}
            for acted in history.actions or ()
            if acted.action < len(names)  # the ledger is read, not trusted
        ],
        "carried": history.carried,  # its policy knows more than its own sums
        "arms": arms,
        "lift": history.earned_beside(most=about.largest, named=named) if names else None,
        "contexts": fields,
        "policies": [
            {
                "slot": point.slot,
                "blocks": point.blocks,
                "shares": _overall(point.shares, weights)[:named],
            }
            for point in policies
        ]
        or None,  # they cannot be computed
    }


def _overall(shares: Sequence[float], weights: Floats | None) -> Sequence[float]:
    """A policy over all cells, weighted by how often they occurred."""
    if weights is None:
        return shares
    overall: list[float] = (weights @ np.reshape(shares, (len(weights), -1))).tolist()
    return overall


def _by_field(
    about: About, history: KeyHistory, policies: Sequence[PolicyPoint], *, named: int
) -> tuple[Floats | None, object]:
    """The weights of cells, and the newest table of contexts field by field."""
    contexts = about.contexts
    assert contexts is not None, "asked by the caller"
    kept = history.policies
    released = kept.released() if kept is not None and policies else None
    row = None if kept is None else kept.newest
    if kept is None or row is None or released is None:
        return None, None
    if not isinstance(row.evidence, ReleasedTables):
        return None, None
    shown, cells = row.evidence.cells_shown(row.columns)[0], contexts.cells
    weights = shown / shown.sum() if shown.any() else np.full(cells, 1 / cells)
    known, blocks = row.evidence.histories(row.columns), policies[-1].blocks
    if not known.any():
        return weights, None
    if kept.by_field[0] != (blocks, named):  # the model takes up to 40 ms
        kept.by_field = (
            (blocks, named),
            _fields(about, contexts, row, weights, kept, named),
        )
    return weights, kept.by_field[1]


def _fields(
    about: About,
    contexts: Contexts,
    row: PublicRow,
    weights: Floats,
    kept: PolicyHistory,
    named: int,
) -> dict[str, Any]:
    """The table field by field, by the model of a learner's row; and what rules are worth.

    Of the first `named` actions: columns beyond have no name yet.
    """
    evidence = row.evidence
    assert isinstance(evidence, ReleasedTables), "asked by the caller"
    rule = evidence.rule
    laws = evidence.posterior(row.columns, np.arange(rule.actions) < named)
    means, deviations = (of[0][:, :named] for of in laws)
    every = np.reshape(kept.points()[-1].shares, (-1, rule.actions))
    shares = every[:, :named].reshape(-1)
    found = by_field(
        contexts.shape,
        shown=weights,
        policy=shares,
        rewards=np.clip(0.5 + means, 0.0, 1.0),
        deviations=deviations,
    )
    return {
        "table": _table(contexts, rule, kept),
        "worth": _worth(contexts, kept, most=about.largest, named=named),
        "policy": _overall(shares.tolist(), weights),
        "fields": [
            {
                "name": declared.name,
                "levels": list(declared.names),
                "traffic": of.traffic.tolist(),
                "policy": of.policy.tolist(),
                "reward": (of.rewards * about.largest).tolist(),
                "low": (np.clip(of.rewards - of.reach, 0, 1) * about.largest).tolist(),
                "high": (np.clip(of.rewards + of.reach, 0, 1) * about.largest).tolist(),
            }
            for declared, of in zip(contexts.fields, found, strict=True)
        ],
    }


def _table(contexts: Contexts, rule: ContextModel, kept: PolicyHistory) -> dict[str, Any]:
    """How fine the open block's table is, when the next one is chosen, and what there was so far.

    What is chosen then follows from what the open block releases: nobody can say it before.
    """
    assert kept.newest is not None

    def fields(table: int) -> list[str]:
        return [contexts.fields[of].name for of in rule.tables[table]]

    now = int(kept.newest.columns["table"][0])
    return {
        "fields": fields(now),
        "numbers": rule.size(now),
        "until_slot": kept.open_until - 1,
        "so_far": [
            {"fields": fields(table), "blocks": kept.released_by.count(table)}
            for table in sorted(set(kept.released_by))
        ],
    }


def _worth(
    contexts: Contexts, kept: PolicyHistory, *, most: float, named: int
) -> dict[str, Any] | None:
    """How much more rules earn than what was shown, by blocks that they were not chosen by.

    These are the numbers of ``streamdp worth``, and what no block says is None there. None where
    there is no difference within blocks: with noisy counts; and of too few blocks.
    """
    tables = kept.tables(named=named)
    if tables is None or tables[0].noise.on_counts:
        return None
    later = forward(*tables, contexts)
    if later is None:
        return None
    return {
        "since_block": later.since,
        "last_block": tables[0].blocks - 1,
        "policy": _valued(later.policy.of(most), later.since),
        "best": {
            whom: {"shows": shows.tolist(), **_valued(value.of(most), later.since)}
            for whom, (shows, value) in later.best.items()
        },
    }


def _valued(value: Value, since: int) -> dict[str, Any]:
    """The value of a policy, by the names of ``streamdp worth --json``."""
    return {
        "blocks": [since + block for block in value.blocks],
        "mean_reward": value.reward.mean if value.blocks else None,
        "low": value.reward.low,
        "high": value.reward.high,
        "more_than_shown": None if value.lift is None else asdict(value.lift),
        "unknown": value.unknown,
    }


def _earned(about: About, releases: StreamReleases) -> dict[str, Any] | None:
    """The mean reward (or loss) of what a feedback stream showed; None before any block.

    With `most` it is in the rewards' unit, as all rewards on these pages are.
    """
    gains = releases.earned_in(about.epoch, about.partition_epochs)
    if gains.slots <= 0:  # noisy where counts are
        return None
    gain = gains.over(gains.slots)
    mean = min(1.0, max(0.0, 0.5 + (gain.value if about.unit else -gain.value)))
    return {
        "shows": gains.slots,
        "mean": mean * about.largest,
        "standard_error": gain.standard_error * about.largest,
    }


def _arms(about: About, experiment: Experiment, since: int, *, named: int) -> dict[str, Any]:
    """A feedback stream's key as an experiment: each arm's mean reward or loss, with an interval.

    `since_slot` is the first slot that counts: a start reads only a long ledger's newest lines, and
    a learner that carried over begins with longer blocks, whose slot numbers are larger. Columns
    beyond the first `named` have no name yet.
    """
    arms = experiment.arms(confidence=CONFIDENCE)
    means, low, high = arms.means, arms.low, arms.high
    if about.unit:
        means, low, high = ((1 - losses) * about.largest for losses in (means, high, low))
    return {
        "confidence": CONFIDENCE,
        "blocks": arms.blocks,
        "since_slot": since,
        "shown": arms.shown[:named].tolist(),
        "mean": [None if isnan(mean) else mean for mean in means[:named].tolist()],
        "low": low[:named].tolist(),
        "high": high[:named].tolist(),
        "chance_of_best": arms.chances[:named].tolist(),
    }
