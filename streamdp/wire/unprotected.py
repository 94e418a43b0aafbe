"""The label of everything shown outside the privacy guarantee, defined once.

Exact content (sums of saved rows, samples of events, quarantined records, a replay of a log) is for
an operator who may see the events themselves (P8). Output can be copied, piped
and stored, so a note on standard error is not enough: the label is in the output. In JSON it is the
first member of every object that holds something exact; a line of text begins with it. Simulations,
plans and audits show invented events and have no label.
"""

from __future__ import annotations

from collections.abc import Mapping

NOT_PRIVATE = "NOT PRIVATE"
"""The beginning of each label; it also marks exact findings."""

LABEL = f"{NOT_PRIVATE}: this shows content of events. Decisions taken on it leave the guarantee."
"""For people, and as the value of `MEMBER` for programs."""

MEMBER = "not_private"
"""The name of the label in JSON."""


def labelled(members: Mapping[str, object]) -> dict[str, object]:
    """The object with the label as its first member.

    >>> labelled({"sums": [1.5]})[MEMBER][:11]
    'NOT PRIVATE'
    """
    return {MEMBER: LABEL, **members}
