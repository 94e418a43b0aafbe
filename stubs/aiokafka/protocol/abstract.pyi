from io import BytesIO
from typing import Generic, TypeVar

T = TypeVar("T")

class AbstractType(Generic[T]):
    @classmethod
    def encode(cls, value: T) -> bytes: ...
    @classmethod
    def decode(cls, data: BytesIO) -> T: ...
