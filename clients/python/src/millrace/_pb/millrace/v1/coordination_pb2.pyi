import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from millrace._pb.millrace.v1 import value_pb2 as _value_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class StoredValue(_message.Message):
    __slots__ = ("value", "keys")
    VALUE_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    value: _value_pb2.Value
    keys: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, value: _Optional[_Union[_value_pb2.Value, _Mapping]] = ..., keys: _Optional[_Iterable[str]] = ...) -> None: ...

class AcquireRequest(_message.Message):
    __slots__ = ("client_id", "request_id", "names", "limit", "needed", "wait", "keep_place")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    NEEDED_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    KEEP_PLACE_FIELD_NUMBER: _ClassVar[int]
    client_id: int
    request_id: str
    names: _containers.RepeatedScalarFieldContainer[str]
    limit: int
    needed: int
    wait: _duration_pb2.Duration
    keep_place: bool
    def __init__(self, client_id: _Optional[int] = ..., request_id: _Optional[str] = ..., names: _Optional[_Iterable[str]] = ..., limit: _Optional[int] = ..., needed: _Optional[int] = ..., wait: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., keep_place: bool = ...) -> None: ...

class AcquireResponse(_message.Message):
    __slots__ = ("acquired", "names", "fencing_number")
    ACQUIRED_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    FENCING_NUMBER_FIELD_NUMBER: _ClassVar[int]
    acquired: bool
    names: _containers.RepeatedScalarFieldContainer[str]
    fencing_number: int
    def __init__(self, acquired: bool = ..., names: _Optional[_Iterable[str]] = ..., fencing_number: _Optional[int] = ...) -> None: ...

class ReleaseRequest(_message.Message):
    __slots__ = ("client_id", "request_id", "names")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    client_id: int
    request_id: str
    names: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, client_id: _Optional[int] = ..., request_id: _Optional[str] = ..., names: _Optional[_Iterable[str]] = ...) -> None: ...

class ReleaseResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetSemaphoreRequest(_message.Message):
    __slots__ = ("client_id", "namespace", "name")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    client_id: int
    namespace: str
    name: str
    def __init__(self, client_id: _Optional[int] = ..., namespace: _Optional[str] = ..., name: _Optional[str] = ...) -> None: ...

class GetSemaphoreResponse(_message.Message):
    __slots__ = ("limit", "holder_client_ids", "waiting")
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    HOLDER_CLIENT_IDS_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    limit: int
    holder_client_ids: _containers.RepeatedScalarFieldContainer[int]
    waiting: int
    def __init__(self, limit: _Optional[int] = ..., holder_client_ids: _Optional[_Iterable[int]] = ..., waiting: _Optional[int] = ...) -> None: ...

class CloseSemaphoreRequest(_message.Message):
    __slots__ = ("client_id", "namespace", "name")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    client_id: int
    namespace: str
    name: str
    def __init__(self, client_id: _Optional[int] = ..., namespace: _Optional[str] = ..., name: _Optional[str] = ...) -> None: ...

class CloseSemaphoreResponse(_message.Message):
    __slots__ = ("released",)
    RELEASED_FIELD_NUMBER: _ClassVar[int]
    released: int
    def __init__(self, released: _Optional[int] = ...) -> None: ...

class SetVariableRequest(_message.Message):
    __slots__ = ("client_id", "namespace", "name", "value")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    client_id: int
    namespace: str
    name: str
    value: StoredValue
    def __init__(self, client_id: _Optional[int] = ..., namespace: _Optional[str] = ..., name: _Optional[str] = ..., value: _Optional[_Union[StoredValue, _Mapping]] = ...) -> None: ...

class SetVariableResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetVariableRequest(_message.Message):
    __slots__ = ("client_id", "namespace", "name", "request_id", "wait", "keep_place")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    KEEP_PLACE_FIELD_NUMBER: _ClassVar[int]
    client_id: int
    namespace: str
    name: str
    request_id: str
    wait: _duration_pb2.Duration
    keep_place: bool
    def __init__(self, client_id: _Optional[int] = ..., namespace: _Optional[str] = ..., name: _Optional[str] = ..., request_id: _Optional[str] = ..., wait: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., keep_place: bool = ...) -> None: ...

class GetVariableResponse(_message.Message):
    __slots__ = ("found", "value")
    FOUND_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    found: bool
    value: StoredValue
    def __init__(self, found: bool = ..., value: _Optional[_Union[StoredValue, _Mapping]] = ...) -> None: ...

class DeleteVariableRequest(_message.Message):
    __slots__ = ("client_id", "namespace", "name")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    client_id: int
    namespace: str
    name: str
    def __init__(self, client_id: _Optional[int] = ..., namespace: _Optional[str] = ..., name: _Optional[str] = ...) -> None: ...

class DeleteVariableResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SetEventRequest(_message.Message):
    __slots__ = ("client_id", "namespace", "name", "clear")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    CLEAR_FIELD_NUMBER: _ClassVar[int]
    client_id: int
    namespace: str
    name: str
    clear: bool
    def __init__(self, client_id: _Optional[int] = ..., namespace: _Optional[str] = ..., name: _Optional[str] = ..., clear: bool = ...) -> None: ...

class SetEventResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetEventRequest(_message.Message):
    __slots__ = ("client_id", "namespace", "name", "request_id", "wait", "keep_place")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    KEEP_PLACE_FIELD_NUMBER: _ClassVar[int]
    client_id: int
    namespace: str
    name: str
    request_id: str
    wait: _duration_pb2.Duration
    keep_place: bool
    def __init__(self, client_id: _Optional[int] = ..., namespace: _Optional[str] = ..., name: _Optional[str] = ..., request_id: _Optional[str] = ..., wait: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., keep_place: bool = ...) -> None: ...

class GetEventResponse(_message.Message):
    __slots__ = ("set",)
    SET_FIELD_NUMBER: _ClassVar[int]
    set: bool
    def __init__(self, set: bool = ...) -> None: ...

class OpenQueueRequest(_message.Message):
    __slots__ = ("client_id", "namespace", "name", "max_size")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    MAX_SIZE_FIELD_NUMBER: _ClassVar[int]
    client_id: int
    namespace: str
    name: str
    max_size: int
    def __init__(self, client_id: _Optional[int] = ..., namespace: _Optional[str] = ..., name: _Optional[str] = ..., max_size: _Optional[int] = ...) -> None: ...

class OpenQueueResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PutInQueueRequest(_message.Message):
    __slots__ = ("client_id", "namespace", "name", "request_id", "wait", "keep_place", "max_size", "value")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    KEEP_PLACE_FIELD_NUMBER: _ClassVar[int]
    MAX_SIZE_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    client_id: int
    namespace: str
    name: str
    request_id: str
    wait: _duration_pb2.Duration
    keep_place: bool
    max_size: int
    value: StoredValue
    def __init__(self, client_id: _Optional[int] = ..., namespace: _Optional[str] = ..., name: _Optional[str] = ..., request_id: _Optional[str] = ..., wait: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., keep_place: bool = ..., max_size: _Optional[int] = ..., value: _Optional[_Union[StoredValue, _Mapping]] = ...) -> None: ...

class PutInQueueResponse(_message.Message):
    __slots__ = ("done",)
    DONE_FIELD_NUMBER: _ClassVar[int]
    done: bool
    def __init__(self, done: bool = ...) -> None: ...

class TakeFromQueueRequest(_message.Message):
    __slots__ = ("client_id", "namespace", "name", "request_id", "wait", "keep_place", "most")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    KEEP_PLACE_FIELD_NUMBER: _ClassVar[int]
    MOST_FIELD_NUMBER: _ClassVar[int]
    client_id: int
    namespace: str
    name: str
    request_id: str
    wait: _duration_pb2.Duration
    keep_place: bool
    most: int
    def __init__(self, client_id: _Optional[int] = ..., namespace: _Optional[str] = ..., name: _Optional[str] = ..., request_id: _Optional[str] = ..., wait: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., keep_place: bool = ..., most: _Optional[int] = ...) -> None: ...

class TakeFromQueueResponse(_message.Message):
    __slots__ = ("values",)
    VALUES_FIELD_NUMBER: _ClassVar[int]
    values: _containers.RepeatedCompositeFieldContainer[StoredValue]
    def __init__(self, values: _Optional[_Iterable[_Union[StoredValue, _Mapping]]] = ...) -> None: ...

class GetQueueRequest(_message.Message):
    __slots__ = ("client_id", "namespace", "name")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    client_id: int
    namespace: str
    name: str
    def __init__(self, client_id: _Optional[int] = ..., namespace: _Optional[str] = ..., name: _Optional[str] = ...) -> None: ...

class GetQueueResponse(_message.Message):
    __slots__ = ("size", "max_size", "waiting_puts", "waiting_takes")
    SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_SIZE_FIELD_NUMBER: _ClassVar[int]
    WAITING_PUTS_FIELD_NUMBER: _ClassVar[int]
    WAITING_TAKES_FIELD_NUMBER: _ClassVar[int]
    size: int
    max_size: int
    waiting_puts: int
    waiting_takes: int
    def __init__(self, size: _Optional[int] = ..., max_size: _Optional[int] = ..., waiting_puts: _Optional[int] = ..., waiting_takes: _Optional[int] = ...) -> None: ...

