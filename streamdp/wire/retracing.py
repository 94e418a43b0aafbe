"""Computes a feedback learner's policies again, from its ledger lines alone.

A line of a feedback stream names the learner with its options and has the released sums and counts
of its block. Policies are a function of these (`core.evidence.policy`), so anybody who has the
ledger arrives at the same 2^24 parts. `Retraced` follows the lines of one learner (one key, epoch
and birth) in their order. A learner whose opening carried a history over begins with that:

1. The learner is the same in all its lines, and one that a recipe makes.
2. ε, the noise's scale, the block's slots and the number of actions are those that this learner
   releases with.
3. Where the action stands in a header, an action was shown no more often than the block has slots.
4. After each line, `policy` is what must be in force. After a withheld line (shadow mode) nothing
   can be computed, because its sums are missing.

The names of the actions are not in the ledger. Policies do not depend on them, only on how many.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from msgspec import UNSET

from streamdp.core.arrays import Floats
from streamdp.core.errors import InvalidConfig, StateMismatch, complaint
from streamdp.core.events import OPENING, BlockSums
from streamdp.core.evidence.policy import Policy
from streamdp.core.evidence.policy_rule import CARRIED_PER_ARM
from streamdp.core.learners.feedback import PolicyLearner, feedback_learner_of
from streamdp.wire.lines import Charge, from_base64

_NUMBER_BYTES = 8  # of a sum or a count
_SHOWN = 80  # characters of a foreign text that are shown


class Begun(NamedTuple):
    """The block and the public history that a learner opens with."""

    block: int = 0
    history: bytes = b""  # two little-endian float64 for each action; empty: nothing is known


NEW = Begun()


def begun_with(line: Charge) -> Begun:
    """The history that an opening's line carries over; it is not compared with earlier lines.

    `StateMismatch` if its length is not that of a history.
    """
    if line.carried is UNSET:
        return NEW
    history = b""
    if line.carried.history is not UNSET:
        history = from_base64(line.carried.history, "history")
        if not history or len(history) % (_NUMBER_BYTES * CARRIED_PER_ARM):
            raise StateMismatch(
                complaint(
                    "history", "length", expected="two numbers an arm", got=f"{len(history)} bytes"
                )
            )
    return Begun(line.carried.first_block, history)


def _known(history: bytes) -> Floats:
    """A history's bytes as numbers."""
    known: Floats = np.frombuffer(history, "<f8").reshape(1, CARRIED_PER_ARM, -1)
    return known


class Retraced:
    """Follows one learner's lines of openings and sums, in order."""

    __slots__ = ("_actions", "_block", "_state", "_text", "_withheld")

    def __init__(self) -> None:
        self._text: str | None = None  # the learner, as the lines have it
        self._actions: int | None = None
        self._state: Floats | None = None  # None: nothing is known yet
        self._block = 0  # the open block, during which the policy is in force
        self._withheld = False

    @property
    def unjudged(self) -> bool:
        """Whether this line or an earlier one was withheld, so that nothing can be computed."""
        return self._withheld

    @property
    def history(self) -> Floats | None:
        """What could be carried over after the sums so far, 2 × K; None: nothing, or withheld."""
        if self._state is None or self._actions is None or self._text is None:
            return None
        kept = _learner(self._text, self._actions).rule.history
        carried: Floats = kept.carried(self._state)[0]
        return carried

    def read(self, line: Charge) -> Iterator[str]:
        """Read the next line; yield what is wrong with it, given those before it."""
        text = "" if line.learner is UNSET else line.learner
        if self._text is None:
            self._text = text
        if text != self._text:
            yield f"another learner than before: {text[:_SHOWN]!r}, not {self._text[:_SHOWN]!r}"
            return
        if line.withheld is True:
            self._withheld = True
        try:
            if line.kind == OPENING:
                self._open(line)
                return
            yield from _charged_as(_learner(text, actions=2), line)  # the same for any number
            yield from self._followed(line, line.block_sums())
        except (InvalidConfig, StateMismatch) as error:
            self._withheld = True  # later policies cannot be computed
            yield f"block {line.block}: {error}"

    def _open(self, line: Charge) -> None:
        """Begin with the carried history."""
        begun = begun_with(line)
        self._block = begun.block
        if begun.history:
            known = _known(begun.history)
            self._actions = known.shape[2]
            kept = _learner(self._text or "", self._actions).rule.history
            self._state = kept.resumed(known)

    def _followed(self, line: Charge, sums: BlockSums | None) -> Iterator[str]:
        self._block = line.block + 1
        if sums is None:
            if line.withheld is not True:
                yield f"block {line.block} has no sums, though it was not withheld"
                self._withheld = True
            return
        actions, rest = divmod(len(sums.gains), _NUMBER_BYTES)
        if rest or len(sums.shown) != len(sums.gains) or self._actions not in (None, actions):
            yield f"block {line.block}: sums and counts of another number of actions"
            self._withheld = True
            return
        self._actions = actions
        learner = _learner(self._text or "", actions)
        yield from _released_by(learner, line, sums)
        if not self._withheld:
            gains, shown = sums.arrays()
            before = learner.nothing_known(1) if self._state is None else self._state
            self._state = learner.learned(before, gains[None], shown[None])

    def policy(self, actions: int) -> bytes | None:
        """The policy in force after the latest line, K little-endian uint32; None: unknowable."""
        if self._withheld or self._text is None or self._actions not in (None, actions):
            return None
        learner = _learner(self._text, actions)
        state = learner.nothing_known(1) if self._state is None else self._state
        policy = learner.policy(state, np.array([self._block], dtype=np.int64))
        parts: bytes = policy[0].astype("<u4").tobytes()
        return parts


