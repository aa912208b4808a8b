import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class AlarmKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ALARM_KIND_UNSPECIFIED: _ClassVar[AlarmKind]
    ALARM_KIND_SPILLING: _ClassVar[AlarmKind]
    ALARM_KIND_SLOW_ROUTE: _ClassVar[AlarmKind]
    ALARM_KIND_GPU_THROTTLED: _ClassVar[AlarmKind]
    ALARM_KIND_GPU_ERROR: _ClassVar[AlarmKind]
    ALARM_KIND_NO_WORKER: _ClassVar[AlarmKind]
    ALARM_KIND_JOURNAL_LAGS: _ClassVar[AlarmKind]
    ALARM_KIND_TASKS_FAIL: _ClassVar[AlarmKind]
    ALARM_KIND_WORKER_DIES: _ClassVar[AlarmKind]
    ALARM_KIND_DISK_FULL: _ClassVar[AlarmKind]
    ALARM_KIND_MEMORY_FULL: _ClassVar[AlarmKind]
    ALARM_KIND_SCHEDULER_SLOW: _ClassVar[AlarmKind]
    ALARM_KIND_SLOW_READER: _ClassVar[AlarmKind]
    ALARM_KIND_PEER_AWAY: _ClassVar[AlarmKind]

class AlarmSeverity(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ALARM_SEVERITY_UNSPECIFIED: _ClassVar[AlarmSeverity]
    ALARM_SEVERITY_WARNING: _ClassVar[AlarmSeverity]
    ALARM_SEVERITY_CRITICAL: _ClassVar[AlarmSeverity]
ALARM_KIND_UNSPECIFIED: AlarmKind
ALARM_KIND_SPILLING: AlarmKind
ALARM_KIND_SLOW_ROUTE: AlarmKind
ALARM_KIND_GPU_THROTTLED: AlarmKind
ALARM_KIND_GPU_ERROR: AlarmKind
ALARM_KIND_NO_WORKER: AlarmKind
ALARM_KIND_JOURNAL_LAGS: AlarmKind
ALARM_KIND_TASKS_FAIL: AlarmKind
ALARM_KIND_WORKER_DIES: AlarmKind
ALARM_KIND_DISK_FULL: AlarmKind
ALARM_KIND_MEMORY_FULL: AlarmKind
ALARM_KIND_SCHEDULER_SLOW: AlarmKind
ALARM_KIND_SLOW_READER: AlarmKind
ALARM_KIND_PEER_AWAY: AlarmKind
ALARM_SEVERITY_UNSPECIFIED: AlarmSeverity
ALARM_SEVERITY_WARNING: AlarmSeverity
ALARM_SEVERITY_CRITICAL: AlarmSeverity

class Alarm(_message.Message):
    __slots__ = ("alarm_id", "kind", "severity", "start_time", "subject", "text", "remedy")
    ALARM_ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    SEVERITY_FIELD_NUMBER: _ClassVar[int]
    START_TIME_FIELD_NUMBER: _ClassVar[int]
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    REMEDY_FIELD_NUMBER: _ClassVar[int]
    alarm_id: str
    kind: AlarmKind
    severity: AlarmSeverity
    start_time: _timestamp_pb2.Timestamp
    subject: str
    text: str
    remedy: str
    def __init__(self, alarm_id: _Optional[str] = ..., kind: _Optional[_Union[AlarmKind, str]] = ..., severity: _Optional[_Union[AlarmSeverity, str]] = ..., start_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., subject: _Optional[str] = ..., text: _Optional[str] = ..., remedy: _Optional[str] = ...) -> None: ...

class ListAlarmsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListAlarmsResponse(_message.Message):
    __slots__ = ("alarms",)
    ALARMS_FIELD_NUMBER: _ClassVar[int]
    alarms: _containers.RepeatedCompositeFieldContainer[Alarm]
    def __init__(self, alarms: _Optional[_Iterable[_Union[Alarm, _Mapping]]] = ...) -> None: ...
