import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class EventSeverity(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    EVENT_SEVERITY_UNSPECIFIED: _ClassVar[EventSeverity]
    EVENT_SEVERITY_INFO: _ClassVar[EventSeverity]
    EVENT_SEVERITY_WARNING: _ClassVar[EventSeverity]
    EVENT_SEVERITY_ERROR: _ClassVar[EventSeverity]
EVENT_SEVERITY_UNSPECIFIED: EventSeverity
EVENT_SEVERITY_INFO: EventSeverity
EVENT_SEVERITY_WARNING: EventSeverity
EVENT_SEVERITY_ERROR: EventSeverity

class Event(_message.Message):
    __slots__ = ("number", "time", "kind", "severity", "worker", "graph_id", "text")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    SEVERITY_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    GRAPH_ID_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    number: int
    time: _timestamp_pb2.Timestamp
    kind: str
    severity: EventSeverity
    worker: str
    graph_id: int
    text: str
    def __init__(self, number: _Optional[int] = ..., time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., kind: _Optional[str] = ..., severity: _Optional[_Union[EventSeverity, str]] = ..., worker: _Optional[str] = ..., graph_id: _Optional[int] = ..., text: _Optional[str] = ...) -> None: ...

class ListEventsRequest(_message.Message):
    __slots__ = ("after_number", "limit")
    AFTER_NUMBER_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    after_number: int
    limit: int
    def __init__(self, after_number: _Optional[int] = ..., limit: _Optional[int] = ...) -> None: ...

class ListEventsResponse(_message.Message):
    __slots__ = ("events", "last_number")
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    LAST_NUMBER_FIELD_NUMBER: _ClassVar[int]
    events: _containers.RepeatedCompositeFieldContainer[Event]
    last_number: int
    def __init__(self, events: _Optional[_Iterable[_Union[Event, _Mapping]]] = ..., last_number: _Optional[int] = ...) -> None: ...
