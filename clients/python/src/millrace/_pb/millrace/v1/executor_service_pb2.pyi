import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from millrace._pb.millrace.v1 import error_pb2 as _error_pb2
from millrace._pb.millrace.v1 import task_pb2 as _task_pb2
from millrace._pb.millrace.v1 import value_pb2 as _value_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ProcessScope(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PROCESS_SCOPE_UNSPECIFIED: _ClassVar[ProcessScope]
    PROCESS_SCOPE_ALL: _ClassVar[ProcessScope]
    PROCESS_SCOPE_ONE: _ClassVar[ProcessScope]

class ExecutorState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    EXECUTOR_STATE_UNSPECIFIED: _ClassVar[ExecutorState]
    EXECUTOR_STATE_STARTING: _ClassVar[ExecutorState]
    EXECUTOR_STATE_SPARE: _ClassVar[ExecutorState]
    EXECUTOR_STATE_IDLE: _ClassVar[ExecutorState]
    EXECUTOR_STATE_RUNNING: _ClassVar[ExecutorState]
    EXECUTOR_STATE_BLOCKED: _ClassVar[ExecutorState]
PROCESS_SCOPE_UNSPECIFIED: ProcessScope
PROCESS_SCOPE_ALL: ProcessScope
PROCESS_SCOPE_ONE: ProcessScope
EXECUTOR_STATE_UNSPECIFIED: ExecutorState
EXECUTOR_STATE_STARTING: ExecutorState
EXECUTOR_STATE_SPARE: ExecutorState
EXECUTOR_STATE_IDLE: ExecutorState
EXECUTOR_STATE_RUNNING: ExecutorState
EXECUTOR_STATE_BLOCKED: ExecutorState

class RunFunctionRequest(_message.Message):
    __slots__ = ("name", "function", "arguments", "processes", "no_wait")
    NAME_FIELD_NUMBER: _ClassVar[int]
    FUNCTION_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    PROCESSES_FIELD_NUMBER: _ClassVar[int]
    NO_WAIT_FIELD_NUMBER: _ClassVar[int]
    name: str
    function: _task_pb2.Function
    arguments: _value_pb2.Arguments
    processes: ProcessScope
    no_wait: bool
    def __init__(self, name: _Optional[str] = ..., function: _Optional[_Union[_task_pb2.Function, _Mapping]] = ..., arguments: _Optional[_Union[_value_pb2.Arguments, _Mapping]] = ..., processes: _Optional[_Union[ProcessScope, str]] = ..., no_wait: bool = ...) -> None: ...

class RunFunctionResponse(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[FunctionResult]
    def __init__(self, results: _Optional[_Iterable[_Union[FunctionResult, _Mapping]]] = ...) -> None: ...

class RestartExecutorsRequest(_message.Message):
    __slots__ = ("executor",)
    EXECUTOR_FIELD_NUMBER: _ClassVar[int]
    executor: str
    def __init__(self, executor: _Optional[str] = ...) -> None: ...

class RestartExecutorsResponse(_message.Message):
    __slots__ = ("ended",)
    ENDED_FIELD_NUMBER: _ClassVar[int]
    ended: int
    def __init__(self, ended: _Optional[int] = ...) -> None: ...

class GetProfileRequest(_message.Message):
    __slots__ = ("ops", "key", "start_time", "end_time", "max_calls")
    OPS_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    START_TIME_FIELD_NUMBER: _ClassVar[int]
    END_TIME_FIELD_NUMBER: _ClassVar[int]
    MAX_CALLS_FIELD_NUMBER: _ClassVar[int]
    ops: _containers.RepeatedScalarFieldContainer[str]
    key: str
    start_time: _timestamp_pb2.Timestamp
    end_time: _timestamp_pb2.Timestamp
    max_calls: int
    def __init__(self, ops: _Optional[_Iterable[str]] = ..., key: _Optional[str] = ..., start_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., end_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., max_calls: _Optional[int] = ...) -> None: ...

class GetProfileResponse(_message.Message):
    __slots__ = ("calls", "samples", "interval", "missing_processes")
    CALLS_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    INTERVAL_FIELD_NUMBER: _ClassVar[int]
    MISSING_PROCESSES_FIELD_NUMBER: _ClassVar[int]
    calls: _containers.RepeatedCompositeFieldContainer[ProfileCall]
    samples: int
    interval: _duration_pb2.Duration
    missing_processes: int
    def __init__(self, calls: _Optional[_Iterable[_Union[ProfileCall, _Mapping]]] = ..., samples: _Optional[int] = ..., interval: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., missing_processes: _Optional[int] = ...) -> None: ...

class ProfileCall(_message.Message):
    __slots__ = ("caller", "samples", "name", "file", "first_line", "line", "text")
    CALLER_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    FILE_FIELD_NUMBER: _ClassVar[int]
    FIRST_LINE_FIELD_NUMBER: _ClassVar[int]
    LINE_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    caller: int
    samples: int
    name: str
    file: str
    first_line: int
    line: int
    text: str
    def __init__(self, caller: _Optional[int] = ..., samples: _Optional[int] = ..., name: _Optional[str] = ..., file: _Optional[str] = ..., first_line: _Optional[int] = ..., line: _Optional[int] = ..., text: _Optional[str] = ...) -> None: ...

class DescribeExecutorsRequest(_message.Message):
    __slots__ = ("limit",)
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    limit: int
    def __init__(self, limit: _Optional[int] = ...) -> None: ...

class DescribeExecutorsResponse(_message.Message):
    __slots__ = ("processes", "process_count")
    PROCESSES_FIELD_NUMBER: _ClassVar[int]
    PROCESS_COUNT_FIELD_NUMBER: _ClassVar[int]
    processes: _containers.RepeatedCompositeFieldContainer[ExecutorProcess]
    process_count: int
    def __init__(self, processes: _Optional[_Iterable[_Union[ExecutorProcess, _Mapping]]] = ..., process_count: _Optional[int] = ...) -> None: ...

class ExecutorProcess(_message.Message):
    __slots__ = ("kind", "slot", "pid", "state", "state_time", "task_id", "attempt", "key", "op", "queued_tasks", "finished_tasks", "create_time", "memory_bytes", "language")
    KIND_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    STATE_TIME_FIELD_NUMBER: _ClassVar[int]
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    OP_FIELD_NUMBER: _ClassVar[int]
    QUEUED_TASKS_FIELD_NUMBER: _ClassVar[int]
    FINISHED_TASKS_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    LANGUAGE_FIELD_NUMBER: _ClassVar[int]
    kind: str
    slot: int
    pid: int
    state: ExecutorState
    state_time: _timestamp_pb2.Timestamp
    task_id: int
    attempt: int
    key: str
    op: str
    queued_tasks: int
    finished_tasks: int
    create_time: _timestamp_pb2.Timestamp
    memory_bytes: int
    language: str
    def __init__(self, kind: _Optional[str] = ..., slot: _Optional[int] = ..., pid: _Optional[int] = ..., state: _Optional[_Union[ExecutorState, str]] = ..., state_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., task_id: _Optional[int] = ..., attempt: _Optional[int] = ..., key: _Optional[str] = ..., op: _Optional[str] = ..., queued_tasks: _Optional[int] = ..., finished_tasks: _Optional[int] = ..., create_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., memory_bytes: _Optional[int] = ..., language: _Optional[str] = ...) -> None: ...

class FunctionResult(_message.Message):
    __slots__ = ("slot", "pid", "value", "frames", "error")
    SLOT_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    slot: int
    pid: int
    value: _value_pb2.Value
    frames: _containers.RepeatedScalarFieldContainer[bytes]
    error: _error_pb2.TaskError
    def __init__(self, slot: _Optional[int] = ..., pid: _Optional[int] = ..., value: _Optional[_Union[_value_pb2.Value, _Mapping]] = ..., frames: _Optional[_Iterable[bytes]] = ..., error: _Optional[_Union[_error_pb2.TaskError, _Mapping]] = ...) -> None: ...
