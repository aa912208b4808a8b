import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from millrace._pb.millrace.v1 import task_pb2 as _task_pb2
from millrace._pb.millrace.v1 import value_pb2 as _value_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SubmitHeader(_message.Message):
    __slots__ = ("client_id", "graph_id", "name", "namespace", "request_id", "retention")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    GRAPH_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    RETENTION_FIELD_NUMBER: _ClassVar[int]
    client_id: int
    graph_id: int
    name: str
    namespace: str
    request_id: str
    retention: _duration_pb2.Duration
    def __init__(self, client_id: _Optional[int] = ..., graph_id: _Optional[int] = ..., name: _Optional[str] = ..., namespace: _Optional[str] = ..., request_id: _Optional[str] = ..., retention: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class SubmitRequest(_message.Message):
    __slots__ = ("header", "ops", "functions", "options", "tasks", "templates", "packed_templates", "template_instances")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    OPS_FIELD_NUMBER: _ClassVar[int]
    FUNCTIONS_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    TEMPLATES_FIELD_NUMBER: _ClassVar[int]
    PACKED_TEMPLATES_FIELD_NUMBER: _ClassVar[int]
    TEMPLATE_INSTANCES_FIELD_NUMBER: _ClassVar[int]
    header: SubmitHeader
    ops: _containers.RepeatedCompositeFieldContainer[_task_pb2.Op]
    functions: _containers.RepeatedCompositeFieldContainer[_task_pb2.Function]
    options: _containers.RepeatedCompositeFieldContainer[_task_pb2.TaskOptions]
    tasks: _containers.RepeatedCompositeFieldContainer[_task_pb2.TaskSpec]
    templates: _containers.RepeatedCompositeFieldContainer[Template]
    packed_templates: _containers.RepeatedScalarFieldContainer[bytes]
    template_instances: _containers.RepeatedCompositeFieldContainer[TemplateInstances]
    def __init__(self, header: _Optional[_Union[SubmitHeader, _Mapping]] = ..., ops: _Optional[_Iterable[_Union[_task_pb2.Op, _Mapping]]] = ..., functions: _Optional[_Iterable[_Union[_task_pb2.Function, _Mapping]]] = ..., options: _Optional[_Iterable[_Union[_task_pb2.TaskOptions, _Mapping]]] = ..., tasks: _Optional[_Iterable[_Union[_task_pb2.TaskSpec, _Mapping]]] = ..., templates: _Optional[_Iterable[_Union[Template, _Mapping]]] = ..., packed_templates: _Optional[_Iterable[bytes]] = ..., template_instances: _Optional[_Iterable[_Union[TemplateInstances, _Mapping]]] = ...) -> None: ...

class Template(_message.Message):
    __slots__ = ("ops", "functions", "options", "tasks", "values", "inputs")
    OPS_FIELD_NUMBER: _ClassVar[int]
    FUNCTIONS_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    ops: _containers.RepeatedCompositeFieldContainer[_task_pb2.Op]
    functions: _containers.RepeatedCompositeFieldContainer[_task_pb2.Function]
    options: _containers.RepeatedCompositeFieldContainer[_task_pb2.TaskOptions]
    tasks: _containers.RepeatedCompositeFieldContainer[_task_pb2.TaskSpec]
    values: _containers.RepeatedCompositeFieldContainer[TemplateValue]
    inputs: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, ops: _Optional[_Iterable[_Union[_task_pb2.Op, _Mapping]]] = ..., functions: _Optional[_Iterable[_Union[_task_pb2.Function, _Mapping]]] = ..., options: _Optional[_Iterable[_Union[_task_pb2.TaskOptions, _Mapping]]] = ..., tasks: _Optional[_Iterable[_Union[_task_pb2.TaskSpec, _Mapping]]] = ..., values: _Optional[_Iterable[_Union[TemplateValue, _Mapping]]] = ..., inputs: _Optional[_Iterable[str]] = ...) -> None: ...

