"""The table of mutants: what is broken, what it breaks, and which layer of the audit says what."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from streamdp.core.evidence.contexts import Contexts
from streamdp.core.kinds.kind import Kind
from streamdp.core.learners import Leader, learner_of
from streamdp.core.learners.feedback import FEEDBACK_RECIPES, PolicyLearner

Patch = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True)
class Mutant:
    """Something broken, and how it is found."""

    patch: Patch
    kind: Kind
    layer: str  # of the audit (`streamdp.lab.audit.LAYERS`), or of `test_mutants`
    said: str  # a pattern: the reason for which that layer fails
    longest: int  # slots of the longest block that is looked at
    samples: int


MUTANTS: dict[str, Mutant] = {}


def mutant(
    *kinds: Kind, layer: str, said: str, longest: int = 64, samples: int = 4000
) -> Callable[[Patch], Patch]:
    """Register a patch as a mutant of each of these kinds, under its function's name.

    Another layer that finds the same is another row, so that each is asked alone.
    """

    def registered(patch: Patch) -> Patch:
        for kind in kinds:
            name = patch.__name__ + (f", {_named(kind)}" if len(kinds) > 1 else "")
            name += f", {layer}" if name in MUTANTS else ""
            add(name, Mutant(patch, kind, layer, said, longest, samples))
        return patch

    return registered


def broken(name: str, kind: Kind, *, layer: str, said: str) -> None:
    """Register a kind that is broken itself."""
    add(f"{name}, {_named(kind)}", Mutant(lambda patch: None, kind, layer, said, 16, 4000))


def add(name: str, row: Mutant) -> None:
    """Add a row."""
    assert name not in MUTANTS, f"{name} twice"
    MUTANTS[name] = row


def _named(kind: Kind) -> str:
    """The recipe, and where its actions stand."""
    recipe = kind.recipe
    return recipe.name + (f" by {recipe.played}" if recipe.played else "")


# -- the kinds that are broken ---------------------------------------------------------------------


def of_losses(*, epsilon: str = "1", actions: int = 2, **options: str) -> Leader:
    """A learner of losses."""
    return learner_of({**options, "epsilon": epsilon}, actions=["a", "b", "c"][:actions])


def made(*, epsilon: str = "1", **options: str) -> PolicyLearner:
    """Elimination computes fastest, and what is audited is the same for every rule."""
    return FEEDBACK_RECIPES["policy_elimination"](actions=["a", "b"], epsilon=epsilon, **options)


INCUMBENT = of_losses(recipe="incumbent_leader")
PREFIX = of_losses(recipe="prefix_softmax", cap="none")
BY_HEADER, BY_VALUE = made(), made(played="value")


FIELDS = Contexts.read({"device": ["phone"], "country": ["fr"]})


def _of_tables(played: str) -> PolicyLearner:
    """A table that gets finer: four cells, two actions."""
    return FEEDBACK_RECIPES["policy_contexts"](
        actions=FIELDS.arms(("a", "b")), epsilon="1", context=FIELDS, played=played
    )


TABLES_BY_HEADER, TABLES_BY_VALUE = _of_tables("header"), _of_tables("value")
