import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from millrace._pb.millrace.v1 import error_pb2 as _error_pb2
from millrace._pb.millrace.v1 import value_pb2 as _value_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class TaskState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TASK_STATE_UNSPECIFIED: _ClassVar[TaskState]
    TASK_STATE_WAITING: _ClassVar[TaskState]
    TASK_STATE_READY: _ClassVar[TaskState]
    TASK_STATE_ASSIGNED: _ClassVar[TaskState]
    TASK_STATE_RUNNING: _ClassVar[TaskState]
    TASK_STATE_SUCCEEDED: _ClassVar[TaskState]
    TASK_STATE_FAILED: _ClassVar[TaskState]
    TASK_STATE_CANCELLED: _ClassVar[TaskState]
    TASK_STATE_RELEASED: _ClassVar[TaskState]
    TASK_STATE_RESCUING: _ClassVar[TaskState]

class OpKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OP_KIND_UNSPECIFIED: _ClassVar[OpKind]
    OP_KIND_NATIVE: _ClassVar[OpKind]
    OP_KIND_PYTHON_IMPORT: _ClassVar[OpKind]
    OP_KIND_PYTHON_PICKLE: _ClassVar[OpKind]
    OP_KIND_EXEC: _ClassVar[OpKind]
    OP_KIND_DATA: _ClassVar[OpKind]

