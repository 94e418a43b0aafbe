"""`replay_feedback`: which question a log of feedback can answer, and the answer. NOT PRIVATE.

Reasons to refuse:

- **no propensities**: a reward depends on the action and on the requests that it was shown to; if
  it is unknown how the action was chosen, the two cannot be separated;
- **some missing**: estimates from the other records would be about other requests;
- **nothing drawn**: with a propensity of 1 the log says nothing of other actions;
- **wrong propensities**: under any policy weights have the mean 1, and uniform play's mean is too
  far from it (`_MOST_ERRORS` standard errors);
- **uniform draws that are not uniform** (χ², false alarm 10⁻⁶);
- **too few records** for any interval;
- **learners that play themselves** on anything but losses of all actions or uniform draws.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice, product
from math import sqrt
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np

from streamdp.core.arrays import Ints
from streamdp.core.errors import InvalidConfig
from streamdp.core.events import SPARE, names_in
from streamdp.core.evidence.experiment import Arms
from streamdp.core.evidence.policy import PARTS, policy_of
from streamdp.core.releases import Release
from streamdp.lab.common.answer import Answer
from streamdp.lab.common.bench import Bench
from streamdp.lab.common.cells import Epsilon, LearnerCell
from streamdp.lab.logs.log import Log, key_text
from streamdp.lab.logs.shown import KeyRecords, ShownLog, SlotCells, over_cells
from streamdp.lab.logs.stages import Watch, unwatched
from streamdp.lab.logs.taken_lists import NO_LISTS, TakenLists
from streamdp.lab.offpolicy import exact, rejection, weighted
from streamdp.lab.offpolicy.cells import AnyCell, FeedbackCell, cells_of
from streamdp.lab.offpolicy.fold import fold
from streamdp.lab.offpolicy.shares import OwnKeys
from streamdp.lab.workers import IN_PROCESS, Workers
from streamdp.wire.lines import TakenList

Logged = Literal["auto", "propensities", "uniform", "service"]
LOGGED: tuple[Logged, ...] = ("auto", "propensities", "uniform", "service")

OfRun = tuple[FeedbackCell, int, tuple[Release, ...]]
"""What a learner releases under a seed."""

Method = Literal["exact", "propensities", "uniform", "service"]

_FEWEST = 30
_MOST_ERRORS = 10.0
_UNIFORM_Z = 4.75  # of a normal law: 10⁻⁶
_SAME = 1e-6  # largest difference of uniform draws' propensities from 1/K


def read_logged(option: str) -> Logged:
    """Parse the option that says how actions were drawn."""
    for kind in LOGGED:
        if option == kind:
            return kind
    expected = " | ".join(LOGGED)
    raise InvalidConfig("--logged", "unknown", expected=expected, got=option)


@dataclass(frozen=True, slots=True)
class FeedbackQuestion:
    """The question that a replay answers."""

    learners: tuple[str, ...]
    epsilons: tuple[Epsilon, ...]
    seeds: tuple[int, ...]
    stream: str = "replay"
    epoch: int = 1
    logged: Logged = "auto"
    incomplete: Literal["refuse", "leave out"] = "refuse"  # records without a propensity
    most_key_bytes: int = 1024  # of a service: a record with a longer key got no learner
    taken: TakenLists = NO_LISTS  # of a service: that its owners took

    def __post_init__(self) -> None:
        """Refuse a question without seeds, or with a repeated learner."""
        if not self.seeds:
            raise InvalidConfig("seeds", "none", expected="at least 1", got=0)
        if not self.learners or len(set(self.learners)) < len(self.learners):
            got = ", ".join(self.learners) or "none"
            raise InvalidConfig("learners", "not a list", expected="different learners", got=got)

    @property
    def bench(self) -> Bench:
        """The sources of randomness."""
        return Bench(self.seeds, self.stream, self.epoch)


@dataclass(frozen=True, slots=True)
class LogFindings:
    """Statistics of the log itself."""

    slots: int
    keys: int
    watched: str  # the key that charts and experiments show
    refused: int = 0  # slots of keys that the service gave no learner
    unnamed: int = 0  # slots that name no known action
    without: int = 0  # slots with a known action, but no propensity
    settled: int = 0  # slots whose action was not drawn: a propensity of 1
    clipped: int = 0


@dataclass(frozen=True, slots=True)
class FeedbackReplay:
    """The content of a report."""

    log: str
    actions: tuple[str, ...]
    question: FeedbackQuestion
    method: Method
    findings: LogFindings
    answers: tuple[Answer, ...]
    rejected: tuple[Answer, ...] = ()  # uniform draws: learners as if run live
    fixed: weighted.Fixed | None = None  # the value of single actions
    best: float | None = None  # losses of all actions: the mean reward of the best fixed one
    best_of_cells: float | None = None  # with contexts: that of each cell's best
    uniform: float | None = None  # and that of uniform play
    releases: tuple[OfRun, ...] = ()  # of a service


DRAWN_A_SECOND = 6e6
"""Slots per second, each under one seed of one cell; one core of 2024, for estimates."""


@runtime_checkable
class OwnPlay(Protocol):
    """A learner that the player cannot play: it brings its own loops through logs."""

    slots_a_second: float

    def on_losses(self, name: str, keys: OwnKeys, slots: exact.KeySlots, bench: Bench) -> Any:
        """Play the losses of all actions of some keys as feedback."""
        ...

    def of_losses(
        self, cell: AnyCell, played: Iterator[Any], counts: Ints, slots: exact.KeySlots
    ) -> Answer:
        """Add up what was played; `counts` are each key's slots."""
        ...

    def on_draws(self, keys: OwnKeys, records: KeyRecords, actions: int, bench: Bench) -> Any:
        """Play uniform draws of some keys, by the records that show what it plays."""
        ...

    def of_draws(self, cell: AnyCell, played: Iterator[Any], log: ShownLog, bench: Bench) -> Answer:
        """Add up what was played."""
        ...


