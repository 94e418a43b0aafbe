"""The papers' learners of feedback as the laboratory plays and audits them.

An entry point of the group `streamdp.laboratory` names this module, as it would one of any other
package that adds learners that play themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import wraps

import numpy as np

from streamdp.core.arrays import Floats, Ints
from streamdp.core.randomness import Randomness
from streamdp.lab.audit import Audit
from streamdp.lab.common.answer import Answer
from streamdp.lab.common.bench import Bench
from streamdp.lab.common.cells import PLAYS_ITSELF
from streamdp.lab.logs.shown import KeyRecords, ShownLog
from streamdp.lab.offpolicy.cells import AnyCell
from streamdp.lab.offpolicy.exact import KeySlots
from streamdp.lab.offpolicy.shares import OwnKeys
from streamdp.lab.papers import on_logs
from streamdp.lab.papers.audit import audit_bandit
from streamdp.lab.papers.learners import BANDIT_RECIPES, Bandit
from streamdp.lab.papers.play import WorldLosses, simulate_bandit
from streamdp.lab.worlds import World

_KEYS = 10  # fewer samples: each needs an engine of its own
_SLOTS_A_SECOND = 6e6  # of one core of 2024, for estimates
_RELEASED_A_SECOND = 2e4  # of a learner that releases at nearly every slot
_OFTEN = ("hybrid_ucb", "converted")


@dataclass(frozen=True, slots=True)
class PaperLearner:
    """One of the papers' learners, whose phases end by an action's own count."""

    bandit: Bandit
    name: str
    options: tuple[tuple[str, str], ...]
    slots_a_second: float  # of a log of losses, about

    def simulated(
        self,
        world: World,
        *,
        runs: int,
        horizon: int,
        seed: tuple[int, int],
        delay: int,
        progress: Callable[[int], None],
    ) -> tuple[Ints, Floats]:
        """Many runs in a made-up world."""
        marks = sorted({*(2**power for power in range(horizon.bit_length())), horizon})
        outcome = simulate_bandit(
            self.bandit,
            WorldLosses(world, horizon),
            runs=runs,
            horizon=horizon,
            seed=seed,
            delay=delay,
            marks=marks,
            progress=progress,
        )
        return np.array(marks), outcome.regrets

    def on_losses(
        self, name: str, keys: OwnKeys, slots: KeySlots, bench: Bench
    ) -> on_logs.PlayedKeys:
        """Play the losses of all actions of some keys as feedback."""
        return on_logs.play_losses(self.bandit, name, keys, slots, bench)

    def of_losses(
        self, cell: AnyCell, played: Iterator[on_logs.PlayedKeys], counts: Ints, slots: KeySlots
    ) -> Answer:
        """Add up what was played."""
        return on_logs.of_losses(cell, self.bandit, played, counts, slots)

    def on_draws(
        self, keys: OwnKeys, records: KeyRecords, actions: int, bench: Bench
    ) -> on_logs.MetKeys:
        """Play uniform draws of some keys."""
        return on_logs.play_draws(self.bandit, keys, records, actions, bench)

    def of_draws(
        self, cell: AnyCell, played: Iterator[on_logs.MetKeys], log: ShownLog, bench: Bench
    ) -> Answer:
        """Add up what was played."""
        return on_logs.of_draws(cell, self.bandit, played, log, bench)

    def audited(self, *, samples: int, randomness: Randomness) -> Audit:
        """Whether it costs each observation at most what it is charged."""
        return audit_bandit(self.bandit, samples=samples // _KEYS, randomness=randomness)


def _registered(recipe: Callable[..., Bandit]) -> Callable[..., PaperLearner]:
    @wraps(recipe)
    def made(**options: object) -> PaperLearner:
        bandit = recipe(**options)
        speed = _RELEASED_A_SECOND if bandit.name in _OFTEN else _SLOTS_A_SECOND
        return PaperLearner(bandit, bandit.name, bandit.options, speed)

    return made


PLAYS_ITSELF.update({name: _registered(recipe) for name, recipe in BANDIT_RECIPES.items()})
