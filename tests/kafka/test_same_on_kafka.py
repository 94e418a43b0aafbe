"""Is on a broker what is so in memory and on files: folds, replays, keys that leave and return?"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from streamdp.testing.broker import Borrowed
from streamdp_adapters.kafka import KafkaTechnology
from tests.support.feedback_served import differences, differences_of_two, stream
from tests.support.idle_on import leave_and_return
from tests.support.replay_service import lived, replayed_like
from tests.support.streams import events

pytestmark = pytest.mark.kafka


@pytest.fixture
def app(fresh_app: Callable[[], str]) -> str:
    """One that the broker has not seen."""
    return fresh_app()


@pytest.fixture
def technology(broker: Borrowed, app: str) -> KafkaTechnology:
    """The shared broker, on which who ends at once is soon known to be gone."""
    settings = {"bootstrap": broker.bootstrap, "single_broker": True, "session_timeout_ms": 1500}
    return KafkaTechnology.from_settings(settings, app=app)


def test_a_key_leaves_and_comes_back(technology: KafkaTechnology, app: str) -> None:
    """By the timestamps that the log has, through takings that end after any commit."""
    asyncio.run(leave_and_return(technology, app))


def test_what_a_seeded_feedback_service_publishes_is_the_offline_fold(
    technology: KafkaTechnology, app: str
) -> None:
    """Headers, sums and policies through real transactions, bit for bit."""
    assert asyncio.run(differences(technology, stream(app), records=400)) == []


def test_it_is_so_where_partitions_go_from_one_process_to_another(
    technology: KafkaTechnology, app: str
) -> None:
    """By a rebalance while records come, and by a process that ends at once."""
    assert asyncio.run(differences_of_two(technology, stream(app), records=360)) == []


def test_a_replay_of_a_topic_makes_the_releases_of_its_service(
    technology: KafkaTechnology, app: str
) -> None:
    """Bit for bit, with transactions' own offsets between the records."""
    served = asyncio.run(lived(technology, events(700, seed=4), app=app, partitions=2))
    assert replayed_like(technology, app=app) == served
