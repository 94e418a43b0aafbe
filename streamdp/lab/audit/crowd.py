"""Does one event change a whole crowd's releases by at most its charge, whatever the priors?

Two keys' learners run through the shipped engine under transcripts of all their draws, and under
every content of one record; between records the engine is saved and rebuilt. A transcript's
probability is the product of the laws of its draws, each from the sums and the prior that the
engine gave that draw. Nothing is assumed about which event reaches which draw, by which prior or
pool: that is what is being checked.

Blocks are long enough that one vote is as strong evidence as a vote can be
(`evidence.crowd.longest_told`), and all slots but single ones are ties. So two votes already move a
prior far, and a draw that reads a content which it must not read moves far.

These lives have three blocks of a key. What an engine does later, in long blocks, for other keys
and where events come alone is compared with the log draw by draw (`crowd_stories`), and the
system's bits are looked at too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import product

import numpy as np

from streamdp.core.arrays import Floats, Ints
from streamdp.core.engine import Engine, Rebuilding, recorded
from streamdp.core.engine.draws import Drawn, Kept
from streamdp.core.errors import InvalidConfig
from streamdp.core.events import Key, LossBatch, Releases
from streamdp.core.evidence.control import NO_CONTROL, Control
from streamdp.core.evidence.crowd import Crowd, longest_told
from streamdp.core.evidence.groups import Groups
from streamdp.core.learners import Leader, learner_of
from streamdp.core.learners.leader import crowded, donating
from streamdp.core.randomness import Bits, SeededRandomness, SystemRandomness
from streamdp.core.schedule import Schedule
from streamdp.core.selection import Mechanism, Prior
from streamdp.lab.audit.crowd_stories import misdeeds_of_crowd
from streamdp.lab.audit.sweep import LONGEST
from streamdp.lab.audit.transcripts import TOLERANCE
from streamdp.lab.audit.verdict import Audit, Memo, structure_of

ACTIONS = ("a", "b")
KEYS: tuple[Key, ...] = (b"y", b"x")
APART = Control(Fraction(1, 10))
"""A control group that has the first of these keys and not the second."""

KINDS = ("partition", "groups", "control", "donate", "control+donate")
"""What a crowd may be: one for all keys, by groups, beside a control group, with a pool, and with a
pool beside a control group, whose keys donate nothing to it."""

_CONTENTS: tuple[tuple[int, int], ...] = ((0, 0), (0, 1), (1, 0), (1, 1))
_BLOCKS = 3
_FREE = 3  # draws that are enumerated; the others follow a fixed pattern
_REBUILT = (2, 6)  # the engine is rebuilt before these records


@dataclass(frozen=True)
class Forced:
    """A choice that follows a script, and notes the log-probability of each draw."""

    choose: Mechanism
    script: tuple[int, ...]
    logs: list[float] = field(default_factory=list, compare=False)

    @property
    def name(self) -> str:
        """That of the forced choice."""
        return self.choose.name

    @property
    def rate(self) -> Fraction:
        """That of the forced choice."""
        return self.choose.rate

    def select(self, sums: Ints, bits: Bits, prior: Prior | None = None) -> Ints:
        """The script's next action; one draw at a time."""
        (row,) = sums
        taken = self.script[len(self.logs)]
        self.logs.append(float(self.choose.log_probabilities(row, prior)[taken]))
        return np.array([taken])

    def log_probabilities(self, sums: Ints, prior: Prior | None = None) -> Floats:
        """The law of the forced choice."""
        return self.choose.log_probabilities(sums, prior)


def kinds_of(learner: Leader) -> tuple[str, ...]:
    """The kinds of crowd that a learner can have.

    >>> import streamdp as sd
    >>> actions = ["a", "b"]  # and a learner whose blocks do not count as a whole
    >>> thinned = {"noise": "exponential", "resample": "bernoulli"}
    >>> kinds_of(sd.noisy_leader(actions=actions, epsilon="1", **thinned))
    ('partition', 'groups', 'control')
    >>> kinds_of(sd.prefix_softmax(actions=actions, epsilon="1"))
    ()
    """
    try:
        together = crowded(learner)
    except InvalidConfig:
        return ()  # it does not select by permute_and_flip
    try:
        donating(together)
    except InvalidConfig:
        return tuple(kind for kind in KINDS if not kind.endswith("donate"))
    return KINDS