class CloseQueueRequest(_message.Message):
    __slots__ = ("client_id", "namespace", "name", "leave")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    LEAVE_FIELD_NUMBER: _ClassVar[int]
    client_id: int
    namespace: str
    name: str
    leave: bool
    def __init__(self, client_id: _Optional[int] = ..., namespace: _Optional[str] = ..., name: _Optional[str] = ..., leave: bool = ...) -> None: ...

class CloseQueueResponse(_message.Message):
    __slots__ = ("dropped",)
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    dropped: int
    def __init__(self, dropped: _Optional[int] = ...) -> None: ...

class TopicMessage(_message.Message):
    __slots__ = ("number", "time", "value")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    number: int
    time: _timestamp_pb2.Timestamp
    value: StoredValue
    def __init__(self, number: _Optional[int] = ..., time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., value: _Optional[_Union[StoredValue, _Mapping]] = ...) -> None: ...

class PublishToTopicRequest(_message.Message):
    __slots__ = ("client_id", "namespace", "name", "values")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    client_id: int
    namespace: str
    name: str
    values: _containers.RepeatedCompositeFieldContainer[StoredValue]
    def __init__(self, client_id: _Optional[int] = ..., namespace: _Optional[str] = ..., name: _Optional[str] = ..., values: _Optional[_Iterable[_Union[StoredValue, _Mapping]]] = ...) -> None: ...

class PublishToTopicResponse(_message.Message):
    __slots__ = ("number",)
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    number: int
    def __init__(self, number: _Optional[int] = ...) -> None: ...

class GetTopicRequest(_message.Message):
    __slots__ = ("client_id", "namespace", "name", "after", "later", "most", "wait")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    LATER_FIELD_NUMBER: _ClassVar[int]
    MOST_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    client_id: int
    namespace: str
    name: str
    after: int
    later: bool
    most: int
    wait: _duration_pb2.Duration
    def __init__(self, client_id: _Optional[int] = ..., namespace: _Optional[str] = ..., name: _Optional[str] = ..., after: _Optional[int] = ..., later: bool = ..., most: _Optional[int] = ..., wait: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class GetTopicResponse(_message.Message):
    __slots__ = ("messages", "number", "missed")
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    MISSED_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[TopicMessage]
    number: int
    missed: int
    def __init__(self, messages: _Optional[_Iterable[_Union[TopicMessage, _Mapping]]] = ..., number: _Optional[int] = ..., missed: _Optional[int] = ...) -> None: ...

class ListTopicsRequest(_message.Message):
    __slots__ = ("client_id", "namespace")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    client_id: int
    namespace: str
    def __init__(self, client_id: _Optional[int] = ..., namespace: _Optional[str] = ...) -> None: ...

class TopicInfo(_message.Message):
    __slots__ = ("name", "number", "messages", "bytes")
    NAME_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    name: str
    number: int
    messages: int
    bytes: int
    def __init__(self, name: _Optional[str] = ..., number: _Optional[int] = ..., messages: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...

class ListTopicsResponse(_message.Message):
    __slots__ = ("topics",)
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedCompositeFieldContainer[TopicInfo]
    def __init__(self, topics: _Optional[_Iterable[_Union[TopicInfo, _Mapping]]] = ...) -> None: ...

class SetMetadataRequest(_message.Message):
    __slots__ = ("client_id", "namespace", "path", "value")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    client_id: int
    namespace: str
    path: _containers.RepeatedScalarFieldContainer[str]
    value: _value_pb2.Value
    def __init__(self, client_id: _Optional[int] = ..., namespace: _Optional[str] = ..., path: _Optional[_Iterable[str]] = ..., value: _Optional[_Union[_value_pb2.Value, _Mapping]] = ...) -> None: ...

class SetMetadataResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetMetadataRequest(_message.Message):
    __slots__ = ("client_id", "namespace", "path")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    client_id: int
    namespace: str
    path: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, client_id: _Optional[int] = ..., namespace: _Optional[str] = ..., path: _Optional[_Iterable[str]] = ...) -> None: ...

class GetMetadataResponse(_message.Message):
    __slots__ = ("found", "value")
    FOUND_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    found: bool
    value: _value_pb2.Value
    def __init__(self, found: bool = ..., value: _Optional[_Union[_value_pb2.Value, _Mapping]] = ...) -> None: ...

class WithdrawRequest(_message.Message):
    __slots__ = ("client_id", "request_id")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    client_id: int
    request_id: str
    def __init__(self, client_id: _Optional[int] = ..., request_id: _Optional[str] = ...) -> None: ...

class WithdrawResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class AcknowledgeRequest(_message.Message):
    __slots__ = ("client_id", "request_id")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    client_id: int
    request_id: str
    def __init__(self, client_id: _Optional[int] = ..., request_id: _Optional[str] = ...) -> None: ...

class AcknowledgeResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
