"""Does the laboratory still answer what it answered?"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.golden_laboratory import ASKED, GOLDEN, answered, differences, logs
from tests.support.calling import Streamdp


@pytest.mark.parametrize("name", ASKED)
def test_figures_are_those_on_record(name: str, streamdp: Streamdp, tmp_path: Path) -> None:
    """To 1e-9; `python -m tests.golden laboratory` writes them anew."""
    logs(tmp_path)
    now = answered(name, tmp_path, lambda *arguments: streamdp(*arguments).out)
    assert differences(json.loads(GOLDEN.read_text())[name], now) == []


def test_a_figure_that_moved_is_named() -> None:
    before = {"cells": [{"regret": 2.0, "learner": "one"}]}
    now = {"cells": [{"regret": 2.0 + 1e-6, "learner": "one"}]}
    assert differences(before, before) == []
    assert differences(before, now) == [".cells[0].regret: 2.0 was expected, got 2.000001"]