def audit_crowd(
    learner: Leader, kind: str, *, longest: int = LONGEST, memo: Memo | None = None
) -> Audit:
    """Check that a crowd of this kind adds nothing to the learner's charge.

    `learner` has no crowd; its recipe runs again for two actions. Its draws are compared with the
    log in blocks of up to `longest` slots.

    >>> import streamdp as sd
    >>> audit = audit_crowd(sd.incumbent_leader(actions=["a", "b"], epsilon="1"), "partition")
    >>> audit.verdict, audit.charged, round(audit.worst, 9)
    ('holds', Fraction(1, 1), 1.0)
    """
    alone = learner_of(learner.to_config(), actions=ACTIONS)
    subject, known = _subject(alone, kind), Memo() if memo is None else memo
    assert alone.charge is not None, "only private learners have crowds"
    worst, failures = _of_transcripts(_in_strong_blocks(subject), kind, alone.charge)
    name = structure_of(alone), kind, longest
    if name not in known.crowds:
        known.crowds[name] = misdeeds_of_crowd(subject, longest=longest, system=SystemRandomness())
    options = dict(alone.options)
    arguments = ", ".join(f"{name}={value}" for name, value in {**options, "crowd": kind}.items())
    return Audit(
        learner=f"{alone.recipe}({arguments})", actions=len(ACTIONS), configured=options["epsilon"],
        charged=alone.charge, worst=worst, samples=0,
        failures=(*failures, *known.crowds[name], *known.flaws_of_bits()),
    )  # fmt: skip


def _of_transcripts(subject: Leader, kind: str, charge: Fraction) -> tuple[float, list[str]]:
    """The worst log-ratio of whole transcripts, and where it is beyond what is due."""
    worst, failures = 0.0, []
    lives = _Lives(subject, _records(subject.schedule))
    for varied, closed in _varied(lives.records, kind):
        ratio = max(lives.spread(varied, script) for script in _scripts())
        worst = max(worst, ratio)
        if ratio > charge + TOLERANCE:
            failures.append(f"record {varied}: moves what is released by {ratio:.6f}")
        if closed != (ratio > charge / 4):
            due = "some" if closed else "nothing"
            failures.append(f"record {varied}: moves what is released by {ratio:.6f}, due: {due}")
    return worst, failures


def _subject(alone: Leader, kind: str) -> Leader:
    """The learner with a crowd; with a pool, blocks of one slot are donated."""
    groups = Groups(((b"x",), (b"y",))) if kind == "groups" else Groups()
    control = APART if kind.startswith("control") else NO_CONTROL
    together = crowded(alone, groups=groups, control=control)
    assert together.crowd is not None
    donates = 2 if kind.endswith("donate") else 0
    return replace(together, crowd=replace(together.crowd, donates=donates))


def _in_strong_blocks(subject: Leader) -> Leader:
    """The learner in blocks whose votes are as strong evidence as possible."""
    assert isinstance(subject.crowd, Crowd)
    lengths = (longest_told(subject.crowd), 1)[: 2 if subject.crowd.donates else 1]
    return replace(subject, schedule=Schedule("audit", None, (1,), lengths))


def _records(schedule: Schedule) -> list[tuple[Key, int]]:
    """Records by key and slots: each block is one slot, and a frame of ties that ends it.

    Both keys' blocks are open when the first of them ends: the content of the other block must
    reach no draw but its own.
    """
    lengths = schedule.lengths(np.arange(_BLOCKS)).tolist()
    closed = [
        (key, slots) for length in lengths for slots in (1, length - 1) if slots for key in KEYS
    ]
    return [*closed, *((key, 1) for key in KEYS)]  # the last lie in blocks that stay open


