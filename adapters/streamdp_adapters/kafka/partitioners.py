"""Which partition a key goes to: all producers must agree, or one key has several learners.

Kafka has no rule; each client library has its default. `murmur2` is that of the Java client,
aiokafka, kafka-python, KafkaJS and franz-go; `crc32` that of librdkafka (confluent-kafka, kcat,
rust-rdkafka), which calls it `consistent`; `fnv1a` that of Sarama. The null key goes anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from zlib import crc32

from aiokafka.partitioner import murmur2

Partitioner = Callable[[bytes, int], int]

MURMUR2 = "murmur2"
_FNV_PRIME, _FNV_OFFSET = 0x01000193, 0x811C9DC5


def by_murmur2(key: bytes, count: int) -> int:
    """The Java client's: the hash without its sign.

    >>> by_murmur2(b"21", 2**31) == -973932308 & 0x7FFFFFFF  # one of Kafka's own test vectors
    True
    """
    return int((murmur2(key) & 0x7FFFFFFF) % count)


def by_crc32(key: bytes, count: int) -> int:
    """librdkafka's `consistent`: CRC-32 as an unsigned number.

    >>> by_crc32(b"123456789", 2**32) == 0xCBF43926  # the check value of CRC-32
    True
    """
    return crc32(key) % count


def by_fnv1a(key: bytes, count: int) -> int:
    """Sarama's: FNV-1a as a signed number, divided like Go's and then without its sign.

    >>> by_fnv1a(b"a", 1000)  # the hash is 0xE40C292C, that is −468965076
    76
    """
    hashed = _FNV_OFFSET
    for byte in key:
        hashed = (hashed ^ byte) * _FNV_PRIME & 0xFFFFFFFF
    return abs(hashed - (1 << 32) if hashed >> 31 else hashed) % count


PARTITIONERS: Mapping[str, Partitioner] = MappingProxyType(
    {MURMUR2: by_murmur2, "crc32": by_crc32, "fnv1a": by_fnv1a}
)
"""The allowed values of `transport.partitioner`."""
