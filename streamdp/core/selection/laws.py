"""The exact laws of the selections as log-probabilities, for audits and tests.

A *handicap* is how far an action is behind before the noise: s_i = ρ·L_i − b_i, shifted so that the
least is 0. Handicaps are computed as exact rationals and rounded once. Each of the three laws is
then −s_i plus the logarithm of a number between 1/K and K that is a sum of positive terms, so a
log-probability of −5000 is as precise as one of −0.5: probabilities have 12 correct digits as long
as the handicap itself, a float, has them (|s| ≤ 4000); beyond that the logarithm has 15.

Quadrature is Gauss–Legendre on panels over which the integrand, an entire function, falls or grows
by a few powers of e. The rest that is left out is below 10⁻²⁰ of the integral; each bound is
derived where it is used.

Audits ask for the same laws again and again: those of few actions that need a quadrature are
cached.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import cache, lru_cache
from itertools import pairwise
from math import ceil, log

import numpy as np

from streamdp.core.arrays import Floats, Ints
from streamdp.core.errors import InvalidConfig
from streamdp.core.selection.prior import Prior, exact_scores

MOST_ACTIONS = 10_000

_PANEL = 2.0  # in units of the integrand's natural scale; 24 nodes integrate e^±2x on it to 1e-16
_NEGLIGIBLE = 46.0  # −ln(1e-20)
_LN2 = log(2)
_CHUNK = 1 << 17  # elements of an actions × nodes table at a time
_FEW = 16  # the most actions of a law that is cached
_REMEMBERED = 1 << 14  # laws: 8 MB at most


@cache
def _legendre() -> tuple[Floats, Floats]:
    """Gauss's 24 nodes and weights; computed when a law is first asked for, not at import."""
    return np.polynomial.legendre.leggauss(24)


def handicaps(rate: Fraction, sums: Ints, prior: Prior | None) -> Floats:
    """s_i = ρ·L_i − b_i minus the least of them: exact, then rounded once."""
    if sums.ndim != 1 or sums.dtype != np.int64 or not 2 <= len(sums) <= MOST_ACTIONS:
        expected, got = f"int64, 2 to {MOST_ACTIONS} sums", f"{sums.dtype} {sums.shape}"
        raise InvalidConfig("sums", "wrong array", expected=expected, got=got)
    if prior is not None:
        prior.check(rows=1, actions=len(sums))
    scores, denominator = exact_scores(rate, sums, prior, row=0, actions=np.arange(len(sums)))
    return np.array([score / denominator for score in scores])


def exponential(s: Floats) -> Floats:
    """The softmax of −s."""
    return _normal(-s - np.log(np.exp(-s).sum()))


@lru_cache(maxsize=_REMEMBERED)
def _of_few(law: Callable[[Floats], Floats], s: bytes) -> Floats:
    """The law of handicaps that are given as numpy's bytes, so that they can be a cache's key."""
    return law(np.frombuffer(s))


def _remembered(law: Callable[[Floats], Floats], s: Floats) -> Floats:
    """The law from the cache, where the same handicaps in another order count as equal."""
    if len(s) > _FEW:
        return law(s)
    order, logs = np.argsort(s, kind="stable"), np.empty(len(s))
    logs[order] = _of_few(law, s[order].astype(np.float64, copy=False).tobytes())
    return logs


def permute_and_flip(s: Floats) -> Floats:
    """w_i ∫₀¹ ∏_{j≠i} (1 − u·w_j) du with w = e^−s."""
    return _remembered(_permute_and_flip, s)


def _permute_and_flip(s: Floats) -> Floats:
    """w_i ∫₀¹ ∏_{j≠i} (1 − u·w_j) du with w = e^−s.

    The integrand is at most e^(−u(Σw − 1)) and its integral at least 1/K, which says where to stop.
    """
    w = np.exp(-s)
    total = w.sum()
    end = min(1.0, (_NEGLIGIBLE + log(len(s))) / max(total - 1, 1e-9))
    panels = ceil(end * total / _PANEL)
    u, weight = _rule(np.linspace(0.0, end, panels + 1))

    def share(part: Floats, weights: Floats) -> Floats:
        survivors = -part[:, None] * w
        product = np.exp(np.log1p(survivors).sum(axis=1))
        return np.asarray((weights * product) @ (1 / (1 + survivors)))

    return _normal(-s + np.log(_by_chunks(share, u, weight, len(s))))


