from collections.abc import Sequence

class MetadataRequest:
    def __init__(self, topics: Sequence[str] | None) -> None: ...

class MetadataResponse:
    brokers: Sequence[object]
