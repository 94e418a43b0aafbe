"""Tells how deeply a JSON text is nested, which must be known before it is decoded.

A recursive decoder gives up on deep nesting when *its caller's* stack is nearly used up: the same
record, with 600 brackets in a field that nobody reads, was decoded from a shallow stack and refused
from a deep one. Then the record's loss is not a function of the record, and a rebuild could arrive
at other sums than those that a release was drawn from. So we set a fixed limit, far below any
stack's: a text nested more deeply than `MAX_NESTING` is unusable, everywhere.

The check takes next to no time for ordinary records: a text of at most `SHORT` bytes cannot use up
the stack, and a text whose last opening bracket comes early is not deep. Only other texts are
checked bracket by bracket.
"""

from __future__ import annotations

import re

import numpy as np

MAX_NESTING = 128
"""The deepest nesting of a usable record; an event of ours needs 2."""

SHORT = 2 * MAX_NESTING
"""Bytes. A valid text of this length is nested at most `MAX_NESTING` deep, as brackets close; in an
invalid one a decoder goes down at most this far before it notices."""

_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
# Possessive, and matching unterminated strings too: linear in the length for any bytes.
_ALL_BUT_BRACKETS = bytes(sorted(set(range(256)) - set(b"[]{}")))


def too_deep(text: bytes) -> bool:
    """Whether a valid JSON text is nested more deeply than `MAX_NESTING`.

    >>> too_deep(b"[" * 129 + b"]" * 129), too_deep(b"[" * 128 + b" " * 128 + b"]" * 128)
    (True, False)
    """
    if len(text) <= SHORT:
        return False
    if text.rfind(b"[") < MAX_NESTING and text.rfind(b"{") < MAX_NESTING:
        return False
    if text.count(b"[") + text.count(b"{") <= MAX_NESTING:
        return False
    brackets = _STRING.sub(b"", text).translate(None, _ALL_BUT_BRACKETS)
    codes = np.frombuffer(brackets, dtype=np.uint8)
    opening = (codes == ord("[")) | (codes == ord("{"))
    depth = np.cumsum(np.where(opening, 1, -1))
    return bool(len(depth) and depth.max() > MAX_NESTING)


def pruned(text: bytes) -> bytes:
    """A JSON text with a 0 in place of whatever is nested more deeply than `MAX_NESTING`.

    >>> pruned(b"[" * 200 + b"]" * 200) == b"[" * 128 + b"0" + b"]" * 128
    True
    """
    if not too_deep(text):
        return text
    without_strings = _STRING.sub(lambda string: b" " * len(string[0]), text)
    codes = np.frombuffer(without_strings, dtype=np.uint8)
    opening, closing = np.isin(codes, list(b"[{")), np.isin(codes, list(b"]}"))
    deep = np.cumsum(opening.astype(np.int64) - closing) > MAX_NESTING
    kept = np.frombuffer(text, dtype=np.uint8).copy()
    kept[1:][deep[:-1] & ~deep[1:]] = ord("0")
    return kept[~deep].tobytes()
