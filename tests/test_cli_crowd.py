"""Do the commands take a crowd across partitions from its configuration to a proof?"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from streamdp_adapters.sqlite.tools import SqlitePublications
from tests.support.adopting import ledger_reads_early
from tests.support.calling import Streamdp, written
from tests.support.learned_shop import learned


def test_does_a_crowd_across_partitions_go_from_the_configuration_to_a_proof(
    tmp_path: Path, streamdp: Streamdp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second process begins with what the first one's partitions told each other.

    A proof that reads one partition's ledger too early for the other's reads it on.
    """
    path = written(tmp_path)
    path.write_text(path.read_text().replace('start = "', 'crowd = "stream"\nstart = "', 1))
    learned(path)
    learned(path, until=800)
    config = ("-c", str(path))
    assert "crowd = stream: keys learn from each other's" in streamdp("check", *config).out
    lines = streamdp("ledger", "show", *config).out
    assert re.search(r"prior \d+ after \d+ votes of epoch 1, and those of 1 other partition", lines)
    proof = streamdp("ledger", "verify", *config)
    assert (proof.code, ": kept" in proof.out) == (0, True)
    points = [point["checkpoint"] for point in streamdp("state", "inspect", *config, "--json").json]
    assert sum(len(point["adopted_of_partitions"]) for point in points) > 0
    shown = map(json.loads, streamdp("ledger", "show", *config, "--json").out.splitlines())
    named = next(line["adopted"][0][0] for line in shown if line.get("adopted"))
    readings = ledger_reads_early(monkeypatch, SqlitePublications, partition=named)
    proof = streamdp("ledger", "verify", *config)
    assert (proof.code, ": kept" in proof.out, len(readings)) == (0, True, 2)
