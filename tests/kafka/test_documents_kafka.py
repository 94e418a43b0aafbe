"""Can a stranger follow the documentation from an empty folder to actions on a real broker?"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from streamdp.testing.broker import Borrowed
from streamdp.testing.free_ports import free_address
from tests.support.documents import PAGES, Story, blocks, needs_broker

THERE = [page for page in PAGES if needs_broker(page.read_text())]


@pytest.mark.long
@pytest.mark.kafka
@pytest.mark.system("kcat", "curl", "javac")
@pytest.mark.parametrize("page", THERE, ids=lambda page: str(page.stem))
def test_a_page_can_be_followed(
    page: Path, broker: Borrowed, fresh_app: Callable[[], str], tmp_path: Path
) -> None:
    app = fresh_app()
    text = page.read_text()
    configuration = next(block.text for block in blocks(text) if block.file)
    inputs = re.findall(r"^\[topics\.(\w+)\]", configuration, re.MULTILINE)
    wording = {
        "localhost:9092": broker.bootstrap,
        "127.0.0.1:8080": free_address(),
        "127.0.0.1:8081": free_address(),
        "127.0.0.1:8000": (front := free_address()),
        '"127.0.0.1", 8000': f'"127.0.0.1", {front.partition(":")[2]}',
        "shop": app,
        **{name: f"{app}-{name}" for name in inputs},
    }
    Story(tmp_path, wording).follow(text)
