import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DescribeMemoryRequest(_message.Message):
    __slots__ = ("limit", "task_id")
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    limit: int
    task_id: int
    def __init__(self, limit: _Optional[int] = ..., task_id: _Optional[int] = ...) -> None: ...

class DescribeMemoryResponse(_message.Message):
    __slots__ = ("tiers", "largest", "pinned", "reservations", "small_objects", "small_bytes", "rss_bytes", "story", "fetches", "native_times")
    TIERS_FIELD_NUMBER: _ClassVar[int]
    LARGEST_FIELD_NUMBER: _ClassVar[int]
    PINNED_FIELD_NUMBER: _ClassVar[int]
    RESERVATIONS_FIELD_NUMBER: _ClassVar[int]
    SMALL_OBJECTS_FIELD_NUMBER: _ClassVar[int]
    SMALL_BYTES_FIELD_NUMBER: _ClassVar[int]
    RSS_BYTES_FIELD_NUMBER: _ClassVar[int]
    STORY_FIELD_NUMBER: _ClassVar[int]
    FETCHES_FIELD_NUMBER: _ClassVar[int]
    NATIVE_TIMES_FIELD_NUMBER: _ClassVar[int]
    tiers: _containers.RepeatedCompositeFieldContainer[MemoryTier]
    largest: _containers.RepeatedCompositeFieldContainer[MemoryHolding]
    pinned: _containers.RepeatedCompositeFieldContainer[MemoryHolding]
    reservations: _containers.RepeatedCompositeFieldContainer[MemoryReservation]
    small_objects: int
    small_bytes: int
    rss_bytes: int
    story: _containers.RepeatedScalarFieldContainer[str]
    fetches: _containers.RepeatedCompositeFieldContainer[MemoryFetch]
    native_times: NativeTimes
    def __init__(self, tiers: _Optional[_Iterable[_Union[MemoryTier, _Mapping]]] = ..., largest: _Optional[_Iterable[_Union[MemoryHolding, _Mapping]]] = ..., pinned: _Optional[_Iterable[_Union[MemoryHolding, _Mapping]]] = ..., reservations: _Optional[_Iterable[_Union[MemoryReservation, _Mapping]]] = ..., small_objects: _Optional[int] = ..., small_bytes: _Optional[int] = ..., rss_bytes: _Optional[int] = ..., story: _Optional[_Iterable[str]] = ..., fetches: _Optional[_Iterable[_Union[MemoryFetch, _Mapping]]] = ..., native_times: _Optional[_Union[NativeTimes, _Mapping]] = ...) -> None: ...

class NativeTimes(_message.Message):
    __slots__ = ("attempts", "admitted_nanos", "queued_nanos", "submitted_nanos", "worked_nanos", "stored_nanos", "told_nanos")
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    ADMITTED_NANOS_FIELD_NUMBER: _ClassVar[int]
    QUEUED_NANOS_FIELD_NUMBER: _ClassVar[int]
    SUBMITTED_NANOS_FIELD_NUMBER: _ClassVar[int]
    WORKED_NANOS_FIELD_NUMBER: _ClassVar[int]
    STORED_NANOS_FIELD_NUMBER: _ClassVar[int]
    TOLD_NANOS_FIELD_NUMBER: _ClassVar[int]
    attempts: int
    admitted_nanos: int
    queued_nanos: int
    submitted_nanos: int
    worked_nanos: int
    stored_nanos: int
    told_nanos: int
    def __init__(self, attempts: _Optional[int] = ..., admitted_nanos: _Optional[int] = ..., queued_nanos: _Optional[int] = ..., submitted_nanos: _Optional[int] = ..., worked_nanos: _Optional[int] = ..., stored_nanos: _Optional[int] = ..., told_nanos: _Optional[int] = ...) -> None: ...

class MemoryFetch(_message.Message):
    __slots__ = ("task_id", "generation", "objects", "bytes", "peer_worker_id", "wanted", "begun_nanos", "placed_nanos", "arrived_nanos", "usable_nanos", "read_by_task_id")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    OBJECTS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    PEER_WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    WANTED_FIELD_NUMBER: _ClassVar[int]
    BEGUN_NANOS_FIELD_NUMBER: _ClassVar[int]
    PLACED_NANOS_FIELD_NUMBER: _ClassVar[int]
    ARRIVED_NANOS_FIELD_NUMBER: _ClassVar[int]
    USABLE_NANOS_FIELD_NUMBER: _ClassVar[int]
    READ_BY_TASK_ID_FIELD_NUMBER: _ClassVar[int]
    task_id: int
    generation: int
    objects: int
    bytes: int
    peer_worker_id: int
    wanted: _timestamp_pb2.Timestamp
    begun_nanos: int
    placed_nanos: int
    arrived_nanos: int
    usable_nanos: int
    read_by_task_id: int
    def __init__(self, task_id: _Optional[int] = ..., generation: _Optional[int] = ..., objects: _Optional[int] = ..., bytes: _Optional[int] = ..., peer_worker_id: _Optional[int] = ..., wanted: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., begun_nanos: _Optional[int] = ..., placed_nanos: _Optional[int] = ..., arrived_nanos: _Optional[int] = ..., usable_nanos: _Optional[int] = ..., read_by_task_id: _Optional[int] = ...) -> None: ...