def laplace(s: Floats) -> Floats:
    """P(X_i − s_i is the largest), X_i independent standard Laplace."""
    return _remembered(_laplace, s)


def _laplace(s: Floats) -> Floats:
    """By quadrature.

    With F the law of X and Φ(t) = ∏ F(t + s_j), P(i) = ∫ Φ(t) f(t + s_i)/F(t + s_i) dt. For
    h(t) = Φ(t)·e^−t, which is log-concave, this is e^(−s_i) ∫ h(t) g(t + s_i) dt with
    g(x) = 1/(2 − e^−x) for x ≥ 0 and e^x for x < 0. Kinks lie at t = −s_j and split the panels.
    """
    best = int(s.argmin())
    others = np.delete(s, best)
    t, weight = _rule(_laplace_panels(others))

    def share(part: Floats, weights: Floats) -> Floats:
        product = np.exp(_log_h(part, others))
        x = part[:, None] + s
        decay = np.exp(-np.abs(x))
        return np.asarray((weights * product) @ np.where(x < 0, decay, 1 / (2 - decay)))

    return _normal(-s + np.log(_by_chunks(share, t, weight, len(s))))


def _log_h(t: Floats, others: Floats) -> Floats:
    """ln h: the best action's part in closed form, so that nothing cancels on its long plateau."""
    own = np.where(t < 0, -_LN2, np.log1p(-0.5 * np.exp(-np.maximum(t, 0))) - t)
    x = t[:, None] + others
    above = np.log1p(-0.5 * np.exp(-np.abs(x)))
    return np.asarray(own + np.where(x < 0, x - _LN2, above).sum(axis=1))


def _laplace_panels(others: Floats) -> Floats:
    """The edges of panels: kinks, and steps of a panel near them. Between far kinks h is constant.

    Above: h ≤ e^−t, its integral is at least 1/K. Below 0, h falls as t falls; it is followed down
    to 10⁻²⁵/K of its largest value. Left of a kink by more than `reach`, the actions beyond it no
    longer count; two actions at a time make h fall like e^t at least, so only the best action alone
    has a plateau, and it is longer than `reach` only there.
    """
    reach = _NEGLIGIBLE + log(len(others) + 1)
    bottom = _bottom(others, -reach - 12.0)
    kinks = -others[-others > bottom]
    edges = np.unique(np.concatenate([[bottom, reach, 0.0], kinks[kinks < 0]]))
    cuts = [edges[:1]]
    for left, right in pairwise(edges.tolist()):
        near = min(right, left + 2 * reach)
        steps = ceil((near - left) / _PANEL)
        cuts.append(np.linspace(left, near, steps + 1)[1:])
        if near < right:
            cuts.append(np.array([right]))
    return np.concatenate(cuts)


def _bottom(others: Floats, least: float) -> float:
    """A t ≤ 0 below which h is under e^`least`: found by halving, as ln h is monotone there."""
    if _log_h(np.zeros(1), others)[0] < least:
        return 0.0
    low, high = -float(others.min()) + least - 1.0, 0.0
    while high - low > 0.5:
        middle = (low + high) / 2
        if _log_h(np.array([middle]), others)[0] < least:
            low = middle
        else:
            high = middle
    return low


def _rule(edges: Floats) -> tuple[Floats, Floats]:
    """Nodes and weights of the panels between `edges`."""
    half = np.diff(edges) / 2
    middle = edges[:-1] + half
    places, weights = _legendre()
    nodes = middle[:, None] + half[:, None] * places
    return nodes.ravel(), (half[:, None] * weights).ravel()


def _by_chunks(
    share: Callable[[Floats, Floats], Floats], nodes: Floats, weights: Floats, actions: int
) -> Floats:
    """The sum of `share` over the nodes, a table of bounded size at a time."""
    step = max(1, _CHUNK // actions)
    total = np.zeros(actions)
    for start in range(0, len(nodes), step):
        total += share(nodes[start : start + step], weights[start : start + step])
    return total


def _normal(logs: Floats) -> Floats:
    """The same law, with a log-probability near 0 computed from the others': near a probability
    of 1 no digits are lost to rounding.
    """
    top = int(logs.argmax())
    rest = np.exp(np.delete(logs, top)).sum()
    if rest < 0.5:
        logs[top] = np.log1p(-rest)
    return logs
