"""The golden files of the wire, made anew: `python -m tests.golden wire`.

A difference in them is a privacy event: bytes that were recorded would not be published as they
are, or a record would come to another loss than it did before an upgrade, so that a rebuild
arrives at other sums. Whoever makes them anew says why in the commit.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np

from streamdp.core.events import Key
from streamdp.core.evidence.contexts import Contexts
from streamdp.core.kinds.estimates import estimate
from streamdp.core.releases import Identity, Release
from streamdp.testing.formats import HOSTILE
from streamdp.wire import configure, state
from streamdp.wire.entries import Entries, release_entry
from streamdp.wire.published import Lines
from streamdp.wire.recorded import HEAD, SIZE, lines_of
from streamdp.wire.schemas import NAMES, build
from streamdp.wire.state_version import VERSION

GOLDEN = Path(__file__).parent / "golden" / "wire"
SCHEMAS = Path(__file__).parent.parent / "streamdp" / "wire" / "schemas"

ACTIONS = ("a", "bb", 'qu"ote', "ünïcode")

LINES = Lines(
    stream="home",
    input="feedback",
    actions=ACTIONS,
    mechanism="permute_and_flip",
    rate=Fraction(1, 4),
    digest="5e1f" * 8,
    version="1.2.3",
    seeded=False,
    estimates=(
        estimate("block_regret", epsilon="1/4", min_length=4),
        estimate("mean_loss", epsilon="1/8", min_length=4),
    ),
)

REMEMBERING = replace(LINES, memory="twice in a row")
"""The same stream with a memory: what is in force need not be what was drawn."""

FEEDBACK = replace(
    LINES,
    mechanism="discrete_laplace",
    rate=None,
    scale=Fraction(1 << 21),
    estimates=(),
    learner='{"recipe":"policy_blocks","epsilon":"1/2"}',
)
"""A feedback stream: what is released are sums, what is in force is a policy."""

FIELDS = Contexts.read('{"device":["phone"]}')

FORMATS: Mapping[str, tuple[str, Mapping[str, object]]] = {
    "json list": ("json", {}),
    "json list, padded": ("json", {"padding": "fixed"}),
    "json mapping": ("json", {"layout": "mapping"}),
    "float32": ("float32", {}),
    "float32 frames": ("float32", {"frames": True}),
    "float32 frames, prefix": ("float32", {"frames": True, "prefix": "confluent"}),
    "float16 frames": ("float16", {"frames": True}),
}

EVENTS: tuple[bytes, ...] = (
    b'{"losses":[0.1,0.25,1]}',
    b'{"losses":[-1,1e300,1e-300]}',
    b'{"losses":{"c":1,"a":0.1,"z":"x"}}',
    b'{"losses":{"a":1,"a":0}}',
    b'{"losses":[0.1,0.2,0.3],"losses":[0.3,0.2,0.1]}',
    b'{"x":' + b"[" * 127 + b"]" * 127 + b',"losses":[0,0,0]}' + b" " * 99,
    b'{"x":' + b"[" * 128 + b"]" * 128 + b',"losses":[0,0,0]}' + b" " * 99,
    np.array([0, 0.5, 1], dtype="<f4").tobytes(),
    np.array([0, np.nan, 1, 0, 0.5, 1], dtype="<f4").tobytes(),
    np.array([0, 0.5, 1, 0, np.inf, 1], dtype="<f2").tobytes(),
)


def release(
    kind: str = "action", value: int = 1, *, key: Key = b"fr", block: int = 3, born: int = 17
) -> Release:
    """A release like those that an engine draws."""
    start, stop = (1, 1) if kind == "opening" else (4, 8)
    epsilon = {"opening": Fraction(0), "action": Fraction(1, 2), "mean_loss": Fraction(1, 8)}
    return Release(
        identity=Identity("home", 0, key, 2, born, 0 if kind == "opening" else block, kind),
        numbers=(value,),
        start=start,
        stop=stop,
        first_offset=100,
        last_offset=200,
        epsilon=epsilon.get(kind, Fraction(1, 4)),
    )


SHOWN = {
    "opening": release("opening", 0),
    "action": release(),
    "action with escapes": release(value=2, key="clé\n".encode()),
    "action of the null key": release(value=3, key=None),
    "action of a binary key": release(value=0, key=b"\xff\x00"),
    "block regret": release("block_regret", -12_345_678),
    "mean loss": release("mean_loss", 1 << 20),
}


def _feedback_release(kind: str, *, key: Key = b"fr") -> Release:
    """A release of a feedback stream."""
    gains, shown = np.array([1 << 19, -3, 0, -(1 << 40)]), np.array([1, 2, 0, 1])
    policy = np.array([(1 << 24) - 3, 1, 1, 1], dtype="<u4").tobytes()
    of = replace(release("opening" if kind == "opening" else "action", 0, key=key))
    numbers = () if kind == "opening" else (*gains.tolist(), *shown.tolist())
    return replace(of, identity=of.identity._replace(kind=kind), numbers=numbers, policy=policy)


CELLS = replace(
    FEEDBACK,
    actions=FIELDS.arms(ACTIONS[:2]),
    learner='{"recipe":"policy_contexts","epsilon":"1/2","played":"value"}',
    shown=ACTIONS[:2],
    contexts=FIELDS,
    played="value",
)
"""A stream with private contexts: two actions in each of two cells."""


def _of_cells(kind: str) -> Release:
    """The same numbers as rewards and losses, and a policy of each cell."""
    of = _feedback_release(kind)
    halves = np.array([1 << 23] * 4, dtype="<u4").tobytes()
    return replace(of, policy=halves)


SHOWN_FEEDBACK = {
    "opening": _feedback_release("opening"),
    "sums": _feedback_release("sums"),
    "sums of a binary key": _feedback_release("sums", key=b"\xff\x00"),
}


def shown_entry(value: bytes) -> object:
    """An entry's value as text; of a recorded release, the fields of its head and its lines."""
    heads, whole = np.frombuffer(value[:SIZE].ljust(SIZE), HEAD), value[:1] == bytes([VERSION])
    if not whole:
        return value.decode()
    ledger, action = lines_of(heads[0], value)
    fields = dict(zip(HEAD.names or (), heads[0].tolist(), strict=True))
    return [fields, ledger.decode(), action and action.decode()]


