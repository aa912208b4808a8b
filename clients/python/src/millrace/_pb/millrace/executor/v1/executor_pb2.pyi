from millrace._pb.millrace.v1 import error_pb2 as _error_pb2
from millrace._pb.millrace.v1 import task_pb2 as _task_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ToExecutor(_message.Message):
    __slots__ = ("hello", "attach_segments", "ops", "functions", "runs", "allocations", "cancellations", "detach_segments", "dropped_functions", "release_unused", "shutdown", "resumptions", "calls")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    ATTACH_SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    OPS_FIELD_NUMBER: _ClassVar[int]
    FUNCTIONS_FIELD_NUMBER: _ClassVar[int]
    RUNS_FIELD_NUMBER: _ClassVar[int]
    ALLOCATIONS_FIELD_NUMBER: _ClassVar[int]
    CANCELLATIONS_FIELD_NUMBER: _ClassVar[int]
    DETACH_SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FUNCTIONS_FIELD_NUMBER: _ClassVar[int]
    RELEASE_UNUSED_FIELD_NUMBER: _ClassVar[int]
    SHUTDOWN_FIELD_NUMBER: _ClassVar[int]
    RESUMPTIONS_FIELD_NUMBER: _ClassVar[int]
    CALLS_FIELD_NUMBER: _ClassVar[int]
    hello: ExecutorHello
    attach_segments: _containers.RepeatedCompositeFieldContainer[ExecutorAttach]
    ops: _containers.RepeatedCompositeFieldContainer[OpDefinition]
    functions: _containers.RepeatedCompositeFieldContainer[_task_pb2.Function]
    runs: _containers.RepeatedCompositeFieldContainer[ExecutorRun]
    allocations: _containers.RepeatedCompositeFieldContainer[ExecutorAllocation]
    cancellations: _containers.RepeatedCompositeFieldContainer[AttemptRef]
    detach_segments: _containers.RepeatedCompositeFieldContainer[ExecutorDetach]
    dropped_functions: _containers.RepeatedScalarFieldContainer[bytes]
    release_unused: bool
    shutdown: bool
    resumptions: _containers.RepeatedCompositeFieldContainer[AttemptRef]
    calls: _containers.RepeatedCompositeFieldContainer[ExecutorCall]
    def __init__(self, hello: _Optional[_Union[ExecutorHello, _Mapping]] = ..., attach_segments: _Optional[_Iterable[_Union[ExecutorAttach, _Mapping]]] = ..., ops: _Optional[_Iterable[_Union[OpDefinition, _Mapping]]] = ..., functions: _Optional[_Iterable[_Union[_task_pb2.Function, _Mapping]]] = ..., runs: _Optional[_Iterable[_Union[ExecutorRun, _Mapping]]] = ..., allocations: _Optional[_Iterable[_Union[ExecutorAllocation, _Mapping]]] = ..., cancellations: _Optional[_Iterable[_Union[AttemptRef, _Mapping]]] = ..., detach_segments: _Optional[_Iterable[_Union[ExecutorDetach, _Mapping]]] = ..., dropped_functions: _Optional[_Iterable[bytes]] = ..., release_unused: bool = ..., shutdown: bool = ..., resumptions: _Optional[_Iterable[_Union[AttemptRef, _Mapping]]] = ..., calls: _Optional[_Iterable[_Union[ExecutorCall, _Mapping]]] = ...) -> None: ...