def _varied(records: list[tuple[Key, int]], kind: str) -> Iterator[tuple[int, bool]]:
    """The records whose content is varied, and whether a draw reads them.

    These are the second key's first record, which with a pool lies in a block of the pool that
    other records end; a record of a block that ends after the other key's; and the last of all,
    which nothing reads yet. With a pool beside a control group also that group's first record: its
    short block is not the pool's.
    """
    single = [at for at, (_, slots) in enumerate(records) if slots == 1]
    if kind == "control+donate":
        yield single[0], True
    yield single[1], True
    yield single[3], True
    yield len(records) - 1, False


def _scripts() -> Iterator[tuple[int, ...]]:
    """Transcripts: openings and last votes are fixed, the votes between are enumerated.

    There are enough draws for crowds without a pool; with a pool fewer are needed. The rest is for
    an engine that gives slots to the pool that are not donated, and so draws more often.
    """
    for free in product((0, 1), repeat=_FREE):
        yield (0, free[0], 1, *free[1:], 0, 1, 1, 0, 0, 1, 1, 0)


@dataclass(frozen=True, slots=True)
class _Lives:
    """The log-probability of each life's draws: by its script and the content of each record."""

    subject: Leader
    records: list[tuple[Key, int]]
    known: dict[tuple[tuple[int, ...], ...], float] = field(default_factory=dict)

    def spread(self, varied: int, script: tuple[int, ...]) -> float:
        """The largest log-ratio of this transcript over the contents of one record.

        One of its contents is the one that it has while another record is varied.
        """
        contents = [self._content(at) for at in range(len(self.records))]
        logs = []
        for content in _CONTENTS:
            contents[varied] = content
            life = (script, *contents)
            if life not in self.known:
                self.known[life] = sum(self._lived(contents, script))
            logs.append(self.known[life])
        return max(logs) - min(logs)

    def _content(self, at: int) -> tuple[int, int]:
        """The losses of a record's last slot, if it is not varied."""
        return (at % 2, (at + 1) % 2) if self.records[at][1] == 1 else (0, 0)

    def _lived(self, contents: list[tuple[int, int]], script: tuple[int, ...]) -> list[float]:
        """The log-probabilities of a life's draws."""
        choose = Forced(self.subject.choose, script)
        life = _Life(replace(self.subject, choose=choose))
        for at, (key, slots) in enumerate(self.records):
            losses = np.zeros((slots, len(ACTIONS)), np.float32)
            losses[-1] = contents[at]
            offsets = np.full(slots, at, dtype=np.int64)
            life.take(LossBatch([key], np.zeros(slots, np.int64), losses, offsets))
        return choose.logs


class _Life:
    """An engine that is saved now and then, and rebuilt before some records."""

    def __init__(self, learner: Leader) -> None:
        self._learner, self._log = learner, list[LossBatch]()
        self._rows = dict[Key, bytes]()
        self._released = list[Releases]()  # since the last rebuild
        self._recorded = dict[Drawn, Kept]()  # before it
        self._engine = self._new()

    def take(self, batch: LossBatch) -> None:
        """Apply one record."""
        if len(self._log) in _REBUILT:
            self._engine = self._again()
        self._log.append(batch)
        self._released.append(self._engine.apply_batch(batch))
        if len(self._log) % 2:
            self._rows |= dict(self._engine.save(most=1))

    def _new(self) -> Engine:
        return Engine(
            stream="audit", partition=0, learner=self._learner, budget=self._learner.charge,
            randomness=SeededRandomness("audit"),
        )  # fmt: skip

    def _again(self) -> Engine:
        before = self._engine
        while self._released:
            self._recorded |= recorded(self._released.pop(0))
        rebuilding = Rebuilding(
            self._new(), rows=list(self._rows.items()), releases=self._recorded,
            crowd=before.crowd(),
        )  # fmt: skip
        for batch in self._log[before.low_water() :]:
            rebuilding.feed(batch)
        return rebuilding.finish(position=before.position, rows=before.rows)
