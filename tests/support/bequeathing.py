"""What the keys of an engine carry over to the engine of a later epoch, without a service."""

from __future__ import annotations

from streamdp.core.engine.machine import Engine
from streamdp.core.events import Carried, Key
from streamdp.core.evidence.carrying import Passage
from streamdp.core.kinds.kind import Kind


def heritage_of(engine: Engine, now: Kind) -> dict[Key, Carried]:
    """What the keys of an engine carry over to a new learner; the engine is not changed."""
    way = Passage(engine.kind, now)
    carried = ((key, way.carried(after, known)) for key, after, known in engine.known())
    return {key: state for key, state in carried if state is not None}
