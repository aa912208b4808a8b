import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from millrace._pb.millrace.v1 import cluster_pb2 as _cluster_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Client(_message.Message):
    __slots__ = ("client_id", "name", "namespace", "origin", "lease_ttl", "create_time", "last_seen_time", "held_tasks", "revision")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    LEASE_TTL_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_FIELD_NUMBER: _ClassVar[int]
    LAST_SEEN_TIME_FIELD_NUMBER: _ClassVar[int]
    HELD_TASKS_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    client_id: int
    name: str
    namespace: str
    origin: str
    lease_ttl: _duration_pb2.Duration
    create_time: _timestamp_pb2.Timestamp
    last_seen_time: _timestamp_pb2.Timestamp
    held_tasks: int
    revision: int
    def __init__(self, client_id: _Optional[int] = ..., name: _Optional[str] = ..., namespace: _Optional[str] = ..., origin: _Optional[str] = ..., lease_ttl: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., create_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., last_seen_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., held_tasks: _Optional[int] = ..., revision: _Optional[int] = ...) -> None: ...

class OpenClientRequest(_message.Message):
    __slots__ = ("name", "namespace", "lease_ttl", "api_version", "origin", "worker")
    NAME_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    LEASE_TTL_FIELD_NUMBER: _ClassVar[int]
    API_VERSION_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    name: str
    namespace: str
    lease_ttl: _duration_pb2.Duration
    api_version: str
    origin: str
    worker: str
    def __init__(self, name: _Optional[str] = ..., namespace: _Optional[str] = ..., lease_ttl: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., api_version: _Optional[str] = ..., origin: _Optional[str] = ..., worker: _Optional[str] = ...) -> None: ...

class OpenClientResponse(_message.Message):
    __slots__ = ("client", "cluster")
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    client: Client
    cluster: _cluster_pb2.ClusterInfo
    def __init__(self, client: _Optional[_Union[Client, _Mapping]] = ..., cluster: _Optional[_Union[_cluster_pb2.ClusterInfo, _Mapping]] = ...) -> None: ...

class RenewClientRequest(_message.Message):
    __slots__ = ("client_id",)
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    client_id: int
    def __init__(self, client_id: _Optional[int] = ...) -> None: ...

class RenewClientResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CloseClientRequest(_message.Message):
    __slots__ = ("client_id",)
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    client_id: int
    def __init__(self, client_id: _Optional[int] = ...) -> None: ...

class CloseClientResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListClientsRequest(_message.Message):
    __slots__ = ("page_size", "page_token")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListClientsResponse(_message.Message):
    __slots__ = ("clients", "next_page_token")
    CLIENTS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    clients: _containers.RepeatedCompositeFieldContainer[Client]
    next_page_token: str
    def __init__(self, clients: _Optional[_Iterable[_Union[Client, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...