def policies_after(
    learner: str,
    sums: Sequence[BlockSums],
    wanted: Sequence[int],
    *,
    actions: int,
    begun: Begun = NEW,
) -> Policy:
    """The policies after the given (ascending) numbers of a learner's blocks, a row for each.

    `learner` is the text in ledger lines, `begun` what its opening carried over. `InvalidConfig` if
    the sums cannot be this learner's.
    """
    made = _learner(learner, actions)
    if len(begun.history) not in (0, _NUMBER_BYTES * CARRIED_PER_ARM * actions) or any(
        len(part) != _NUMBER_BYTES * actions
        for block in sums
        for part in (block.gains, block.shown)
    ):
        sizes = sorted({len(part) for block in sums for part in (block.gains, block.shown)})
        expected = f"{_NUMBER_BYTES * actions} bytes for {actions} actions"
        raise InvalidConfig(complaint("sums", "length", expected=expected, got=sizes))
    states = [
        made.rule.history.resumed(_known(begun.history)) if begun.history else made.nothing_known(1)
    ]
    for gains, shown in (block.arrays() for block in sums):
        states.append(made.learned(states[-1], gains[None], shown[None]))
    blocks = begun.block + np.array(wanted, dtype=np.int64)
    return made.policy(np.concatenate([states[at] for at in wanted]), blocks)


def _charged_as(learner: PolicyLearner, line: Charge) -> Iterator[str]:
    """Yield what is wrong with a line's charge or the scale of its noise, withheld or not."""
    if line.charge != learner.charge:
        yield f"block {line.block} is charged ε = {line.epsilon}, its learner's is {learner.charge}"
    if line.scale is UNSET or Fraction(line.scale) != learner.sums_scale:
        scale = "none" if line.scale is UNSET else line.scale
        yield (
            f"block {line.block} has noise of scale {scale}, its learner's is {learner.sums_scale}"
        )


def _released_by(learner: PolicyLearner, line: Charge, sums: BlockSums) -> Iterator[str]:
    """Yield what is wrong with a line's slots or counts, given its learner."""
    schedule = learner.schedule
    if (line.start, line.stop) != (schedule.start(line.block), schedule.stop(line.block)):
        yield (
            f"block {line.block} has the slots [{line.start}, {line.stop}), its learner's"
            f" [{schedule.start(line.block)}, {schedule.stop(line.block)})"
        )
    _, shown = sums.arrays()
    if learner.played == "header" and not 0 <= int(shown.sum()) <= line.stop - line.start:
        yield f"block {line.block}: actions were shown more often than it has slots"
    elif learner.played == "header" and (shown < 0).any():
        yield f"block {line.block}: an action has a count below 0"


@lru_cache(maxsize=64)
def _learner(text: str, actions: int) -> PolicyLearner:
    """The learner that a line names, with this many actions."""
    try:
        options = json.loads(text)
        return feedback_learner_of(options, actions=[str(action) for action in range(actions)])
    except InvalidConfig:
        raise
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
        got = f"{text[:_SHOWN]!r} ({type(error).__name__})"
        expected = "a recipe with its options"
        raise InvalidConfig(
            complaint("learner", "unreadable", expected=expected, got=got)
        ) from None
