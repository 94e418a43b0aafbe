"""What streamdp uses of pyarrow.csv."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

class ConvertOptions:
    def __init__(
        self, *, include_columns: Sequence[str], column_types: Mapping[str, Any]
    ) -> None: ...

class CSVStreamingReader:
    def __enter__(self) -> CSVStreamingReader: ...
    def __exit__(self, *caught: object) -> None: ...
    def __iter__(self) -> Iterator[Any]: ...

def open_csv(path: Path, *, convert_options: ConvertOptions) -> CSVStreamingReader: ...