def feedback() -> object:
    """What is recorded and published of a feedback stream."""
    recordings: dict[str, object] = {}
    of_cells = ((f"{kind} of cells", _of_cells(kind), CELLS) for kind in ("opening", "sums"))
    plain = ((name, shown, FEEDBACK) for name, shown in SHOWN_FEEDBACK.items())
    for name, shown, lines in (*plain, *of_cells):
        recorded = state.record(shown, lines=lines, ordinal=9)
        recordings[name] = {"recorded": shown_entry(state.encode_recorded(recorded))}
    return recordings


def published() -> object:
    """Every line that is published, by what it tells."""
    lines: dict[str, dict[str, str | None]] = {}
    for name, shown in SHOWN.items():
        recorded = state.record(shown, lines=LINES, ordinal=9)
        action = None if recorded.action is None else recorded.action.decode()
        lines[name] = {"action": action, "ledger": recorded.ledger.decode()}
    for name, shown in SHOWN.items():
        voted = replace(shown, in_force=3) if shown.kind in ("opening", "action") else shown
        recorded = state.record(voted, lines=REMEMBERING, ordinal=9)
        action = None if recorded.action is None else recorded.action.decode()
        lines[f"{name} with a memory"] = {"action": action, "ledger": recorded.ledger.decode()}
    mark = LINES.epoch(partition=0, epoch=3, previous=2, next_offset=201, ordinal=10)
    return {**lines, "epoch": {"action": None, "ledger": mark.decode()}}


def saved() -> dict[bytes, bytes]:
    """A state as a partition leaves it, with something of an older epoch."""
    places = Entries("home", 0)
    point = state.Checkpoint(
        next_offset=201,
        low_water=150,
        rows=2,
        commit_seq=9,
        lines_recorded=9 + len(SHOWN),
        lines_published=9,
        epoch=2,
        digest="d1",
        partitions=4,
        began_with=3,
        input_id="1b4e28ba-2fa1-11d2-883f-0016d3cca427",
        last_record=state.LastRecord(offset=199, digest="0123456789abcdef" * 2),
    )
    entries = {
        places.checkpoint: state.encode_checkpoint(point),
        places.row(b"fr", epoch=2): b"row of fr",
        places.row(None, epoch=2): b"row of null",
        places.row(b"fr", epoch=1): b"old row",
    }
    for ordinal, shown in enumerate(SHOWN.values(), start=10):
        recorded = state.record(shown, lines=LINES, ordinal=ordinal)
        entries[release_entry(shown.identity)] = state.encode_recorded(recorded)
    return entries


def decoded() -> object:
    """What each format makes of the same bytes: float32 in hexadecimal, null for a null loss."""
    by_format: dict[str, list[list[str | None]]] = {}
    for name, (format_name, options) in FORMATS.items():
        format_ = configure(format_name, actions=("a", "b", "c"), options=options)
        by_format[name] = [
            [
                row.astype("<f4").tobytes().hex() if np.isfinite(row).all() else None
                for row in format_.decode([value]).content["losses"][:4]
            ]
            for value in (*EVENTS, *HOSTILE)
        ]
    return by_format


def encoded() -> object:
    """What each format writes."""
    row = np.array([[0.1, 1 / 3, 1]], dtype=np.float32)
    return {
        name: configure(format_name, actions=("a", "b", "c"), options=options).encode(row).hex()
        for name, (format_name, options) in FORMATS.items()
    }


def texts() -> dict[Path, str]:
    """Every golden file with what must be in it."""
    contents = {
        GOLDEN / "published.json": published(),
        GOLDEN / "state.json": {key.decode(): shown_entry(value) for key, value in saved().items()},
        GOLDEN / "decoded.json": decoded(),
        GOLDEN / "encoded.json": encoded(),
        GOLDEN / "feedback.json": feedback(),
        **{SCHEMAS / f"{name}.json": build(name) for name in NAMES},
    }
    return {
        path: json.dumps(content, indent=2, ensure_ascii=False) + "\n"
        for path, content in contents.items()
    }


def main() -> None:
    """Write every file."""
    for path, text in texts().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
