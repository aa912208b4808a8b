from millrace._pb.millrace.v1 import data_service_pb2 as _data_service_pb2
from millrace._pb.millrace.v1 import error_pb2 as _error_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Refusal(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REFUSAL_UNSPECIFIED: _ClassVar[Refusal]
    REFUSAL_NOT_HERE: _ClassVar[Refusal]
    REFUSAL_ELSEWHERE: _ClassVar[Refusal]
REFUSAL_UNSPECIFIED: Refusal
REFUSAL_NOT_HERE: Refusal
REFUSAL_ELSEWHERE: Refusal

class BorrowRequest(_message.Message):
    __slots__ = ("call", "hello", "acquire", "renew", "release", "create", "finish", "acquire_many", "stage", "unstage")
    CALL_FIELD_NUMBER: _ClassVar[int]
    HELLO_FIELD_NUMBER: _ClassVar[int]
    ACQUIRE_FIELD_NUMBER: _ClassVar[int]
    RENEW_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    CREATE_FIELD_NUMBER: _ClassVar[int]
    FINISH_FIELD_NUMBER: _ClassVar[int]
    ACQUIRE_MANY_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    UNSTAGE_FIELD_NUMBER: _ClassVar[int]
    call: int
    hello: BorrowHello
    acquire: BorrowAcquire
    renew: BorrowRenew
    release: BorrowRelease
    create: BorrowCreate
    finish: BorrowFinish
    acquire_many: BorrowAcquireMany
    stage: BorrowStage
    unstage: BorrowUnstage
    def __init__(self, call: _Optional[int] = ..., hello: _Optional[_Union[BorrowHello, _Mapping]] = ..., acquire: _Optional[_Union[BorrowAcquire, _Mapping]] = ..., renew: _Optional[_Union[BorrowRenew, _Mapping]] = ..., release: _Optional[_Union[BorrowRelease, _Mapping]] = ..., create: _Optional[_Union[BorrowCreate, _Mapping]] = ..., finish: _Optional[_Union[BorrowFinish, _Mapping]] = ..., acquire_many: _Optional[_Union[BorrowAcquireMany, _Mapping]] = ..., stage: _Optional[_Union[BorrowStage, _Mapping]] = ..., unstage: _Optional[_Union[BorrowUnstage, _Mapping]] = ...) -> None: ...

class BorrowResponse(_message.Message):
    __slots__ = ("call", "error", "welcome", "acquired", "renewed", "released", "created", "finished", "acquired_many", "staged")
    CALL_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    ACQUIRED_FIELD_NUMBER: _ClassVar[int]
    RENEWED_FIELD_NUMBER: _ClassVar[int]
    RELEASED_FIELD_NUMBER: _ClassVar[int]
    CREATED_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    ACQUIRED_MANY_FIELD_NUMBER: _ClassVar[int]
    STAGED_FIELD_NUMBER: _ClassVar[int]
    call: int
    error: _error_pb2.TaskError
    welcome: BorrowWelcome
    acquired: BorrowAcquired
    renewed: BorrowHeld
    released: BorrowHeld
    created: BorrowCreated
    finished: _data_service_pb2.WriteObjectResponse
    acquired_many: BorrowAcquiredMany
    staged: BorrowStaged
    def __init__(self, call: _Optional[int] = ..., error: _Optional[_Union[_error_pb2.TaskError, _Mapping]] = ..., welcome: _Optional[_Union[BorrowWelcome, _Mapping]] = ..., acquired: _Optional[_Union[BorrowAcquired, _Mapping]] = ..., renewed: _Optional[_Union[BorrowHeld, _Mapping]] = ..., released: _Optional[_Union[BorrowHeld, _Mapping]] = ..., created: _Optional[_Union[BorrowCreated, _Mapping]] = ..., finished: _Optional[_Union[_data_service_pb2.WriteObjectResponse, _Mapping]] = ..., acquired_many: _Optional[_Union[BorrowAcquiredMany, _Mapping]] = ..., staged: _Optional[_Union[BorrowStaged, _Mapping]] = ...) -> None: ...

class BorrowHello(_message.Message):
    __slots__ = ("token", "reader_worker_id", "write", "device", "object_index", "pinned", "notifications")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    READER_WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    WRITE_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    OBJECT_INDEX_FIELD_NUMBER: _ClassVar[int]
    PINNED_FIELD_NUMBER: _ClassVar[int]
    NOTIFICATIONS_FIELD_NUMBER: _ClassVar[int]
    token: str
    reader_worker_id: int
    write: bool
    device: bool
    object_index: bool
    pinned: bool
    notifications: bool
    def __init__(self, token: _Optional[str] = ..., reader_worker_id: _Optional[int] = ..., write: bool = ..., device: bool = ..., object_index: bool = ..., pinned: bool = ..., notifications: bool = ...) -> None: ...

class BorrowWelcome(_message.Message):
    __slots__ = ("worker_uuid", "incarnation", "nonce", "memory_bytes", "device", "object_index", "notifications", "stage_bytes")
    WORKER_UUID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    OBJECT_INDEX_FIELD_NUMBER: _ClassVar[int]
    NOTIFICATIONS_FIELD_NUMBER: _ClassVar[int]
    STAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    worker_uuid: bytes
    incarnation: bytes
    nonce: int
    memory_bytes: int
    device: DeviceMemory
    object_index: bool
    notifications: bool
    stage_bytes: int
    def __init__(self, worker_uuid: _Optional[bytes] = ..., incarnation: _Optional[bytes] = ..., nonce: _Optional[int] = ..., memory_bytes: _Optional[int] = ..., device: _Optional[_Union[DeviceMemory, _Mapping]] = ..., object_index: bool = ..., notifications: bool = ..., stage_bytes: _Optional[int] = ...) -> None: ...

class BorrowAcquireMany(_message.Message):
    __slots__ = ("ttl_millis", "task_ids", "generations", "items")
    TTL_MILLIS_FIELD_NUMBER: _ClassVar[int]
    TASK_IDS_FIELD_NUMBER: _ClassVar[int]
    GENERATIONS_FIELD_NUMBER: _ClassVar[int]
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    ttl_millis: int
    task_ids: _containers.RepeatedScalarFieldContainer[int]
    generations: _containers.RepeatedScalarFieldContainer[int]
    items: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, ttl_millis: _Optional[int] = ..., task_ids: _Optional[_Iterable[int]] = ..., generations: _Optional[_Iterable[int]] = ..., items: _Optional[_Iterable[int]] = ...) -> None: ...

