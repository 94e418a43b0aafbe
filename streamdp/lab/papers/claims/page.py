"""The claims as a page: the table of verdicts, and the pictures."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from itertools import groupby
from typing import Any

from streamdp.lab.papers.claims import ClaimResult, Effort, Measured
from streamdp.lab.replay import charts
from streamdp.lab.replay.page_style import document

INTRO = (
    "Each row is a claim of a paper about one learner, measured on made-up losses with the shipped"
    " mechanisms in our calibrations (noise twice as wide as printed where a vector may be"
    " replaced). The rules were written first; some rules and one made-up instance were changed"
    " after a first look at 200 runs. Published figures use seeds that no rule was fitted to; a"
    " seed of your own (--seed) is as good. Intervals are of 99 %. Claims about bandit feedback"
    " use one run for every hundred of the others, at least four: a run of a million slots takes"
    " long, and the papers' figures use 15 or 20."
)


def page(claims: Sequence[tuple[str, Measured]], size: Effort) -> str:
    """The whole page."""
    parts = ["<h1>The papers’ claims, measured</h1>", f"<p>{escape(INTRO)}</p>"]
    parts.append(f'<p class="facts">{size.runs} runs a point, seed {size.seed}</p>')
    for _, measured in claims:
        first = measured.findings[0]
        parts.append(f"<section><h2>{escape(first.claim)}</h2>{_picture(measured)}")
        for rule, rows in groupby(measured.findings, key=_rule):
            parts.append(f"<p>{escape(rule)}</p>{_table(list(rows))}")
        parts.append("</section>")
    return document("The papers' claims, measured", "".join(parts))


def _rule(finding: ClaimResult) -> str:
    return f"{finding.claim} ({finding.source}): {finding.rule}."


def _table(findings: Sequence[ClaimResult]) -> str:
    head = "".join(f"<th>{name}</th>" for name in ("learner", "verdict", "measured", "interval"))
    rows = "".join(
        f"<tr><td>{escape(result.learner)}</td><td>{escape(result.verdict)}</td>"
        f"<td>{escape(result.measured)}</td><td>{result.low:.3f} … {result.high:.3f}</td></tr>"
        for result in findings
    )
    return f'<div class="wide"><table><tr>{head}</tr>{rows}</table></div>'


def _picture(measured: Measured) -> str:
    picture = measured.picture
    if picture is None:
        return ""
    xs = [value for curve in picture.curves for value in (curve.x.min(), curve.x.max())]
    ys = [value for curve in picture.curves for value in (curve.y.min(), curve.y.max())]
    if picture.linear:
        x = charts.linear_axis(picture.x, low=0, high=float(max(xs)) * 1.02)
        y = charts.linear_axis(picture.y, low=0, high=float(max(ys)) * 1.1)
    else:
        x = charts.log_axis(picture.x, low=float(min(xs)), high=float(max(xs)))
        y = charts.log_axis(picture.y, low=max(float(min(ys)), 0.1), high=float(max(ys)))
    body = charts.plot(picture.curves, x=x, y=y, title=picture.title)
    return charts.legend(picture.curves) + body


def as_json(claims: Sequence[tuple[str, Measured]]) -> list[dict[str, Any]]:
    """Every finding in JSON."""
    return [
        {
            "name": name,
            "claim": result.claim,
            "source": result.source,
            "learner": result.learner,
            "rule": result.rule,
            "measured": result.measured,
            "interval": [result.low, result.high],
            "runs": result.runs,
            "verdict": result.verdict,
        }
        for name, measured in claims
        for result in measured.findings
    ]
