"""What streamdp uses of pyarrow.csv."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

class ConvertOptions:
    def __init__(
        self, *, include_columns: Sequence[str], column_types: Mapping[str, Any]
    ) -> None: ...

class ReadOptions:
    def __init__(self, *, use_threads: bool = True) -> None: ...

class CSVStreamingReader:
    schema: Any
    def __enter__(self) -> CSVStreamingReader: ...
    def __exit__(self, *caught: object) -> None: ...
    def __iter__(self) -> Iterator[Any]: ...

def open_csv(
    source: Any,
    *,
    read_options: ReadOptions | None = None,
    convert_options: ConvertOptions | None = None,
) -> CSVStreamingReader: ...
def write_csv(data: Any, output_file: Any) -> None: ...