class MemoryTier(_message.Message):
    __slots__ = ("name", "size_bytes", "used_bytes", "held_bytes", "clean_bytes", "evictable_bytes", "leaving_bytes", "coming_bytes", "written_bytes", "read_bytes", "failure")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    USED_BYTES_FIELD_NUMBER: _ClassVar[int]
    HELD_BYTES_FIELD_NUMBER: _ClassVar[int]
    CLEAN_BYTES_FIELD_NUMBER: _ClassVar[int]
    EVICTABLE_BYTES_FIELD_NUMBER: _ClassVar[int]
    LEAVING_BYTES_FIELD_NUMBER: _ClassVar[int]
    COMING_BYTES_FIELD_NUMBER: _ClassVar[int]
    WRITTEN_BYTES_FIELD_NUMBER: _ClassVar[int]
    READ_BYTES_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    name: str
    size_bytes: int
    used_bytes: int
    held_bytes: int
    clean_bytes: int
    evictable_bytes: int
    leaving_bytes: int
    coming_bytes: int
    written_bytes: int
    read_bytes: int
    failure: str
    def __init__(self, name: _Optional[str] = ..., size_bytes: _Optional[int] = ..., used_bytes: _Optional[int] = ..., held_bytes: _Optional[int] = ..., clean_bytes: _Optional[int] = ..., evictable_bytes: _Optional[int] = ..., leaving_bytes: _Optional[int] = ..., coming_bytes: _Optional[int] = ..., written_bytes: _Optional[int] = ..., read_bytes: _Optional[int] = ..., failure: _Optional[str] = ...) -> None: ...

class MemoryHolding(_message.Message):
    __slots__ = ("task_id", "generation", "reservation_id", "holder", "state", "tier_bytes", "shared_bytes", "pins", "leases", "next_use", "copy")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    RESERVATION_ID_FIELD_NUMBER: _ClassVar[int]
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    TIER_BYTES_FIELD_NUMBER: _ClassVar[int]
    SHARED_BYTES_FIELD_NUMBER: _ClassVar[int]
    PINS_FIELD_NUMBER: _ClassVar[int]
    LEASES_FIELD_NUMBER: _ClassVar[int]
    NEXT_USE_FIELD_NUMBER: _ClassVar[int]
    COPY_FIELD_NUMBER: _ClassVar[int]
    task_id: int
    generation: int
    reservation_id: int
    holder: str
    state: str
    tier_bytes: _containers.RepeatedScalarFieldContainer[int]
    shared_bytes: int
    pins: _containers.RepeatedScalarFieldContainer[str]
    leases: int
    next_use: int
    copy: bool
    def __init__(self, task_id: _Optional[int] = ..., generation: _Optional[int] = ..., reservation_id: _Optional[int] = ..., holder: _Optional[str] = ..., state: _Optional[str] = ..., tier_bytes: _Optional[_Iterable[int]] = ..., shared_bytes: _Optional[int] = ..., pins: _Optional[_Iterable[str]] = ..., leases: _Optional[int] = ..., next_use: _Optional[int] = ..., copy: bool = ...) -> None: ...

class MemoryReservation(_message.Message):
    __slots__ = ("reservation_id", "holder", "bytes", "load_bytes", "granted", "urgent", "age_millis")
    RESERVATION_ID_FIELD_NUMBER: _ClassVar[int]
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    LOAD_BYTES_FIELD_NUMBER: _ClassVar[int]
    GRANTED_FIELD_NUMBER: _ClassVar[int]
    URGENT_FIELD_NUMBER: _ClassVar[int]
    AGE_MILLIS_FIELD_NUMBER: _ClassVar[int]
    reservation_id: int
    holder: str
    bytes: int
    load_bytes: int
    granted: bool
    urgent: bool
    age_millis: int
    def __init__(self, reservation_id: _Optional[int] = ..., holder: _Optional[str] = ..., bytes: _Optional[int] = ..., load_bytes: _Optional[int] = ..., granted: bool = ..., urgent: bool = ..., age_millis: _Optional[int] = ...) -> None: ...
