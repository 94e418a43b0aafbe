"""The claims as JSON: every finding, and the pictures for a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, get_args

from streamdp.lab.papers.claims import Effort, Measured, Verdict

ABOUT = (
    "Each row is a claim of a paper about one learner, measured on made-up losses with the shipped"
    " mechanisms in our calibrations (noise twice as wide as printed where a vector may be"
    " replaced). The rules were written first; some rules and one made-up instance were changed"
    " after a first look at 200 runs. Published figures use seeds that no rule was fitted to; a"
    " seed of your own (--seed) is as good. Intervals are of 99 %. Claims about bandit feedback"
    " use one run for every hundred of the others, at least four: a run of a million slots takes"
    " long, and the papers' figures use 15 or 20."
)

_FIELDS = ("claim", "source", "learner", "rule", "measured", "interval", "runs", "verdict")


def as_json(claims: Sequence[tuple[str, Measured]]) -> list[dict[str, Any]]:
    """Every finding in JSON."""
    return [
        {"name": name, **{field: getattr(result, field) for field in _FIELDS}}
        for name, measured in claims
        for result in measured.findings
    ]


def with_pictures(claims: Sequence[tuple[str, Measured]], size: Effort) -> dict[str, Any]:
    """Every finding, the curves of each claim's picture, and how the claims were judged."""
    findings = as_json(claims)
    verdicts = [of["verdict"] for of in findings]
    judged = [f"{verdicts.count(of)} {of}" for of in get_args(Verdict)]
    return {
        "lead": {
            "compared": f"{len(findings)} findings on {len({of['claim'] for of in findings})}"
            " claims, on made-up losses.",
            "worth": f"{', '.join(judged)}.",
            "sure": "Each verdict follows from a 99 % interval by a rule that is written beside"
            " it.",
        },
        "about": ABOUT,
        "runs": size.runs,
        "seed": size.seed,
        "findings": findings,
        "pictures": {
            name: asdict(measured.picture)
            for name, measured in claims
            if measured.picture is not None
        },
    }
