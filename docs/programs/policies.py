"""Computes every policy of a feedback stream from its ledger, bit for bit.

docs/policies.md says what goes in. Nothing here is of streamdp's: it is the whole definition, to be
read or written again in another language; a test compares it with what streamdp publishes.
"""

from collections.abc import Callable, Iterable
from decimal import Decimal, getcontext
from itertools import pairwise
from math import frexp, inf, sqrt
from operator import add, mul

Floats = list[float]
Hypothesis = tuple[float, Floats, Floats]
"""L = log₂ of its weight, and w and g of every action."""

getcontext().prec = 60

# Of all recipes

PRIOR, TAILS, LEAST_VARIANCE = 4.0, 1.75, 2.0**-12
PARTS, FINE = 24, 36  # bits of a policy's parts, and before rounding


def fold(values: Iterable[float], operation: Callable[[float, float], float] = add) -> float:
    """Combine numbers by halves, which fixes how they are rounded."""
    values = list(values)
    while len(values) > 1:
        half = len(values) // 2
        folded = [operation(values[i], values[half + i]) for i in range(half)]
        if len(values) % 2:
            folded[0] = operation(folded[0], values[-1])
        values = folded
    return values[0]


def level(w: Floats, g: Floats) -> tuple[float, float]:
    """Mean of all actions, and variance of one loss."""
    total = fold(w)
    if total == 0:
        return 0.0, 0.25
    mean = min(max(fold(g) / total, -0.5), 0.5)
    cautious = max(abs(mean) - sqrt(1.0 / total), 0.0)
    return mean, max(0.25 - cautious * cautious, LEAST_VARIANCE)


def weighed(
    w: Floats, g: Floats, sums: Floats, shown: Floats, *, on_sums: float, on_counts: float = 0.0
) -> tuple[Floats, Floats]:
    """What a block adds to w and g."""
    variance = level(w, g)[1]
    for _ in range(2):
        weights, products = [], []
        for s, n in zip(sums, shown):
            count = max(float(n), 1.0)
            mean = s / 2**20 / count
            noise = TAILS * (on_sums + on_counts * (mean * mean))
            weight = count * count / (variance * count + noise) if n >= 1 else 0.0
            weights.append(weight)
            products.append(weight * mean)
        variance = level(list(map(add, w, weights)), list(map(add, g, products)))[1]
    return weights, products


def learned(
    w: Floats, g: Floats, sums: Floats, shown: Floats, *, forgetting: float = 1.0, **noise: float
) -> tuple[Floats, Floats]:
    """w and g after a block."""
    w, g = [x * forgetting for x in w], [x * forgetting for x in g]
    weights, products = weighed(w, g, sums, shown, **noise)
    return list(map(add, w, weights)), list(map(add, g, products))


def posterior(w: Floats, g: Floats) -> tuple[Floats, Floats]:
    """Mean and standard deviation of each action."""
    mean, variance = level(w, g)
    prior = PRIOR / variance
    precisions = [x + prior for x in w]
    means = [(x + prior * mean) / p for x, p in zip(g, precisions)]
    return means, [sqrt(1.0 / p) for p in precisions]


