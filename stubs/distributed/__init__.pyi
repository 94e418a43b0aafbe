"""What streamdp uses of distributed, whose own types are not strict."""

from concurrent.futures import Executor
from types import TracebackType
from typing import Any, Self

class KilledWorker(Exception):
    task: str

class _Closed:
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

class Client(_Closed):
    def __init__(self, address: str, *, set_as_default: bool, timeout: float) -> None: ...
    def nthreads(self) -> dict[str, int]: ...
    def run(self, function: Any, *arguments: Any) -> dict[str, Any]: ...
    def run_on_scheduler(self, function: Any, *arguments: Any) -> Any: ...
    def get_executor(self, *, pure: bool) -> Executor: ...

class LocalCluster(_Closed):
    scheduler_address: str
    def __init__(self, **options: Any) -> None: ...
