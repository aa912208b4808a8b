from millrace._pb.millrace.v1 import plugin_service_pb2 as _plugin_service_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class FollowPluginsRequest(_message.Message):
    __slots__ = ("worker", "revision", "failures")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    worker: str
    revision: int
    failures: _containers.RepeatedCompositeFieldContainer[FailedPlugin]
    def __init__(self, worker: _Optional[str] = ..., revision: _Optional[int] = ..., failures: _Optional[_Iterable[_Union[FailedPlugin, _Mapping]]] = ...) -> None: ...

class FailedPlugin(_message.Message):
    __slots__ = ("version", "outcome")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    version: int
    outcome: _plugin_service_pb2.PluginOutcome
    def __init__(self, version: _Optional[int] = ..., outcome: _Optional[_Union[_plugin_service_pb2.PluginOutcome, _Mapping]] = ...) -> None: ...

class FollowPluginsResponse(_message.Message):
    __slots__ = ("revision", "plugins", "more")
    REVISION_FIELD_NUMBER: _ClassVar[int]
    PLUGINS_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    revision: int
    plugins: _containers.RepeatedCompositeFieldContainer[_plugin_service_pb2.Plugin]
    more: bool
    def __init__(self, revision: _Optional[int] = ..., plugins: _Optional[_Iterable[_Union[_plugin_service_pb2.Plugin, _Mapping]]] = ..., more: bool = ...) -> None: ...
