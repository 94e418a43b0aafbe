"""The judge: decides from published records alone whether a promise was broken.

It is independent of the service: it reads the input, the actions and the ledger, and folds the
input with an engine of its own. The promises for a partition:

1. There is exactly one ledger line for each release, and exactly one action record, with the same
   action, for each action.
2. The blocks of each learner are consecutive from 0, or from the first block in a carried opening,
   and their slots tile the input from there on.
3. Ledger lines have the ordinals 1, 2, 3 ….
4. Under seeded randomness the ledger is the offline fold of the input, byte for byte and in the
   same order over all keys; so are the policies that a feedback stream publishes.
5. A reader of uncommitted data never saw two different releases of one identity.
6. Each policy of a feedback stream is the one that follows from the released sums before it.
7. A feedback stream's counts are those of the input's headers, block by block.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

import numpy as np
from msgspec import UNSET

from streamdp.core.engine import Engine
from streamdp.core.errors import InvalidConfig, StateMismatch
from streamdp.core.events import OPENING, SUMS, Batch
from streamdp.core.releases import Identity
from streamdp.ports import Partition, Published
from streamdp.wire.lines import (
    ENDS_BLOCK,
    ActionLine,
    CarriedOver,
    Charge,
    LedgerLine,
    LineOfKey,
    PolicyLine,
    TakenList,
    from_base64,
    under_lists,
)
from streamdp.wire.published import Lines, decode_in_force, decode_ledger
from streamdp.wire.retracing import Learners, Method, released_by, released_with

_PART_BYTES = 4  # of a policy for each action


@dataclass(frozen=True, slots=True)
class Evidence:
    """The records of one partition that can be seen from outside."""

    partition: Partition
    actions: Sequence[Published] = field(repr=False)  # committed
    ledger: Sequence[Published] = field(repr=False)  # committed
    seen: Sequence[bytes] = field(repr=False, default=())  # lines that were ever visible to anyone


def judge(evidence: Evidence) -> list[str]:
    """Violations of rules 1, 2, 3, 5 and 6; empty if the promise held."""
    lines = [decode_ledger(record.value) for record in evidence.ledger]
    charges = [line for line in lines if isinstance(line, Charge)]
    records = [decode_in_force(record.value) for record in evidence.actions]
    return [
        *_once(charges, records),
        *_policies(lines, records),
        *_tiles(charges),
        *_numbered(lines),
        *_one_face([*evidence.seen, *(record.value for record in evidence.ledger)]),
    ]


def judge_fold(
    evidence: Evidence, *, engine: Engine, lines: Lines, log: Iterable[Batch], whole: str
) -> list[str]:
    """The differences from the offline fold (rule 4); `whole` is "whole" or "prefix".

    The input topic's id in the first line is taken from that line: a fold cannot know it.
    """
    charged: list[bytes] = []
    shown_lines: list[bytes] = []
    first = decode_ledger(evidence.ledger[0].value).input_id if evidence.ledger else UNSET
    taken = {of.ordinal: (of, value) for of, value in _lists(evidence)}
    lists = [of for of, _ in taken.values()]
    for batch, listed in chain.from_iterable(under_lists(of, lists) for of in log):
        under = lines
        if listed is not None:
            paused = tuple(listed.without_part())
            under = replace(
                lines,
                shown=tuple(listed.actions), list_ordinal=listed.list_ordinal, paused=paused,
            )  # fmt: skip
        for release in engine.apply_batch(batch):
            while len(charged) + 1 in taken:  # nothing is drawn for it
                charged.append(taken[len(charged) + 1][1])
            words = under if charged else replace(under, input_id=first)
            charged.append(words.ledger(release, ordinal=len(charged) + 1))
            shown = under.action(release)
            shown_lines += [] if shown is None else [shown]
    while len(charged) + 1 in taken:
        charged.append(taken[len(charged) + 1][1])
    topics = [("ledger", charged, evidence.ledger)]
    if lines.learner:
        topics.append(("actions topic", shown_lines, evidence.actions))
    return [
        f"{evidence.partition}: the {topic} is not the fold of the input from line {at + 1} on:"
        f" {len(expected)} lines expected, {len(records)} found"
        for topic, expected, records in topics
        for at in _first_difference(expected, [record.value for record in records], whole=whole)
    ]


def _lists(evidence: Evidence) -> Iterator[tuple[TakenList, bytes]]:
    """The ledger's lines that take a list."""
    for record in evidence.ledger:
        line = decode_ledger(record.value)
        if isinstance(line, TakenList):
            yield line, record.value


def _first_difference(expected: list[bytes], got_lines: list[bytes], *, whole: str) -> list[int]:
    """Where two lists of lines begin to differ, if they do."""
    if (expected[: len(got_lines)] if whole == "prefix" else expected) == got_lines:
        return []
    pairs = enumerate(zip(expected, got_lines, strict=False))
    first = next((at for at, (wanted, got) in pairs if wanted != got), None)
    return [min(len(expected), len(got_lines)) if first is None else first]


