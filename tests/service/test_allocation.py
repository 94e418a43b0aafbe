"""Is the service's process spared looks for cycles that batches never leave?"""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import weakref

import pytest

from streamdp.service.allocation import YOUNG_OBJECTS, without_collecting

PROBE = """
import gc, json
from streamdp.service.allocation import set_up_memory
looks = []
set_up_memory()
gc.callbacks.append(lambda phase, info: looks.append(info["generation"]))
batch = [[at] for at in range(20_000)]
without = len(looks)
del batch
heaps = [[[at] for at in range(20_000)] for _ in range(4)]
print(json.dumps([gc.get_freeze_count(), without, len(looks)]))
"""


def test_does_the_collector_look_only_when_more_stays_than_a_batch() -> None:
    """In a process of its own: the collector is the whole process's."""
    output = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, check=True).stdout
    frozen, for_a_batch, for_a_heap = json.loads(output)
    assert frozen > 1000, "what was there at the start is never looked at"
    assert for_a_batch == 0
    assert for_a_heap >= 80_000 // YOUNG_OBJECTS, "cycles are found all the same"


def test_the_collector_rests_while_partitions_are_taken_and_passes_over_what_they_brought() -> None:
    """Takes overlap; the last one to end switches it on again."""
    rows: list[list[int]] = []
    before = gc.get_freeze_count()
    with without_collecting():
        with without_collecting():
            rows += [[number] for number in range(1000)]
        assert not gc.isenabled()
    assert gc.isenabled()
    assert gc.get_freeze_count() >= before + len(rows)
    gc.unfreeze()


# What earlier tests of this process left is collected here too.
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_the_garbage_of_a_taking_does_not_stay() -> None:
    """Cycles that it leaves are collected before everything else is passed over for good."""

    class Node:
        def __init__(self) -> None:
            self.itself = self

    with without_collecting():
        left = weakref.ref(Node())
        assert left() is not None
    assert left() is None
    gc.unfreeze()


TAKING = """
from pathlib import Path
from streamdp.service.allocation import set_up_memory, without_collecting

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

set_up_memory()
before = resident()
with without_collecting():
    entries = [bytes(2000) for _ in range(30_000)]
    during = resident()
    kept = entries[::1000]
    del entries
print(before, during, resident())
"""


def test_memory_that_a_taking_alone_needed_goes_back_to_the_system() -> None:
    """In a process of its own, with settings that keep 128 MB of freed memory for batches."""
    output = subprocess.run([sys.executable, "-c", TAKING], capture_output=True, check=True).stdout
    before, during, after = map(int, output.split())
    assert during - before > 60_000_000
    assert after - before < 20_000_000
