"""Broken tables that get finer: with public contexts, and with private ones."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from streamdp.core.arrays import Columns, Ints
from streamdp.core.bank import Gathered
from streamdp.core.engine import Engine
from streamdp.core.engine.releasing import Ended, Fresh
from streamdp.core.evidence.context_model import ContextModel
from streamdp.core.kinds.feedback import FeedbackContents
from streamdp.core.learners.feedback import PolicyLearner
from streamdp.core.releases import Releases
from streamdp.core.segments import BatchSlots
from streamdp.lab.audit.neighbours import innermost
from tests.support.mutants.feedback import with_closing, with_contents
from tests.support.mutants.table import TABLES_BY_HEADER, TABLES_BY_VALUE, mutant

TABLES = TABLES_BY_HEADER, TABLES_BY_VALUE


@mutant(*TABLES, layer="streams", said="log-ratio inf > 1", longest=8)
def lets_open_sums_choose_the_table(patch: pytest.MonkeyPatch) -> None:
    """A finer one than releases say, where a sum of the block is large."""

    def chosen(engine: Engine, ended: Ended, close: Callable[[], list[Releases]]) -> list[Releases]:
        first = next(iter(engine._bank.private.values()))[ended.rows]
        tables = engine._bank.public["table"]
        tables[ended.rows] = np.where(first.max(axis=1) > 0, 1, tables[ended.rows])
        return close()

    with_closing(patch, chosen)


@mutant(*TABLES, layer="streams", said="log-ratio .* > 1", longest=8)
def lets_the_next_block_keep_its_sums_where_a_draw_is_even(patch: pytest.MonkeyPatch) -> None:
    """A block whose end follows from what was drawn is drawn from twice."""

    def ended_by_draw(
        engine: Engine, ended: Ended, close: Callable[[], list[Releases]]
    ) -> list[Releases]:
        private = engine._bank.private
        kept = {name: of[ended.rows] for name, of in private.items()}
        waves = close()
        goes_on = waves[0].numbers[:, 0] % 2 == 0
        for name, of in kept.items():
            private[name][ended.rows[goes_on]] = of[goes_on]
        return waves

    with_closing(patch, ended_by_draw)


def with_tables(patch: pytest.MonkeyPatch, several: tuple[int, ...]) -> None:
    """Release some tables one after the other, each with the noise of one."""
    exact = PolicyLearner.exact

    def together(self: PolicyLearner, private: Columns, public: Columns) -> tuple[Ints, Ints]:
        if not isinstance(self.rule, ContextModel):
            return exact(self, private, public)
        rows, many = len(public["table"]), len(self.actions)
        alone = [exact(self, private, {"table": np.full(rows, table)}) for table in several]
        whole, begin = alone[0][0].copy(), 0
        for numbers, noisy in alone:
            size = int(noisy[0])
            for at in range(0, 2 * many if self.pairs else many, many):
                whole[:, at + begin : at + begin + size] = numbers[:, at : at + size]
            begin += size
        return whole, np.full(rows, begin)

    patch.setattr(PolicyLearner, "exact", together)


@mutant(*TABLES, layer="nulls everywhere", said="not what its law and bits say", longest=8)
def releases_all_cells_together_and_a_field_at_epsilon_each(patch: pytest.MonkeyPatch) -> None:
    with_tables(patch, (0, 1))


@mutant(*TABLES, layer="nulls everywhere", said="not what its law and bits say", longest=8)
def releases_the_tables_of_all_fields_with_the_noise_of_one(patch: pytest.MonkeyPatch) -> None:
    with_tables(patch, (1, 2))


@mutant(*TABLES, layer="epochs", said="not what its law and bits say", longest=8)
def adds_no_noise_to_a_finer_table(patch: pytest.MonkeyPatch) -> None:
    released = Fresh.released

    def exact_if_fine(self: Fresh, name: str, rows: Ints) -> Ints:
        drawn, kind = released(self, name, rows), innermost(self.kind)
        if "table" not in self.bank.public:  # the audit runs other kinds, too
            return drawn
        assert isinstance(kind, PolicyLearner)
        private, public = Gathered(self.bank.private, rows), Gathered(self.bank.public, rows)
        exact, _ = kind.exact(private, public)
        return np.where((public["table"] > 0)[:, None], exact, drawn)

    patch.setattr(Fresh, "released", exact_if_fine)


@mutant(*TABLES, layer="streams", said="log-ratio (1.[5-9]|[2-9]).* > 1", longest=8)
def weights_cells_before_the_noise(patch: pytest.MonkeyPatch) -> None:
    """As if by one over their propensities: gains of two of four cells count four times."""

    def weighted(slots: BatchSlots, added: FeedbackContents) -> None:
        added.gains = added.gains * np.where(added.places % 8 >= 4, 4, 1)

    with_contents(patch, weighted)
