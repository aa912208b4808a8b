import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from millrace._pb.millrace.v1 import error_pb2 as _error_pb2
from millrace._pb.millrace.v1 import memory_pb2 as _memory_pb2
from millrace._pb.millrace.v1 import task_pb2 as _task_pb2
from millrace._pb.millrace.v1 import worker_pb2 as _worker_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class TaskOutcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TASK_OUTCOME_UNSPECIFIED: _ClassVar[TaskOutcome]
    TASK_OUTCOME_STARTED: _ClassVar[TaskOutcome]
    TASK_OUTCOME_SUCCEEDED: _ClassVar[TaskOutcome]
    TASK_OUTCOME_FAILED: _ClassVar[TaskOutcome]
    TASK_OUTCOME_INPUT_UNREACHABLE: _ClassVar[TaskOutcome]
    TASK_OUTCOME_RETRACTED: _ClassVar[TaskOutcome]
    TASK_OUTCOME_CANCELLED: _ClassVar[TaskOutcome]
    TASK_OUTCOME_RETRACT_REFUSED: _ClassVar[TaskOutcome]
    TASK_OUTCOME_EXECUTOR_DIED: _ClassVar[TaskOutcome]
    TASK_OUTCOME_BLOCKED: _ClassVar[TaskOutcome]
    TASK_OUTCOME_GOES_ON: _ClassVar[TaskOutcome]

