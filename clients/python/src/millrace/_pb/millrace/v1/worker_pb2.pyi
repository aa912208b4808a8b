import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from millrace._pb.millrace.v1 import memory_pb2 as _memory_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class WorkerState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    WORKER_STATE_UNSPECIFIED: _ClassVar[WorkerState]
    WORKER_STATE_ACTIVE: _ClassVar[WorkerState]
    WORKER_STATE_DISCONNECTED: _ClassVar[WorkerState]
    WORKER_STATE_DRAINING: _ClassVar[WorkerState]
    WORKER_STATE_DRAINED: _ClassVar[WorkerState]
    WORKER_STATE_LOST: _ClassVar[WorkerState]

class DeviceKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DEVICE_KIND_UNSPECIFIED: _ClassVar[DeviceKind]
    DEVICE_KIND_HOST: _ClassVar[DeviceKind]
    DEVICE_KIND_CUDA: _ClassVar[DeviceKind]

class WorkerView(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    WORKER_VIEW_UNSPECIFIED: _ClassVar[WorkerView]
    WORKER_VIEW_BASIC: _ClassVar[WorkerView]
    WORKER_VIEW_FULL: _ClassVar[WorkerView]

class TransferPath(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TRANSFER_PATH_UNSPECIFIED: _ClassVar[TransferPath]
    TRANSFER_PATH_IPC: _ClassVar[TransferPath]
    TRANSFER_PATH_PINNED: _ClassVar[TransferPath]
    TRANSFER_PATH_BORROW: _ClassVar[TransferPath]
    TRANSFER_PATH_UCX: _ClassVar[TransferPath]
    TRANSFER_PATH_GRPC: _ClassVar[TransferPath]

class RouteState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ROUTE_STATE_UNSPECIFIED: _ClassVar[RouteState]
    ROUTE_STATE_UNTRIED: _ClassVar[RouteState]
    ROUTE_STATE_OPEN: _ClassVar[RouteState]
    ROUTE_STATE_FAILED: _ClassVar[RouteState]
    ROUTE_STATE_UNREACHABLE: _ClassVar[RouteState]

class DrainPurpose(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DRAIN_PURPOSE_UNSPECIFIED: _ClassVar[DrainPurpose]
    DRAIN_PURPOSE_STOP: _ClassVar[DrainPurpose]
    DRAIN_PURPOSE_KEEP: _ClassVar[DrainPurpose]
    DRAIN_PURPOSE_RETIRE: _ClassVar[DrainPurpose]
    DRAIN_PURPOSE_RESTART: _ClassVar[DrainPurpose]
WORKER_STATE_UNSPECIFIED: WorkerState
WORKER_STATE_ACTIVE: WorkerState
WORKER_STATE_DISCONNECTED: WorkerState
WORKER_STATE_DRAINING: WorkerState
WORKER_STATE_DRAINED: WorkerState
WORKER_STATE_LOST: WorkerState
DEVICE_KIND_UNSPECIFIED: DeviceKind
DEVICE_KIND_HOST: DeviceKind
DEVICE_KIND_CUDA: DeviceKind
WORKER_VIEW_UNSPECIFIED: WorkerView
WORKER_VIEW_BASIC: WorkerView
WORKER_VIEW_FULL: WorkerView
TRANSFER_PATH_UNSPECIFIED: TransferPath
TRANSFER_PATH_IPC: TransferPath
TRANSFER_PATH_PINNED: TransferPath
TRANSFER_PATH_BORROW: TransferPath
TRANSFER_PATH_UCX: TransferPath
TRANSFER_PATH_GRPC: TransferPath
ROUTE_STATE_UNSPECIFIED: RouteState
ROUTE_STATE_UNTRIED: RouteState
ROUTE_STATE_OPEN: RouteState
ROUTE_STATE_FAILED: RouteState
ROUTE_STATE_UNREACHABLE: RouteState
DRAIN_PURPOSE_UNSPECIFIED: DrainPurpose
DRAIN_PURPOSE_STOP: DrainPurpose
DRAIN_PURPOSE_KEEP: DrainPurpose
DRAIN_PURPOSE_RETIRE: DrainPurpose
DRAIN_PURPOSE_RESTART: DrainPurpose

class WorkerRef(_message.Message):
    __slots__ = ("id", "name")
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    id: int
    name: str
    def __init__(self, id: _Optional[int] = ..., name: _Optional[str] = ...) -> None: ...

class Route(_message.Message):
    __slots__ = ("peer_worker_id", "peer", "path", "state", "reason", "bytes_per_second", "latency", "received_bytes", "succeeded_fetches", "failed_fetches", "transport", "staged", "connect_bytes_per_second", "connection_reason")
    PEER_WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    LATENCY_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_BYTES_FIELD_NUMBER: _ClassVar[int]
    SUCCEEDED_FETCHES_FIELD_NUMBER: _ClassVar[int]
    FAILED_FETCHES_FIELD_NUMBER: _ClassVar[int]
    TRANSPORT_FIELD_NUMBER: _ClassVar[int]
    STAGED_FIELD_NUMBER: _ClassVar[int]
    CONNECT_BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    CONNECTION_REASON_FIELD_NUMBER: _ClassVar[int]
    peer_worker_id: int
    peer: str
    path: TransferPath
    state: RouteState
    reason: str
    bytes_per_second: float
    latency: _duration_pb2.Duration
    received_bytes: int
    succeeded_fetches: int
    failed_fetches: int
    transport: str
    staged: str
    connect_bytes_per_second: float
    connection_reason: str
    def __init__(self, peer_worker_id: _Optional[int] = ..., peer: _Optional[str] = ..., path: _Optional[_Union[TransferPath, str]] = ..., state: _Optional[_Union[RouteState, str]] = ..., reason: _Optional[str] = ..., bytes_per_second: _Optional[float] = ..., latency: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., received_bytes: _Optional[int] = ..., succeeded_fetches: _Optional[int] = ..., failed_fetches: _Optional[int] = ..., transport: _Optional[str] = ..., staged: _Optional[str] = ..., connect_bytes_per_second: _Optional[float] = ..., connection_reason: _Optional[str] = ...) -> None: ...

class WorkerDeath(_message.Message):
    __slots__ = ("incarnation", "pid", "end_time", "cause", "exit_code", "signal", "lost", "out_of_memory", "device_fault", "memory_used_bytes", "running_keys", "log_tail")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    END_TIME_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    SIGNAL_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    OUT_OF_MEMORY_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FAULT_FIELD_NUMBER: _ClassVar[int]
    MEMORY_USED_BYTES_FIELD_NUMBER: _ClassVar[int]
    RUNNING_KEYS_FIELD_NUMBER: _ClassVar[int]
    LOG_TAIL_FIELD_NUMBER: _ClassVar[int]
    incarnation: str
    pid: int
    end_time: _timestamp_pb2.Timestamp
    cause: str
    exit_code: int
    signal: str
    lost: bool
    out_of_memory: bool
    device_fault: bool
    memory_used_bytes: int
    running_keys: _containers.RepeatedScalarFieldContainer[str]
    log_tail: str
    def __init__(self, incarnation: _Optional[str] = ..., pid: _Optional[int] = ..., end_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., cause: _Optional[str] = ..., exit_code: _Optional[int] = ..., signal: _Optional[str] = ..., lost: bool = ..., out_of_memory: bool = ..., device_fault: bool = ..., memory_used_bytes: _Optional[int] = ..., running_keys: _Optional[_Iterable[str]] = ..., log_tail: _Optional[str] = ...) -> None: ...

class Gpu(_message.Message):
    __slots__ = ("uuid", "name", "pci_bus_id", "memory_bytes", "numa_node", "placement", "net_devices", "links")
    UUID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    PCI_BUS_ID_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    NUMA_NODE_FIELD_NUMBER: _ClassVar[int]
    PLACEMENT_FIELD_NUMBER: _ClassVar[int]
    NET_DEVICES_FIELD_NUMBER: _ClassVar[int]
    LINKS_FIELD_NUMBER: _ClassVar[int]
    uuid: str
    name: str
    pci_bus_id: str
    memory_bytes: int
    numa_node: int
    placement: str
    net_devices: str
    links: _containers.RepeatedCompositeFieldContainer[GpuLink]
    def __init__(self, uuid: _Optional[str] = ..., name: _Optional[str] = ..., pci_bus_id: _Optional[str] = ..., memory_bytes: _Optional[int] = ..., numa_node: _Optional[int] = ..., placement: _Optional[str] = ..., net_devices: _Optional[str] = ..., links: _Optional[_Iterable[_Union[GpuLink, _Mapping]]] = ...) -> None: ...

class GpuLink(_message.Message):
    __slots__ = ("uuid", "nv_links", "peer_access", "reason")
    UUID_FIELD_NUMBER: _ClassVar[int]
    NV_LINKS_FIELD_NUMBER: _ClassVar[int]
    PEER_ACCESS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    uuid: str
    nv_links: int
    peer_access: bool
    reason: str
    def __init__(self, uuid: _Optional[str] = ..., nv_links: _Optional[int] = ..., peer_access: bool = ..., reason: _Optional[str] = ...) -> None: ...

class GpuHealth(_message.Message):
    __slots__ = ("used_bytes", "utilization_percent", "memory_percent", "clock_mhz", "throttle_reasons", "watts", "celsius", "corrected_ecc_errors", "uncorrected_ecc_errors", "xids", "last_event", "foreign_processes", "foreign_bytes", "nv_link_received_bytes", "nv_link_sent_bytes", "pcie_received_bytes_per_second", "pcie_sent_bytes_per_second")
    USED_BYTES_FIELD_NUMBER: _ClassVar[int]
    UTILIZATION_PERCENT_FIELD_NUMBER: _ClassVar[int]
    MEMORY_PERCENT_FIELD_NUMBER: _ClassVar[int]
    CLOCK_MHZ_FIELD_NUMBER: _ClassVar[int]
    THROTTLE_REASONS_FIELD_NUMBER: _ClassVar[int]
    WATTS_FIELD_NUMBER: _ClassVar[int]
    CELSIUS_FIELD_NUMBER: _ClassVar[int]
    CORRECTED_ECC_ERRORS_FIELD_NUMBER: _ClassVar[int]
    UNCORRECTED_ECC_ERRORS_FIELD_NUMBER: _ClassVar[int]
    XIDS_FIELD_NUMBER: _ClassVar[int]
    LAST_EVENT_FIELD_NUMBER: _ClassVar[int]
    FOREIGN_PROCESSES_FIELD_NUMBER: _ClassVar[int]
    FOREIGN_BYTES_FIELD_NUMBER: _ClassVar[int]
    NV_LINK_RECEIVED_BYTES_FIELD_NUMBER: _ClassVar[int]
    NV_LINK_SENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    PCIE_RECEIVED_BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    PCIE_SENT_BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    used_bytes: int
    utilization_percent: int
    memory_percent: int
    clock_mhz: int
    throttle_reasons: _containers.RepeatedScalarFieldContainer[str]
    watts: float
    celsius: int
    corrected_ecc_errors: int
    uncorrected_ecc_errors: int
    xids: int
    last_event: str
    foreign_processes: int
    foreign_bytes: int
    nv_link_received_bytes: int
    nv_link_sent_bytes: int
    pcie_received_bytes_per_second: float
    pcie_sent_bytes_per_second: float
    def __init__(self, used_bytes: _Optional[int] = ..., utilization_percent: _Optional[int] = ..., memory_percent: _Optional[int] = ..., clock_mhz: _Optional[int] = ..., throttle_reasons: _Optional[_Iterable[str]] = ..., watts: _Optional[float] = ..., celsius: _Optional[int] = ..., corrected_ecc_errors: _Optional[int] = ..., uncorrected_ecc_errors: _Optional[int] = ..., xids: _Optional[int] = ..., last_event: _Optional[str] = ..., foreign_processes: _Optional[int] = ..., foreign_bytes: _Optional[int] = ..., nv_link_received_bytes: _Optional[int] = ..., nv_link_sent_bytes: _Optional[int] = ..., pcie_received_bytes_per_second: _Optional[float] = ..., pcie_sent_bytes_per_second: _Optional[float] = ...) -> None: ...

class NetworkDevice(_message.Message):
    __slots__ = ("name", "received_bytes", "sent_bytes", "received_bytes_per_second", "sent_bytes_per_second")
    NAME_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_BYTES_FIELD_NUMBER: _ClassVar[int]
    SENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    SENT_BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    name: str
    received_bytes: int
    sent_bytes: int
    received_bytes_per_second: float
    sent_bytes_per_second: float
    def __init__(self, name: _Optional[str] = ..., received_bytes: _Optional[int] = ..., sent_bytes: _Optional[int] = ..., received_bytes_per_second: _Optional[float] = ..., sent_bytes_per_second: _Optional[float] = ...) -> None: ...

class WorkerDrain(_message.Message):
    __slots__ = ("purpose", "reason", "create_time", "expire_time", "copied_objects", "copied_bytes", "remaining_objects", "remaining_bytes", "staying_objects", "staying_bytes", "staying")
    PURPOSE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_FIELD_NUMBER: _ClassVar[int]
    EXPIRE_TIME_FIELD_NUMBER: _ClassVar[int]
    COPIED_OBJECTS_FIELD_NUMBER: _ClassVar[int]
    COPIED_BYTES_FIELD_NUMBER: _ClassVar[int]
    REMAINING_OBJECTS_FIELD_NUMBER: _ClassVar[int]
    REMAINING_BYTES_FIELD_NUMBER: _ClassVar[int]
    STAYING_OBJECTS_FIELD_NUMBER: _ClassVar[int]
    STAYING_BYTES_FIELD_NUMBER: _ClassVar[int]
    STAYING_FIELD_NUMBER: _ClassVar[int]
    purpose: DrainPurpose
    reason: str
    create_time: _timestamp_pb2.Timestamp
    expire_time: _timestamp_pb2.Timestamp
    copied_objects: int
    copied_bytes: int
    remaining_objects: int
    remaining_bytes: int
    staying_objects: int
    staying_bytes: int
    staying: _containers.RepeatedCompositeFieldContainer[StayingObject]
    def __init__(self, purpose: _Optional[_Union[DrainPurpose, str]] = ..., reason: _Optional[str] = ..., create_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., expire_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., copied_objects: _Optional[int] = ..., copied_bytes: _Optional[int] = ..., remaining_objects: _Optional[int] = ..., remaining_bytes: _Optional[int] = ..., staying_objects: _Optional[int] = ..., staying_bytes: _Optional[int] = ..., staying: _Optional[_Iterable[_Union[StayingObject, _Mapping]]] = ...) -> None: ...

class StayingObject(_message.Message):
    __slots__ = ("task_id", "key", "namespace", "bytes", "reason")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    task_id: int
    key: str
    namespace: str
    bytes: int
    reason: str
    def __init__(self, task_id: _Optional[int] = ..., key: _Optional[str] = ..., namespace: _Optional[str] = ..., bytes: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class Worker(_message.Message):
    __slots__ = ("worker_id", "name", "incarnation", "state", "host", "pid", "data_address", "device", "gpu", "gpu_health", "version", "executors", "slots", "resources", "create_time", "last_seen_time", "assigned_tasks", "finished_tasks", "objects", "memory_limit_bytes", "memory_used_bytes", "rss_bytes", "received_bytes", "sent_bytes", "spilled_bytes", "spill_written_bytes", "spill_read_bytes", "spill_failure", "executor_deaths", "last_executor_death", "death_count", "deaths", "routes", "drain", "supervised", "revision", "linear_algebra", "tiers", "memory_evictable_bytes", "network_devices")
    class ResourcesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    DATA_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    GPU_FIELD_NUMBER: _ClassVar[int]
    GPU_HEALTH_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    EXECUTORS_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    RESOURCES_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_FIELD_NUMBER: _ClassVar[int]
    LAST_SEEN_TIME_FIELD_NUMBER: _ClassVar[int]
    ASSIGNED_TASKS_FIELD_NUMBER: _ClassVar[int]
    FINISHED_TASKS_FIELD_NUMBER: _ClassVar[int]
    OBJECTS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_LIMIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_USED_BYTES_FIELD_NUMBER: _ClassVar[int]
    RSS_BYTES_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_BYTES_FIELD_NUMBER: _ClassVar[int]
    SENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    SPILLED_BYTES_FIELD_NUMBER: _ClassVar[int]
    SPILL_WRITTEN_BYTES_FIELD_NUMBER: _ClassVar[int]
    SPILL_READ_BYTES_FIELD_NUMBER: _ClassVar[int]
    SPILL_FAILURE_FIELD_NUMBER: _ClassVar[int]
    EXECUTOR_DEATHS_FIELD_NUMBER: _ClassVar[int]
    LAST_EXECUTOR_DEATH_FIELD_NUMBER: _ClassVar[int]
    DEATH_COUNT_FIELD_NUMBER: _ClassVar[int]
    DEATHS_FIELD_NUMBER: _ClassVar[int]
    ROUTES_FIELD_NUMBER: _ClassVar[int]
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    SUPERVISED_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    LINEAR_ALGEBRA_FIELD_NUMBER: _ClassVar[int]
    TIERS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_EVICTABLE_BYTES_FIELD_NUMBER: _ClassVar[int]
    NETWORK_DEVICES_FIELD_NUMBER: _ClassVar[int]
    worker_id: int
    name: str
    incarnation: str
    state: WorkerState
    host: str
    pid: int
    data_address: str
    device: DeviceKind
    gpu: Gpu
    gpu_health: GpuHealth
    version: str
    executors: _containers.RepeatedScalarFieldContainer[str]
    slots: int
    resources: _containers.ScalarMap[str, float]
    create_time: _timestamp_pb2.Timestamp
    last_seen_time: _timestamp_pb2.Timestamp
    assigned_tasks: int
    finished_tasks: int
    objects: int
    memory_limit_bytes: int
    memory_used_bytes: int
    rss_bytes: int
    received_bytes: int
    sent_bytes: int
    spilled_bytes: int
    spill_written_bytes: int
    spill_read_bytes: int
    spill_failure: str
    executor_deaths: int
    last_executor_death: str
    death_count: int
    deaths: _containers.RepeatedCompositeFieldContainer[WorkerDeath]
    routes: _containers.RepeatedCompositeFieldContainer[Route]
    drain: WorkerDrain
    supervised: bool
    revision: int
    linear_algebra: LinearAlgebra
    tiers: _containers.RepeatedCompositeFieldContainer[_memory_pb2.MemoryTier]
    memory_evictable_bytes: int
    network_devices: _containers.RepeatedCompositeFieldContainer[NetworkDevice]
    def __init__(self, worker_id: _Optional[int] = ..., name: _Optional[str] = ..., incarnation: _Optional[str] = ..., state: _Optional[_Union[WorkerState, str]] = ..., host: _Optional[str] = ..., pid: _Optional[int] = ..., data_address: _Optional[str] = ..., device: _Optional[_Union[DeviceKind, str]] = ..., gpu: _Optional[_Union[Gpu, _Mapping]] = ..., gpu_health: _Optional[_Union[GpuHealth, _Mapping]] = ..., version: _Optional[str] = ..., executors: _Optional[_Iterable[str]] = ..., slots: _Optional[int] = ..., resources: _Optional[_Mapping[str, float]] = ..., create_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., last_seen_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., assigned_tasks: _Optional[int] = ..., finished_tasks: _Optional[int] = ..., objects: _Optional[int] = ..., memory_limit_bytes: _Optional[int] = ..., memory_used_bytes: _Optional[int] = ..., rss_bytes: _Optional[int] = ..., received_bytes: _Optional[int] = ..., sent_bytes: _Optional[int] = ..., spilled_bytes: _Optional[int] = ..., spill_written_bytes: _Optional[int] = ..., spill_read_bytes: _Optional[int] = ..., spill_failure: _Optional[str] = ..., executor_deaths: _Optional[int] = ..., last_executor_death: _Optional[str] = ..., death_count: _Optional[int] = ..., deaths: _Optional[_Iterable[_Union[WorkerDeath, _Mapping]]] = ..., routes: _Optional[_Iterable[_Union[Route, _Mapping]]] = ..., drain: _Optional[_Union[WorkerDrain, _Mapping]] = ..., supervised: bool = ..., revision: _Optional[int] = ..., linear_algebra: _Optional[_Union[LinearAlgebra, _Mapping]] = ..., tiers: _Optional[_Iterable[_Union[_memory_pb2.MemoryTier, _Mapping]]] = ..., memory_evictable_bytes: _Optional[int] = ..., network_devices: _Optional[_Iterable[_Union[NetworkDevice, _Mapping]]] = ...) -> None: ...

class LinearAlgebra(_message.Message):
    __slots__ = ("library", "file", "cores", "ops")
    LIBRARY_FIELD_NUMBER: _ClassVar[int]
    FILE_FIELD_NUMBER: _ClassVar[int]
    CORES_FIELD_NUMBER: _ClassVar[int]
    OPS_FIELD_NUMBER: _ClassVar[int]
    library: str
    file: str
    cores: int
    ops: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, library: _Optional[str] = ..., file: _Optional[str] = ..., cores: _Optional[int] = ..., ops: _Optional[_Iterable[str]] = ...) -> None: ...

class WorkerAddress(_message.Message):
    __slots__ = ("worker_id", "name", "host", "data_address", "device")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    DATA_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    worker_id: int
    name: str
    host: str
    data_address: str
    device: DeviceKind
    def __init__(self, worker_id: _Optional[int] = ..., name: _Optional[str] = ..., host: _Optional[str] = ..., data_address: _Optional[str] = ..., device: _Optional[_Union[DeviceKind, str]] = ...) -> None: ...
