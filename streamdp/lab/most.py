"""Which `most` loses least for a file of rewards. NOT PRIVATE: it reads the rewards as they are.

Rewards above `most` count as `most` (`wire.feedback`). A small one hides how large orders are; a
large one makes everything small beside the noise, whose scale is most/ε, and beside the variance
that policies assume, m·(most − m) at a mean of m. What is lost in between is measured by the events
of a key after which one action is told apart from the others:

- The better action earns `gap` more a show *because its orders are larger*, all by one factor. Of
  more orders a clipped mean shows more, so this is the harder case.
- Its clipped mean is larger by s. Means of n shows have variances m·(most − m)/n + 2·(most/(εn))²,
  of one block; the difference of two is told apart at s = 3 of its standard deviations.

The world of these numbers is a guide, not a simulation: they order the candidates for `most`.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from fractions import Fraction
from math import inf, isfinite, sqrt
from pathlib import Path
from typing import Any

import numpy as np

from streamdp.core.arrays import Floats
from streamdp.core.errors import refuse
from streamdp.wire.unprotected import NOT_PRIVATE

_DEVIATIONS = 3.0
_CANDIDATES = 200  # quantiles of the rewards
_SHOWN = (0.9, 0.95, 0.99, 1.0)  # beside the best one


def read(path: Path, column: str | None) -> Floats:
    """The rewards in a file: one a line, or a column of a CSV file with names."""
    numbers: list[float] = []
    for where, text in _fields(path, column):
        try:
            number = float(text)
        except ValueError:
            refuse(where, "is no reward", "a number from 0", "text")
        if not (isfinite(number) and number >= 0):
            refuse(where, "is no reward", "a number from 0", "another number")
        numbers.append(number)
    rewards = np.array(numbers)
    if not rewards.any():
        refuse(str(path), "says nothing of rewards", "rewards, some of them above 0", "none")
    return rewards


def _fields(path: Path, column: str | None) -> Iterator[tuple[str, str]]:
    """Each reward as it is written, and its place."""
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        refuse(str(path), "cannot be read", "text, one reward a line", type(error).__name__)
    if column is None:
        yield from ((f"{path} line {n}", line) for n, line in enumerate(lines, 1) if line.strip())
        return
    table = csv.DictReader(lines)
    if column not in (table.fieldnames or ()):
        names = ", ".join(table.fieldnames or ())
        refuse(str(path), "lacks the column", f"one of {names}", repr(column))
    yield from ((f"{path} line {table.line_num}", row[column] or "") for row in table)


def events(rewards: Floats, most: float, *, actions: int, epsilon: Fraction, gap: float) -> float:
    """Events of a key until an action whose orders are larger is told apart; inf: never.

    >>> rewards = np.array([0.0] * 97 + [20.0, 30.0, 400.0])
    >>> asked = {"actions": 4, "epsilon": Fraction(1), "gap": 0.45}
    >>> [round(events(rewards, most, **asked), -3) for most in (10.0, 30.0, 400.0)]
    [inf, 4205000.0, 51258000.0]
    """
    factor = 1 + gap / rewards.mean()
    mean = float(np.minimum(rewards, most).mean())
    seen = float(np.minimum(rewards * factor, most).mean()) - mean
    if seen <= 0:
        return inf
    scale = 2 * (_DEVIATIONS / seen) ** 2
    variance, noise = mean * (most - mean), 2 * (most / float(epsilon)) ** 2
    return actions * (scale * variance + sqrt((scale * variance) ** 2 + 4 * scale * noise)) / 2


def compared(rewards: Floats, *, actions: int, epsilon: Fraction, gap: float) -> dict[str, Any]:
    """The best `most` among round numbers, and some around it."""
    above = rewards[rewards > 0]
    given: dict[str, Any] = {"actions": actions, "epsilon": epsilon, "gap": gap}

    def row(most: float) -> dict[str, Any]:
        cut, after = np.minimum(rewards, most), events(rewards, most, **given)
        return {
            "most": f"{most:f}".rstrip("0").rstrip("."),
            "cut": float((above > most).mean()),
            "amount_cut": 1 - float(cut.sum() / rewards.sum()),
            "events": None if after == inf else after,
        }

    candidates = _round(np.quantile(above, np.linspace(0, 1, _CANDIDATES)))
    best = min(candidates, key=lambda most: events(rewards, most, **given))
    shown = {best / 2, best, 2 * best, *_round(np.quantile(above, _SHOWN))}
    return {
        "private": False,
        "rewards": len(rewards),
        "above_0": len(above),
        "mean": float(rewards.mean()),
        "epsilon": str(epsilon),
        "actions": actions,
        "gap": gap,
        "best": row(best)["most"],
        "considered": [row(most) for most in sorted(shown)],
    }


def _round(numbers: Floats) -> list[float]:
    """Numbers of two digits, none below those that are given."""
    power = 10.0 ** (np.floor(np.log10(numbers)) - 1)
    rounded: list[float] = sorted({float(f"{of:.6g}") for of in np.ceil(numbers / power) * power})
    return rounded


def told(found: dict[str, Any]) -> Iterator[str]:
    """The answer as lines."""
    yield f"{NOT_PRIVATE}: computed from the rewards as they are, so it tells of them."
    yield (
        f"{found['above_0']:,} of {found['rewards']:,} rewards are above 0; the mean of all is"
        f" {found['mean']:.4g}. Among {found['actions']} actions at ε = {found['epsilon']}, one"
        f" that earns {found['gap']:g} more a show, as its orders are larger, is told apart soonest"
        f' with most = "{found["best"]}".'
    )
    if found["above_0"] == found["rewards"]:
        yield "The file has no 0: does it leave out the shows that earned nothing?"
    yield f"{'most':>12}{'rewards above':>16}{'amount cut off':>17}{'events of a key':>18}"
    for row in found["considered"]:
        after = "never" if row["events"] is None else f"{_two_digits(row['events']):,}"
        mark = "  <" if row["most"] == found["best"] else ""
        cut, amount = f"{row['cut']:.1%}", f"{row['amount_cut']:.1%}"
        yield f"{row['most']:>12}{cut:>16}{amount:>17}{after:>18}{mark}"


def _two_digits(number: float) -> int:
    return int(float(f"{number:.2g}"))
