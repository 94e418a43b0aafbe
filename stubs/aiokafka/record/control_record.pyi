class ControlRecord:
    @classmethod
    def parse(cls, data: bytes | None) -> ControlRecord: ...

ABORT_MARKER: ControlRecord
