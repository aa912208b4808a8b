import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from millrace._pb.millrace.v1 import graph_pb2 as _graph_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ClusterInfo(_message.Message):
    __slots__ = ("cluster_id", "version", "api_version", "start_time", "active_workers", "total_slots", "memory_limit_bytes", "memory_used_bytes", "tasks", "clients", "inline_result_bytes", "max_message_bytes", "http_address", "native_ops", "life")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    API_VERSION_FIELD_NUMBER: _ClassVar[int]
    START_TIME_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_WORKERS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_SLOTS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_LIMIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_USED_BYTES_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    CLIENTS_FIELD_NUMBER: _ClassVar[int]
    INLINE_RESULT_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_MESSAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    HTTP_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    NATIVE_OPS_FIELD_NUMBER: _ClassVar[int]
    LIFE_FIELD_NUMBER: _ClassVar[int]
    cluster_id: str
    version: str
    api_version: str
    start_time: _timestamp_pb2.Timestamp
    active_workers: int
    total_slots: int
    memory_limit_bytes: int
    memory_used_bytes: int
    tasks: _graph_pb2.TaskCounts
    clients: int
    inline_result_bytes: int
    max_message_bytes: int
    http_address: str
    native_ops: _containers.RepeatedScalarFieldContainer[str]
    life: int
    def __init__(self, cluster_id: _Optional[str] = ..., version: _Optional[str] = ..., api_version: _Optional[str] = ..., start_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., active_workers: _Optional[int] = ..., total_slots: _Optional[int] = ..., memory_limit_bytes: _Optional[int] = ..., memory_used_bytes: _Optional[int] = ..., tasks: _Optional[_Union[_graph_pb2.TaskCounts, _Mapping]] = ..., clients: _Optional[int] = ..., inline_result_bytes: _Optional[int] = ..., max_message_bytes: _Optional[int] = ..., http_address: _Optional[str] = ..., native_ops: _Optional[_Iterable[str]] = ..., life: _Optional[int] = ...) -> None: ...

class GetClusterInfoRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetClusterInfoResponse(_message.Message):
    __slots__ = ("cluster",)
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    cluster: ClusterInfo
    def __init__(self, cluster: _Optional[_Union[ClusterInfo, _Mapping]] = ...) -> None: ...

class ShutdownRequest(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class ShutdownResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
