"""Sources of logs: files by their endings, topics by the name of a transport.

    log.ndjson  log.jsonl  log.parquet  log.arrow  log.feather  log.csv  log.npy  log.npz
    days/*.parquet  s3://bucket/days/*.parquet
    sqlite:home.db#clicks      the input topic `clicks` of the embedded log
    kafka:localhost:9092#clicks

A file names its actions itself if it can; a topic needs them, as a stream's configuration does. An
error in a file is one line that names the file, the row or column, and what was expected.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path, PurePath

from streamdp.core.errors import InvalidConfig
from streamdp.lab.logs.log import Log, OnBad

LINES = (".ndjson", ".jsonl")
ARRAYS = (".npy", ".npz")
TABLES = (".parquet", ".arrow", ".feather", ".ipc", ".csv")
"""The files that pyarrow reads."""


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
    """The log at a path, in all files that a pattern names, or at a topic's address."""
    how, text = reading or ReadOptions(), str(source)
    if is_topic(text) and not Path(text).exists():
        from streamdp.lab.logs.topics import open_topic

        return open_topic(text, how)
    files = files_of(text)
    kind = ending(files[0])
    if kind in TABLES:
        from streamdp.lab.logs import table

        return table.open_files(files, how, name=text)
    if kind in LINES:
        from streamdp.lab.logs import lines

        return lines.open_files([Path(file) for file in files], how, name=text)
    from streamdp.lab.logs import arrays

    if len(files) > 1:
        raise InvalidConfig(text, "several files", expected="one .npy or .npz", got=len(files))
    return arrays.open_file(Path(files[0]), how)


def files_of(text: str) -> list[str]:
    """The files of a log: one, or all of one kind that a pattern names, in their order."""
    kind = ending(text)
    if kind not in (*LINES, *TABLES, *ARRAYS):
        expected = ", ".join((*LINES, *TABLES, *ARRAYS)) + " or transport:address#topic"
        raise InvalidConfig(text, "unknown kind of log", expected=expected, got=kind or "no ending")
    if kind in TABLES:
        need_pyarrow(text)
    if "://" in text:
        if kind != ".parquet":
            expected = "Parquet: other files are read from this machine"
            raise InvalidConfig(text, "cannot be read", expected=expected, got=kind)
        from streamdp.lab.logs.table import matching

        files = matching(text) if set(text) & set("*?") else [text]
    elif Path(text).is_file():
        files = [text]
    else:
        place = Path(text)
        wanted = place.relative_to(place.anchor)
        files = sorted(str(file) for file in Path(place.anchor).glob(str(wanted)))
    if not files:
        raise InvalidConfig(text, "cannot be read", expected="a file", got="none there")
    return files


def bytes_of(source: str) -> int:
    """The size of a log's files on this machine; 0 for others."""
    if is_topic(source) and not Path(source).exists():
        return 0
    return sum(Path(file).stat().st_size for file in files_of(source) if "://" not in file)


def rows_in(source: str) -> int:
    """The rows of a log's files of columns, which say it themselves; 0 for others."""
    if is_topic(source) and not Path(source).exists():
        return 0
    tables = [file for file in files_of(source) if ending(file) in TABLES]
    if not tables:
        return 0
    from streamdp.lab.logs.table import schema_of

    return sum(schema_of(file)[1] for file in tables)


def ending(file: str) -> str:
    """The kind of a file, by the end of its name."""
    return PurePath(file).suffix.lower()


def is_topic(text: str) -> bool:
    """Whether a text is a topic's address, not a file.

    >>> is_topic("sqlite:home.db#clicks"), is_topic("log.parquet"), is_topic("s3://a/b.parquet")
    (True, False, False)
    """
    technology, colon, address = text.partition(":")
    return bool(colon) and technology.isidentifier() and not address.startswith("//")


def need_pyarrow(where: str) -> None:
    """Refuse a file that needs pyarrow, if pyarrow is not installed."""
    if find_spec("pyarrow") is None:
        expected = "the extra `replay` (in a checkout: make tools)"
        raise InvalidConfig(where, "needs pyarrow", expected=expected, got="no pyarrow")
