"""Does `send` write events as they are, and refuse whatever it cannot, with file and line?"""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from streamdp.cli._events import Event, events, shown_events
from streamdp.core.errors import InvalidConfig
from streamdp.ports import Partition
from streamdp.service.config import Configuration
from streamdp.wire.feedback import Feedback
from tests.support.calling import Streamdp, written

ACTIONS = ("a", "b", "c")
Sent = list[tuple[bytes | None, bytes | None]]


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """A shop where nothing has happened."""
    return written(tmp_path)


def newest(path: Path, count: int) -> Sent:
    """The newest input records of the first partition."""

    async def looked() -> Sent:
        configuration = Configuration.load(path, {})
        tools = configuration.technology().administrator()
        batches = await tools.newest(configuration.topics()[0], count=2 * count)
        await tools.close()
        (records,) = [batch for batch in batches if batch.partition == Partition("home", 0)]
        return list(zip(records.keys, records.values, strict=True))[-count:]

    return asyncio.run(looked())


def read(content: bytes, *, file: str = "-", key: bytes | None = None) -> list[Event]:
    """The events of a file of this content."""
    return list(events(file, io.BytesIO(content), actions=ACTIONS, key=key))


def test_are_rewards_read_in_their_unit() -> None:
    """One above the largest counts as that, here too; one below 0 is a mistake."""
    prices = Feedback(ACTIONS, content="reward", most=Fraction(200))

    def numbers(content: bytes, file: str = "-") -> list[float]:
        read = shown_events(file, io.BytesIO(content), feedback=prices, key=b"fr")
        return [event.number for event in read]

    lines = b'{"action": "a", "reward": 37.5}\n{"action": "b", "reward": 1e308}'
    assert numbers(lines) == [37.5, 200]
    assert numbers(b"action,reward\na,12\n", "x.csv") == [12]
    with pytest.raises(InvalidConfig, match="reward: is not usable; expected a number from 0, got"):
        numbers(b'{"action": "a", "reward": -1}')


def refused(content: bytes, *, file: str = "-") -> str:
    """What is said of a file of this content."""
    with pytest.raises(InvalidConfig) as refusal:
        read(content, file=file)
    return str(refusal.value)


def test_does_send_read_every_way_of_writing_events(
    shop: Path, streamdp: Streamdp, tmp_path: Path
) -> None:
    """JSON as list, mapping or bare, CSV, NumPy: each encoded as the stream's format says."""
    config = ("--config", str(shop), "--partition", "0")
    lines = b'{"key": "fr", "losses": [0.1, 0.9, 1]}\n\n{"losses": {"b": 0.25}}\n[0, 0, 1]\n'
    ran = streamdp("send", *config, "--key", "any", stdin=lines)
    assert (ran.code, ran.out) == (0, "3 records sent to losses\n")
    assert newest(shop, 3) == [
        (b"fr", b'{"losses":[0.1,0.9,1.0]}'),
        (b"any", b'{"losses":[0.5,0.25,0.5]}'),
        (b"any", b'{"losses":[0.0,0.0,1.0]}'),
    ]
    table = tmp_path / "events.csv"
    table.write_text("key,c,a,b\nde,1,0,0.5\n")
    assert streamdp("send", str(table), *config, "--json").json == {"topic": "losses", "records": 1}
    array = tmp_path / "events.npy"
    np.save(array, np.eye(3, dtype=np.float32)[:2])
    assert streamdp("send", str(array), *config).code == 0
    assert newest(shop, 3) == [
        (b"de", b'{"losses":[0.0,0.5,1.0]}'),
        (None, b'{"losses":[1.0,0.0,0.0]}'),
        (None, b'{"losses":[0.0,1.0,0.0]}'),
    ]
    streamdp("send", *config, "--as-it-is", "--key", "it", stdin=b"\xff not json\n")
    assert newest(shop, 1) == [(b"it", b"\xff not json")]


