"""The offline fold: the releases that a service with a seed would have made from its topic.

The records go through the shipped engine, in their order, under the stream's name, epoch and seed.
Blocks follow from slot numbers, sums from the records, and noise from the seed's bits, so a live
service that read the same records under the same configuration made these releases, whatever its
batches, faults and restarts were. Which lists of actions its owners took, and at which records,
stands in its ledger, and so from which record on a column of a stream with room has a name: a
record that names an action before is the null observation.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from msgspec import UNSET

from streamdp.core.engine import Engine
from streamdp.core.events import NO_ARM, Batch
from streamdp.core.learners.feedback import PolicyLearner
from streamdp.core.randomness import SeededRandomness
from streamdp.core.releases import Release, names_of_sums
from streamdp.lab.logs.shown import ShownLog
from streamdp.wire.lines import TakenList, under_lists
from streamdp.wire.published import key_fields


def fold(
    log: ShownLog,
    learner: PolicyLearner,
    *,
    seed: int,
    stream: str,
    epoch: int,
    lists: Sequence[TakenList] = (),
) -> Iterator[Release]:
    """Every release of a stream over its log, partition by partition as records come.

    The log has no record that the service refused (`ShownLog.with_learners`).
    """
    engines: dict[int, Engine] = {}
    for partition, batch in log.batches():
        engine = engines.get(partition)
        if engine is None:
            engine = engines[partition] = Engine(
                stream=stream,
                partition=partition,
                learner=learner,
                budget=learner.charge,
                randomness=SeededRandomness(seed),
                epoch=epoch,
            )
        taken = [line for line in lists if line.partition == partition]
        for part, _ in under_lists(batch, taken):
            if learner.room:
                named = len(log.actions) - learner.room if part.named is None else part.named
                part = _without_unnamed(part, named, of=len(log.actions))
            yield from engine.apply_batch(part)


def _without_unnamed(batch: Batch, named: int, *, of: int) -> Batch:
    """The slots as they were read when only the first columns of each cell had a name."""
    played = batch.content["played"]
    known = np.where(played % of < named, played, NO_ARM).astype(np.int32)
    return replace(batch, content={**batch.content, "played": known})


def release_as_json(release: Release, *, pairs: bool) -> dict[str, object]:
    """A release in JSON, in the terms of the ledger and of the actions topic."""
    _, partition, key, epoch, born, block, kind = release.identity
    text, base64 = key_fields(key)
    facts: dict[str, object] = {
        "partition": partition,
        **({"key": text} if base64 is UNSET else {"key_base64": base64}),
        "epoch": epoch,
        "born": born,
        "block": block,
        "kind": kind,
        "start": release.start,
        "stop": release.stop,
        "epsilon": str(release.epsilon),
    }
    for name, of in zip(names_of_sums(pairs=pairs), release.sums or (), strict=False):
        facts[name] = b64encode(of.astype("<i8").tobytes()).decode()
    if release.policy is not None:
        facts["policy"] = b64encode(release.policy).decode()
    return facts
