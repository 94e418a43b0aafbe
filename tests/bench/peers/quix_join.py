"""Quix Streams: a left interval join of requests with their outcomes, both keyed by request's id.

    python quix_join.py BOOTSTRAP GROUP REQUESTS OUTCOMES OUTPUT WINDOW GRACE FOLDER

Runs in the peers' own environment, hence imports nothing of ours. Exactly-once, state with a
changelog. Of version 3.28 `join_interval` is the join that sees outcomes after their request, as
they come; `join_asof` looks only at what was there before. Its left join says at once that nothing
has come, and says the request again with each outcome.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any


def run(
    bootstrap: str,
    group: str,
    requests: str,
    outcomes: str,
    output: str,
    window: str,
    grace: str,
    folder: str,
) -> None:
    """Run until the process is killed."""
    application = import_module("quix").application_of(bootstrap, group, folder)  # its neighbour

    def frame(topic: str) -> Any:
        return application.dataframe(application.topic(topic, value_deserializer="json"))

    def merged(request: Any, outcome: Any) -> dict[str, Any]:
        return {"request": request, "outcome": outcome}

    kept = int(window) + int(grace)
    joined = frame(requests).join_interval(
        frame(outcomes),
        how="left",
        on_merge=merged,
        grace_ms=kept,
        backward_ms=int(grace),
        forward_ms=int(window),
    )
    joined.to_topic(application.topic(output, value_serializer="json"))
    application.run()


if __name__ == "__main__":
    run(*sys.argv[1:9])
