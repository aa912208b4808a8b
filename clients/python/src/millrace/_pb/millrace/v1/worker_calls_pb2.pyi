import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from millrace._pb.millrace.v1 import worker_pb2 as _worker_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GetWorkerRequest(_message.Message):
    __slots__ = ("worker", "view")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    VIEW_FIELD_NUMBER: _ClassVar[int]
    worker: _worker_pb2.WorkerRef
    view: _worker_pb2.WorkerView
    def __init__(self, worker: _Optional[_Union[_worker_pb2.WorkerRef, _Mapping]] = ..., view: _Optional[_Union[_worker_pb2.WorkerView, str]] = ...) -> None: ...

class GetWorkerResponse(_message.Message):
    __slots__ = ("worker",)
    WORKER_FIELD_NUMBER: _ClassVar[int]
    worker: _worker_pb2.Worker
    def __init__(self, worker: _Optional[_Union[_worker_pb2.Worker, _Mapping]] = ...) -> None: ...

class ListWorkersRequest(_message.Message):
    __slots__ = ("page_size", "page_token", "states", "view")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    STATES_FIELD_NUMBER: _ClassVar[int]
    VIEW_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    states: _containers.RepeatedScalarFieldContainer[_worker_pb2.WorkerState]
    view: _worker_pb2.WorkerView
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., states: _Optional[_Iterable[_Union[_worker_pb2.WorkerState, str]]] = ..., view: _Optional[_Union[_worker_pb2.WorkerView, str]] = ...) -> None: ...

class ListWorkersResponse(_message.Message):
    __slots__ = ("workers", "next_page_token")
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    workers: _containers.RepeatedCompositeFieldContainer[_worker_pb2.Worker]
    next_page_token: str
    def __init__(self, workers: _Optional[_Iterable[_Union[_worker_pb2.Worker, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class DrainWorkersRequest(_message.Message):
    __slots__ = ("workers", "reason", "undo")
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    UNDO_FIELD_NUMBER: _ClassVar[int]
    workers: _containers.RepeatedCompositeFieldContainer[_worker_pb2.WorkerRef]
    reason: str
    undo: bool
    def __init__(self, workers: _Optional[_Iterable[_Union[_worker_pb2.WorkerRef, _Mapping]]] = ..., reason: _Optional[str] = ..., undo: bool = ...) -> None: ...

class DrainWorkersResponse(_message.Message):
    __slots__ = ("workers",)
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    workers: _containers.RepeatedCompositeFieldContainer[_worker_pb2.Worker]
    def __init__(self, workers: _Optional[_Iterable[_Union[_worker_pb2.Worker, _Mapping]]] = ...) -> None: ...

class RetireWorkersRequest(_message.Message):
    __slots__ = ("workers", "reason", "timeout")
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    workers: _containers.RepeatedCompositeFieldContainer[_worker_pb2.WorkerRef]
    reason: str
    timeout: _duration_pb2.Duration
    def __init__(self, workers: _Optional[_Iterable[_Union[_worker_pb2.WorkerRef, _Mapping]]] = ..., reason: _Optional[str] = ..., timeout: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class RetireWorkersResponse(_message.Message):
    __slots__ = ("workers",)
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    workers: _containers.RepeatedCompositeFieldContainer[_worker_pb2.Worker]
    def __init__(self, workers: _Optional[_Iterable[_Union[_worker_pb2.Worker, _Mapping]]] = ...) -> None: ...

class RestartWorkersRequest(_message.Message):
    __slots__ = ("workers", "reason", "timeout")
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    workers: _containers.RepeatedCompositeFieldContainer[_worker_pb2.WorkerRef]
    reason: str
    timeout: _duration_pb2.Duration
    def __init__(self, workers: _Optional[_Iterable[_Union[_worker_pb2.WorkerRef, _Mapping]]] = ..., reason: _Optional[str] = ..., timeout: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class RestartWorkersResponse(_message.Message):
    __slots__ = ("workers",)
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    workers: _containers.RepeatedCompositeFieldContainer[_worker_pb2.Worker]
    def __init__(self, workers: _Optional[_Iterable[_Union[_worker_pb2.Worker, _Mapping]]] = ...) -> None: ...

class RebalanceRequest(_message.Message):
    __slots__ = ("workers", "dry_run")
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    workers: _containers.RepeatedCompositeFieldContainer[_worker_pb2.WorkerRef]
    dry_run: bool
    def __init__(self, workers: _Optional[_Iterable[_Union[_worker_pb2.WorkerRef, _Mapping]]] = ..., dry_run: bool = ...) -> None: ...

class RebalanceResponse(_message.Message):
    __slots__ = ("planned_objects", "planned_bytes", "moved_objects", "moved_bytes", "failed_objects", "failed_bytes", "failures", "workers", "done")
    PLANNED_OBJECTS_FIELD_NUMBER: _ClassVar[int]
    PLANNED_BYTES_FIELD_NUMBER: _ClassVar[int]
    MOVED_OBJECTS_FIELD_NUMBER: _ClassVar[int]
    MOVED_BYTES_FIELD_NUMBER: _ClassVar[int]
    FAILED_OBJECTS_FIELD_NUMBER: _ClassVar[int]
    FAILED_BYTES_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    planned_objects: int
    planned_bytes: int
    moved_objects: int
    moved_bytes: int
    failed_objects: int
    failed_bytes: int
    failures: _containers.RepeatedCompositeFieldContainer[FailedMove]
    workers: _containers.RepeatedCompositeFieldContainer[RebalancedWorker]
    done: bool
    def __init__(self, planned_objects: _Optional[int] = ..., planned_bytes: _Optional[int] = ..., moved_objects: _Optional[int] = ..., moved_bytes: _Optional[int] = ..., failed_objects: _Optional[int] = ..., failed_bytes: _Optional[int] = ..., failures: _Optional[_Iterable[_Union[FailedMove, _Mapping]]] = ..., workers: _Optional[_Iterable[_Union[RebalancedWorker, _Mapping]]] = ..., done: bool = ...) -> None: ...

class FailedMove(_message.Message):
    __slots__ = ("task_id", "key", "namespace", "bytes", "source_worker_id", "target_worker_id", "reason")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    SOURCE_WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    TARGET_WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    task_id: int
    key: str
    namespace: str
    bytes: int
    source_worker_id: int
    target_worker_id: int
    reason: str
    def __init__(self, task_id: _Optional[int] = ..., key: _Optional[str] = ..., namespace: _Optional[str] = ..., bytes: _Optional[int] = ..., source_worker_id: _Optional[int] = ..., target_worker_id: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class RebalancedWorker(_message.Message):
    __slots__ = ("worker_id", "name", "initial_bytes", "bytes", "planned_bytes", "staying_bytes", "memory_limit_bytes")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    INITIAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    PLANNED_BYTES_FIELD_NUMBER: _ClassVar[int]
    STAYING_BYTES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_LIMIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    worker_id: int
    name: str
    initial_bytes: int
    bytes: int
    planned_bytes: int
    staying_bytes: int
    memory_limit_bytes: int
    def __init__(self, worker_id: _Optional[int] = ..., name: _Optional[str] = ..., initial_bytes: _Optional[int] = ..., bytes: _Optional[int] = ..., planned_bytes: _Optional[int] = ..., staying_bytes: _Optional[int] = ..., memory_limit_bytes: _Optional[int] = ...) -> None: ...
