"""The layout of a configuration's saved rows, and its fingerprint: known without an engine."""

from __future__ import annotations

from hashlib import sha256

from streamdp.core import snapshot
from streamdp.core.kinds.kind import Kind


def configuration_digest(kind: Kind) -> str:
    """A fingerprint of everything that a row's state and releases depend on."""
    charges = [f"{of.name} {of.epsilon} {of.shortest}" for of in kind.releases[1:]]
    return sha256("\n".join([kind.digest(), *charges]).encode()).hexdigest()


def row_layout(kind: Kind, *, epoch: int) -> snapshot.Layout:
    """The layout of a configuration's saved rows."""
    digest = bytes.fromhex(configuration_digest(kind))[:16]
    return snapshot.Layout(digest, epoch, kind.fields, kind.evidence.fields)
