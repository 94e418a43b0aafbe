"""Is a key's first learned action served, by every path that a reader can take?

A key's opening and its first learned action are both of block 0, and a service publishes both at
once after the key's first record. A reader that follows sees one after the other.
"""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Mapping
from contextlib import ExitStack

from streamdp.client import ActionsCache, Answer, Change, HttpActions, Source
from streamdp.ports import StreamTopics
from streamdp.service.config import Configuration
from tests.support.running import Place, until

LOSSES = b'{"losses": [0, 1, 1]}'


def readers_disagree(place: Place) -> Mapping[str, Answer]:
    """Each path whose answer after a key's first record is not the first learned action."""
    publications = Configuration.load(place.path, {}).technology().publications
    home = Source(StreamTopics(app=place.app, stream="home", input=place.input), "z")
    seen: dict[str, Answer] = {}
    followed: list[Change] = []
    polled: list[Change] = []
    with ExitStack() as stack:
        stack.enter_context(place.running())
        until(place.ready)
        follower = stack.enter_context(
            ActionsCache(publications, [home], on_change=followed.append)
        )
        http = stack.enter_context(
            HttpActions(place.url, {"home": "z"}, refresh=0.05, on_change=polled.append)
        )
        tag = etag(place)
        place.send([(b"fr", LOSSES)])
        until(lambda: is_published(follower, b"fr"))
        place.send([(b"de", LOSSES)])  # once this is known, all of the first key's is
        until(lambda: is_published(follower, b"de"))
        until(lambda: http.fetch("home", [b"de"])[0].partition >= 0)
        assert etag(place) != tag
        with ActionsCache(publications, [home]) as later:
            seen["a cache that starts later"] = later.action("home", b"fr")
        seen["a cache that follows"] = follower.action("home", b"fr")
        (seen["HTTP, many keys"],) = http.fetch("home", [b"fr"])
        seen["HttpActions"] = http.action("home", b"fr")
        for name, changes in (("a cache", followed), ("HttpActions", polled)):
            seen[f"on_change of {name}"] = [c.after for c in changes if c.key == b"fr"][-1]
        release = json.loads(place.get("/v1/streams/home/keys/fr/action")[1])["release"]
        assert (release["block"], release["slots"]) == (0, 1), "HTTP, one key"
    return {path: answer for path, answer in seen.items() if (answer.block, answer.slots) != (0, 1)}


def is_published(cache: ActionsCache, key: bytes) -> bool:
    """Whether the key's learner is known."""
    return cache.action("home", key).partition >= 0


def etag(place: Place) -> str:
    """What names the release that HTTP answers with."""
    with urllib.request.urlopen(
        place.url + "/v1/streams/home/keys/fr/action", timeout=60
    ) as answer:
        tag: str = answer.headers["etag"]
        return tag
