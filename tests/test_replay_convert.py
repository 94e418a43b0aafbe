"""Can a conversion be interrupted anywhere, and does it then end as if it had not been?"""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from streamdp.cli import application
from streamdp.core.errors import InvalidConfig, StateMismatch
from streamdp.lab.commands import _progress
from streamdp.lab.replay import ReadOptions, open_log
from streamdp.lab.replay.chunks import Chunk
from streamdp.lab.replay.converting import convert
from streamdp.lab.replay.journal import Written
from streamdp.lab.replay.log import Log
from streamdp.lab.replay.sending import send_log
from streamdp.lab.replay.targets import LinesTarget
from streamdp_adapters.sqlite import Sqlite
from tests.support.replayed import Pieces, logged, made_up

NAMED = ("left", "right", "up", "down")
ENDINGS = (".ndjson", ".parquet", ".arrow", ".npy")
SLOTS = 5000

SMALL = {
    "streamdp.lab.replay.converting._BETWEEN_MARKS": 16 * 1500,
    "streamdp.lab.replay.sources.numpy_files.PORTION_BYTES": 16 * 400,
    "streamdp.lab.replay.sources.arrow_files._PORTION_ROWS": 400,
    "streamdp.lab.replay.sources.ndjson._LINES": 400,
    "streamdp.lab.replay.sending._RECORDS": 100,
    "streamdp.lab.replay.sending._BETWEEN_MARKS": 700,
}
"""Portions and marks so small that these logs have many."""

VICTIM = """
import json, os, sys
from importlib import import_module
from streamdp.cli import main
from streamdp.lab.commands._progress import Bars

small = json.loads(sys.argv[1])
for name, value in small.items():
    module, _, constant = name.rpartition(".")
    setattr(import_module(module), constant, value)
for said in sys.stdin:  # all is imported: each victim is a copy of this process
    number, at, stderr, *command = json.loads(said)
    child = os.fork()
    if not child:
        break
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
else:
    sys.exit()
os.dup2(os.open(stderr, os.O_WRONLY | os.O_CREAT), 2)
os.dup2(os.open(os.devnull, os.O_RDWR), 0)
os.dup2(0, 1)
stage = Bars.stage

def dying(self, name, total):
    bar = stage(self, name, total)
    def tell(done):
        bar(done)
        if done >= at:
            os.kill(os.getpid(), number)
    return tell

Bars.stage = dying
sys.argv[1:] = command
sys.exit(main())
"""


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SMALL.items():
        monkeypatch.setattr(name, value)


def _log(folder: Path) -> Path:
    """A log in a file, one key."""
    path = folder / "source.npy"
    convert(made_up(SLOTS, seed=5), path)
    return path


Strike = Callable[..., tuple[int, str]]


