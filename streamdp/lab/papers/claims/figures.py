"""The claims as JSON: every finding, and the pictures for a page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from streamdp.lab.papers.claims import Curve, Effort, Measured

ABOUT = (
    "Each row is a claim of a paper about one learner, measured on made-up losses with the shipped"
    " mechanisms in our calibrations (noise twice as wide as printed where a vector may be"
    " replaced). The rules were written first; some rules and one made-up instance were changed"
    " after a first look at 200 runs. Published figures use seeds that no rule was fitted to; a"
    " seed of your own (--seed) is as good. Intervals are of 99 %. Claims about bandit feedback"
    " use one run for every hundred of the others, at least four: a run of a million slots takes"
    " long, and the papers' figures use 15 or 20."
)


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


def with_pictures(claims: Sequence[tuple[str, Measured]], size: Effort) -> dict[str, Any]:
    """Every finding, and the curves of each claim's picture."""
    return {
        "lead": _lead(claims),
        "about": ABOUT,
        "runs": size.runs,
        "seed": size.seed,
        "findings": as_json(claims),
        "pictures": {
            name: {
                "title": picture.title,
                "x": picture.x,
                "y": picture.y,
                "linear": picture.linear,
                "curves": [_curve(curve) for curve in picture.curves],
            }
            for name, measured in claims
            for picture in ([] if measured.picture is None else [measured.picture])
        },
    }


def _lead(claims: Sequence[tuple[str, Measured]]) -> dict[str, str]:
    """How many claims there are, and how they were judged."""
    findings = [result for _, measured in claims for result in measured.findings]
    verdicts = [result.verdict for result in findings]
    judged = [f"{verdicts.count(of)} {of}" for of in ("reproduced", "not reproduced", "open")]
    return {
        "compared": f"{len(findings)} findings on {len({of.claim for of in findings})} claims, on"
        " made-up losses.",
        "worth": f"{', '.join(judged)}.",
        "sure": "Each verdict follows from a 99 % interval by a rule that is written beside it.",
    }


def _curve(curve: Curve) -> dict[str, Any]:
    return {
        "name": curve.name,
        "x": curve.x.tolist(),
        "y": curve.y.tolist(),
        "low": None if curve.low is None else curve.low.tolist(),
        "high": None if curve.high is None else curve.high.tolist(),
        "whiskers": curve.whiskers,
    }
