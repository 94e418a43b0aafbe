"""A feedback learner as a value: schedule + noise + policy rule.

At the end of each block (a function of the slot number) a `PolicyLearner` releases all arms' sums
of the block with noise; a rule computes the policy in force from the next slot on from these public
numbers. Learners differ in when and with which noise they release, and in the rule. A block's slots
enter one release and are charged for it once, whatever K is.

Like a `Leader`, a `PolicyLearner` is made by a recipe; `feedback_learner_of` runs the recipe again,
so that no file can claim a charge.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from hashlib import sha256
from typing import Literal, ParamSpec

import numpy as np

from streamdp.core import calibration
from streamdp.core.arrays import Floats, Ints
from streamdp.core.calibration import parse_epsilon
from streamdp.core.errors import InvalidConfig, complaint
from streamdp.core.evidence.policy import Policy
from streamdp.core.evidence.policy_posterior import NoiseVariance
from streamdp.core.evidence.policy_rule import KEPT_PER_ARM, PolicyRule
from streamdp.core.grid import UNIT
from streamdp.core.learners.leader import read_actions, read_recipe, registered
from streamdp.core.schedule import Schedule

Played = Literal["header", "value"]

PLAYED: tuple[Played, ...] = ("header", "value")
DEFAULT_FEEDBACK_RECIPE = "policy_blocks"


@dataclass(frozen=True)
class PolicyLearner:
    """A learner that sees the loss of the played action only, as a value.

    `charge` is what the ledger books for each slot of a block; None means that the learner is not
    private and its releases are exact. `played` says where the action stands: in a header, so that
    counts are public and exact, or in the content (`value`), so that both counts and sums get noise
    of scale 3/ε. Before a block is learned from, a row's history is multiplied by `forgetting`.

    Privacy: ε-DP for replacing one record's content, given earlier releases, with ε = `charge`.
    Sensitivity: 1 in L1 for all centred sums together; 3 with counts (see `calibration`).
    Why: discrete Laplace noise on every number; policies read released numbers only.
    """

    actions: tuple[str, ...]
    schedule: Schedule
    rule: PolicyRule
    charge: Fraction | None
    played: Played = "header"
    forgetting: Fraction = Fraction(1)
    recipe: str = "policy"
    options: tuple[tuple[str, str], ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        """Refuse a learner that no engine could run."""
        object.__setattr__(self, "actions", read_actions(self.actions))
        if self.charge is not None and self.charge <= 0:
            raise InvalidConfig(
                complaint(self.recipe, "no charge", expected="> 0", got=self.charge)
            )
        if self.played not in PLAYED:
            raise InvalidConfig(
                complaint("learner.played", "unknown", expected=" | ".join(PLAYED), got=self.played)
            )
        if not 0 < self.forgetting <= 1:
            raise InvalidConfig(
                complaint(
                    "learner.forgetting", "out of range", expected="0 < … ≤ 1", got=self.forgetting
                )
            )

    @property
    def private(self) -> bool:
        """Whether the learner is private."""
        return self.charge is not None

    @property
    def sums_scale(self) -> Fraction | None:
        """The scale of the noise on every sum, in grid units; None: no noise."""
        if self.charge is None:
            return None
        return calibration.laplace_scale(_SENSITIVITY[self.played], self.charge) * UNIT

    @property
    def counts_scale(self) -> Fraction | None:
        """The scale of the noise on every count; None: counts are exact."""
        if self.charge is None or self.played == "header":
            return None
        return calibration.laplace_scale(_SENSITIVITY[self.played], self.charge)

    @property
    def noise(self) -> NoiseVariance:
        """The variance of the noise on sums (in loss²) and on counts."""
        return NoiseVariance(
            on_sums=_variance(None if self.sums_scale is None else self.sums_scale / UNIT),
            on_counts=_variance(self.counts_scale),
        )

    def nothing_known(self, rows: int) -> Floats:
        """The histories of new rows."""
        return np.zeros((rows, KEPT_PER_ARM, len(self.actions)))

    def learned(self, state: Floats, gains: Ints, shown: Ints) -> Floats:
        """The histories after a block with these released sums (grid units) and counts."""
        kept = state * float(self.forgetting)
        return self.rule.learned(kept, gains / UNIT, shown.astype(np.float64), self.noise)

    def policy(self, state: Floats, blocks: Ints) -> Policy:
        """The policies in force during these blocks, for rows with these histories."""
        return self.rule.policy(state, self.schedule.lengths(blocks))

    def to_config(self) -> dict[str, str]:
        """The learner's table in a configuration file; `feedback_learner_of` reads it back."""
        return {"recipe": self.recipe, **dict(self.options)}

    def digest(self) -> str:
        """A fingerprint of everything that the learner's state and privacy depend on."""
        parts: dict[str, object] = {
            "observes": "feedback",
            "recipe": self.recipe,
            "actions": self.actions,
            "schedule": [self.schedule.name, self.schedule.prefix, self.schedule.tail],
            "rule": [self.rule.name, dict(self.rule.parameters())],
            "charge": str(self.charge),
            "played": self.played,
            "forgetting": str(self.forgetting),
        }
        return sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    def __str__(self) -> str:
        """One line for tables and logs."""
        options = ", ".join(f"{name}={value}" for name, value in self.options)
        return f"{self.recipe}({options}) of {len(self.actions)} actions"


_SENSITIVITY: Mapping[str, Fraction] = {
    "header": calibration.SUMS_SENSITIVITY,
    "value": calibration.COUNTS_AND_SUMS_SENSITIVITY,
}


def _variance(scale: Fraction | None) -> float:
    """The variance of Laplace noise, 2·scale²; of discrete noise it is about 1/6 unit² smaller."""
    return 0.0 if scale is None else float(2 * scale * scale)


FEEDBACK_RECIPES: dict[str, Callable[..., PolicyLearner]] = {}
"""Every recipe of a feedback learner by its name."""

P = ParamSpec("P")


def feedback_recipe(function: Callable[P, PolicyLearner]) -> Callable[P, PolicyLearner]:
    """Register a recipe under its function's name, and write its options on what it makes."""
    return registered(FEEDBACK_RECIPES, function)


def feedback_learner_of(config: Mapping[str, str], *, actions: Sequence[str]) -> PolicyLearner:
    """The learner that a configuration's table names; the inverse of `PolicyLearner.to_config`."""
    return read_recipe(FEEDBACK_RECIPES, config, actions=actions, default=DEFAULT_FEEDBACK_RECIPE)


def read_share(option: str | Fraction | int, *, where: str) -> Fraction:
    """An exact number above 0 and at most 1."""
    share = parse_epsilon(option, where)
    if share > 1:
        raise InvalidConfig(complaint(where, "too large", expected="≤ 1", got=share))
    return share


def read_played(option: str) -> Played:
    """Check the option that says where the action of a record stands."""
    for kind in PLAYED:
        if option == kind:
            return kind
    raise InvalidConfig(
        complaint("learner.played", "unknown", expected=" | ".join(PLAYED), got=option)
    )
