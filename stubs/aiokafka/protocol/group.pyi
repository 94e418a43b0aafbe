from aiokafka.protocol.api import Request, RequestStruct

class LeaveGroupRequest(Request[RequestStruct]):
    def __init__(self, group: str, member_id: str) -> None: ...