@pytest.fixture(scope="module")
def strike(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Strike]:
    """Runs the command line with a signal to itself after 3,300 slots: its code, what it said."""
    stderr = tmp_path_factory.mktemp("struck") / "stderr"
    with subprocess.Popen(
        [sys.executable, "-c", VICTIM, json.dumps(SMALL)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
    ) as parent:  # fmt: skip

        def struck(number: signal.Signals, *command: str) -> tuple[int, str]:
            assert parent.stdin is not None
            assert parent.stdout is not None
            stderr.write_text("")
            parent.stdin.write(json.dumps([number, 3300, str(stderr), *command]) + "\n")
            return int(parent.stdout.readline()), stderr.read_text()

        yield struck
    assert parent.returncode == 0


class _Stop(KeyboardInterrupt):
    """Ctrl-C, in a test."""


def _steps(seen: list[int], *, every: int = 7) -> Callable[[int], None]:
    """Progress that is interrupted when it has been told so often."""
    begun = len(seen)

    def tell(done: int) -> None:
        seen.append(done)
        if len(seen) - begun == every:
            raise _Stop

    return tell


def _insist(run: Callable[[Callable[[int], None]], Written], *, every: int) -> list[int]:
    """Run again and again until it is through; what progress was told."""
    seen: list[int] = []
    while True:
        try:
            run(_steps(seen, every=every))
        except _Stop:
            assert len(seen) < 200
        else:
            return seen


@pytest.mark.slow
@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_is_a_killed_conversion_gone_on_with(
    tmp_path: Path, ending: str, number: signal.Signals, strike: Strike
) -> None:
    """The same command again; the file is the same, byte for byte, as without the interruption."""
    source = _log(tmp_path)
    target, whole = tmp_path / f"log{ending}", tmp_path / f"whole{ending}"
    code, said = strike(number, "convert", str(source), str(target))
    assert code == (130 if number is signal.SIGINT else -signal.SIGKILL), said
    if number is signal.SIGINT:
        assert "interrupted; the same command resumes\n" in said
    assert not target.exists()
    left = tmp_path / f"log{ending}.part"
    with left.open("ab") as file:
        file.write(b"half a record")  # what a death in mid-write leaves
    seen: list[int] = []
    assert convert(open_log(source), target, progress=seen.append).slots == SLOTS
    assert seen[0] > 3000
    convert(open_log(source), whole)
    assert target.read_bytes() == whole.read_bytes()
    assert {path.name for path in tmp_path.iterdir()} == {source.name, target.name, whole.name}


@pytest.mark.slow
@pytest.mark.parametrize("ending", ENDINGS[:3])
@pytest.mark.parametrize("kind", [".ndjson", ".parquet", ".arrow", ".npz"])
def test_does_it_matter_how_often(tmp_path: Path, ending: str, kind: str) -> None:
    """Interrupted every seven portions, from every kind of source, with keys and partitions."""
    source, made = tmp_path / f"source{kind}", made_up(SLOTS, seed=6, keys=3)
    named = [key or b"none" for key in made.keys or ()]
    convert(Pieces(made.losses, named, made.partitions, actions=NAMED), source)
    target, whole = tmp_path / f"log{ending}", tmp_path / f"whole{ending}"
    seen = _insist(lambda tell: convert(open_log(source), target, progress=tell), every=7)
    assert len(seen) > len(set(seen))
    convert(open_log(source), whole)
    assert target.read_bytes() == whole.read_bytes()
    assert logged(open_log(target)) == logged(open_log(source))


def test_are_segments_one_parquet_file(tmp_path: Path) -> None:
    """Any reader finds all row groups of the segments in one file, and nothing else beside it."""
    log = open_log(_log(tmp_path))
    convert(log, tmp_path / "log.parquet")
    with pq.ParquetFile(tmp_path / "log.parquet") as file:
        metadata = file.metadata
        places = [metadata.row_group(n).column(3).data_page_offset for n in range(4)]
        assert metadata.num_rows == SLOTS
    assert places == sorted(set(places))
    assert logged(open_log(tmp_path / "log.parquet")) == logged(log)
    assert len(list(tmp_path.iterdir())) == 2  # the source and the file


def test_is_a_death_before_the_finished_file_has_its_name_made_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The segments are joined; the process dies; the same command makes the same file."""
    source, target, whole = _log(tmp_path), tmp_path / "log.parquet", tmp_path / "whole.parquet"

    rename = Path.replace

    def dies(self: Path, to: Path) -> Path:
        if to == target:
            raise _Stop
        return rename(self, to)

    with monkeypatch.context() as dying:
        dying.setattr(Path, "replace", dies)
        with pytest.raises(_Stop):
            convert(open_log(source), target)
    assert not target.exists()
    seen: list[int] = []
    assert convert(open_log(source), target, progress=seen.append).slots == SLOTS
    assert seen[0] > 3000  # it did not begin anew
    convert(open_log(source), whole)
    assert target.read_bytes() == whole.read_bytes()
    assert {path.name for path in tmp_path.iterdir()} == {source.name, target.name, whole.name}


def test_is_another_conversion_refused(tmp_path: Path) -> None:
    """A source that has changed, a checkpoint that is none, a partial file that is too short."""
    source, target = _log(tmp_path), tmp_path / "log.ndjson"
    second_input, part = tmp_path / "log.ndjson.part.json", tmp_path / "log.ndjson.part"

    def left() -> None:
        with pytest.raises(_Stop):
            convert(open_log(source), target, progress=_steps([]))

    left()
    np.save(source, np.zeros((SLOTS, 2), np.float32))
    with pytest.raises(StateMismatch, match=r"part\.json: of another conversion.*remove it"):
        convert(open_log(source), target)
    second_input.write_text("{}")
    with pytest.raises(StateMismatch, match=r"part\.json: cannot be read"):
        convert(open_log(source), target)
    second_input.unlink()
    left()
    part.write_bytes(part.read_bytes()[:1000])
    with pytest.raises(StateMismatch, match=r"part: cut short; expected \d+ bytes, got 1000"):
        convert(open_log(source), target)


@pytest.mark.parametrize("option", ["--checkpoint", "target"])
@pytest.mark.parametrize("ending", [".ndjson", ".npz"])
def test_is_a_file_that_is_no_checkpoint_kept(tmp_path: Path, ending: str, option: str) -> None:
    """The log itself, the target, what is written, and anybody's file: refused, and unharmed."""
    source, target, notes = _log(tmp_path), tmp_path / f"log{ending}", tmp_path / "notes.txt"
    expected = r"notes\.txt: cannot be read; expected a file that"
    target.write_text("an older log")
    notes.write_text("Keep this.")
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    second_input: list[tuple[Path, Path]] = [(source, source), (source, tmp_path / ".." / source)]
    if option == "--checkpoint":
        part = tmp_path / f"log{ending}.part"
        second_input = [(target, source), (target, target), (target, part)]
        with pytest.raises(StateMismatch, match=expected):
            convert(open_log(source), target, checkpoint=notes)
    for to, checkpoint in second_input:
        given = checkpoint if option == "--checkpoint" else None
        with pytest.raises(InvalidConfig, match=f"{option}: is a file of this conversion"):
            convert(open_log(source), to, checkpoint=given)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_does_a_mistake_leave_nothing(tmp_path: Path) -> None:
    """It has to be mended first, and then the log is another."""
    source = tmp_path / "source.ndjson"
    source.write_text('{"losses":[0,1]}\n' * 3000 + "nonsense\n")
    with pytest.raises(InvalidConfig, match="line 3001"):
        convert(open_log(source), tmp_path / "log.parquet")
    assert [path.name for path in tmp_path.iterdir()] == [source.name]


def _address(folder: Path) -> str:
    return f"sqlite:{folder / 'home.db'}#clicks"


def _sent(folder: Path) -> list[tuple[object, ...]]:
    """Losses and keys in the topic, in order."""
    back: Log = open_log(_address(folder), ReadOptions(actions=NAMED))
    return [row[:2] for row in logged(back)]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_is_every_row_in_the_topic_once(
    tmp_path: Path, number: signal.Signals, strike: Strike
) -> None:
    """The command line is struck between two checkpoints; the same command sends the rest."""
    source, checkpoint = _log(tmp_path), tmp_path / "append.json"
    address, names = _address(tmp_path), ",".join(NAMED)
    command = ("convert", str(source), address, "--actions", names, "--checkpoint", str(checkpoint))
    code, said = strike(number, *command)
    assert code in (130, -signal.SIGKILL), said
    held = len(_sent(tmp_path))
    marked = json.loads(checkpoint.read_text())["slots"]
    assert marked < held < SLOTS
    log = open_log(source, ReadOptions(actions=NAMED))
    seen: list[int] = []
    sent = send_log(log, address, ReadOptions(), checkpoint=checkpoint, progress=seen.append)
    assert (sent.slots, seen[0]) == (SLOTS, marked + 100)
    assert _sent(tmp_path) == [row[:2] for row in logged(log)]
    assert not checkpoint.exists()


@pytest.mark.slow
def test_does_a_death_after_any_record_matter(tmp_path: Path) -> None:
    """Keys and nulls; stopped every nine batches, also before the first checkpoint moves on."""
    source = tmp_path / "source.parquet"
    made = made_up(SLOTS, seed=8, keys=3)
    convert(Pieces(made.losses, made.keys, actions=NAMED), source)
    log, checkpoint = open_log(source), tmp_path / "append.json"

    def run(tell: Callable[[int], None]) -> Written:
        return send_log(
            log, _address(tmp_path), ReadOptions(), checkpoint=checkpoint, progress=tell
        )

    assert len(_insist(run, every=9)) > SLOTS / 100
    assert _sent(tmp_path) == [row[:2] for row in logged(log)]


def test_are_strangers_records_noticed(tmp_path: Path) -> None:
    """Somebody else wrote to the topic meanwhile: what is whose cannot be told any more."""
    log, checkpoint = open_log(_log(tmp_path), ReadOptions(actions=NAMED)), tmp_path / "append.json"
    with pytest.raises(_Stop):
        send_log(log, _address(tmp_path), ReadOptions(), checkpoint=checkpoint, progress=_steps([]))

    async def stranger() -> None:
        technology = Sqlite.from_settings({"path": tmp_path / "home.db"}, app="shop")
        producer = technology.producer()
        await producer.send("clicks", [(b"other", b"{}")])
        await producer.close()

    asyncio.run(stranger())
    with pytest.raises(StateMismatch, match="topic clicks: records; expected only this log's"):
        send_log(log, _address(tmp_path), ReadOptions(), checkpoint=checkpoint)


def test_does_a_piped_conversion_say_how_far_it_is(tmp_path: Path) -> None:
    """A line every few seconds where standard error is no terminal, and none of control codes."""
    source, target = tmp_path / "log.npy", tmp_path / "log.ndjson"
    np.save(source, np.full((3000, 2), 0.5, dtype=np.float32))
    program = (
        "import itertools, sys\n"
        "from streamdp.cli import main\nfrom streamdp.lab.commands import _progress\n"
        "seconds = itertools.count(0, 3)\n"
        "clock = lambda: next(seconds)\n"
        "_progress.screen = lambda: _progress.LineProgress(sys.stderr, clock=clock)\n"
        "import streamdp.lab.replay.sources.numpy_files as files\n"
        "files.PORTION_BYTES = 8 * 500\n"
        f"sys.argv[1:] = ['convert', {str(source)!r}, {str(target)!r}]\n"
        "main()\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=300
    )
    lines = ended.stderr.splitlines()
    assert lines[:-1] == [
        f"writing {target}: 1,500 of 3,000 (50 %), 167/s, 9 s left",
        f"writing {target}: 2,500 of 3,000 (83 %), 167/s, 3 s left",
    ]
    assert "wrote" in lines[-1]
    assert "\x1b" not in ended.stderr


def test_is_standard_error_told_apart_from_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bars are for terminals alone."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: False, raising=False)
    assert isinstance(_progress.screen(), _progress.LineProgress)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    drawn = _progress.screen()
    drawn.close()
    assert isinstance(drawn, _progress.BarProgress)


def test_is_every_loss_written_with_few_digits_in_one_go(tmp_path: Path) -> None:
    """Rows become lines many at a time: keys, places, nulls and names as if one by one."""
    losses = np.array([[0.1, 1], [np.nan, 0], [0.25, 1e-30]] * 3000, dtype=np.float32)
    keys = [b"fr", None, "é".encode()] * 3000
    offsets = np.arange(9000) * 2
    target = LinesTarget.open(tmp_path / "log.ndjson", ("left", "right"), None)
    target.write(Chunk(0, losses, keys, offsets, 3, after=None))
    target.close()
    lines = (tmp_path / "log.ndjson").read_bytes().splitlines()
    assert lines[:3] == [
        b'{"key":"fr","offset":0,"partition":3,"losses":{"left":0.1,"right":1.0}}',
        b'{"offset":2,"partition":3,"losses":null}',
        '{"key":"é","offset":4,"partition":3,"losses":'
        '{"left":0.25,"right":1.0000000031710769e-30}}'.encode(),
    ]
    assert [json.loads(line)["offset"] for line in lines] == offsets.tolist()


@pytest.mark.parametrize("ending", ["ndjson", "csv"])
def test_a_log_of_feedback_is_refused_with_the_command_that_reads_it(
    ending: str, tmp_path: Path
) -> None:
    """Its columns of action and reward would be written as losses."""
    source, target = tmp_path / f"shown.{ending}", tmp_path / "log.parquet"
    text = {"ndjson": '{"action": "a", "reward": 1}\n', "csv": "item_id,click\n1,0\n"}
    source.write_text(text[ending])
    result = CliRunner().invoke(application(), ["convert", str(source), str(target)])
    said = str(result.exception) + result.output
    assert f"expected streamdp replay {source} --observes feedback" in said
    assert not target.exists()
