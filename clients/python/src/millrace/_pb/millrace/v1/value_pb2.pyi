from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DTYPE_UNSPECIFIED: _ClassVar[DType]
    DTYPE_BOOL: _ClassVar[DType]
    DTYPE_UINT8: _ClassVar[DType]
    DTYPE_INT32: _ClassVar[DType]
    DTYPE_INT64: _ClassVar[DType]
    DTYPE_FLOAT32: _ClassVar[DType]
    DTYPE_FLOAT64: _ClassVar[DType]
    DTYPE_COMPLEX64: _ClassVar[DType]
    DTYPE_COMPLEX128: _ClassVar[DType]

class NullValue(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    NULL_VALUE_UNSPECIFIED: _ClassVar[NullValue]

class ValueType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    VALUE_TYPE_UNSPECIFIED: _ClassVar[ValueType]
    VALUE_TYPE_NULL: _ClassVar[ValueType]
    VALUE_TYPE_BOOL: _ClassVar[ValueType]
    VALUE_TYPE_INT: _ClassVar[ValueType]
    VALUE_TYPE_DOUBLE: _ClassVar[ValueType]
    VALUE_TYPE_STRING: _ClassVar[ValueType]
    VALUE_TYPE_BYTES: _ClassVar[ValueType]
    VALUE_TYPE_LIST: _ClassVar[ValueType]
    VALUE_TYPE_MAP: _ClassVar[ValueType]
    VALUE_TYPE_TENSOR: _ClassVar[ValueType]
    VALUE_TYPE_OPAQUE: _ClassVar[ValueType]
    VALUE_TYPE_COMPLEX: _ClassVar[ValueType]
    VALUE_TYPE_TABLE: _ClassVar[ValueType]
DTYPE_UNSPECIFIED: DType
DTYPE_BOOL: DType
DTYPE_UINT8: DType
DTYPE_INT32: DType
DTYPE_INT64: DType
DTYPE_FLOAT32: DType
DTYPE_FLOAT64: DType
DTYPE_COMPLEX64: DType
DTYPE_COMPLEX128: DType
NULL_VALUE_UNSPECIFIED: NullValue
VALUE_TYPE_UNSPECIFIED: ValueType
VALUE_TYPE_NULL: ValueType
VALUE_TYPE_BOOL: ValueType
VALUE_TYPE_INT: ValueType
VALUE_TYPE_DOUBLE: ValueType
VALUE_TYPE_STRING: ValueType
VALUE_TYPE_BYTES: ValueType
VALUE_TYPE_LIST: ValueType
VALUE_TYPE_MAP: ValueType
VALUE_TYPE_TENSOR: ValueType
VALUE_TYPE_OPAQUE: ValueType
VALUE_TYPE_COMPLEX: ValueType
VALUE_TYPE_TABLE: ValueType

class Value(_message.Message):
    __slots__ = ("null_value", "bool_value", "int_value", "double_value", "string_value", "bytes_value", "list_value", "map_value", "tensor_value", "input", "opaque_value", "complex_value", "hole", "table_value")
    NULL_VALUE_FIELD_NUMBER: _ClassVar[int]
    BOOL_VALUE_FIELD_NUMBER: _ClassVar[int]
    INT_VALUE_FIELD_NUMBER: _ClassVar[int]
    DOUBLE_VALUE_FIELD_NUMBER: _ClassVar[int]
    STRING_VALUE_FIELD_NUMBER: _ClassVar[int]
    BYTES_VALUE_FIELD_NUMBER: _ClassVar[int]
    LIST_VALUE_FIELD_NUMBER: _ClassVar[int]
    MAP_VALUE_FIELD_NUMBER: _ClassVar[int]
    TENSOR_VALUE_FIELD_NUMBER: _ClassVar[int]
    INPUT_FIELD_NUMBER: _ClassVar[int]
    OPAQUE_VALUE_FIELD_NUMBER: _ClassVar[int]
    COMPLEX_VALUE_FIELD_NUMBER: _ClassVar[int]
    HOLE_FIELD_NUMBER: _ClassVar[int]
    TABLE_VALUE_FIELD_NUMBER: _ClassVar[int]
    null_value: NullValue
    bool_value: bool
    int_value: int
    double_value: float
    string_value: str
    bytes_value: bytes
    list_value: ListValue
    map_value: MapValue
    tensor_value: Tensor
    input: int
    opaque_value: Opaque
    complex_value: Complex
    hole: int
    table_value: Table
    def __init__(self, null_value: _Optional[_Union[NullValue, str]] = ..., bool_value: bool = ..., int_value: _Optional[int] = ..., double_value: _Optional[float] = ..., string_value: _Optional[str] = ..., bytes_value: _Optional[bytes] = ..., list_value: _Optional[_Union[ListValue, _Mapping]] = ..., map_value: _Optional[_Union[MapValue, _Mapping]] = ..., tensor_value: _Optional[_Union[Tensor, _Mapping]] = ..., input: _Optional[int] = ..., opaque_value: _Optional[_Union[Opaque, _Mapping]] = ..., complex_value: _Optional[_Union[Complex, _Mapping]] = ..., hole: _Optional[int] = ..., table_value: _Optional[_Union[Table, _Mapping]] = ...) -> None: ...

class Complex(_message.Message):
    __slots__ = ("real", "imaginary")
    REAL_FIELD_NUMBER: _ClassVar[int]
    IMAGINARY_FIELD_NUMBER: _ClassVar[int]
    real: float
    imaginary: float
    def __init__(self, real: _Optional[float] = ..., imaginary: _Optional[float] = ...) -> None: ...

class ListValue(_message.Message):
    __slots__ = ("values",)
    VALUES_FIELD_NUMBER: _ClassVar[int]
    values: _containers.RepeatedCompositeFieldContainer[Value]
    def __init__(self, values: _Optional[_Iterable[_Union[Value, _Mapping]]] = ...) -> None: ...

class MapValue(_message.Message):
    __slots__ = ("fields", "order")
    class FieldsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Value
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Value, _Mapping]] = ...) -> None: ...
    FIELDS_FIELD_NUMBER: _ClassVar[int]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    fields: _containers.MessageMap[str, Value]
    order: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, fields: _Optional[_Mapping[str, Value]] = ..., order: _Optional[_Iterable[str]] = ...) -> None: ...