def parts(chances: Floats) -> list[int]:
    """K integers that add up to 2**24."""
    upto, fine = [0], [round(chance * 2**FINE) for chance in chances]
    for number in fine:
        upto.append(upto[-1] + number)
    cut = [(number << PARTS) // upto[-1] for number in upto]
    return [b - a for a, b in pairwise(cut)]


# policy_elimination


def elimination(w: Floats, g: Floats, *, width: float) -> list[int]:
    """The policy."""
    means, deviations = posterior(w, g)
    reach = [deviation * width for deviation in deviations]
    best = max(map(lambda m, r: m - r, means, reach))
    alive = [1.0 if m + r >= best else 0.0 for m, r in zip(means, reach)]
    return parts([x / fold(alive) for x in alive])


# policy_blocks

PHI_0 = Decimal("0.39894228040143267793994605993438186847585863116493465766592583")  # 1/√(2π)


def phi(k: int) -> Decimal:
    """Φ(k/256), for k ≥ 0."""
    z = Decimal(k) / 256
    term, total, odd = z, z, 1
    while term > Decimal(10) ** -55:
        odd += 2
        term = term * z * z / odd
        total += term
    return Decimal("0.5") + PHI_0 * (-z * z / 2).exp() * total


UPPER = [phi(k) for k in range(6 * 256 + 1)]
NORMAL = [*(float(1 - x) for x in UPPER[:0:-1]), *map(float, UPPER)]


def below(point: float, mean: float, deviation: float) -> float:
    """The chance to be below a point."""
    steps = 256 / deviation
    place = point * steps - (mean * steps - (6 * 256 + 0.5))
    return NORMAL[int(min(max(place, 0.0), 2.0 * 6 * 256))]


def chances_of_best(means: Floats, deviations: Floats) -> Floats:
    """How likely each action is to be the best."""
    laws = list(zip(means, deviations))
    low = max(m - s * 4.0 for m, s in laws)
    high = max(m + s * 5.0 for m, s in laws)
    coarse = [low + (high - low) * (c / 16) for c in range(17)]
    every = [fold([below(x, *law) for law in laws], mul) for x in coarse]
    reached = [0.5 * (p / every[-1] + c / 16) for c, p in enumerate(every)]
    inner = []
    for wanted in (c / 32 for c in range(1, 32)):
        at = sum(r <= wanted for r in reached) - 1
        width, step = reached[at + 1] - reached[at], coarse[at + 1] - coarse[at]
        inner.append(coarse[at] + step * ((wanted - reached[at]) / width))
    points = [coarse[0], *inner, coarse[-1]]
    table = [[below(x, *law) for law in laws] for x in points]
    every = [fold(row, mul) for row in table]
    chances = []
    for j in range(len(laws)):
        others = [p / row[j] for p, row in zip(every, table)]
        chances.append(
            fold([(table[c + 1][j] - table[c][j]) * (others[c + 1] + others[c]) for c in range(32)])
        )
    return [chance / fold(chances) for chance in chances]


def blocks(
    means: Floats, deviations: Floats, *, spread: float, shows: float, length: int
) -> list[int]:
    """The policy; `shows` is floor/ε."""
    chances = chances_of_best(means, [deviation * spread for deviation in deviations])
    best = means.index(max(means))
    least = []
    for m, s in zip(means, deviations):
        behind = means[best] - m
        squares = behind * behind / (s * s + deviations[best] * deviations[best])
        share = max(1.0 / (1.0 + squares / 9.0), 0.25)
        least.append(min(shows * share / length, 0.5 / len(means)))
    spare = [max(chance - x, 0.0) for chance, x in zip(chances, least)]
    share = (1.0 - fold(least)) / fold(spare)
    return parts([x + y * share for x, y in zip(least, spare)])


# policy_weights


def weights_learned(
    gains: Floats, squares: Floats, sums: Floats, shown: Floats, *, forgetting: float = 1.0
) -> tuple[Floats, Floats]:
    """G and Q after a block."""
    counts = [max(float(n), 0.0) for n in shown]
    slots = max(fold(counts), 1.0)
    estimates = [slots * (s / 2**20) / max(n, 1.0) if n >= 1 else 0.0 for s, n in zip(sums, counts)]
    shares = [n / slots for n in counts]
    mean = fold(map(mul, shares, estimates))
    spreads = [share * ((x - mean) * (x - mean)) for share, x in zip(shares, estimates)]
    return (
        [x * forgetting + y for x, y in zip(gains, estimates)],
        [x * forgetting + y for x, y in zip(squares, spreads)],
    )


ROOT = Decimal(2) ** (Decimal(-1) / 1024)


def power_of_half(exponent: float) -> float:
    """2 to the power of −exponent."""
    halvings, place = divmod(round(min(max(exponent, 0.0), 64.0) * 1024), 1024)
    return float(ROOT**place) * 0.5**halvings if halvings < 64 else 0.0


def weights(gains: Floats, squares: Floats, *, mixing: float) -> list[int]:
    """The policy."""
    arms = len(gains)
    total = max(fold(squares), 1.0)
    rate = sqrt(float(Decimal(arms).ln()) / total) / float(Decimal(2).ln())
    powers = [power_of_half(rate * (max(gains) - x)) for x in gains]
    return parts([x / fold(powers) * (1.0 - mixing) + mixing / arms for x in powers])


# policy_following

REGIMES, LEAST, HALF_LOG2_E = 6, 0.02, 0.7213475204444817


def exact_log2(number: Decimal) -> float:
    """The nearest double."""
    return float(Decimal(number).ln() / Decimal(2).ln())


LOGARITHMS = [exact_log2(Decimal(k) / 2048) for k in range(1024, 2049)]


def log2(x: float) -> float:
    """By the table."""
    mantissa, exponent = frexp(x)
    return LOGARITHMS[round(mantissa * 2048) - 1024] + exponent


def mixed(of_each: list[Floats], shares: Floats) -> Floats:
    """w or g of all actions, over the hypotheses."""
    return [fold([x * y for x, y in zip(shares, column)]) for column in zip(*of_each)]


def weights_of(hypotheses: list[Hypothesis]) -> tuple[list[bool], Floats]:
    """Which hypotheses have any w, and the weight of each."""
    known = [any(x > 0 for x in h[1]) for h in hypotheses]
    weights = [power_of_half(-h[0]) if k else 0.0 for h, k in zip(hypotheses, known)]
    return known, weights if any(known) else [1.0, *weights[1:]]


def spread_of(w: Floats, g: Floats) -> tuple[float, float]:
    """The mean of all actions, and how far one is from it beforehand."""
    total = fold(w)
    mean = min(max(fold(g) / total, -0.5), 0.5) if total > 0 else 0.0
    error = sqrt(1.0 / total) if total > 0 else 1.0
    return mean, (0.5 - max(abs(mean) - error, 0.0)) * 0.5


def laws(hypothesis: Hypothesis, mean: float, deviation: float) -> tuple[Floats, Floats]:
    """Mean and variance of each action."""
    prior = 1.0 / (deviation * deviation)
    precisions = [x + prior for x in hypothesis[1]]
    means = [(x + prior * mean) / p for x, p in zip(hypothesis[2], precisions)]
    return means, [1.0 / p for p in precisions]


def following_learned(
    hypotheses: list[Hypothesis],
    block_sums: Floats,
    shown: Floats,
    *,
    hazard: Decimal,
    **noise: float,
) -> list[Hypothesis]:
    """The hypotheses after a block."""
    known, weights = weights_of(hypotheses)
    total = fold(weights)
    shares = [x / total for x in weights]
    all_w = mixed([h[1] for h in hypotheses], shares)
    all_g = mixed([h[2] for h in hypotheses], shares)
    prior = spread_of(all_w, all_g)
    w, g = weighed(all_w, all_g, block_sums, shown, **noise)
    if not any(x > 0 for x in w):
        return hypotheses
    none = [0.0] * len(w)
    stays, begins = exact_log2(1 - hazard), log2(total) + exact_log2(hazard)
    before = [(h[0] + stays if k else -inf, *h[1:]) for h, k in zip(hypotheses, known)]
    after = []
    for hypothesis in [*before, (begins, none, none)]:
        means, variances = laws(hypothesis, *prior)
        bits = []
        for x, y, mean, variance in zip(w, g, means, variances):
            off, variance = (y / x if x > 0 else 0.0) - mean, variance + 1.0 / (x if x > 0 else 1.0)
            bit = off * off * HALF_LOG2_E / variance + log2(variance) * 0.5
            bits.append(bit if x > 0 else 0.0)
        log, old_w, old_g = hypothesis
        after.append((log - fold(bits), list(map(add, old_w, w)), list(map(add, old_g, g))))
    *old, new = after
    old[[h[0] for h in old].index(min(h[0] for h in old))] = new
    best = max(h[0] for h in old)
    return [(h[0] - best, *h[1:]) if h[0] > -inf else (0.0, none, none) for h in old]


def mixed_posterior(hypotheses: list[Hypothesis]) -> tuple[Floats, Floats]:
    """Mean and standard deviation of each action."""
    _, weights = weights_of(hypotheses)
    shares = [x / fold(weights) for x in weights]
    all_w = mixed([h[1] for h in hypotheses], shares)
    all_g = mixed([h[2] for h in hypotheses], shares)
    prior = spread_of(all_w, all_g)
    shares = [x if x >= LEAST else 0.0 for x in shares]
    total = fold(shares)
    shares = [x / total for x in shares]
    of_each = [laws(h, *prior) for h in hypotheses]
    means, deviations = [], []
    for j in range(len(hypotheses[0][1])):
        mean = fold([x * m[j] for x, (m, _) in zip(shares, of_each)])
        parts = [x * (v[j] + (m[j] - mean) * (m[j] - mean)) for x, (m, v) in zip(shares, of_each)]
        means.append(mean)
        deviations.append(sqrt(fold(parts)))
    return means, deviations
