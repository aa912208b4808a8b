from millrace._pb.millrace.host.v1 import borrow_pb2 as _borrow_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Endpoint(_message.Message):
    __slots__ = ("version", "address", "memory_key", "memory_base", "memory_bytes", "worker_uuid", "incarnation", "nonce", "token", "device", "ring", "rdma", "no_inline")
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
    RING_FIELD_NUMBER: _ClassVar[int]
    RDMA_FIELD_NUMBER: _ClassVar[int]
    NO_INLINE_FIELD_NUMBER: _ClassVar[int]
    version: str
    address: bytes
    memory_key: bytes
    memory_base: int
    memory_bytes: int
    worker_uuid: bytes
    incarnation: bytes
    nonce: int
    token: int
    device: _borrow_pb2.DeviceMemory
    ring: StagingRing
    rdma: bool
    no_inline: bool
    def __init__(self, version: _Optional[str] = ..., address: _Optional[bytes] = ..., memory_key: _Optional[bytes] = ..., memory_base: _Optional[int] = ..., memory_bytes: _Optional[int] = ..., worker_uuid: _Optional[bytes] = ..., incarnation: _Optional[bytes] = ..., nonce: _Optional[int] = ..., token: _Optional[int] = ..., device: _Optional[_Union[_borrow_pb2.DeviceMemory, _Mapping]] = ..., ring: _Optional[_Union[StagingRing, _Mapping]] = ..., rdma: bool = ..., no_inline: bool = ...) -> None: ...

class StagingRing(_message.Message):
    __slots__ = ("key", "base", "bytes")
    KEY_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    key: bytes
    base: int
    bytes: int
    def __init__(self, key: _Optional[bytes] = ..., base: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...

class ConnectRequest(_message.Message):
    __slots__ = ("reader", "close_token", "check_token", "reader_worker_id")
    READER_FIELD_NUMBER: _ClassVar[int]
    CLOSE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    CHECK_TOKEN_FIELD_NUMBER: _ClassVar[int]
    READER_WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    reader: Endpoint
    close_token: int
    check_token: int
    reader_worker_id: int
    def __init__(self, reader: _Optional[_Union[Endpoint, _Mapping]] = ..., close_token: _Optional[int] = ..., check_token: _Optional[int] = ..., reader_worker_id: _Optional[int] = ...) -> None: ...

class ConnectResponse(_message.Message):
    __slots__ = ("source", "ended")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    source: Endpoint
    ended: bool
    def __init__(self, source: _Optional[_Union[Endpoint, _Mapping]] = ..., ended: bool = ...) -> None: ...
