"""What does a reader get of batches that the client of aiokafka raises at? Without a broker."""

from __future__ import annotations

import gc
import struct
import weakref
from collections.abc import Callable
from itertools import chain

import pytest
from aiokafka import codec
from aiokafka.consumer.fetcher import READ_COMMITTED, PartitionRecords
from aiokafka.errors import CorruptRecordException, KafkaError, UnsupportedCodecError
from aiokafka.record.default_records import DefaultRecord
from aiokafka.record.memory_records import MemoryRecords
from aiokafka.structs import TopicPartition

from streamdp_adapters.kafka import decoding
from streamdp_adapters.kafka.internals import _Unpacked
from tests.support.record_batches import (
    GOOD,
    GZIP,
    LZ4,
    SNAPPY,
    ZSTD,
    batch_of,
    built,
    damaged,
    signed,
    spoilt,
)

PLACE = TopicPartition("topic", 0)
CONTROL, TRANSACTIONAL = 0x20, 0x10


def emptied(*, first: int) -> bytes:
    """A transaction's marker as the cleaner leaves it: a batch without a record."""
    batch = bytearray(built(b"")[:61])
    batch[8:12] = struct.pack(">i", 49)
    batch[21:23] = struct.pack(">h", CONTROL | TRANSACTIONAL)
    batch[43:53] = struct.pack(">qh", 7, 0)
    batch[57:61] = struct.pack(">i", 0)
    return signed(bytes(batch), first=first)


def client_of(
    answer: bytes, *, start: int = 0, aborted: list[tuple[int, int]] | None = None
) -> PartitionRecords:
    """The client's own reading of an answer."""
    records = MemoryRecords(answer)
    return PartitionRecords(PLACE, records, aborted, start, None, None, True, READ_COMMITTED)


def read(answer: bytes, *, every: bool) -> tuple[list[DefaultRecord], int]:
    """Records, and where to go on; the same however many are taken at a time, or an error."""
    told = [outcome(answer, every=every, most=most) for most in (1, 2, 3, 100)]
    assert told[1:] == told[:1] * 3
    unpacked = _Unpacked(client_of(answer), answer, every=every)
    return unpacked.take(100), unpacked.next_fetch_offset


def outcome(
    answer: bytes, *, every: bool, most: int, start: int = 0,
    aborted: list[tuple[int, int]] | None = None,
) -> object:  # fmt: skip
    """What a reader gets, so many at a time, and where it goes on; or the sort of error."""
    client = client_of(answer, start=start, aborted=aborted)
    unpacked, got = _Unpacked(client, answer, every=every), list[list[DefaultRecord]]()
    try:
        while not unpacked.ended:
            got.append(unpacked.take(most))
            if not unpacked.ended:
                assert unpacked.next_fetch_offset == got[-1][-1].offset + 1
    except (KafkaError, ValueError) as error:
        return type(error)
    assert all(len(some) == most for some in got[:-1])
    return list(map(repr, chain.from_iterable(got))), unpacked.next_fetch_offset


def values(records: list[DefaultRecord]) -> list[bytes | None]:
    return [record.value for record in records]


def test_a_control_batch_without_a_record_is_passed_over() -> None:
    answer = batch_of(b"a") + emptied(first=1) + batch_of(b"b", first=2)
    with pytest.raises(KafkaError, match="Control batch did not contain any records"):
        list(client_of(answer))
    records, end = read(answer, every=True)
    assert (values(records), end) == ([b"a", b"b"], 3)


@pytest.mark.parametrize("start", range(7))
def test_lists_begin_where_was_asked_and_leave_out_what_was_aborted(start: int) -> None:
    """Inside a batch too; a marker's batch is none of them."""
    middle = signed(transactional(batch_of(b"c", b"d", first=2)), first=2)
    last = batch_of(b"e", b"f", first=5)
    parts = {1: batch_of(b"a", b"b"), 3: middle, 4: emptied(first=4), 6: last}
    answer = b"".join(part for end, part in parts.items() if end >= start)
    for aborted in ([], [(7, 2)]):
        one, *lists = (
            outcome(answer, every=True, most=most, start=start, aborted=aborted)
            for most in (1, 2, 3, 100)
        )
        assert lists == [one] * 3
        assert isinstance(one, tuple)
        taken = sum(at >= start and not (aborted and at in (2, 3)) for at in (0, 1, 2, 3, 5, 6))
        assert (len(one[0]), one[1]) == (taken, 7)


def transactional(batch: bytes) -> bytes:
    """The same batch, of the transaction of producer 7."""
    changed = bytearray(batch)
    changed[21:23] = struct.pack(">h", TRANSACTIONAL)
    changed[43:53] = struct.pack(">qh", 7, 0)
    return bytes(changed)


def test_an_answer_that_was_read_goes_without_the_collector() -> None:
    """Answers of megabytes must not wait for it: it rests while a partition is taken."""
    answer = batch_of(b"a")
    client = client_of(answer)
    gone, unpacked = weakref.ref(client), _Unpacked(client, answer, every=True)
    gc.disable()
    try:
        assert values(unpacked.take(2)) == [b"a"]
        del client, unpacked
        assert gone() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("compression", [0, GZIP, SNAPPY, LZ4, ZSTD])
