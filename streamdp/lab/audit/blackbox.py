"""How much do two neighbouring logs' releases differ, seen from outside? A lower bound on ε.

The audited system is a function from a log to the ledger lines it publishes: the real service on a
real transport, or a broken one. Each side of a pair of neighbouring logs is played by many keys of
one run, because keys do not depend on each other. The frequencies of an event on both sides give,
by the exact binomial bounds of Clopper & Pearson (1934), a lower bound on ln(P/P′), and so on ε:
the claim "ε-DP" is refuted when the bound exceeds ε. Nothing is assumed about the mechanism.

**The logs.** One slot of one block differs, the first block that has two slots; further pairs have
an unusable content, or none, in its place. Of *losses* there are two actions, equal but in two
slots of the block: on one side both are against the same action, on the other side they cancel out,
which shows noise of half the right scale best. Of *feedback* the first action was shown, and its
loss is 1 or 0 under the same headers; with the action in the content, another action with another
loss takes its place, which moves the most. Every other slot shows the second action.

**The events.** Of a choice: the block's release, alone and together with the releases before and
after it. Discrete Laplace noise tells two centres apart best beyond either of them: there the ratio
is e^(distance/scale) at every point. So the plain events of sums are that all numbers that the pair
moves lie at one side's centre or beyond it, the others that another action's sum, or the next
block's, does so too, or that a count differs from the headers'. And that a release is missing. The
chance of an error is divided among all events (Bonferroni), half of it for the plain ones, so none
has to be chosen in advance.

At ε = 1 and 95 % confidence, 300 runs refute Exp(1/ε) and sums with half their noise, and 1,400
Lap(1/ε) (`tests/lab/test_audit_blackbox.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from math import exp, inf, log

import numpy as np

from streamdp.core.arrays import Floats, Ints
from streamdp.core.errors import InvalidConfig
from streamdp.core.events import ACTION, OPENING, SPARE, SUMS
from streamdp.core.grid import NULL
from streamdp.core.schedule import Schedule
from streamdp.wire.decoded import Headers, Value
from streamdp.wire.feedback import Feedback
from streamdp.wire.formats import Format
from streamdp.wire.lines import Charge
from streamdp.wire.published import decode_ledger

Record = tuple[bytes, Value]
Run = Callable[[Sequence[Record], Sequence[Headers] | None], Iterable[bytes]]
"""Runs a log with its headers, if it has any; returns its ledger lines, in any order of keys."""

Events = Callable[[Mapping[int, Ints]], Iterator[str]]
"""The observable events of one run, by what each block released; −1 is the opening."""

CONFIDENCE = 1 - 1e-6
"""The confidence of bounds in verdicts: a sound system is accused once in a million audits."""

SIDES = ("a", "b")
_FOLLOWING = 1  # blocks after the one that differs: a block that is not reset shows there
_MOST_BLOCKS = 8  # among these, a block of at least two slots is looked for
_HALVINGS = 60  # of an interval of length 1: far below what a count can tell
_CHOICES, _OTHER_CHOICES = ("action 0", "action 1"), 4 + 4 + 1
_TOWARDS = ("towards a", "towards b")
_OTHER_SUMS = 2 * len(_TOWARDS) + 2
_SHOWN, _OTHER = 0, -1  # the arm whose loss differs: the first; that of every other slot: the last
_USUAL = 0.25  # the loss of every other slot: usable, and not what an unusable one counts as


@dataclass(frozen=True, slots=True)
class EpsilonBound:
    """Observations of two neighbouring logs, and the lower bound on ε that they prove."""

    epsilon: float  # with the stated confidence the mechanism is not better than this
    event: str  # the one that tells most
    counts: tuple[int, int]  # of it, on the likelier side and on the other
    runs: int  # on each side
    confidence: float


@dataclass(frozen=True, slots=True)
class NeighbouringLogs:
    """Two neighbouring streams of one key: they differ in one content."""

    name: str
    block: int  # whose release may differ
    streams: tuple[Sequence[Value], Sequence[Value]] = field(repr=False)
    headers: Sequence[Headers] | None  # of each slot, on both sides
    events: Events = field(repr=False)
    plain: Sequence[str]  # the events that have half of the chance of an error
    others: int  # how many other events there can be, whether they are seen or not

    def log(self, runs: int) -> Iterator[Record]:
        """Both sides' runs, slot by slot."""
        for values in zip(*self.streams, strict=True):
            for side, value in zip(SIDES, values, strict=True):
                yield from ((key, value) for key in keys_of(side, runs=runs))

    def log_headers(self, runs: int) -> list[Headers] | None:
        """The headers of each record of the log."""
        if self.headers is None:
            return None
        return [headers for headers in self.headers for _ in range(len(SIDES) * runs)]


