"""Does the memory transport keep every promise of the port, and show a judge everything?"""

from __future__ import annotations

import asyncio

import pytest

from streamdp.ports import Technology
from streamdp.testing.memory import Memory
from streamdp.testing.memory_log import MemoryLog
from streamdp.testing.transport import CHECKS, GROUP_CHECKS, Check


def make(app: str) -> Technology:
    return Memory(MemoryLog())


def make_with_gaps(app: str) -> Technology:
    return Memory(MemoryLog(gap=3))


@pytest.mark.parametrize("check", CHECKS + GROUP_CHECKS, ids=str)
def test_every_promise(check: Check) -> None:
    asyncio.run(check.run(make))


@pytest.mark.parametrize("check", CHECKS, ids=str)
def test_every_promise_with_gaps_between_offsets(check: Check) -> None:
    asyncio.run(check.run(make_with_gaps))
