"""Does a key go where other clients put it, and is a key in two places found?"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import pytest

from streamdp.core.errors import InvalidConfig
from streamdp.ports import Finding, Published, StreamTopics, Verdict
from streamdp.service.diagnosis import in_several_partitions
from streamdp_adapters.kafka.partitioners import PARTITIONERS
from streamdp_adapters.kafka.producer import _homes
from streamdp_adapters.kafka.settings import KafkaSettings
from tests.support.publishing import action, release

KEYS = [b"", b"fr", b"de", b"\xff\x00", "é".encode(), *(b"key-%d" % n for n in range(500))]


MURMUR2 = {
    b"21": -973932308, b"foobar": -790332482, b"abc": 479470107,
    b"a-little-bit-long-string": -985981536, b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
}  # fmt: skip
"""Kafka's own test vectors (`UtilsTest.testMurmur2`)."""


def test_is_murmur2_what_the_java_client_does() -> None:
    """The hash without its sign, modulo the number of partitions."""
    for key, signed in MURMUR2.items():
        for count in (1, 12, 2**31):
            assert PARTITIONERS["murmur2"](key, count) == (signed & 0x7FFFFFFF) % count


def test_are_the_other_hashes_the_published_ones() -> None:
    """The check values of CRC-32 and of FNV-1a (32 bits), signed as Sarama takes them."""
    assert PARTITIONERS["crc32"](b"123456789", 2**32) == 0xCBF43926
    assert PARTITIONERS["fnv1a"](b"", 2**31) == 2**32 - 0x811C9DC5
    assert PARTITIONERS["fnv1a"](b"foobar", 2**31) == 2**32 - 0xBF9CF968
    assert all(0 <= by(key, 7) < 7 for by in PARTITIONERS.values() for key in KEYS)


@pytest.mark.parametrize("name", PARTITIONERS)
def test_does_send_follow_what_is_configured(name: str) -> None:
    """Each key where the chosen rule puts it; the records of the null key of one call together."""
    chosen = PARTITIONERS[
        KafkaSettings.parse({"bootstrap": "b:1", "partitioner": name}).partitioner
    ]
    homes = _homes([*((key, b"") for key in KEYS), (None, b""), (None, b"")], 12, chosen)
    assert homes[:-2] == [PARTITIONERS[name](key, 12) for key in KEYS]
    assert homes[-1] == homes[-2]


def test_is_an_unknown_partitioner_refused() -> None:
    """With the names that there are."""
    with pytest.raises(InvalidConfig, match="one of murmur2, crc32, fnv1a, got random"):
        KafkaSettings.parse({"bootstrap": "b:1", "partitioner": "random"})


class Lines:
    """Publications that were read before."""

    def __init__(self, records: Sequence[Published]) -> None:
        self.records = records

    async def actions(
        self, stream: StreamTopics, *, follow: bool
    ) -> AsyncIterator[Sequence[Published]]:
        assert not follow
        yield self.records


async def finding(records: Sequence[Published]) -> Finding:
    stream = StreamTopics(app="shop", stream="home", input="losses")
    return await in_several_partitions(Lines(records), stream, epoch=1)  # type: ignore[arg-type]


async def test_is_a_key_in_several_partitions_found() -> None:
    """By the published lines of one epoch: keys are public, and earlier places do not count."""
    once = [action(release(key, 0, partition=n)) for n, key in enumerate((b"fr", b"de", None))]
    result = await finding(once)
    assert (result.verdict, result.detail) == (Verdict.GOOD, "3, each in one partition")
    again = [*once, action(release(b"fr", 1, partition=2)), action(release(None, 1, partition=0))]
    result = await finding(again)
    assert result.verdict is Verdict.WARNING
    assert "2 of 3 in several partitions, such as None in 0, 2" in result.detail
    moved = [*once, action(release(b"fr", 1, partition=2, epoch=2))]
    assert (await finding(moved)).verdict is Verdict.GOOD