class TaskStatus(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TASK_STATUS_UNSPECIFIED: _ClassVar[TaskStatus]
    TASK_STATUS_INPUTS_MISSING: _ClassVar[TaskStatus]
    TASK_STATUS_WAITING_FOR_DATA: _ClassVar[TaskStatus]
    TASK_STATUS_NO_WORKERS: _ClassVar[TaskStatus]
    TASK_STATUS_NO_WORKER_FITS: _ClassVar[TaskStatus]
    TASK_STATUS_ALL_WORKERS_BUSY: _ClassVar[TaskStatus]
    TASK_STATUS_RETRY_BACKOFF: _ClassVar[TaskStatus]
    TASK_STATUS_ASSIGNED: _ClassVar[TaskStatus]
    TASK_STATUS_PREASSIGNED: _ClassVar[TaskStatus]
    TASK_STATUS_RUNNING: _ClassVar[TaskStatus]
    TASK_STATUS_RESCUING: _ClassVar[TaskStatus]
    TASK_STATUS_ENDED: _ClassVar[TaskStatus]
TASK_STATE_UNSPECIFIED: TaskState
TASK_STATE_WAITING: TaskState
TASK_STATE_READY: TaskState
TASK_STATE_ASSIGNED: TaskState
TASK_STATE_RUNNING: TaskState
TASK_STATE_SUCCEEDED: TaskState
TASK_STATE_FAILED: TaskState
TASK_STATE_CANCELLED: TaskState
TASK_STATE_RELEASED: TaskState
TASK_STATE_RESCUING: TaskState
OP_KIND_UNSPECIFIED: OpKind
OP_KIND_NATIVE: OpKind
OP_KIND_PYTHON_IMPORT: OpKind
OP_KIND_PYTHON_PICKLE: OpKind
OP_KIND_EXEC: OpKind
OP_KIND_DATA: OpKind
TASK_STATUS_UNSPECIFIED: TaskStatus
TASK_STATUS_INPUTS_MISSING: TaskStatus
TASK_STATUS_WAITING_FOR_DATA: TaskStatus
TASK_STATUS_NO_WORKERS: TaskStatus
TASK_STATUS_NO_WORKER_FITS: TaskStatus
TASK_STATUS_ALL_WORKERS_BUSY: TaskStatus
TASK_STATUS_RETRY_BACKOFF: TaskStatus
TASK_STATUS_ASSIGNED: TaskStatus
TASK_STATUS_PREASSIGNED: TaskStatus
TASK_STATUS_RUNNING: TaskStatus
TASK_STATUS_RESCUING: TaskStatus
TASK_STATUS_ENDED: TaskStatus

class Op(_message.Message):
    __slots__ = ("kind", "name", "function")
    KIND_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    FUNCTION_FIELD_NUMBER: _ClassVar[int]
    kind: OpKind
    name: str
    function: bytes
    def __init__(self, kind: _Optional[_Union[OpKind, str]] = ..., name: _Optional[str] = ..., function: _Optional[bytes] = ...) -> None: ...

class Function(_message.Message):
    __slots__ = ("hash", "payload", "language")
    HASH_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    LANGUAGE_FIELD_NUMBER: _ClassVar[int]
    hash: bytes
    payload: bytes
    language: str
    def __init__(self, hash: _Optional[bytes] = ..., payload: _Optional[bytes] = ..., language: _Optional[str] = ...) -> None: ...

class TaskOptions(_message.Message):
    __slots__ = ("priority", "max_retries", "retry_backoff", "timeout", "resources", "workers", "allow_other_workers", "expected_output_bytes", "slots", "no_wait")
    class ResourcesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    MAX_RETRIES_FIELD_NUMBER: _ClassVar[int]
    RETRY_BACKOFF_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    RESOURCES_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    ALLOW_OTHER_WORKERS_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_OUTPUT_BYTES_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    NO_WAIT_FIELD_NUMBER: _ClassVar[int]
    priority: int
    max_retries: int
    retry_backoff: _duration_pb2.Duration
    timeout: _duration_pb2.Duration
    resources: _containers.ScalarMap[str, float]
    workers: _containers.RepeatedCompositeFieldContainer[WorkerSelector]
    allow_other_workers: bool
    expected_output_bytes: int
    slots: int
    no_wait: bool
    def __init__(self, priority: _Optional[int] = ..., max_retries: _Optional[int] = ..., retry_backoff: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., timeout: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., resources: _Optional[_Mapping[str, float]] = ..., workers: _Optional[_Iterable[_Union[WorkerSelector, _Mapping]]] = ..., allow_other_workers: bool = ..., expected_output_bytes: _Optional[int] = ..., slots: _Optional[int] = ..., no_wait: bool = ...) -> None: ...

class WorkerSelector(_message.Message):
    __slots__ = ("worker_id", "name", "host")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    worker_id: int
    name: str
    host: str
    def __init__(self, worker_id: _Optional[int] = ..., name: _Optional[str] = ..., host: _Optional[str] = ...) -> None: ...

class TaskSpec(_message.Message):
    __slots__ = ("key", "op", "op_index", "inputs", "arguments", "packed_arguments", "options_index", "hold", "items")
    KEY_FIELD_NUMBER: _ClassVar[int]
    OP_FIELD_NUMBER: _ClassVar[int]
    OP_INDEX_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    PACKED_ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_INDEX_FIELD_NUMBER: _ClassVar[int]
    HOLD_FIELD_NUMBER: _ClassVar[int]
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    key: str
    op: str
    op_index: int
    inputs: _containers.RepeatedScalarFieldContainer[str]
    arguments: _value_pb2.Arguments
    packed_arguments: bytes
    options_index: int
    hold: bool
    items: _containers.RepeatedCompositeFieldContainer[ItemInput]
    def __init__(self, key: _Optional[str] = ..., op: _Optional[str] = ..., op_index: _Optional[int] = ..., inputs: _Optional[_Iterable[str]] = ..., arguments: _Optional[_Union[_value_pb2.Arguments, _Mapping]] = ..., packed_arguments: _Optional[bytes] = ..., options_index: _Optional[int] = ..., hold: bool = ..., items: _Optional[_Iterable[_Union[ItemInput, _Mapping]]] = ...) -> None: ...

class ItemInput(_message.Message):
    __slots__ = ("input", "item", "count")
    INPUT_FIELD_NUMBER: _ClassVar[int]
    ITEM_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    input: int
    item: int
    count: int
    def __init__(self, input: _Optional[int] = ..., item: _Optional[int] = ..., count: _Optional[int] = ...) -> None: ...

class TaskRef(_message.Message):
    __slots__ = ("id", "key", "namespace")
    ID_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    id: int
    key: str
    namespace: str
    def __init__(self, id: _Optional[int] = ..., key: _Optional[str] = ..., namespace: _Optional[str] = ...) -> None: ...

class TaskSet(_message.Message):
    __slots__ = ("ids", "keys", "namespace")
    IDS_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[int]
    keys: _containers.RepeatedScalarFieldContainer[str]
    namespace: str
    def __init__(self, ids: _Optional[_Iterable[int]] = ..., keys: _Optional[_Iterable[str]] = ..., namespace: _Optional[str] = ...) -> None: ...

class Task(_message.Message):
    __slots__ = ("task_id", "key", "namespace", "graph_id", "op", "state", "attempt", "worker", "replicas", "output_bytes", "inputs", "missing_inputs", "waiting_dependents", "holders", "error", "options", "run_time", "create_time", "history", "retries_used", "worker_deaths", "log_tail", "input_count", "linear_algebra", "items", "start_time")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    GRAPH_ID_FIELD_NUMBER: _ClassVar[int]
    OP_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_BYTES_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    MISSING_INPUTS_FIELD_NUMBER: _ClassVar[int]
    WAITING_DEPENDENTS_FIELD_NUMBER: _ClassVar[int]
    HOLDERS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    RUN_TIME_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    RETRIES_USED_FIELD_NUMBER: _ClassVar[int]
    WORKER_DEATHS_FIELD_NUMBER: _ClassVar[int]
    LOG_TAIL_FIELD_NUMBER: _ClassVar[int]
    INPUT_COUNT_FIELD_NUMBER: _ClassVar[int]
    LINEAR_ALGEBRA_FIELD_NUMBER: _ClassVar[int]
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    START_TIME_FIELD_NUMBER: _ClassVar[int]
    task_id: int
    key: str
    namespace: str
    graph_id: int
    op: Op
    state: TaskState
    attempt: int
    worker: str
    replicas: _containers.RepeatedScalarFieldContainer[str]
    output_bytes: int
    inputs: _containers.RepeatedScalarFieldContainer[str]
    missing_inputs: int
    waiting_dependents: int
    holders: int
    error: _error_pb2.TaskError
    options: TaskOptions
    run_time: _duration_pb2.Duration
    create_time: _timestamp_pb2.Timestamp
    history: _containers.RepeatedScalarFieldContainer[str]
    retries_used: int
    worker_deaths: int
    log_tail: str
    input_count: int
    linear_algebra: str
    items: _containers.RepeatedCompositeFieldContainer[ItemInput]
    start_time: _timestamp_pb2.Timestamp
    def __init__(self, task_id: _Optional[int] = ..., key: _Optional[str] = ..., namespace: _Optional[str] = ..., graph_id: _Optional[int] = ..., op: _Optional[_Union[Op, _Mapping]] = ..., state: _Optional[_Union[TaskState, str]] = ..., attempt: _Optional[int] = ..., worker: _Optional[str] = ..., replicas: _Optional[_Iterable[str]] = ..., output_bytes: _Optional[int] = ..., inputs: _Optional[_Iterable[str]] = ..., missing_inputs: _Optional[int] = ..., waiting_dependents: _Optional[int] = ..., holders: _Optional[int] = ..., error: _Optional[_Union[_error_pb2.TaskError, _Mapping]] = ..., options: _Optional[_Union[TaskOptions, _Mapping]] = ..., run_time: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., create_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., history: _Optional[_Iterable[str]] = ..., retries_used: _Optional[int] = ..., worker_deaths: _Optional[int] = ..., log_tail: _Optional[str] = ..., input_count: _Optional[int] = ..., linear_algebra: _Optional[str] = ..., items: _Optional[_Iterable[_Union[ItemInput, _Mapping]]] = ..., start_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class TaskRun(_message.Message):
    __slots__ = ("number", "task_id", "key", "namespace", "worker", "attempt", "succeeded", "output_bytes", "end_time", "run_time", "op", "worker_id", "slot", "fetch_time", "wait_time", "deserialize_time", "publish_time", "fetched_bytes", "graph_id", "load_time")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    SUCCEEDED_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_BYTES_FIELD_NUMBER: _ClassVar[int]
    END_TIME_FIELD_NUMBER: _ClassVar[int]
    RUN_TIME_FIELD_NUMBER: _ClassVar[int]
    OP_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    FETCH_TIME_FIELD_NUMBER: _ClassVar[int]
    WAIT_TIME_FIELD_NUMBER: _ClassVar[int]
    DESERIALIZE_TIME_FIELD_NUMBER: _ClassVar[int]
    PUBLISH_TIME_FIELD_NUMBER: _ClassVar[int]
    FETCHED_BYTES_FIELD_NUMBER: _ClassVar[int]
    GRAPH_ID_FIELD_NUMBER: _ClassVar[int]
    LOAD_TIME_FIELD_NUMBER: _ClassVar[int]
    number: int
    task_id: int
    key: str
    namespace: str
    worker: str
    attempt: int
    succeeded: bool
    output_bytes: int
    end_time: _timestamp_pb2.Timestamp
    run_time: _duration_pb2.Duration
    op: str
    worker_id: int
    slot: int
    fetch_time: _duration_pb2.Duration
    wait_time: _duration_pb2.Duration
    deserialize_time: _duration_pb2.Duration
    publish_time: _duration_pb2.Duration
    fetched_bytes: int
    graph_id: int
    load_time: _duration_pb2.Duration
    def __init__(self, number: _Optional[int] = ..., task_id: _Optional[int] = ..., key: _Optional[str] = ..., namespace: _Optional[str] = ..., worker: _Optional[str] = ..., attempt: _Optional[int] = ..., succeeded: bool = ..., output_bytes: _Optional[int] = ..., end_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., run_time: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., op: _Optional[str] = ..., worker_id: _Optional[int] = ..., slot: _Optional[int] = ..., fetch_time: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., wait_time: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., deserialize_time: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., publish_time: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., fetched_bytes: _Optional[int] = ..., graph_id: _Optional[int] = ..., load_time: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class TaskUpdate(_message.Message):
    __slots__ = ("task_id", "state", "output_bytes", "inline_result", "error", "worker_id", "generation", "log_worker_id")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_BYTES_FIELD_NUMBER: _ClassVar[int]
    INLINE_RESULT_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    LOG_WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    task_id: int
    state: TaskState
    output_bytes: int
    inline_result: bytes
    error: _error_pb2.TaskError
    worker_id: int
    generation: int
    log_worker_id: int
    def __init__(self, task_id: _Optional[int] = ..., state: _Optional[_Union[TaskState, str]] = ..., output_bytes: _Optional[int] = ..., inline_result: _Optional[bytes] = ..., error: _Optional[_Union[_error_pb2.TaskError, _Mapping]] = ..., worker_id: _Optional[int] = ..., generation: _Optional[int] = ..., log_worker_id: _Optional[int] = ...) -> None: ...
