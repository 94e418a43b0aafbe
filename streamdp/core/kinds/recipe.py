"""How a kind was made, as a value for the ledger, for pages and for configurations.

The engine runs a kind without it, but for the digest by which a saved row knows its own learner.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from hashlib import sha256
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

from streamdp.core.evidence.contexts import Contexts
from streamdp.core.evidence.experiment import Experiment
from streamdp.core.grid import UNIT

Played = Literal["header", "value"]


class Made(Protocol):
    """A dataclass that a recipe makes: it knows the recipe's name and options."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def name(self) -> str:
        """The recipe's name."""

    @property
    def options(self) -> tuple[tuple[str, str], ...]:
        """Its options, as text."""


def config_of(made: Made) -> dict[str, str]:
    """A learner's table in a configuration: the recipe with all options; `Recipes.read` reads it.

    >>> from streamdp.core.learners.noisy_leader import noisy_leader
    >>> config_of(noisy_leader(actions=["a", "b"], epsilon="1", noise="laplace"))
    {'recipe': 'noisy_leader', 'epsilon': '1', 'noise': 'laplace', 'resample': 'none', ...}
    """
    return {"recipe": made.name, **dict(made.options)}


class Selection(NamedTuple):
    """How a vote is selected, beside its mechanism: what theorems about regret are of."""

    rate: Fraction
    window: str
    resample: str
    bonus: Fraction
    since: int  # the shortest blocks whose votes a memory weighs against earlier ones


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """The recipe that made a kind, its options, and what follows from them."""

    name: str
    options: tuple[tuple[str, str], ...]
    mechanism: str
    """What draws the first release."""
    state: Mapping[str, object]
    """Everything that the learner's state and privacy depend on, estimates aside."""
    scale: Fraction | None = None
    """Of the noise on released sums, in grid units; None: no noise."""
    memory: str = ""
    """Of votes: how the action in force follows from them."""
    selection: Selection | None = None
    """Of votes."""
    played: Played | None = None
    """Where a record's action stands; None where all losses are seen."""
    contexts: Contexts | None = None
    """The fields by which its actions are named."""

    @property
    def rate(self) -> Fraction | None:
        """Of the selection."""
        return None if self.selection is None else self.selection.rate

    @property
    def learner(self) -> str:
        """Its table, for a ledger whose releases count as it says; empty where votes count."""
        return "" if self.played is None else json.dumps(config_of(self), separators=(",", ":"))

    @property
    def digest(self) -> str:
        """A fingerprint of `state`."""
        return sha256(json.dumps(self.state, sort_keys=True).encode()).hexdigest()

    def experiment(self, *, actions: int) -> Experiment | None:
        """Released blocks as an experiment on actions, before the first; None if they are none.

        Votes are choices, not measurements; and arms of several cells are not compared.
        """
        if self.scale is None or self.contexts is not None:
            return None
        return Experiment.of(self.scale / UNIT, pairs=self.played == "value", actions=actions)
