from millrace._pb.millrace.v1 import error_pb2 as _error_pb2
from millrace._pb.millrace.v1 import memory_pb2 as _memory_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ObjectRef(_message.Message):
    __slots__ = ("task_id", "generation")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    task_id: int
    generation: int
    def __init__(self, task_id: _Optional[int] = ..., generation: _Optional[int] = ...) -> None: ...

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