def seconds_for(log: Log, question: FeedbackQuestion, within: SlotCells | None = None) -> float:
    """About how many seconds a log of losses takes."""
    cells = _cells_within(log, question, within)
    seconds_a_slot = sum(
        1 / getattr(cell.learner, "slots_a_second", DRAWN_A_SECOND) for cell in cells
    )
    return log.slots * len(question.seeds) * seconds_a_slot


def _cells_within(
    log: Log, question: FeedbackQuestion, within: SlotCells | None
) -> tuple[AnyCell, ...]:
    contexts = None if within is None else within.contexts
    return cells_of(question.learners, question.epsilons, actions=log.actions, contexts=contexts)


def replay_losses(
    log: Log,
    question: FeedbackQuestion,
    *,
    watch: Watch = unwatched,
    within: SlotCells | None = None,
    workers: Workers = IN_PROCESS,
) -> FeedbackReplay:
    """Play a log of the losses of all actions as feedback, maybe with contexts."""
    cells = _cells_within(log, question, within)
    policies, own = _parted(cells)
    bench, workers = question.bench, workers.near
    keys, slots, answers = exact.play_losses(log, policies, bench, watch, within, workers)
    tell = watch("playing phases, learners", len(own))
    work = partial(_on_losses, name=log.name, slots=slots, bench=bench)
    for done, (cell, played) in enumerate(_by_themselves(own, keys.counts, work, workers)):
        tell(done)
        answers.append(cell.learner.of_losses(cell, played, keys.counts, slots))
    watched = int(keys.counts.argmax())
    partition, key = keys.rows.keys[watched]
    totals, lost = keys.totals / (1 << 20), float(keys.lost.min(axis=2).sum()) / (1 << 20)
    return FeedbackReplay(
        log=log.name,
        actions=log.actions,
        question=question,
        method="exact",
        findings=LogFindings(keys.slots, len(keys.rows), key_text(key, partition)),
        answers=_in_order(answers, cells),
        best=1 - float(totals.min(axis=1).sum()) / keys.slots,
        best_of_cells=None if within is None else 1 - lost / keys.slots,
        uniform=1 - float(totals.mean(axis=1).sum()) / keys.slots,
    )


