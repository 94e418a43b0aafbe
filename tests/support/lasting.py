"""Differences that stay: what a reader of several topics may see for a moment is none.

The end of a transaction reaches its topics one after another, so a reader that comes at once may
see the ledger's lines before the actions'.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

_LOOKS = 600
_BETWEEN = 0.1  # seconds


async def lasting(look: Callable[[], Awaitable[list[str]]]) -> list[str]:
    """What is still wrong after looking again and again; nothing as soon as nothing is."""
    for _ in range(_LOOKS):
        if not await look():
            return []
        await asyncio.sleep(_BETWEEN)
    return await look()
