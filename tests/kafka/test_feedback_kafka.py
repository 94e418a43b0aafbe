"""Is what a seeded feedback service publishes on a broker the offline fold, bit for bit?"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from streamdp.testing.broker import Borrowed
from streamdp_adapters.kafka import KafkaTechnology
from tests.feedback_served import differences, stream

pytestmark = [pytest.mark.kafka]


def test_is_what_is_published_the_offline_fold(
    broker: Borrowed, fresh_app: Callable[[], str]
) -> None:
    """Headers, sums and policies through real transactions."""
    app = fresh_app()
    settings = {"bootstrap": broker.bootstrap, "single_broker": True, "session_timeout_ms": 1500}
    technology = KafkaTechnology.from_settings(settings, app=app)
    assert asyncio.run(differences(technology, stream(app), records=400)) == []