def replay_shown(
    log: ShownLog,
    question: FeedbackQuestion,
    *,
    watch: Watch = unwatched,
    workers: Workers = IN_PROCESS,
) -> FeedbackReplay:
    """Evaluate a log of feedback, as far as its propensities allow."""
    if question.taken.columns and question.logged == "service":
        log = log.in_columns(question.taken.columns)
    cells = cells_of(
        question.learners, question.epsilons, actions=log.actions, contexts=log.contexts
    )
    slots, bench, workers = log.slots, question.bench, workers.near
    log, draws, method = _answerable(log, question)
    policies, phases = _parted(cells)
    if phases and method != "uniform":
        raise _refused(log, *_PHASES_UNKNOWN, got=", ".join(dict.fromkeys(p.name for p in phases)))
    partition, key = log.learners[int(log.counts.argmax())]
    answer = FeedbackReplay(
        log=log.name,
        actions=log.actions,
        question=question,
        method=method,
        findings=replace(
            _findings(log, draws, key_text(key, partition)), refused=slots - log.slots
        ),
        answers=tuple(weighted.weigh(log, policies, bench, watch, workers)),
    )
    if method == "service":
        _check_lists(log, question.taken.lists)
        private = [cell for cell in policies if cell.learner.charge is not None]
        runs = [(cell, seed) for cell in private for seed in question.seeds]
        found = workers.map(partial(_releases, log=log, question=question), runs)
        releases = tuple((*run, of) for run, of in zip(runs, found, strict=True))
        if question.taken.lists:
            as_released = tuple(_as_released(of, releases, log) for of in answer.answers)
            answer = replace(answer, answers=as_released)
        return _of_names(replace(answer, releases=releases))
    answer = replace(answer, fixed=weighted.fixed(log))
    if method == "uniform":
        rejected = rejection.reject(log, policies, bench, watch, workers)
        tell = watch("playing phases on records that agree, learners", len(phases))
        seen = log.without_contexts if phases else log
        work = partial(_on_draws, records=seen.by_key, actions=len(log.actions), bench=bench)
        for done, (cell, played) in enumerate(_by_themselves(phases, log.counts, work, workers)):
            tell(done)
            rejected.append(cell.learner.of_draws(cell, played, seen, bench))
        return replace(answer, rejected=_in_order(rejected, cells))
    return answer


_PHASES_UNKNOWN = (
    "phases end by the count of what a learner itself plays, which this log does not say",
    "policy_* learners, uniform draws, or a log of the losses of all actions",
)


def _parted(
    cells: tuple[AnyCell, ...],
) -> tuple[tuple[FeedbackCell, ...], tuple[LearnerCell[OwnPlay], ...]]:
    """Those that the player plays, and those that play themselves."""
    own = [isinstance(cell.learner, OwnPlay) for cell in cells]
    return (
        tuple(cell for cell, itself in zip(cells, own, strict=True) if not itself),
        tuple(cell for cell, itself in zip(cells, own, strict=True) if itself),
    )


def _by_themselves(
    cells: Sequence[LearnerCell[OwnPlay]],
    counts: Ints,
    work: Callable[[tuple[LearnerCell[OwnPlay], OwnKeys]], Any],
    workers: Workers,
) -> Iterator[tuple[LearnerCell[OwnPlay], Iterator[Any]]]:
    """What each learner plays on shares of keys, which workers take in turn."""
    shares = OwnKeys.shares(counts)
    found = workers.map(work, product(cells, shares))
    for cell in cells:
        yield cell, islice(found, len(shares))


def _on_losses(
    part: tuple[LearnerCell[OwnPlay], OwnKeys], *, name: str, slots: exact.KeySlots, bench: Bench
) -> Any:
    cell, keys = part
    return cell.learner.on_losses(name, keys, slots, bench)


def _on_draws(
    part: tuple[LearnerCell[OwnPlay], OwnKeys], *, records: KeyRecords, actions: int, bench: Bench
) -> Any:
    cell, keys = part
    return cell.learner.on_draws(keys, records, actions, bench)


