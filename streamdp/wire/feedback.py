"""What feedback records hold: their payloads' numbers and headers in, played arms and gains out.

A record of a feedback stream holds the loss of one action that was shown, or its reward (1 − loss),
as the stream is configured. The action itself is public and travels in a header, `streamdp-action`
(its UTF-8 name); a frame of n rows has `streamdp-actions`, one little-endian uint32 for each row.
The rules of `formats` hold here too, and these:

1. Which arm a slot counts for is a function of the record's headers alone (`played = "header"`):
   payloads are protected, headers are public, and a count of shown actions is published.
2. A header that is missing, given twice, unknown or of a wrong length makes every slot of its
   record the *null observation*: it counts for no arm. Every slot is taken all the same.
3. An unusable payload is the gain 0 *of the arm that its header names*: that arm was shown, which
   is public, so it is counted.
4. With `played = "value"`, for producers that cannot write headers, the payload names the action.
   Then a replaced payload may move two arms, so the learner needs more noise.
5. In a stream with contexts an arm is an action in a cell of the table (`core.evidence.contexts`).
   The context stands where the action does: in the header `streamdp-context`, such as
   `device=phone;country=fr` (a frame has `streamdp-contexts`, a cell's number as uint32 a row), or
   in the payload, never in both. In a header that is missing, given twice or unreadable, every
   field is `other`.
6. A stream may declare `most`, the largest reward that counts (`most = "200"`, in €). Records then
   hold rewards from 0 to `most`, and only here are they divided by it, and clipped: a larger one
   counts as `most`, so one event moves a sum by no more than ever. What is written stays a fact in
   its own unit, whatever `most` a later epoch has.

A format offers feedback if its `configure` takes `feedback` (`formats`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from streamdp.core.arrays import Ints
from streamdp.core.errors import InvalidConfig
from streamdp.core.events import NO_ARM, SPARE
from streamdp.core.evidence.contexts import Contexts
from streamdp.core.grid import centred_gains, shares_of
from streamdp.wire.decoded import Decoded, Headers, Setting, checked_option

Number = Literal["loss", "reward"]
"""What the number of a record is."""
Played = Literal["header", "value"]

ACTION_HEADER = "streamdp-action"
CONTEXT_HEADER = "streamdp-context"
ROW_BYTES = 4
"""Bytes of each row's action (or cell) in a frame's header: a little-endian uint32."""


@dataclass(frozen=True, slots=True)
class Feedback:
    """What a stream's feedback records hold, and where the shown action stands."""

    actions: tuple[str, ...]
    content: Number = "loss"
    played: Played = "header"
    header: str = ACTION_HEADER
    contexts: Contexts | None = None
    most: Fraction | None = None  # the largest reward that counts; None: 1
    columns: int = 0  # arms of a cell, if more than there are names yet

    def __post_init__(self) -> None:
        """Refuse unknown values."""
        checked_option(self.content, where="content", allowed=("loss", "reward"))
        checked_option(self.played, where="played", allowed=("header", "value"))
        if not self.header:
            raise InvalidConfig("action_header", "empty", expected="a header's name", got="''")
        if self.most is not None and self.content != "reward":
            got = f"content = {self.content}"
            raise InvalidConfig("most", "is of rewards", expected='content = "reward"', got=got)

    def settings(self) -> Mapping[str, Setting]:
        """Everything that decides how a record is read: part of the configuration's digest."""
        header = {"action_header": self.header} if self.played == "header" else {}
        contexts = {} if self.contexts is None else {"context": str(self.contexts)}
        most = {} if self.most is None else {"most": str(self.most)}
        return {"content": self.content, "played": self.played, **header, **contexts, **most}

    @property
    def largest(self) -> float:
        """The largest number that counts: formats may clip to it, `observed` does."""
        return 1.0 if self.most is None else float(self.most)

    @property
    def in_cell(self) -> tuple[str, ...]:
        """The names of a cell's arms: actions, and spare ones, which have none."""
        return (*self.actions, *[SPARE] * (self.columns - len(self.actions)))

    @property
    def arms(self) -> tuple[str, ...]:
        """The names of the arms that records can name: actions, in each cell."""
        return self.actions if self.contexts is None else self.contexts.arms(self.in_cell)

    def arm(self, action: str, cell: int = 0) -> int:
        """The arm of an action in a cell.

        >>> Feedback(("a", "b"), columns=3).arm("b", cell=1)
        4
        """
        if action not in self.actions:
            return NO_ARM
        return cell * len(self.in_cell) + self.actions.index(action)

    def cells(self, arms: Ints) -> Ints:
        """The cell of each arm."""
        return np.asarray(arms // len(self.in_cell))

    def observed(
        self,
        numbers: NDArray[np.float32],
        slots: Ints,
        headers: Sequence[Headers],
        *,
        frames: bool,
        played: NDArray[np.int32] | None = None,
    ) -> Decoded:
        """The slots of records whose payloads hold these numbers (n; NaN where one is unusable).

        Their arms come from headers, or with `played = "value"` from payloads (`played`), never
        from the other: the learner's noise is scaled for one of the two.
        """
        if self.most is not None:
            numbers = shares_of(numbers, self.largest)
        gain, unusable = centred_gains(numbers), np.isnan(numbers)
        if self.content == "reward":
            gain = -gain  # 1/2 − loss is reward − 1/2
        if self.played == "header":
            arms = (_in_frames if frames else _in_records)(self, headers, slots)
        else:
            assert played is not None, "decoded from the same records"
            arms = played
            unusable |= arms == NO_ARM
        return Decoded({"played": arms, "gain": gain}, slots, unusable)

    def headers(self, played: Sequence[int], *, frames: bool) -> Headers:
        """The headers of a record whose slots showed these arms.

        >>> Feedback(("a", "b")).headers([1], frames=False)
        [('streamdp-action', b'b')]
        """
        if self.played == "value":
            return []
        count, contexts = len(self.in_cell), self.contexts
        if frames:
            arms = np.array(played, dtype=np.int64)
            headers = [(f"{self.header}s", (arms % count).astype("<u4").tobytes())]
            if contexts is not None:
                headers.append((f"{CONTEXT_HEADER}s", (arms // count).astype("<u4").tobytes()))
            return headers
        (arm,) = played
        headers = [(self.header, self.actions[arm % count].encode())]
        if contexts is not None:
            headers.append((CONTEXT_HEADER, contexts.header_of_cell(arm // count)))
        return headers


def _in_records(feedback: Feedback, headers: Sequence[Headers], slots: Ints) -> NDArray[np.int32]:
    """The arm that each record of one slot names."""
    if feedback.contexts is not None:
        return _in_contexts(feedback, feedback.contexts, headers)
    name, none = feedback.header, _number(NO_ARM)
    numbers: dict[bytes | None, bytes]
    numbers = {action.encode(): _number(arm) for arm, action in enumerate(feedback.actions)}
    try:  # most producers write this one header, with a known action
        played = [numbers[value] for ((key, value),) in headers if key == name]
    except (KeyError, ValueError):
        played = []
    if len(played) != len(headers):
        given = [[value for key, value in pairs if key == name] for pairs in headers]
        played = [numbers.get(values[0], none) if len(values) == 1 else none for values in given]
    return np.frombuffer(b"".join(played), dtype="<i4").astype(np.int32)


_ABSENT = object()


def _in_contexts(
    feedback: Feedback, contexts: Contexts, headers: Sequence[Headers]
) -> NDArray[np.int32]:
    """The arm that each record's context and action name."""
    name, count = feedback.header, len(feedback.in_cell)
    numbers: dict[object, int]
    numbers = {action.encode(): arm for arm, action in enumerate(feedback.actions)}
    cells = _CellsOf(contexts)
    try:  # most producers write these two headers, with a known action
        played = [
            numbers[action] + cells[context] * count
            for ((key, action), (second, context)) in headers
            if key == name and second == CONTEXT_HEADER
        ]
    except (KeyError, ValueError):
        played = []
    if len(played) == len(headers):
        return np.array(played, dtype=np.int32)
    played = []
    for pairs in headers:
        action: object = _ABSENT
        context: object = _ABSENT
        for key, value in pairs:  # a header that stands there twice says nothing
            if key == name:
                action = value if action is _ABSENT else None
            elif key == CONTEXT_HEADER:
                context = value if context is _ABSENT else None
        arm = numbers.get(action, NO_ARM)
        played.append(arm if arm == NO_ARM else arm + cells[context] * count)
    return np.array(played, dtype=np.int32)


class _CellsOf(dict[object, int]):
    """The cell of each header of a batch."""

    def __init__(self, contexts: Contexts) -> None:
        super().__init__({_ABSENT: contexts.unknown})
        self._contexts = contexts

    def __missing__(self, context: object) -> int:
        assert context is None or isinstance(context, bytes)
        cell = self[context] = self._contexts.cell_of_header(context)
        return cell


def _number(arm: int) -> bytes:
    return arm.to_bytes(ROW_BYTES, "little", signed=True)


def _in_frames(feedback: Feedback, headers: Sequence[Headers], slots: Ints) -> NDArray[np.int32]:
    """The arm that each row of each frame names; a header of a wrong length names none."""
    numbers, contexts = _in_rows(f"{feedback.header}s", headers, slots), feedback.contexts
    known = numbers < len(feedback.actions)
    if contexts is not None:
        cells = np.minimum(_in_rows(f"{CONTEXT_HEADER}s", headers, slots), contexts.unknown)
        numbers = cells * len(feedback.in_cell) + numbers
    return np.where(known, numbers, NO_ARM).astype(np.int32)


def _in_rows(name: str, headers: Sequence[Headers], slots: Ints) -> Ints:
    """A frame's number for each row; the largest uint32 where its header's length is wrong."""
    parts, none = [], _number(NO_ARM)
    for pairs, rows in zip(headers, slots.tolist(), strict=True):
        given = [value for key, value in pairs if key == name]
        fits = len(given) == 1 and given[0] is not None and len(given[0]) == ROW_BYTES * rows
        parts.append(given[0] or b"" if fits else none * rows)
    return np.frombuffer(b"".join(parts), dtype="<u4").astype(np.int64)
