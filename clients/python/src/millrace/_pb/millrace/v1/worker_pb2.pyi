import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
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
    WORKER_STATE_LOST: _ClassVar[WorkerState]

class DeviceKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DEVICE_KIND_UNSPECIFIED: _ClassVar[DeviceKind]
    DEVICE_KIND_HOST: _ClassVar[DeviceKind]
    DEVICE_KIND_CUDA: _ClassVar[DeviceKind]

class LaneState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    LANE_STATE_UNSPECIFIED: _ClassVar[LaneState]
    LANE_STATE_UNTRIED: _ClassVar[LaneState]
    LANE_STATE_OPEN: _ClassVar[LaneState]
    LANE_STATE_SHUT: _ClassVar[LaneState]
    LANE_STATE_NO_WAY: _ClassVar[LaneState]
WORKER_STATE_UNSPECIFIED: WorkerState
WORKER_STATE_ACTIVE: WorkerState
WORKER_STATE_DISCONNECTED: WorkerState
WORKER_STATE_DRAINING: WorkerState
WORKER_STATE_LOST: WorkerState
DEVICE_KIND_UNSPECIFIED: DeviceKind
DEVICE_KIND_HOST: DeviceKind
DEVICE_KIND_CUDA: DeviceKind
LANE_STATE_UNSPECIFIED: LaneState
LANE_STATE_UNTRIED: LaneState
LANE_STATE_OPEN: LaneState
LANE_STATE_SHUT: LaneState
LANE_STATE_NO_WAY: LaneState

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
    __slots__ = ("uuid", "nv_links", "peer_access", "why")
    UUID_FIELD_NUMBER: _ClassVar[int]
    NV_LINKS_FIELD_NUMBER: _ClassVar[int]
    PEER_ACCESS_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    uuid: str
    nv_links: int
    peer_access: bool
    why: str
    def __init__(self, uuid: _Optional[str] = ..., nv_links: _Optional[int] = ..., peer_access: bool = ..., why: _Optional[str] = ...) -> None: ...

class GpuHealth(_message.Message):
    __slots__ = ("used_bytes", "utilization_percent", "memory_percent", "clock_mhz", "throttled", "watts", "celsius", "corrected_ecc", "uncorrected_ecc", "xids", "last_event", "foreign_processes", "foreign_bytes")
    USED_BYTES_FIELD_NUMBER: _ClassVar[int]
    UTILIZATION_PERCENT_FIELD_NUMBER: _ClassVar[int]
    MEMORY_PERCENT_FIELD_NUMBER: _ClassVar[int]
    CLOCK_MHZ_FIELD_NUMBER: _ClassVar[int]
    THROTTLED_FIELD_NUMBER: _ClassVar[int]
    WATTS_FIELD_NUMBER: _ClassVar[int]
    CELSIUS_FIELD_NUMBER: _ClassVar[int]
    CORRECTED_ECC_FIELD_NUMBER: _ClassVar[int]
    UNCORRECTED_ECC_FIELD_NUMBER: _ClassVar[int]
    XIDS_FIELD_NUMBER: _ClassVar[int]
    LAST_EVENT_FIELD_NUMBER: _ClassVar[int]
    FOREIGN_PROCESSES_FIELD_NUMBER: _ClassVar[int]
    FOREIGN_BYTES_FIELD_NUMBER: _ClassVar[int]
    used_bytes: int
    utilization_percent: int
    memory_percent: int
    clock_mhz: int
    throttled: _containers.RepeatedScalarFieldContainer[str]
    watts: float
    celsius: int
    corrected_ecc: int
    uncorrected_ecc: int
    xids: int
    last_event: str
    foreign_processes: int
    foreign_bytes: int
    def __init__(self, used_bytes: _Optional[int] = ..., utilization_percent: _Optional[int] = ..., memory_percent: _Optional[int] = ..., clock_mhz: _Optional[int] = ..., throttled: _Optional[_Iterable[str]] = ..., watts: _Optional[float] = ..., celsius: _Optional[int] = ..., corrected_ecc: _Optional[int] = ..., uncorrected_ecc: _Optional[int] = ..., xids: _Optional[int] = ..., last_event: _Optional[str] = ..., foreign_processes: _Optional[int] = ..., foreign_bytes: _Optional[int] = ...) -> None: ...

class Lane(_message.Message):
    __slots__ = ("peer_worker_id", "peer", "path", "state", "why", "bytes_per_second", "latency_nanos", "bytes", "succeeded", "failed", "transport")
    PEER_WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    LATENCY_NANOS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    SUCCEEDED_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    TRANSPORT_FIELD_NUMBER: _ClassVar[int]
    peer_worker_id: int
    peer: str
    path: str
    state: LaneState
    why: str
    bytes_per_second: float
    latency_nanos: int
    bytes: int
    succeeded: int
    failed: int
    transport: str
    def __init__(self, peer_worker_id: _Optional[int] = ..., peer: _Optional[str] = ..., path: _Optional[str] = ..., state: _Optional[_Union[LaneState, str]] = ..., why: _Optional[str] = ..., bytes_per_second: _Optional[float] = ..., latency_nanos: _Optional[int] = ..., bytes: _Optional[int] = ..., succeeded: _Optional[int] = ..., failed: _Optional[int] = ..., transport: _Optional[str] = ...) -> None: ...

