"""sim.py OUT LEARNERS SETTINGS RUNS: regret of uniform's in percent, per run."""
import json, sys, time, zlib
from fractions import Fraction
import numpy as np
from streamdp.core.evidence.contexts import Contexts
from streamdp.core.learners.feedback import FEEDBACK_RECIPES
from streamdp.lab.play import RunBits, play, slots_of
from streamdp.lab.context_worlds import TableShows, shares_of

BIG, SMALL = (8, 3, 4, 6), (3, 4)

def best_by(shape, fields, K, rng):
    kept = [s if f in fields else 1 for f, s in enumerate(shape)]
    best = np.broadcast_to(rng.integers(K, size=kept), shape)
    return (best[..., None] == np.arange(K)).astype(float)

def world(name, shape, K, rng):
    if name == "nothing":
        r = .03 + .02 * best_by(shape, [], K, rng)
    elif name == "field":
        r = .03 + .02 * best_by(shape, [0], K, rng)
    elif name == "additive":
        e = np.zeros((*shape, K))
        for f in range(len(shape)):
            kept = [s if g == f else 1 for g, s in enumerate(shape)]
            e += rng.normal(0, 1, (*kept, K))
        r = .03 + .01 / np.sqrt(len(shape)) * e
    elif name == "pair":
        r = .03 + .02 * best_by(shape, [0, 1], K, rng)
    elif name == "three":
        r = .03 + .06 * best_by(shape, [], K, rng)
    elif name == "rare":
        one = best_by(shape, [], K, rng)
        r = np.broadcast_to(one, (*shape, K)).copy()
        other = np.roll(one[(0,) * len(shape)], 1)
        r[-1] = other
        r = .03 + .02 * r
    elif name == "odd":
        own = (rng.random(shape) < .2)[..., None]
        r = .03 + .02 * np.where(own, best_by(shape, range(len(shape)), K, rng), best_by(shape, [], K, rng))
    elif name == "rates":
        fac = np.geomspace(.5, 2, shape[-1])[:, None]
        r = (.03 + .02 * best_by(shape, [0], K, rng)) * fac
    return np.clip(np.broadcast_to(r, (*shape, K)).reshape(-1, K), .002, .2)

WORLDS = ("nothing", "field", "additive", "pair", "three", "rare")

def learner_of(kind, shape, K, eps, played):
    names = tuple("abcdefghijklmnopqrstuvwxyz"[:K])
    if kind == "noctx":
        return FEEDBACK_RECIPES["policy_following"](actions=names, epsilon=eps, played=played)
    fields = Contexts.read({f"f{n}": [str(i) for i in range(s - 1)] for n, s in enumerate(shape)})
    return FEEDBACK_RECIPES["policy_contexts"](actions=fields.arms(names), epsilon=eps, context=fields, played=played, interactions=kind)

def run(kind, name, shape, K, eps, played, slots, runs, first=0, trace=None):
    learner = learner_of(kind, shape, K, eps, played)
    lost = uni = 0
    rates = np.array([world(name, shape, K, np.random.default_rng([first + s, zlib.crc32(name.encode()), K, len(shape)])) for s in range(runs)])
    shares = shares_of(shape)
    shows = TableShows(rates, shares, learner, (first, 7), slots)
    bits = RunBits.of(first + 1, range(runs))
    gaps = rates.max(axis=2, keepdims=True) - rates
    uniform = gaps.mean(axis=2) @ shares
    tot = np.zeros(runs)
    for step in play(learner, runs, shows, bits):
        sl = slots_of(learner.schedule, step.block, slots)
        if not sl: break
        l = (shows.policies(step.in_force) * gaps).sum(axis=2) @ shares
        tot += len(sl) * l
        if trace is not None: trace(step.block, len(sl), l / uniform, step)
    return (100 * tot / (slots * uniform)).tolist()

def settings():
    out = []
    for n in (5000, 50000, 100000, 200000, 1 << 20):
        for w in WORLDS: out.append((w, BIG, 4, "1", "header", n))
    for n in (5000, 50000):
        for w in WORLDS:
            out.append((w, BIG, 20, "1", "header", n))
            out.append((w, SMALL, 4, "1", "header", n))
            out.append((w, BIG, 4, "1", "value", n))
            out.append((w, BIG, 4, "3/10", "header", n))
    for w in WORLDS: out.append((w, BIG, 4, "1", "value", 1 << 20))
    return out

def main():
    out, kinds, which, runs = sys.argv[1], sys.argv[2].split(","), sys.argv[3], int(sys.argv[4])
    chosen = settings()
    if which != "every":
        chosen = [s for s in chosen if eval(which, {}, dict(zip("w shape K eps played n".split(), s)))]
    try: done = {tuple(json.loads(k)) for k in (json.dumps(json.loads(l)["id"]) for l in open(out))}
    except FileNotFoundError: done = set()
    for s in chosen:
        for kind in kinds:
            w, shape, K, eps, played, n = s
            ident = [kind, w, "x".join(map(str, shape)), K, eps, played, n]
            if tuple(ident) in done: continue
            t = time.process_time()
            found = run(kind, w, shape, K, eps, played, n, runs)
            with open(out, "a") as f: f.write(json.dumps({"id": ident, "runs": found, "cpu": round(time.process_time() - t, 1)}) + "\n")

if __name__ == "__main__": main()
