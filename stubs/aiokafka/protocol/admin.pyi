from collections.abc import Sequence

from aiokafka.protocol.api import Request, RequestStruct

class DescribeGroupsRequest(Request[RequestStruct]):
    def __init__(self, groups: Sequence[str]) -> None: ...
