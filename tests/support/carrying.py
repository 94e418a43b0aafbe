"""Stories of streams that go from one epoch into the next, for both kinds of stream."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

import streamdp as sd
from streamdp.core.events import Key
from streamdp.core.learners.feedback import PolicyLearner
from streamdp.core.learners.feedback.policy_blocks import policy_blocks
from streamdp.core.learners.feedback.policy_following import policy_following
from streamdp.ports import LastCommit, Value
from streamdp.service.spec import StreamSpec
from streamdp.service.verifying.verification import Verification
from streamdp.wire.feedback import Feedback
from streamdp.wire.formats import configure
from streamdp.wire.lines import Charge
from streamdp.wire.published import decode_ledger
from tests.support.protocol_model import Store, Story, restore, settle
from tests.support.streams import ACTIONS, feedback_spec, shown, spec

MORE = ("new", "c", "a", "b")
"""The actions of the second epoch: one more, and in another order."""


def leader(actions: Sequence[str] = ACTIONS, *, longest: int = 3, **options: str) -> sd.Leader:
    """Blocks of 1, 2 and then `longest` slots."""
    schedule = options.pop("schedule", f"capped {longest}")
    return sd.incumbent_leader(actions=actions, epsilon="1/2", schedule=schedule, **options)


def remembers(actions: Sequence[str] = ACTIONS) -> sd.Leader:
    """The same with a filter of votes."""
    return sd.remembering_leader(actions=actions, epsilon="1/2", schedule="geometric 5/2 to 3")


def policies(actions: Sequence[str] = ACTIONS) -> PolicyLearner:
    """A feedback learner with blocks as short."""
    return policy_blocks(actions=actions, epsilon="1/2", schedule="capped 3")


def follows(actions: Sequence[str] = ACTIONS) -> PolicyLearner:
    """The same with a filter of blocks, of which a key carries over a part."""
    return policy_following(actions=actions, epsilon="1/2", schedule="capped 3")


def stream(learner: sd.Leader | PolicyLearner, *, epoch: int = 1, carry: bool = True) -> StreamSpec:
    """A stream of either kind; what its records say of actions does not depend on the epoch."""
    if isinstance(learner, PolicyLearner):
        format_ = configure(
            "json", feedback=Feedback(learner.actions, "reward", learner.played), options={}
        )
        return replace(
            feedback_spec(name="home"), learner=learner, format=format_, epoch=epoch, carry=carry
        )
    of_losses = configure("json", actions=list(learner.actions), options={"layout": "mapping"})
    return replace(spec(), learner=learner, format=of_losses, epoch=epoch, carry=carry)


def mapped(
    count: int, *, keys: Sequence[Key] = (b"fr", b"de", None), seed: int = 1
) -> list[tuple[Key, Value]]:
    """Events that name their actions, of both epochs."""
    rng = np.random.default_rng(seed)
    names = sorted({*ACTIONS, *MORE})
    return [
        (keys[int(rng.integers(0, len(keys)))],
         b'{"losses":{%s}}' % ",".join(f'"{name}":{rng.random():.3f}' for name in names).encode())
        for _ in range(count)
    ]  # fmt: skip


def store_of(learner: sd.Leader | PolicyLearner, count: int = 120) -> Store:
    """Input for a learner of either kind."""
    if not isinstance(learner, PolicyLearner):
        return Store(mapped(count))
    records, headers = shown(count)
    return Store(records, headers=headers)


def live(store: Store, of: StreamSpec, stop: int) -> None:
    """Read up to here, publish everything."""
    work = restore(store, of)
    if work.engine.position < stop:
        work.absorb(work.read(store.records(work.engine.position, stop)))
    settle(store, work)


def verified(store: Store, of: StreamSpec) -> list[str]:
    """What `ledger verify` has against state, actions topic and ledger."""
    verification = Verification(configured=[of])
    verification.read_state(of.topics, LastCommit(0, store.state))
    verification.read_published(of.topics, store.actions)
    verification.read_all_published(of.topics)
    verification.read(of.topics, store.ledger)
    verification.finish()
    verification.verdicts({of.topics.input: of.charge}, {})
    return verification.violations


def charges(store: Store) -> list[Charge]:
    """The ledger without its marks."""
    lines = [decode_ledger(record.value) for record in store.ledger]
    return [line for line in lines if isinstance(line, Charge)]


def openings(store: Store, epoch: int) -> dict[Key, Charge]:
    """The openings of an epoch."""
    return {
        line.identity.key: line
        for line in charges(store)
        if line.epoch == epoch and line.kind == "opening"
    }


def in_force(store: Store, epoch: int) -> dict[Key, str]:
    """The action that readers were told last, of an epoch."""
    newest: dict[Key, str] = {}
    for record in store.actions:
        if f'"epoch":{epoch},'.encode() in record.value:
            newest[record.key] = record.value.split(b'"action":"')[1].split(b'"')[0].decode()
    return newest


LEADERS = [leader, remembers]
ALL = [leader, remembers, policies, follows]


def through_crashes(store: Store, of: StreamSpec, seed: int, *, steps: int = 120) -> int:
    """A random life to the end of the input, in small pieces; how often it crashed."""
    story = Story(store, of, random.Random(seed), piece=12)
    story.tell(steps=steps)
    return story.crashes


def last_open(store: Store, learner: sd.Leader | PolicyLearner) -> int:
    """A record below 60 that lies in a block which the epoch's beginning leaves open."""
    trial = store_of(learner)
    live(trial, stream(learner), 60)
    ended = {line.identity.key: line.last_offset for line in charges(trial)}
    return next(at for at in range(59, 0, -1) if ended[store.input[at][0]] < at)
