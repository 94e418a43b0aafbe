"""Record batches by hand: what producers of other libraries can write, and ours cannot."""

from __future__ import annotations

import struct
from collections.abc import Callable

from aiokafka import AIOKafkaProducer, codec
from aiokafka.protocol.produce import ProduceRequest
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.util import calc_crc32c

GZIP, SNAPPY, LZ4, ZSTD = 1, 2, 3, 4
BAD, GOOD = b"\xffile-name", "file-name"


def signed(batch: bytes, *, first: int) -> bytes:
    """A batch with its first offset and its checksum."""
    head = struct.pack(">q", first) + batch[8:17]
    return head + struct.pack(">I", calc_crc32c(batch[21:])) + batch[21:]


def batch_of(
    *values: bytes, first: int = 0, compression: int = 0, change: Callable[[bytes], bytes] = bytes
) -> bytes:
    """Records with one header each; `change` is made to what is compressed."""
    raw = built(*values)
    head, body = raw[:61], change(raw[61:])
    if compression:
        encode = {GZIP: codec.gzip_encode, SNAPPY: codec.snappy_encode, LZ4: codec.lz4_encode,
                  ZSTD: codec.zstd_encode}[compression]  # fmt: skip
        head, body = head[:22] + bytes([head[22] | compression]) + head[23:], encode(body)
    length = len(head) + len(body) - 12
    return signed(head[:8] + struct.pack(">i", length) + head[12:] + body, first=first)


def built(*values: bytes) -> bytes:
    builder = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 1 << 20)
    for at, value in enumerate(values):
        builder.append(at, 1000 + at, b"key", value, [("id", b"1"), (GOOD, b"content")])
    return bytes(builder.build())


def spoilt(body: bytes) -> bytes:
    """The second record's last header has a name that is not UTF-8."""
    at = body.index(GOOD.encode(), body.index(GOOD.encode()) + 1)
    return body[:at] + BAD + body[at + len(BAD) :]


def damaged(body: bytes) -> bytes:
    """The second record says that its value is longer than the record."""
    at = body.index(b"key", body.index(b"key") + 1) + 3
    return body[:at] + b"\x7e" + body[at + 1 :]


async def produce(bootstrap: str, topic: str, batch: bytes, *, partition: int = 0) -> None:
    """Append a batch as it is."""
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap)
    await producer.start()
    await producer.partitions_for(topic)
    request = ProduceRequest(None, -1, 10_000, [(topic, [(partition, batch)])])
    answer = await producer.client.send(producer.client.get_random_node(), request)
    ((_, ((_, error, *_),)),) = answer.topics
    assert error == 0
    await producer.stop()
