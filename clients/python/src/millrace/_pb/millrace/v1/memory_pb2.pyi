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

class ObjectState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OBJECT_STATE_UNSPECIFIED: _ClassVar[ObjectState]
    OBJECT_STATE_BUILDING: _ClassVar[ObjectState]
    OBJECT_STATE_SEALED: _ClassVar[ObjectState]
    OBJECT_STATE_DROPPED: _ClassVar[ObjectState]

class NextUse(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    NEXT_USE_UNSPECIFIED: _ClassVar[NextUse]
    NEXT_USE_NEVER: _ClassVar[NextUse]
    NEXT_USE_UNKNOWN: _ClassVar[NextUse]
OBJECT_STATE_UNSPECIFIED: ObjectState
OBJECT_STATE_BUILDING: ObjectState
OBJECT_STATE_SEALED: ObjectState
OBJECT_STATE_DROPPED: ObjectState
NEXT_USE_UNSPECIFIED: NextUse
NEXT_USE_NEVER: NextUse
NEXT_USE_UNKNOWN: NextUse

class DescribeMemoryRequest(_message.Message):
    __slots__ = ("limit", "task_id")
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    limit: int
    task_id: int
    def __init__(self, limit: _Optional[int] = ..., task_id: _Optional[int] = ...) -> None: ...

class DescribeMemoryResponse(_message.Message):
    __slots__ = ("tiers", "largest", "pinned", "reservations", "small_object_count", "small_object_bytes", "rss_bytes", "history", "fetches", "native_times")
    TIERS_FIELD_NUMBER: _ClassVar[int]
    LARGEST_FIELD_NUMBER: _ClassVar[int]
    PINNED_FIELD_NUMBER: _ClassVar[int]
    RESERVATIONS_FIELD_NUMBER: _ClassVar[int]
    SMALL_OBJECT_COUNT_FIELD_NUMBER: _ClassVar[int]
    SMALL_OBJECT_BYTES_FIELD_NUMBER: _ClassVar[int]
    RSS_BYTES_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    FETCHES_FIELD_NUMBER: _ClassVar[int]
    NATIVE_TIMES_FIELD_NUMBER: _ClassVar[int]
    tiers: _containers.RepeatedCompositeFieldContainer[MemoryTier]
    largest: _containers.RepeatedCompositeFieldContainer[MemoryHolding]
    pinned: _containers.RepeatedCompositeFieldContainer[MemoryHolding]
    reservations: _containers.RepeatedCompositeFieldContainer[MemoryReservation]
    small_object_count: int
    small_object_bytes: int
    rss_bytes: int
    history: _containers.RepeatedScalarFieldContainer[str]
    fetches: _containers.RepeatedCompositeFieldContainer[MemoryFetch]
    native_times: NativeTimes
    def __init__(self, tiers: _Optional[_Iterable[_Union[MemoryTier, _Mapping]]] = ..., largest: _Optional[_Iterable[_Union[MemoryHolding, _Mapping]]] = ..., pinned: _Optional[_Iterable[_Union[MemoryHolding, _Mapping]]] = ..., reservations: _Optional[_Iterable[_Union[MemoryReservation, _Mapping]]] = ..., small_object_count: _Optional[int] = ..., small_object_bytes: _Optional[int] = ..., rss_bytes: _Optional[int] = ..., history: _Optional[_Iterable[str]] = ..., fetches: _Optional[_Iterable[_Union[MemoryFetch, _Mapping]]] = ..., native_times: _Optional[_Union[NativeTimes, _Mapping]] = ...) -> None: ...

class NativeTimes(_message.Message):
    __slots__ = ("attempts", "admission_time", "queue_time", "submission_time", "device_time", "store_time", "notify_time")
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    ADMISSION_TIME_FIELD_NUMBER: _ClassVar[int]
    QUEUE_TIME_FIELD_NUMBER: _ClassVar[int]
    SUBMISSION_TIME_FIELD_NUMBER: _ClassVar[int]
    DEVICE_TIME_FIELD_NUMBER: _ClassVar[int]
    STORE_TIME_FIELD_NUMBER: _ClassVar[int]
    NOTIFY_TIME_FIELD_NUMBER: _ClassVar[int]
    attempts: int
    admission_time: _duration_pb2.Duration
    queue_time: _duration_pb2.Duration
    submission_time: _duration_pb2.Duration
    device_time: _duration_pb2.Duration
    store_time: _duration_pb2.Duration
    notify_time: _duration_pb2.Duration
    def __init__(self, attempts: _Optional[int] = ..., admission_time: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., queue_time: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., submission_time: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., device_time: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., store_time: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., notify_time: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class MemoryFetch(_message.Message):
    __slots__ = ("task_id", "generation", "object_count", "object_bytes", "peer_worker_id", "read_by_task_id", "create_time", "begun_after", "placed_after", "arrived_after", "usable_after")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    OBJECT_COUNT_FIELD_NUMBER: _ClassVar[int]
    OBJECT_BYTES_FIELD_NUMBER: _ClassVar[int]
    PEER_WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    READ_BY_TASK_ID_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_FIELD_NUMBER: _ClassVar[int]
    BEGUN_AFTER_FIELD_NUMBER: _ClassVar[int]
    PLACED_AFTER_FIELD_NUMBER: _ClassVar[int]
    ARRIVED_AFTER_FIELD_NUMBER: _ClassVar[int]
    USABLE_AFTER_FIELD_NUMBER: _ClassVar[int]
    task_id: int
    generation: int
    object_count: int
    object_bytes: int
    peer_worker_id: int
    read_by_task_id: int
    create_time: _timestamp_pb2.Timestamp
    begun_after: _duration_pb2.Duration
    placed_after: _duration_pb2.Duration
    arrived_after: _duration_pb2.Duration
    usable_after: _duration_pb2.Duration
    def __init__(self, task_id: _Optional[int] = ..., generation: _Optional[int] = ..., object_count: _Optional[int] = ..., object_bytes: _Optional[int] = ..., peer_worker_id: _Optional[int] = ..., read_by_task_id: _Optional[int] = ..., create_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., begun_after: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., placed_after: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., arrived_after: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., usable_after: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class MemoryTier(_message.Message):
    __slots__ = ("name", "size_bytes", "used_bytes", "object_bytes", "clean_bytes", "evictable_bytes", "leaving_bytes", "coming_bytes", "written_bytes", "read_bytes", "failure", "largest_free_bytes")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    USED_BYTES_FIELD_NUMBER: _ClassVar[int]
    OBJECT_BYTES_FIELD_NUMBER: _ClassVar[int]
    CLEAN_BYTES_FIELD_NUMBER: _ClassVar[int]
    EVICTABLE_BYTES_FIELD_NUMBER: _ClassVar[int]
    LEAVING_BYTES_FIELD_NUMBER: _ClassVar[int]
    COMING_BYTES_FIELD_NUMBER: _ClassVar[int]
    WRITTEN_BYTES_FIELD_NUMBER: _ClassVar[int]
    READ_BYTES_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    LARGEST_FREE_BYTES_FIELD_NUMBER: _ClassVar[int]
    name: str
    size_bytes: int
    used_bytes: int
    object_bytes: int
    clean_bytes: int
    evictable_bytes: int
    leaving_bytes: int
    coming_bytes: int
    written_bytes: int
    read_bytes: int
    failure: str
    largest_free_bytes: int
    def __init__(self, name: _Optional[str] = ..., size_bytes: _Optional[int] = ..., used_bytes: _Optional[int] = ..., object_bytes: _Optional[int] = ..., clean_bytes: _Optional[int] = ..., evictable_bytes: _Optional[int] = ..., leaving_bytes: _Optional[int] = ..., coming_bytes: _Optional[int] = ..., written_bytes: _Optional[int] = ..., read_bytes: _Optional[int] = ..., failure: _Optional[str] = ..., largest_free_bytes: _Optional[int] = ...) -> None: ...

class MemoryOwner(_message.Message):
    __slots__ = ("task_id", "worker_id", "written_task_id", "executor_slot")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    WRITTEN_TASK_ID_FIELD_NUMBER: _ClassVar[int]
    EXECUTOR_SLOT_FIELD_NUMBER: _ClassVar[int]
    task_id: int
    worker_id: int
    written_task_id: int
    executor_slot: int
    def __init__(self, task_id: _Optional[int] = ..., worker_id: _Optional[int] = ..., written_task_id: _Optional[int] = ..., executor_slot: _Optional[int] = ...) -> None: ...

class MemoryHolding(_message.Message):
    __slots__ = ("task_id", "generation", "state", "copy", "reservation_id", "owner", "tier_bytes", "shared_bytes", "pins", "lease_count", "next_rank", "next_use")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    COPY_FIELD_NUMBER: _ClassVar[int]
    RESERVATION_ID_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    TIER_BYTES_FIELD_NUMBER: _ClassVar[int]
    SHARED_BYTES_FIELD_NUMBER: _ClassVar[int]
    PINS_FIELD_NUMBER: _ClassVar[int]
    LEASE_COUNT_FIELD_NUMBER: _ClassVar[int]
    NEXT_RANK_FIELD_NUMBER: _ClassVar[int]
    NEXT_USE_FIELD_NUMBER: _ClassVar[int]
    task_id: int
    generation: int
    state: ObjectState
    copy: bool
    reservation_id: int
    owner: MemoryOwner
    tier_bytes: _containers.RepeatedScalarFieldContainer[int]
    shared_bytes: int
    pins: _containers.RepeatedScalarFieldContainer[str]
    lease_count: int
    next_rank: int
    next_use: NextUse
    def __init__(self, task_id: _Optional[int] = ..., generation: _Optional[int] = ..., state: _Optional[_Union[ObjectState, str]] = ..., copy: bool = ..., reservation_id: _Optional[int] = ..., owner: _Optional[_Union[MemoryOwner, _Mapping]] = ..., tier_bytes: _Optional[_Iterable[int]] = ..., shared_bytes: _Optional[int] = ..., pins: _Optional[_Iterable[str]] = ..., lease_count: _Optional[int] = ..., next_rank: _Optional[int] = ..., next_use: _Optional[_Union[NextUse, str]] = ...) -> None: ...

class MemoryReservation(_message.Message):
    __slots__ = ("reservation_id", "owner", "requested_bytes", "load_bytes", "granted", "urgent", "age")
    RESERVATION_ID_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    REQUESTED_BYTES_FIELD_NUMBER: _ClassVar[int]
    LOAD_BYTES_FIELD_NUMBER: _ClassVar[int]
    GRANTED_FIELD_NUMBER: _ClassVar[int]
    URGENT_FIELD_NUMBER: _ClassVar[int]
    AGE_FIELD_NUMBER: _ClassVar[int]
    reservation_id: int
    owner: MemoryOwner
    requested_bytes: int
    load_bytes: int
    granted: bool
    urgent: bool
    age: _duration_pb2.Duration
    def __init__(self, reservation_id: _Optional[int] = ..., owner: _Optional[_Union[MemoryOwner, _Mapping]] = ..., requested_bytes: _Optional[int] = ..., load_bytes: _Optional[int] = ..., granted: bool = ..., urgent: bool = ..., age: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...