def test_does_send_make_frames_of_one_key(shop: Path, streamdp: Streamdp) -> None:
    """Consecutive rows of a key share a record, up to the rows that were asked for."""
    shop.write_text(shop.read_text() + '[streams.home.format]\nname = "float32"\nframes = true\n')
    lines = "".join(json.dumps({"key": key, "losses": [0, 0, 1]}) + "\n" for key in "aaaabb")
    ran = streamdp("send", "-c", str(shop), "--rows", "3", "--partition", "0",
                    stdin=lines.encode())  # fmt: skip
    assert ran.out == "3 records sent to losses\n"
    assert [(key, len(value or b"")) for key, value in newest(shop, 3)] == [
        (b"a", 36),
        (b"a", 12),
        (b"b", 24),
    ]


# -- keys --------------------------------------------------------------------------------------


def test_is_a_binary_key_sent_as_published_lines_write_it(shop: Path, streamdp: Streamdp) -> None:
    """`key_base64` is the key's bytes; on the command line any bytes are a key too."""
    lines = b'{"key_base64": "/w==", "losses": [0, 0, 1]}\n[0, 0, 1]\n'
    config = ("-c", str(shop), "--partition", "0")
    assert streamdp("send", *config, "--key", "\udcfe", stdin=lines).code == 0
    assert [key for key, _ in newest(shop, 2)] == [b"\xff", b"\xfe"]


@pytest.mark.parametrize(
    ("event", "key"),
    [
        ('{"key": "ü", "losses": [0, 0, 1]}', "ü".encode()),
        ('{"key": "", "losses": [0, 0, 1]}', b""),
        ('{"key": null, "losses": [0, 0, 1]}', None),
        ('{"key_base64": "/w==", "losses": [0, 0, 1]}', b"\xff"),
        ('{"losses": [0, 0, 1]}', b"default"),
        ("[0, 0, 1]", b"default"),
    ],
)
def test_has_an_event_the_key_that_it_says(event: str, key: bytes | None) -> None:
    """The null key can be said; only an event that says none has the one by default."""
    assert read(event.encode(), key=b"default") == [Event(key, [0, 0, 1], "- line 1")]


def test_has_a_table_one_column_of_keys() -> None:
    """As text or as base64; with a byte order mark before it too, as spreadsheets write it."""
    assert [event.key for event in read(b"key,a,b,c\nfr,0,0,1\n", file="x.csv")] == [b"fr"]
    assert [event.key for event in read(b"key_base64,a,b,c\n/w==,0,0,1\n", file="x.csv")] == [
        b"\xff"
    ]
    marked = b"\xef\xbb\xbfkey,a,b,c\nfr,0,0,1\n"
    assert [event.key for event in read(marked, file="x.csv")] == [b"fr"]


# -- what cannot be sent -----------------------------------------------------------------------

