import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import struct_pb2 as _struct_pb2
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
    __slots__ = ("client_id", "keys")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    client_id: int
    keys: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, client_id: _Optional[int] = ..., keys: _Optional[_Iterable[str]] = ...) -> None: ...

class HoldTasksResponse(_message.Message):
    __slots__ = ("task_ids",)
    TASK_IDS_FIELD_NUMBER: _ClassVar[int]
    task_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, task_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class ReleaseTasksRequest(_message.Message):
    __slots__ = ("client_id", "task_ids")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    TASK_IDS_FIELD_NUMBER: _ClassVar[int]
    client_id: int
    task_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, client_id: _Optional[int] = ..., task_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class ReleaseTasksResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CancelTasksRequest(_message.Message):
    __slots__ = ("client_id", "task_ids", "keys", "graph_ids", "reason", "force", "namespace")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    TASK_IDS_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    GRAPH_IDS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    FORCE_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    client_id: int
    task_ids: _containers.RepeatedScalarFieldContainer[int]
    keys: _containers.RepeatedScalarFieldContainer[str]
    graph_ids: _containers.RepeatedScalarFieldContainer[int]
    reason: str
    force: bool
    namespace: str
    def __init__(self, client_id: _Optional[int] = ..., task_ids: _Optional[_Iterable[int]] = ..., keys: _Optional[_Iterable[str]] = ..., graph_ids: _Optional[_Iterable[int]] = ..., reason: _Optional[str] = ..., force: bool = ..., namespace: _Optional[str] = ...) -> None: ...

class CancelTasksResponse(_message.Message):
    __slots__ = ("cancelled_tasks", "unknown_task_ids")
    CANCELLED_TASKS_FIELD_NUMBER: _ClassVar[int]
    UNKNOWN_TASK_IDS_FIELD_NUMBER: _ClassVar[int]
    cancelled_tasks: int
    unknown_task_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, cancelled_tasks: _Optional[int] = ..., unknown_task_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class RetryTasksRequest(_message.Message):
    __slots__ = ("client_id", "task_ids", "keys", "namespace")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    TASK_IDS_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    client_id: int
    task_ids: _containers.RepeatedScalarFieldContainer[int]
    keys: _containers.RepeatedScalarFieldContainer[str]
    namespace: str
    def __init__(self, client_id: _Optional[int] = ..., task_ids: _Optional[_Iterable[int]] = ..., keys: _Optional[_Iterable[str]] = ..., namespace: _Optional[str] = ...) -> None: ...

class RetryTasksResponse(_message.Message):
    __slots__ = ("retried_tasks",)
    RETRIED_TASKS_FIELD_NUMBER: _ClassVar[int]
    retried_tasks: int
    def __init__(self, retried_tasks: _Optional[int] = ...) -> None: ...

class GetTaskRequest(_message.Message):
    __slots__ = ("task_id", "key", "namespace", "story")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    STORY_FIELD_NUMBER: _ClassVar[int]
    task_id: int
    key: str
    namespace: str
    story: bool
    def __init__(self, task_id: _Optional[int] = ..., key: _Optional[str] = ..., namespace: _Optional[str] = ..., story: bool = ...) -> None: ...

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

class ExplainTaskRequest(_message.Message):
    __slots__ = ("task_id", "key", "namespace")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    task_id: int
    key: str
    namespace: str
    def __init__(self, task_id: _Optional[int] = ..., key: _Optional[str] = ..., namespace: _Optional[str] = ...) -> None: ...

class WorkerVerdict(_message.Message):
    __slots__ = ("worker", "feasible", "reason", "queue_seconds", "missing_bytes", "transfer_seconds", "finish_seconds", "fetch_by")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    FEASIBLE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    QUEUE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    MISSING_BYTES_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_SECONDS_FIELD_NUMBER: _ClassVar[int]
    FINISH_SECONDS_FIELD_NUMBER: _ClassVar[int]
    FETCH_BY_FIELD_NUMBER: _ClassVar[int]
    worker: str
    feasible: bool
    reason: str
    queue_seconds: float
    missing_bytes: int
    transfer_seconds: float
    finish_seconds: float
    fetch_by: str
    def __init__(self, worker: _Optional[str] = ..., feasible: bool = ..., reason: _Optional[str] = ..., queue_seconds: _Optional[float] = ..., missing_bytes: _Optional[int] = ..., transfer_seconds: _Optional[float] = ..., finish_seconds: _Optional[float] = ..., fetch_by: _Optional[str] = ...) -> None: ...

class ExplainTaskResponse(_message.Message):
    __slots__ = ("task", "reason", "explanation", "missing", "workers")
    TASK_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    EXPLANATION_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    task: _task_pb2.Task
    reason: str
    explanation: str
    missing: _containers.RepeatedCompositeFieldContainer[_task_pb2.Task]
    workers: _containers.RepeatedCompositeFieldContainer[WorkerVerdict]
    def __init__(self, task: _Optional[_Union[_task_pb2.Task, _Mapping]] = ..., reason: _Optional[str] = ..., explanation: _Optional[str] = ..., missing: _Optional[_Iterable[_Union[_task_pb2.Task, _Mapping]]] = ..., workers: _Optional[_Iterable[_Union[WorkerVerdict, _Mapping]]] = ...) -> None: ...

class GetResultRequest(_message.Message):
    __slots__ = ("task_id", "key", "namespace", "wait")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    task_id: int
    key: str
    namespace: str
    wait: _duration_pb2.Duration
    def __init__(self, task_id: _Optional[int] = ..., key: _Optional[str] = ..., namespace: _Optional[str] = ..., wait: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

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
