"""Does anything but the charged releases depend on content? It must not, byte for byte.

The shipped engine runs the same log twice, with one record's content replaced and with selections
and noise from a script. Everything observable that is not a charged release must then be the same
bytes: the releases' other columns, ledger and refusals, counts and positions, the number, names and
sizes of saved rows, the text of objects, and the messages of errors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from streamdp.core.engine import Drawn, Engine, Kept, Rebuilding, recorded
from streamdp.core.errors import StreamdpError
from streamdp.core.events import Key, LossBatch, Releases
from streamdp.core.learners import Leader
from streamdp.core.regret import Estimate
from streamdp.lab.audit.exposure import unusable, vertices
from streamdp.lab.audit.script import Script, Scripted, ScriptedRandomness, Seen, key_of

_RUNS = 5
_LIMIT = 4  # the fifth key gets no learner
_RECORDS = 40
_SINGLES = 6  # slots that come alone: inside blocks and at an end
_BLOCKS = 30

Observed = dict[str, bytes]
Content = NDArray[np.float32]


def leaks(learner: Leader, estimates: tuple[Estimate, ...] = ()) -> list[str]:
    """The names of observables that differ between neighbouring inputs; empty if all is well."""
    return sorted(set(each_leak(learner, estimates)))


def each_leak(learner: Leader, estimates: tuple[Estimate, ...] = ()) -> Iterator[str]:
    """Yield their names neighbour by neighbour, so that a caller can stop at the first."""
    for place in _places():
        first, *others = _contents(learner)
        seen = observe(learner, estimates, place, first)
        for content in others:
            other = observe(learner, estimates, place, content)
            yield from (name for name in other if other[name] != seen.get(name))
            yield from (name for name in seen if name not in other)


def observe(
    learner: Leader, estimates: tuple[Estimate, ...], place: int, content: Content
) -> Observed:
    """Everything observable about an engine that reads this content at this place."""
    engine = _engine(learner, estimates)
    seen: Observed = {}
    drawn: dict[Drawn, Kept] = {}
    log = list(_story(learner, place, content))
    for number, batch in enumerate(log):
        try:
            releases = engine.apply_batch(batch)
        except StreamdpError as error:
            return seen | {f"batch {number}: refused": repr(error).encode()}
        drawn |= recorded(releases)
        seen |= _of_releases(f"batch {number}: ", releases)
        seen |= _of_saves(f"save after batch {number}: ", engine.save(most=2))
    for single in range(_SINGLES):
        seen |= _of_releases(f"apply {single}: ", engine.apply(key_of(1), content[0]))
    seen["repr of a batch"] = repr(log[0]).encode()
    seen |= _of_engine(engine)
    seen["error: a record again"] = _said(lambda: engine.apply_batch(log[0]))
    rows = engine.save()
    seen |= _of_saves("save: ", rows)
    without = {name: value for name, value in drawn.items() if name.block != 1}
    missing = _said(lambda: _finished(_again(learner, estimates, log, without)))
    seen["error: a release missing"] = missing
    try:
        rebuilding = _again(learner, estimates, log, drawn)
        seen["error: rows too many"] = _said(lambda: _finished(rebuilding, rows=99))
        again = _of_engine(_finished(rebuilding))
    except StreamdpError as error:
        again = {"refused": repr(error).encode()}
    seen |= {f"again: {name}": value for name, value in again.items()}
    return seen


def _engine(learner: Leader, estimates: tuple[Estimate, ...]) -> Engine:
    """The shipped engine with selections from a script and noise 0."""
    actions = len(learner.actions)
    runs, blocks = np.arange(_RUNS)[:, None], np.arange(_BLOCKS + 1)
    script = Script(
        actions=(runs + blocks) % actions,
        windows=np.full((_RUNS, _BLOCKS + 1), 1 << 63, dtype=np.uint64),
        coins=np.zeros((_RUNS, _RECORDS, actions), dtype=np.bool_),
    )
    randomness = ScriptedRandomness(script, Seen.nothing(_RUNS, _BLOCKS, actions))
    charge = learner.charge or Fraction(0)
    return Engine(
        stream="audit",
        partition=0,
        learner=replace(learner, choose=Scripted()),
        estimates=estimates,
        budget=sum((estimate.epsilon for estimate in estimates), charge),
        randomness=randomness,
        limit=_LIMIT,
    )


def _places() -> list[int]:
    """The replaced records: a key's first, one inside a block, two of a frame, the last."""
    return [0, 11, 12, 21, _RECORDS - 1]


