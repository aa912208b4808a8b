import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PeerRole(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PEER_ROLE_UNSPECIFIED: _ClassVar[PeerRole]
    PEER_ROLE_LEADER: _ClassVar[PeerRole]
    PEER_ROLE_FOLLOWER: _ClassVar[PeerRole]
    PEER_ROLE_JOINING: _ClassVar[PeerRole]
    PEER_ROLE_AWAY: _ClassVar[PeerRole]
PEER_ROLE_UNSPECIFIED: PeerRole
PEER_ROLE_LEADER: PeerRole
PEER_ROLE_FOLLOWER: PeerRole
PEER_ROLE_JOINING: PeerRole
PEER_ROLE_AWAY: PeerRole

class Peer(_message.Message):
    __slots__ = ("address", "client_address", "role", "votes", "term", "index", "behind", "silence", "version", "trouble")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    VOTES_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    BEHIND_FIELD_NUMBER: _ClassVar[int]
    SILENCE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    TROUBLE_FIELD_NUMBER: _ClassVar[int]
    address: str
    client_address: str
    role: PeerRole
    votes: bool
    term: int
    index: int
    behind: int
    silence: _duration_pb2.Duration
    version: str
    trouble: str
    def __init__(self, address: _Optional[str] = ..., client_address: _Optional[str] = ..., role: _Optional[_Union[PeerRole, str]] = ..., votes: bool = ..., term: _Optional[int] = ..., index: _Optional[int] = ..., behind: _Optional[int] = ..., silence: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., version: _Optional[str] = ..., trouble: _Optional[str] = ...) -> None: ...

class ListPeersRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListPeersResponse(_message.Message):
    __slots__ = ("peers",)
    PEERS_FIELD_NUMBER: _ClassVar[int]
    peers: _containers.RepeatedCompositeFieldContainer[Peer]
    def __init__(self, peers: _Optional[_Iterable[_Union[Peer, _Mapping]]] = ...) -> None: ...

class AddPeerRequest(_message.Message):
    __slots__ = ("address",)
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    address: str
    def __init__(self, address: _Optional[str] = ...) -> None: ...

class AddPeerResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RemovePeerRequest(_message.Message):
    __slots__ = ("address",)
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    address: str
    def __init__(self, address: _Optional[str] = ...) -> None: ...

class RemovePeerResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
