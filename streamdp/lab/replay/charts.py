"""Charts as fragments of a page: shapes in a scalable SVG, labels in HTML of fixed size.

A chart is readable at any width because only its curves are scaled; text and lines keep their size.
Colours are the page's variables, so light and dark follow the reader's settings. The page contains
everything: no script, no font, no network.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from html import escape
from math import ceil, floor, log10

import numpy as np
from numpy.typing import NDArray

from streamdp.core.arrays import Floats

_SIZE = 1000  # the SVG's own units, both ways
_MOST_POINTS = 400


@dataclass(frozen=True, slots=True)
class Axis:
    """A scale from values to the share of the axis, with its ticks."""

    label: str
    place: Callable[[Floats], Floats]
    ticks: tuple[tuple[float, str], ...]  # place (0 … 1) and label


@dataclass(frozen=True, slots=True)
class Curve:
    """A line with its name, style and band."""

    name: str
    x: Floats
    y: Floats
    colour: str  # a CSS variable's name
    style: str = "solid"  # solid, dashed or dotted; points are not joined
    low: Floats | None = field(default=None)
    high: Floats | None = field(default=None)
    marks: bool = False  # with whiskers from low to high instead of a band


def log_axis(label: str, *, low: float, high: float) -> Axis:
    """A logarithmic axis up to a little above `high`; values below `low` lie on its edge."""
    first = floor(log10(low))
    span = 1.02 * (log10(max(high, low * 10)) - first)
    step = max(1, ceil(span / 5))
    powers = range(first, floor(first + span) + 1, step)
    ticks = tuple(((power - first) / span, short(10.0**power)) for power in powers)

    def place(values: Floats) -> Floats:
        return (np.log10(np.maximum(values, 10.0**first)) - first) / span

    return Axis(label, place, ticks)


def regret_axis(label: str, curves: Sequence[Curve], *, low: float) -> Axis:
    """Logarithmic if all regret is positive, otherwise on both sides of 0."""
    least = min(float(curve.y.min()) for curve in curves)
    most = max(float(curve.y.max()) for curve in curves)
    return (
        signed_log_axis(label, low=least, high=most)
        if least < -low
        else log_axis(label, low=low, high=most)
    )


def signed_log_axis(label: str, *, low: float, high: float) -> Axis:
    """Logarithmic on both sides of 0, and linear in between: losses up to 1 lie near the middle.

    >>> axis = signed_log_axis("regret", low=-30.0, high=900.0)
    >>> [text for _, text in axis.ticks]
    ['-100', '-10', '-1', '0', '1', '10', '100', '1k']
    """
    bottom, top = -_decades(-low), _decades(high)
    span = top - bottom

    def place(values: Floats) -> Floats:
        numbers = np.asarray(values, dtype=np.float64)
        return np.asarray((np.sign(numbers) * np.log10(1 + 9 * np.abs(numbers)) - bottom) / span)

    powers = [
        *(-(10.0**p) for p in range(-bottom - 1, -1, -1)),
        0.0,
        *(10.0**p for p in range(top)),
    ]
    ticks = tuple((float(place(np.array(value))), short(value)) for value in powers)
    return Axis(label, place, ticks)


def _decades(value: float) -> int:
    """How many powers of ten, from 1 on, a value holds; 0 for a value that is not positive."""
    return 0 if value <= 0 else max(1, ceil(log10(1 + 9 * value)))


def linear_axis(label: str, *, low: float, high: float) -> Axis:
    """A linear axis with round ticks."""
    span = max(high - low, 1e-12)
    raw = span / 5
    size = 10.0 ** floor(log10(raw))
    step = next(size * factor for factor in (1, 2, 5, 10) if raw <= size * factor)
    values = np.arange(ceil(low / step) * step, high + step * 1e-9, step)
    ticks = tuple(((float(v) - low) / span, short(float(v))) for v in values)
    return Axis(label, lambda x: (np.asarray(x, dtype=float) - low) / span, ticks)


def ordinal_axis(label: str, names: Sequence[str]) -> Axis:
    """Evenly spaced places for names; the value of a name is its index."""
    n = len(names)
    ticks = tuple(((at + 0.5) / n, name) for at, name in enumerate(names))
    return Axis(label, lambda x: (np.asarray(x, dtype=float) + 0.5) / n, ticks)


def plot(curves: Sequence[Curve], *, x: Axis, y: Axis, title: str = "") -> str:
    """A chart without its legend."""
    shapes = "".join(_grid(x, y)) + "".join(_shape(curve, x, y) for curve in curves)
    heading = f"<figcaption>{escape(title)}</figcaption>" if title else ""
    across = "".join(
        f'<span class="xt" style="left:{100 * at:.2f}%">{escape(text)}</span>'
        for at, text in x.ticks
        if -0.001 <= at <= 1.001
    )
    up = "".join(
        f'<span class="yt" style="bottom:{100 * at:.2f}%">{escape(text)}</span>'
        for at, text in y.ticks
        if -0.001 <= at <= 1.001
    )
    return (
        f'<figure class="plot">{heading}<div class="ylabel">{escape(y.label)}</div>'
        f'<div class="area"><svg viewBox="0 0 {_SIZE} {_SIZE}" preserveAspectRatio="none"'
        f' role="img" aria-label="{escape(title or y.label)}">{shapes}</svg>{up}{across}</div>'
        f'<div class="xlabel">{escape(x.label)}</div></figure>'
    )


def legend(curves: Sequence[Curve]) -> str:
    """The meaning of colours and dashes, each name once."""
    seen: dict[str, Curve] = {}
    for curve in curves:
        seen.setdefault(curve.name, curve)
    items = "".join(
        f'<li><i class="{curve.style}" style="border-color:var({curve.colour})"></i>'
        f"{escape(name)}</li>"
        for name, curve in seen.items()
    )
    return f'<ul class="legend">{items}</ul>'


def panels(plots: Sequence[str], names: str) -> str:
    """Small multiples behind their legend, in columns that leave no row nearly empty.

    The legend stands above them, or in the first place if the last row would have a single chart.
    """
    count = len(plots)
    columns = count if count < 4 else next(c for c in (3, 2) if count % c in (0, c - 1))
    inside = count % columns == columns - 1 > 0
    first = f'<div class="panel">{names}</div>' if inside else ""
    body = f'<div class="panels of{columns}">{first}{"".join(plots)}</div>'
    return body if inside else names + body


def strip(name: str, parts: Sequence[tuple[float, str, str]]) -> str:
    """A row of coloured stretches: share of the width, colour, meaning."""
    cells = "".join(
        f'<b style="width:{100 * width:.4f}%;background:{colour}" title="{escape(text)}"></b>'
        for width, colour, text in parts
    )
    return f'<div class="strip"><span>{escape(name)}</span><div>{cells}</div></div>'


def short(value: float) -> str:
    """A number for an axis.

    >>> [short(v) for v in (0.1, 1.0, 2500.0, 1e6, 0.0)]
    ['0.1', '1', '2.5k', '1M', '0']
    """
    size = abs(value)
    for limit, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if size >= limit:
            return f"{value / limit:.4g}{letter}"
    return f"{value:.4g}"


def _grid(x: Axis, y: Axis) -> list[str]:
    lines = [_line(at, 0, at, 1) for at, _ in x.ticks if 0 <= at <= 1]
    return lines + [_line(0, at, 1, at) for at, _ in y.ticks if 0 <= at <= 1]


def _line(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<path class="grid" d="M{_at(x1, y1)}L{_at(x2, y2)}"/>'


def _shape(curve: Curve, x: Axis, y: Axis) -> str:
    keep = _thinned(len(curve.x))
    xs, ys = x.place(curve.x[keep]), y.place(curve.y[keep])
    band = ""
    if curve.low is not None and curve.high is not None:
        low, high = y.place(curve.low[keep]), y.place(curve.high[keep])
        band = _whiskers(curve, xs, low, high) if curve.marks else _band(curve, xs, low, high)
    line = _dots(xs, ys) if curve.style == "points" else _path(xs, ys)
    path = f'<path class="{curve.style}" style="stroke:var({curve.colour})" d="{line}"/>'
    return band + path


def _band(curve: Curve, xs: Floats, low: Floats, high: Floats) -> str:
    back = _path(xs[::-1], low[::-1]).replace("M", "L", 1)
    return f'<path class="band" style="fill:var({curve.colour})" d="{_path(xs, high)}{back}Z"/>'


def _whiskers(curve: Curve, xs: Floats, low: Floats, high: Floats) -> str:
    lines = "".join(
        f"M{_at(at, bottom)}L{_at(at, top)}" for at, bottom, top in zip(xs, low, high, strict=True)
    )
    return f'<path class="whisker" style="stroke:var({curve.colour})" d="{lines}"/>'


def _thinned(n: int) -> NDArray[np.int64]:
    return np.unique(np.linspace(0, n - 1, min(n, _MOST_POINTS)).astype(np.int64))


def _path(xs: Floats, ys: Floats) -> str:
    return "M" + "L".join(_at(a, b) for a, b in zip(xs.tolist(), ys.tolist(), strict=True))


def _dots(xs: Floats, ys: Floats) -> str:
    """Lines of almost no length, whose round ends are the dots."""
    places = zip(xs.tolist(), ys.tolist(), strict=True)
    return "".join(f"M{_at(a, b)}h0.01" for a, b in places)


def _at(x: float, y: float) -> str:
    inside = min(max(y, -0.5), 1.5)  # beyond the edge, where the area clips it
    return f"{_SIZE * x:.1f},{_SIZE * (1 - inside):.1f}"
