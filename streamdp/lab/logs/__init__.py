"""Sources of logs: files by their endings, topics by the name of a transport.

    log.ndjson  log.jsonl  log.parquet  log.arrow  log.feather  log.npy  log.npz
    sqlite:home.db#clicks      the input topic `clicks` of the embedded log
    kafka:localhost:9092#clicks

A file names its actions itself if it can; a topic needs them, as a stream's configuration does. An
error in a file is one line that names the file, the row or column, and what was expected.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from streamdp.core.errors import InvalidConfig
from streamdp.lab.logs.log import Log, OnBad

ENDINGS: Mapping[str, str] = {
    ".ndjson": "lines",
    ".jsonl": "lines",
    ".npy": "arrays",
    ".npz": "arrays",
    ".parquet": "table",
    ".arrow": "table",
    ".feather": "table",
    ".ipc": "table",
}
"""The module that reads each file ending; each has a function `open_file`."""


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How to read a log, as far as the log itself does not say.

    `actions` names the coordinates. `on_bad` says what an unusable row of a file is: an error, or a
    null loss as it would be live. `beside` names columns that are no actions. `format` and
    `format_options` are a topic's wire format; `settings` go to its transport.
    """

    actions: tuple[str, ...] | None = None
    on_bad: OnBad = "refuse"
    beside: tuple[str, ...] = ()
    format: str = "json"
    format_options: Mapping[str, object] = field(default_factory=dict)
    settings: Mapping[str, object] = field(default_factory=dict)


def open_log(source: str | Path, reading: ReadOptions | None = None) -> Log:
    """The log at a path or a topic's address."""
    how = reading or ReadOptions()
    text = str(source)
    technology, colon, address = text.partition(":")
    if colon and technology.isidentifier() and not Path(text).exists():
        from streamdp.lab.logs.topics import open_topic

        return open_topic(technology, address, how)
    path = Path(source)
    module = ENDINGS.get(path.suffix.lower())
    if module is None:
        raise InvalidConfig(
            text, "unknown kind of log", expected=_kinds(), got=path.suffix or "no ending"
        )
    if not path.is_file():
        raise InvalidConfig(text, "cannot be read", expected="a file", got="none there")
    if module == "table":
        need_pyarrow(text)
    reader: Callable[[Path, ReadOptions], Log] = import_module(f"{__name__}.{module}").open_file
    log: Log = reader(path, how)
    return log


def need_pyarrow(where: str) -> None:
    """Refuse a file that needs pyarrow, if pyarrow is not installed."""
    if find_spec("pyarrow") is None:
        expected = "the extra `replay` (in a checkout: make tools)"
        raise InvalidConfig(where, "needs pyarrow", expected=expected, got="no pyarrow")


def _kinds() -> str:
    return ", ".join(ENDINGS) + " or transport:address#topic"
