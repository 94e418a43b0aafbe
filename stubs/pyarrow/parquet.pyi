from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pyarrow import RecordBatch, Schema

class ParquetFile:
    schema_arrow: Schema
    metadata: Any
    def __init__(self, source: Path) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...
    def iter_batches(self, batch_size: int, columns: Sequence[str]) -> Iterator[RecordBatch]: ...

class ParquetWriter:
    def __init__(self, where: Path, schema: Schema) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...
    def write_batch(self, batch: RecordBatch) -> None: ...

def write_table(table: Any, where: Path) -> None: ...
