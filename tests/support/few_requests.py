"""A pytest plugin: the command's audit asks the client's `choose` for few requests."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest


@pytest.fixture
def short_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command's audit looks at blocks of up to 16 slots; what it finds is asked elsewhere."""
    # Imported here: pytest loads this file for every test.
    from streamdp.lab import audit

    monkeypatch.setattr(audit, "audit_kind", partial(audit.audit_kind, longest=16))


@pytest.fixture
def few_requests(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A hundredth of what the command asks `choose`; its mutants are in `test_audit_kinds`."""
    from streamdp.lab.audit import flaws_of_choosing
    from streamdp.lab.commands.audit import _flaws_of_choices

    few = partial(flaws_of_choosing, samples=200)
    monkeypatch.setattr("streamdp.lab.audit.flaws_of_choosing", few)
    _flaws_of_choices.cache_clear()
    yield
    _flaws_of_choices.cache_clear()