def _in_order(answers: list[Answer], cells: tuple[AnyCell, ...]) -> tuple[Answer, ...]:
    """The answers in the order of the question's cells."""
    by_cell = {(answer.cell.name, answer.cell.epsilon): answer for answer in answers}
    return tuple(by_cell[cell.name, cell.epsilon] for cell in cells)


def _check_lists(log: ShownLog, lists: Sequence[TakenList]) -> None:
    """Refuse lists of other columns than the log's actions."""
    for of in lists:
        same = len(of.actions) == len(log.actions) and all(
            name in (SPARE, action) for name, action in zip(of.actions, log.actions, strict=True)
        )
        if not same:
            what = f"list {of.list_ordinal} of partition {of.partition} has other actions"
            expected, got = ", ".join(log.actions), ", ".join(of.actions)
            raise InvalidConfig("--ledger", what, expected=f"{expected} (--actions)", got=got)


def _as_released(answer: Answer, releases: Sequence[OfRun], log: ShownLog) -> Answer:
    """With the released policies of the watched key, which follow lists: played ones do not."""
    watched, K = log.learners[int(log.counts.argmax())], len(log.actions)
    of_seeds = []
    for cell, _, released in releases:
        if (cell.name, cell.epsilon) == (answer.cell.name, answer.cell.epsilon):
            parts = partial(policy_of, actions=K, cells=len(cell.learner.actions) // K)
            mine = (of for of in released if (of.identity.partition, of.key) == watched)
            of_seeds.append([parts(of.policy or b"") / PARTS for of in mine])
    if not of_seeds:
        return answer  # of what is not private
    policies = np.mean(of_seeds, axis=0)
    own = policies if policies.shape[1] == K else over_cells(policies, log.in_cells)
    return replace(answer, shares=replace(answer.shares, shares=own))


def _of_names(replay: FeedbackReplay) -> FeedbackReplay:
    """Without the columns that have no name, which are the last ones."""
    names = names_in(replay.actions)

    def of_names(answer: Answer) -> Answer:
        arms, shares, of = answer.arms, answer.shares, slice(len(names))
        if arms is not None:
            arms = Arms(
                arms.blocks, arms.shown[of], arms.means[of], arms.low[of], arms.high[of],
                arms.chances[of],
            )  # fmt: skip
        return replace(answer, arms=arms, shares=replace(shares, shares=shares.shares[:, of]))

    return replace(replay, actions=names, answers=tuple(map(of_names, replay.answers)))


def _releases(
    run: tuple[FeedbackCell, int], *, log: ShownLog, question: FeedbackQuestion
) -> tuple[Release, ...]:
    """The releases of a private cell under a seed, by the shipped engine."""
    cell, seed = run
    seen, stream, epoch = log.seen_by(cell.learner), question.stream, question.epoch
    lists = question.taken.lists
    return tuple(fold(seen, cell.learner, seed=seed, stream=stream, epoch=epoch, lists=lists))


@dataclass(slots=True)
class _Draws:
    """What a log says of its draws."""

    named: int = 0  # slots that name a known action
    known: int = 0  # of these: with a propensity
    settled: int = 0  # of these: with a propensity of 1
    uneven: int = 0  # with one below 1 that is not 1/K
    weight: float = 0.0  # Σ of the weights of uniform play
    squares: float = 0.0
    shown: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))  # drawn, by action

    @classmethod
    def of(cls, log: ShownLog) -> _Draws:
        """Look at all slots once."""
        K = len(log.actions)
        draws = cls(shown=np.zeros(K, dtype=np.int64))
        for chunk in log.chunks():
            named = chunk.played >= 0
            good, settled = weighted.usable(chunk), named & (chunk.pscore == 1)
            draws.named += int(named.sum())
            draws.known += int((named & ~np.isnan(chunk.pscore)).sum())
            draws.settled += int(settled.sum())
            masked = chunk.mask[good]
            draws.uneven += int(((np.abs(chunk.pscore[good] - 1 / K) > _SAME) | (masked > 0)).sum())
            weights = 1 / (log.allowed.sum(axis=1)[masked] * chunk.pscore[good])
            draws.weight += float(weights.sum())
            draws.squares += float((weights**2).sum())
            draws.shown += np.bincount(chunk.shown[good], minlength=K)
        return draws

    @property
    def drawn(self) -> int:
        """How many slots take part in estimates."""
        return int(self.shown.sum())


