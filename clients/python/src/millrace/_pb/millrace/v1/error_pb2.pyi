from millrace._pb.millrace.v1 import value_pb2 as _value_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ErrorReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ERROR_REASON_UNSPECIFIED: _ClassVar[ErrorReason]
    ERROR_REASON_GRAPH_HAS_CYCLE: _ClassVar[ErrorReason]
    ERROR_REASON_UNKNOWN_INPUT: _ClassVar[ErrorReason]
    ERROR_REASON_DUPLICATE_KEY: _ClassVar[ErrorReason]
    ERROR_REASON_KEY_CONFLICT: _ClassVar[ErrorReason]
    ERROR_REASON_REQUEST_CONFLICT: _ClassVar[ErrorReason]
    ERROR_REASON_UNKNOWN_OP: _ClassVar[ErrorReason]
    ERROR_REASON_UNKNOWN_FUNCTION: _ClassVar[ErrorReason]
    ERROR_REASON_INVALID_FIELD: _ClassVar[ErrorReason]
    ERROR_REASON_UNKNOWN_CLIENT: _ClassVar[ErrorReason]
    ERROR_REASON_UNKNOWN_TASK: _ClassVar[ErrorReason]
    ERROR_REASON_UNKNOWN_GRAPH: _ClassVar[ErrorReason]
    ERROR_REASON_UNKNOWN_WORKER: _ClassVar[ErrorReason]
    ERROR_REASON_UNKNOWN_DATASET: _ClassVar[ErrorReason]
    ERROR_REASON_DATASET_EXISTS: _ClassVar[ErrorReason]
    ERROR_REASON_GRAPH_RUNNING: _ClassVar[ErrorReason]
    ERROR_REASON_RESULT_NOT_READY: _ClassVar[ErrorReason]
    ERROR_REASON_RESULT_NOT_INLINE: _ClassVar[ErrorReason]
    ERROR_REASON_TASK_FAILED: _ClassVar[ErrorReason]
    ERROR_REASON_TASK_CANCELLED: _ClassVar[ErrorReason]
    ERROR_REASON_REVISION_TOO_OLD: _ClassVar[ErrorReason]
    ERROR_REASON_SCHEDULER_FULL: _ClassVar[ErrorReason]
    ERROR_REASON_DRAINING: _ClassVar[ErrorReason]
    ERROR_REASON_VERSION_TOO_NEW: _ClassVar[ErrorReason]
    ERROR_REASON_UNAUTHENTICATED: _ClassVar[ErrorReason]
    ERROR_REASON_PERMISSION_DENIED: _ClassVar[ErrorReason]
    ERROR_REASON_NAME_TAKEN: _ClassVar[ErrorReason]
    ERROR_REASON_WORKER_LEAVING: _ClassVar[ErrorReason]
    ERROR_REASON_NOT_SUPERVISED: _ClassVar[ErrorReason]
    ERROR_REASON_INTERNAL: _ClassVar[ErrorReason]
    ERROR_REASON_OBJECT_NOT_HERE: _ClassVar[ErrorReason]
    ERROR_REASON_OBJECT_UNREADABLE: _ClassVar[ErrorReason]
    ERROR_REASON_OBJECT_EXISTS: _ClassVar[ErrorReason]
    ERROR_REASON_NOT_A_DATA_TASK: _ClassVar[ErrorReason]
    ERROR_REASON_SCHEDULER_RESTARTED: _ClassVar[ErrorReason]
    ERROR_REASON_DEVICE_MEMORY: _ClassVar[ErrorReason]
    ERROR_REASON_PYTHON_EXCEPTION: _ClassVar[ErrorReason]
    ERROR_REASON_OP_FAILED: _ClassVar[ErrorReason]
    ERROR_REASON_EXECUTOR_ERROR: _ClassVar[ErrorReason]
    ERROR_REASON_FUNCTION_NOT_FOUND: _ClassVar[ErrorReason]
    ERROR_REASON_VERSION_MISMATCH: _ClassVar[ErrorReason]
    ERROR_REASON_INVALID_ARGUMENT: _ClassVar[ErrorReason]
    ERROR_REASON_INPUT_UNREADABLE: _ClassVar[ErrorReason]
    ERROR_REASON_INPUT_UNREACHABLE: _ClassVar[ErrorReason]
    ERROR_REASON_INPUT_CHANGED: _ClassVar[ErrorReason]
    ERROR_REASON_INPUT_FAILED: _ClassVar[ErrorReason]
    ERROR_REASON_TOO_LARGE: _ClassVar[ErrorReason]
    ERROR_REASON_RESULT_TOO_LARGE: _ClassVar[ErrorReason]
    ERROR_REASON_RESULT_NOT_SERIALISABLE: _ClassVar[ErrorReason]
    ERROR_REASON_REPORT_NOT_SENDABLE: _ClassVar[ErrorReason]
    ERROR_REASON_OUT_OF_MEMORY: _ClassVar[ErrorReason]
    ERROR_REASON_DEVICE_ERROR: _ClassVar[ErrorReason]
    ERROR_REASON_TIMEOUT: _ClassVar[ErrorReason]
    ERROR_REASON_CANCELLED: _ClassVar[ErrorReason]
    ERROR_REASON_WORKER_DIED: _ClassVar[ErrorReason]
    ERROR_REASON_EXECUTOR_DIED: _ClassVar[ErrorReason]
    ERROR_REASON_POISON_TASK: _ClassVar[ErrorReason]
    ERROR_REASON_NO_WORKER_FITS: _ClassVar[ErrorReason]
    ERROR_REASON_OBJECT_LOST: _ClassVar[ErrorReason]
    ERROR_REASON_PROTOCOL_VIOLATION: _ClassVar[ErrorReason]
    ERROR_REASON_UNKNOWN: _ClassVar[ErrorReason]
    ERROR_REASON_STOPPED: _ClassVar[ErrorReason]
    ERROR_REASON_DROPPED: _ClassVar[ErrorReason]
    ERROR_REASON_FOREIGN_FUTURE: _ClassVar[ErrorReason]
    ERROR_REASON_REBALANCE_RUNNING: _ClassVar[ErrorReason]
    ERROR_REASON_WORKER_NOT_ACTIVE: _ClassVar[ErrorReason]