class ObjectEvent(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OBJECT_EVENT_UNSPECIFIED: _ClassVar[ObjectEvent]
    OBJECT_EVENT_GAINED: _ClassVar[ObjectEvent]
    OBJECT_EVENT_WRITTEN: _ClassVar[ObjectEvent]
    OBJECT_EVENT_LOST: _ClassVar[ObjectEvent]
    OBJECT_EVENT_KEPT: _ClassVar[ObjectEvent]
TASK_OUTCOME_UNSPECIFIED: TaskOutcome
TASK_OUTCOME_STARTED: TaskOutcome
TASK_OUTCOME_SUCCEEDED: TaskOutcome
TASK_OUTCOME_FAILED: TaskOutcome
TASK_OUTCOME_INPUT_UNREACHABLE: TaskOutcome
TASK_OUTCOME_RETRACTED: TaskOutcome
TASK_OUTCOME_CANCELLED: TaskOutcome
TASK_OUTCOME_RETRACT_REFUSED: TaskOutcome
TASK_OUTCOME_EXECUTOR_DIED: TaskOutcome
TASK_OUTCOME_BLOCKED: TaskOutcome
TASK_OUTCOME_GOES_ON: TaskOutcome
OBJECT_EVENT_UNSPECIFIED: ObjectEvent
OBJECT_EVENT_GAINED: ObjectEvent
OBJECT_EVENT_WRITTEN: ObjectEvent
OBJECT_EVENT_LOST: ObjectEvent
OBJECT_EVENT_KEPT: ObjectEvent

class Registration(_message.Message):
    __slots__ = ("name", "incarnation", "host", "pid", "data_address", "device", "slots", "resources", "memory_limit_bytes", "version", "inventory", "running", "executors", "native_ops", "gpu", "notifies", "life", "languages", "more", "supervised", "linear_algebra", "functions", "written")
    class ResourcesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    class LanguagesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    DATA_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    RESOURCES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_LIMIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    INVENTORY_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    EXECUTORS_FIELD_NUMBER: _ClassVar[int]
    NATIVE_OPS_FIELD_NUMBER: _ClassVar[int]
    GPU_FIELD_NUMBER: _ClassVar[int]
    NOTIFIES_FIELD_NUMBER: _ClassVar[int]
    LIFE_FIELD_NUMBER: _ClassVar[int]
    LANGUAGES_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    SUPERVISED_FIELD_NUMBER: _ClassVar[int]
    LINEAR_ALGEBRA_FIELD_NUMBER: _ClassVar[int]
    FUNCTIONS_FIELD_NUMBER: _ClassVar[int]
    WRITTEN_FIELD_NUMBER: _ClassVar[int]
    name: str
    incarnation: str
    host: str
    pid: int
    data_address: str
    device: _worker_pb2.DeviceKind
    slots: int
    resources: _containers.ScalarMap[str, float]
    memory_limit_bytes: int
    version: str
    inventory: _containers.RepeatedCompositeFieldContainer[Replica]
    running: _containers.RepeatedCompositeFieldContainer[AttemptRef]
    executors: _containers.RepeatedScalarFieldContainer[str]
    native_ops: _containers.RepeatedScalarFieldContainer[str]
    gpu: _worker_pb2.Gpu
    notifies: bool
    life: int
    languages: _containers.ScalarMap[str, str]
    more: bool
    supervised: bool
    linear_algebra: _worker_pb2.LinearAlgebra
    functions: _containers.RepeatedScalarFieldContainer[bytes]
    written: _containers.RepeatedCompositeFieldContainer[Replica]
    def __init__(self, name: _Optional[str] = ..., incarnation: _Optional[str] = ..., host: _Optional[str] = ..., pid: _Optional[int] = ..., data_address: _Optional[str] = ..., device: _Optional[_Union[_worker_pb2.DeviceKind, str]] = ..., slots: _Optional[int] = ..., resources: _Optional[_Mapping[str, float]] = ..., memory_limit_bytes: _Optional[int] = ..., version: _Optional[str] = ..., inventory: _Optional[_Iterable[_Union[Replica, _Mapping]]] = ..., running: _Optional[_Iterable[_Union[AttemptRef, _Mapping]]] = ..., executors: _Optional[_Iterable[str]] = ..., native_ops: _Optional[_Iterable[str]] = ..., gpu: _Optional[_Union[_worker_pb2.Gpu, _Mapping]] = ..., notifies: bool = ..., life: _Optional[int] = ..., languages: _Optional[_Mapping[str, str]] = ..., more: bool = ..., supervised: bool = ..., linear_algebra: _Optional[_Union[_worker_pb2.LinearAlgebra, _Mapping]] = ..., functions: _Optional[_Iterable[bytes]] = ..., written: _Optional[_Iterable[_Union[Replica, _Mapping]]] = ...) -> None: ...

class Replica(_message.Message):
    __slots__ = ("task_id", "generation", "bytes")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    task_id: int
    generation: int
    bytes: int
    def __init__(self, task_id: _Optional[int] = ..., generation: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...

class AttemptRef(_message.Message):
    __slots__ = ("task_id", "attempt")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    task_id: int
    attempt: int
    def __init__(self, task_id: _Optional[int] = ..., attempt: _Optional[int] = ...) -> None: ...

class SessionRequest(_message.Message):
    __slots__ = ("register", "tasks", "objects", "stats", "leaving", "missing_functions", "rescues", "draining")
    REGISTER_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    OBJECTS_FIELD_NUMBER: _ClassVar[int]
    STATS_FIELD_NUMBER: _ClassVar[int]
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    MISSING_FUNCTIONS_FIELD_NUMBER: _ClassVar[int]
    RESCUES_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    register: Registration
    tasks: _containers.RepeatedCompositeFieldContainer[TaskReport]
    objects: _containers.RepeatedCompositeFieldContainer[ObjectReport]
    stats: WorkerStats
    leaving: bool
    missing_functions: _containers.RepeatedScalarFieldContainer[bytes]
    rescues: _containers.RepeatedCompositeFieldContainer[RescueReport]
    draining: bool
    def __init__(self, register: _Optional[_Union[Registration, _Mapping]] = ..., tasks: _Optional[_Iterable[_Union[TaskReport, _Mapping]]] = ..., objects: _Optional[_Iterable[_Union[ObjectReport, _Mapping]]] = ..., stats: _Optional[_Union[WorkerStats, _Mapping]] = ..., leaving: bool = ..., missing_functions: _Optional[_Iterable[bytes]] = ..., rescues: _Optional[_Iterable[_Union[RescueReport, _Mapping]]] = ..., draining: bool = ...) -> None: ...

class RescueReport(_message.Message):
    __slots__ = ("worker_id", "failed", "reason", "unmapped")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    UNMAPPED_FIELD_NUMBER: _ClassVar[int]
    worker_id: int
    failed: _containers.RepeatedCompositeFieldContainer[Replica]
    reason: str
    unmapped: bool
    def __init__(self, worker_id: _Optional[int] = ..., failed: _Optional[_Iterable[_Union[Replica, _Mapping]]] = ..., reason: _Optional[str] = ..., unmapped: bool = ...) -> None: ...

class TaskReport(_message.Message):
    __slots__ = ("task_id", "attempt", "outcome", "output_bytes", "inline_result", "error", "run_nanos", "unreachable", "log_tail", "fetched_bytes", "input_at_fault", "slot", "fetch_nanos", "wait_nanos", "deserialize_nanos", "publish_nanos", "load_nanos")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_BYTES_FIELD_NUMBER: _ClassVar[int]
    INLINE_RESULT_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    RUN_NANOS_FIELD_NUMBER: _ClassVar[int]
    UNREACHABLE_FIELD_NUMBER: _ClassVar[int]
    LOG_TAIL_FIELD_NUMBER: _ClassVar[int]
    FETCHED_BYTES_FIELD_NUMBER: _ClassVar[int]
    INPUT_AT_FAULT_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    FETCH_NANOS_FIELD_NUMBER: _ClassVar[int]
    WAIT_NANOS_FIELD_NUMBER: _ClassVar[int]
    DESERIALIZE_NANOS_FIELD_NUMBER: _ClassVar[int]
    PUBLISH_NANOS_FIELD_NUMBER: _ClassVar[int]
    LOAD_NANOS_FIELD_NUMBER: _ClassVar[int]
    task_id: int
    attempt: int
    outcome: TaskOutcome
    output_bytes: int
    inline_result: bytes
    error: _error_pb2.TaskError
    run_nanos: int
    unreachable: _containers.RepeatedCompositeFieldContainer[Unreachable]
    log_tail: str
    fetched_bytes: int
    input_at_fault: int
    slot: int
    fetch_nanos: int
    wait_nanos: int
    deserialize_nanos: int
    publish_nanos: int
    load_nanos: int
    def __init__(self, task_id: _Optional[int] = ..., attempt: _Optional[int] = ..., outcome: _Optional[_Union[TaskOutcome, str]] = ..., output_bytes: _Optional[int] = ..., inline_result: _Optional[bytes] = ..., error: _Optional[_Union[_error_pb2.TaskError, _Mapping]] = ..., run_nanos: _Optional[int] = ..., unreachable: _Optional[_Iterable[_Union[Unreachable, _Mapping]]] = ..., log_tail: _Optional[str] = ..., fetched_bytes: _Optional[int] = ..., input_at_fault: _Optional[int] = ..., slot: _Optional[int] = ..., fetch_nanos: _Optional[int] = ..., wait_nanos: _Optional[int] = ..., deserialize_nanos: _Optional[int] = ..., publish_nanos: _Optional[int] = ..., load_nanos: _Optional[int] = ...) -> None: ...

class Unreachable(_message.Message):
    __slots__ = ("task_id", "generation", "failed_at", "missing_at")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    FAILED_AT_FIELD_NUMBER: _ClassVar[int]
    MISSING_AT_FIELD_NUMBER: _ClassVar[int]
    task_id: int
    generation: int
    failed_at: _containers.RepeatedScalarFieldContainer[int]
    missing_at: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, task_id: _Optional[int] = ..., generation: _Optional[int] = ..., failed_at: _Optional[_Iterable[int]] = ..., missing_at: _Optional[_Iterable[int]] = ...) -> None: ...

class ObjectReport(_message.Message):
    __slots__ = ("replica", "event", "inline_result")
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    EVENT_FIELD_NUMBER: _ClassVar[int]
    INLINE_RESULT_FIELD_NUMBER: _ClassVar[int]
    replica: Replica
    event: ObjectEvent
    inline_result: bytes
    def __init__(self, replica: _Optional[_Union[Replica, _Mapping]] = ..., event: _Optional[_Union[ObjectEvent, str]] = ..., inline_result: _Optional[bytes] = ...) -> None: ...

class WorkerStats(_message.Message):
    __slots__ = ("memory_used_bytes", "rss_bytes", "received_bytes", "sent_bytes", "executor_deaths", "last_executor_death", "memory_evictable_bytes", "memory_pressure", "spilled_bytes", "spill_written_bytes", "spill_read_bytes", "spill_failure", "routes", "gpu_health", "tiers", "network_devices")
    MEMORY_USED_BYTES_FIELD_NUMBER: _ClassVar[int]
    RSS_BYTES_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_BYTES_FIELD_NUMBER: _ClassVar[int]
    SENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    EXECUTOR_DEATHS_FIELD_NUMBER: _ClassVar[int]
    LAST_EXECUTOR_DEATH_FIELD_NUMBER: _ClassVar[int]
    MEMORY_EVICTABLE_BYTES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_PRESSURE_FIELD_NUMBER: _ClassVar[int]
    SPILLED_BYTES_FIELD_NUMBER: _ClassVar[int]
    SPILL_WRITTEN_BYTES_FIELD_NUMBER: _ClassVar[int]
    SPILL_READ_BYTES_FIELD_NUMBER: _ClassVar[int]
    SPILL_FAILURE_FIELD_NUMBER: _ClassVar[int]
    ROUTES_FIELD_NUMBER: _ClassVar[int]
    GPU_HEALTH_FIELD_NUMBER: _ClassVar[int]
    TIERS_FIELD_NUMBER: _ClassVar[int]
    NETWORK_DEVICES_FIELD_NUMBER: _ClassVar[int]
    memory_used_bytes: int
    rss_bytes: int
    received_bytes: int
    sent_bytes: int
    executor_deaths: int
    last_executor_death: str
    memory_evictable_bytes: int
    memory_pressure: bool
    spilled_bytes: int
    spill_written_bytes: int
    spill_read_bytes: int
    spill_failure: str
    routes: _containers.RepeatedCompositeFieldContainer[_worker_pb2.Route]
    gpu_health: _worker_pb2.GpuHealth
    tiers: _containers.RepeatedCompositeFieldContainer[_memory_pb2.MemoryTier]
    network_devices: _containers.RepeatedCompositeFieldContainer[_worker_pb2.NetworkDevice]
    def __init__(self, memory_used_bytes: _Optional[int] = ..., rss_bytes: _Optional[int] = ..., received_bytes: _Optional[int] = ..., sent_bytes: _Optional[int] = ..., executor_deaths: _Optional[int] = ..., last_executor_death: _Optional[str] = ..., memory_evictable_bytes: _Optional[int] = ..., memory_pressure: bool = ..., spilled_bytes: _Optional[int] = ..., spill_written_bytes: _Optional[int] = ..., spill_read_bytes: _Optional[int] = ..., spill_failure: _Optional[str] = ..., routes: _Optional[_Iterable[_Union[_worker_pb2.Route, _Mapping]]] = ..., gpu_health: _Optional[_Union[_worker_pb2.GpuHealth, _Mapping]] = ..., tiers: _Optional[_Iterable[_Union[_memory_pb2.MemoryTier, _Mapping]]] = ..., network_devices: _Optional[_Iterable[_Union[_worker_pb2.NetworkDevice, _Mapping]]] = ...) -> None: ...

class SessionResponse(_message.Message):
    __slots__ = ("registered", "ops", "functions", "peers", "assignments", "retractions", "cancellations", "releases", "leave", "stop_reason", "reregister", "next_uses", "rescues", "dropped_functions", "drained", "accepted_writes", "keeps", "freed_slots")
    REGISTERED_FIELD_NUMBER: _ClassVar[int]
    OPS_FIELD_NUMBER: _ClassVar[int]
    FUNCTIONS_FIELD_NUMBER: _ClassVar[int]
    PEERS_FIELD_NUMBER: _ClassVar[int]
    ASSIGNMENTS_FIELD_NUMBER: _ClassVar[int]
    RETRACTIONS_FIELD_NUMBER: _ClassVar[int]
    CANCELLATIONS_FIELD_NUMBER: _ClassVar[int]
    RELEASES_FIELD_NUMBER: _ClassVar[int]
    LEAVE_FIELD_NUMBER: _ClassVar[int]
    STOP_REASON_FIELD_NUMBER: _ClassVar[int]
    REREGISTER_FIELD_NUMBER: _ClassVar[int]
    NEXT_USES_FIELD_NUMBER: _ClassVar[int]
    RESCUES_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FUNCTIONS_FIELD_NUMBER: _ClassVar[int]
    DRAINED_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_WRITES_FIELD_NUMBER: _ClassVar[int]
    KEEPS_FIELD_NUMBER: _ClassVar[int]
    FREED_SLOTS_FIELD_NUMBER: _ClassVar[int]
    registered: Registered
    ops: _containers.RepeatedCompositeFieldContainer[OpDefinition]
    functions: _containers.RepeatedCompositeFieldContainer[_task_pb2.Function]
    peers: _containers.RepeatedCompositeFieldContainer[Peer]
    assignments: _containers.RepeatedCompositeFieldContainer[Assignment]
    retractions: _containers.RepeatedCompositeFieldContainer[AttemptRef]
    cancellations: _containers.RepeatedCompositeFieldContainer[AttemptRef]
    releases: _containers.RepeatedCompositeFieldContainer[Replica]
    leave: Leave
    stop_reason: str
    reregister: bool
    next_uses: _containers.RepeatedCompositeFieldContainer[NextUse]
    rescues: _containers.RepeatedCompositeFieldContainer[Rescue]
    dropped_functions: _containers.RepeatedScalarFieldContainer[bytes]
    drained: bool
    accepted_writes: _containers.RepeatedCompositeFieldContainer[Replica]
    keeps: _containers.RepeatedCompositeFieldContainer[Replica]
    freed_slots: _containers.RepeatedCompositeFieldContainer[AttemptRef]
    def __init__(self, registered: _Optional[_Union[Registered, _Mapping]] = ..., ops: _Optional[_Iterable[_Union[OpDefinition, _Mapping]]] = ..., functions: _Optional[_Iterable[_Union[_task_pb2.Function, _Mapping]]] = ..., peers: _Optional[_Iterable[_Union[Peer, _Mapping]]] = ..., assignments: _Optional[_Iterable[_Union[Assignment, _Mapping]]] = ..., retractions: _Optional[_Iterable[_Union[AttemptRef, _Mapping]]] = ..., cancellations: _Optional[_Iterable[_Union[AttemptRef, _Mapping]]] = ..., releases: _Optional[_Iterable[_Union[Replica, _Mapping]]] = ..., leave: _Optional[_Union[Leave, _Mapping]] = ..., stop_reason: _Optional[str] = ..., reregister: bool = ..., next_uses: _Optional[_Iterable[_Union[NextUse, _Mapping]]] = ..., rescues: _Optional[_Iterable[_Union[Rescue, _Mapping]]] = ..., dropped_functions: _Optional[_Iterable[bytes]] = ..., drained: bool = ..., accepted_writes: _Optional[_Iterable[_Union[Replica, _Mapping]]] = ..., keeps: _Optional[_Iterable[_Union[Replica, _Mapping]]] = ..., freed_slots: _Optional[_Iterable[_Union[AttemptRef, _Mapping]]] = ...) -> None: ...

class Rescue(_message.Message):
    __slots__ = ("worker_id", "incarnation", "data_address", "name", "objects")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    DATA_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    OBJECTS_FIELD_NUMBER: _ClassVar[int]
    worker_id: int
    incarnation: str
    data_address: str
    name: str
    objects: _containers.RepeatedCompositeFieldContainer[Replica]
    def __init__(self, worker_id: _Optional[int] = ..., incarnation: _Optional[str] = ..., data_address: _Optional[str] = ..., name: _Optional[str] = ..., objects: _Optional[_Iterable[_Union[Replica, _Mapping]]] = ...) -> None: ...

class Leave(_message.Message):
    __slots__ = ("restart", "reason")
    RESTART_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    restart: bool
    reason: str
    def __init__(self, restart: bool = ..., reason: _Optional[str] = ...) -> None: ...

class NextUse(_message.Message):
    __slots__ = ("task_id", "generation", "rank")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    task_id: int
    generation: int
    rank: int
    def __init__(self, task_id: _Optional[int] = ..., generation: _Optional[int] = ..., rank: _Optional[int] = ...) -> None: ...

class Registered(_message.Message):
    __slots__ = ("worker_id", "cluster_id", "lease", "inline_result_bytes", "life")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    INLINE_RESULT_BYTES_FIELD_NUMBER: _ClassVar[int]
    LIFE_FIELD_NUMBER: _ClassVar[int]
    worker_id: int
    cluster_id: str
    lease: _duration_pb2.Duration
    inline_result_bytes: int
    life: int
    def __init__(self, worker_id: _Optional[int] = ..., cluster_id: _Optional[str] = ..., lease: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., inline_result_bytes: _Optional[int] = ..., life: _Optional[int] = ...) -> None: ...

class OpDefinition(_message.Message):
    __slots__ = ("op_id", "op")
    OP_ID_FIELD_NUMBER: _ClassVar[int]
    OP_FIELD_NUMBER: _ClassVar[int]
    op_id: int
    op: _task_pb2.Op
    def __init__(self, op_id: _Optional[int] = ..., op: _Optional[_Union[_task_pb2.Op, _Mapping]] = ...) -> None: ...

class Peer(_message.Message):
    __slots__ = ("worker_id", "data_address", "name", "same_host", "device")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    DATA_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    SAME_HOST_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    worker_id: int
    data_address: str
    name: str
    same_host: bool
    device: _worker_pb2.DeviceKind
    def __init__(self, worker_id: _Optional[int] = ..., data_address: _Optional[str] = ..., name: _Optional[str] = ..., same_host: bool = ..., device: _Optional[_Union[_worker_pb2.DeviceKind, str]] = ...) -> None: ...

class Assignment(_message.Message):
    __slots__ = ("task_id", "attempt", "op_id", "arguments", "inputs", "rank", "timeout_millis", "key", "slots", "expected_output_bytes", "namespace", "resources", "priority")
    class ResourcesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    OP_ID_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MILLIS_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_OUTPUT_BYTES_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    RESOURCES_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    task_id: int
    attempt: int
    op_id: int
    arguments: bytes
    inputs: _containers.RepeatedCompositeFieldContainer[Input]
    rank: int
    timeout_millis: int
    key: str
    slots: int
    expected_output_bytes: int
    namespace: str
    resources: _containers.ScalarMap[str, float]
    priority: int
    def __init__(self, task_id: _Optional[int] = ..., attempt: _Optional[int] = ..., op_id: _Optional[int] = ..., arguments: _Optional[bytes] = ..., inputs: _Optional[_Iterable[_Union[Input, _Mapping]]] = ..., rank: _Optional[int] = ..., timeout_millis: _Optional[int] = ..., key: _Optional[str] = ..., slots: _Optional[int] = ..., expected_output_bytes: _Optional[int] = ..., namespace: _Optional[str] = ..., resources: _Optional[_Mapping[str, float]] = ..., priority: _Optional[int] = ...) -> None: ...

class Input(_message.Message):
    __slots__ = ("task_id", "generation", "bytes", "holders", "inline_result", "pending", "upstream_worker_id", "has_downstream", "item", "item_count")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    HOLDERS_FIELD_NUMBER: _ClassVar[int]
    INLINE_RESULT_FIELD_NUMBER: _ClassVar[int]
    PENDING_FIELD_NUMBER: _ClassVar[int]
    UPSTREAM_WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    HAS_DOWNSTREAM_FIELD_NUMBER: _ClassVar[int]
    ITEM_FIELD_NUMBER: _ClassVar[int]
    ITEM_COUNT_FIELD_NUMBER: _ClassVar[int]
    task_id: int
    generation: int
    bytes: int
    holders: _containers.RepeatedScalarFieldContainer[int]
    inline_result: bytes
    pending: bool
    upstream_worker_id: int
    has_downstream: bool
    item: int
    item_count: int
    def __init__(self, task_id: _Optional[int] = ..., generation: _Optional[int] = ..., bytes: _Optional[int] = ..., holders: _Optional[_Iterable[int]] = ..., inline_result: _Optional[bytes] = ..., pending: bool = ..., upstream_worker_id: _Optional[int] = ..., has_downstream: bool = ..., item: _Optional[int] = ..., item_count: _Optional[int] = ...) -> None: ...

class ReportWorkerDeathRequest(_message.Message):
    __slots__ = ("name", "death", "restarting", "called", "calls_known")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DEATH_FIELD_NUMBER: _ClassVar[int]
    RESTARTING_FIELD_NUMBER: _ClassVar[int]
    CALLED_FIELD_NUMBER: _ClassVar[int]
    CALLS_KNOWN_FIELD_NUMBER: _ClassVar[int]
    name: str
    death: _worker_pb2.WorkerDeath
    restarting: bool
    called: _containers.RepeatedCompositeFieldContainer[AttemptRef]
    calls_known: bool
    def __init__(self, name: _Optional[str] = ..., death: _Optional[_Union[_worker_pb2.WorkerDeath, _Mapping]] = ..., restarting: bool = ..., called: _Optional[_Iterable[_Union[AttemptRef, _Mapping]]] = ..., calls_known: bool = ...) -> None: ...

class ReportWorkerDeathResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
