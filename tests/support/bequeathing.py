"""What the keys of an engine carry over to the engine of a later epoch, without a service."""

from __future__ import annotations

import numpy as np

from streamdp.core.engine.idleness import known_of
from streamdp.core.engine.machine import Engine
from streamdp.core.events import Carried, Key
from streamdp.core.evidence.carrying import Passage
from streamdp.core.evidence.policy_rules import keeps_a_posterior
from streamdp.core.learners import Learner, PolicyLearner


def heritage_of(engine: Engine, now: Learner) -> dict[Key, Carried]:
    """What the keys of an engine carry over to a new learner; the engine is not changed."""
    before, histories = engine.learner, False
    if isinstance(before, PolicyLearner) and isinstance(now, PolicyLearner):
        histories = keeps_a_posterior(before.rule, now.rule)
    way = Passage(before.actions, now.actions, before.schedule, now.schedule, histories)
    bank = engine._bank
    known = known_of(before, bank, np.arange(len(bank)), epoch=engine.epoch)
    carried = ((key, way.carried(state)) for key, state in known)
    return {key: state for key, state in carried if state is not None}
