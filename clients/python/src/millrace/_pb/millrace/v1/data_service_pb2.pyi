import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from millrace._pb.millrace.v1 import error_pb2 as _error_pb2
from millrace._pb.millrace.v1 import log_pb2 as _log_pb2
from millrace._pb.millrace.v1 import memory_pb2 as _memory_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ObjectRef(_message.Message):
    __slots__ = ("task_id", "generation", "item")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    ITEM_FIELD_NUMBER: _ClassVar[int]
    task_id: int
    generation: int
    item: int
    def __init__(self, task_id: _Optional[int] = ..., generation: _Optional[int] = ..., item: _Optional[int] = ...) -> None: ...

class ObjectHead(_message.Message):
    __slots__ = ("object", "header", "frame_bytes")
    OBJECT_FIELD_NUMBER: _ClassVar[int]
    HEADER_FIELD_NUMBER: _ClassVar[int]
    FRAME_BYTES_FIELD_NUMBER: _ClassVar[int]
    object: ObjectRef
    header: bytes
    frame_bytes: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, object: _Optional[_Union[ObjectRef, _Mapping]] = ..., header: _Optional[bytes] = ..., frame_bytes: _Optional[_Iterable[int]] = ...) -> None: ...

class ReadObjectsRequest(_message.Message):
    __slots__ = ("objects", "reader_worker_id", "parts", "part")
    OBJECTS_FIELD_NUMBER: _ClassVar[int]
    READER_WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    objects: _containers.RepeatedCompositeFieldContainer[ObjectRef]
    reader_worker_id: int
    parts: int
    part: int
    def __init__(self, objects: _Optional[_Iterable[_Union[ObjectRef, _Mapping]]] = ..., reader_worker_id: _Optional[int] = ..., parts: _Optional[int] = ..., part: _Optional[int] = ...) -> None: ...

class ReadObjectsResponse(_message.Message):
    __slots__ = ("index", "head", "error", "frame", "offset", "data")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    HEAD_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    FRAME_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    index: int
    head: ObjectHead
    error: _error_pb2.TaskError
    frame: int
    offset: int
    data: bytes
    def __init__(self, index: _Optional[int] = ..., head: _Optional[_Union[ObjectHead, _Mapping]] = ..., error: _Optional[_Union[_error_pb2.TaskError, _Mapping]] = ..., frame: _Optional[int] = ..., offset: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class WriteObjectRequest(_message.Message):
    __slots__ = ("head", "frame", "offset", "data")
    HEAD_FIELD_NUMBER: _ClassVar[int]
    FRAME_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    head: ObjectHead
    frame: int
    offset: int
    data: bytes
    def __init__(self, head: _Optional[_Union[ObjectHead, _Mapping]] = ..., frame: _Optional[int] = ..., offset: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class WriteObjectResponse(_message.Message):
    __slots__ = ("bytes",)
    BYTES_FIELD_NUMBER: _ClassVar[int]
    bytes: int
    def __init__(self, bytes: _Optional[int] = ...) -> None: ...

class GetTaskLogsRequest(_message.Message):
    __slots__ = ("task_id",)
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    task_id: int
    def __init__(self, task_id: _Optional[int] = ...) -> None: ...

class GetTaskLogsResponse(_message.Message):
    __slots__ = ("text", "truncated")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TRUNCATED_FIELD_NUMBER: _ClassVar[int]
    text: str
    truncated: bool
    def __init__(self, text: _Optional[str] = ..., truncated: bool = ...) -> None: ...

class FollowLogsRequest(_message.Message):
    __slots__ = ("task_ids", "keys", "namespace", "after_position", "within", "until_now")
    TASK_IDS_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    AFTER_POSITION_FIELD_NUMBER: _ClassVar[int]
    WITHIN_FIELD_NUMBER: _ClassVar[int]
    UNTIL_NOW_FIELD_NUMBER: _ClassVar[int]
    task_ids: _containers.RepeatedScalarFieldContainer[int]
    keys: _containers.RepeatedScalarFieldContainer[str]
    namespace: str
    after_position: int
    within: _duration_pb2.Duration
    until_now: bool
    def __init__(self, task_ids: _Optional[_Iterable[int]] = ..., keys: _Optional[_Iterable[str]] = ..., namespace: _Optional[str] = ..., after_position: _Optional[int] = ..., within: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., until_now: bool = ...) -> None: ...

class FollowLogsResponse(_message.Message):
    __slots__ = ("outputs", "position")
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    outputs: _containers.RepeatedCompositeFieldContainer[TaskOutput]
    position: int
    def __init__(self, outputs: _Optional[_Iterable[_Union[TaskOutput, _Mapping]]] = ..., position: _Optional[int] = ...) -> None: ...

class TaskOutput(_message.Message):
    __slots__ = ("task_id", "attempt", "key", "namespace", "offset", "skipped_bytes", "stderr", "bytes", "text")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_BYTES_FIELD_NUMBER: _ClassVar[int]
    STDERR_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    task_id: int
    attempt: int
    key: str
    namespace: str
    offset: int
    skipped_bytes: int
    stderr: bool
    bytes: int
    text: str
    def __init__(self, task_id: _Optional[int] = ..., attempt: _Optional[int] = ..., key: _Optional[str] = ..., namespace: _Optional[str] = ..., offset: _Optional[int] = ..., skipped_bytes: _Optional[int] = ..., stderr: bool = ..., bytes: _Optional[int] = ..., text: _Optional[str] = ...) -> None: ...
