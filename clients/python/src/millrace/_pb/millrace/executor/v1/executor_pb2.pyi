from millrace._pb.millrace.v1 import error_pb2 as _error_pb2
from millrace._pb.millrace.v1 import task_pb2 as _task_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ToExecutor(_message.Message):
    __slots__ = ("hello", "ops", "functions", "runs", "allocated", "cancellations", "shutdown", "attach", "detach", "dropped_functions", "give_back")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    OPS_FIELD_NUMBER: _ClassVar[int]
    FUNCTIONS_FIELD_NUMBER: _ClassVar[int]
    RUNS_FIELD_NUMBER: _ClassVar[int]
    ALLOCATED_FIELD_NUMBER: _ClassVar[int]
    CANCELLATIONS_FIELD_NUMBER: _ClassVar[int]
    SHUTDOWN_FIELD_NUMBER: _ClassVar[int]
    ATTACH_FIELD_NUMBER: _ClassVar[int]
    DETACH_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FUNCTIONS_FIELD_NUMBER: _ClassVar[int]
    GIVE_BACK_FIELD_NUMBER: _ClassVar[int]
    hello: ExecutorHello
    ops: _containers.RepeatedCompositeFieldContainer[OpDefinition]
    functions: _containers.RepeatedCompositeFieldContainer[_task_pb2.Function]
    runs: _containers.RepeatedCompositeFieldContainer[ExecutorRun]
    allocated: _containers.RepeatedCompositeFieldContainer[ExecutorAllocated]
    cancellations: _containers.RepeatedCompositeFieldContainer[AttemptRef]
    shutdown: bool
    attach: _containers.RepeatedCompositeFieldContainer[ExecutorAttach]
    detach: _containers.RepeatedCompositeFieldContainer[ExecutorDetach]
    dropped_functions: _containers.RepeatedScalarFieldContainer[bytes]
    give_back: bool
    def __init__(self, hello: _Optional[_Union[ExecutorHello, _Mapping]] = ..., ops: _Optional[_Iterable[_Union[OpDefinition, _Mapping]]] = ..., functions: _Optional[_Iterable[_Union[_task_pb2.Function, _Mapping]]] = ..., runs: _Optional[_Iterable[_Union[ExecutorRun, _Mapping]]] = ..., allocated: _Optional[_Iterable[_Union[ExecutorAllocated, _Mapping]]] = ..., cancellations: _Optional[_Iterable[_Union[AttemptRef, _Mapping]]] = ..., shutdown: bool = ..., attach: _Optional[_Iterable[_Union[ExecutorAttach, _Mapping]]] = ..., detach: _Optional[_Iterable[_Union[ExecutorDetach, _Mapping]]] = ..., dropped_functions: _Optional[_Iterable[bytes]] = ..., give_back: bool = ...) -> None: ...

class FromExecutor(_message.Message):
    __slots__ = ("ready", "started", "allocate", "finished", "logs", "release", "loaded")
    READY_FIELD_NUMBER: _ClassVar[int]
    STARTED_FIELD_NUMBER: _ClassVar[int]
    ALLOCATE_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    LOGS_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    LOADED_FIELD_NUMBER: _ClassVar[int]
    ready: ExecutorReady
    started: _containers.RepeatedCompositeFieldContainer[AttemptRef]
    allocate: _containers.RepeatedCompositeFieldContainer[ExecutorAllocate]
    finished: _containers.RepeatedCompositeFieldContainer[ExecutorFinished]
    logs: _containers.RepeatedCompositeFieldContainer[ExecutorLog]
    release: _containers.RepeatedCompositeFieldContainer[ExecutorRelease]
    loaded: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, ready: _Optional[_Union[ExecutorReady, _Mapping]] = ..., started: _Optional[_Iterable[_Union[AttemptRef, _Mapping]]] = ..., allocate: _Optional[_Iterable[_Union[ExecutorAllocate, _Mapping]]] = ..., finished: _Optional[_Iterable[_Union[ExecutorFinished, _Mapping]]] = ..., logs: _Optional[_Iterable[_Union[ExecutorLog, _Mapping]]] = ..., release: _Optional[_Iterable[_Union[ExecutorRelease, _Mapping]]] = ..., loaded: _Optional[_Iterable[str]] = ...) -> None: ...

