"""The black box for feedback streams: which ε do the released sums of neighbouring logs prove?

As in `blackbox`, each side of a pair of neighbouring logs is played by many keys of one run of the
real service, and only its ledger lines are read. A release is 2·K numbers here, so the events are
about where these numbers lie.

**The logs.** One slot of one block differs: the first action was shown, and its loss is 1 or 0. The
headers are the same on both sides, since they are public. With the action in the content, another
action with another loss takes its place, which moves the most. Every other slot shows the second
action with a loss of 1/4. Further pairs have an unusable content, or none, in place of the loss 1.

**The events.** Discrete Laplace noise tells two centres apart best beyond either of them: there the
ratio is e^(distance/scale) at every point. So the plain events are that all numbers that the pair
moves lie at one side's centre or beyond it. The other events add one condition: another action's
sum, or the next block's, lies beyond its centre by as much (so a loss of an action that was not
shown is read, or an observation is in two releases); or they are that a count differs from the
headers' count, or that a release is missing. The chance of an error is divided among all of them.

Three hundred runs refute noise of half the scale, at ε = 1 and 95 % confidence
(`tests/test_audit_feedback_blackbox.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from streamdp.core.arrays import Ints
from streamdp.core.events import SUMS
from streamdp.core.grid import NULL
from streamdp.core.schedule import Schedule
from streamdp.lab.audit.blackbox import (
    CONFIDENCE,
    SIDES,
    EpsilonBound,
    Record,
    best_bound,
    both_sides,
    keys_of,
)
from streamdp.wire.feedback import FeedbackFormat, Headers, headers_of
from streamdp.wire.formats import Value
from streamdp.wire.lines import Charge
from streamdp.wire.published import decode_ledger

Run = Callable[[Sequence[Record], Sequence[Headers]], Iterable[bytes]]
"""Runs a log with its headers and returns its ledger lines, in any order of keys."""

_MOST_BLOCKS = 8  # among these, a block of at least two slots is looked for
_FOLLOWING = 1  # blocks after the one that differs
_SHOWN, _OTHER = 0, 1  # the action whose loss differs, and the action of every other slot
_USUAL = 0.25  # the loss of every other slot: usable, and not what an unusable one counts as
_PLAIN = ("towards a", "towards b")
_OTHERS = 2 * len(_PLAIN) + 2


@dataclass(frozen=True, slots=True)
class _Slot:
    """One slot: the action, the gain in grid units, and the record's value."""

    arm: int | None  # None: nothing usable, or an action that only the header knows
    gain: int
    value: Value

    def padded(self, width: int) -> _Slot:
        """Pad the value with spaces; only JSON's lengths differ, and JSON may end in spaces."""
        return self if self.value is None else replace(self, value=self.value.ljust(width))


@dataclass(frozen=True, slots=True)
class FeedbackPair:
    """Two neighbouring streams of one key of a feedback stream: one content differs."""

    name: str
    block: int  # whose release may differ
    streams: tuple[Sequence[Value], Sequence[Value]] = field(repr=False)
    headers: Sequence[Headers]  # of each slot, on both sides
    exact: tuple[Ints, Ints] = field(repr=False)  # of each side: sums and counts (2 × K)
    counts: Ints | None  # what headers give (K); None: counts have noise

    def log(self, runs: int) -> Iterator[Record]:
        """Both sides' runs, slot by slot."""
        for values in zip(*self.streams, strict=True):
            yield from both_sides(values, runs=runs)

    def log_headers(self, runs: int) -> list[Headers]:
        """The headers of each record of the log."""
        return [headers for headers in self.headers for _ in range(len(SIDES) * runs)]


def feedback_pairs(schedule: Schedule, format_: FeedbackFormat) -> list[FeedbackPair]:
    """Neighbours by another content, by an unusable one, and by none."""
    lengths = schedule.lengths(np.arange(_MOST_BLOCKS))
    block = int(np.argmax(lengths > 1))  # 0 if none has two slots
    bad, good = _slot(format_, _SHOWN, loss=1.0), _slot(format_, _SHOWN, loss=0.0)
    if format_.feedback.played == "value":
        good = _slot(format_, _OTHER, loss=0.0)
    arm = _SHOWN if format_.feedback.played == "header" else None
    garbage = _Slot(arm, 0, b"\xff" * len(bad.value or b""))
    nothing = _Slot(arm, 0, None)
    build = _Builder(schedule, format_, block)
    return [
        build.pair("another content", bad, good),
        build.pair("an unusable content", bad, garbage),
        build.pair("no content", bad, nothing),
    ]


