"""Noisy sums of tables of contexts: the evidence of streams whose events fall into cells.

A release has two numbers for each arm, an action in a cell: those of the block's table come first,
and zeros fill them up. Where the action is public the second numbers are exact counts of all arms,
whatever the table. `context_model` says what follows, and which table the next block releases.

*Room.* The last actions may be spare. While a row has never shown one, and no list allows it, the
row is that of a model without it: policies, tables and histories are the same bits. Noise that was
added to the sums of its arms counts for nothing. Whether it was shown is known from exact counts;
where counts are noisy, a release has zeros of a column without a name (`kinds.feedback`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Literal, NamedTuple

import numpy as np

from streamdp.core.arrays import Bools, Columns, Field, Floats, Ints
from streamdp.core.errors import StateMismatch
from streamdp.core.events import Carried
from streamdp.core.evidence.block_tables import BlockTables, Coarse, apart, look_alike
from streamdp.core.evidence.context_model import ContextModel, model_among
from streamdp.core.evidence.evidence import STAYS_AWAY, Known, PublicEvidence
from streamdp.core.evidence.policies import gains_and_counts, without_unnamed
from streamdp.core.evidence.policy import Policy
from streamdp.core.evidence.policy_posterior import NoiseVariance
from streamdp.core.evidence.policy_regimes import Regimes
from streamdp.core.evidence.policy_rule import CARRIED_PER_ARM


@dataclass(frozen=True, slots=True)
class ReleasedTables:
    """The history of each row, and the number of the table that its open block releases."""

    rule: ContextModel
    noise: NoiseVariance
    pairs: bool  # whether an arm's numbers are its rewards and losses
    answers: Literal["policy"] = "policy"
    adds_up: bool = True
    says_more: bool = True
    carries: str = "tables"

    @property
    def listed(self) -> int:
        """The actions, in any cell."""
        return self.rule.actions

    @property
    def room(self) -> int:
        """How many of them, the last ones, are spare."""
        return self.rule.room

    @property
    def named(self) -> Bools | None:
        """The actions that are not spare; None: all."""
        return self.rule.named

    @property
    def fields(self) -> tuple[Field, ...]:
        """The history, and the table."""
        numbers = prod(self.rule.history.shape(self.rule.kept))
        return Field("remembered", np.float64, (numbers,)), Field("table", np.int32)

    def of_named(self, released: Ints, named: int | None = None) -> Ints:
        """Noisy counts of named actions alone, of whatever table; see `ReleasedSums`."""
        if not self.room or not self.pairs:
            return released
        named = self.listed - self.room if named is None else named
        return without_unnamed(released, columns=self.listed, named=named)

    def opened(self, released: Ints) -> Columns:
        """Nothing is known: histories are 0, and the first block releases all cells together."""
        return {}

    def resumed(
        self, carried: Sequence[Carried], lengths: Ints, allowed: Bools | None = None
    ) -> Columns:
        """The carried histories. Arms are expected to be shown as they were."""
        histories = [known.history or b"" for known in carried]
        size = 8 * CARRIED_PER_ARM * self.rule.kept
        if any(len(history) != size for history in histories):
            got = sorted({len(history) for history in histories})
            raise StateMismatch("carried history", "length", expected=f"{size} bytes", got=got)
        numbers = np.frombuffer(b"".join(histories), "<f8").astype(np.float64)
        begun = self.rule.history.resumed(numbers.reshape(-1, CARRIED_PER_ARM, self.rule.kept))
        nothing = np.zeros(len(begun), dtype=np.int32)
        public: Columns = {"remembered": begun.reshape(len(begun), -1), "table": nothing}
        return {**public, "table": self._first_tables(public, lengths, allowed)}

    def _first_tables(self, public: Columns, lengths: Ints, allowed: Bools | None) -> Ints:
        """The tables of the first blocks after what was carried over."""
        if self.room:
            tables = np.zeros(len(lengths), dtype=np.int64)
            for part in self._alike(public, allowed):
                of = part.rows
                tables[of] = part.evidence._first_tables(part.public, lengths[of], part.allowed)
            return tables
        begun = self.histories(public)
        shown = np.maximum(begun[:, 0, -self.rule.arms :], 0.0)
        events = np.array([of.sum() for of in np.rint(shown)])  # whole numbers: exact in any order
        often = shown * (lengths / np.where(events > 0, events, 1.0))[:, None]
        return self.rule.chosen(begun, often, self.noise, allowed=allowed)

    def fold(
        self, public: Columns, released: Ints, lengths: Ints, allowed: Bools | None = None
    ) -> Columns:
        """Learn from blocks with these releases; choose the tables of the next ones.

        Readers obey a list before policies follow it. So where shows have noise, they are divided
        as if the list of the next blocks had held in these.
        """
        if self.room:
            names = ("remembered", "table")
            after = {name: np.zeros_like(public[name]) for name in names}
            for part in self._alike(public, allowed, released):
                of, numbers = part.rows, released[part.rows[:, None], part.released]
                folded = part.evidence.fold(part.public, numbers, lengths[of], part.allowed)
                after["table"][of] = folded["table"]
                after["remembered"][of[:, None], part.remembered] = folded["remembered"]
            return after
        before, tables, rule = self.histories(public), public["table"], self.rule
        now, chosen = np.empty_like(before), np.empty_like(tables)
        first, second = gains_and_counts(released, pairs=self.pairs)
        for table in np.unique(tables).tolist():
            some = np.flatnonzero(tables == table)
            state, many = before[some], rule.size(table)
            gains, shown = first[some, :many], second[some]
            if self.pairs:
                counts = shown[:, :many]
                shown = rule.divided(state, table, counts, lengths[some], self.noise, allowed)
            else:
                counts = rule.counted(table, shown)
            now[some] = rule.learned(state, table, gains, counts, shown, self.noise)
            chosen[some] = rule.chosen(now[some], shown, self.noise, allowed=allowed)
        return {"remembered": now.reshape(len(now), -1), "table": chosen}

    def in_force(self, public: Columns, lengths: Ints, allowed: Bools | None = None) -> Policy:
        """The policies that follow; rows of which nothing is known have the same one.

        In each cell the chances are those of the allowed actions among themselves.
        """
        if self.room:
            policies = np.zeros((len(lengths), self.rule.arms), dtype=np.uint32)
            for part in self._alike(public, allowed):
                of = part.rows
                parts = part.evidence.in_force(part.public, lengths[of], part.allowed)
                policies[of[:, None], part.arms] = parts
            return policies
        state, tables = self.histories(public), public["table"]
        if len(state) > 1 and not state.any() and (lengths == lengths[0]).all():
            alike = self.rule.policy(state[:1], tables[:1], lengths[:1], self.noise, allowed)
            return np.repeat(alike, len(state), 0)
        return self.rule.policy(state, tables, lengths, self.noise, allowed)

    def posterior(self, public: Columns, allowed: Bools | None = None) -> tuple[Floats, Floats]:
        """Each row's mean gains and their deviations, R × cells × actions.

        Both are 0 for a spare action that was never shown and is not allowed.
        """
        if not self.room:
            return self.rule.posterior(self.histories(public))
        both = np.zeros((2, len(public["table"]), self.rule.arms))
        for part in self._alike(public, allowed):
            for whole, of in zip(both, part.evidence.posterior(part.public), strict=True):
                whole[part.rows[:, None], part.arms] = of.reshape(len(of), -1)
        means, deviations = both.reshape(2, len(both[0]), -1, self.rule.actions)
        return means, deviations

    def _alike(
        self, public: Columns, allowed: Bools | None, released: Ints | None = None
    ) -> Iterator[_Alike]:
        """The rows in parts that know of the same actions, each as one of a model without room."""
        rule, named = self.rule, self.rule.named
        assert named is not None, "there is room"
        may = named if allowed is None else allowed
        if len(may) != rule.actions:
            raise StateMismatch("list", "actions", expected=rule.actions, got=len(may))
        shown = self.histories(public)[:, :, -rule.arms :]
        if released is not None:
            shown = np.concatenate([shown, released[:, None, -rule.arms :]], axis=1)
        known = np.any(shown.reshape(len(shown), -1, rule.actions) != 0, axis=1)
        known |= named | may
        for some in np.unique(known, axis=0):
            rows = np.flatnonzero((known == some).all(axis=1))
            model, arms, numbers = model_among(rule, some.tobytes())
            starts = np.arange(rule.history.regimes)[:, None] * (1 + CARRIED_PER_ARM * rule.kept)
            remembered = (starts + numbers).reshape(-1)
            fewer = {
                "remembered": public["remembered"][rows[:, None], remembered],
                "table": public["table"][rows],
            }
            both = np.concatenate([arms, rule.arms + arms])
            evidence = replace(self, rule=model)
            yield _Alike(rows, evidence, fewer, may[some], arms, both, remembered)

    def likely_best(self, public: Columns) -> Floats | None:
        """Arms of different cells are not compared."""
        return None

    def wrong(self, public: Columns, released: Ints, length: int) -> str:
        """Two numbers for each arm, of which those beyond the row's table are 0.

        Exact counts are of no more shows than there are slots.
        """
        if released.shape != (2 * self.rule.arms,):
            return "sums and counts of another number of actions"
        (table,), (first, second) = public["table"], np.split(released, 2)
        if first[self.rule.size(table) :].any():
            return f"more numbers than those of its table, {self.rule.tables[table]}"
        if self.pairs:
            filled = second[self.rule.size(table) :].any()
            return "losses beyond the numbers of its table" if filled else ""
        if second.astype(np.float64).sum() > length:
            return "actions were shown more often than it has slots"
        return "an action has a count below 0" if (second < 0).any() else ""

    def known(self, public: Columns) -> Iterator[Known]:
        """What of the history a key carries over: that of the likeliest hypothesis."""
        carried = self.rule.history.carried(self.histories(public)).astype("<f8")
        return (Known(0, history.tobytes()) for history in carried)

    def moved(self, known: Known, moves: Ints, before: PublicEvidence) -> Known | None:
        """An arm that stays keeps its numbers, and so do the entries of tables that it enters."""
        stays = moves != STAYS_AWAY
        if not stays.any() or not isinstance(before, ReleasedTables):
            return None
        was, now = before.rule, self.rule
        history = np.frombuffer(known.history or b"", "<f8").reshape(CARRIED_PER_ARM, -1)
        renumbered = np.zeros((CARRIED_PER_ARM, now.kept))
        for table, fields in enumerate(was.tables):
            if fields in now.tables:
                to = now.tables.index(fields)
                here = now.places[to, moves[stays]] + now.entries(to).start
                renumbered[:, here] = history[
                    :, was.places[table, stays] + was.entries(table).start
                ]
        renumbered[:, now.stops[-1] + moves[stays]] = history[:, was.stops[-1] :][:, stays]
        return Known(0, renumbered.astype("<f8").tobytes())

    def histories(self, public: Columns) -> Floats:
        """The whole histories, R × their rule's shape."""
        kept: Floats = public["remembered"]
        return kept.reshape(len(kept), *self.rule.history.shape(self.rule.kept))

    def apart(self, policy: Floats, table: int) -> Floats:
        """How far apart a policy is in the cells of each table's entries; of arms.

        Infinitely far where a block that releases this table does not say what they earned. One
        that releases all cells says what each cell earned, and is not asked for anything coarser.
        """
        rule, fields = self.rule, {*self.rule.tables[table]}
        whole, cells = rule.size(table) == rule.arms, policy.reshape(-1, rule.actions)
        return np.array(
            [
                0.0
                if rule.size(number) == rule.arms and whole
                else np.inf
                if whole or not fields.issuperset(of)
                else apart(cells, self._entries(number))
                for number, of in enumerate(rule.tables)
            ]
        )

    def block_tables(self, released: Ints, tables: Ints, apart: Floats) -> BlockTables:
        """What consecutive blocks released that had these tables, blocks × numbers.

        Numbers of a coarser table are divided among its cells: gains as shows were, and shows that
        are not known evenly. `apart` is that of the policies in these blocks, blocks × tables.
        """
        rule = self.rule
        gains, shown = gains_and_counts(released, pairs=self.pairs)
        for table in np.unique(tables).tolist():
            some, place = np.flatnonzero(tables == table), rule.places[table]
            of_gains, of_shown = gains[some][:, place], shown[some]
            if self.pairs:
                of_shown = of_shown[:, place] / np.bincount(place)[place]
                of_gains = of_gains / np.bincount(place)[place]
            else:
                whole = rule.counted(table, of_shown)[:, place]
                of_gains = of_gains * of_shown / np.maximum(whole, 1.0)
            gains[some], shown[some] = of_gains, of_shown
        gains, shown = (of.reshape(len(of), -1, rule.actions) for of in (gains, shown))
        entries = [self._entries(table) for table in range(len(rule.tables))]
        sizes = np.array([rule.size(table) for table in range(len(rule.tables))])
        coarse = sizes < rule.arms
        off = np.maximum(apart, np.where(coarse, np.concatenate([apart[:1], apart[:-1]]), 0.0))
        for block, number in np.argwhere(np.isfinite(off) & coarse).tolist():
            if not self.pairs and not look_alike(shown[block], entries[number]):
                off[block, number] = np.inf
        return BlockTables(gains, shown, self.noise, Coarse(entries, tables, off))

    def _entries(self, table: int) -> Ints:
        """The entry of a table that each cell is in."""
        return np.asarray(self.rule.places[table, :: self.rule.actions] // self.rule.actions)

    def cells_shown(self, public: Columns) -> Floats:
        """How often each cell occurred in the present regime, R × cells; roughly with pairs."""
        regimes = Regimes.of(self.histories(public))
        shown = regimes.mixed(regimes.shares())[:, 1, self.rule.stops[-1] :]
        of_cells = shown.reshape(len(shown), -1, self.rule.actions).sum(axis=2)
        cells: Floats = np.maximum(of_cells, 0.0)
        return cells


class _Alike(NamedTuple):
    """Rows of the same known actions, and where their numbers are among those of all."""

    rows: Ints
    evidence: ReleasedTables  # of these actions alone
    public: Columns
    allowed: Bools
    arms: Ints
    released: Ints
    remembered: Ints
