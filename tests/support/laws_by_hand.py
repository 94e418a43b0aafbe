"""The laws of the selections by exact algebra in many digits: what the quadrature must agree with.

Permute-and-flip's integrand is a polynomial, expanded and integrated term by term; that of the
Laplace noisy max is, between two kinks, a sum of terms c·e^(mt). Both take 2^K terms or so.
"""

from __future__ import annotations

from itertools import pairwise

import mpmath as mp

Handicaps = list[float]
Exact = list[mp.mpf]


def exponential(s: Handicaps) -> Exact:
    """ln of e^(−s_i) over their sum."""
    total = mp.log(mp.fsum(mp.exp(-mp.mpf(x)) for x in s))
    return [-mp.mpf(x) - total for x in s]


def permute_and_flip(s: Handicaps) -> Exact:
    """ln of w_i ∫₀¹ ∏_{j≠i} (1 − u·w_j) du."""
    w = [mp.exp(-mp.mpf(x)) for x in s]
    logs = []
    for i, own in enumerate(w):
        powers = [mp.mpf(1)]  # coefficients of u⁰, u¹, …
        for j, other in enumerate(w):
            if j != i:
                shifted = [mp.mpf(0), *(-other * c for c in powers)]
                powers = [a + b for a, b in zip([*powers, mp.mpf(0)], shifted, strict=True)]
        logs.append(mp.log(own) + mp.log(mp.fsum(c / (k + 1) for k, c in enumerate(powers))))
    return logs


def laplace(s: Handicaps) -> Exact:
    """ln of ∫ f(t + s_i) ∏_{j≠i} F(t + s_j) dt, panel by panel between the kinks t = −s_j."""
    exact = [mp.mpf(x) for x in s]
    edges = [-mp.inf, *sorted({-x for x in exact}), mp.inf]
    logs = []
    for i in range(len(s)):
        parts = []
        for low, high in pairwise(edges):
            terms = {0: mp.mpf(1)}
            for j, x in enumerate(exact):
                below = high <= -x
                if i == j:
                    factor = {1: mp.exp(x) / 2} if below else {-1: mp.exp(-x) / 2}
                elif below:
                    factor = {1: mp.exp(x) / 2}
                else:
                    factor = {0: mp.mpf(1), -1: -mp.exp(-x) / 2}
                terms = _product(terms, factor)
            parts += [_integral(c, m, low, high) for m, c in terms.items() if c]
        logs.append(mp.log(mp.fsum(parts)))
    return logs


def _product(left: dict[int, mp.mpf], right: dict[int, mp.mpf]) -> dict[int, mp.mpf]:
    """Two sums of c·e^(mt), by m, multiplied."""
    out: dict[int, mp.mpf] = {}
    for m, c in left.items():
        for n, d in right.items():
            out[m + n] = out.get(m + n, mp.mpf(0)) + c * d
    return out


def _integral(c: mp.mpf, m: int, low: mp.mpf, high: mp.mpf) -> mp.mpf:
    """∫ c·e^(mt) dt from low to high."""
    if m == 0:
        return c * (high - low)
    ends = [mp.mpf(0) if mp.isinf(t) else mp.exp(m * t) for t in (low, high)]
    return c * (ends[1] - ends[0]) / m
