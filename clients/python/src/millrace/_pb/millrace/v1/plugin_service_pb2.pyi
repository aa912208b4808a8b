from millrace._pb.millrace.v1 import executor_service_pb2 as _executor_service_pb2
from millrace._pb.millrace.v1 import task_pb2 as _task_pb2
from millrace._pb.millrace.v1 import value_pb2 as _value_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class FunctionCall(_message.Message):
    __slots__ = ("name", "function", "arguments")
    NAME_FIELD_NUMBER: _ClassVar[int]
    FUNCTION_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    name: str
    function: _task_pb2.Function
    arguments: _value_pb2.Arguments
    def __init__(self, name: _Optional[str] = ..., function: _Optional[_Union[_task_pb2.Function, _Mapping]] = ..., arguments: _Optional[_Union[_value_pb2.Arguments, _Mapping]] = ...) -> None: ...

class Plugin(_message.Message):
    __slots__ = ("name", "setup", "teardown", "version")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SETUP_FIELD_NUMBER: _ClassVar[int]
    TEARDOWN_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    name: str
    setup: FunctionCall
    teardown: FunctionCall
    version: int
    def __init__(self, name: _Optional[str] = ..., setup: _Optional[_Union[FunctionCall, _Mapping]] = ..., teardown: _Optional[_Union[FunctionCall, _Mapping]] = ..., version: _Optional[int] = ...) -> None: ...

class RegisterPluginRequest(_message.Message):
    __slots__ = ("plugin", "idempotent")
    PLUGIN_FIELD_NUMBER: _ClassVar[int]
    IDEMPOTENT_FIELD_NUMBER: _ClassVar[int]
    plugin: Plugin
    idempotent: bool
    def __init__(self, plugin: _Optional[_Union[Plugin, _Mapping]] = ..., idempotent: bool = ...) -> None: ...

class RegisterPluginResponse(_message.Message):
    __slots__ = ("registered", "workers")
    REGISTERED_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    registered: bool
    workers: _containers.RepeatedCompositeFieldContainer[PluginOutcome]
    def __init__(self, registered: bool = ..., workers: _Optional[_Iterable[_Union[PluginOutcome, _Mapping]]] = ...) -> None: ...

class PluginOutcome(_message.Message):
    __slots__ = ("worker", "failures")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    worker: str
    failures: _containers.RepeatedCompositeFieldContainer[_executor_service_pb2.FunctionResult]
    def __init__(self, worker: _Optional[str] = ..., failures: _Optional[_Iterable[_Union[_executor_service_pb2.FunctionResult, _Mapping]]] = ...) -> None: ...

class UnregisterPluginRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class UnregisterPluginResponse(_message.Message):
    __slots__ = ("workers",)
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    workers: _containers.RepeatedCompositeFieldContainer[PluginOutcome]
    def __init__(self, workers: _Optional[_Iterable[_Union[PluginOutcome, _Mapping]]] = ...) -> None: ...

class ListPluginsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListPluginsResponse(_message.Message):
    __slots__ = ("plugins",)
    PLUGINS_FIELD_NUMBER: _ClassVar[int]
    plugins: _containers.RepeatedCompositeFieldContainer[Plugin]
    def __init__(self, plugins: _Optional[_Iterable[_Union[Plugin, _Mapping]]] = ...) -> None: ...
