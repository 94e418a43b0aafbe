"""Quix Streams: keyed running sums of K numbers, an output at each power of two of a key's count.

    python tests/bench/peers/quix.py BOOTSTRAP GROUP INPUT OUTPUT json|raw K FOLDER

Runs in the peers' own environment, hence imports nothing of ours. Exactly-once, state with a
changelog; sums are one array of numpy in the state, which is the fastest that was found.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

import numpy as np

COMMIT_SECONDS = 1.0
"""Between two transactions; the default is 5, with which nothing could be measured in seconds."""


def application_of(bootstrap: str, group: str, folder: str) -> Any:
    """An exactly-once application with its state in a folder."""
    return import_module("quixstreams").Application(
        broker_address=bootstrap,
        consumer_group=group,
        auto_offset_reset="earliest",
        processing_guarantee="exactly-once",
        commit_interval=COMMIT_SECONDS,
        state_dir=folder,
        loglevel="WARNING",
    )


def run(
    bootstrap: str, group: str, source: str, output: str, kind: str, size: str, folder: str
) -> None:
    """Run until the process is killed."""
    K = int(size)
    application = application_of(bootstrap, group, folder)
    as_json = kind == "json"
    frame = application.dataframe(
        application.topic(source, value_deserializer="json" if as_json else "bytes")
    )

    def add(value: Any, state: Any) -> bytes | None:
        losses = value["losses"] if as_json else np.frombuffer(value, "<f4")
        before = state.get_bytes("sums")
        sums = np.zeros(K + 1) if before is None else np.frombuffer(before).copy()
        sums[:K] += losses
        sums[K] += 1
        after = sums.tobytes()
        state.set_bytes("sums", after)
        count = int(sums[K])
        return after if count & (count - 1) == 0 else None

    frame = frame.apply(add, stateful=True).filter(lambda output: output is not None)
    frame.to_topic(application.topic(output, value_serializer="bytes"))
    application.run()


if __name__ == "__main__":
    run(*sys.argv[1:8])