JSON = "is not JSON; expected an event a line, got"
NUMBER = "cannot be sent; expected a number in [0, 1], got"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"no json", f"{JSON} invalid character (byte 4)"),
        (b'{"key":"a","losses":[1' + b"0" * 400 + b",0,0]}", f"loss of a: {NUMBER} another"),
        (
            b'{"key":"a","losses":[1' + b"0" * 5000 + b",0,0]}",
            f"{JSON} Integer value",
        ),
        (
            b'{"key":"\\ud800","losses":[1,0,0]}',
            f"{JSON} unexpected end of escaped",
        ),
        (b"[" * 200_000, f"{JSON} too many nested lists"),
        (b'{"key":"\xff","losses":[1,0,0]}', "is not text; expected UTF-8, got other bytes"),
        (b"[NaN, 0, 1]", f"{JSON} invalid character"),
        (b"[0, 2, 1]", f"loss of b: {NUMBER} another number"),
        (b"[0, -1e-9, 1]", f"loss of b: {NUMBER} another number"),
        (b'{"losses":["0.5",0,0]}', f"loss of a: {NUMBER} text"),
        (b"[0, true, 0]", f"loss of b: {NUMBER} a truth value"),
        (b"[0, 0, null]", f"loss of c: {NUMBER} null"),
        (b'{"losses":{"a":{}}}', f"loss of a: {NUMBER} an object"),
        (b"[0, 0]", "wrong number of losses; expected 3, one an action, got 2"),
        (b'{"losses": "x"}', "losses: is not usable; expected a list, or an object by action"),
        (b'{"losses":{"d":1}}', "unknown action; expected a, b, c, got d"),
        (b'{"key": "a"}', "needs losses; expected a list, or an object by action, got nothing"),
        (b"3", "is not an event; expected an object with losses, got a number"),
        (b'{"key": 1, "losses": [0, 0, 1]}', "key: is not usable; expected text or null"),
        (
            b'{"Key": "a", "losses": [0, 0, 1]}',
            "expected key or key_base64 or losses, got Key",
        ),
        (b'{"\\u001b[2J":1, "losses": [0, 0, 1]}', 'got "\\u001b[2J"'),
        (
            b'{"key":"a","key_base64":"YQ==","losses":[1,0,0]}',
            "has two keys; expected key or key_base",
        ),
        (b'{"key_base64":"/w=","losses":[1,0,0]}', "key_base64: is not usable; expected text in b"),
        (b'{"key_base64":null,"losses":[1,0,0]}', "expected text in base64, got null"),
    ],
)
def test_is_a_wrong_line_refused_with_its_number(line: bytes, said: str) -> None:
    """Strictly, by what it is and never by its content."""
    message = refused(b"[0, 0, 1]\n\n" + line + b"\n")
    assert message.startswith("- line 3: ")
    assert said in message
    assert len(message) < 200
    assert message.isprintable()


@pytest.mark.parametrize(
    ("table", "said"),
    [
        (b"", "line 1: lacks columns: a, b, c; expected a, b, c, got nothing"),
        (b"a,b\n0,1\n", "line 1: lacks columns: c; expected a, b, c, got a, b"),
        (b"a,b,c,Key\n", "line 1: unknown column; expected a, b, c, or key, key_base64"),
        (b"a,b,c,a\n", "line 1: a column appears twice; expected distinct columns, got a"),
        (b"a,b,c,key,key_base64\n", "line 1: has two keys"),
        (b"a,b,c\n0,1,0\n0,1,x\n", f"line 3: loss of c: {NUMBER} text"),
        (b"a,b,c\n0,,1\n", f"line 2: loss of b: {NUMBER} text"),
        (b"a,b,c\n0,nan,1\n", f"line 2: loss of b: {NUMBER} NaN"),
        (b"a,b,c\n0,1\n", "line 2: wrong number of fields; expected 3, got 2"),
        (b"a,b,c\n0,1,1,1\n", "line 2: wrong number of fields; expected 3, got 4"),
        (b"a,b,c\n0,1,1\n\xff,0,0\n", "line 3: is not text; expected UTF-8, got other bytes"),
        (b'a,b,c\n0,1,"1"1\n', "line 2: is not CSV"),
        (b"a,b,c\n0,1," + b"1" * 200_000, "line 2: is not CSV"),
    ],
)
def test_is_a_wrong_table_refused_with_its_line(table: bytes, said: str) -> None:
    """A mistyped column would lose the keys; a field too many, nobody knows what."""
    message = refused(table, file="x.csv")
    assert message.startswith("x.csv ")
    assert said in message


