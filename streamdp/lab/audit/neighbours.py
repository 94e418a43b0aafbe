"""Neighbours by kind: the contents that may replace each other, what each adds, and each law.

The rest of the audit is written once for all kinds; a row of `NEIGHBOURS` is what it needs to know
of one. A *slot* is a row of numbers: first its public part, which neighbours share (a header's
action), then its content. What a slot adds is computed plainly, apart from `core.kinds`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import lru_cache, partial
from itertools import product
from typing import Any, TypeVar, cast

import numpy as np

from streamdp.core.arrays import Bools, Columns, Floats, Ints, Words
from streamdp.core.events import ACTION, NO_ARM, SPARE, Batch, Key, names_in
from streamdp.core.evidence.context_model import ContextModel
from streamdp.core.evidence.policy_rules import Intervals
from streamdp.core.grid import NULL, UNIT
from streamdp.core.kinds.feedback import PolicyLearner
from streamdp.core.kinds.kind import Kind
from streamdp.core.kinds.losses import Leader
from streamdp.core.kinds.recipe import config_of
from streamdp.core.learners import RECIPES, learner_of
from streamdp.core.randomness import Purpose, SeededRandomness
from streamdp.core.schedule import LAST_SLOT, capped
from streamdp.lab.audit.around import Around
from streamdp.lab.audit.laws import Choice, Law, Noisy, scaled

K = TypeVar("K", bound=Kind)

Slots = Floats
"""n × W: a slot each. Numbers are exact in float64."""

Tables = Mapping[str, Ints]
"""Private columns by name."""

_FIELD_BITS, _FIELDS = 20, 3  # of a resampled loss in its word, three to a word
_FEW = 3  # actions whose corners of [0, 1]^K are contents; further actions repeat them
_ROOM = 3  # spare columns
_CELLS = (2, 2)  # of the smallest table that gets finer more than once; of 2 actions in each cell
_CLEARER = 64  # times ε, to see every table in few slots
_SCRIPTED = 3  # blocks of a script
_TRIED = 400  # scripts, of which those are kept that lead to other tables
_BEYOND = ((-2, NULL), (2**31 - 1, NULL), (0, -(2**63)))  # arms and a gain
_FROM_TWO = capped(LAST_SLOT - 1, first=2)


@dataclass(frozen=True)
class Neighbours:
    """What the audit knows of a kind."""

    kind: Kind
    contents: Slots  # A × C: those that may replace each other, the extremes first
    extremes: int  # how many are extremes; the others are unusable or beyond every bound
    odd: Slots  # N × W: slots of every sort that teaches nothing, and what is beyond every number
    batch: Callable[[Sequence[Key], Ints, Slots, Ints, Ints | None], Batch]
    """The slots as the service hands them to the engine: keys, index, slots, offsets, times. What a
    quarantine would take is marked, which the engine may not read."""
    made_up: Callable[[Words], Slots]  # an unremarkable slot from each row of random words
    apart: Callable[[int, int], Slots]
    """A block of this length and number in which noise of another law, and a slot that is left out
    or read twice, would show."""
    adds: Callable[[Slots, Words | None, Ints | None], Tables]
    """What each slot adds to each private column, given the words of its coins, and how many
    columns have a name as it is read (None or −1: those that began with one)."""
    law: Callable[[str, Columns, Columns], Law]
    """The exact law of a release, from the private and public columns that it is drawn from."""
    of_actions: Callable[[tuple[str, ...]], Kind]  # the kind for these actions
    published: Callable[[Ints, Ints], Ints] = lambda drawn, named: drawn
    """What is published of draws, of blocks at whose ends so many columns have a name."""
    headers: Slots = field(default_factory=lambda: np.zeros((1, 0)))
    """The public parts of a slot, P × H; one of no columns where nothing is public."""
    acts: bool = False  # whether what a release reads depends on what is in force
    tosses: Mapping[int, int] = field(default_factory=dict)
    """How many random words are read for each window (of a block) or coin (of a slot)."""
    counted: Callable[[Ints, Words | None], Tables] = lambda lengths, words: {}
    """How many slots of blocks of these lengths count, by column, given windows' words."""
    scripts: Callable[[], Ints] = lambda: np.zeros((1, 0, 0), dtype=np.int64)
    """Scripts of noisy releases, S × B × width, where what is released next follows from them."""
    clearer: Mapping[str, Any] = field(default_factory=dict)
    """Fields with which the kind has so little noise that streams of a few hundred slots lead from
    table to table; empty where what is released next never follows from releases."""
    roomy: Kind | None = None
    """The kind with spare columns, which get names later; None where it can have none."""
    outcomes: Callable[[Slots], Tables] | None = None
    """A block's columns, a row for each equally likely outcome of tosses; None: there is one."""

    def columns(self, slots: Slots) -> Tables:
        """The columns of a block of these slots: a row for each equally likely outcome."""
        if self.outcomes is not None:
            return self.outcomes(slots)
        return {name: of.sum(axis=0)[None] for name, of in self.adds(slots, None, None).items()}


