"""The conformance kit of the transport port: every promise of `streamdp.ports`, numbered.

    await check_transport(make)             # every promise that any transport keeps
    await check_group(make)                 # and those of one whose workers share partitions

`make` opens the technology under test for an application's name; each check uses a name, a stream
and an input of its own, so that all of them may run on one broker or file. A transport that breaks
a promise raises `Broken`, which says which, what was expected and what came. In pytest, one test a
promise::

    @pytest.mark.parametrize("check", CHECKS, ids=str)
    def test_promise(check):
        asyncio.run(check.run(make))

The checks themselves are in `streamdp.testing.transport_promises`.
"""

from __future__ import annotations

from streamdp.testing.transport_promises import CHECKS, GROUP_CHECKS
from streamdp.testing.transport_room import Broken, Check, Make

__all__ = ["CHECKS", "GROUP_CHECKS", "Broken", "Check", "Make", "check_group", "check_transport"]


async def check_transport(make: Make) -> None:
    """Every promise that any transport keeps, in order; the first broken one is raised."""
    for check in CHECKS:
        await check.run(make)


async def check_group(make: Make) -> None:
    """The promises of a transport whose workers share partitions."""
    for check in GROUP_CHECKS:
        await check.run(make)