@lru_cache(maxsize=len(SIDES))
def keys_of(side: str, *, runs: int) -> tuple[bytes, ...]:
    """The record keys of one side's runs; asked for in each slot."""
    return tuple(f"{side}{run:07d}".encode() for run in range(runs))


def pairs(schedule: Schedule, format_: Format) -> list[NeighbouringLogs]:
    """Neighbours by another content, by an unusable one, and by none."""
    lengths = schedule.lengths(np.arange(_MOST_BLOCKS))
    block = int(np.argmax(lengths > 1))  # 0 if none has two slots
    start, slots = schedule.start(block), schedule.stop(block + _FOLLOWING) - 1
    if format_.feedback is not None:
        return list(_of_sums(format_, format_.feedback, block, start, schedule.stop(block), slots))
    if len(format_.actions) != 2:
        got = len(format_.actions)
        raise InvalidConfig("black box", "actions", expected="two", got=got)
    return list(_of_choices(format_, block, start, slots, twice=bool(lengths[block] > 1)))


# -- losses ----------------------------------------------------------------------------------------


def _of_choices(
    format_: Format, block: int, start: int, slots: int, *, twice: bool
) -> Iterator[NeighbouringLogs]:
    even, against, towards = (
        format_.encode(np.array([row], dtype=np.float32))
        for row in ((0.5, 0.5), (1.0, 0.0), (0.0, 1.0))
    )

    def stream(differing: Value) -> Sequence[Value]:
        values: list[Value] = [even] * slots
        values[start] = against if twice else values[start]
        values[start - 1] = differing
        return values

    garbage = b"\xff" * len(against)  # no JSON, and NaN as float16 and float32
    for name, other in (
        ("another content", towards), ("an unusable content", garbage), ("no content", None),
    ):  # fmt: skip
        streams, events = (stream(against), stream(other)), partial(_choices, block)
        yield NeighbouringLogs(name, block, streams, None, events, _CHOICES, _OTHER_CHOICES)


def _choices(block: int, released: Mapping[int, Ints]) -> Iterator[str]:
    if released.keys() != {*range(-1, block + _FOLLOWING + 1)}:
        yield "a release is missing"
        return
    before, this, after = (int(released[block + step][0]) for step in (-1, 0, 1))
    yield f"action {this}"
    yield f"action {this} after {before}"
    yield f"action {this} before {after}"


# -- feedback --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Slot:
    """One slot: the action, the gain in grid units, and the record's value."""

    arm: int | None  # None: nothing usable, or an action that only the header knows
    gain: int
    value: Value


def _of_sums(
    format_: Format, feedback: Feedback, block: int, start: int, stop: int, slots: int
) -> Iterator[NeighbouringLogs]:
    in_header = feedback.played == "header"
    last = max(arm for arm, name in enumerate(_columns(feedback)) if name != SPARE)
    slot_of = partial(_slot, format_, feedback)
    usual, bad = slot_of(last, _USUAL), slot_of(_SHOWN, 1.0)
    good = slot_of(_SHOWN if in_header else last, 0.0)
    arm = _SHOWN if in_header else None
    garbage, nothing = _Slot(arm, 0, b"\xff" * len(bad.value or b"")), _Slot(arm, 0, None)
    arms = [_SHOWN if slot == start else last for slot in range(1, slots + 1)]
    headers = [feedback.headers([shown], frames=False) for shown in arms]
    for name, other in (
        ("another content", good), ("an unusable content", garbage), ("no content", nothing),
    ):  # fmt: skip
        width = max(len(slot.value or b"") for slot in (bad, other))  # public, so it is the same
        sides = []
        for slot in (bad, other):
            if slot.value is not None:  # only JSON's lengths differ, and JSON may end in spaces
                slot = replace(slot, value=slot.value.ljust(width))
            sides.append([usual] * (start - 1) + [slot] + [usual] * (slots - start))
        centres = [_exact(side[start - 1 : stop - 1], feedback) for side in sides]
        events = partial(_sums, block, centres, centres[0][1] if in_header else None)
        streams = tuple([slot.value for slot in side] for side in sides)
        yield NeighbouringLogs(
            name, block, (streams[0], streams[1]), headers, events, _TOWARDS, _OTHER_SUMS
        )


def _slot(format_: Format, feedback: Feedback, arm: int, loss: float) -> _Slot:
    """A slot: the shown action and its outcome."""
    number = loss if feedback.content == "loss" else 1 - loss
    value = format_.encode(np.array([number], dtype=np.float32), played=[arm])
    return _Slot(arm, round((0.5 - loss) * 2 * NULL), value)


def _columns(feedback: Feedback) -> tuple[str, ...]:
    """The names of the arms, also of those that no record can name yet."""
    return feedback.in_cell if feedback.contexts is None else feedback.arms