class TemplateValue(_message.Message):
    __slots__ = ("name", "type")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    name: str
    type: _value_pb2.ValueType
    def __init__(self, name: _Optional[str] = ..., type: _Optional[_Union[_value_pb2.ValueType, str]] = ...) -> None: ...

class TemplateInstances(_message.Message):
    __slots__ = ("template_hash", "template_index", "key_prefix", "instances")
    TEMPLATE_HASH_FIELD_NUMBER: _ClassVar[int]
    TEMPLATE_INDEX_FIELD_NUMBER: _ClassVar[int]
    KEY_PREFIX_FIELD_NUMBER: _ClassVar[int]
    INSTANCES_FIELD_NUMBER: _ClassVar[int]
    template_hash: bytes
    template_index: int
    key_prefix: str
    instances: _containers.RepeatedCompositeFieldContainer[TemplateInstance]
    def __init__(self, template_hash: _Optional[bytes] = ..., template_index: _Optional[int] = ..., key_prefix: _Optional[str] = ..., instances: _Optional[_Iterable[_Union[TemplateInstance, _Mapping]]] = ...) -> None: ...

class TemplateInstance(_message.Message):
    __slots__ = ("key", "values", "packed_values", "inputs")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    PACKED_VALUES_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    key: str
    values: _containers.RepeatedCompositeFieldContainer[_value_pb2.Value]
    packed_values: _containers.RepeatedScalarFieldContainer[bytes]
    inputs: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, key: _Optional[str] = ..., values: _Optional[_Iterable[_Union[_value_pb2.Value, _Mapping]]] = ..., packed_values: _Optional[_Iterable[bytes]] = ..., inputs: _Optional[_Iterable[str]] = ...) -> None: ...

class SubmitResponse(_message.Message):
    __slots__ = ("graph_id", "task_ids", "joined_tasks", "revision", "missing_functions", "failed_task_ids", "template_hashes", "missing_templates", "instance_task_ids")
    GRAPH_ID_FIELD_NUMBER: _ClassVar[int]
    TASK_IDS_FIELD_NUMBER: _ClassVar[int]
    JOINED_TASKS_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    MISSING_FUNCTIONS_FIELD_NUMBER: _ClassVar[int]
    FAILED_TASK_IDS_FIELD_NUMBER: _ClassVar[int]
    TEMPLATE_HASHES_FIELD_NUMBER: _ClassVar[int]
    MISSING_TEMPLATES_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_TASK_IDS_FIELD_NUMBER: _ClassVar[int]
    graph_id: int
    task_ids: _containers.RepeatedScalarFieldContainer[int]
    joined_tasks: int
    revision: int
    missing_functions: _containers.RepeatedScalarFieldContainer[bytes]
    failed_task_ids: _containers.RepeatedScalarFieldContainer[int]
    template_hashes: _containers.RepeatedScalarFieldContainer[bytes]
    missing_templates: _containers.RepeatedScalarFieldContainer[bytes]
    instance_task_ids: _containers.RepeatedCompositeFieldContainer[TaskIdRange]
    def __init__(self, graph_id: _Optional[int] = ..., task_ids: _Optional[_Iterable[int]] = ..., joined_tasks: _Optional[int] = ..., revision: _Optional[int] = ..., missing_functions: _Optional[_Iterable[bytes]] = ..., failed_task_ids: _Optional[_Iterable[int]] = ..., template_hashes: _Optional[_Iterable[bytes]] = ..., missing_templates: _Optional[_Iterable[bytes]] = ..., instance_task_ids: _Optional[_Iterable[_Union[TaskIdRange, _Mapping]]] = ...) -> None: ...

class TaskIdRange(_message.Message):
    __slots__ = ("first", "count")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    first: int
    count: int
    def __init__(self, first: _Optional[int] = ..., count: _Optional[int] = ...) -> None: ...
