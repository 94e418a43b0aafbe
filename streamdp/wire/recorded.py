"""The value of a recorded release's entry: a head, and the final bytes of its lines.

The head has one size for all kinds, so that one call reads the heads of many entries (a restart may
find millions). A checksum covers the entry's key, the head and the lines: an entry that fits it is
what was written, and a rebuild need not read our own JSON again.

Little-endian. `table` and `list` are places for what a release may be computed under: a table of
contexts, and a list of actions; 0 is the only one so far. `numbers` and `policy` say where the
base64 of sums and of a policy begin in their lines; 0 where there is none.
"""

from __future__ import annotations

from binascii import a2b_base64
from collections.abc import Sequence
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from streamdp.core.arrays import Bools, Ints
from streamdp.core.errors import StateMismatch
from streamdp.core.releases import SPAN, names_of_sums
from streamdp.wire.state_version import MIN_READER, VERSION, refuse_readers

Heads = NDArray[Any]
"""Records of `HEAD`."""

HEAD = np.dtype([
    ("version", "u1"), ("min_reader", "u1"), ("kind", "u1"), ("table", "u1"), ("list", "<u4"),
    *((name, "<i8") for name in (*SPAN, "ordinal", "value", "in_force")),
    ("ledger", "<u4"), ("action", "<u4"), ("numbers", "<u4"), ("policy", "<u4"), ("crc", "<u4"),
])  # fmt: skip
SIZE = HEAD.itemsize
_COVERED = SIZE - 4  # bytes of the head that the checksum covers
_PARTS, _WHOLE = np.dtype([("covered", f"V{_COVERED}"), ("crc", "V4")]), np.dtype(f"V{SIZE}")

DRAWN, BLOCK, ESTIMATE, CARRIED = 0, 1, 2, 255
"""What `kind` says: an opening that was drawn, what a block ends with, an estimate, an opening that
was carried over (whose line says from what)."""

_POLICY = b'"policy":"'
_SUMS = {pairs: b'"%b":"' % names_of_sums(pairs=pairs)[0].encode() for pairs in (False, True)}


def sealed(
    heads: Heads,
    places: Sequence[bytes],
    ledgers: Sequence[bytes],
    actions: Sequence[bytes | None],
    *,
    pairs: bool | None,
) -> list[bytes]:
    """The values of entries with these keys and lines; `heads` lacks what follows from the lines.

    `pairs`: what the releases' sums are of; None if they have none.
    """
    heads["version"], heads["min_reader"] = VERSION, MIN_READER
    texts = [line or b"" for line in actions]
    heads["ledger"], heads["action"] = list(map(len, ledgers)), list(map(len, texts))
    if pairs is not None:
        heads["numbers"] = [_behind(line, _SUMS[pairs]) for line in ledgers]
        heads["policy"] = [_behind(line, _POLICY) for line in texts]
    begun = map(crc32, heads.view(_PARTS)["covered"].tolist(), map(crc32, places))
    heads["crc"] = list(map(crc32, texts, map(crc32, ledgers, begun)))
    whole = heads.view(_WHOLE).tolist()
    return list(map(b"".join, zip(whole, ledgers, texts, strict=True)))


def _behind(line: bytes, name: bytes) -> int:
    """Where a value of this name begins; 0 if there is none."""
    at = line.rfind(name)
    return 0 if at < 0 else at + len(name)


def heads_of(places: Sequence[bytes], values: Sequence[bytes]) -> tuple[Heads, Bools]:
    """The heads of many entries, and which of these are whole and may be read by this version."""
    heads = np.frombuffer(b"".join([value[:SIZE].ljust(SIZE, b"\0") for value in values]), HEAD)
    whole = (heads["version"] > 0) & (heads["min_reader"] <= VERSION)
    sizes = heads["ledger"].astype(np.int64) + heads["action"] + SIZE
    whole &= sizes == np.fromiter(map(len, values), dtype=np.int64, count=len(values))
    checks = heads["crc"].tolist()
    for at in np.flatnonzero(whole).tolist():
        whole[at] = _check(places[at], values[at]) == checks[at]
    return heads, whole


def head_of(place: bytes, value: bytes, *, where: str) -> np.void:
    """The head of one entry; `StateMismatch` if it is damaged or written by a newer streamdp."""
    heads, whole = heads_of([place], [value])
    if not whole[0]:
        if len(value) >= SIZE and _check(place, value) == heads["crc"][0]:
            refuse_readers(int(heads["version"][0]), int(heads["min_reader"][0]), where=where)
        expected = f"layout version {VERSION}"
        raise StateMismatch(
            where, "damaged", expected=expected, got=f"{len(value)} bytes of another"
        )
    head: np.void = heads[0]
    return head


def _check(place: bytes, value: bytes) -> int:
    return crc32(value[SIZE:], crc32(value[:_COVERED], crc32(place)))


def lines_of(head: np.void, value: bytes) -> tuple[bytes, bytes | None]:
    """The ledger's line, and the one for the actions topic."""
    end = SIZE + int(head["ledger"])
    return value[SIZE:end], value[end:] or None


def numbers_of(heads: Heads, values: Sequence[bytes], *, width: int) -> tuple[Ints, Bools]:
    """The numbers that were drawn in whole entries, and which entries have so many, or none."""
    numbers = np.zeros((len(values), width), dtype=np.int64)
    numbers[:, 0] = heads["value"]
    there, fits = np.flatnonzero(heads["numbers"]), np.ones(len(values), dtype=np.bool_)
    begins = (heads["numbers"][there].astype(np.int64) + SIZE).tolist()
    drawn = [_sums(values[at], begin) for at, begin in zip(there.tolist(), begins, strict=True)]
    fits[there] = [len(of) == 8 * width for of in drawn]
    right = [of for of in drawn if len(of) == 8 * width]
    numbers[there[fits[there]]] = np.frombuffer(b"".join(right), "<i8").reshape(-1, width)
    return numbers, fits


def _sums(value: bytes, at: int) -> bytes:
    """The sums that begin here: the first numbers, and the second ones under their name."""
    first, _, _, _, second, _ = value[at:].split(b'"', 5)
    return a2b_base64(first) + a2b_base64(second)


def policies_of(
    heads: Heads, values: Sequence[bytes], *, arms: int
) -> tuple[NDArray[np.uint32], Bools]:
    """The policies in whole entries, and which entries have one of so many arms."""
    begin = (heads["policy"].astype(np.int64) + heads["ledger"] + SIZE).tolist()
    pairs = zip(values, begin, strict=True)
    policies = [a2b_base64(value[at : value.index(b'"', at)]) for value, at in pairs]
    fits = np.array([len(policy) == 4 * arms for policy in policies], dtype=np.bool_)
    fits &= heads["policy"] > 0
    nothing = bytes(4 * arms)
    kept = [of if right else nothing for of, right in zip(policies, fits.tolist(), strict=True)]
    return np.frombuffer(b"".join(kept), "<u4").reshape(len(values), arms), fits
