import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from millrace._pb.millrace.v1 import task_pb2 as _task_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SubmitHeader(_message.Message):
    __slots__ = ("client_id", "graph_id", "name", "namespace", "request_id", "retention")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    GRAPH_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    RETENTION_FIELD_NUMBER: _ClassVar[int]
    client_id: int
    graph_id: int
    name: str
    namespace: str
    request_id: str
    retention: _duration_pb2.Duration
    def __init__(self, client_id: _Optional[int] = ..., graph_id: _Optional[int] = ..., name: _Optional[str] = ..., namespace: _Optional[str] = ..., request_id: _Optional[str] = ..., retention: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class SubmitRequest(_message.Message):
    __slots__ = ("header", "ops", "functions", "options", "tasks")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    OPS_FIELD_NUMBER: _ClassVar[int]
    FUNCTIONS_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    header: SubmitHeader
    ops: _containers.RepeatedCompositeFieldContainer[_task_pb2.Op]
    functions: _containers.RepeatedCompositeFieldContainer[_task_pb2.Function]
    options: _containers.RepeatedCompositeFieldContainer[_task_pb2.TaskOptions]
    tasks: _containers.RepeatedCompositeFieldContainer[_task_pb2.TaskSpec]
    def __init__(self, header: _Optional[_Union[SubmitHeader, _Mapping]] = ..., ops: _Optional[_Iterable[_Union[_task_pb2.Op, _Mapping]]] = ..., functions: _Optional[_Iterable[_Union[_task_pb2.Function, _Mapping]]] = ..., options: _Optional[_Iterable[_Union[_task_pb2.TaskOptions, _Mapping]]] = ..., tasks: _Optional[_Iterable[_Union[_task_pb2.TaskSpec, _Mapping]]] = ...) -> None: ...

class SubmitResponse(_message.Message):
    __slots__ = ("graph_id", "task_ids", "joined_tasks", "revision", "missing_functions", "failed_task_ids")
    GRAPH_ID_FIELD_NUMBER: _ClassVar[int]
    TASK_IDS_FIELD_NUMBER: _ClassVar[int]
    JOINED_TASKS_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    MISSING_FUNCTIONS_FIELD_NUMBER: _ClassVar[int]
    FAILED_TASK_IDS_FIELD_NUMBER: _ClassVar[int]
    graph_id: int
    task_ids: _containers.RepeatedScalarFieldContainer[int]
    joined_tasks: int
    revision: int
    missing_functions: _containers.RepeatedScalarFieldContainer[bytes]
    failed_task_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, graph_id: _Optional[int] = ..., task_ids: _Optional[_Iterable[int]] = ..., joined_tasks: _Optional[int] = ..., revision: _Optional[int] = ..., missing_functions: _Optional[_Iterable[bytes]] = ..., failed_task_ids: _Optional[_Iterable[int]] = ...) -> None: ...
