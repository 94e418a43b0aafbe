"""Records as a batch, as a service makes it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from streamdp.core.events import Batch
from streamdp.ports import Records
from streamdp.service.batches import decoded_records, joined
from streamdp.wire.formats import Format


def decode(format_: Format, records: Sequence[Records], **limits: Any) -> tuple[Batch, int]:
    """Records that nobody has decoded yet, as a batch."""
    return joined([decoded_records(format_, part) for part in records], **limits)
