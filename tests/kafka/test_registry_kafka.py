"""Does the service work with a real registry and a real broker: evolution, an outage, a restart?"""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from signal import SIGKILL

import pytest

from streamdp.ports import StreamTopics
from streamdp.testing.broker import Borrowed
from streamdp.wire.lines import Charge
from streamdp.wire.published import decode_ledger
from streamdp_adapters.kafka import KafkaTechnology
from tests.support.apicurio import registry_process
from tests.support.kafka_site import ledger, send
from tests.support.processes import Process, until

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.system("mvn")]

CONFIGURATION = """
app = "{app}"
[transport]
kind = "kafka"
bootstrap = "{bootstrap}"
single_broker = true
[log]
format = "json"
"""
STREAM = """
[topics."{app}.{name}"]
budget = "50"
[streams.{name}]
input = "{app}.{name}"
start = "earliest"
actions = ["a", "b", "c"]
seed = "test"
[streams.{name}.format]
name = "{name}"
registry = "{registry}"
refresh = 1
[streams.{name}.learner]
recipe = "incumbent_leader"
epsilon = "50"
schedule = "capped 8"
"""
NUMBERS = {"name": "losses", "type": {"type": "array", "items": "double"}}
AVRO = json.dumps({"type": "record", "name": "Event", "fields": [NUMBERS]})
NOTE = {"name": "note", "type": "string", "default": ""}
WIDER = json.dumps({"type": "record", "name": "Event", "fields": [NUMBERS, NOTE]})
PROTO = 'syntax = "proto3"; package shop; message Event { repeated double losses = 1; }'
SCHEMAS = {
    "avro": ("AVRO", AVRO, WIDER, b"\x06", b"\0"),
    "protobuf": ("PROTOBUF", PROTO, PROTO.replace("= 1; }", "= 1; string note = 2; }"),
                 b"\0\x0a\x18", b""),
}  # fmt: skip


@pytest.mark.long
def test_evolution_outage_and_restart(
    broker: Borrowed, fresh_app: Callable[[], str], tmp_path: Path
) -> None:
    """Every vote is that of the records whose schema was known when they were read."""
    app, folder = fresh_app(), tmp_path / "registry"
    folder.mkdir()
    technology = KafkaTechnology.from_settings(
        {"bootstrap": broker.bootstrap, "single_broker": True}, app=app
    )
    topics = {name: StreamTopics(app, name, f"{app}.{name}") for name in SCHEMAS}
    old: dict[str, int] = {}
    new: dict[str, int] = {}

    def send_all(*events: tuple[Callable[[str], int], Sequence[float]]) -> None:
        for name, (*_, head, tail) in SCHEMAS.items():
            values = [
                b"\0" + id_of(name).to_bytes(4, "big") + head + struct.pack("<3d", *losses) + tail
                for id_of, losses in events
            ]
            asyncio.run(send(technology, topics[name].input, [(b"fr", of) for of in values]))

    def votes() -> list[list[int]]:
        return [asyncio.run(_votes(technology, of)) for of in topics.values()]

    def hear(process: Process, numbers: Sequence[Sequence[int]]) -> None:
        left = [list(of) for of in numbers]
        while left:
            heard = process.hear("schemas_fetched")["ids"]
            left = [of for of in left if of != heard]

    with registry_process(folder) as registry:
        path = tmp_path / "streamdp.toml"
        text = CONFIGURATION.format(app=app, bootstrap=broker.bootstrap)
        for name, (kind, first, *_) in SCHEMAS.items():
            old[name] = registry.register(f"{topics[name].input}-value", first, kind)
            text += STREAM.format(app=app, name=name, registry=registry.url)
        path.write_text(text)
        asyncio.run(technology.administrator().create(list(topics.values()), partitions=1))
        command = ("run", "--config", str(path), "--insecure-seed")
        with Process.start(*command) as process:
            process.hear("partition_running")
            process.hear("partition_running")
            # Blocks of 1, 2, 4, 8 slots. An id that nobody knows yet is null: `b` wins without it.
            coming = {name: number + len(SCHEMAS) for name, number in old.items()}
            send_all(
                *[(old.__getitem__, (0.9, 0.1, 0.9))] * 7, *[(coming.__getitem__, (0, 1, 1))] * 7
            )
            until(lambda: [len(of) for of in votes()] == [3, 3])
            for name, (kind, _, second, *_) in SCHEMAS.items():
                new[name] = registry.register(f"{topics[name].input}-value", second, kind)
            assert new == coming
            hear(process, [[number] for number in new.values()])
            registry.freeze()
            process.hear("registry_lost")
            process.signal(SIGKILL)
            process.ended()
        with Process.start(*command) as process:
            process.hear("registry_lost")
            process.hear("partition_running")
            process.hear("partition_running")
            send_all((old.__getitem__, (0.9, 0.1, 0.9)))
            until(lambda: [len(of) for of in votes()] == [4, 4])
            registry.thaw()
            hear(process, [[old[name], new[name]] for name in SCHEMAS])
            send_all(*[(new.__getitem__, (0.9, 0.9, 0.1))] * 8)
            until(lambda: [len(of) for of in votes()] == [5, 5])
            assert process.end() == 0
    assert votes() == [[1, 1, 1, 1, 2]] * 2


async def _votes(technology: KafkaTechnology, topics: StreamTopics) -> list[int]:
    """The votes on record, in order; the opening is none."""
    lines = map(decode_ledger, await ledger(technology, topics))
    return [line.index for line in lines if isinstance(line, Charge) and line.kind == "action"]  # type: ignore[misc]
