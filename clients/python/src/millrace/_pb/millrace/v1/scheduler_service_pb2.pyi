import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import struct_pb2 as _struct_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from millrace._pb.millrace.v1 import graph_pb2 as _graph_pb2
from millrace._pb.millrace.v1 import task_pb2 as _task_pb2
from millrace._pb.millrace.v1 import value_pb2 as _value_pb2
from millrace._pb.millrace.v1 import worker_pb2 as _worker_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Client(_message.Message):
    __slots__ = ("client_id", "name", "namespace", "origin", "lease_ttl", "open_time", "last_seen_time", "held_tasks", "revision")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    LEASE_TTL_FIELD_NUMBER: _ClassVar[int]
    OPEN_TIME_FIELD_NUMBER: _ClassVar[int]
    LAST_SEEN_TIME_FIELD_NUMBER: _ClassVar[int]
    HELD_TASKS_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    client_id: int
    name: str
    namespace: str
    origin: str
    lease_ttl: _duration_pb2.Duration
    open_time: _timestamp_pb2.Timestamp
    last_seen_time: _timestamp_pb2.Timestamp
    held_tasks: int
    revision: int
    def __init__(self, client_id: _Optional[int] = ..., name: _Optional[str] = ..., namespace: _Optional[str] = ..., origin: _Optional[str] = ..., lease_ttl: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., open_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., last_seen_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., held_tasks: _Optional[int] = ..., revision: _Optional[int] = ...) -> None: ...

class OpenClientRequest(_message.Message):
    __slots__ = ("name", "namespace", "lease_ttl", "api_version", "origin", "worker")
    NAME_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    LEASE_TTL_FIELD_NUMBER: _ClassVar[int]
    API_VERSION_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    name: str
    namespace: str
    lease_ttl: _duration_pb2.Duration
    api_version: str
    origin: str
    worker: str
    def __init__(self, name: _Optional[str] = ..., namespace: _Optional[str] = ..., lease_ttl: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., api_version: _Optional[str] = ..., origin: _Optional[str] = ..., worker: _Optional[str] = ...) -> None: ...

class OpenClientResponse(_message.Message):
    __slots__ = ("client", "cluster")
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    client: Client
    cluster: ClusterInfo
    def __init__(self, client: _Optional[_Union[Client, _Mapping]] = ..., cluster: _Optional[_Union[ClusterInfo, _Mapping]] = ...) -> None: ...

class RenewClientRequest(_message.Message):
    __slots__ = ("client_id",)
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    client_id: int
    def __init__(self, client_id: _Optional[int] = ...) -> None: ...

class RenewClientResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CloseClientRequest(_message.Message):
    __slots__ = ("client_id",)
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    client_id: int
    def __init__(self, client_id: _Optional[int] = ...) -> None: ...

class CloseClientResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

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
    __slots__ = ("graph_id", "task_ids", "joined_tasks", "revision", "missing_functions")
    GRAPH_ID_FIELD_NUMBER: _ClassVar[int]
    TASK_IDS_FIELD_NUMBER: _ClassVar[int]
    JOINED_TASKS_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    MISSING_FUNCTIONS_FIELD_NUMBER: _ClassVar[int]
    graph_id: int
    task_ids: _containers.RepeatedScalarFieldContainer[int]
    joined_tasks: int
    revision: int
    missing_functions: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, graph_id: _Optional[int] = ..., task_ids: _Optional[_Iterable[int]] = ..., joined_tasks: _Optional[int] = ..., revision: _Optional[int] = ..., missing_functions: _Optional[_Iterable[bytes]] = ...) -> None: ...

class SubmitBatchRequest(_message.Message):
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

class SubmitBatchResponse(_message.Message):
    __slots__ = ("graph_id", "task_ids", "joined_tasks", "revision", "missing_functions")
    GRAPH_ID_FIELD_NUMBER: _ClassVar[int]
    TASK_IDS_FIELD_NUMBER: _ClassVar[int]
    JOINED_TASKS_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    MISSING_FUNCTIONS_FIELD_NUMBER: _ClassVar[int]
    graph_id: int
    task_ids: _containers.RepeatedScalarFieldContainer[int]
    joined_tasks: int
    revision: int
    missing_functions: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, graph_id: _Optional[int] = ..., task_ids: _Optional[_Iterable[int]] = ..., joined_tasks: _Optional[int] = ..., revision: _Optional[int] = ..., missing_functions: _Optional[_Iterable[bytes]] = ...) -> None: ...