def _findings(log: ShownLog, draws: _Draws, watched: str) -> LogFindings:
    return LogFindings(
        slots=log.slots,
        keys=len(log.learners),
        watched=watched,
        unnamed=log.slots - draws.named,
        without=draws.named - draws.known,
        settled=draws.settled,
        clipped=log.clipped,
    )


def _answerable(log: ShownLog, question: FeedbackQuestion) -> tuple[ShownLog, _Draws, Method]:
    """The log with its propensities and what it can answer; or raise the reason to refuse it."""
    asked, even = question.logged, 1 / len(log.actions)
    if asked == "service":
        log = log.with_learners(
            [key is None or len(key) <= question.most_key_bytes for _, key in log.learners]
        )
        log = replace(log, pscore=np.broadcast_to(np.nan, log.slots))
        return log, _Draws.of(log), "service"
    draws = _Draws.of(log)
    if asked == "uniform":
        if draws.uneven or draws.settled:
            expected = f"propensities of {even:.6g}, as uniform draws have"
            raise _refused(log, "not uniform", expected, "others")
        log = replace(log, pscore=np.broadcast_to(even, log.slots))
        draws = _Draws.of(log)
    _check_propensities(log, draws, question)
    if draws.uneven or asked == "propensities":
        _check_weights(log, draws)
        return log, draws, "propensities"
    _check_uniform(log, draws.shown)
    return log, draws, "uniform"


def _check_propensities(log: ShownLog, draws: _Draws, question: FeedbackQuestion) -> None:
    """Refuse a log without propensities if an estimate needs them."""
    if not draws.known:
        expected = (
            "pscore, the probability with which each action was drawn (choose tells it), or"
            " --logged uniform if every action was as likely as any other; --logged service shows"
            " what a service on this topic released, and no value"
        )
        raise _refused(log, "no propensities: what others would have won is unknown", expected)
    without = draws.named - draws.known
    if without and question.incomplete == "refuse":
        got = f"{without:,} of {draws.named:,} without"
        expected = "one in each record that names an action, or --on-bad null to leave these out"
        raise _refused(log, "propensities are missing", expected, got)
    if not draws.drawn:
        expected = "actions that were drawn with a propensity below 1"
        raise _refused(log, "nothing was drawn", expected, "1 everywhere")
    if draws.drawn < _FEWEST:
        got = str(draws.drawn)
        raise _refused(log, "too few records", f"{_FEWEST} with a propensity below 1", got)


def _check_weights(log: ShownLog, draws: _Draws) -> None:
    """Refuse propensities that cannot be those of the draws: weights have the mean 1."""
    n = draws.drawn
    mean = draws.weight / n
    error = sqrt(max(0.0, draws.squares - n * mean**2) / (n - 1) / n)
    if abs(mean - 1) > _MOST_ERRORS * error:
        raise _refused(
            log,
            "these are not the propensities of the draws, or an action was never drawn",
            f"weights of uniform play with a mean of 1 ± {_MOST_ERRORS:g} × {error:.2g}",
            f"{mean:.3g}",
        )


def _check_uniform(log: ShownLog, counts: Ints) -> None:
    """Refuse draws whose counts are too uneven: χ² by the cube root (Wilson & Hilferty 1931)."""
    K = len(log.actions)
    expected = counts.sum() / K
    statistic, df = float(((counts - expected) ** 2 / expected).sum()), K - 1
    z = ((statistic / df) ** (1 / 3) - (1 - 2 / (9 * df))) / sqrt(2 / (9 * df))
    if z > _UNIFORM_Z:
        raise _refused(
            log,
            "its actions were not drawn uniformly",
            f"about {expected:,.0f} records of each action",
            f"{counts.min():,} to {counts.max():,}",
        )


def _refused(log: ShownLog, why: str, expected: str, got: str = "none") -> InvalidConfig:
    return InvalidConfig(log.name, why, expected=expected, got=got)