class BorrowAcquiredMany(_message.Message):
    __slots__ = ("lease_ids", "refusals", "generations", "frames", "header_bytes", "frame_offsets", "frame_bytes", "headers", "frames_on_gpu")
    LEASE_IDS_FIELD_NUMBER: _ClassVar[int]
    REFUSALS_FIELD_NUMBER: _ClassVar[int]
    GENERATIONS_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    HEADER_BYTES_FIELD_NUMBER: _ClassVar[int]
    FRAME_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    FRAME_BYTES_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    FRAMES_ON_GPU_FIELD_NUMBER: _ClassVar[int]
    lease_ids: _containers.RepeatedScalarFieldContainer[int]
    refusals: _containers.RepeatedScalarFieldContainer[Refusal]
    generations: _containers.RepeatedScalarFieldContainer[int]
    frames: _containers.RepeatedScalarFieldContainer[int]
    header_bytes: _containers.RepeatedScalarFieldContainer[int]
    frame_offsets: _containers.RepeatedScalarFieldContainer[int]
    frame_bytes: _containers.RepeatedScalarFieldContainer[int]
    headers: bytes
    frames_on_gpu: _containers.RepeatedScalarFieldContainer[bool]
    def __init__(self, lease_ids: _Optional[_Iterable[int]] = ..., refusals: _Optional[_Iterable[_Union[Refusal, str]]] = ..., generations: _Optional[_Iterable[int]] = ..., frames: _Optional[_Iterable[int]] = ..., header_bytes: _Optional[_Iterable[int]] = ..., frame_offsets: _Optional[_Iterable[int]] = ..., frame_bytes: _Optional[_Iterable[int]] = ..., headers: _Optional[bytes] = ..., frames_on_gpu: _Optional[_Iterable[bool]] = ...) -> None: ...

class BorrowStage(_message.Message):
    __slots__ = ("lease_ids", "frames", "offsets", "bytes")
    LEASE_IDS_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    lease_ids: _containers.RepeatedScalarFieldContainer[int]
    frames: _containers.RepeatedScalarFieldContainer[int]
    offsets: _containers.RepeatedScalarFieldContainer[int]
    bytes: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, lease_ids: _Optional[_Iterable[int]] = ..., frames: _Optional[_Iterable[int]] = ..., offsets: _Optional[_Iterable[int]] = ..., bytes: _Optional[_Iterable[int]] = ...) -> None: ...

class BorrowStaged(_message.Message):
    __slots__ = ("place_id", "offset")
    PLACE_ID_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    place_id: int
    offset: int
    def __init__(self, place_id: _Optional[int] = ..., offset: _Optional[int] = ...) -> None: ...

