"""A pytest plugin: the command's audit looks at short blocks."""

from __future__ import annotations

from functools import partial

import pytest


@pytest.fixture
def short_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of up to 16 slots; what the command's audit finds is asked elsewhere."""
    # Imported here: pytest loads this file for every test.
    from streamdp.lab import audit

    monkeypatch.setattr(audit, "audit_kind", partial(audit.audit_kind, longest=16))