@pytest.mark.parametrize("every", [True, False])
def test_a_header_with_a_name_that_is_not_utf_8_ends_no_reading(
    compression: int, every: bool
) -> None:
    """Where each record takes a slot it is ignored; else the record is left out."""
    bad = batch_of(b"a", b"b", b"c", first=1, compression=compression, change=spoilt)
    answer = batch_of(b"0") + bad + bad[:0] + batch_of(b"d", first=4)
    with pytest.raises(UnicodeDecodeError):
        list(client_of(answer))
    records, end = read(answer, every=every)
    assert end == 5
    if not every:
        assert values(records) == [b"0", b"a", b"c", b"d"]
        return
    assert values(records) == [b"0", b"a", b"b", b"c", b"d"]
    whole = [("id", b"1"), (GOOD, b"content")]
    assert [record.headers for record in records] == [whole, whole, [("id", b"1")], whole, whole]
    assert [record.offset for record in records] == [0, 1, 2, 3, 4]
    assert [record.timestamp for record in records] == [1000, 1000, 1001, 1002, 1000]
    assert {record.key for record in records} == {b"key"}


@pytest.mark.parametrize("compression", [SNAPPY, LZ4, ZSTD])
def test_a_batch_in_a_codec_that_is_missing_is_no_outcomes(
    compression: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where each record takes a slot it stays an error."""
    answer = b"".join(
        [batch_of(b"a"), batch_of(b"b", b"c", first=1, compression=compression),
         batch_of(b"d", first=3)]
    )  # fmt: skip
    assert values(read(answer, every=False)[0]) == [b"a", b"b", b"c", b"d"]
    monkeypatch.setattr(codec, "cramjam", None)
    assert read(answer, every=False)[1] == 4
    assert values(read(answer, every=False)[0]) == [b"a", b"d"]
    with pytest.raises(UnsupportedCodecError):
        read(answer, every=True)


@pytest.mark.parametrize("change", [damaged, lambda body: body[:-4], lambda body: body + b"\x7f"])
@pytest.mark.parametrize("compression", [0, GZIP, ZSTD])
def test_damage_that_a_producer_has_written_leaves_out_its_records_alone(
    change: Callable[[bytes], bytes], compression: int
) -> None:
    """A checksum that is right says that it came so."""
    answer = batch_of(b"a", b"b", b"c", compression=compression, change=change)
    answer += batch_of(b"d", first=3)
    with pytest.raises(CorruptRecordException):
        read(answer, every=True)
    records, end = read(answer, every=False)
    assert end == 4
    assert values(records)[0] == b"a"
    assert values(records)[-1] == b"d"
    assert 3 <= len(records) <= 4


@pytest.mark.parametrize("every", [True, False])
def test_damage_on_the_way_is_an_error(every: bool) -> None:
    """It passes when it is fetched again, so nothing may be left out."""
    answer = bytearray(batch_of(b"a", b"b"))
    answer[-1] ^= 1
    with pytest.raises(CorruptRecordException, match="CRC"):
        read(bytes(answer), every=every)


def test_data_that_is_no_codec_s_is_no_outcomes() -> None:
    batch = batch_of(b"a", b"b")
    other = signed(batch[:22] + bytes([GZIP]) + batch[23:], first=0)
    assert read(other + batch_of(b"c", first=2), every=False)[1] == 3
    assert values(read(other + batch_of(b"c", first=2), every=False)[0]) == [b"c"]


@pytest.fixture
def limit(monkeypatch: pytest.MonkeyPatch) -> int:
    """A small one."""
    monkeypatch.setattr(decoding, "LARGEST", 1 << 20)
    return 1 << 20


@pytest.mark.parametrize("compression", [GZIP, LZ4, ZSTD])
def test_a_batch_that_decompresses_to_more_than_the_limit_is_no_outcomes(
    compression: int, limit: int
) -> None:
    """Where each record takes a slot it is an error."""
    bomb = batch_of(bytes(limit), first=1, compression=compression)
    answer = batch_of(b"a") + bomb + batch_of(b"b", first=2)
    records, end = read(answer, every=False)
    assert (values(records), end) == ([b"a", b"b"], 3)
    with pytest.raises(CorruptRecordException, match="cannot be decompressed"):
        read(answer, every=True)


@pytest.mark.parametrize("compression", [GZIP, SNAPPY, LZ4, ZSTD])
def test_a_batch_within_the_limit_is_read_as_the_client_reads_it(
    compression: int, limit: int
) -> None:
    answer = batch_of(bytes(limit // 4), b"b", compression=compression)
    answer += batch_of(b"c", b"d", first=2, compression=compression)
    records, end = read(answer, every=True)
    assert (values(records), end) == ([record.value for record in client_of(answer)], 4)


@pytest.mark.parametrize("every", [True, False])
def test_times_beyond_64_bits_are_read_as_the_client_reads_them(every: bool) -> None:
    """Also in a batch that the client cannot decode."""

    def late(batch: bytes) -> bytes:
        return signed(batch[:27] + struct.pack(">q", 2**63 - 1) + batch[35:], first=0)

    wanted = [record.timestamp for record in read(late(batch_of(b"a", b"b", b"c")), every=True)[0]]
    records, _ = read(late(batch_of(b"a", b"b", b"c", change=spoilt)), every=every)
    assert [record.timestamp for record in records] == (wanted if every else wanted[::2])
