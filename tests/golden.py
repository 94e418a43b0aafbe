"""All golden files, made anew: `python -m tests.golden`, or by name: `python -m tests.golden wire`.

What each of them holds, and what a difference means, its own module says.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from tests import (
    golden_arithmetic,
    golden_choices,
    golden_corpus,
    golden_draws,
    golden_engine,
    golden_laboratory,
    golden_wire,
)

SETS: dict[str, Callable[[], object]] = {
    "arithmetic": golden_arithmetic.main,
    "choices": golden_choices.main,
    "corpus": golden_corpus.main,
    "draws": golden_draws.main,
    "engine": golden_engine.main,
    "laboratory": golden_laboratory.main,
    "wire": golden_wire.main,
}

if __name__ == "__main__":
    for name in sys.argv[1:] or SETS:
        SETS[name]()
