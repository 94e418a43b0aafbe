"""The image, built and run without a container engine's daemon: buildah with chroot isolation.

The image that it builds on is not to be had where there is no registry, so one of the same name is
made of Debian's packages (mmdebstrap) and kept, in a storage that is read beside the image's own.
What runs is a process in the image's root folder, in a mount name space of its own: the root is
read-only, the user is the image's, and only what the documentation mounts is there beside it.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tests.conftest import ROOT
from tests.support.processes import Process

CONTAINERFILE = ROOT / "deploy" / "Containerfile"
_SECONDS = 1500.0
_PACKAGES = "python3,python3-venv,ca-certificates"
_CERTIFICATES = Path("/etc/ssl/certs")

Buildah = Callable[..., str]


def _buildah(folder: Path, driver: str, *options: str) -> Buildah:
    """The program on a storage of its own."""
    return partial(
        _run, "buildah", "--storage-driver", driver, *options,
        "--root", str(folder / "root"), "--runroot", str(folder / "runroot"),
    )  # fmt: skip


def _driver(folder: Path) -> str:
    """How layers are stored there: upon each other, or copied where that cannot be mounted."""
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        parts = {name: Path(scratch, name) for name in ("lowerdir", "upperdir", "workdir", "on")}
        for part in parts.values():
            part.mkdir()
        on = str(parts.pop("on"))
        layers = ",".join(f"{name}={path}" for name, path in parts.items())
        mounting = ("unshare", "--mount", "mount", "-t", "overlay", "overlay", "-o", layers, on)
        done = subprocess.run(mounting, capture_output=True, check=False)
    return "vfs" if done.returncode else "overlay"


def base_storage(name: str, driver: str) -> Path:
    """A storage that has a Debian with Python under this name; made at the first call."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "streamdp"
    kept = cache / f"image-base-bookworm-{driver}"
    if not kept.exists():
        cache.mkdir(parents=True, exist_ok=True)
        sources = [
            *Path("/etc/apt/sources.list.d").glob("*.sources"),
            Path("/etc/apt/sources.list"),
        ]
        given = [str(path) for path in sources if path.exists() and path.stat().st_size]
        with tempfile.TemporaryDirectory(dir=cache) as scratch:
            archive, made = Path(scratch) / "base.tar", Path(scratch) / "made"
            _run("mmdebstrap", "--variant=minbase", f"--include={_PACKAGES}", "--mode=root",
                 "bookworm", str(archive), *given[:1])  # fmt: skip
            buildah = _buildah(made, driver)
            working = buildah("from", "scratch").strip()
            buildah("add", "--quiet", working, str(archive), "/")
            python = Path(buildah("mount", working).strip()) / "usr/local/bin/python"
            python.symlink_to("/usr/bin/python3")
            buildah("umount", working)
            buildah("commit", "--quiet", "--rm", working, name)
            (made / "root").rename(kept)
    return kept


@dataclass(frozen=True)
class Image:
    """A built image, whose files are at `root`."""

    root: Path
    config: dict[str, Any]  # User, Env, Entrypoint, Cmd, StopSignal

    def start(self, configuration: Path, *arguments: str) -> Process:
        """Its entry point, with these arguments or its own; in place of a shell that prepares."""
        command = [*self.config["Entrypoint"], *(arguments or self.config["Cmd"])]
        return Process.start(
            interpreter=("unshare", "--mount", "sh", "-ec"),
            program=self._inside(configuration, command, user=self.config["User"]),
        )

    def run(
        self, configuration: Path, *command: str, user: str = ""
    ) -> subprocess.CompletedProcess[str]:
        """Another command in it, to its end."""
        script = self._inside(configuration, command, user=user or self.config["User"])
        return subprocess.run(
            ["unshare", "--mount", "sh", "-ec", script], capture_output=True, text=True,
            check=False, timeout=_SECONDS,
        )  # fmt: skip

    def _inside(self, configuration: Path, command: Sequence[str], *, user: str) -> str:
        root = shlex.quote(str(self.root))
        words = shlex.join([*self.config["Env"], *command])
        return f"""
            mkdir -p {root}/etc/streamdp {root}/tmp
            mount --bind {root} {root}
            mount --rbind /dev {root}/dev
            mount -t proc proc {root}/proc
            mount --bind {shlex.quote(str(configuration.parent))} {root}/etc/streamdp
            mount -t tmpfs -o mode=1777 tmpfs {root}/tmp
            mount -o remount,bind,ro {root}/etc/streamdp
            mount -o remount,bind,ro {root}
            exec chroot --userspec={user} {root} /usr/bin/env -i {words}
        """


@contextmanager
def image(folder: Path) -> Iterator[Image]:
    """The image of this checkout, for as long as the block lasts."""
    (name,) = {line.split()[1] for line in CONTAINERFILE.read_text().splitlines()
               if line.startswith("FROM ")}  # fmt: skip
    driver = _driver(folder)
    base = base_storage(f"docker.io/library/{name}", driver)
    buildah = _buildah(folder, driver, "--storage-opt", f"{driver}.imagestore={base}")
    pip = folder / "pip.conf"  # what this machine's pip needs to reach an index
    pip.write_text(_pip_settings())
    buildah(
        "bud", "--isolation", "chroot", "--format", "docker", "--layers=false", "--pull=never",
        "--network", "host", "-v", f"{pip}:/etc/pip.conf:ro",
        "-v", f"{_CERTIFICATES}:{_CERTIFICATES}:ro",
        "-f", str(CONTAINERFILE), "-t", "streamdp", str(ROOT),
    )  # fmt: skip
    made = json.loads(buildah("inspect", "--type", "image", "streamdp"))
    running = buildah("from", "--pull=never", "streamdp").strip()
    try:
        root = Path(buildah("mount", running).strip())
        yield Image(root, made["Docker"]["config"])
    finally:
        buildah("umount", running)
        buildah("rm", "--all")
        shutil.rmtree(folder)


def _pip_settings() -> str:
    """The machine's own settings for pip, without what names its files."""
    told = _run(sys.executable, "-m", "pip", "config", "list")
    lines = ["[global]"]
    for line in told.splitlines():
        name, _, value = line.partition("=")
        key = name.rpartition(".")[2]
        if key in ("index-url", "extra-index-url", "trusted-host", "cert", "default-timeout"):
            lines.append(f"{key} = {value.strip(chr(39))}")
    return "\n".join(dict.fromkeys(lines)) + "\n"


def _run(*command: str) -> str:
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=_SECONDS, cwd=ROOT
    )
    assert done.returncode == 0, f"{command[:12]}: {(done.stdout + done.stderr)[-3000:]}"
    return done.stdout