class FromExecutor(_message.Message):
    __slots__ = ("ready", "logs", "allocation_requests", "loaded_modules", "finished", "releases", "blocked", "resumed", "needed", "returns")
    READY_FIELD_NUMBER: _ClassVar[int]
    LOGS_FIELD_NUMBER: _ClassVar[int]
    ALLOCATION_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    LOADED_MODULES_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    RELEASES_FIELD_NUMBER: _ClassVar[int]
    BLOCKED_FIELD_NUMBER: _ClassVar[int]
    RESUMED_FIELD_NUMBER: _ClassVar[int]
    NEEDED_FIELD_NUMBER: _ClassVar[int]
    RETURNS_FIELD_NUMBER: _ClassVar[int]
    ready: ExecutorReady
    logs: _containers.RepeatedCompositeFieldContainer[ExecutorLog]
    allocation_requests: _containers.RepeatedCompositeFieldContainer[ExecutorAllocationRequest]
    loaded_modules: _containers.RepeatedScalarFieldContainer[str]
    finished: _containers.RepeatedCompositeFieldContainer[ExecutorFinished]
    releases: _containers.RepeatedCompositeFieldContainer[ExecutorRelease]
    blocked: _containers.RepeatedCompositeFieldContainer[AttemptRef]
    resumed: _containers.RepeatedCompositeFieldContainer[AttemptRef]
    needed: bool
    returns: _containers.RepeatedCompositeFieldContainer[ExecutorReturn]
    def __init__(self, ready: _Optional[_Union[ExecutorReady, _Mapping]] = ..., logs: _Optional[_Iterable[_Union[ExecutorLog, _Mapping]]] = ..., allocation_requests: _Optional[_Iterable[_Union[ExecutorAllocationRequest, _Mapping]]] = ..., loaded_modules: _Optional[_Iterable[str]] = ..., finished: _Optional[_Iterable[_Union[ExecutorFinished, _Mapping]]] = ..., releases: _Optional[_Iterable[_Union[ExecutorRelease, _Mapping]]] = ..., blocked: _Optional[_Iterable[_Union[AttemptRef, _Mapping]]] = ..., resumed: _Optional[_Iterable[_Union[AttemptRef, _Mapping]]] = ..., needed: bool = ..., returns: _Optional[_Iterable[_Union[ExecutorReturn, _Mapping]]] = ...) -> None: ...

class ExecutorHello(_message.Message):
    __slots__ = ("protocol_version", "worker_name", "worker_id", "slab_bytes", "max_inline_bytes", "scheduler_address", "scratch_directory", "device", "preload_modules", "spare", "data_address")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    WORKER_NAME_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    SLAB_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_INLINE_BYTES_FIELD_NUMBER: _ClassVar[int]
    SCHEDULER_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    SCRATCH_DIRECTORY_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    PRELOAD_MODULES_FIELD_NUMBER: _ClassVar[int]
    SPARE_FIELD_NUMBER: _ClassVar[int]
    DATA_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    worker_name: str
    worker_id: int
    slab_bytes: int
    max_inline_bytes: int
    scheduler_address: str
    scratch_directory: str
    device: ExecutorDevice
    preload_modules: _containers.RepeatedScalarFieldContainer[str]
    spare: bool
    data_address: str
    def __init__(self, protocol_version: _Optional[int] = ..., worker_name: _Optional[str] = ..., worker_id: _Optional[int] = ..., slab_bytes: _Optional[int] = ..., max_inline_bytes: _Optional[int] = ..., scheduler_address: _Optional[str] = ..., scratch_directory: _Optional[str] = ..., device: _Optional[_Union[ExecutorDevice, _Mapping]] = ..., preload_modules: _Optional[_Iterable[str]] = ..., spare: bool = ..., data_address: _Optional[str] = ...) -> None: ...

class ExecutorDevice(_message.Message):
    __slots__ = ("uuid", "ordinal", "memory_handle", "slab_header", "alignment_bytes", "driver_library", "arena_bytes", "arena_libraries", "executor_count")
    UUID_FIELD_NUMBER: _ClassVar[int]
    ORDINAL_FIELD_NUMBER: _ClassVar[int]
    MEMORY_HANDLE_FIELD_NUMBER: _ClassVar[int]
    SLAB_HEADER_FIELD_NUMBER: _ClassVar[int]
    ALIGNMENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    DRIVER_LIBRARY_FIELD_NUMBER: _ClassVar[int]
    ARENA_BYTES_FIELD_NUMBER: _ClassVar[int]
    ARENA_LIBRARIES_FIELD_NUMBER: _ClassVar[int]
    EXECUTOR_COUNT_FIELD_NUMBER: _ClassVar[int]
    uuid: bytes
    ordinal: int
    memory_handle: bytes
    slab_header: bytes
    alignment_bytes: int
    driver_library: str
    arena_bytes: int
    arena_libraries: _containers.RepeatedScalarFieldContainer[str]
    executor_count: int
    def __init__(self, uuid: _Optional[bytes] = ..., ordinal: _Optional[int] = ..., memory_handle: _Optional[bytes] = ..., slab_header: _Optional[bytes] = ..., alignment_bytes: _Optional[int] = ..., driver_library: _Optional[str] = ..., arena_bytes: _Optional[int] = ..., arena_libraries: _Optional[_Iterable[str]] = ..., executor_count: _Optional[int] = ...) -> None: ...

