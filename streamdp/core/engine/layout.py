"""The layout of a configuration's saved rows, and its fingerprint: known without an engine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import sha256

from streamdp.core import snapshot
from streamdp.core.evidence.policy_rule import KEPT_PER_ARM
from streamdp.core.learners import Learner, PolicyLearner
from streamdp.core.regret import Estimate


def remembered(learner: Learner) -> int:
    """How many numbers about earlier releases a row keeps."""
    if isinstance(learner, PolicyLearner):
        return KEPT_PER_ARM * len(learner.actions)
    return learner.memory.width


def configuration_digest(learner: Learner, estimates: Iterable[Estimate]) -> str:
    """A fingerprint of everything that a row's state and releases depend on."""
    charges = [f"{e.name} {e.epsilon} {e.min_length}" for e in estimates]
    return sha256("\n".join([learner.digest(), *charges]).encode()).hexdigest()


def row_layout(learner: Learner, estimates: Sequence[Estimate], *, epoch: int) -> snapshot.Layout:
    """The layout of a configuration's saved rows."""
    actions = len(learner.actions)
    return snapshot.Layout(
        digest=bytes.fromhex(configuration_digest(learner, estimates))[:16],
        epoch=epoch,
        actions=actions,
        wide=actions if estimates else 0,
        remembered=remembered(learner),
        shown=actions if isinstance(learner, PolicyLearner) else 0,
    )