# -- losses ----------------------------------------------------------------------------------------


def _of_losses(kind: Leader) -> Neighbours:
    """Loss vectors: any may replace any other. A row with a value that is not finite is null."""
    actions = len(kind.actions)
    few = min(_FEW, actions)
    bad = np.zeros((4, few))
    bad[0], bad[1, 0], bad[2, :2], bad[3, 1] = np.nan, np.nan, (7, -7), np.inf
    rows = np.concatenate([np.array(list(product((0.0, 1.0), repeat=few))), bad])
    contents = np.array([np.resize(row, actions) for row in rows])
    odd = np.concatenate([contents[1 << few :], np.zeros((2, actions))])
    odd[-2, -1], odd[-1, 0] = np.nan, -np.inf
    tosses: dict[int, int] = {}
    if kind.window == "random_prefix":
        tosses[Purpose.WINDOW] = 1
    if kind.resample == "bernoulli":
        tosses[Purpose.RESAMPLE] = -(-actions // _FIELDS)

    def batch(
        keys: Sequence[Key], index: Ints, slots: Slots, offsets: Ints, times: Ints | None
    ) -> Batch:
        bad = np.asarray(~np.isfinite(slots).all(axis=1))
        return Batch(keys, index, offsets, {"losses": slots.astype(np.float32)}, times, bad)

    def made_up(words: Words) -> Slots:
        """Losses of every size, exact in single precision; a third are corners."""
        losses = (words[:, :actions] >> np.uint64(40)) / 2.0**24
        third = np.arange(len(losses)) % 3 == 0
        losses[third] = np.rint(losses[third])
        return np.asarray(losses)

    def apart(length: int, block: int) -> Slots:
        """Null, then equal losses, then an action that is behind by about a noise unit."""
        slots = np.tile((np.arange(length) % 2)[:, None], actions).astype(np.float64)
        unit = 1 / kind.choose.rate if kind.choose.rate else 1  # a rate of 0: no noise at all
        ahead = min(max(1, round(unit)), max(1, length // 2))
        slots[-ahead:] = np.eye(actions)[block % actions]
        if length > 2:
            slots[0] = np.nan
        return slots

    def adds(slots: Slots, coins: Words | None, named: Ints | None) -> Tables:
        """Losses on the grid, 1/2 where a row is not finite; as 0 or 1 where they are resampled."""
        grid, null = _grid(slots)
        read = grid
        if kind.resample == "bernoulli":
            assert coins is not None, "a resampled loss has its coins"
            shifts = (np.arange(_FIELDS) * _FIELD_BITS).astype(np.uint64)
            fields = (coins[..., None] >> shifts) & np.uint64((1 << _FIELD_BITS) - 1)
            drawn = fields.reshape(len(coins), -1)[:, :actions]
            read = np.where(drawn < grid.astype(np.uint64), UNIT, 0)
        return {"sums": read, "totals": grid, "nulls": null}

    def counted(lengths: Ints, words: Words | None) -> Tables:
        """A random prefix is uniform on {⌊n/2⌋+1, …, n}."""
        if kind.window != "random_prefix":
            return {}
        half = lengths // 2
        window = half + 1 + (0 * half if words is None else scaled(words, lengths - half))
        return {"sums": window, "window": window}

    def outcomes(slots: Slots) -> Tables:
        """Each window, with each outcome of a null slot's coins; other losses must be 0 or 1."""
        grid, null = _grid(slots)
        first = len(grid) // 2 if kind.window == "random_prefix" else len(grid) - 1
        sums = []
        for tossed in product((0, UNIT), repeat=actions) if kind.resample != "none" else [None]:
            read = grid.copy()
            if tossed is not None:
                read[(grid % UNIT).any(axis=1)] = tossed
            sums.append(np.cumsum(read, axis=0)[first:])
        every: Ints = np.concatenate(sums)
        totals = np.repeat(grid.sum(axis=0)[None], len(every), axis=0)
        return {"sums": every, "totals": totals, "nulls": np.repeat(null.sum(), len(every))}

    def law(name: str, private: Columns, public: Columns) -> Law:
        """A choice from the window's sums; an estimate from those of the whole block."""
        in_force = public["action"].astype(np.int64)
        if name == ACTION:
            return Choice(kind.choose, private["sums"], kind.prior(in_force))
        (of,) = (of for of in kind.estimates if of.name == name)
        exact = of.statistic(private["totals"], action=in_force, nulls=private["nulls"])
        return Noisy(exact[:, None], ((1, of.scale(actions=actions)),))

    def of_actions(names: tuple[str, ...]) -> Kind:
        """Its recipe runs again, as rates may read K."""
        if kind.name not in RECIPES:
            return replace(kind, actions=names)
        return learner_of(config_of(kind), actions=names).with_estimates(kind.estimates)

    return Neighbours(
        kind, contents, extremes=1 << few, odd=odd, batch=batch,
        made_up=made_up, apart=apart, adds=adds, law=law, of_actions=of_actions,
        acts=bool(kind.bonus or kind.estimates), tosses=tosses, counted=counted, outcomes=outcomes,
    )  # fmt: skip


def _grid(slots: Slots) -> tuple[Ints, Ints]:
    """Losses in units of the grid, 1/2 where a row is not finite; and 1 for each such row."""
    null: Ints = np.asarray(~np.isfinite(slots).all(axis=1), dtype=np.int64)
    usable = np.where(null[:, None] == 1, 0.5, slots)
    return np.rint(np.clip(usable, 0.0, 1.0) * UNIT).astype(np.int64), null


# -- feedback --------------------------------------------------------------------------------------


def _of_feedback(kind: PolicyLearner) -> Neighbours:
    """An arm and a gain. With the action in the header the arm is public, else it is content.

    Of contexts the last arm is in another cell of each table than the first ones.
    """
    many, in_header = len(kind.actions), kind.played == "header"
    tables = kind.rule if isinstance(kind.rule, ContextModel) else None
    columns = many if tables is None else tables.actions
    arms = [*range(min(_FEW, many)), *([many - 1] if tables else []), NO_ARM, many]
    gains = (-NULL, NULL, 0, 10**12)  # both extremes, nothing, and beyond every bound
    pairs = [(gain,) if in_header else (arm, gain) for gain in gains for arm in arms]
    contents = np.array(list(dict.fromkeys(pairs)), dtype=np.float64)

    def batch(
        keys: Sequence[Key], index: Ints, slots: Slots, offsets: Ints, times: Ints | None
    ) -> Batch:
        played, gain = slots[:, 0].astype(np.int32), slots[:, 1].astype(np.int64)
        return Batch(keys, index, offsets, {"played": played, "gain": gain}, times, gain == 0)

    def made_up(words: Words) -> Slots:
        """Gains of which half are too large."""
        drawn = (words[:, 1] >> np.uint64(43)).astype(np.float64) * 2 - 2 * NULL
        return np.column_stack([(words[:, 0] % np.uint64(many)).astype(np.float64), drawn])

    def apart(length: int, block: int) -> Slots:
        """Arms and gains by a formula; every so many slots no arm."""
        slot = np.arange(length) + 7 * block
        drawn = slot * 77_777 % (2 * NULL) - NULL
        return np.column_stack([slot * 3 % (many + 1) - 1, drawn]).astype(np.float64)

    def have_names(named: Ints) -> Bools:
        """Whether each arm has a name, where so many columns of a cell have one: n × K."""
        named = np.where(named < 0, columns - kind.room, named)
        return np.asarray(np.arange(many) % columns < named[:, None])

    def published(drawn: Ints, named: Ints) -> Ints:
        """No number of an arm without a name, unless exact counts say that it was not shown."""
        return drawn if in_header else np.where(np.tile(have_names(named), 2), drawn, 0)

    def adds(slots: Slots, coins: Words | None, named: Ints | None) -> Tables:
        """The clipped gain to the arm's sum, and 1 to its count; nothing for no known arm.

        With the action in the content: the reward to the arm's rewards, the loss to its losses, and
        nothing for an arm without a name.
        """
        shown = (slots[:, :1] == np.arange(many)).astype(np.int64)
        if not in_header:
            shown *= have_names(np.full(len(slots), -1) if named is None else named)
        gain = np.clip(slots[:, 1:], -NULL, NULL).astype(np.int64)
        if in_header:
            return {"sums": gain * shown, "shown": shown}
        return {"rewards": (NULL + gain) * shown, "losses": (NULL - gain) * shown}

    def law(name: str, private: Columns, public: Columns) -> Law:
        """Sums with noise, then counts; where arms are content, rewards and losses with noise."""
        exact = np.concatenate([private[column.name] for column in kind.fields], axis=1)
        first, second = kind.scales
        scales = (many, first), (many, second)
        if tables is None:
            return Noisy(exact, scales)
        beyond = np.zeros(exact.shape, dtype=np.bool_)
        for row, table in enumerate(public["table"].tolist()):
            entry = tables.places[table]  # of each arm
            for at in range(1 if in_header else 2):
                part = slice(at * many, (at + 1) * many)
                exact[row, part] = _added_up(entry, exact[row, part])
                beyond[row, part] = np.arange(many) > entry.max()
        return Noisy(exact, scales, beyond)

    def of_actions(names: tuple[str, ...]) -> Kind:
        """Of many with the cheapest rule: how policies are computed has no part in noise."""
        plain = replace(kind, room=0, actions=names)
        if len(names) > _FEW:
            return replace(plain, rule=Intervals(Fraction(2)), forgetting=Fraction(1))
        if tables is None:
            return plain
        shape = _CELLS[: len(tables.shape)]  # a table of fewer cells, whatever its actions' names
        few = {tuple(at for at in of if at < len(shape)) for of in tables.tables}
        small = replace(
            tables, shape=shape, actions=2, room=0,
            tables=tuple(sorted(few, key=lambda of: (len(of), of))),
        )  # fmt: skip
        return replace(plain, actions=tuple(map(str, range(small.arms))), rule=small)

    return Neighbours(
        kind, contents, extremes=len(contents) // 2, batch=batch, made_up=made_up, apart=apart,
        odd=np.array([(NO_ARM, NULL), (many, -NULL), (0, 0), *_BEYOND], dtype=np.float64),
        adds=adds, published=published, law=law, of_actions=of_actions,
        headers=np.array([[arm] for arm in arms if in_header] or [[]], dtype=np.float64),
        roomy=_with_room(kind),
        **({} if tables is None else _of_tables(kind)),
    )  # fmt: skip


def _with_room(kind: PolicyLearner) -> PolicyLearner:
    """The kind, of which some columns, in each cell the last ones, are spare."""
    if kind.room:
        return kind
    rule, columns = kind.rule, kind.evidence.listed
    if isinstance(rule, ContextModel):
        rule = replace(rule, actions=columns + _ROOM, room=_ROOM)
    cells = [kind.actions[at : at + columns] for at in range(0, len(kind.actions), columns)]
    names = tuple(name for cell in cells for name in (*cell, *[SPARE] * _ROOM))
    return replace(kind, actions=names, rule=rule, room=_ROOM)


def _of_tables(kind: PolicyLearner) -> dict[str, Any]:
    """What a kind has beside others, if earlier releases say which table it releases."""
    clearer = {"charge": kind.charge * _CLEARER} if kind.charge else {}
    return {"scripts": lru_cache(partial(_from_table_to_table, kind)), "clearer": clearer}


def _from_table_to_table(kind: PolicyLearner) -> Ints:
    """Scripts of releases after which different tables are released, as the evidence chooses them.

    Made up: large numbers and small ones; and counts, where these are public, of more shows than
    streams that are enumerated have, because with so few no finer table is released.
    """
    evidence, rule, many = kind.evidence, kind.rule, len(kind.actions)
    assert isinstance(rule, ContextModel)
    lengths, found = kind.schedule.lengths(np.arange(_SCRIPTED)), dict[tuple[int, ...], Ints]()
    source = SeededRandomness("scripts").bits(
        "", Purpose.OPENING, np.zeros((_TRIED, 16), np.uint8), np.arange(_TRIED)
    )
    words = source.words(0, _SCRIPTED * (2 * many + 1)).reshape(_TRIED, _SCRIPTED, -1)
    numbers = (words[:, :, 1:] >> (words[:, :, :1] % np.uint64(40) + np.uint64(24))).astype(
        np.int64
    )
    if not kind.pairs:
        numbers[:, :, :many] -= numbers[:, :, many:]  # sums have signs
        numbers[:, :, many:] >>= 20
    state = {of.name: np.zeros((_TRIED, *of.shape), of.dtype) for of in evidence.fields}
    tables = np.zeros((_TRIED, 0), dtype=np.int64)
    for block, length in enumerate(lengths.tolist()):
        table = state["table"].astype(np.int64)
        tables = np.concatenate([tables, table[:, None]], axis=1)
        beyond = np.arange(many) >= np.array([rule.size(at) for at in table.tolist()])[:, None]
        for at in range(2 if kind.pairs else 1):
            numbers[:, block, at * many : (at + 1) * many][beyond] = 0
        numbers[:, block] = evidence.of_named(numbers[:, block])
        state = {**state, **evidence.fold(state, numbers[:, block], np.full(_TRIED, length))}
    for script, way in zip(numbers, tables.tolist(), strict=True):
        found.setdefault(tuple(way), script)
    return np.stack([found[way] for way in sorted(found)])


def _added_up(place: Ints, numbers: Ints) -> Ints:
    """The sums of the numbers of each place, filled up with zeros."""
    sums = np.zeros_like(numbers)
    for at, number in zip(place.tolist(), numbers.tolist(), strict=True):
        sums[at] += number
    return sums


# -- of any kind -----------------------------------------------------------------------------------

NEIGHBOURS: dict[type, Callable[[Any], Neighbours]] = {
    Leader: _of_losses,
    PolicyLearner: _of_feedback,
}
"""Every kind that can be audited, by its type."""


def innermost(kind: Kind) -> Kind:
    """The kind that others are around."""
    while isinstance(kind, Around):
        kind = kind.inner
    return kind


def neighbours_of(kind: Kind) -> Neighbours:
    """The row of a kind, or of the one that it is around."""
    return _row(cast("Hashable", innermost(kind)))


@lru_cache(maxsize=16)
def _row(kind: Hashable) -> Neighbours:
    return NEIGHBOURS[type(kind)](kind)


def of_actions(kind: K, many: int) -> K:
    """The kind for another number of actions."""
    further = (f"action {number}" for number in range(many))
    names = tuple(dict.fromkeys([*names_in(kind.actions), *further]))[:many]
    if names == kind.actions:
        return kind
    if isinstance(kind, Around):
        return replace(kind, inner=of_actions(kind.inner, many))
    return cast("K", neighbours_of(kind).of_actions(names))


def changed(kind: K, **fields: Any) -> K:
    """The kind with other fields, inside of what is around it."""
    if isinstance(kind, Around):
        return replace(kind, inner=changed(kind.inner, **fields))
    return replace(kind, **fields)  # type: ignore[type-var]  # kinds are dataclasses


def in_short_blocks(kind: K) -> K:
    """The kind, in blocks of 2, 4, 8, … slots if its first block is longer than one slot.

    No law depends on how long a block is, and streams that are enumerated are short. The first
    block stays longer than one slot: an engine could go wrong in such a one alone.
    """
    return kind if kind.schedule.stop(0) == 2 else changed(kind, schedule=_FROM_TWO)


def blank(kind: Kind) -> tuple[dict[str, Ints], dict[str, Ints]]:
    """One row of empty columns, private and public."""
    private, public = (
        {of.name: np.zeros((1, *of.shape), of.dtype) for of in fields}
        for fields in (kind.fields, kind.evidence.fields)
    )
    return private, public


def blank_law(kind: Kind, name: str) -> Law:
    """The law of a release of one row of empty columns: its form, mechanism and scales."""
    return neighbours_of(kind).law(name, *blank(kind))


def price(kind: Kind, name: str, private: Columns, public: Columns) -> float:
    """The largest log-ratio of a release of one row, to which a slot is added that holds one of two
    extremes.
    """
    row, worst = neighbours_of(kind), 0.0
    coins = np.zeros((row.extremes, row.tosses.get(Purpose.RESAMPLE, 1)), dtype=np.uint64)
    shared = {of: np.repeat(public[of], row.extremes, axis=0) for of in public}
    for header in row.headers:
        parts = np.tile(header, (row.extremes, 1)), row.contents[: row.extremes]
        added = row.adds(np.concatenate(parts, axis=1), coins, None)
        columns = {of: np.repeat(private[of], row.extremes, axis=0) for of in private}
        columns |= {of: columns[of] + added[of] for of in columns.keys() & added.keys()}
        worst = max(worst, row.law(name, columns, shared).widest())
    return worst
