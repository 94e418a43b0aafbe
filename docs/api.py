"""Builds the API documentation from docstrings, and checks its links: `make docs`.

    python docs/api.py FOLDER

Every module of `streamdp` and `streamdp_adapters` gets a page, made by pdoc. Exit code 1 if pdoc
cannot read a module, or if a link in a page leads nowhere. pdoc runs as a process of its own: it
is in `requirements/docs.lock` alone.
"""

from __future__ import annotations

import pkgutil
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import streamdp
import streamdp_adapters

PACKAGES = (streamdp, streamdp_adapters)


def modules() -> Iterator[str]:
    """Every module that a reader may look up."""
    for package in PACKAGES:
        yield package.__name__
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not any(part.startswith("_") for part in module.name.split(".")):
                yield module.name


class Page(HTMLParser):
    """The links and the anchors of one page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note where the tag leads, and what can lead to it."""
        for name, value in attrs:
            if tag == "a" and name == "href" and value:
                self.links.append(value)
            if name == "id" and value:
                self.anchors.add(value)


def broken_links(folder: Path) -> list[str]:
    """Each link between these pages that leads nowhere, as `page: link`."""
    pages = {path.resolve(): Page(path.read_text()) for path in folder.rglob("*.html")}
    broken = []
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            there = pages.get(target)
            lost = there is None and not target.is_file()
            if lost or (there and parts.fragment and unquote(parts.fragment) not in there.anchors):
                broken.append(f"{path.relative_to(folder.resolve())}: {link}")
    return sorted(set(broken))


PRIVATE_LINK = re.compile(r'<a href="[^"]*#_[^"]*">(.*?)</a>')
"""pdoc links names that begin with an underscore, and shows no such name."""


def main() -> None:
    """Build, then check."""
    folder = Path(sys.argv[1])
    command = [sys.executable, "-W", "ignore", "-m", "pdoc", "--output-directory", str(folder)]
    run = subprocess.run([*command, *modules()], check=False, capture_output=True, text=True)
    if run.returncode:
        sys.exit(f"{run.stdout}{run.stderr}")
    for path in folder.rglob("*.html"):
        path.write_text(PRIVATE_LINK.sub(r"\1", path.read_text()))
    broken = broken_links(folder)
    for line in broken:
        print(line, file=sys.stderr)
    print(f"{len(list(folder.rglob('*.html')))} pages in {folder}, {len(broken)} broken links")
    sys.exit(1 if broken else 0)


if __name__ == "__main__":
    main()
