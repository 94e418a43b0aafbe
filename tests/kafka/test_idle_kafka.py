"""Does a key leave and come back on a real broker, by the timestamps that its log has?"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from streamdp.testing.broker import Borrowed
from streamdp_adapters.kafka import KafkaTechnology
from tests.support.idle_on import leave_and_return

pytestmark = pytest.mark.kafka


def test_does_a_key_leave_and_come_back_on_kafka(
    broker: Borrowed, fresh_app: Callable[[], str]
) -> None:
    """Through takings that end after any commit."""
    app = fresh_app()
    settings = {"bootstrap": broker.bootstrap, "single_broker": True}
    place = KafkaTechnology.from_settings(settings, app=app)
    asyncio.run(leave_and_return(place, app))
