"""What the keys of an engine carry over to the engine of a later epoch, without a service."""

from __future__ import annotations

from streamdp.core.engine.machine import Engine
from streamdp.core.events import Carried, Key
from streamdp.core.evidence.carrying import Passage
from streamdp.core.kinds.kind import Kind


def heritage_of(engine: Engine, now: Kind) -> dict[Key, Carried]:
    """What the keys of an engine carry over to a new learner; the engine is not changed."""
    before = engine.kind
    histories = before.evidence.carries == now.evidence.carries == "posterior"
    way = Passage(before.actions, now.actions, before.schedule, now.schedule, histories)
    carried = ((key, way.carried(state)) for key, state in engine.known())
    return {key: state for key, state in carried if state is not None}
