"""Draws an action from a policy for one request: the same answer in every process.

A feedback stream publishes K probabilities for each key, in parts of 2^24. A request's action is
drawn by a hash: the same request gets the same answer under the same release in every process, and
anybody who knows salt, release and request can repeat the draw:

1. The hashed text is, in this order: the stream's salt, the release's stream, partition, key,
   epoch, born, block and kind, and the request's id. Each is coded as its length (uint32,
   little-endian) and its bytes: UTF-8 for text, decimal digits for numbers, the key as it is. The
   null key is only the length 2^32 − 1.
2. The first three bytes of its SHA-256, read as a little-endian number, are a part.
3. The parts are dealt out in the actions' order; the action that has this part is drawn. In a
   stream with contexts, these are the parts of the request's cell.
4. A request that excludes actions, or one to which the newest list allows what the policy's did
   not, draws from what is allowed (`client.filtering`), and the hashed text ends with the filter's
   digest.
5. A key without a release, once the topic was read to its end, has equal parts for all actions.
   They are drawn like those of a release of partition, epoch, born and block 0 and kind `uniform`.

`choices.tsv`, beside this file, has draws for other languages' readers to be held against.

The hash contains nothing of a person beyond the request's id: give each request its own id. Keep
the choice (action, probability, release) with the request: policies change, so a later draw for the
same request may differ, and feedback must name the action that was shown.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Collection, Iterable
from functools import lru_cache
from hashlib import sha256

import numpy as np
from msgspec import structs

from streamdp.client.answers import Answer, Held, Names, Protected, Why
from streamdp.client.filtering import allowed, digest
from streamdp.core.arrays import Bools
from streamdp.core.evidence.policy import PARTS, Policy, uniform_policy
from streamdp.core.releases import Identity
from streamdp.ports import Key

UNIFORM = "uniform"
"""The kind of release that equal parts are drawn like, where a key has none."""

_NULL = b"\xff\xff\xff\xff"


def held(policy: Policy, prefix: bytes, names: Names, paused: tuple[str, ...] = ()) -> Held:
    """A policy in the form that a cache keeps: parts added up in each cell, four bytes each."""
    ends = np.cumsum(policy.reshape(names.cells, -1), axis=1, dtype=np.uint32)
    return Held(array("I", ends.tobytes()), prefix, names, paused)


def even(stream: str, key: Key, names: Names) -> Held:
    """Equal parts for all actions, in each cell: what is in force for a key without a release."""
    release = Identity(stream, 0, key, 0, 0, 0, UNIFORM)
    ends = _even_ends(len(names.actions), names.cells)
    return Held(ends, hashed_prefix(names.salt, release), names)


@lru_cache(maxsize=64)
def _even_ends(actions: int, cells: int) -> array[int]:
    ends = np.cumsum(uniform_policy(actions), dtype=np.uint32)
    return array("I", np.tile(ends, cells).tobytes())


def choose(
    answer: Answer,
    request: str,
    cell: int = 0,
    context: str | Protected = "",
    exclude: Collection[str] = (),
    back: Collection[str] = (),
    added: tuple[str, ...] = (),
) -> Answer:
    """Draw for a request in a cell from the policy in force for its key; the fallback without one.

    The hash does not know the cell: nothing of a context leaves but the action that is shown.
    `back` has the names that a newer list allows again, `added` those that it has and the policy
    does not: they come after the policy's, with no parts, and are back too.
    """
    policy = answer.held
    if policy is None:
        return answer if context == "" else structs.replace(answer, context=context)
    name, ends, actions = request.encode(), policy.ends, policy.names.actions
    text = policy.prefix + len(name).to_bytes(4, "little") + name
    first, of_filter = cell * len(actions), ""
    if added:
        ends, first = array("I", [*ends[first : first + len(actions)], *[PARTS] * len(added)]), 0
        actions, back = (*actions, *added), {*back, *added}
    if exclude or back:
        mask = [action not in exclude for action in actions]
        if not any(mask):
            return nothing_allowed(answer, context)
        new = [
            is_allowed and action in back for is_allowed, action in zip(mask, actions, strict=True)
        ]
        if not all(mask) or any(new):
            ends, first = array("I", allowed(ends[first : first + len(actions)], mask, new)), 0
            text, of_filter = text + _coded([digest(mask)]), digest(mask).hex()
    part = int.from_bytes(sha256(text).digest()[:3], "little")
    arm = bisect_right(ends, part, first, first + len(actions))
    share = ends[arm] - ends[arm - 1] if arm > first else ends[arm]
    where = answer.partition, answer.epoch, answer.born, answer.block, answer.stop
    shown = actions[arm - first]
    choice = Answer(shown, answer.why, *where, share / PARTS, None, context, of_filter)
    under = answer.computed_under
    return structs.replace(choice, computed_under=under) if under else choice


def settled(
    answer: Answer,
    actions: Iterable[str],
    exclude: Collection[str],
    context: str | Protected = "",
) -> Answer:
    """An answer without a policy: the fallback if it is allowed, else the first action that is."""
    if answer.action not in exclude:
        return answer if context == "" else structs.replace(answer, context=context)
    for action in actions:
        if action not in exclude:
            return structs.replace(answer, action=action, context=context)
    return nothing_allowed(answer, context)


def nothing_allowed(answer: Answer, context: str | Protected) -> Answer:
    """The answer where every action is excluded.

    It keeps its release: which one it was must not depend on what a private request excluded.
    """
    return structs.replace(
        answer, action="", why=Why.NOTHING_ALLOWED, probability=1.0, held=None, context=context
    )


def chosen_arm(
    policy: Policy,
    release: Identity,
    request: str,
    *,
    salt: str,
    mask: Bools | None = None,
    back: Bools | None = None,
) -> tuple[int, float]:
    """The index of the drawn action and its probability: the same draw, as audits call it.

    >>> policy = np.array([0, PARTS], dtype=np.uint32)
    >>> chosen_arm(policy, Identity("home", 0, b"fr", 1, 0, 0, "sums"), "r-1", salt="s")
    (1, 1.0)
    """
    names = Names(tuple(map(str, range(len(policy)))), salt)
    exclude = () if mask is None else {str(arm) for arm in np.flatnonzero(~mask)}
    came = () if back is None else {str(arm) for arm in np.flatnonzero(back)}
    kept = held(policy, hashed_prefix(salt, release), names)
    drawn = choose(Answer("", Why.PUBLISHED, held=kept), request, 0, "", exclude, came)
    return int(drawn.action), drawn.probability


def hashed_prefix(salt: str, release: Identity) -> bytes:
    """The bytes that are hashed in front of the request's id: one prefix for each release."""
    stream, partition, key, epoch, born, block, kind = release
    head = _coded([salt.encode(), stream.encode(), b"%d" % partition])
    middle = _NULL if key is None else _coded([key])
    numbers = [b"%d" % number for number in (epoch, born, block)]
    return head + middle + _coded([*numbers, kind.encode()])


def _coded(parts: Iterable[bytes]) -> bytes:
    return b"".join(len(part).to_bytes(4, "little") + part for part in parts)
