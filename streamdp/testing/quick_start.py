"""``python -m streamdp.testing.quick_start``: lets every later broker start in half the time.

Java keeps what a broker loads and links at its start in a file beside Kafka's jars (an AOT cache,
from Java 25 on), and later brokers map it: a start takes 1.0 s of processor time in place of 2.5 s.
Making the file takes the life of one broker, about 8 s, so nobody who wants a single broker waits
for it: the suite makes it, and whoever finds it uses it (`kafka_jars.quick_start`). Java itself
checks that a file fits its version, its options and the jars, and does without one that does not.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from streamdp.core.errors import StreamdpError
from streamdp.testing.broker import QUICK_START, Broker
from streamdp.testing.kafka_jars import kafka_jars, quick_start_file

_MADE_SECONDS = 120.0  # 6 s on a quiet machine


def make() -> bool:
    """Start a broker and end it in order, so that Java writes the file; whether it is there."""
    file = quick_start_file(QUICK_START)
    if not file.exists():
        with tempfile.TemporaryDirectory(dir=kafka_jars()) as scratch:
            made = Path(scratch) / "made"
            options = (*QUICK_START, f"-XX:AOTCacheOutput={made}")
            broker = Broker(Path(scratch) / "broker", java_options=options)
            try:
                broker.start()
                broker.stop(_MADE_SECONDS)
            except StreamdpError:  # a Java before 25, which does not know the option
                broker.kill()
            if made.exists():
                for other in file.parent.glob("quick-start-*.aot"):
                    other.unlink(missing_ok=True)  # of a Java that may be gone: 64 MB each
                made.replace(file)
    return file.exists()


if __name__ == "__main__":
    sys.exit(0 if make() else "brokers will start as they always did: Java made no file")
