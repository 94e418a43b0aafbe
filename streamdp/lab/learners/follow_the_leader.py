"""Follow the leader: the baseline that is not private.

Privacy: none (ε = ∞). It plays the action with the smallest sum; fresh uniform bits break ties.
`window="whole"` looks at each block alone, `window="running"` at everything so far, after every
slot. The service refuses it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from streamdp.core.learners.leader import (
    Leader,
    Window,
    one_of,
    read_actions,
    read_schedule,
    recipe,
)
from streamdp.core.schedule import Schedule
from streamdp.core.selection import Smallest


@recipe
def follow_the_leader(
    *,
    actions: Sequence[str],
    window: str = "whole",
    schedule: Schedule | str | None = None,
) -> Leader:
    """The smallest sum wins: the baseline that is not private.

    Privacy: none (ε = ∞); the service refuses it.
    Arguments: `window` is `whole` (each block alone) or `running` (everything so far, a choice
    after every slot); `schedule` says how blocks grow, by default to fit the window.
    Reference: none, it is folklore.

    >>> follow_the_leader(actions=["a", "b"], window="running").charge is None
    True
    """
    kind = cast("Window", one_of(window, ("whole", "running"), where="learner.window"))
    default = "capped 1" if kind == "running" else "dyadic"
    return Leader(
        actions=read_actions(actions),
        schedule=read_schedule(default if schedule in (None, "none") else schedule),
        window=kind,
        resample="none",
        choose=Smallest(),
        charge=None,
    )
