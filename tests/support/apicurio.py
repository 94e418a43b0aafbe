"""A real schema registry, Apicurio, as a process of its own; got by Maven, with a pinned digest."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from signal import SIGCONT, SIGSTOP, Signals

from streamdp.testing.kafka_jars import java
from tests.support.asking import free_port

VERSION = "3.3.3"
SHA256 = "8bc6751c76d963734224b01d5e7f84ccb3cb61c87d3bd77c36c35f10a5cbed63"
_SECONDS = 600.0  # the archive has 160 MB


def apicurio() -> Path:
    """The unpacked registry, fetched at the first call."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "streamdp"
    folder = cache / f"apicurio-{VERSION}"
    if not folder.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as scratch:
            coordinate = f"io.apicurio:apicurio-registry-app:{VERSION}:tar.gz:all"
            maven = str(shutil.which("mvn"))
            done = subprocess.run(
                [maven, "-B", "-q", "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy",
                 f"-Dartifact={coordinate}", f"-DoutputDirectory={scratch}"],
                capture_output=True, timeout=_SECONDS, check=False,
            )  # fmt: skip
            assert done.returncode == 0, f"Maven: {done.stdout.decode()[-800:]}"
            (archive,) = Path(scratch).glob("*.tar.gz")
            digest = hashlib.sha256(archive.read_bytes()).hexdigest()
            assert digest == SHA256, f"{archive.name} is not the pinned one: {digest}"
            with tarfile.open(archive) as packed:
                packed.extractall(f"{scratch}/unpacked", filter="data")
            Path(f"{scratch}/unpacked").rename(folder)
    return folder


class Apicurio:
    """One registry process; its subjects are gone when it ends, unless `folder` keeps them."""

    def __init__(self, home: Path, folder: Path) -> None:
        self._home, self._folder = home, folder
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}/apis/ccompat/v7"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it answers."""
        settings = {
            "quarkus.http.host": "127.0.0.1",
            "quarkus.http.port": str(self.port),
            "quarkus.management.host": "127.0.0.1",
            "quarkus.management.port": str(free_port()),
            "apicurio.datasource.url": f"jdbc:h2:file:{self._folder}/registry;WRITE_DELAY=0",
        }
        options = [f"-D{name}={value}" for name, value in settings.items()]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [str(java()), "-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", *options,
                 "-jar", str(self._home / "quarkus-run.jar")], stdout=log, stderr=log,
            )  # fmt: skip
        deadline = time.monotonic() + 120
        while True:
            try:
                with urllib.request.urlopen(f"{self.url}/subjects", timeout=5):
                    return
            except OSError:
                assert self._process.poll() is None, (self._folder / "log").read_text()[-2000:]
                assert time.monotonic() < deadline, "the registry does not start"
                time.sleep(0.2)

    def freeze(self) -> None:
        """Let it answer nothing."""
        self._signal(SIGSTOP)

    def thaw(self) -> None:
        """Let it go on, which takes less than another start."""
        self._signal(SIGCONT)

    def _signal(self, number: Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def stop(self) -> None:
        """End it at once."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def register(self, subject: str, text: str, kind: str = "AVRO") -> int:
        """Register a version; return its id."""
        body = json.dumps({"schema": text, "schemaType": kind}).encode()
        request = urllib.request.Request(
            f"{self.url}/subjects/{subject}/versions",
            body,
            {"Content-Type": "application/vnd.schemaregistry.v1+json"},
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            return int(json.load(answer)["id"])


@contextmanager
def registry_process(folder: Path) -> Iterator[Apicurio]:
    """A registry that runs for as long as the block lasts."""
    made = Apicurio(apicurio(), folder)
    made.start()
    try:
        yield made
    finally:
        made.stop()
