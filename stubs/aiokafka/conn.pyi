import asyncio

class AIOKafkaProtocol:
    _transport: asyncio.WriteTransport | None

class AIOKafkaConnection:
    _protocol: AIOKafkaProtocol | None
    def __init__(self, host: str, port: int, **configs: object) -> None: ...
    async def connect(self) -> object: ...
    def close(self) -> asyncio.Future[None]: ...
