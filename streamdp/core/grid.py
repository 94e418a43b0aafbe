"""Loss ⇄ integer: clip, quantise, the null loss. Each vector from itself alone (P2, P3).

A loss becomes float32 first, everywhere, so that JSON, raw bytes, `apply`, batches, replay and the
live service agree bit for bit. It is clipped to [0, 1] and rounded (half to even) to a multiple of
2**-20. A row with a value that is not finite is a *null loss*: 1/2 in every coordinate.

Sums are exact integers. A loss is at most 2**20 grid units and a learner lives for at most 2**42
slots (`schedule.LAST_SLOT`), so an int64 sum cannot overflow and no code has to look at one.

`quantise` is the definition. `column_sums` is the fast path, equal to it for every float32
(`tests/core/test_grid.py` checks it over all of [0, 1] by sampling and at the edges).
"""

from __future__ import annotations

from math import isfinite
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from streamdp.core.arrays import Bools, Ints
from streamdp.core.errors import InvalidConfig

GRID_BITS = 20
UNIT = 1 << GRID_BITS
NULL = UNIT // 2

_EIGHT = np.float32(8)
_NINE = np.float32(9)
_NULL_SHIFTED = np.float32(8.5)
_EIGHT_AS_BITS = 0x41000000  # float32(8); the bits of 8 + g·2**-20 are this plus g
_MOST_ROWS_A_CHUNK = 4095  # 4095·2**20 < 2**32: a chunk's sums are exact modulo 2**32
_CHUNK_BYTES = 1 << 20
_WIDE = 512
_ROWS = (list, tuple, np.ndarray)
_NUMBERS = "fiubO"  # kinds of arrays that hold numbers, or objects that may be: never texts


def as_float32(losses: object, *, actions: int) -> NDArray[np.float32]:
    """Any array of losses as rows of float32; what does not fit becomes rows of NaN.

    >>> as_float32([0.25, 0.5], actions=2)
    array([[0.25, 0.5 ]], dtype=float32)
    >>> bool(np.isnan(as_float32("garbage", actions=2)).all())
    True
    """
    try:
        numbers = np.asarray(losses)
        if numbers.dtype.kind not in _NUMBERS:
            raise TypeError
        with np.errstate(over="ignore", invalid="ignore"):  # a warning would tell of content (P8)
            exact = numbers.astype(np.float64, copy=False)
            clipped = np.minimum(np.maximum(exact, 0.0), 1.0)
            rows = np.where(np.isfinite(exact), clipped, np.nan).astype(np.float32)
    except (TypeError, ValueError, OverflowError):
        rows = np.empty((0,), dtype=np.float32)
    if rows.ndim == 1:
        rows = rows[None, :]
    if rows.ndim != 2 or rows.shape[1] != actions:
        return np.full((1, actions), np.nan, dtype=np.float32)
    return np.ascontiguousarray(rows)


def as_vector(losses: object, *, actions: int) -> NDArray[np.float32]:
    """One event's losses as one row of float32; refuse anything but a vector or None.

    Only the number of axes is judged: what a vector holds is content, and unusable content becomes
    a row of NaN, whatever its length (P1).

    >>> as_vector([0.25, 0.5, 0.1], actions=2)
    array([[nan, nan]], dtype=float32)
    >>> as_vector("garbage", actions=2)
    Traceback (most recent call last):
    streamdp.core.errors.InvalidConfig: losses: no vector; expected 2 numbers, one each, got str
    """
    axes = 1
    try:
        numbers = losses if losses is None else np.asarray(losses)
        if numbers is not None:
            axes = 0 if _is_raw(losses) else numbers.ndim
    except ValueError:  # a list with lists in it
        numbers = None
        if isinstance(losses, list | tuple) and all(isinstance(row, _ROWS) for row in losses):
            axes = 2
    if axes != 1:
        raise InvalidConfig(
            "losses",
            "no vector",
            expected=f"{actions} numbers, one each",
            got=type(losses).__name__ + (f" of {axes} axes" if axes else ""),
        )
    return as_float32(numbers, actions=actions)


def as_rows(losses: NDArray[Any], *, actions: int) -> NDArray[np.float32]:
    """The losses of many slots as rows of float32; refuse what is no table of rows.

    An array of objects holds a row in each; one that does not fit becomes a row of NaN (P1). So do
    all of them where none fits: a batch of one row must not be refused for what the row holds.

    >>> as_rows(np.array([[0.25, 0.5], [np.nan, 7]]), actions=2)
    array([[0.25, 0.5 ],
           [ nan, 1.  ]], dtype=float32)
    """
    if losses.dtype == object and losses.ndim == 1 and len(losses):
        try:
            table = np.asarray(losses.tolist())
        except ValueError:  # uneven rows
            table = losses
        if table.dtype.kind in "fiub" and table.shape == (len(losses), actions):
            return as_float32(table, actions=actions)
        rows = [as_float32(row, actions=actions) for row in losses]
        nothing = np.full((1, actions), np.nan, dtype=np.float32)
        return np.concatenate([row if len(row) == 1 else nothing for row in rows])
    if losses.ndim != 2 or losses.dtype.kind not in "fiub":
        got = f"{losses.dtype} of {losses.ndim} axes"
        raise InvalidConfig(
            "losses", "no table", expected="a row of K numbers for each slot", got=got
        )
    return as_float32(losses, actions=losses.shape[1])


