from typing import Self

class DefaultRecord:
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    def __init__(
        self,
        offset: int,
        timestamp: int,
        timestamp_type: int,
        key: bytes | None,
        value: bytes | None,
        headers: list[tuple[str, bytes | None]],
    ) -> None: ...

class DefaultRecordBatch:
    compression_type: int
    is_control_batch: bool
    def __init__(self, buffer: bytes) -> None: ...
    def validate_crc(self) -> bool: ...
    def __iter__(self) -> Self: ...
    def __next__(self) -> DefaultRecord: ...

class DefaultRecordBatchBuilder:
    def __init__(
        self,
        magic: int,
        compression_type: int,
        is_transactional: int,
        producer_id: int,
        producer_epoch: int,
        base_sequence: int,
        batch_size: int,
    ) -> None: ...
    def append(
        self,
        offset: int,
        timestamp: int | None,
        key: bytes | None,
        value: bytes | None,
        headers: list[tuple[str, bytes | None]],
    ) -> object: ...
    def build(self) -> bytearray: ...