class WatchRequest(_message.Message):
    __slots__ = ("client_id", "after_revision", "graphs", "graph_ids", "workers", "datasets", "until_ended", "life")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    AFTER_REVISION_FIELD_NUMBER: _ClassVar[int]
    GRAPHS_FIELD_NUMBER: _ClassVar[int]
    GRAPH_IDS_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    DATASETS_FIELD_NUMBER: _ClassVar[int]
    UNTIL_ENDED_FIELD_NUMBER: _ClassVar[int]
    LIFE_FIELD_NUMBER: _ClassVar[int]
    client_id: int
    after_revision: int
    graphs: bool
    graph_ids: _containers.RepeatedScalarFieldContainer[int]
    workers: bool
    datasets: bool
    until_ended: bool
    life: int
    def __init__(self, client_id: _Optional[int] = ..., after_revision: _Optional[int] = ..., graphs: bool = ..., graph_ids: _Optional[_Iterable[int]] = ..., workers: bool = ..., datasets: bool = ..., until_ended: bool = ..., life: _Optional[int] = ...) -> None: ...

class WatchResponse(_message.Message):
    __slots__ = ("revision", "catalog_revision", "snapshot", "tasks", "graphs", "workers", "datasets", "removed_graph_ids", "removed_worker_ids", "removed_dataset_names", "draining", "life", "more")
    REVISION_FIELD_NUMBER: _ClassVar[int]
    CATALOG_REVISION_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    GRAPHS_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    DATASETS_FIELD_NUMBER: _ClassVar[int]
    REMOVED_GRAPH_IDS_FIELD_NUMBER: _ClassVar[int]
    REMOVED_WORKER_IDS_FIELD_NUMBER: _ClassVar[int]
    REMOVED_DATASET_NAMES_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    LIFE_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    revision: int
    catalog_revision: int
    snapshot: bool
    tasks: _containers.RepeatedCompositeFieldContainer[_task_pb2.TaskUpdate]
    graphs: _containers.RepeatedCompositeFieldContainer[_graph_pb2.Graph]
    workers: _containers.RepeatedCompositeFieldContainer[_worker_pb2.Worker]
    datasets: _containers.RepeatedCompositeFieldContainer[_graph_pb2.Dataset]
    removed_graph_ids: _containers.RepeatedScalarFieldContainer[int]
    removed_worker_ids: _containers.RepeatedScalarFieldContainer[int]
    removed_dataset_names: _containers.RepeatedScalarFieldContainer[str]
    draining: bool
    life: int
    more: bool
    def __init__(self, revision: _Optional[int] = ..., catalog_revision: _Optional[int] = ..., snapshot: bool = ..., tasks: _Optional[_Iterable[_Union[_task_pb2.TaskUpdate, _Mapping]]] = ..., graphs: _Optional[_Iterable[_Union[_graph_pb2.Graph, _Mapping]]] = ..., workers: _Optional[_Iterable[_Union[_worker_pb2.Worker, _Mapping]]] = ..., datasets: _Optional[_Iterable[_Union[_graph_pb2.Dataset, _Mapping]]] = ..., removed_graph_ids: _Optional[_Iterable[int]] = ..., removed_worker_ids: _Optional[_Iterable[int]] = ..., removed_dataset_names: _Optional[_Iterable[str]] = ..., draining: bool = ..., life: _Optional[int] = ..., more: bool = ...) -> None: ...

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

class GetGraphRequest(_message.Message):
    __slots__ = ("graph_id",)
    GRAPH_ID_FIELD_NUMBER: _ClassVar[int]
    graph_id: int
    def __init__(self, graph_id: _Optional[int] = ...) -> None: ...

class GetGraphResponse(_message.Message):
    __slots__ = ("graph",)
    GRAPH_FIELD_NUMBER: _ClassVar[int]
    graph: _graph_pb2.Graph
    def __init__(self, graph: _Optional[_Union[_graph_pb2.Graph, _Mapping]] = ...) -> None: ...

class ListGraphsRequest(_message.Message):
    __slots__ = ("page_size", "page_token", "states", "namespace", "client_id")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    STATES_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    states: _containers.RepeatedScalarFieldContainer[_graph_pb2.GraphState]
    namespace: str
    client_id: int
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., states: _Optional[_Iterable[_Union[_graph_pb2.GraphState, str]]] = ..., namespace: _Optional[str] = ..., client_id: _Optional[int] = ...) -> None: ...

