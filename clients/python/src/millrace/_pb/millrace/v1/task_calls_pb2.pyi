import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import struct_pb2 as _struct_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from millrace._pb.millrace.v1 import task_pb2 as _task_pb2
from millrace._pb.millrace.v1 import value_pb2 as _value_pb2
from millrace._pb.millrace.v1 import worker_pb2 as _worker_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class HoldTasksRequest(_message.Message):
    __slots__ = ("client_id", "tasks")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    client_id: int
    tasks: _task_pb2.TaskSet
    def __init__(self, client_id: _Optional[int] = ..., tasks: _Optional[_Union[_task_pb2.TaskSet, _Mapping]] = ...) -> None: ...

class HoldTasksResponse(_message.Message):
    __slots__ = ("task_ids",)
    TASK_IDS_FIELD_NUMBER: _ClassVar[int]
    task_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, task_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class ReleaseTasksRequest(_message.Message):
    __slots__ = ("client_id", "tasks")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    client_id: int
    tasks: _task_pb2.TaskSet
    def __init__(self, client_id: _Optional[int] = ..., tasks: _Optional[_Union[_task_pb2.TaskSet, _Mapping]] = ...) -> None: ...

class ReleaseTasksResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CancelTasksRequest(_message.Message):
    __slots__ = ("client_id", "tasks", "graph_ids", "reason", "force")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    GRAPH_IDS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    FORCE_FIELD_NUMBER: _ClassVar[int]
    client_id: int
    tasks: _task_pb2.TaskSet
    graph_ids: _containers.RepeatedScalarFieldContainer[int]
    reason: str
    force: bool
    def __init__(self, client_id: _Optional[int] = ..., tasks: _Optional[_Union[_task_pb2.TaskSet, _Mapping]] = ..., graph_ids: _Optional[_Iterable[int]] = ..., reason: _Optional[str] = ..., force: bool = ...) -> None: ...

class CancelTasksResponse(_message.Message):
    __slots__ = ("cancelled_tasks", "unknown_task_ids")
    CANCELLED_TASKS_FIELD_NUMBER: _ClassVar[int]
    UNKNOWN_TASK_IDS_FIELD_NUMBER: _ClassVar[int]
    cancelled_tasks: int
    unknown_task_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, cancelled_tasks: _Optional[int] = ..., unknown_task_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class RetryTasksRequest(_message.Message):
    __slots__ = ("client_id", "tasks", "graph_ids")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    GRAPH_IDS_FIELD_NUMBER: _ClassVar[int]
    client_id: int
    tasks: _task_pb2.TaskSet
    graph_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, client_id: _Optional[int] = ..., tasks: _Optional[_Union[_task_pb2.TaskSet, _Mapping]] = ..., graph_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class RetryTasksResponse(_message.Message):
    __slots__ = ("retried_tasks",)
    RETRIED_TASKS_FIELD_NUMBER: _ClassVar[int]
    retried_tasks: int
    def __init__(self, retried_tasks: _Optional[int] = ...) -> None: ...

class GetTaskRequest(_message.Message):
    __slots__ = ("task", "history")
    TASK_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    task: _task_pb2.TaskRef
    history: bool
    def __init__(self, task: _Optional[_Union[_task_pb2.TaskRef, _Mapping]] = ..., history: bool = ...) -> None: ...

class GetTaskResponse(_message.Message):
    __slots__ = ("task",)
    TASK_FIELD_NUMBER: _ClassVar[int]
    task: _task_pb2.Task
    def __init__(self, task: _Optional[_Union[_task_pb2.Task, _Mapping]] = ...) -> None: ...

class ListTasksRequest(_message.Message):
    __slots__ = ("page_size", "page_token", "graph_id", "states", "worker", "namespace", "key_prefix")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    GRAPH_ID_FIELD_NUMBER: _ClassVar[int]
    STATES_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    KEY_PREFIX_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    graph_id: int
    states: _containers.RepeatedScalarFieldContainer[_task_pb2.TaskState]
    worker: _worker_pb2.WorkerRef
    namespace: str
    key_prefix: str
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., graph_id: _Optional[int] = ..., states: _Optional[_Iterable[_Union[_task_pb2.TaskState, str]]] = ..., worker: _Optional[_Union[_worker_pb2.WorkerRef, _Mapping]] = ..., namespace: _Optional[str] = ..., key_prefix: _Optional[str] = ...) -> None: ...