class BorrowUnstage(_message.Message):
    __slots__ = ("place_id",)
    PLACE_ID_FIELD_NUMBER: _ClassVar[int]
    place_id: int
    def __init__(self, place_id: _Optional[int] = ...) -> None: ...

class BorrowRenew(_message.Message):
    __slots__ = ("lease_ids", "ttl_millis")
    LEASE_IDS_FIELD_NUMBER: _ClassVar[int]
    TTL_MILLIS_FIELD_NUMBER: _ClassVar[int]
    lease_ids: _containers.RepeatedScalarFieldContainer[int]
    ttl_millis: int
    def __init__(self, lease_ids: _Optional[_Iterable[int]] = ..., ttl_millis: _Optional[int] = ...) -> None: ...

class BorrowCreate(_message.Message):
    __slots__ = ("head",)
    HEAD_FIELD_NUMBER: _ClassVar[int]
    head: _data_service_pb2.ObjectHead
    def __init__(self, head: _Optional[_Union[_data_service_pb2.ObjectHead, _Mapping]] = ...) -> None: ...

class BorrowCreated(_message.Message):
    __slots__ = ("place_id", "frames")
    PLACE_ID_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    place_id: int
    frames: _containers.RepeatedCompositeFieldContainer[FrameLocation]
    def __init__(self, place_id: _Optional[int] = ..., frames: _Optional[_Iterable[_Union[FrameLocation, _Mapping]]] = ...) -> None: ...

class BorrowFinish(_message.Message):
    __slots__ = ("place_id", "commit")
    PLACE_ID_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    place_id: int
    commit: bool
    def __init__(self, place_id: _Optional[int] = ..., commit: bool = ...) -> None: ...

class BorrowAcquire(_message.Message):
    __slots__ = ("objects", "reader_worker_id", "ttl_millis", "keeps", "needs")
    OBJECTS_FIELD_NUMBER: _ClassVar[int]
    READER_WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    TTL_MILLIS_FIELD_NUMBER: _ClassVar[int]
    KEEPS_FIELD_NUMBER: _ClassVar[int]
    NEEDS_FIELD_NUMBER: _ClassVar[int]
    objects: _containers.RepeatedCompositeFieldContainer[_data_service_pb2.ObjectRef]
    reader_worker_id: int
    ttl_millis: int
    keeps: bool
    needs: bool
    def __init__(self, objects: _Optional[_Iterable[_Union[_data_service_pb2.ObjectRef, _Mapping]]] = ..., reader_worker_id: _Optional[int] = ..., ttl_millis: _Optional[int] = ..., keeps: bool = ..., needs: bool = ...) -> None: ...

class ReadLease(_message.Message):
    __slots__ = ("lease_id", "head", "frames", "refusal")
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    HEAD_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    lease_id: int
    head: _data_service_pb2.ObjectHead
    frames: _containers.RepeatedCompositeFieldContainer[FrameLocation]
    refusal: Refusal
    def __init__(self, lease_id: _Optional[int] = ..., head: _Optional[_Union[_data_service_pb2.ObjectHead, _Mapping]] = ..., frames: _Optional[_Iterable[_Union[FrameLocation, _Mapping]]] = ..., refusal: _Optional[_Union[Refusal, str]] = ...) -> None: ...

class BorrowAcquired(_message.Message):
    __slots__ = ("leases", "incarnation")
    LEASES_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    leases: _containers.RepeatedCompositeFieldContainer[ReadLease]
    incarnation: str
    def __init__(self, leases: _Optional[_Iterable[_Union[ReadLease, _Mapping]]] = ..., incarnation: _Optional[str] = ...) -> None: ...

class BorrowRelease(_message.Message):
    __slots__ = ("lease_ids",)
    LEASE_IDS_FIELD_NUMBER: _ClassVar[int]
    lease_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, lease_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class BorrowHeld(_message.Message):
    __slots__ = ("held",)
    HELD_FIELD_NUMBER: _ClassVar[int]
    held: _containers.RepeatedScalarFieldContainer[bool]
    def __init__(self, held: _Optional[_Iterable[bool]] = ...) -> None: ...

class FrameLocation(_message.Message):
    __slots__ = ("offset", "bytes")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    offset: int
    bytes: int
    def __init__(self, offset: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...

class DeviceMemory(_message.Message):
    __slots__ = ("ipc_handle", "device_uuid")
    IPC_HANDLE_FIELD_NUMBER: _ClassVar[int]
    DEVICE_UUID_FIELD_NUMBER: _ClassVar[int]
    ipc_handle: bytes
    device_uuid: bytes
    def __init__(self, ipc_handle: _Optional[bytes] = ..., device_uuid: _Optional[bytes] = ...) -> None: ...
