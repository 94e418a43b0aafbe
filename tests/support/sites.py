"""A pytest plugin: the sites where streams may live. What must hold on each is told once, in
`tests/sites`, with the fixture `site`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from streamdp.ports import Key, Technology, Value
from streamdp.testing.memory import MemoryTechnology
from streamdp.testing.memory_log import MemoryLog
from streamdp_adapters.kafka import KafkaTechnology
from streamdp_adapters.sqlite import Sqlite

Site = Callable[[str], Technology]
"""Opens the technology for an application, which finds nothing there."""


class Ticking(MemoryLog):
    """A log whose time goes on with each append."""

    def append(self, topic: str, records: Sequence[tuple[Key, Value]], **how: Any) -> None:
        self.now += 1
        super().append(topic, records, **how)


def _kinds(*names: str) -> list[Any]:
    marks = {"files": pytest.mark.slow, "broker": pytest.mark.kafka}
    return [pytest.param(name, marks=marks.get(name, ()), id=name) for name in names]


def on(*names: str) -> pytest.MarkDecorator:
    """These sites alone."""
    return pytest.mark.parametrize("site", _kinds(*names), indirect=True)


@pytest.fixture(params=_kinds("memory", "memory with gaps", "files", "broker"))
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Site:
    """Memory, also with gaps between offsets as transactions leave them; SQLite; Kafka."""
    if request.param == "files":
        path = {"path": tmp_path / "trusted.db", "partitions": 0, "actions": "all"}
        return partial(_opened, Sqlite, path)
    if request.param == "broker":
        bootstrap = request.getfixturevalue("broker").bootstrap
        table = {"bootstrap": bootstrap, "single_broker": True, "session_timeout_ms": 1500}
        return partial(_opened, KafkaTechnology, table)
    logs: dict[str, MemoryLog] = {}
    gap = 3 if request.param == "memory with gaps" else 0
    return lambda app: MemoryTechnology(logs.setdefault(app, Ticking(gap=gap)))


def _opened(
    kind: type[Sqlite] | type[KafkaTechnology], table: dict[str, object], app: str
) -> Technology:
    return kind.from_settings(table, app=app)
