"""Is a place that cannot be written to one line, and known before the work is done?"""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from streamdp.cli import main
from streamdp.cli.writing import unwritten
from streamdp.core.errors import DiskFull, InvalidConfig
from tests.support.calling import Streamdp
from tests.support.calling import streamdp as streamdp

FULL = Path("/dev/full")


@pytest.fixture
def idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """No work is done."""

    def worked(*_: object, **__: object) -> None:
        raise AssertionError("the work was begun")

    for name in (
        "streamdp.lab.logs.open_log",
        "streamdp.lab.datasets.columns",
        "streamdp.lab.simulation.simulate",
        "streamdp.lab.papers.claims.claims",
    ):
        monkeypatch.setattr(name, worked)


@pytest.mark.usefixtures("idle")
@pytest.mark.parametrize(
    "command",
    [
        ("replay", "losses", "log.npy", "--report"),
        ("replay", "losses", "log.npy", "--json"),
        ("replay", "shown", "log.npy", "--report"),
        ("simulate", "--observes", "feedback", "--report"),
        ("reproduce", "leak", "--report"),
        ("datasets", "flights", "--out"),
    ],
    ids=" ".join,
)
def test_a_place_is_checked_before_the_work(
    tmp_path: Path, streamdp: Streamdp, command: tuple[str, ...]
) -> None:
    """A missing folder, and a folder in place of a file: exit code 2 and one line."""
    (tmp_path / "folder.html").mkdir()
    for place, cause in (
        (tmp_path / "none" / "page.html", "No such file or directory"),
        (tmp_path / "folder.html", "Is a directory"),
    ):
        ran = streamdp(*command, str(place))
        expected = "a file in a folder that exists, with the right to write it"
        said = f"streamdp: {place}: cannot be written; expected {expected}, got {cause}\n"
        assert (ran.code, ran.err) == (2, said)


def test_a_place_without_the_right_to_write_is_refused(
    tmp_path: Path, streamdp: Streamdp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system says who may; nothing is opened to find out."""
    monkeypatch.setattr("os.access", lambda path, mode: False)
    ran = streamdp("reproduce", "leak", "--report", str(tmp_path / "page.html"))
    assert ran.code == 2
    assert "got Permission denied" in ran.err


def test_the_place_of_a_conversion_is_checked(tmp_path: Path, streamdp: Streamdp) -> None:
    """The folder of the file, and a full disk under it."""
    source = tmp_path / "log.npy"
    np.save(source, np.full((9, 2), 0.5, dtype=np.float32))
    (tmp_path / "disk.ndjson.part").symlink_to(FULL)
    missing = str(tmp_path / "none" / "at.ndjson")
    full = str(tmp_path / "disk.ndjson")
    for options, code, where in (
        ((missing,), 2, missing),
        ((full,), 6, full),
    ):
        ran = streamdp("convert", str(source), *options)
        assert ran.code == code
        assert ran.err.startswith(f"streamdp: {where}: cannot be written; expected a")
        assert ran.err.count("\n") == 1


def test_a_full_disk_is_one_line(
    tmp_path: Path, streamdp: Streamdp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Figures, and standard output of any command: exit code 6, which restarting does not help."""
    source = tmp_path / "log.npy"
    np.save(source, np.full((9, 2), 0.5, dtype=np.float32))
    ask = ("replay", "losses", str(source), "--learners", "prefix_softmax", "--seeds", "1")
    ran = streamdp(*ask, "--json", str(FULL))
    assert ran.code == 6
    assert "/dev/full: cannot be written; expected a working disk" in ran.err
    monkeypatch.setattr(sys, "argv", ["streamdp", "check", "--example"])
    with FULL.open("w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        with pytest.raises(SystemExit) as ended:
            main()
    assert ended.value.code == 6


@pytest.mark.parametrize("defect", [PermissionError(13, "no"), OSError(errno.EIO, "no", "x.db")])
def test_a_defect_keeps_its_traceback(
    streamdp: Streamdp, monkeypatch: pytest.MonkeyPatch, defect: OSError
) -> None:
    """An error of the system that is not about standard output keeps its traceback."""

    def broken(*_: object, **__: object) -> Callable[[], None]:
        raise defect

    monkeypatch.setattr("streamdp.cli.application", broken)
    with pytest.raises(OSError, match="no"):
        streamdp("check", "--example")


def test_a_failing_disk_is_another_error_than_a_wrong_place() -> None:
    """A disk has to be mended; a place can be changed."""
    assert isinstance(unwritten("x", OSError(errno.EROFS, "read-only")), DiskFull)
    assert str(unwritten("x", OSError())).endswith("got OSError")
    assert isinstance(unwritten("x", OSError(errno.EISDIR, "folder")), InvalidConfig)
