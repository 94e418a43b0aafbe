"""Does every transport keep the promises of the port?"""

from __future__ import annotations

import pytest

from streamdp.testing.transport import CHECKS, GROUP_CHECKS, PAIRED_CHECKS, Check
from tests.support.sites import Site, on


@pytest.mark.parametrize("check", CHECKS, ids=str)
async def test_a_promise_of_any_transport(site: Site, check: Check) -> None:
    await check.run(site)


@pytest.mark.parametrize("check", PAIRED_CHECKS, ids=str)
async def test_a_promise_of_a_second_input_and_an_output(site: Site, check: Check) -> None:
    await check.run(site)


@on("memory", "broker")
@pytest.mark.parametrize("check", GROUP_CHECKS, ids=str)
async def test_a_promise_of_workers_that_share_partitions(site: Site, check: Check) -> None:
    await check.run(site)
