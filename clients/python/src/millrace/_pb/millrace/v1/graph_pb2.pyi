import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GraphState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    GRAPH_STATE_UNSPECIFIED: _ClassVar[GraphState]
    GRAPH_STATE_RUNNING: _ClassVar[GraphState]
    GRAPH_STATE_SUCCEEDED: _ClassVar[GraphState]
    GRAPH_STATE_FAILED: _ClassVar[GraphState]
    GRAPH_STATE_CANCELLED: _ClassVar[GraphState]
GRAPH_STATE_UNSPECIFIED: GraphState
GRAPH_STATE_RUNNING: GraphState
GRAPH_STATE_SUCCEEDED: GraphState
GRAPH_STATE_FAILED: GraphState
GRAPH_STATE_CANCELLED: GraphState

class TaskCounts(_message.Message):
    __slots__ = ("waiting", "ready", "assigned", "running", "succeeded", "failed", "cancelled", "released", "rescuing")
    WAITING_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    ASSIGNED_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    SUCCEEDED_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    CANCELLED_FIELD_NUMBER: _ClassVar[int]
    RELEASED_FIELD_NUMBER: _ClassVar[int]
    RESCUING_FIELD_NUMBER: _ClassVar[int]
    waiting: int
    ready: int
    assigned: int
    running: int
    succeeded: int
    failed: int
    cancelled: int
    released: int
    rescuing: int
    def __init__(self, waiting: _Optional[int] = ..., ready: _Optional[int] = ..., assigned: _Optional[int] = ..., running: _Optional[int] = ..., succeeded: _Optional[int] = ..., failed: _Optional[int] = ..., cancelled: _Optional[int] = ..., released: _Optional[int] = ..., rescuing: _Optional[int] = ...) -> None: ...

class PrefixSummary(_message.Message):
    __slots__ = ("prefix", "counts", "run_seconds", "output_bytes")
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    RUN_SECONDS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_BYTES_FIELD_NUMBER: _ClassVar[int]
    prefix: str
    counts: TaskCounts
    run_seconds: float
    output_bytes: int
    def __init__(self, prefix: _Optional[str] = ..., counts: _Optional[_Union[TaskCounts, _Mapping]] = ..., run_seconds: _Optional[float] = ..., output_bytes: _Optional[int] = ...) -> None: ...

class Graph(_message.Message):
    __slots__ = ("graph_id", "name", "namespace", "client_id", "state", "counts", "prefixes", "create_time", "end_time", "revision", "first_error", "expire_time")
    GRAPH_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    PREFIXES_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_FIELD_NUMBER: _ClassVar[int]
    END_TIME_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    FIRST_ERROR_FIELD_NUMBER: _ClassVar[int]
    EXPIRE_TIME_FIELD_NUMBER: _ClassVar[int]
    graph_id: int
    name: str
    namespace: str
    client_id: int
    state: GraphState
    counts: TaskCounts
    prefixes: _containers.RepeatedCompositeFieldContainer[PrefixSummary]
    create_time: _timestamp_pb2.Timestamp
    end_time: _timestamp_pb2.Timestamp
    revision: int
    first_error: str
    expire_time: _timestamp_pb2.Timestamp
    def __init__(self, graph_id: _Optional[int] = ..., name: _Optional[str] = ..., namespace: _Optional[str] = ..., client_id: _Optional[int] = ..., state: _Optional[_Union[GraphState, str]] = ..., counts: _Optional[_Union[TaskCounts, _Mapping]] = ..., prefixes: _Optional[_Iterable[_Union[PrefixSummary, _Mapping]]] = ..., create_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., end_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., revision: _Optional[int] = ..., first_error: _Optional[str] = ..., expire_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class Dataset(_message.Message):
    __slots__ = ("name", "namespace", "keys", "metadata", "create_time", "revision", "key_count", "metadata_bytes")
    NAME_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    KEY_COUNT_FIELD_NUMBER: _ClassVar[int]
    METADATA_BYTES_FIELD_NUMBER: _ClassVar[int]
    name: str
    namespace: str
    keys: _containers.RepeatedScalarFieldContainer[str]
    metadata: bytes
    create_time: _timestamp_pb2.Timestamp
    revision: int
    key_count: int
    metadata_bytes: int
    def __init__(self, name: _Optional[str] = ..., namespace: _Optional[str] = ..., keys: _Optional[_Iterable[str]] = ..., metadata: _Optional[bytes] = ..., create_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., revision: _Optional[int] = ..., key_count: _Optional[int] = ..., metadata_bytes: _Optional[int] = ...) -> None: ...
