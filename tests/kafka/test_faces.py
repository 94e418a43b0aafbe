"""Do the faces work on a real broker: the demonstration, and what is shown when the broker goes?"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from streamdp.testing.broker import Borrowed, own_broker
from tests.asking import free_port
from tests.running import Place, until
from tests.streams import events

pytestmark = pytest.mark.kafka

RUN = "from streamdp.cli import main; main()"


def test_does_the_demonstration_run_on_a_broker(broker: Borrowed, tmp_path: Path) -> None:
    asked = ["demo", "--kafka", "--bootstrap", broker.bootstrap, "--seconds", "6",
             "--folder", str(tmp_path), "--listen", f"127.0.0.1:{free_port()}"]  # fmt: skip
    environment = {**os.environ, "COLUMNS": "120", "NO_COLOR": "1"}
    done = subprocess.run(
        [sys.executable, "-c", RUN, *asked], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert "gained" in done.stdout
    assert f"streamdp run --config {tmp_path / 'streamdp.toml'}" in done.stdout


def test_are_look_ups_answered_and_metrics_honest_while_the_broker_is_dead(tmp_path: Path) -> None:
    with own_broker() as broker:
        transport = f'kind = "kafka"\nbootstrap = "{broker.bootstrap}"\nsingle_broker = true'
        place = Place(tmp_path, transport=transport)
        create = [sys.executable, "-c", RUN, "topics", "create", "--config", str(place.path)]
        subprocess.run(create, check=True, capture_output=True)
        with place.running():
            until(place.ready)
            many = [b"key-%d" % n for n in range(2000)]  # whose rows are saved for half a minute
            place.send(events(6000, keys=[b"fr", *many]))
            until(lambda: b'"published"' in place.get("/v1/streams/home/keys/fr/action")[1])
            assert b"streamdp_transport_up 1.0" in place.get("/metrics")[1]
            broker.kill()
            until(lambda: b"streamdp_transport_up 0.0" in place.get("/metrics")[1])
            status, answer = place.get("/v1/streams/home/keys/fr/action")
            assert (status, b'"published"' in answer) == (200, True)
            assert place.get("/healthz")[0] == 200