class ExecutorReady(_message.Message):
    __slots__ = ("protocol_version", "language", "device_opened", "supports_segments", "supports_split_runs", "supports_spare", "supports_calls", "writes_called")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    LANGUAGE_FIELD_NUMBER: _ClassVar[int]
    DEVICE_OPENED_FIELD_NUMBER: _ClassVar[int]
    SUPPORTS_SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    SUPPORTS_SPLIT_RUNS_FIELD_NUMBER: _ClassVar[int]
    SUPPORTS_SPARE_FIELD_NUMBER: _ClassVar[int]
    SUPPORTS_CALLS_FIELD_NUMBER: _ClassVar[int]
    WRITES_CALLED_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    language: str
    device_opened: bool
    supports_segments: bool
    supports_split_runs: bool
    supports_spare: bool
    supports_calls: bool
    writes_called: bool
    def __init__(self, protocol_version: _Optional[int] = ..., language: _Optional[str] = ..., device_opened: bool = ..., supports_segments: bool = ..., supports_split_runs: bool = ..., supports_spare: bool = ..., supports_calls: bool = ..., writes_called: bool = ...) -> None: ...

class ExecutorAttach(_message.Message):
    __slots__ = ("segment_id", "size_bytes")
    SEGMENT_ID_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    segment_id: int
    size_bytes: int
    def __init__(self, segment_id: _Optional[int] = ..., size_bytes: _Optional[int] = ...) -> None: ...

class ExecutorDetach(_message.Message):
    __slots__ = ("segment_id",)
    SEGMENT_ID_FIELD_NUMBER: _ClassVar[int]
    segment_id: int
    def __init__(self, segment_id: _Optional[int] = ...) -> None: ...

class ExecutorRun(_message.Message):
    __slots__ = ("task_id", "attempt", "op_id", "arguments", "inputs", "more_inputs", "timeout_millis", "key", "namespace", "priority")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    OP_ID_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    MORE_INPUTS_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MILLIS_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    task_id: int
    attempt: int
    op_id: int
    arguments: bytes
    inputs: _containers.RepeatedCompositeFieldContainer[ExecutorInput]
    more_inputs: bool
    timeout_millis: int
    key: str
    namespace: str
    priority: int
    def __init__(self, task_id: _Optional[int] = ..., attempt: _Optional[int] = ..., op_id: _Optional[int] = ..., arguments: _Optional[bytes] = ..., inputs: _Optional[_Iterable[_Union[ExecutorInput, _Mapping]]] = ..., more_inputs: bool = ..., timeout_millis: _Optional[int] = ..., key: _Optional[str] = ..., namespace: _Optional[str] = ..., priority: _Optional[int] = ...) -> None: ...

class ExecutorInput(_message.Message):
    __slots__ = ("header", "frames", "task_id", "generation", "item")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    ITEM_FIELD_NUMBER: _ClassVar[int]
    header: bytes
    frames: _containers.RepeatedCompositeFieldContainer[FrameLocation]
    task_id: int
    generation: int
    item: int
    def __init__(self, header: _Optional[bytes] = ..., frames: _Optional[_Iterable[_Union[FrameLocation, _Mapping]]] = ..., task_id: _Optional[int] = ..., generation: _Optional[int] = ..., item: _Optional[int] = ...) -> None: ...

class ExecutorAllocationRequest(_message.Message):
    __slots__ = ("request_id", "attempt", "frame_bytes", "no_wait")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    FRAME_BYTES_FIELD_NUMBER: _ClassVar[int]
    NO_WAIT_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    attempt: AttemptRef
    frame_bytes: _containers.RepeatedScalarFieldContainer[int]
    no_wait: bool
    def __init__(self, request_id: _Optional[int] = ..., attempt: _Optional[_Union[AttemptRef, _Mapping]] = ..., frame_bytes: _Optional[_Iterable[int]] = ..., no_wait: bool = ...) -> None: ...