class WorkerDeath(_message.Message):
    __slots__ = ("incarnation", "cause", "exit_code", "signal", "out_of_memory", "log_tail", "time", "pid", "memory_used_bytes", "running_keys", "device_fault")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    SIGNAL_FIELD_NUMBER: _ClassVar[int]
    OUT_OF_MEMORY_FIELD_NUMBER: _ClassVar[int]
    LOG_TAIL_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    MEMORY_USED_BYTES_FIELD_NUMBER: _ClassVar[int]
    RUNNING_KEYS_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FAULT_FIELD_NUMBER: _ClassVar[int]
    incarnation: str
    cause: str
    exit_code: int
    signal: str
    out_of_memory: bool
    log_tail: str
    time: _timestamp_pb2.Timestamp
    pid: int
    memory_used_bytes: int
    running_keys: _containers.RepeatedScalarFieldContainer[str]
    device_fault: bool
    def __init__(self, incarnation: _Optional[str] = ..., cause: _Optional[str] = ..., exit_code: _Optional[int] = ..., signal: _Optional[str] = ..., out_of_memory: bool = ..., log_tail: _Optional[str] = ..., time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., pid: _Optional[int] = ..., memory_used_bytes: _Optional[int] = ..., running_keys: _Optional[_Iterable[str]] = ..., device_fault: bool = ...) -> None: ...

class Worker(_message.Message):
    __slots__ = ("worker_id", "name", "incarnation", "state", "host", "pid", "data_address", "device", "slots", "resources", "memory_limit_bytes", "memory_used_bytes", "assigned_tasks", "objects", "finished_tasks", "register_time", "last_seen_time", "deaths", "version", "revision", "executors", "rss_bytes", "executor_deaths", "last_executor_death", "bytes_in", "bytes_out", "lanes", "spilled_bytes", "spill_written_bytes", "spill_read_bytes", "spill_failure", "gpu", "gpu_health")
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
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    RESOURCES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_LIMIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_USED_BYTES_FIELD_NUMBER: _ClassVar[int]
    ASSIGNED_TASKS_FIELD_NUMBER: _ClassVar[int]
    OBJECTS_FIELD_NUMBER: _ClassVar[int]
    FINISHED_TASKS_FIELD_NUMBER: _ClassVar[int]
    REGISTER_TIME_FIELD_NUMBER: _ClassVar[int]
    LAST_SEEN_TIME_FIELD_NUMBER: _ClassVar[int]
    DEATHS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    EXECUTORS_FIELD_NUMBER: _ClassVar[int]
    RSS_BYTES_FIELD_NUMBER: _ClassVar[int]
    EXECUTOR_DEATHS_FIELD_NUMBER: _ClassVar[int]
    LAST_EXECUTOR_DEATH_FIELD_NUMBER: _ClassVar[int]
    BYTES_IN_FIELD_NUMBER: _ClassVar[int]
    BYTES_OUT_FIELD_NUMBER: _ClassVar[int]
    LANES_FIELD_NUMBER: _ClassVar[int]
    SPILLED_BYTES_FIELD_NUMBER: _ClassVar[int]
    SPILL_WRITTEN_BYTES_FIELD_NUMBER: _ClassVar[int]
    SPILL_READ_BYTES_FIELD_NUMBER: _ClassVar[int]
    SPILL_FAILURE_FIELD_NUMBER: _ClassVar[int]
    GPU_FIELD_NUMBER: _ClassVar[int]
    GPU_HEALTH_FIELD_NUMBER: _ClassVar[int]
    worker_id: int
    name: str
    incarnation: str
    state: WorkerState
    host: str
    pid: int
    data_address: str
    device: DeviceKind
    slots: int
    resources: _containers.ScalarMap[str, float]
    memory_limit_bytes: int
    memory_used_bytes: int
    assigned_tasks: int
    objects: int
    finished_tasks: int
    register_time: _timestamp_pb2.Timestamp
    last_seen_time: _timestamp_pb2.Timestamp
    deaths: _containers.RepeatedCompositeFieldContainer[WorkerDeath]
    version: str
    revision: int
    executors: _containers.RepeatedScalarFieldContainer[str]
    rss_bytes: int
    executor_deaths: int
    last_executor_death: str
    bytes_in: int
    bytes_out: int
    lanes: _containers.RepeatedCompositeFieldContainer[Lane]
    spilled_bytes: int
    spill_written_bytes: int
    spill_read_bytes: int
    spill_failure: str
    gpu: Gpu
    gpu_health: GpuHealth
    def __init__(self, worker_id: _Optional[int] = ..., name: _Optional[str] = ..., incarnation: _Optional[str] = ..., state: _Optional[_Union[WorkerState, str]] = ..., host: _Optional[str] = ..., pid: _Optional[int] = ..., data_address: _Optional[str] = ..., device: _Optional[_Union[DeviceKind, str]] = ..., slots: _Optional[int] = ..., resources: _Optional[_Mapping[str, float]] = ..., memory_limit_bytes: _Optional[int] = ..., memory_used_bytes: _Optional[int] = ..., assigned_tasks: _Optional[int] = ..., objects: _Optional[int] = ..., finished_tasks: _Optional[int] = ..., register_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., last_seen_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., deaths: _Optional[_Iterable[_Union[WorkerDeath, _Mapping]]] = ..., version: _Optional[str] = ..., revision: _Optional[int] = ..., executors: _Optional[_Iterable[str]] = ..., rss_bytes: _Optional[int] = ..., executor_deaths: _Optional[int] = ..., last_executor_death: _Optional[str] = ..., bytes_in: _Optional[int] = ..., bytes_out: _Optional[int] = ..., lanes: _Optional[_Iterable[_Union[Lane, _Mapping]]] = ..., spilled_bytes: _Optional[int] = ..., spill_written_bytes: _Optional[int] = ..., spill_read_bytes: _Optional[int] = ..., spill_failure: _Optional[str] = ..., gpu: _Optional[_Union[Gpu, _Mapping]] = ..., gpu_health: _Optional[_Union[GpuHealth, _Mapping]] = ...) -> None: ...
