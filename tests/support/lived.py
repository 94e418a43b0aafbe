"""A partition that has learned."""

from __future__ import annotations

from streamdp.service.settings import Pace
from streamdp.service.spec import StreamSpec
from tests.support.protocol_model import Store, restore
from tests.support.streams import events


def lived(stream: StreamSpec, *, records: int = 40, of: int = 60) -> Store:
    """Partition 0 of a stream that has learned from some of its records."""
    store = Store(events(of))
    work = restore(store, stream)
    work.absorb(work.read(store.records(0, records)))
    for _ in range(2):
        store.decide(work.cut(now=0, pace=Pace()).commit)
    return store
