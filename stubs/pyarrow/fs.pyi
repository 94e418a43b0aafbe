"""What streamdp uses of pyarrow.fs."""

from typing import Any

class FileInfo:
    path: str
    is_file: bool

class FileSelector:
    def __init__(self, base_dir: str, *, recursive: bool = False) -> None: ...

class FileSystem:
    @staticmethod
    def from_uri(uri: str) -> tuple[FileSystem, str]: ...
    def get_file_info(self, wanted: FileSelector) -> list[FileInfo]: ...
    def open_input_file(self, path: str) -> Any: ...
