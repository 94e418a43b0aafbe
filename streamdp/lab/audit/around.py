"""A kind around another kind, to watch it, to script it, or to break it; and its engine.

The engine reaches a kind's private columns and random bits through three methods only (`opening`,
`adder` and `draw`), so whoever stands around these sees all that a release is drawn from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self, cast

from streamdp.core.engine import Engine
from streamdp.core.kinds.estimates import Estimate
from streamdp.core.kinds.kind import Kind
from streamdp.core.kinds.tariff import full_charge
from streamdp.core.randomness import Randomness


@dataclass(frozen=True)
class Around:
    """Answers like the inner kind, except for what a subclass answers itself."""

    inner: Kind

    def __getattr__(self, name: str) -> Any:
        """The inner kind's."""
        if name == "inner":  # while it is copied
            raise AttributeError(name)
        return getattr(self.inner, name)

    def with_estimates(self, estimates: Sequence[Estimate]) -> Self:
        """Around the inner kind that releases these estimates too."""
        if not estimates:
            return self
        return replace(self, inner=self.inner.with_estimates(estimates))

    @property
    def as_kind(self) -> Kind:
        """Itself: what it does not answer, the inner kind does."""
        return cast("Kind", self)


def engine_of(kind: Kind, randomness: Randomness, **options: Any) -> Engine:
    """A shipped engine whose budget is what a kind's blocks may cost."""
    budget = full_charge(kind) or None
    return Engine(
        stream="audit", partition=0, learner=kind, budget=budget, randomness=randomness, **options
    )
