"""``python -m streamdp.testing``: runs a real broker until Ctrl-C, then deletes its data."""

from __future__ import annotations

import signal
import sys
from types import FrameType

from streamdp.testing.broker import own_broker

USUAL = 9092
"""Kafka's usual port, as in the documents' examples; if it is taken, any other is used."""


def main() -> None:
    """Start a broker, print its address, and wait for a signal."""

    def end(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    for number in (signal.SIGINT, signal.SIGTERM):  # a background job of a shell ignores SIGINT
        signal.signal(number, end)
    sys.stderr.write("A broker is starting; the first time it fetches Kafka.\n")
    try:
        with own_broker(port=USUAL) as broker:
            sys.stdout.write(f"{broker.bootstrap}\n")
            sys.stdout.flush()
            sys.stderr.write(
                "That is the address for bootstrap; Ctrl-C ends the broker and deletes what it"
                " holds.\n"
            )
            while True:
                signal.pause()
    except KeyboardInterrupt:
        sys.stderr.write("The broker has ended.\n")


if __name__ == "__main__":
    main()