ERROR_REASON_UNSPECIFIED: ErrorReason
ERROR_REASON_GRAPH_HAS_CYCLE: ErrorReason
ERROR_REASON_UNKNOWN_INPUT: ErrorReason
ERROR_REASON_DUPLICATE_KEY: ErrorReason
ERROR_REASON_KEY_CONFLICT: ErrorReason
ERROR_REASON_REQUEST_CONFLICT: ErrorReason
ERROR_REASON_UNKNOWN_OP: ErrorReason
ERROR_REASON_UNKNOWN_FUNCTION: ErrorReason
ERROR_REASON_INVALID_FIELD: ErrorReason
ERROR_REASON_UNKNOWN_CLIENT: ErrorReason
ERROR_REASON_UNKNOWN_TASK: ErrorReason
ERROR_REASON_UNKNOWN_GRAPH: ErrorReason
ERROR_REASON_UNKNOWN_WORKER: ErrorReason
ERROR_REASON_UNKNOWN_DATASET: ErrorReason
ERROR_REASON_DATASET_EXISTS: ErrorReason
ERROR_REASON_GRAPH_RUNNING: ErrorReason
ERROR_REASON_RESULT_NOT_READY: ErrorReason
ERROR_REASON_RESULT_NOT_INLINE: ErrorReason
ERROR_REASON_TASK_FAILED: ErrorReason
ERROR_REASON_TASK_CANCELLED: ErrorReason
ERROR_REASON_REVISION_TOO_OLD: ErrorReason
ERROR_REASON_SCHEDULER_FULL: ErrorReason
ERROR_REASON_DRAINING: ErrorReason
ERROR_REASON_VERSION_TOO_NEW: ErrorReason
ERROR_REASON_UNAUTHENTICATED: ErrorReason
ERROR_REASON_PERMISSION_DENIED: ErrorReason
ERROR_REASON_NAME_TAKEN: ErrorReason
ERROR_REASON_WORKER_LEAVING: ErrorReason
ERROR_REASON_NOT_SUPERVISED: ErrorReason
ERROR_REASON_INTERNAL: ErrorReason
ERROR_REASON_OBJECT_NOT_HERE: ErrorReason
ERROR_REASON_OBJECT_UNREADABLE: ErrorReason
ERROR_REASON_OBJECT_EXISTS: ErrorReason
ERROR_REASON_NOT_A_DATA_TASK: ErrorReason
ERROR_REASON_SCHEDULER_RESTARTED: ErrorReason
ERROR_REASON_DEVICE_MEMORY: ErrorReason
ERROR_REASON_PYTHON_EXCEPTION: ErrorReason
ERROR_REASON_OP_FAILED: ErrorReason
ERROR_REASON_EXECUTOR_ERROR: ErrorReason
ERROR_REASON_FUNCTION_NOT_FOUND: ErrorReason
ERROR_REASON_VERSION_MISMATCH: ErrorReason
ERROR_REASON_INVALID_ARGUMENT: ErrorReason
ERROR_REASON_INPUT_UNREADABLE: ErrorReason
ERROR_REASON_INPUT_UNREACHABLE: ErrorReason
ERROR_REASON_INPUT_CHANGED: ErrorReason
ERROR_REASON_INPUT_FAILED: ErrorReason
ERROR_REASON_TOO_LARGE: ErrorReason
ERROR_REASON_RESULT_TOO_LARGE: ErrorReason
ERROR_REASON_RESULT_NOT_SERIALISABLE: ErrorReason
ERROR_REASON_REPORT_NOT_SENDABLE: ErrorReason
ERROR_REASON_OUT_OF_MEMORY: ErrorReason
ERROR_REASON_DEVICE_ERROR: ErrorReason
ERROR_REASON_TIMEOUT: ErrorReason
ERROR_REASON_CANCELLED: ErrorReason
ERROR_REASON_WORKER_DIED: ErrorReason
ERROR_REASON_EXECUTOR_DIED: ErrorReason
ERROR_REASON_POISON_TASK: ErrorReason
ERROR_REASON_NO_WORKER_FITS: ErrorReason
ERROR_REASON_OBJECT_LOST: ErrorReason
ERROR_REASON_PROTOCOL_VIOLATION: ErrorReason
ERROR_REASON_UNKNOWN: ErrorReason
ERROR_REASON_STOPPED: ErrorReason
ERROR_REASON_DROPPED: ErrorReason
ERROR_REASON_FOREIGN_FUTURE: ErrorReason
ERROR_REASON_REBALANCE_RUNNING: ErrorReason
ERROR_REASON_WORKER_NOT_ACTIVE: ErrorReason

class TaskError(_message.Message):
    __slots__ = ("reason", "message", "origin_key", "worker", "traceback", "exception", "log_tail", "attempt", "metadata", "attempts")
    class MetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_KEY_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    TRACEBACK_FIELD_NUMBER: _ClassVar[int]
    EXCEPTION_FIELD_NUMBER: _ClassVar[int]
    LOG_TAIL_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    reason: str
    message: str
    origin_key: str
    worker: str
    traceback: str
    exception: _value_pb2.Opaque
    log_tail: str
    attempt: int
    metadata: _containers.ScalarMap[str, str]
    attempts: int
    def __init__(self, reason: _Optional[str] = ..., message: _Optional[str] = ..., origin_key: _Optional[str] = ..., worker: _Optional[str] = ..., traceback: _Optional[str] = ..., exception: _Optional[_Union[_value_pb2.Opaque, _Mapping]] = ..., log_tail: _Optional[str] = ..., attempt: _Optional[int] = ..., metadata: _Optional[_Mapping[str, str]] = ..., attempts: _Optional[int] = ...) -> None: ...
