"""Does anything but the charged releases depend on content? It must not, byte for byte.

The shipped engine runs the same log twice, with one slot's content replaced and with releases from
a script. Everything observable that is not a charged release must then be the same bytes: the
releases' other columns, what is in force, ledger and refusals, counts and positions, the number,
names and sizes of saved rows, the text of objects, and the messages of errors; once more where keys
go idle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise, product

import numpy as np

from streamdp.core.engine import Engine, Rebuilding
from streamdp.core.errors import StreamdpError
from streamdp.core.events import SPARE, Batch, Key
from streamdp.core.kinds.kind import Kind
from streamdp.core.releases import Release, Releases
from streamdp.lab.audit.around import engine_of
from streamdp.lab.audit.neighbours import Slots, innermost, neighbours_of
from streamdp.lab.audit.script import Script, Scripted, ScriptedRandomness, key_of
from streamdp.lab.audit.stories import Story, TakenHere, made_up

_RUNS = 5
_LIMIT = 4  # the fifth key gets no learner
_RECORDS = 40
_SINGLES = 6  # slots that come alone: inside blocks and at an end
_BLOCKS = 30
_IDLE, _LATE = 1000, 9000  # milliseconds
_PLACES = {None: (0, 11, 12, 21, _RECORDS - 1), _IDLE: (18, 21)}
"""The replaced records: a key's first, one inside a block, two of a frame, the last; and, where
keys go idle, one of a block that is open then, and one of a key without a row."""
_CUTS = (0, 13, 25)
_KEYS: tuple[Key, ...] = (None, *(key_of(run) for run in range(1, _RUNS)))

Observed = dict[str, bytes]


def leaks(kind: Kind) -> Iterator[str]:
    """Yield the names of observables that differ between neighbouring inputs, pair by pair."""
    row = neighbours_of(kind)
    extremes, others = row.contents[: row.extremes], row.contents[row.extremes :]
    usual = made_up(row, "leaks", 1, 1)[0, 0, row.headers.shape[1] :]
    contents = (extremes[0], extremes[-1], *others[:: max(1, len(others) // 4)])
    for idle, places in _PLACES.items():
        seen = observe(kind, 0, usual, idle)  # what the log has there: nothing is replaced
        for place, content in product(places, contents):
            other = observe(kind, place, content, idle)
            yield from (name for name in other if other[name] != seen.get(name))
            yield from (name for name in seen if name not in other)


def observe(kind: Kind, place: int, content: Slots, idle: int | None = None) -> Observed:
    """Everything observable about an engine that reads this content at this place."""
    engine, row = _engine(kind, idle), neighbours_of(kind)
    seen: Observed = {}
    drawn: list[Release] = []
    log = _log(kind, place, content, idle)
    for number, batch in enumerate(log):
        try:
            releases = engine.apply_batch(batch)
        except StreamdpError as error:
            return seen | {f"batch {number}: refused": repr(error).encode()}
        drawn += releases
        seen |= _of_releases(f"batch {number}: ", releases)
        seen |= _of_saves(
            f"save after batch {number}: ", engine.save(most=2 if idle is None else 1)
        )
    public = row.headers[0]
    for single in range(_SINGLES):
        slot, none = np.concatenate([public, content])[None], np.zeros(1, np.int64)
        times = None if idle is None else none + _LATE
        one = row.batch([key_of(1)], none, slot, none + engine.position, times)
        seen |= _of_releases(f"alone {single}: ", engine.apply_batch(one))
    seen["repr of a batch"] = repr(log[0]).encode()
    seen |= _of_engine(engine)
    seen["error: a record again"] = _said(lambda: engine.apply_batch(log[0]))
    seen |= _of_saves("save: ", engine.save())
    if idle is not None:
        return seen | {"time": repr(engine.ages()).encode()}
    without = [release for release in drawn if release.identity.block != 1]
    seen["error: a release missing"] = _said(lambda: _finished(_again(kind, log, without)))
    try:
        rebuilding = _again(kind, log, drawn)
        seen["error: rows too many"] = _said(lambda: _finished(rebuilding, rows=99))
        again = _of_engine(_finished(rebuilding))
    except StreamdpError as error:
        again = {"refused": repr(error).encode()}
    return seen | {f"again: {name}": value for name, value in again.items()}


def _engine(kind: Kind, idle: int | None = None) -> Engine:
    """The shipped engine with releases from a script."""
    actions = len(kind.actions)
    runs, blocks = np.arange(_RUNS)[:, None], np.arange(_BLOCKS + 1)
    script = Script(
        many=actions,
        actions=(runs + blocks) % actions,
        windows=np.full((_RUNS, _BLOCKS + 1), 1 << 63, dtype=np.uint64),
        coins=np.zeros((_RUNS, _RECORDS, actions), dtype=np.bool_),
    )
    return engine_of(Scripted(kind).as_kind, ScriptedRandomness(script), limit=_LIMIT, idle=idle)


def _log(kind: Kind, place: int, content: Slots, idle: int | None) -> list[Batch]:
    """Three batches of records of five keys, one of them the null key; some records are frames.

    The later two are under lists, each of which pauses an action, if the kind follows lists. Where
    keys go idle, the first record of the last one finds all of them so, and one comes back.
    """
    row, many = neighbours_of(kind), innermost(kind).evidence.listed
    slots = made_up(row, "leaks", 1, _RECORDS)[0]
    slots[place, row.headers.shape[1] :] = content
    index = np.arange(_RECORDS) * 3 % 11 % _RUNS
    index[20:24] = 2  # two frames of one key
    if idle is not None:
        index[_CUTS[-1] :] = 1
    offsets = np.arange(_RECORDS)
    offsets[20:24] = [20, 20, 22, 22]
    named = many - kind.actions[:many].count(SPARE)
    lists = [(cut, TakenHere(np.arange(many) != at, named)) for at, cut in enumerate(_CUTS) if at]
    story = Story(
        "leaks", _KEYS, index, slots, offsets, (*_CUTS, _RECORDS),
        times=None if idle is None else np.where(offsets < _CUTS[-1], _IDLE, _LATE),
        lists=tuple(lists if many else ()),
    )  # fmt: skip
    return [story.part(row, *of) for of in pairwise(story.cuts)]


def _again(kind: Kind, log: list[Batch], drawn: list[Release]) -> Rebuilding:
    """An engine that is rebuilt from the log and the recorded releases alone."""
    rebuilding = Rebuilding(_engine(kind), rows=[], releases=drawn)
    for batch in log:
        rebuilding.feed(batch)
    return rebuilding


def _finished(rebuilding: Rebuilding, *, rows: int = _LIMIT) -> Engine:
    """The rebuilt engine."""
    return rebuilding.finish(position=_RECORDS, rows=rows)


def _of_releases(where: str, releases: Releases) -> Observed:
    """Every column; the script fixes the values, and what is in force follows from them."""
    names = ("born", "block", "kind", "start", "stop", "first_offset", "last_offset", "numbers")
    seen = {where + name: np.asarray(getattr(releases, name)).tobytes() for name in names}
    public = (releases.keys, releases.kinds, releases.charges, len(releases))
    seen[where + "keys and charges"] = repr(public).encode()
    in_force = releases.in_force
    seen[where + "in force"] = b"" if in_force is None else in_force.tobytes()
    seen[where + "repr"] = repr(releases).encode()
    return seen


def _of_saves(where: str, rows: list[tuple[Key, bytes]]) -> Observed:
    return {where + "rows and sizes": repr([(key, len(row)) for key, row in rows]).encode()}


def _of_engine(engine: Engine) -> Observed:
    """Everything that an engine shows, except the bytes of its rows."""
    numbers = (len(engine), engine.position, engine.slots_refused, engine.low_water())
    asked = engine.action if innermost(engine.kind).evidence.answers == "action" else engine.policy
    in_force = [(engine.slots(key), repr(asked(key))) for key in _KEYS]
    return {
        "repr of the engine": repr(engine).encode(),
        "ledger": repr(list(engine.ledger.export())).encode(),
        "highest charge": repr(engine.ledger.highest()).encode(),
        "numbers": repr(numbers).encode(),
        "slots and what is in force": repr(in_force).encode(),
        "layout": repr(engine.layout).encode(),
    }


def _said(act: Callable[[], object]) -> bytes:
    """The error's text."""
    try:
        act()
    except StreamdpError as error:
        return repr(error).encode()
    return b"nothing"