def judge_counts(evidence: Evidence, *, engine: Engine, log: Iterable[Batch]) -> list[str]:
    """The blocks whose counts are not those of the input (rule 7), for unseeded streams.

    `engine` has the same learner; its draws are ignored.
    """
    wanted: dict[Identity, list[int]] = {}
    for batch in log:
        for release in engine.apply_batch(batch):
            if release.sums is not None:
                wanted[release.identity] = release.sums[1].tolist()
    published = {}
    for record in evidence.ledger:
        line = decode_ledger(record.value)
        sums = line.released() if isinstance(line, Charge) and line.kind == SUMS else None
        if isinstance(line, Charge) and sums is not None:
            published[line.identity] = sums[len(sums) // 2 :].tolist()
    return [
        f"{identity}: counts that are not the input's"
        for identity, counts in published.items()
        if wanted.get(identity) != counts
    ]


def _policies(lines: Sequence[LedgerLine], records: Sequence[LineOfKey]) -> Iterator[str]:
    """Compute policies again from the sums of their learners."""
    policies = {
        record.identity: (from_base64(record.policy, "policy"), record.paused)
        for record in records
        if isinstance(record, PolicyLine)
    }
    tables: dict[tuple[int, Method], Learners] = {}
    rows: dict[Identity, int] = {}
    lists = [line for line in lines if isinstance(line, TakenList)]
    for line in lines:
        if not isinstance(line, Charge) or line.learner is UNSET:
            continue
        method, learner = Method.of(line), line.identity._replace(block=0, kind="")
        learners = tables.setdefault((line.epoch, method), Learners(method))
        row, due = rows.setdefault(learner, len(rows)), line.block + 1
        taken = [
            of for of in lists if of.epoch == line.epoch and of.next_offset <= line.last_offset
        ]
        allowed = taken[-1].allowed() if taken else None
        try:
            if line.kind == OPENING:
                due = learners.begin(row, line, allowed)
            else:
                released, length = released_by(line, learners, row), line.stop - line.start
                learners.folded(np.array([row]), released[None], np.array([length]), allowed)
                kind = method.kind(learners.actions)
                assert kind is not None
                yield from (f"{line.identity}: {wrong}" for wrong in released_with(kind, line))
                if (line.start, line.stop) != tuple(
                    kind.schedule.starts(np.arange(line.block, line.block + 2))
                ):
                    yield f"{line.identity}: slots that are not its learner's"
            policy, paused = policies.get(line.identity, (None, UNSET))
            if policy is None:
                continue
            learners.count("in_force", len(policy) // _PART_BYTES)
            named = 0 if line.list_ordinal is UNSET else line.list_ordinal
            if named != (taken[-1].list_ordinal if taken else 0):
                yield f"{line.identity}: of list {named}, which does not hold for its records"
            if (paused or []) != (list(taken[-1].without_part()) if taken else []):
                yield f"{line.identity}: names without parts that are not its list's"
            computed = learners.policies(np.array([row]), np.array([due]), allowed)
            if computed[0].astype("<u4").tobytes() != policy:
                yield f"{line.identity}: a policy that does not follow from the sums"
        except (InvalidConfig, StateMismatch) as error:
            yield f"{line.identity}: {error}"


def _once(charges: Sequence[Charge], records: Sequence[LineOfKey]) -> Iterator[str]:
    lines: defaultdict[Identity, list[Charge]] = defaultdict(list)
    shown: defaultdict[Identity, list[LineOfKey]] = defaultdict(list)
    for line in charges:
        lines[line.identity].append(line)
    for record in records:
        shown[record.identity].append(record)
    for identity, same in lines.items():
        if len(same) != 1:
            yield f"{identity}: {len(same)} ledger lines"
        wanted = int(identity.kind in (OPENING, *ENDS_BLOCK))
        if len(shown[identity]) != wanted:
            yield f"{identity}: {len(shown[identity])} action records, not {wanted}"
        elif wanted and _differ(shown[identity][0], same[0]):
            yield f"{identity}: the action record and the ledger tell of different actions"
    yield from (
        f"{identity}: an action without a charge" for identity in shown.keys() - lines.keys()
    )


def _differ(record: LineOfKey, line: Charge) -> bool:
    """Whether an actions record and its ledger line tell of different actions."""
    return isinstance(record, ActionLine) and record.index != _standing(line)


def _standing(charge: Charge) -> object:
    """The action in force after a release: with a memory it may differ from the drawn one."""
    return charge.index if charge.in_force is UNSET else charge.in_force


def _tiles(charges: Sequence[Charge]) -> Iterator[str]:
    learners: defaultdict[Identity, list[Charge]] = defaultdict(list)
    for line in charges:
        learners[line.identity._replace(block=0, kind="")].append(line)
    for learner, lines in learners.items():
        if [line.kind for line in lines].count(OPENING) != 1 or lines[0].kind != OPENING:
            yield f"{learner}: does not begin with one opening"
        blocks = [line for line in lines if line.kind in ENDS_BLOCK]
        carried = lines[0].carried  # the first block of a learner that carries something over
        first = carried.first_block if isinstance(carried, CarriedOver) else 0
        number, stop, offset = first, lines[0].start, -1
        for line in blocks:
            if line.identity.block != number:
                yield f"{learner}: block {line.identity.block} where {number} was due"
            if line.start != stop or line.stop <= line.start:
                yield f"{learner}: slots [{line.start}, {line.stop}) where {stop} was due"
            if line.first_offset < offset or line.last_offset < line.first_offset:
                yield f"{learner}: block {number} reads records of the block before"
            number, stop, offset = number + 1, line.stop, line.last_offset


def _numbered(lines: Sequence[LedgerLine]) -> Iterator[str]:
    last = 0
    for line in lines:
        if line.ordinal != last + 1:
            yield f"ledger line {line.ordinal} where {last + 1} was due"
        last = line.ordinal


def _one_face(lines: Iterable[bytes]) -> Iterator[str]:
    """Check that no identity was seen with two releases."""
    observers: dict[Identity, object] = {}
    for value in lines:
        line = decode_ledger(value)
        if not isinstance(line, Charge):
            continue
        drawn = (line.index, line.units, line.sums, line.shown)
        if observers.setdefault(line.identity, drawn) != drawn:
            yield f"{line.identity}: seen with two different releases"
