"""Where the command begins, also as ``python -m streamdp``: it listens to signals, then imports.

A process that nothing has begun in ends by SIGTERM as it was asked to. Importing the command line
takes a tenth of a second and more, in which Python would die of the signal, or, as the first
process of a container, would not hear it at all and be killed when its time is up. So this module
imports nothing that takes time.
"""

import signal
import sys

_LONG_RUNNING = ("run", "serve", "assemble")


def _end(*_: object) -> None:
    """Exit 0 on a signal before the service listens to signals itself."""
    sys.exit(0)


def main() -> None:
    """Run one command."""
    if sys.argv[1:2] and sys.argv[1] in _LONG_RUNNING:  # nothing has begun that must be drained
        signal.signal(signal.SIGTERM, _end)
    from streamdp.cli import main as run

    run()


if __name__ == "__main__":
    main()
