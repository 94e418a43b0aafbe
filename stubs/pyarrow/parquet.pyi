from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from pyarrow import NativeFile, RecordBatch, Schema

class ParquetFile:
    schema_arrow: Schema
    metadata: Any
    num_row_groups: int
    def __init__(self, source: Any) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...
    def read_row_group(self, i: int) -> Any: ...
    def iter_batches(
        self,
        batch_size: int,
        *,
        row_groups: Sequence[int],
        columns: Sequence[str],
        use_threads: bool = True,
    ) -> Iterator[RecordBatch]: ...

class ParquetWriter:
    def __init__(self, where: Path | NativeFile | IO[bytes], schema: Schema) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...
    def write_batch(self, batch: RecordBatch) -> None: ...
    def write_table(self, table: Any, row_group_size: int) -> None: ...
    def close(self) -> None: ...

def write_table(table: Any, where: Path, row_group_size: int | None = None) -> None: ...
