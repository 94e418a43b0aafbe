"""Is a fork of what has imported streamdp the program that a test has asked for?"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import streamdp
from tests.support.forking import parent

TELLS = """
import json, os, resource, sys
import streamdp
facts = {
    "arguments": sys.argv, "folder": os.getcwd(), "word": os.environ["WORD"],
    "streamdp": streamdp.__file__, "name": __name__, "stdin": sys.stdin.read(),
    "limit": resource.getrlimit(resource.RLIMIT_FSIZE)[0],
    "threads": len(os.listdir("/proc/self/task")), "aiokafka": "aiokafka" in sys.modules,
}
print("to nobody")
print(json.dumps(facts), file=sys.stderr)
sys.exit(7)
"""


def test_has_it_its_arguments_environment_limits_and_the_streamdp_that_is_tested() -> None:
    """And nothing of the test's own output, however many are started."""
    for word in ("one", "two"):
        with parent().start(
            TELLS, ["check", "-v"], stderr=subprocess.PIPE, environment={"WORD": word},
            file_limit=1 << 30,
        ) as process:  # fmt: skip
            assert process.stderr is not None
            said = json.loads(process.stderr.read())
            assert process.wait() == 7
        assert said == {
            "arguments": ["-c", "check", "-v"], "folder": str(Path.cwd()), "word": word,
            "streamdp": streamdp.__file__, "name": "__main__", "stdin": "", "limit": 1 << 30,
            "threads": 1, "aiokafka": True,
        }  # fmt: skip


def test_do_signals_reach_it_and_errors_show() -> None:
    """As `subprocess` tells of them; nobody is left behind."""
    with parent().start("import time; time.sleep(60)", [], stderr=subprocess.DEVNULL) as process:
        assert process.poll() is None
        process.send_signal(signal.SIGKILL)
        assert process.wait(60) == -signal.SIGKILL
    assert not Path(f"/proc/{process.pid}").exists()
    with parent().start("1 / 0", [], stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        assert b"ZeroDivisionError" in process.stderr.read()
        assert process.wait(60) == 1


@pytest.mark.slow
def test_does_nothing_outlive_the_tester() -> None:
    """Its parent ends with it, and what is left with that."""
    program = (
        "import os, subprocess\n"
        "from tests.support.forking import parent\n"
        "started = parent().start('import time; time.sleep(60)', [], stderr=subprocess.DEVNULL)\n"
        "print(started.pid, flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    path = os.pathsep.join(sys.path)
    tester = [sys.executable, "-c", program]
    ended = subprocess.run(
        tester, capture_output=True, env={**os.environ, "PYTHONPATH": path}, check=False
    )
    left = int(ended.stdout)
    try:
        descriptor = os.pidfd_open(left)
    except ProcessLookupError:
        return
    os.close(descriptor)
    for _ in range(6000):
        if not Path(f"/proc/{left}").exists():
            return
        signal.sigtimedwait([], 0.01)
    raise AssertionError("a program outlives the tester")
