"""Does what is kept of a request come back as it was, however its neighbours come and go?"""

from __future__ import annotations

import random
import tracemalloc

import pytest

from streamdp.assembly import kept as module
from streamdp.assembly.kept import KeptRequests, _parts, name_of
from streamdp.ports import Headers, Key, Value

Kind = tuple[Key, list[tuple[str, bytes | None]], Value]


def _record(random_: random.Random, number: int) -> Kind:
    """Anything that a broker may bring: hostile names, two ids, none, empty and null contents."""
    key: Key = random_.choice([None, b"", b"7:", b":x", b"k" * 300])
    id_ = ("streamdp-request", random_.choice([b"r%d" % number, b":", b"1:a", b"\xff", None, b""]))
    some = [("a", None), ("a", b""), ("streamdp-action", b"x"), (f"n{number % 40}", b"\x00")]
    headers: Headers = random_.sample([id_, id_, *some], random_.randrange(7))
    return key, list(headers), random_.choice([None, b"", b"content"])


@pytest.mark.slow
@pytest.mark.parametrize("together", [1, 3, 1024])
def test_every_request_comes_back_as_it_was(monkeypatch: pytest.MonkeyPatch, together: int) -> None:
    """By its number, in any order, while some leave and others are forgotten."""
    monkeypatch.setattr(module, "_TOGETHER", together)
    monkeypatch.setattr(module, "_MOST_SHAPES", 20)  # and some kinds of headers have no room
    random_, kept, records = random.Random(1), KeptRequests(), list[Kind]()
    for number in range(400):
        records.append(_record(random_, number))
        key, headers, value = records[-1]
        name = name_of(key, headers)
        before = None if name is None else kept.find(name)
        assert kept.add(3 * number, number, name, key, headers, value) == before
        if random_.random() < 0.8 and kept.left < kept.end:
            kept.take()
        if random_.random() < 0.6 and kept.first < kept.left:
            kept.forget()
        for at in random_.sample(range(kept.left, kept.end), min(3, kept.end - kept.left)):
            record = kept.record(at)
            assert (record.key, record.headers, record.value) == records[at]
            assert record.named == (kept.name(at) is not None)
            assert (kept.offset(at), kept.time(at)) == (3 * at, at)
        for at in range(kept.first, kept.left):
            assert kept.name(at) == name_of(*records[at][:2])
        open_ = kept.end - kept.left
        assert list(kept.times(open_)) == list(range(kept.left, kept.end))
        for at in range(kept.first, kept.end):
            name = kept.name(at)
            if name is not None:
                own = [other for other in range(at, kept.end) if kept.name(other) == name]
                assert kept.find(name) == own[-1]
        assert kept.find(b"2:nobody") is None
        for start, chunk in list(zip(kept._starts, kept._chunks, strict=True))[:-1]:
            if start + len(chunk.ends) <= kept.left:  # of these nothing but the names is kept
                names = [kept.name(at) or b"" for at in range(start, start + len(chunk.ends))]
                assert chunk.content == b"".join(names)
    assert kept.first > 100
    assert len(kept._headers) == 20


def test_what_came_is_kept_with_its_request_until_it_leaves() -> None:
    kept = KeptRequests()
    for number in range(3):
        kept.add(number, number, b":r", None, [("streamdp-request", b"r")], None)
    kept.set_gains(1, (1.0,))
    assert [kept.seen(at) for at in range(3)] == [(0, None), (1, (1.0,)), (2, None)]
    assert [kept.take().gains for _ in range(3)] == [None, (1.0,), None]
    assert kept.seen(1) == (1, None)
    kept.add(3, 3, b":r", None, [("streamdp-request", b"r")], b"content")
    assert repr(kept.take()) == "KeptRequest(at 3)"


def test_a_name_is_one_of_key_and_id() -> None:
    """No two pairs have one name, and each pair can be read from it."""
    texts = [b"", b":", b"1", b"1:", b"11", b"1:1", b":1", b"\x00"]
    pairs = [(key, id_) for key in (None, *texts) for id_ in texts if id_]
    names = {name_of(key, [("streamdp-request", id_)]): (key, id_) for key, id_ in pairs}
    assert len(names) == len(pairs)
    assert all(name is not None and _parts(name) == pair for name, pair in names.items())


def test_requests_that_lie_far_apart_keep_their_offsets_and_times() -> None:
    """A log that jumps by more than an array's item holds, and clocks that go back."""
    kept, places = KeptRequests(), [(0, 10**12), (1, 0), (1 << 40, 5), ((1 << 40) + 1, 1 << 50)]
    for offset, time in places:
        kept.add(offset, time, b":r%d" % time, None, [("streamdp-request", b"r%d" % time)], None)
    assert [(kept.offset(at), kept.time(at)) for at in range(4)] == places
    assert list(kept.times(4)) == [time for _, time in places]
    assert [kept.find(b":r%d" % time) for _, time in places] == [0, 1, 2, 3]


def test_a_million_open_requests_fit_into_a_hundred_and_fifty_megabytes() -> None:
    """Bytes that Python's allocator gave out for each of ten thousand, all included.

    110 were measured; an object for each request takes 1,700.
    """
    kept = KeptRequests()
    tracemalloc.start()
    try:
        for number in range(10_000):
            headers = [
                ("streamdp-request", b"%032x" % number), ("streamdp-action", b"banner"),
                ("pscore", b"0.%06d" % number),
            ]  # fmt: skip
            name = name_of(b"segment", headers)
            assert name is not None
            kept.add(number, number, name, b"segment", headers, None)
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert used / 10_000 < 150