def _exact(side: Sequence[_Slot], feedback: Feedback) -> Ints:
    """What a block releases, without noise (2 × arms), slot by slot."""
    numbers = np.zeros((2, len(_columns(feedback))), dtype=np.int64)
    pairs = feedback.played == "value"
    for slot in side:
        if slot.arm is not None:
            added = (NULL + slot.gain, NULL - slot.gain) if pairs else (slot.gain, 1)
            numbers[:, slot.arm] += added
    return numbers


def _sums(
    block: int, centres: Sequence[Ints], counts: Ints | None, released: Mapping[int, Ints]
) -> Iterator[str]:
    if released.keys() - {-1} != {*range(block + _FOLLOWING + 1)}:
        yield "a release is missing"
        return
    this, after = released[block], released[block + _FOLLOWING]
    if counts is not None and (this[1] != counts).any():
        yield "a count that headers do not give"
    a, b = centres
    moved = a != b
    for event, centre, sign in zip(_TOWARDS, (a, b), (np.sign(a - b), np.sign(b - a)), strict=True):
        if not (sign * (this - centre) >= 0)[moved].all():
            continue
        yield event
        row = 0 if counts is not None else 1  # the loss of the action that one side shows
        up = int(sign[row, _SHOWN])
        if up * int(this[row, _OTHER] - centre[row, _OTHER]) >= NULL:
            yield f"{event}, another action's sum too"
        if up * int(after[row, _SHOWN]) >= NULL:
            yield f"{event}, the next block's sum too"


# -- bounds ----------------------------------------------------------------------------------------


def lower_bound(
    pair: NeighbouringLogs, run: Run, *, runs: int, confidence: float = CONFIDENCE
) -> EpsilonBound:
    """The largest ε that any event proves in a run of both sides."""
    seen = _outcomes(pair, run(list(pair.log(runs)), pair.log_headers(runs)), runs=runs)
    best = EpsilonBound(0.0, "none", (0, 0), runs, confidence)
    for event in sorted({event for counts in seen.values() for event in counts}):
        share = 1 / (2 * (len(pair.plain) if event in pair.plain else pair.others))
        error = (1 - confidence) * share / 4  # two directions, two bounds each
        for one, other in (SIDES, SIDES[::-1]):
            counts = seen[one][event], seen[other][event]
            if counts[0] <= counts[1] * exp(best.epsilon):
                continue  # not even the frequencies are so far apart, and bounds lie between them
            low = lowest(counts[0], runs, error=error)
            high = highest(counts[1], runs, error=error)
            proven = log(low / high) if low > 0 else -inf
            if proven > best.epsilon:
                best = EpsilonBound(proven, event, counts, runs, confidence)
    return best


def _outcomes(
    pair: NeighbouringLogs, lines: Iterable[bytes], *, runs: int
) -> dict[str, Counter[str]]:
    """How often each event was seen on each side."""
    released: dict[bytes, dict[int, Ints]] = {
        key: {} for side in SIDES for key in keys_of(side, runs=runs)
    }
    for value in lines:
        line = decode_ledger(value)
        if not isinstance(line, Charge) or not line.key:
            continue
        numbers = line.released()
        if line.kind == SUMS and numbers is not None:
            released[line.key.encode()][line.block] = numbers.reshape(2, -1)
        elif line.kind in (OPENING, ACTION) and isinstance(line.index, int):
            block = line.block if line.kind == ACTION else -1
            released[line.key.encode()][block] = np.array([line.index])
    seen: dict[str, Counter[str]] = {side: Counter() for side in SIDES}
    for key, blocks in released.items():
        seen[key[:1].decode()].update(pair.events(blocks))
    return seen


def lowest(count: int, runs: int, *, error: float) -> float:
    """The lower end of a probability seen so often: smaller ones show this with chance < error."""
    return 1 - highest(runs - count, runs, error=error)


def highest(count: int, runs: int, *, error: float) -> float:
    """The upper end, by Clopper & Pearson 1934: the p at which P(Bin(runs, p) ≤ count) = error.

    >>> highest(0, 10, error=0.05)  # 1 − 0.05^(1/10)
    0.2588655...
    """
    if count >= runs:
        return 1.0
    logs = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, runs + 1)))])
    k = np.arange(count + 1)
    choose = logs[runs] - logs[k] - logs[runs - k]
    low, high = count / runs, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if _log_tail(choose, k, runs, middle) > log(error):
            low = middle
        else:
            high = middle
    return high


def _log_tail(choose: Floats, k: Ints, runs: int, p: float) -> float:
    """ln P(Bin(runs, p) ≤ the last k)."""
    if p >= 1.0:
        return -inf
    terms = choose + k * log(p) + (runs - k) * np.log1p(-p) if p > 0 else np.zeros(1)
    largest = terms.max()
    return float(largest + np.log(np.exp(terms - largest).sum()))
