"""Is what a service publishes, and what a replay makes of its topic, the same on every site?"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from streamdp.core.kinds.feedback import PLAYED
from streamdp.core.kinds.recipe import Played
from tests.support.feedback_served import differences, differences_of_two, stream
from tests.support.idle_on import leave_and_return
from tests.support.replay_service import lived, replayed_like
from tests.support.sites import Site, on
from tests.support.streams import events

pytestmark = pytest.mark.slow


@on("files", "broker")
async def test_a_key_leaves_and_comes_back(site: Site, fresh_app: Callable[[], str]) -> None:
    """By the timestamps that the log has, through takings that end after any commit."""
    app = fresh_app()
    await leave_and_return(site(app), app)


@pytest.mark.parametrize("played", PLAYED)
@on("memory with gaps", "files", "broker")
async def test_what_a_seeded_feedback_service_publishes_is_the_offline_fold(
    site: Site, fresh_app: Callable[[], str], played: Played
) -> None:
    """Sums, counts, policies, and every other byte of ledger and actions topic."""
    app = fresh_app()
    assert await differences(site(app), stream(app, played=played), records=400) == []


@on("broker")
async def test_it_is_so_where_partitions_go_from_one_process_to_another(
    site: Site, fresh_app: Callable[[], str]
) -> None:
    """By a rebalance while records come, and by a process that ends at once."""
    app = fresh_app()
    assert await differences_of_two(site(app), stream(app), records=360) == []


@on("memory with gaps", "files", "broker")
def test_a_replay_of_a_topic_makes_the_releases_of_its_service(
    site: Site, fresh_app: Callable[[], str]
) -> None:
    """Bit for bit, over a real log with garbage in it; several streams on one input."""
    app = fresh_app()
    served = asyncio.run(lived(site(app), events(700, seed=4), app=app, partitions=2))
    assert replayed_like(site(app), app=app) == served
