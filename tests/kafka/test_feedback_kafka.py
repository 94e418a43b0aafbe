"""Is what a seeded feedback service publishes on a broker the offline fold, bit for bit?"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from streamdp.testing.broker import Borrowed
from streamdp_adapters.kafka import KafkaTechnology
from tests.support.feedback_served import differences, differences_of_two, stream

pytestmark = [pytest.mark.kafka]


def test_is_what_is_published_the_offline_fold(
    broker: Borrowed, fresh_app: Callable[[], str]
) -> None:
    """Headers, sums and policies through real transactions."""
    app = fresh_app()
    assert asyncio.run(differences(technology(broker, app), stream(app), records=400)) == []


def test_is_it_so_where_partitions_go_from_one_process_to_another(
    broker: Borrowed, fresh_app: Callable[[], str]
) -> None:
    """By a rebalance while records come, and by a process that ends at once."""
    app = fresh_app()
    made = stream(app)
    assert asyncio.run(differences_of_two(technology(broker, app), made, records=360)) == []


def technology(broker: Borrowed, app: str) -> KafkaTechnology:
    settings = {"bootstrap": broker.bootstrap, "single_broker": True, "session_timeout_ms": 1500}
    return KafkaTechnology.from_settings(settings, app=app)