class ExecutorHello(_message.Message):
    __slots__ = ("protocol", "worker_name", "worker_id", "slab_bytes", "inline_bytes", "scheduler_address", "scratch_directory", "device", "preload", "spare")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    WORKER_NAME_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    SLAB_BYTES_FIELD_NUMBER: _ClassVar[int]
    INLINE_BYTES_FIELD_NUMBER: _ClassVar[int]
    SCHEDULER_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    SCRATCH_DIRECTORY_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    PRELOAD_FIELD_NUMBER: _ClassVar[int]
    SPARE_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    worker_name: str
    worker_id: int
    slab_bytes: int
    inline_bytes: int
    scheduler_address: str
    scratch_directory: str
    device: ExecutorDevice
    preload: _containers.RepeatedScalarFieldContainer[str]
    spare: bool
    def __init__(self, protocol: _Optional[int] = ..., worker_name: _Optional[str] = ..., worker_id: _Optional[int] = ..., slab_bytes: _Optional[int] = ..., inline_bytes: _Optional[int] = ..., scheduler_address: _Optional[str] = ..., scratch_directory: _Optional[str] = ..., device: _Optional[_Union[ExecutorDevice, _Mapping]] = ..., preload: _Optional[_Iterable[str]] = ..., spare: bool = ...) -> None: ...

class ExecutorDevice(_message.Message):
    __slots__ = ("uuid", "ordinal", "memory_handle", "header", "alignment", "driver", "arena_bytes", "neighbours", "arena_libraries")
    UUID_FIELD_NUMBER: _ClassVar[int]
    ORDINAL_FIELD_NUMBER: _ClassVar[int]
    MEMORY_HANDLE_FIELD_NUMBER: _ClassVar[int]
    HEADER_FIELD_NUMBER: _ClassVar[int]
    ALIGNMENT_FIELD_NUMBER: _ClassVar[int]
    DRIVER_FIELD_NUMBER: _ClassVar[int]
    ARENA_BYTES_FIELD_NUMBER: _ClassVar[int]
    NEIGHBOURS_FIELD_NUMBER: _ClassVar[int]
    ARENA_LIBRARIES_FIELD_NUMBER: _ClassVar[int]
    uuid: bytes
    ordinal: int
    memory_handle: bytes
    header: bytes
    alignment: int
    driver: str
    arena_bytes: int
    neighbours: int
    arena_libraries: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, uuid: _Optional[bytes] = ..., ordinal: _Optional[int] = ..., memory_handle: _Optional[bytes] = ..., header: _Optional[bytes] = ..., alignment: _Optional[int] = ..., driver: _Optional[str] = ..., arena_bytes: _Optional[int] = ..., neighbours: _Optional[int] = ..., arena_libraries: _Optional[_Iterable[str]] = ...) -> None: ...

class ExecutorReady(_message.Message):
    __slots__ = ("protocol", "pid", "language", "segments", "device", "pieces", "spare")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    LANGUAGE_FIELD_NUMBER: _ClassVar[int]
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    PIECES_FIELD_NUMBER: _ClassVar[int]
    SPARE_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    pid: int
    language: str
    segments: bool
    device: bool
    pieces: bool
    spare: bool
    def __init__(self, protocol: _Optional[int] = ..., pid: _Optional[int] = ..., language: _Optional[str] = ..., segments: bool = ..., device: bool = ..., pieces: bool = ..., spare: bool = ...) -> None: ...