def as_single(loss: object, *, where: str = "loss") -> float:
    """One observation's loss as a number, NaN for None; refuse what no loss can be.

    Only the type is judged, as in `as_vector`.

    >>> as_single(0.25), as_single(None)
    (0.25, nan)
    >>> as_single("0.25")
    Traceback (most recent call last):
    streamdp.core.errors.InvalidConfig: loss: no number; expected one number, or None, got str
    """
    if type(loss) is float:
        return loss
    if loss is None:
        return np.nan
    if isinstance(loss, str | bytes) or not hasattr(loss, "__float__") or np.ndim(loss):  # type: ignore[arg-type]
        raise InvalidConfig(
            where, "no number", expected="one number, or None", got=type(loss).__name__
        )
    return float(as_float32([loss], actions=1)[0, 0])


def _is_raw(losses: object) -> bool:
    """Whether these are bytes, which numpy would take for numbers from 0 to 255."""
    if isinstance(losses, memoryview):
        return losses.format in ("b", "B", "c")
    return isinstance(losses, bytearray)


def quantise(losses: NDArray[np.float32]) -> tuple[Ints, Bools]:
    """Rows of losses on the grid, and which rows were null: the definition.

    >>> grid, null = quantise(np.array([[0.25, 7.0], [np.nan, 0.0]], dtype=np.float32))
    >>> (grid / UNIT).tolist(), null.tolist()
    ([[0.25, 1.0], [0.5, 0.5]], [False, True])
    """
    null = np.isnan(np.where(np.isfinite(losses), 0.0, np.nan).sum(axis=1))
    usable = np.where(null[:, None], np.float32(0.5), losses)
    grid = np.rint(np.clip(usable, 0.0, 1.0).astype(np.float64) * UNIT).astype(np.int64)
    return grid, null


