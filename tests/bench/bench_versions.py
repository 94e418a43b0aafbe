"""This version's service beside another one, on one broker: CPU per record, pair by pair.

    python tests/bench/bench_versions.py --other /path/to/other/.venv/bin/streamdp [--pairs 5]

Both read the same full topics with their default settings. A pair is one run of each at the same
time, so that whatever else the machine does meets both. The figure is the other version's CPU per
record divided by this version's: above 1, this version is cheaper. It is given as the geometric
mean of the pairs with its standard error. Single pairs scatter by a quarter: where a process gets
its memory, and whether in huge pages, is luck.

Two learners: ``benchmark`` is the one of bench_service.py, the same in both versions; ``default``
names no recipe, so each version runs its own default, which may release more often.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from streamdp.testing.broker import THROUGHPUT, borrow_broker
from tests.bench.peers.candidates import Place, streamdp
from tests.bench.peers.inputs import Input, delete, new_name, preload
from tests.bench.peers.processes import Candidate, measure

INPUTS = (Input("float32", 100, 1000), Input("float32", 100, 100_000))
_SPARE = 1.5
"""A topic has more records than are waited for, so that no run comes to its end."""


async def candidate_of(place: Place, program: str, learner: str) -> Candidate:
    """`streamdp run` of one version; with the learner `default` the recipe is left out."""
    candidate = await streamdp(place)
    path = Path(candidate.commands[0][-1])
    if learner == "default":
        text, _, _ = path.read_text("utf-8").partition("[streams.sums.learner]")
        path.write_text(text + '[streams.sums.learner]\nepsilon = "1/2"\n', "utf-8")
    command = [program, "run", "--config", str(path)]
    # Each version must import its own code, whatever this program was started with.
    return replace(candidate, commands=[command], environment={"PYTHONPATH": ""})


async def compare(
    place: Place, programs: dict[str, str], *, learner: str, records: int, pairs: int
) -> dict[str, Any]:
    """One input and one learner: all pairs, printed as they come."""
    cpu: dict[str, list[float]] = {version: [] for version in programs}
    for _ in range(pairs):
        candidates = [await candidate_of(place, program, learner) for program in programs.values()]
        at_once = (
            measure(
                candidate,
                place.folder,
                bootstrap=place.bootstrap,
                topic=place.topic,
                records=records,
            )
            for candidate in candidates
        )
        for version, measured in zip(programs, await asyncio.gather(*at_once), strict=True):
            cpu[version].append(measured.cpu)
    ratios = np.log(np.array(cpu["other"]) / np.array(cpu["this"]))
    row = {
        "input": place.input.name,
        "learner": learner,
        "CPU s/M": {version: [round(one, 3) for one in values] for version, values in cpu.items()},
        "ratio": round(float(np.exp(ratios.mean())), 3),
        "standard error": round(float(ratios.std(ddof=1) / np.sqrt(pairs)), 3),
    }
    print(json.dumps(row), flush=True)
    return row


async def run(other: str, *, pairs: int, records: int, learners: list[str]) -> None:
    """Every input and every learner, on a broker of its own unless another is named."""
    programs = {"this": str(Path(sys.executable).with_name("streamdp")), "other": other}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="streamdp-bench-")))
        broker = stack.enter_context(borrow_broker(java_options=THROUGHPUT))
        for input_ in INPUTS:
            place = Place(broker.bootstrap, f"{new_name()}-{input_.name}", input_, folder)
            await preload(broker.bootstrap, place.topic, input_, records=round(records * _SPARE))
            for learner in learners:
                await compare(place, programs, learner=learner, records=records, pairs=pairs)
            await delete(broker.bootstrap, place.topic)


def main() -> None:
    """Measure everything and print it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--other", required=True, help="the other version's streamdp program")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--learner", choices=["benchmark", "default"], action="append")
    options = parser.parse_args()
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    learners = options.learner or ["benchmark", "default"]
    asyncio.run(run(options.other, pairs=options.pairs, records=options.records, learners=learners))


if __name__ == "__main__":
    main()