class ListGraphsResponse(_message.Message):
    __slots__ = ("graphs", "next_page_token")
    GRAPHS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    graphs: _containers.RepeatedCompositeFieldContainer[_graph_pb2.Graph]
    next_page_token: str
    def __init__(self, graphs: _Optional[_Iterable[_Union[_graph_pb2.Graph, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

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
    worker: str
    namespace: str
    key_prefix: str
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., graph_id: _Optional[int] = ..., states: _Optional[_Iterable[_Union[_task_pb2.TaskState, str]]] = ..., worker: _Optional[str] = ..., namespace: _Optional[str] = ..., key_prefix: _Optional[str] = ...) -> None: ...

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
    workers: _containers.RepeatedCompositeFieldContainer[_worker_pb2.Worker]
    def __init__(self, objects: _Optional[_Iterable[_Union[ObjectLocation, _Mapping]]] = ..., workers: _Optional[_Iterable[_Union[_worker_pb2.Worker, _Mapping]]] = ...) -> None: ...

class GetWorkerRequest(_message.Message):
    __slots__ = ("worker_id", "name")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    worker_id: int
    name: str
    def __init__(self, worker_id: _Optional[int] = ..., name: _Optional[str] = ...) -> None: ...

class GetWorkerResponse(_message.Message):
    __slots__ = ("worker",)
    WORKER_FIELD_NUMBER: _ClassVar[int]
    worker: _worker_pb2.Worker
    def __init__(self, worker: _Optional[_Union[_worker_pb2.Worker, _Mapping]] = ...) -> None: ...

class ListWorkersRequest(_message.Message):
    __slots__ = ("page_size", "page_token", "states")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    STATES_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    states: _containers.RepeatedScalarFieldContainer[_worker_pb2.WorkerState]
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., states: _Optional[_Iterable[_Union[_worker_pb2.WorkerState, str]]] = ...) -> None: ...

class ListWorkersResponse(_message.Message):
    __slots__ = ("workers", "next_page_token")
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    workers: _containers.RepeatedCompositeFieldContainer[_worker_pb2.Worker]
    next_page_token: str
    def __init__(self, workers: _Optional[_Iterable[_Union[_worker_pb2.Worker, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class ListClientsRequest(_message.Message):
    __slots__ = ("page_size", "page_token")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListClientsResponse(_message.Message):
    __slots__ = ("clients", "next_page_token")
    CLIENTS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    clients: _containers.RepeatedCompositeFieldContainer[Client]
    next_page_token: str
    def __init__(self, clients: _Optional[_Iterable[_Union[Client, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class PublishDatasetRequest(_message.Message):
    __slots__ = ("client_id", "name", "keys", "metadata", "replace", "namespace")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    REPLACE_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    client_id: int
    name: str
    keys: _containers.RepeatedScalarFieldContainer[str]
    metadata: bytes
    replace: bool
    namespace: str
    def __init__(self, client_id: _Optional[int] = ..., name: _Optional[str] = ..., keys: _Optional[_Iterable[str]] = ..., metadata: _Optional[bytes] = ..., replace: bool = ..., namespace: _Optional[str] = ...) -> None: ...

class PublishDatasetResponse(_message.Message):
    __slots__ = ("dataset",)
    DATASET_FIELD_NUMBER: _ClassVar[int]
    dataset: _graph_pb2.Dataset
    def __init__(self, dataset: _Optional[_Union[_graph_pb2.Dataset, _Mapping]] = ...) -> None: ...

class GetDatasetRequest(_message.Message):
    __slots__ = ("name", "namespace")
    NAME_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    name: str
    namespace: str
    def __init__(self, name: _Optional[str] = ..., namespace: _Optional[str] = ...) -> None: ...

class GetDatasetResponse(_message.Message):
    __slots__ = ("dataset",)
    DATASET_FIELD_NUMBER: _ClassVar[int]
    dataset: _graph_pb2.Dataset
    def __init__(self, dataset: _Optional[_Union[_graph_pb2.Dataset, _Mapping]] = ...) -> None: ...

class ListDatasetsRequest(_message.Message):
    __slots__ = ("page_size", "page_token", "namespace")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    namespace: str
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., namespace: _Optional[str] = ...) -> None: ...

class ListDatasetsResponse(_message.Message):
    __slots__ = ("datasets", "next_page_token")
    DATASETS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    datasets: _containers.RepeatedCompositeFieldContainer[_graph_pb2.Dataset]
    next_page_token: str
    def __init__(self, datasets: _Optional[_Iterable[_Union[_graph_pb2.Dataset, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class UnpublishDatasetRequest(_message.Message):
    __slots__ = ("name", "namespace")
    NAME_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    name: str
    namespace: str
    def __init__(self, name: _Optional[str] = ..., namespace: _Optional[str] = ...) -> None: ...

class UnpublishDatasetResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

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
