import datetime

from google.protobuf import duration_pb2 as _duration_pb2
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

class OpSummary(_message.Message):
    __slots__ = ("op", "counts", "run_time", "output_bytes")
    OP_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    RUN_TIME_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_BYTES_FIELD_NUMBER: _ClassVar[int]
    op: str
    counts: TaskCounts
    run_time: _duration_pb2.Duration
    output_bytes: int
    def __init__(self, op: _Optional[str] = ..., counts: _Optional[_Union[TaskCounts, _Mapping]] = ..., run_time: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., output_bytes: _Optional[int] = ...) -> None: ...

class Graph(_message.Message):
    __slots__ = ("graph_id", "name", "namespace", "client_id", "state", "counts", "ops", "create_time", "end_time", "expire_time", "first_error", "revision")
    GRAPH_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    OPS_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_FIELD_NUMBER: _ClassVar[int]
    END_TIME_FIELD_NUMBER: _ClassVar[int]
    EXPIRE_TIME_FIELD_NUMBER: _ClassVar[int]
    FIRST_ERROR_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    graph_id: int
    name: str
    namespace: str
    client_id: int
    state: GraphState
    counts: TaskCounts
    ops: _containers.RepeatedCompositeFieldContainer[OpSummary]
    create_time: _timestamp_pb2.Timestamp
    end_time: _timestamp_pb2.Timestamp
    expire_time: _timestamp_pb2.Timestamp
    first_error: str
    revision: int
    def __init__(self, graph_id: _Optional[int] = ..., name: _Optional[str] = ..., namespace: _Optional[str] = ..., client_id: _Optional[int] = ..., state: _Optional[_Union[GraphState, str]] = ..., counts: _Optional[_Union[TaskCounts, _Mapping]] = ..., ops: _Optional[_Iterable[_Union[OpSummary, _Mapping]]] = ..., create_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., end_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., expire_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., first_error: _Optional[str] = ..., revision: _Optional[int] = ...) -> None: ...

class GetGraphRequest(_message.Message):
    __slots__ = ("graph_id",)
    GRAPH_ID_FIELD_NUMBER: _ClassVar[int]
    graph_id: int
    def __init__(self, graph_id: _Optional[int] = ...) -> None: ...

class GetGraphResponse(_message.Message):
    __slots__ = ("graph",)
    GRAPH_FIELD_NUMBER: _ClassVar[int]
    graph: Graph
    def __init__(self, graph: _Optional[_Union[Graph, _Mapping]] = ...) -> None: ...

class ListGraphsRequest(_message.Message):
    __slots__ = ("page_size", "page_token", "states", "namespace", "client_id")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    STATES_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    states: _containers.RepeatedScalarFieldContainer[GraphState]
    namespace: str
    client_id: int
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., states: _Optional[_Iterable[_Union[GraphState, str]]] = ..., namespace: _Optional[str] = ..., client_id: _Optional[int] = ...) -> None: ...

class ListGraphsResponse(_message.Message):
    __slots__ = ("graphs", "next_page_token")
    GRAPHS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    graphs: _containers.RepeatedCompositeFieldContainer[Graph]
    next_page_token: str
    def __init__(self, graphs: _Optional[_Iterable[_Union[Graph, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class ReleaseGraphRequest(_message.Message):
    __slots__ = ("graph_id", "cancel")
    GRAPH_ID_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    graph_id: int
    cancel: bool
    def __init__(self, graph_id: _Optional[int] = ..., cancel: bool = ...) -> None: ...

class ReleaseGraphResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