def _slot(format_: FeedbackFormat, arm: int, *, loss: float) -> _Slot:
    """A slot: the shown action and its outcome."""
    number = loss if format_.feedback.content == "loss" else 1 - loss
    value = format_.encode(np.array([number], dtype=np.float32), played=[arm])
    return _Slot(arm, round((0.5 - loss) * 2 * NULL), value)


@dataclass(frozen=True, slots=True)
class _Builder:
    """Makes pairs whose first slot of one block differs."""

    schedule: Schedule
    format: FeedbackFormat
    block: int

    def pair(self, name: str, one: _Slot, other: _Slot) -> FeedbackPair:
        start = self.schedule.start(self.block)
        slots = self.schedule.stop(self.block + _FOLLOWING) - 1
        usual = _slot(self.format, _OTHER, loss=_USUAL)
        width = max(len(slot.value or b"") for slot in (one, other))  # public, so it is the same
        one, other = (slot.padded(width) for slot in (one, other))
        sides = [
            [usual] * (start - 1) + [slot] + [usual] * (slots - start) for slot in (one, other)
        ]
        arms = [_OTHER] * slots
        arms[start - 1] = _SHOWN
        a, b = (self._exact(side) for side in sides)
        return FeedbackPair(
            name=name,
            block=self.block,
            streams=([slot.value for slot in sides[0]], [slot.value for slot in sides[1]]),
            headers=[headers_of(self.format, [arm]) for arm in arms],
            exact=(a, b),
            counts=a[1] if self.format.feedback.played == "header" else None,
        )

    def _exact(self, side: Sequence[_Slot]) -> Ints:
        """The block's sums and counts without noise, slot by slot."""
        numbers = np.zeros((2, len(self.format.feedback.actions)), dtype=np.int64)
        start, stop = self.schedule.start(self.block), self.schedule.stop(self.block)
        for slot in side[start - 1 : stop - 1]:
            if slot.arm is not None:
                numbers[:, slot.arm] += slot.gain, 1
        return numbers


def feedback_bound(
    pair: FeedbackPair, run: Run, *, runs: int, confidence: float = CONFIDENCE
) -> EpsilonBound:
    """The largest ε that a run of both sides proves."""
    lines = run(list(pair.log(runs)), pair.log_headers(runs))
    seen = _outcomes(pair, lines, runs=runs)
    return best_bound(seen, plain=_PLAIN, others=_OTHERS, runs=runs, confidence=confidence)


def _outcomes(pair: FeedbackPair, lines: Iterable[bytes], *, runs: int) -> dict[str, Counter[str]]:
    """How often each event was seen on each side."""
    released: dict[bytes, dict[int, Ints]] = {
        key: {} for side in SIDES for key in keys_of(side, runs=runs)
    }
    for value in lines:
        line = decode_ledger(value)
        if not isinstance(line, Charge) or line.kind != SUMS or not line.key:
            continue
        sums = line.block_sums()
        if sums is not None:
            released[line.key.encode()][line.block] = np.stack(sums.arrays())
    seen: dict[str, Counter[str]] = {side: Counter() for side in SIDES}
    for key, blocks in released.items():
        seen[key[:1].decode()].update(_events(pair, blocks))
    return seen


def _events(pair: FeedbackPair, blocks: dict[int, Ints]) -> Iterator[str]:
    """The observable events of one run."""
    if blocks.keys() != {*range(pair.block + _FOLLOWING + 1)}:
        yield "a release is missing"
        return
    this, after = blocks[pair.block], blocks[pair.block + _FOLLOWING]
    if pair.counts is not None and (this[1] != pair.counts).any():
        yield "a count that headers do not give"
    a, b = pair.exact
    moved = a != b
    for event, centre, sign in zip(_PLAIN, (a, b), (np.sign(a - b), np.sign(b - a)), strict=True):
        if not (sign * (this - centre) >= 0)[moved].all():
            continue
        yield event
        up = int(sign[0, _SHOWN])
        if up * int(this[0, _OTHER] - centre[0, _OTHER]) >= NULL:
            yield f"{event}, another action's sum too"
        if up * int(after[0, _SHOWN]) >= NULL:
            yield f"{event}, the next block's sum too"