class Tensor(_message.Message):
    __slots__ = ("dtype", "shape", "strides", "offset_bytes", "frame", "inline_data")
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    STRIDES_FIELD_NUMBER: _ClassVar[int]
    OFFSET_BYTES_FIELD_NUMBER: _ClassVar[int]
    FRAME_FIELD_NUMBER: _ClassVar[int]
    INLINE_DATA_FIELD_NUMBER: _ClassVar[int]
    dtype: DType
    shape: _containers.RepeatedScalarFieldContainer[int]
    strides: _containers.RepeatedScalarFieldContainer[int]
    offset_bytes: int
    frame: int
    inline_data: bytes
    def __init__(self, dtype: _Optional[_Union[DType, str]] = ..., shape: _Optional[_Iterable[int]] = ..., strides: _Optional[_Iterable[int]] = ..., offset_bytes: _Optional[int] = ..., frame: _Optional[int] = ..., inline_data: _Optional[bytes] = ...) -> None: ...

class Opaque(_message.Message):
    __slots__ = ("encoding", "data", "frames", "type_name", "device_frames", "table")
    ENCODING_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    TYPE_NAME_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FRAMES_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    encoding: str
    data: bytes
    frames: _containers.RepeatedScalarFieldContainer[int]
    type_name: str
    device_frames: _containers.RepeatedScalarFieldContainer[int]
    table: TableSummary
    def __init__(self, encoding: _Optional[str] = ..., data: _Optional[bytes] = ..., frames: _Optional[_Iterable[int]] = ..., type_name: _Optional[str] = ..., device_frames: _Optional[_Iterable[int]] = ..., table: _Optional[_Union[TableSummary, _Mapping]] = ...) -> None: ...

class Table(_message.Message):
    __slots__ = ("rows", "schema", "nodes", "buffers", "view_buffers", "inline_data", "type_name", "columns", "column_count")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    BUFFERS_FIELD_NUMBER: _ClassVar[int]
    VIEW_BUFFERS_FIELD_NUMBER: _ClassVar[int]
    INLINE_DATA_FIELD_NUMBER: _ClassVar[int]
    TYPE_NAME_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    COLUMN_COUNT_FIELD_NUMBER: _ClassVar[int]
    rows: int
    schema: bytes
    nodes: _containers.RepeatedCompositeFieldContainer[TableNode]
    buffers: _containers.RepeatedCompositeFieldContainer[TableBuffer]
    view_buffers: _containers.RepeatedScalarFieldContainer[int]
    inline_data: bytes
    type_name: str
    columns: _containers.RepeatedCompositeFieldContainer[Column]
    column_count: int
    def __init__(self, rows: _Optional[int] = ..., schema: _Optional[bytes] = ..., nodes: _Optional[_Iterable[_Union[TableNode, _Mapping]]] = ..., buffers: _Optional[_Iterable[_Union[TableBuffer, _Mapping]]] = ..., view_buffers: _Optional[_Iterable[int]] = ..., inline_data: _Optional[bytes] = ..., type_name: _Optional[str] = ..., columns: _Optional[_Iterable[_Union[Column, _Mapping]]] = ..., column_count: _Optional[int] = ...) -> None: ...

class TableNode(_message.Message):
    __slots__ = ("rows", "nulls")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    NULLS_FIELD_NUMBER: _ClassVar[int]
    rows: int
    nulls: int
    def __init__(self, rows: _Optional[int] = ..., nulls: _Optional[int] = ...) -> None: ...

class TableBuffer(_message.Message):
    __slots__ = ("frame", "offset_bytes", "bytes")
    FRAME_FIELD_NUMBER: _ClassVar[int]
    OFFSET_BYTES_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    frame: int
    offset_bytes: int
    bytes: int
    def __init__(self, frame: _Optional[int] = ..., offset_bytes: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...

class TableSummary(_message.Message):
    __slots__ = ("rows", "columns", "column_count")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    COLUMN_COUNT_FIELD_NUMBER: _ClassVar[int]
    rows: int
    columns: _containers.RepeatedCompositeFieldContainer[Column]
    column_count: int
    def __init__(self, rows: _Optional[int] = ..., columns: _Optional[_Iterable[_Union[Column, _Mapping]]] = ..., column_count: _Optional[int] = ...) -> None: ...

class Column(_message.Message):
    __slots__ = ("name", "type")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    name: str
    type: str
    def __init__(self, name: _Optional[str] = ..., type: _Optional[str] = ...) -> None: ...

class Arguments(_message.Message):
    __slots__ = ("positional", "named", "call")
    class NamedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Value
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Value, _Mapping]] = ...) -> None: ...
    POSITIONAL_FIELD_NUMBER: _ClassVar[int]
    NAMED_FIELD_NUMBER: _ClassVar[int]
    CALL_FIELD_NUMBER: _ClassVar[int]
    positional: _containers.RepeatedCompositeFieldContainer[Value]
    named: _containers.MessageMap[str, Value]
    call: Opaque
    def __init__(self, positional: _Optional[_Iterable[_Union[Value, _Mapping]]] = ..., named: _Optional[_Mapping[str, Value]] = ..., call: _Optional[_Union[Opaque, _Mapping]] = ...) -> None: ...
