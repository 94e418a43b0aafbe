"""The input topic of a feedback stream as a log: values, the action header, the propensity header.

Records are read and decoded as the service does (`wire.feedback`): a header that is missing, given
twice or unknown is no arm, and an unusable outcome is the loss 1/2. The propensity is a header
beside the action's, because it is as public as the policy that it comes from: decimal text
(``pscore: 0.25``), and for frames one little-endian float32 a row under the name with an s
(``pscores``). An unreadable propensity counts as missing.

A request to which not all actions were allowed, by the stream's list or by itself, has their digest
(``streamdp-filter``). Which actions they are is found among the masks that exclude few
(`masks_by_digest`); if they are not, the propensity counts as missing, for what another policy
would have shown is unknown. A request without a digest might be shown every action that there was:
a name that was added later was not, which the lists of the stream's ledger say, if they are given.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from math import comb

import numpy as np

from streamdp.assembly.public import FILTER_HEADER, LIST_HEADER, only
from streamdp.client.filtering import digest
from streamdp.core.arrays import Floats
from streamdp.core.events import NO_ARM, numbered
from streamdp.lab.logs import ReadOptions
from streamdp.lab.logs.log import wrong
from streamdp.lab.logs.shown import Mask, Piece, ShownLog, joined
from streamdp.lab.logs.shown_files import PSCORE
from streamdp.lab.logs.taken_lists import NO_LISTS, TakenLists
from streamdp.lab.logs.topics import addressed, records_of
from streamdp.ports import Headers, Records, StreamTopics, Technology
from streamdp.service.sources import up_to_date
from streamdp.wire.feedback import Feedback
from streamdp.wire.formats import Format, configure

_MOST_MASKS = 64
"""Different ones in a log: each block has sums for each of them."""


def open_topic(
    where: str,
    how: ReadOptions,
    feedback: Feedback | None,
    *,
    pscore: str = PSCORE,
    taken: TakenLists = NO_LISTS,
) -> ShownLog:
    """The log in the topic of a name such as ``technology:address#topic``."""
    _, technology, topic = addressed(where, how)
    return topic_log(technology, topic, how, feedback, pscore=pscore, taken=taken, name=where)


def topic_log(
    technology: Technology,
    topic: str,
    how: ReadOptions,
    feedback: Feedback | None,
    *,
    pscore: str = PSCORE,
    taken: TakenLists = NO_LISTS,
    name: str,
) -> ShownLog:
    """The log in the input topic of an open technology."""
    if feedback is None or how.actions is None:
        expected = (
            "--actions and --content (reward or loss), as the stream's configuration has them"
        )
        raise wrong(name, "a topic does not name them", expected=expected, got="none")
    format_ = up_to_date(configure(how.format, feedback=feedback, options=how.format_options))
    topics = StreamTopics(app="replay", stream=topic, input=topic, headers=True)
    with closing(records_of(technology, topics)) as batches:
        filters = Filters(how.actions, [(True,) * len(how.actions)], taken)
        pieces = [_piece(records, format_, pscore, filters) for records in batches]
    return joined(name, how.actions, pieces, feedback.contexts, tuple(filters.masks))


@dataclass(frozen=True, slots=True)
class Filters:
    """The masks of a log's requests, as they first occur; the first of all allows everything."""

    actions: tuple[str, ...]
    masks: list[Mask]
    taken: TakenLists = NO_LISTS

    def number(self, headers: Headers, partition: int, offset: int) -> int:
        """The number of a request's mask; -1 if it is not known."""
        given = [value for name, value in headers if name == FILTER_HEADER]
        there = len(self.actions)
        if self.taken.columns:
            ordinal = only(headers, LIST_HEADER) or b""
            knew = int(ordinal) if ordinal.isdigit() else None
            there = self.taken.known(partition, offset, knew)
        mask: Mask | None = (True,) * there
        if given:
            text = (given[0] or b"").decode(errors="replace")
            every = there, len(self.actions)  # a reader may know names that owners do not yet
            mask = next(filter(None, (masks_by_digest(many).get(text) for many in every)), None)
        if mask is None or len(given) > 1:
            return -1
        mask = (*mask, *[False] * (len(self.actions) - len(mask)))
        if mask not in self.masks:
            if len(self.masks) == _MOST_MASKS:
                return -1
            self.masks.append(mask)
        return self.masks.index(mask)


_MOST_DIGESTS = 1 << 16  # of masks that requests may name


@lru_cache(maxsize=4)
def masks_by_digest(actions: int) -> Mapping[str, tuple[bool, ...]]:
    """The masks of so many actions by their digests, in hex: of few actions all, of many those
    that exclude the fewest.

    >>> masks_by_digest(2)[digest([True, False]).hex()]
    (True, False)
    >>> len(masks_by_digest(16)), len(masks_by_digest(50)) == 1 + 50 + 50 * 49 // 2 + 19600
    (65535, True)
    """
    masks = dict[str, tuple[bool, ...]]()
    for few in range(actions):
        if len(masks) + comb(actions, few) > _MOST_DIGESTS:
            break
        for out in combinations(range(actions), few):
            mask = tuple(at not in out for at in range(actions))
            masks[digest(mask).hex()] = mask
    return masks


def _piece(records: Records, format_: Format, pscore: str, filters: Filters) -> Piece:
    read = format_.decode(list(records.values), records.headers)
    slots = read.slots
    partition = records.partition.number
    numbers = [
        filters.number(headers, partition, offset)
        for headers, offset in zip(records.headers, records.offsets, strict=True)
    ]
    masks = np.repeat(numbers, slots)
    propensities = _propensities(records.headers, slots.tolist(), pscore, framed=format_.frames)
    propensities[masks < 0] = np.nan
    played = read.content["played"]
    assert format_.feedback is not None
    arms = np.maximum(masks, 0) * len(format_.feedback.arms)
    which = np.repeat(np.arange(len(slots)), slots)
    offsets = np.array(records.offsets, dtype=np.int64)[which]
    return Piece(
        partition,
        *numbered([records.keys[at] for at in which.tolist()]),
        offsets,
        np.where(played == NO_ARM, NO_ARM, played + arms).astype(np.int32),
        read.content["gain"].astype(np.int32),
        propensities,
    )


def _propensities(
    headers: Sequence[Headers], slots: Sequence[int], name: str, *, framed: bool
) -> Floats:
    """The propensity of each slot; NaN where it is missing or unusable."""
    wanted = f"{name}s" if framed else name
    read = _in_frame if framed else _in_record
    parts = []
    for pairs, rows in zip(headers, slots, strict=True):
        given = [value for key, value in pairs if key == wanted]
        value = given[0] if len(given) == 1 else None
        parts.append(read(value, rows))
    propensities = np.concatenate(parts) if parts else np.zeros(0)
    propensities[~((propensities > 0) & (propensities <= 1))] = np.nan
    return propensities


def _in_record(value: bytes | None, rows: int) -> Floats:
    try:
        return np.full(rows, float(value or b""))
    except ValueError:
        return np.full(rows, np.nan)


def _in_frame(value: bytes | None, rows: int) -> Floats:
    if value is None or len(value) != 4 * rows:
        return np.full(rows, np.nan)
    return np.frombuffer(value, dtype="<f4").astype(np.float64)