@pytest.mark.parametrize(
    ("array", "said"),
    [
        (np.zeros(3), "is not a table; expected rows of losses, got 1 dimensions"),
        (np.zeros((2, 4)), "wrong number of columns; expected 3, one an action, got 4"),
        (np.array([["0", "1", "0"]]), "is not a table of losses; expected numbers, got dtype str"),
        (np.zeros((1, 3), complex), "expected numbers, got dtype complex128"),
        (np.array([[0, 1, 0], [0, np.nan, 0]]), f"[1]: loss of b: {NUMBER} NaN"),
        (np.array([[0, 1, 0], [0, 0, 2]]), f"[1]: loss of c: {NUMBER} another number"),
    ],
)
def test_is_a_wrong_array_refused_with_its_row(
    tmp_path: Path, array: np.ndarray[tuple[int, ...], np.dtype[np.generic]], said: str
) -> None:
    """Before anything of it is sent."""
    path = tmp_path / "x.npy"
    np.save(path, array)
    assert said in refused(path.read_bytes(), file="x.npy")


@pytest.mark.parametrize("content", [b"", b"\x93NUMPY", b"no array", b"PK\3\4", b"\x93NUMPY\1\0\0"])
def test_is_a_file_refused_that_is_no_array(shop: Path, streamdp: Streamdp, content: bytes) -> None:
    """Empty, cut short, or something else."""
    path = shop.with_name("x.npy")
    path.write_bytes(content)
    ran = streamdp("send", str(path), "-c", str(shop))
    assert (ran.code, ran.out) == (2, "")
    assert f"{path}: is not a NumPy file; expected an array of rows, got another" in ran.err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"[0, 0, 1]\nno json\n", f"- line 2: {JSON} invalid"),
        (b'{"key":"\\ud800","losses":[1,0,0]}', "- line 1: is not JSON"),
        (b"[" * 200_000, "- line 1: is not JSON"),
    ],
)
def test_is_what_cannot_be_sent_exit_code_2(
    shop: Path, streamdp: Streamdp, text: bytes, said: str
) -> None:
    """A producer's mistake is not repaired, and how many went before is said."""
    ran = streamdp("send", "-c", str(shop), stdin=text)
    assert ran.code == 2
    assert ran.err.startswith(f"streamdp: {said}")
    assert "(0 records had been sent)" in ran.err


def test_are_rows_refused_that_do_not_fit_a_record(shop: Path, streamdp: Streamdp) -> None:
    """JSON has one; the message says of which event."""
    ran = streamdp("send", "-c", str(shop), "--rows", "2", stdin=b"[0, 0, 1]\n[0, 0, 1]\n")
    assert ran.code == 2
    said = "- line 1: losses: too many rows; expected 1 in a record without frames, got 2"
    assert said in ran.err


def test_is_a_file_or_stream_told_that_is_not_there(shop: Path, streamdp: Streamdp) -> None:
    """Before anything else."""
    config = ("--config", str(shop))
    assert "cannot be read" in streamdp("send", str(shop.with_name("none.csv")), *config).err
    assert "cannot be read" in streamdp("send", str(shop.parent), *config).err
    assert "--stream: unknown" in streamdp("send", *config, "--stream", "shop").err


def test_is_what_is_damaged_read_or_refused_and_nothing_else() -> None:
    """Bytes put in, taken out and changed at random, with a fixed seed: never another error."""
    random = np.random.default_rng(11)
    good: Iterable[tuple[str, bytes]] = [
        ("x.json", b'{"key":"a","losses":[0.1,0.2,1]}\n{"key_base64":"/w==","losses":{"a":0.3}}\n'),
        ("x.csv", b'key,a,b,c\nfr,0.1,"0.2",0.3\n"d""e",1,1,1\n'),
    ]
    refusals: list[str] = []
    for file, content in good:
        for _ in range(1500):
            damaged = bytearray(content)
            for at in random.integers(0, len(damaged), 2):
                piece = [b"", b"\xff", b"\0", b'"', b"[", b"NaN", b"\\ud800", b"9" * 500]
                damaged[at : at + 1] = piece[random.integers(len(piece))]
            try:
                events = read(bytes(damaged), file=file)
            except InvalidConfig as error:
                refusals.append(str(error))
            else:
                assert all(0 <= loss <= 1 for event in events for loss in event.losses)
    assert 1000 < len(refusals) < 3000
    assert all(refusal.isprintable() for refusal in refusals)