class Quantiser:
    """The fast path: float32 rows → rows whose uint32 bits are grid values plus a constant.

    y = x + 8 rounds a float32 x in [0, 1] to the 2**-20 grid in one pass, because the distance of
    neighbouring floats in [8, 16) is 2**-20; the bits of y, as an integer, are then a constant plus
    the grid value. Clipping after the addition gives the same result as clipping before it. Bad
    values take the same steps as good ones, except that writing the null loss takes time for each
    bad row. Wall-clock time is outside the theorem.
    """

    __slots__ = ("_shifted", "_zeros")

    def __init__(self, actions: int) -> None:
        rows = max(1, _CHUNK_BYTES // (4 * actions))
        self._shifted = np.empty((rows, actions), dtype=np.float32)
        self._zeros = np.zeros(actions, dtype=np.float32)
        self._check_arithmetic()

    def _check_arithmetic(self) -> None:
        """Refuse a numpy in which 0·∞ is not NaN: a missed null would move sums by thousands."""
        row = np.ones((1, len(self._zeros)), dtype=np.float32)
        for at, bad in ((0, np.nan), (-1, np.inf), (len(self._zeros) // 2, -np.inf)):
            row[0, at] = bad
            shifted, null = self.shift(row)
            row[0, at] = 1
            if not (null.all() and (shifted == _NULL_SHIFTED).all()):
                raise InvalidConfig(
                    f"numpy {np.__version__}",
                    "its float32 arithmetic is not that of IEEE 754",
                    expected="0·∞ to be NaN",
                    got="a number",
                )

    @property
    def chunk(self) -> int:
        """How many rows `shift` takes at most."""
        return len(self._shifted)

    def shift_at(
        self, losses: NDArray[np.float32], places: Ints
    ) -> tuple[NDArray[np.float32], Bools]:
        """`shift` of the rows at these places."""
        gathered = self._shifted[: len(places)]
        np.take(losses, places, axis=0, out=gathered, mode="clip")  # the mode avoids a copy
        return self.shift(gathered)

    def shift(self, losses: NDArray[np.float32]) -> tuple[NDArray[np.float32], Bools]:
        """At most `chunk` rows as 8 + grid value (valid until the next call); which were null."""
        n = len(losses)
        shifted = self._shifted[:n]
        with np.errstate(invalid="ignore", over="ignore"):
            # Σ 0·x is NaN where a value is not finite, else 0
            null = np.isnan(np.einsum("ij,j->i", losses, self._zeros))
            np.add(losses, _EIGHT, out=shifted)
            shifted.clip(_EIGHT, _NINE, out=shifted)
        shifted[null] = _NULL_SHIFTED
        return shifted, null

    def single(self, losses: NDArray[np.float32]) -> tuple[Ints, Bools]:
        """One row on the grid, and whether it was null: `shift` without what many rows need."""
        null = ~np.logical_and.reduce(np.isfinite(losses), axis=1)
        if null[0]:  # adding to a signalling NaN would make numpy warn, of content (P8)
            shifted = np.full_like(losses, _NULL_SHIFTED)
        else:
            shifted = np.minimum(np.maximum(losses + _EIGHT, _EIGHT), _NINE)
        return (shifted.view(np.int32) - _EIGHT_AS_BITS).astype(np.int64), null


def column_sums(quantiser: Quantiser, losses: NDArray[np.float32]) -> tuple[Ints, Bools]:
    """Exact sums over rows of any number of float32 losses, and which rows were null."""
    sums = np.zeros(losses.shape[1], dtype=np.int64)
    nulls = np.empty(len(losses), dtype=np.bool_)
    chunk = min(quantiser.chunk, _MOST_ROWS_A_CHUNK)
    for begin in range(0, len(losses), chunk):
        shifted, null = quantiser.shift(losses[begin : begin + chunk])
        nulls[begin : begin + len(null)] = null
        sums += grid_sums(shifted)
    return sums, nulls


def grid_sums(shifted: NDArray[np.float32]) -> Ints:
    """Column sums, in grid units, of at most 4095 rows of 8 + grid value."""
    rows, actions = shifted.shape
    fold = min(rows, max(1, _WIDE // actions))  # narrow rows are added side by side
    even = rows - rows % fold
    bits = shifted.view(np.uint32)
    wide = np.add.reduce(bits[:even].reshape(-1, fold * actions), axis=0, dtype=np.uint32)
    wrapped = np.add.reduce(wide.reshape(fold, actions), axis=0, dtype=np.uint32)
    wrapped += np.add.reduce(bits[even:], axis=0, dtype=np.uint32)
    return unshift(wrapped, np.array(rows)).astype(np.int64)


def unshift(wrapped: NDArray[np.uint32], counts: Ints) -> NDArray[np.uint32]:
    """Sums of the bits of `counts` shifted rows without their constants, modulo 2**32."""
    offset = (counts * _EIGHT_AS_BITS % 2**32).astype(np.uint32)
    return np.subtract(wrapped, offset, dtype=np.uint32)


def shares_of(rewards: ArrayLike, most: float) -> NDArray[np.float32]:
    """Each reward as a share of `most`, the largest that counts; NaN where it is not finite.

    Clipping bounds the sensitivity: whatever one event earned, it moves a sum by at most 1.

    >>> shares_of([50.0, 1e300, -3.0, np.inf], 200.0).tolist()
    [0.25, 1.0, 0.0, nan]
    """
    with np.errstate(over="ignore", invalid="ignore"):  # a warning would tell of content (P8)
        exact = np.asarray(rewards, dtype=np.float64)
        clipped = np.clip(exact / most, 0.0, 1.0)
        return np.where(np.isfinite(exact), clipped, np.nan).astype(np.float32)


def share_of(reward: float, most: float) -> float:
    """The share of one reward: what `shares_of` says of it, without an array.

    >>> [share_of(reward, 200.0) for reward in (50.0, 1e300, -3.0)]
    [0.25, 1.0, 0.0]
    """
    return min(1.0, max(0.0, reward / most))


def centred_gains(losses: NDArray[np.float32]) -> Ints:
    """The gain 1/2 − loss of each loss, in grid units; an unusable loss has the gain 0.

    >>> centred_gains(np.array([0.25, 7.0, np.nan], dtype=np.float32)) / UNIT
    array([ 0.25, -0.5 ,  0.  ])
    """
    grid, _ = quantise(losses.reshape(-1, 1))
    return NULL - grid[:, 0]


def gains_of(outcomes: ArrayLike, content: str, most: float = 1.0) -> Ints:
    """The gain 1/2 − loss of each outcome, in grid units, as live: of a `loss`, or of a `reward`.

    Rewards count up to `most`; an unusable outcome has the gain 0.

    >>> gains_of([150.0, np.nan], "reward", 200.0) / UNIT
    array([0.25, 0.  ])
    """
    gains = centred_gains(shares_of(outcomes, most))
    return -gains if content == "reward" else gains  # 1/2 − loss is reward − 1/2


def centred_gain(loss: float) -> int:
    """The gain of one loss: what `centred_gains` says of it, without an array.

    >>> [centred_gain(loss) / UNIT for loss in (0.25, 7.0, np.nan)]
    [0.25, -0.5, 0.0]
    """
    if not isfinite(loss):
        return 0
    return NULL - round(float(np.float32(min(max(loss, 0.0), 1.0))) * UNIT)  # half to even, as rint