class ExecutorAllocation(_message.Message):
    __slots__ = ("request_id", "frames", "error")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    frames: _containers.RepeatedCompositeFieldContainer[FrameLocation]
    error: _error_pb2.TaskError
    def __init__(self, request_id: _Optional[int] = ..., frames: _Optional[_Iterable[_Union[FrameLocation, _Mapping]]] = ..., error: _Optional[_Union[_error_pb2.TaskError, _Mapping]] = ...) -> None: ...

class ExecutorRelease(_message.Message):
    __slots__ = ("request_id",)
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    def __init__(self, request_id: _Optional[int] = ...) -> None: ...

class ExecutorFinished(_message.Message):
    __slots__ = ("task_id", "attempt", "error", "header", "frames", "inline_frames", "run_nanos", "retained_inputs", "deserialize_nanos", "publish_nanos")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    HEADER_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    INLINE_FRAMES_FIELD_NUMBER: _ClassVar[int]
    RUN_NANOS_FIELD_NUMBER: _ClassVar[int]
    RETAINED_INPUTS_FIELD_NUMBER: _ClassVar[int]
    DESERIALIZE_NANOS_FIELD_NUMBER: _ClassVar[int]
    PUBLISH_NANOS_FIELD_NUMBER: _ClassVar[int]
    task_id: int
    attempt: int
    error: _error_pb2.TaskError
    header: bytes
    frames: _containers.RepeatedCompositeFieldContainer[FrameLocation]
    inline_frames: _containers.RepeatedScalarFieldContainer[bytes]
    run_nanos: int
    retained_inputs: _containers.RepeatedCompositeFieldContainer[ExecutorRetainedInput]
    deserialize_nanos: int
    publish_nanos: int
    def __init__(self, task_id: _Optional[int] = ..., attempt: _Optional[int] = ..., error: _Optional[_Union[_error_pb2.TaskError, _Mapping]] = ..., header: _Optional[bytes] = ..., frames: _Optional[_Iterable[_Union[FrameLocation, _Mapping]]] = ..., inline_frames: _Optional[_Iterable[bytes]] = ..., run_nanos: _Optional[int] = ..., retained_inputs: _Optional[_Iterable[_Union[ExecutorRetainedInput, _Mapping]]] = ..., deserialize_nanos: _Optional[int] = ..., publish_nanos: _Optional[int] = ...) -> None: ...

class ExecutorRetainedInput(_message.Message):
    __slots__ = ("request_id", "input_index")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    INPUT_INDEX_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    input_index: int
    def __init__(self, request_id: _Optional[int] = ..., input_index: _Optional[int] = ...) -> None: ...

class ExecutorCall(_message.Message):
    __slots__ = ("call_id", "op", "function", "arguments")
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    OP_FIELD_NUMBER: _ClassVar[int]
    FUNCTION_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    call_id: int
    op: _task_pb2.Op
    function: _task_pb2.Function
    arguments: bytes
    def __init__(self, call_id: _Optional[int] = ..., op: _Optional[_Union[_task_pb2.Op, _Mapping]] = ..., function: _Optional[_Union[_task_pb2.Function, _Mapping]] = ..., arguments: _Optional[bytes] = ...) -> None: ...

class ExecutorReturn(_message.Message):
    __slots__ = ("call_id", "error", "header", "frames")
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    HEADER_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    call_id: int
    error: _error_pb2.TaskError
    header: bytes
    frames: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, call_id: _Optional[int] = ..., error: _Optional[_Union[_error_pb2.TaskError, _Mapping]] = ..., header: _Optional[bytes] = ..., frames: _Optional[_Iterable[bytes]] = ...) -> None: ...

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
    __slots__ = ("offset", "size_bytes", "segment_id")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_ID_FIELD_NUMBER: _ClassVar[int]
    offset: int
    size_bytes: int
    segment_id: int
    def __init__(self, offset: _Optional[int] = ..., size_bytes: _Optional[int] = ..., segment_id: _Optional[int] = ...) -> None: ...
