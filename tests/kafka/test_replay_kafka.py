"""Does a replay of a Kafka topic make the releases of the service that served it?"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from streamdp.testing.broker import Borrowed
from streamdp_adapters.kafka import KafkaTechnology
from tests.support.replay_service import lived, replayed_like
from tests.support.streams import events

pytestmark = [pytest.mark.kafka]


def test_is_a_topic_the_live_service(broker: Borrowed, fresh_app: Callable[[], str]) -> None:
    """Bit for bit, with transactions' own offsets between the records."""
    app = fresh_app()
    settings = {"bootstrap": broker.bootstrap, "single_broker": True, "session_timeout_ms": 1500}
    technology = KafkaTechnology.from_settings(settings, app=app)
    served = asyncio.run(lived(technology, events(700, seed=4), app=app, partitions=2))
    assert replayed_like(technology, app=app) == served
