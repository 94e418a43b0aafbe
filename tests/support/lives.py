"""Where a life of a service is looked at, and what of it may not depend on what was drawn."""

from __future__ import annotations

from tests.support.neighbours import Observed

EARLY, OPEN, LATE, LAST = 12, 51, 70, 119

"""Places: in a block of the first life; in one that it leaves open; in what is lost and rebuilt; in
the epoch whose state is broken."""


def shape(seen: Observed) -> Observed:
    """What must not depend on what was drawn, before that is public."""
    wanted = ("sizes", "steps", "ended by", "commits", "log", "warnings")
    return {name: value for name, value in seen.items() if name.endswith(wanted)}
