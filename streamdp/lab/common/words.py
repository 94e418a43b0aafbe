"""Numbers as people write them."""

from __future__ import annotations

from math import ceil, floor, inf, log10
from typing import NamedTuple


class Statement(NamedTuple):
    """A sentence with a short heading."""

    about: str
    says: str


def number(value: float) -> str:
    """A number of losses as people write it.

    >>> number(12345.6), number(12.34), number(0.1234), number(-3.0), number(0.0)
    ('12,346', '12.3', '0.123', '−3.00', '0')
    """
    size = abs(value)
    digits = 0 if size >= 100 or not size else 1 if size >= 10 else 2 if size >= 1 else 3
    return f"{value:,.{digits}f}".replace("-", "−")


def plus_minus(mean: float, error: float) -> str:
    """A mean with its interval, from its standard error.

    >>> plus_minus(100.0, 1.0)
    '100 ± 1.96'
    """
    return f"{number(mean)} ± {number(1.96 * error)}"


def interval(low: float, high: float) -> str:
    """The ends of an interval: two digits, or as many as say a fifth of how wide it is.

    >>> interval(0.0023, 0.0081), interval(0.05661, 0.05708), interval(112.2, 123.4)
    ('0.0023 – 0.0081', '0.0566 – 0.0571', '112 – 123')
    """
    most, wide = max(abs(low), abs(high)), high - low
    if not 0 < wide < inf:
        return f"{low:.3g} – {high:.3g}"
    digits = max(2, min(6, ceil(log10(5 * most / wide)))) - 1 - floor(log10(most))
    return " – ".join(f"{end:,.{max(0, digits)}f}" for end in (low, high))


def in_1000(reward: float) -> str:
    """A mean reward as what 1,000 records bring.

    >>> in_1000(0.0042), in_1000(0.25)
    ('4.2', '250')
    """
    return f"{1000 * reward:.3g}" if reward < 0.1 else f"{1000 * reward:,.0f}"


def per_thousand(losses: float, slots: int) -> float:
    """Losses in a thousand slots."""
    return 1000 * losses / slots


WORTH_SAYING = 2.0
"""Seconds; a shorter pass is not announced."""


def duration(seconds: float) -> str:
    """A duration, for people.

    >>> duration(0.2), duration(90), duration(7300)
    ('about 1 s', 'about 1.5 min', 'about 2 h')
    """
    if seconds < 60:
        return f"about {max(1, round(seconds))} s"
    if seconds < 3600:
        return f"about {seconds / 60:.2g} min"
    return f"about {seconds / 3600:.2g} h"


def days_text(days: float) -> str:
    """A duration, for people.

    >>> days_text(0.0001), days_text(0.02), days_text(0.5), days_text(9.6)
    ('about 1 minute', 'about 29 minutes', 'about 12 hours', 'about 10 days')
    """
    for size, unit in ((1, "days"), (1 / 24, "hours"), (1 / 1440, "minutes")):
        if days >= 2 * size or unit == "minutes":
            break
    count = max(1, round(days / size))
    return f"about {count} {unit if count > 1 else unit.removesuffix('s')}"


def first_line(error: Exception) -> str:
    """What a library says of a file, in one line."""
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
