"""Do the commands take a crowd across partitions from its configuration to a proof?"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from streamdp.core.events import CrowdPrior, Releases
from streamdp.lab.replay.crowd_cells import InStep
from streamdp.service.config import Seeds
from streamdp.wire.lines import PriorLine
from streamdp.wire.published import decode_ledger
from streamdp_adapters.sqlite.tools import SqlitePublications
from tests.support.adopting import ledger_reads_early
from tests.support.calling import Ran, Streamdp, written
from tests.support.learned_shop import learned


def test_does_a_crowd_across_partitions_go_from_the_configuration_to_a_proof(
    tmp_path: Path, streamdp: Streamdp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second process begins with what the first one's partitions told each other.

    A proof that reads one partition's ledger too early for the other's reads it on.
    """
    path = written(tmp_path)
    path.write_text(path.read_text().replace('start = "', 'crowd = "stream"\nstart = "', 1))
    config = ("-c", str(path))
    learned(path)
    for until in LATER:
        learned(path, until=until)
        points = streamdp("state", "inspect", *config, "--json").json
        if any(point["checkpoint"]["adopted_of_partitions"] for point in points):
            break
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


@pytest.mark.slow
def test_is_a_log_replayed_with_the_adoptions_that_a_ledger_has_on_record(
    tmp_path: Path, streamdp: Streamdp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under the live stream's seed the replay makes each live prior again; by itself it does not.

    What is no record of this stream is refused by its name.
    """
    path = written(tmp_path)
    seeded = 'crowd = "stream"\nseed = 5\nstart = "'
    path.write_text(path.read_text().replace('start = "', seeded, 1))
    learned(path, seeds=Seeds.ALLOWED)
    ledger = tmp_path / "home.ledger"
    for until in LATER:
        learned(path, until=until, seeds=Seeds.ALLOWED)
        ledger.write_text(streamdp("ledger", "show", "-c", str(path), "--json").out)
        lived: dict[int, list[CrowdPrior]] = {0: [], 1: []}
        for value in ledger.read_bytes().splitlines():
            line = decode_ledger(value)
            if isinstance(line, PriorLine):
                lived[line.partition].append(line.prior())
        if sum(len(prior.adopted) for priors in lived.values() for prior in priors) > 5:
            break
    assert sum(len(prior.adopted) for priors in lived.values() for prior in priors) > 5
    made: dict[int, list[CrowdPrior]] = {}
    plain = InStep.releases

    def releases(self: InStep) -> Iterator[tuple[int, Releases]]:
        made.update({0: [], 1: []})
        for number, released in plain(self):
            made[number] += released.priors
            yield number, released

    monkeypatch.setattr(InStep, "releases", releases)

    def replayed(*more: str, learner: str = CROWD) -> Ran:
        return streamdp(
            "replay", f"sqlite:{tmp_path}/shop.db#losses", "--actions", "a,b,c", "--learners",
            learner, "--epsilon", "1/2", "--first-seed", "5", "--seeds", "1", "--json", "-",
            "--set", "partitions=2", *more,
        )  # fmt: skip

    by_record = ("--stream", "home", "--record", str(ledger))
    by_ledger = replayed(*by_record)
    assert (by_ledger.code, made) == (0, lived)
    assert replayed("--stream", "home").code == 0
    assert made != lived
    for names, said in (
        ({0: [1, 1, 1, "f" * 32], 1: [0, 1, 1, "f" * 32]}, "a prior that waits for itself"),
        ({0: [7, 1, 1, "f" * 32]}, "prior 1 of partition 7, which is not made"),
    ):
        other = tmp_path / "other.ledger"
        other.write_bytes(changed(ledger, names))
        refused = replayed("--stream", "home", "--record", str(other))
        assert refused.code != 0
        assert "prior 1: the record does not fit; expected that of these blocks" in refused.err
        assert said in refused.err
    for wrong, said in (
        (("--record", str(ledger)), "priors of stream replay, epoch 1, that name snapshots"),
        (("--record", str(path)), "line 2: "),
        (("--record", str(tmp_path / "none")), "a file of ledger lines"),
    ):
        refused = replayed(*wrong)
        assert refused.code != 0
        assert said in refused.err
    of_no_use = replayed(*by_record, learner="remembering_leader:crowd=partition")
    assert "--record: of no use; expected losses, and a learner with crowd=stream" in of_no_use.err


LATER = range(800, 8_001, 400)
"""Where later processes end: one that reads the crowd topic too late leaves it to the next."""

CROWD = "remembering_leader:schedule=capped 3:crowd=stream"


def changed(ledger: Path, names: Mapping[int, list[object]]) -> bytes:
    """The same lines, but for what the first prior of some partitions has adopted."""
    lines = [json.loads(value) for value in ledger.read_bytes().splitlines()]
    for line in lines:
        if line["type"] == "prior" and line["number"] == 1 and line["partition"] in names:
            line["adopted"] = [names[line["partition"]]]
    return "\n".join(map(json.dumps, lines)).encode()
