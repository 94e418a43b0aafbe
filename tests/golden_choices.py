"""Draws for readers in other languages: `python -m tests.golden choices` writes them anew.

A change of this file means that every reader draws otherwise: it is a change of the wire format.
"""

from __future__ import annotations

import random
from base64 import b64encode
from importlib.resources import files
from pathlib import Path

import numpy as np

from streamdp.client.choosing import chosen_arm
from streamdp.core.evidence.policy import PARTS
from streamdp.core.releases import Identity
from streamdp.ports import Key

HEAD = (
    "salt", "stream", "partition", "key_base64", "epoch", "born", "block", "kind", "request",
    "policy_base64", "drawn", "probability",
)  # fmt: skip
SALTS = ("", "pepper", "any text, the same for all that choose", "ü€😀")
STREAMS = ("home", "banners", "Rad-Ständer")
KEYS: tuple[Key, ...] = (None, b"", b"fr", "größe".encode(), b"\xff\x00\x0a\x09")
REQUESTS = ("r-1", "0f3c", "ü😀", "x" * 256)
FILE = files("streamdp.client").joinpath("choices.tsv")


def drawn() -> str:
    """A heading, and a line for each draw; the null key is `-`."""
    made = random.Random(20)
    lines = [HEAD]
    for number in range(48):
        arms = made.choice((1, 2, 4, 7, 300))
        ends = sorted(made.randint(0, PARTS) for _ in range(arms - 1))
        policy = np.diff([0, *ends, PARTS]).astype("<u4")
        key = KEYS[number % len(KEYS)]
        release = Identity(
            made.choice(STREAMS),
            made.choice((0, 1, 96)),
            key,
            made.choice((1, 12)),
            made.choice((0, 17, 2**40)),
            made.choice((0, 3, 1000)),
            "sums" if number % 3 else "opening",
        )
        salt, request = made.choice(SALTS), made.choice(REQUESTS)
        arm, probability = chosen_arm(policy, release, request, salt=salt)
        stream, partition, _, epoch, born, block, kind = release
        written = "-" if key is None else b64encode(key).decode()
        lines.append((
            salt, stream, str(partition), written, str(epoch), str(born), str(block), kind, request,
            b64encode(policy.tobytes()).decode(), str(arm), repr(probability),
        ))  # fmt: skip
    return "".join("\t".join(line) + "\n" for line in lines)


def main() -> None:
    """Write the file."""
    Path(str(FILE)).write_text(drawn(), "utf-8")