class ExecutorAttach(_message.Message):
    __slots__ = ("segment", "bytes")
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    segment: int
    bytes: int
    def __init__(self, segment: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...

class ExecutorDetach(_message.Message):
    __slots__ = ("segment",)
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    segment: int
    def __init__(self, segment: _Optional[int] = ...) -> None: ...

class ExecutorRun(_message.Message):
    __slots__ = ("task_id", "attempt", "op_id", "arguments", "inputs", "key", "timeout_millis", "namespace", "more")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    OP_ID_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MILLIS_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    task_id: int
    attempt: int
    op_id: int
    arguments: bytes
    inputs: _containers.RepeatedCompositeFieldContainer[ExecutorInput]
    key: str
    timeout_millis: int
    namespace: str
    more: bool
    def __init__(self, task_id: _Optional[int] = ..., attempt: _Optional[int] = ..., op_id: _Optional[int] = ..., arguments: _Optional[bytes] = ..., inputs: _Optional[_Iterable[_Union[ExecutorInput, _Mapping]]] = ..., key: _Optional[str] = ..., timeout_millis: _Optional[int] = ..., namespace: _Optional[str] = ..., more: bool = ...) -> None: ...

class ExecutorInput(_message.Message):
    __slots__ = ("header", "frames")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    header: bytes
    frames: _containers.RepeatedCompositeFieldContainer[FrameLocation]
    def __init__(self, header: _Optional[bytes] = ..., frames: _Optional[_Iterable[_Union[FrameLocation, _Mapping]]] = ...) -> None: ...

class ExecutorAllocate(_message.Message):
    __slots__ = ("request", "task", "frame_bytes", "no_wait")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    FRAME_BYTES_FIELD_NUMBER: _ClassVar[int]
    NO_WAIT_FIELD_NUMBER: _ClassVar[int]
    request: int
    task: AttemptRef
    frame_bytes: _containers.RepeatedScalarFieldContainer[int]
    no_wait: bool
    def __init__(self, request: _Optional[int] = ..., task: _Optional[_Union[AttemptRef, _Mapping]] = ..., frame_bytes: _Optional[_Iterable[int]] = ..., no_wait: bool = ...) -> None: ...

class ExecutorAllocated(_message.Message):
    __slots__ = ("request", "frames", "error")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    request: int
    frames: _containers.RepeatedCompositeFieldContainer[FrameLocation]
    error: _error_pb2.TaskError
    def __init__(self, request: _Optional[int] = ..., frames: _Optional[_Iterable[_Union[FrameLocation, _Mapping]]] = ..., error: _Optional[_Union[_error_pb2.TaskError, _Mapping]] = ...) -> None: ...

class ExecutorRelease(_message.Message):
    __slots__ = ("request",)
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    request: int
    def __init__(self, request: _Optional[int] = ...) -> None: ...

class ExecutorFinished(_message.Message):
    __slots__ = ("task_id", "attempt", "error", "header", "frames", "inline_frames", "run_nanos", "kept")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    HEADER_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    INLINE_FRAMES_FIELD_NUMBER: _ClassVar[int]
    RUN_NANOS_FIELD_NUMBER: _ClassVar[int]
    KEPT_FIELD_NUMBER: _ClassVar[int]
    task_id: int
    attempt: int
    error: _error_pb2.TaskError
    header: bytes
    frames: _containers.RepeatedCompositeFieldContainer[FrameLocation]
    inline_frames: _containers.RepeatedScalarFieldContainer[bytes]
    run_nanos: int
    kept: _containers.RepeatedCompositeFieldContainer[ExecutorKept]
    def __init__(self, task_id: _Optional[int] = ..., attempt: _Optional[int] = ..., error: _Optional[_Union[_error_pb2.TaskError, _Mapping]] = ..., header: _Optional[bytes] = ..., frames: _Optional[_Iterable[_Union[FrameLocation, _Mapping]]] = ..., inline_frames: _Optional[_Iterable[bytes]] = ..., run_nanos: _Optional[int] = ..., kept: _Optional[_Iterable[_Union[ExecutorKept, _Mapping]]] = ...) -> None: ...

class ExecutorKept(_message.Message):
    __slots__ = ("request", "input")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    INPUT_FIELD_NUMBER: _ClassVar[int]
    request: int
    input: int
    def __init__(self, request: _Optional[int] = ..., input: _Optional[int] = ...) -> None: ...

class ExecutorLog(_message.Message):
    __slots__ = ("task_id", "stderr", "text")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    STDERR_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    task_id: int
    stderr: bool
    text: str
    def __init__(self, task_id: _Optional[int] = ..., stderr: bool = ..., text: _Optional[str] = ...) -> None: ...

class AttemptRef(_message.Message):
    __slots__ = ("task_id", "attempt")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    task_id: int
    attempt: int
    def __init__(self, task_id: _Optional[int] = ..., attempt: _Optional[int] = ...) -> None: ...

class OpDefinition(_message.Message):
    __slots__ = ("op_id", "op")
    OP_ID_FIELD_NUMBER: _ClassVar[int]
    OP_FIELD_NUMBER: _ClassVar[int]
    op_id: int
    op: _task_pb2.Op
    def __init__(self, op_id: _Optional[int] = ..., op: _Optional[_Union[_task_pb2.Op, _Mapping]] = ...) -> None: ...

class FrameLocation(_message.Message):
    __slots__ = ("offset", "bytes", "segment")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    offset: int
    bytes: int
    segment: int
    def __init__(self, offset: _Optional[int] = ..., bytes: _Optional[int] = ..., segment: _Optional[int] = ...) -> None: ...
