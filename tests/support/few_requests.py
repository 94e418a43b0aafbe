"""A pytest plugin: the command's audit asks the client's `choose` for few requests."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest


@pytest.fixture
def few_requests(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A tenth of what the command asks `choose`; its mutants are in `test_audit_kinds`."""
    # Imported here: pytest loads this file for every test.
    from streamdp.lab.audit import flaws_of_choosing
    from streamdp.lab.commands.audit import _flaws_of_choices

    few = partial(flaws_of_choosing, samples=2000)
    monkeypatch.setattr("streamdp.lab.audit.flaws_of_choosing", few)
    _flaws_of_choices.cache_clear()
    yield
    _flaws_of_choices.cache_clear()
