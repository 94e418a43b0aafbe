"""`streamdp convert`: a log in another kind of file, or sent to a topic (`sending`).

Losses are written as float32 in [0, 1], which every reader makes of them, so a converted log
replays to the same releases; what was clipped is counted. Keys, offsets and partitions are written
too; a target that cannot hold them is refused. A file gets its name when it is complete; until then
it is ``NAME.part``, and ``NAME.part.json`` beside it records the progress. The same command resumes
there, however the process ended; if the log has changed since, it is refused. A fault in the log
leaves no file. A file that is no record of this very conversion is refused as a checkpoint, and
stays.

    .npy             losses alone: one key, offsets 0, 1, 2, …
    .npz             everything; made in memory, so it cannot be resumed
    .ndjson          everything; null losses as null; keys must be UTF-8
    .parquet .arrow  everything
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from importlib import import_module
from pathlib import Path

from streamdp.cli.writing import check_writable, writing
from streamdp.core.errors import InvalidConfig, complaint
from streamdp.lab.replay.chunks import chunks
from streamdp.lab.replay.journal import BEGIN, Journal, Mark, Milestone, Written
from streamdp.lab.replay.log import Log
from streamdp.lab.replay.sources import need_pyarrow
from streamdp.lab.replay.targets import Target

_BETWEEN_MARKS = 1 << 25
"""Bytes of losses after which a file is made durable: a second's work or less to do again."""

Open = Callable[[Path, Sequence[str], Mark | None], Target]

TARGETS = {
    ".npy": ("targets", "NpyTarget"),
    ".npz": ("targets", "NpzTarget"),
    ".ndjson": ("targets", "LinesTarget"),
    ".jsonl": ("targets", "LinesTarget"),
    ".parquet": ("arrow_targets", "ParquetTarget"),
    ".arrow": ("arrow_targets", "ArrowTarget"),
    ".feather": ("arrow_targets", "ArrowTarget"),
}
"""The writer for each file ending."""


def convert(
    log: Log,
    target: Path,
    *,
    checkpoint: Path | None = None,
    progress: Callable[[int], None] | None = None,
) -> Written:
    """Write a log to a file, or resume writing it; return what the file holds."""
    open_target = _kind(target)
    part = target.with_name(target.name + ".part")
    beside = checkpoint or part.with_name(part.name + ".json")
    _check_apart(log.name, target, part, beside)
    check_writable(target)
    check_writable(beside)
    journal = Journal.between(log, target.suffix.lower(), beside)
    left = journal.load()  # also where there is nothing to resume: it refuses any other file
    start = left if left is not None and part.is_file() else BEGIN
    try:
        with writing(target), closing(open_target(part, log.actions, start.mark)) as file:
            written = _write(log, file, journal, start, progress=progress)
            finished = file.finish()
    except InvalidConfig:
        part.unlink(missing_ok=True)
        journal.remove()
        raise
    finished.replace(target)
    part.unlink(missing_ok=True)
    journal.remove()
    return written


def _check_apart(source: str, target: Path, part: Path, checkpoint: Path) -> None:
    """Refuse a target or a checkpoint in place of a file that is read or written."""
    for option, path, others in (
        ("target", target, [Path(source)]),
        ("--checkpoint", checkpoint, [Path(source), target, part]),
    ):
        if path.resolve() in [other.resolve() for other in others]:
            what, expected = "is a file of this conversion", "another file"
            raise InvalidConfig(complaint(option, what, expected=expected, got=path))


def _write(
    log: Log,
    file: Target,
    journal: Journal,
    start: Milestone,
    *,
    progress: Callable[[int], None] | None,
) -> Written:
    written, unmarked = start.written, 0
    for chunk in chunks(log.portions(start.position), first=written.slots):
        file.write(chunk)
        written = written.after(chunk.losses, clipped=chunk.clipped)
        unmarked += chunk.losses.nbytes
        if chunk.after is not None and unmarked >= _BETWEEN_MARKS:
            mark, unmarked = file.mark(), 0
            if mark is not None:
                journal.save(Milestone(chunk.after, written, mark))
        if progress is not None:
            progress(written.slots)
    return written


def _kind(target: Path) -> Open:
    """The target for files with this ending."""
    place = TARGETS.get(target.suffix.lower())
    if place is None:
        expected = ", ".join(TARGETS)
        raise InvalidConfig(
            complaint(str(target), "unknown kind of file", expected=expected, got=target.suffix)
        )
    module, name = place
    if module == "arrow_targets":
        need_pyarrow(str(target))
    opened: Open = getattr(import_module(f"streamdp.lab.replay.{module}"), name).open
    return opened
