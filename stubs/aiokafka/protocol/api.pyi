from typing import Any, ClassVar, Generic, TypeVar

from aiokafka.protocol.types import Schema

class Response:
    API_KEY: int
    API_VERSION: int
    SCHEMA: Schema
    def __getattr__(self, name: str) -> Any: ...

class RequestStruct:
    FLEXIBLE_VERSION: ClassVar[bool]
    API_KEY: ClassVar[int]
    API_VERSION: ClassVar[int]
    RESPONSE_TYPE: ClassVar[type[Response]]
    SCHEMA: ClassVar[Schema]
    def __init__(self, *fields: Any) -> None: ...

T = TypeVar("T", bound=RequestStruct)

class Request(Generic[T]):
    API_KEY: ClassVar[int]
    def build(self, request_struct_class: type[T]) -> T: ...
