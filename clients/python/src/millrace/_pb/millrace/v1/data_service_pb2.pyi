from millrace._pb.millrace.v1 import memory_pb2 as _memory_pb2
from millrace._pb.millrace.v1 import task_pb2 as _task_pb2
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
    error: _task_pb2.TaskError
    frame: int
    offset: int
    data: bytes
    def __init__(self, index: _Optional[int] = ..., head: _Optional[_Union[ObjectHead, _Mapping]] = ..., error: _Optional[_Union[_task_pb2.TaskError, _Mapping]] = ..., frame: _Optional[int] = ..., offset: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

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

class AcquireReadLeasesRequest(_message.Message):
    __slots__ = ("objects", "reader_worker_id", "ttl_millis")
    OBJECTS_FIELD_NUMBER: _ClassVar[int]
    READER_WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    TTL_MILLIS_FIELD_NUMBER: _ClassVar[int]
    objects: _containers.RepeatedCompositeFieldContainer[ObjectRef]
    reader_worker_id: int
    ttl_millis: int
    def __init__(self, objects: _Optional[_Iterable[_Union[ObjectRef, _Mapping]]] = ..., reader_worker_id: _Optional[int] = ..., ttl_millis: _Optional[int] = ...) -> None: ...

class FrameLocation(_message.Message):
    __slots__ = ("offset", "bytes", "segment")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    offset: int
    bytes: int
    segment: int
    def __init__(self, offset: _Optional[int] = ..., bytes: _Optional[int] = ..., segment: _Optional[int] = ...) -> None: ...

class ReadLease(_message.Message):
    __slots__ = ("lease_id", "head", "frames", "refusal")
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    HEAD_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    lease_id: int
    head: ObjectHead
    frames: _containers.RepeatedCompositeFieldContainer[FrameLocation]
    refusal: str
    def __init__(self, lease_id: _Optional[int] = ..., head: _Optional[_Union[ObjectHead, _Mapping]] = ..., frames: _Optional[_Iterable[_Union[FrameLocation, _Mapping]]] = ..., refusal: _Optional[str] = ...) -> None: ...

class AcquireReadLeasesResponse(_message.Message):
    __slots__ = ("leases", "incarnation")
    LEASES_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    leases: _containers.RepeatedCompositeFieldContainer[ReadLease]
    incarnation: str
    def __init__(self, leases: _Optional[_Iterable[_Union[ReadLease, _Mapping]]] = ..., incarnation: _Optional[str] = ...) -> None: ...

class ReleaseReadLeasesRequest(_message.Message):
    __slots__ = ("lease_ids",)
    LEASE_IDS_FIELD_NUMBER: _ClassVar[int]
    lease_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, lease_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class ReleaseReadLeasesResponse(_message.Message):
    __slots__ = ("held",)
    HELD_FIELD_NUMBER: _ClassVar[int]
    held: _containers.RepeatedScalarFieldContainer[bool]
    def __init__(self, held: _Optional[_Iterable[bool]] = ...) -> None: ...

class LaneEndpoint(_message.Message):
    __slots__ = ("version", "address", "memory_key", "memory_base", "memory_bytes", "worker_uuid", "incarnation", "nonce", "token", "device")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_KEY_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BASE_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    WORKER_UUID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    version: str
    address: bytes
    memory_key: bytes
    memory_base: int
    memory_bytes: int
    worker_uuid: bytes
    incarnation: bytes
    nonce: int
    token: int
    device: DeviceMemory
    def __init__(self, version: _Optional[str] = ..., address: _Optional[bytes] = ..., memory_key: _Optional[bytes] = ..., memory_base: _Optional[int] = ..., memory_bytes: _Optional[int] = ..., worker_uuid: _Optional[bytes] = ..., incarnation: _Optional[bytes] = ..., nonce: _Optional[int] = ..., token: _Optional[int] = ..., device: _Optional[_Union[DeviceMemory, _Mapping]] = ...) -> None: ...

class DeviceMemory(_message.Message):
    __slots__ = ("ipc_handle", "device_uuid")
    IPC_HANDLE_FIELD_NUMBER: _ClassVar[int]
    DEVICE_UUID_FIELD_NUMBER: _ClassVar[int]
    ipc_handle: bytes
    device_uuid: bytes
    def __init__(self, ipc_handle: _Optional[bytes] = ..., device_uuid: _Optional[bytes] = ...) -> None: ...

class ConnectLaneRequest(_message.Message):
    __slots__ = ("reader", "reader_worker_id", "give_up_token", "served_token")
    READER_FIELD_NUMBER: _ClassVar[int]
    READER_WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    GIVE_UP_TOKEN_FIELD_NUMBER: _ClassVar[int]
    SERVED_TOKEN_FIELD_NUMBER: _ClassVar[int]
    reader: LaneEndpoint
    reader_worker_id: int
    give_up_token: int
    served_token: int
    def __init__(self, reader: _Optional[_Union[LaneEndpoint, _Mapping]] = ..., reader_worker_id: _Optional[int] = ..., give_up_token: _Optional[int] = ..., served_token: _Optional[int] = ...) -> None: ...

class ConnectLaneResponse(_message.Message):
    __slots__ = ("source", "lane_ended")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    LANE_ENDED_FIELD_NUMBER: _ClassVar[int]
    source: LaneEndpoint
    lane_ended: bool
    def __init__(self, source: _Optional[_Union[LaneEndpoint, _Mapping]] = ..., lane_ended: bool = ...) -> None: ...

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
