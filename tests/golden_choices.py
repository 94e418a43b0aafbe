"""Draws for readers in other languages: `python -m tests.golden choices` writes them anew.

A change of these files means that every reader draws otherwise: it changes the wire format.
"""

from __future__ import annotations

import random
from base64 import b64encode
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamdp.client.choosing import chosen_arm
from streamdp.client.filtering import allowed
from streamdp.core.evidence.policy import PARTS, Policy
from streamdp.core.releases import Identity
from streamdp.ports import Key

HEAD = (
    "salt", "stream", "partition", "key_base64", "epoch", "born", "block", "kind", "request",
    "policy_base64", "drawn", "probability",
)  # fmt: skip
SALTS = ("", "pepper", "any text, the same for all that choose", "ü€😀")
STREAMS = ("home", "banners", "Rad-Ständer")
SKEWED: tuple[Callable[[Policy], Policy], ...] = (
    lambda policy: policy,
    lambda policy: np.array([PARTS, *[0] * (len(policy) - 1)], dtype="<u4"),
    lambda policy: np.array([*[1] * (len(policy) - 1), PARTS - len(policy) + 1], dtype="<u4"),
)  # as it is, with parts for one alone, and with the fewest for all but one
KEYS: tuple[Key, ...] = (None, b"", b"fr", "größe".encode(), b"\xff\x00\x0a\x09")
REQUESTS = ("r-1", "0f3c", "ü😀", "x" * 256)
FILE = files("streamdp.client").joinpath("choices.tsv")
FILTERED_HEAD = (*HEAD[:10], "mask_base64", "back_base64", "parts_base64", *HEAD[10:])
FIRST_BACK = 60
FILTERED = files("streamdp.client").joinpath("filtered.tsv")


def drawn() -> str:
    """A heading, and a line for each draw; the null key is `-`."""
    return _written(HEAD, random.Random(20), 48, filters=False)


def filtered() -> str:
    """The same of draws that exclude actions, with the mask of what is left and its parts.

    In the last 40 some actions are back, of which the policy has no parts.
    """
    return _written(FILTERED_HEAD, random.Random(21), 100, filters=True)


def _written(head: tuple[str, ...], made: random.Random, draws: int, *, filters: bool) -> str:
    lines = [head]
    for number in range(draws):
        arms = made.choice((2, 4, 7, 70)) if filters else made.choice((1, 2, 4, 7, 300))
        ends = sorted(made.randint(0, PARTS) for _ in range(arms - 1))
        policy = np.diff([0, *ends, PARTS]).astype("<u4")
        mask, back, columns = None, None, list[str]()
        if filters:
            policy = SKEWED[number % len(SKEWED)](policy)
            left = made.sample(range(arms), made.randint(1, arms - 1))
            mask, back = np.isin(np.arange(arms), left), np.zeros(arms, dtype=np.bool_)
            if number >= FIRST_BACK:
                back[made.sample(range(arms), made.randint(1, arms - 1))] = True
                mask |= number % 2 == 0  # only what is back makes it a filter
                policy[back] = 0
                policy[back.argmin()] += PARTS - policy.sum()  # another one has what they had
            ends = np.cumsum(policy, dtype=np.int64).tolist()
            parts = np.diff(allowed(ends, mask, back), prepend=0).astype("<u4")
            masks = (_base64(np.packbits(of, bitorder="little")) for of in (mask, back))
            columns = [*masks, _base64(parts)]
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
        arm, probability = chosen_arm(policy, release, request, salt=salt, mask=mask, back=back)
        stream, partition, _, epoch, born, block, kind = release
        written = "-" if key is None else b64encode(key).decode()
        lines.append((
            salt, stream, str(partition), written, str(epoch), str(born), str(block), kind, request,
            _base64(policy), *columns, str(arm), repr(probability),
        ))  # fmt: skip
    return "".join("\t".join(line) + "\n" for line in lines)


def _base64(numbers: NDArray[Any]) -> str:
    return b64encode(numbers.tobytes()).decode()


def main() -> None:
    """Write the files."""
    Path(str(FILE)).write_text(drawn(), "utf-8")
    Path(str(FILTERED)).write_text(filtered(), "utf-8")
