"""A pytest plugin: what takes long begins first, so that nobody waits for it at the end.

Where the suite runs in several processes (pytest-xdist), each is dealt a stretch of the tests and
takes over the end of another's when it is done. Tests marked ``long`` wait for brokers and clocks
most of their time, so half of the processes begin with them, and the others with what computes.
"""

from __future__ import annotations

import os

import pytest

WORKERS = "PYTEST_XDIST_WORKER_COUNT"


def dealt(items: list[pytest.Item], workers: int) -> list[pytest.Item]:
    """The tests, the long ones at the beginning of the first half of the stretches."""
    long = [item for item in items if item.get_closest_marker("long")]
    others = iter([item for item in items if not item.get_closest_marker("long")])
    starting = (workers + 1) // 2
    ordered: list[pytest.Item] = []
    for worker in range(workers):
        size = (len(items) - len(ordered)) // (workers - worker)
        stretch = long[worker::starting] if worker < starting else []
        fewer = max(0, size - len(stretch))
        ordered += stretch + [item for _, item in zip(range(fewer), others, strict=False)]
    return ordered + list(others)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if WORKERS in os.environ:
        items[:] = dealt(items, int(os.environ[WORKERS]))
