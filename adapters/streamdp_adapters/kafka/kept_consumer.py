"""A consumer that is kept between questions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from aiokafka import AIOKafkaConsumer

from streamdp_adapters.kafka import client_errors
from streamdp_adapters.kafka.settings import KafkaSettings


def _as_it_is(_: AIOKafkaConsumer) -> None:
    """Change nothing."""


class KeptConsumer:
    """Opened when it is first asked; anew after an error, since credentials may have changed."""

    def __init__(
        self,
        settings: KafkaSettings,
        new: Callable[[], AIOKafkaConsumer],
        prepare: Callable[[AIOKafkaConsumer], None] = _as_it_is,
    ) -> None:
        """`prepare` is called with each consumer once it has started."""
        self._settings, self._new, self._prepare = settings, new, prepare
        self._consumer: AIOKafkaConsumer | None = None
        self._turn = asyncio.Lock()

    @asynccontextmanager
    async def asking(self) -> AsyncIterator[AIOKafkaConsumer]:
        """The consumer, connected."""
        async with self._turn:
            if self._consumer is None:
                consumer = self._new()
                await client_errors.start(consumer, self._settings)
                self._prepare(consumer)
                self._consumer = consumer
            consumer = self._consumer
        try:
            yield consumer
        except Exception:
            if self._consumer is consumer:
                await self.close()
            raise

    async def close(self) -> None:
        """Close the consumer within a bounded time."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            await client_errors.stop(consumer)
