"""From an engine's rows to what an engine of a later epoch begins with; see `evidence.carrying`.

The service does the same from what it has saved. Here it is for whoever has the engine itself: a
replay, a simulation, a test.
"""

from __future__ import annotations

import numpy as np

from streamdp.core.engine.idleness import known_of
from streamdp.core.engine.machine import Engine
from streamdp.core.events import Carried, Key
from streamdp.core.evidence.carrying import Passage
from streamdp.core.evidence.policy_rules import keeps_a_posterior
from streamdp.core.learners import Learner, PolicyLearner


def passage(before: Learner, now: Learner) -> Passage:
    """The way from one learner to another of the same stream."""
    histories = False
    if isinstance(before, PolicyLearner) and isinstance(now, PolicyLearner):
        histories = keeps_a_posterior(before.rule, now.rule)
    return Passage(
        actions_before=before.actions,
        actions_now=now.actions,
        schedule_before=before.schedule,
        schedule_now=now.schedule,
        histories=histories,
    )


def heritage_of(engine: Engine, now: Learner) -> dict[Key, Carried]:
    """What the keys of an engine carry over to a new learner; the engine is not changed.

    >>> from streamdp.core.learners import RECIPES
    >>> from streamdp.core.randomness import SeededRandomness
    >>> def engine(*actions, epoch, **more):
    ...     learner = RECIPES["remembering_leader"](actions=actions, epsilon="1")
    ...     return Engine(stream="home", partition=0, learner=learner, budget="1", epoch=epoch,
    ...                   randomness=SeededRandomness(1), **more)
    >>> old = engine("a", "b", epoch=1)
    >>> releases = [old.apply(b"fr", [0, 1]) for event in range(100)]
    >>> new = engine("c", "b", "a", epoch=2)
    >>> carrying = engine("c", "b", "a", epoch=2, heritage=heritage_of(old, new.learner))
    >>> carrying.skip_to(old.position)
    >>> [release.action for release in carrying.apply(b"fr", [1, 1, 0])] == [old.action(b"fr")]
    True
    """
    bank, way = engine._bank, passage(engine.learner, now)
    heritage: dict[Key, Carried] = {}
    rows = np.arange(len(bank))
    for key, known in known_of(engine.learner, bank, rows, epoch=engine.epoch):
        carried = way.carried(known)
        if carried is not None:
            heritage[key] = carried
    return heritage
