"""Does a stream that the version before began go on bit for bit, and is nothing changed unasked?

`golden/upgrade/incumbent.json` is the state that a partition left behind under the version before
there were memories, from a configuration that named no recipe, and what that version went on to
release. It is never made anew.
"""

from __future__ import annotations

import json
from base64 import b64decode
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import streamdp as sd
from streamdp.cli.state import _described
from streamdp.core.learners import earlier_learner_of
from streamdp.ports import Published
from streamdp.service.opening import check_configuration
from streamdp.service.protocol import PartitionWork
from streamdp.service.spec import StreamSpec
from streamdp.wire.lines import Charge
from streamdp.wire.published import decode_ledger
from tests.support.protocol_model import HOME, Store, finish, restore
from tests.support.streams import ACTIONS, events, spec

GOLDEN = json.loads((Path(__file__).parent / "golden" / "upgrade" / "incumbent.json").read_text())
TABLE = {"epsilon": "1/2"}
KEYS = [b"%d" % number for number in range(20)]


def stream(epoch: int = 1) -> StreamSpec:
    """What this version makes of the same configuration."""
    now = spec(learner=sd.learner_of(TABLE, actions=ACTIONS), epoch=epoch)
    return replace(now, earlier=earlier_learner_of(TABLE, actions=ACTIONS))


def store() -> Store:
    """What the version before left durable."""
    return Store(
        events(3000, seed=11, keys=KEYS),
        state={key.encode(): b64decode(value) for key, value in GOLDEN["state"].items()},
        ledger=[Published(0, 0, None, GOLDEN["last_ledger_line"].encode())],
        group=GOLDEN["group"],
    )


def described(record: Published) -> list[Any]:
    """What a line says of a release, whatever the version of its form."""
    line = decode_ledger(record.value)
    assert isinstance(line, Charge)
    read = [line.start, line.stop, line.first_offset, line.last_offset]
    return [
        line.key, line.born, line.block, line.kind, line.index, *read, line.epsilon, line.digest,
    ]  # fmt: skip


def test_does_a_running_stream_go_on_bit_for_bit() -> None:
    """The default has changed meanwhile; the stream keeps the learner that its state is of."""
    durable = store()
    work = restore(durable, stream())
    finish(durable, work)
    assert work.spec.learner.recipe == "incumbent_leader"
    assert [described(record) for record in durable.ledger[1:]] == GOLDEN["later"]
    assert len(GOLDEN["later"]) > 10


def test_do_the_tools_take_the_state_for_the_stream_s_own() -> None:
    """`check --with-state` gates a roll-out, and `state inspect` reads the rows that are there."""
    taken = store().taken()
    check_configuration(stream(), HOME, taken)
    with pytest.raises(sd.StateMismatch, match="the configuration differs from the state's"):
        check_configuration(replace(stream(), earlier=None), HOME, taken)
    description = _described(stream(), HOME, taken, content=True)
    assert description["checkpoint"]["configuration"] == "same"
    assert all(row["slots"] > 0 for row in description["rows"].values())
    assert description["rows"]


def test_would_another_learner_be_noticed() -> None:
    """Without what the configuration meant before, the partition halts rather than go on."""
    with pytest.raises(sd.StateMismatch, match="the configuration differs from the state's"):
        restore(store(), replace(stream(), earlier=None))
    other = sd.incumbent_leader(actions=ACTIONS, epsilon="1/2", bonus=2)
    with pytest.raises(sd.StateMismatch, match="the configuration differs from the state's"):
        restore(store(), replace(stream(), earlier=other))


def test_does_a_new_epoch_begin_with_the_new_default() -> None:
    durable = store()
    work: PartitionWork = restore(durable, stream(epoch=2))
    assert work.spec.learner.recipe == "remembering_leader"


def test_does_a_stream_without_state_begin_with_the_new_default() -> None:
    assert restore(Store(events(10)), stream()).spec.learner.recipe == "remembering_leader"