def _contents(learner: Leader) -> Iterator[Content]:
    """The contents in its place: vertices, a point between, and unusable rows."""
    actions = len(learner.actions)
    corners = vertices(min(actions, 3))
    for row in [corners[0], corners[-1], corners[1] / 3, *unusable(min(actions, 3))]:
        yield np.resize(row, (1, actions))


def _story(learner: Leader, place: int, content: Content) -> Iterator[LossBatch]:
    """Three batches of records of five keys, one of them the null key; some records are frames."""
    actions = len(learner.actions)
    keys: list[Key] = [None, *(key_of(run) for run in range(1, _RUNS))]
    losses = (np.arange(_RECORDS * actions).reshape(_RECORDS, actions) * 37 % 101 / 100).astype(
        np.float32
    )
    losses[place] = content
    index = np.arange(_RECORDS) * 3 % 11 % _RUNS
    index[20:24] = 2  # two frames of one key
    offsets = np.arange(_RECORDS)
    offsets[20:24] = [20, 20, 22, 22]
    for part in (slice(0, 13), slice(13, 25), slice(25, _RECORDS)):
        yield LossBatch(keys, index[part], losses[part], offsets[part])


def _again(
    learner: Leader,
    estimates: tuple[Estimate, ...],
    log: list[LossBatch],
    drawn: dict[Drawn, Kept],
) -> Rebuilding:
    """An engine that is rebuilt from the log and the recorded releases alone."""
    rebuilding = Rebuilding(_engine(learner, estimates), rows=[], releases=drawn)
    for batch in log:
        rebuilding.feed(batch)
    return rebuilding


def _finished(rebuilding: Rebuilding, *, rows: int = _LIMIT) -> Engine:
    """The rebuilt engine."""
    return rebuilding.finish(position=_RECORDS, rows=rows)


def _of_releases(where: str, releases: Releases) -> Observed:
    """Every column; values only of actions, which the script fixes."""
    names = ("born", "block", "kind", "start", "stop", "first_offset", "last_offset")
    seen = {where + name: np.asarray(getattr(releases, name)).tobytes() for name in names}
    seen[where + "actions"] = np.where(releases.kind < 2, releases.value, 0).tobytes()
    public = (releases.keys, releases.kinds, releases.charges, len(releases))
    seen[where + "keys and charges"] = repr(public).encode()
    seen[where + "repr"] = repr(releases).encode()
    return seen


def _of_saves(where: str, rows: list[tuple[Key, bytes]]) -> Observed:
    return {where + "rows and sizes": repr([(key, len(row)) for key, row in rows]).encode()}


def _of_engine(engine: Engine) -> Observed:
    """Everything that an engine shows, except the bytes of its rows."""
    numbers = (len(engine), engine.position, engine.slots_refused, engine.low_water())
    keys = [None, *(key_of(run) for run in range(1, _RUNS))]
    return {
        "repr of the engine": repr(engine).encode(),
        "ledger": repr(list(engine.ledger.export())).encode(),
        "highest charge": repr(engine.ledger.highest()).encode(),
        "numbers": repr(numbers).encode(),
        "slots and actions": repr([(engine.slots(k), engine.action(k)) for k in keys]).encode(),
        "layout": repr(engine.layout).encode(),
    }


def _said(act: Callable[[], object]) -> bytes:
    """The error's text."""
    try:
        act()
    except StreamdpError as error:
        return repr(error).encode()
    return b"nothing"