class ListTasksResponse(_message.Message):
    __slots__ = ("tasks", "next_page_token")
    TASKS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    tasks: _containers.RepeatedCompositeFieldContainer[_task_pb2.Task]
    next_page_token: str
    def __init__(self, tasks: _Optional[_Iterable[_Union[_task_pb2.Task, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class ListTaskRunsRequest(_message.Message):
    __slots__ = ("page_size", "page_token", "namespace", "begin_time", "graph_id")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    BEGIN_TIME_FIELD_NUMBER: _ClassVar[int]
    GRAPH_ID_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    namespace: str
    begin_time: _timestamp_pb2.Timestamp
    graph_id: int
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., namespace: _Optional[str] = ..., begin_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., graph_id: _Optional[int] = ...) -> None: ...

class ListTaskRunsResponse(_message.Message):
    __slots__ = ("runs", "next_page_token")
    RUNS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    runs: _containers.RepeatedCompositeFieldContainer[_task_pb2.TaskRun]
    next_page_token: str
    def __init__(self, runs: _Optional[_Iterable[_Union[_task_pb2.TaskRun, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class ExplainTaskRequest(_message.Message):
    __slots__ = ("task",)
    TASK_FIELD_NUMBER: _ClassVar[int]
    task: _task_pb2.TaskRef
    def __init__(self, task: _Optional[_Union[_task_pb2.TaskRef, _Mapping]] = ...) -> None: ...

class WorkerVerdict(_message.Message):
    __slots__ = ("worker", "feasible", "reason", "queue_time", "missing_bytes", "transfer_time", "completion_time", "sources")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    FEASIBLE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    QUEUE_TIME_FIELD_NUMBER: _ClassVar[int]
    MISSING_BYTES_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_TIME_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_TIME_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    worker: str
    feasible: bool
    reason: str
    queue_time: _duration_pb2.Duration
    missing_bytes: int
    transfer_time: _duration_pb2.Duration
    completion_time: _duration_pb2.Duration
    sources: str
    def __init__(self, worker: _Optional[str] = ..., feasible: bool = ..., reason: _Optional[str] = ..., queue_time: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., missing_bytes: _Optional[int] = ..., transfer_time: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., completion_time: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., sources: _Optional[str] = ...) -> None: ...

class ExplainTaskResponse(_message.Message):
    __slots__ = ("task", "status", "explanation", "missing", "workers")
    TASK_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    EXPLANATION_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    task: _task_pb2.Task
    status: _task_pb2.TaskStatus
    explanation: str
    missing: _containers.RepeatedCompositeFieldContainer[_task_pb2.Task]
    workers: _containers.RepeatedCompositeFieldContainer[WorkerVerdict]
    def __init__(self, task: _Optional[_Union[_task_pb2.Task, _Mapping]] = ..., status: _Optional[_Union[_task_pb2.TaskStatus, str]] = ..., explanation: _Optional[str] = ..., missing: _Optional[_Iterable[_Union[_task_pb2.Task, _Mapping]]] = ..., workers: _Optional[_Iterable[_Union[WorkerVerdict, _Mapping]]] = ...) -> None: ...

class GetResultRequest(_message.Message):
    __slots__ = ("task", "wait")
    TASK_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    task: _task_pb2.TaskRef
    wait: _duration_pb2.Duration
    def __init__(self, task: _Optional[_Union[_task_pb2.TaskRef, _Mapping]] = ..., wait: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class GetResultResponse(_message.Message):
    __slots__ = ("value", "json")
    VALUE_FIELD_NUMBER: _ClassVar[int]
    JSON_FIELD_NUMBER: _ClassVar[int]
    value: _value_pb2.Value
    json: _struct_pb2.Value
    def __init__(self, value: _Optional[_Union[_value_pb2.Value, _Mapping]] = ..., json: _Optional[_Union[_struct_pb2.Value, _Mapping]] = ...) -> None: ...

class LocateObjectsRequest(_message.Message):
    __slots__ = ("task_ids",)
    TASK_IDS_FIELD_NUMBER: _ClassVar[int]
    task_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, task_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class ObjectLocation(_message.Message):
    __slots__ = ("task_id", "state", "generation", "bytes", "worker_ids")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    WORKER_IDS_FIELD_NUMBER: _ClassVar[int]
    task_id: int
    state: _task_pb2.TaskState
    generation: int
    bytes: int
    worker_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, task_id: _Optional[int] = ..., state: _Optional[_Union[_task_pb2.TaskState, str]] = ..., generation: _Optional[int] = ..., bytes: _Optional[int] = ..., worker_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class LocateObjectsResponse(_message.Message):
    __slots__ = ("objects", "workers")
    OBJECTS_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    objects: _containers.RepeatedCompositeFieldContainer[ObjectLocation]
    workers: _containers.RepeatedCompositeFieldContainer[_worker_pb2.WorkerAddress]
    def __init__(self, objects: _Optional[_Iterable[_Union[ObjectLocation, _Mapping]]] = ..., workers: _Optional[_Iterable[_Union[_worker_pb2.WorkerAddress, _Mapping]]] = ...) -> None: ...
