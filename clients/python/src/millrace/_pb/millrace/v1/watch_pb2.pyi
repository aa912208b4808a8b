from millrace._pb.millrace.v1 import dataset_pb2 as _dataset_pb2
from millrace._pb.millrace.v1 import graph_pb2 as _graph_pb2
from millrace._pb.millrace.v1 import task_pb2 as _task_pb2
from millrace._pb.millrace.v1 import worker_pb2 as _worker_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class WatchRequest(_message.Message):
    __slots__ = ("client_id", "after_revision", "graphs", "graph_ids", "workers", "datasets", "until_ended", "life", "worker_view")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    AFTER_REVISION_FIELD_NUMBER: _ClassVar[int]
    GRAPHS_FIELD_NUMBER: _ClassVar[int]
    GRAPH_IDS_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    DATASETS_FIELD_NUMBER: _ClassVar[int]
    UNTIL_ENDED_FIELD_NUMBER: _ClassVar[int]
    LIFE_FIELD_NUMBER: _ClassVar[int]
    WORKER_VIEW_FIELD_NUMBER: _ClassVar[int]
    client_id: int
    after_revision: int
    graphs: bool
    graph_ids: _containers.RepeatedScalarFieldContainer[int]
    workers: bool
    datasets: bool
    until_ended: bool
    life: int
    worker_view: _worker_pb2.WorkerView
    def __init__(self, client_id: _Optional[int] = ..., after_revision: _Optional[int] = ..., graphs: bool = ..., graph_ids: _Optional[_Iterable[int]] = ..., workers: bool = ..., datasets: bool = ..., until_ended: bool = ..., life: _Optional[int] = ..., worker_view: _Optional[_Union[_worker_pb2.WorkerView, str]] = ...) -> None: ...

class WatchResponse(_message.Message):
    __slots__ = ("revision", "catalog_revision", "snapshot", "tasks", "graphs", "workers", "datasets", "removed_graph_ids", "removed_worker_ids", "removed_dataset_names", "draining", "life", "more", "topics")
    REVISION_FIELD_NUMBER: _ClassVar[int]
    CATALOG_REVISION_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    GRAPHS_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    DATASETS_FIELD_NUMBER: _ClassVar[int]
    REMOVED_GRAPH_IDS_FIELD_NUMBER: _ClassVar[int]
    REMOVED_WORKER_IDS_FIELD_NUMBER: _ClassVar[int]
    REMOVED_DATASET_NAMES_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    LIFE_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    revision: int
    catalog_revision: int
    snapshot: bool
    tasks: _containers.RepeatedCompositeFieldContainer[_task_pb2.TaskUpdate]
    graphs: _containers.RepeatedCompositeFieldContainer[_graph_pb2.Graph]
    workers: _containers.RepeatedCompositeFieldContainer[_worker_pb2.Worker]
    datasets: _containers.RepeatedCompositeFieldContainer[_dataset_pb2.Dataset]
    removed_graph_ids: _containers.RepeatedScalarFieldContainer[int]
    removed_worker_ids: _containers.RepeatedScalarFieldContainer[int]
    removed_dataset_names: _containers.RepeatedScalarFieldContainer[str]
    draining: bool
    life: int
    more: bool
    topics: _containers.RepeatedCompositeFieldContainer[TopicPosition]
    def __init__(self, revision: _Optional[int] = ..., catalog_revision: _Optional[int] = ..., snapshot: bool = ..., tasks: _Optional[_Iterable[_Union[_task_pb2.TaskUpdate, _Mapping]]] = ..., graphs: _Optional[_Iterable[_Union[_graph_pb2.Graph, _Mapping]]] = ..., workers: _Optional[_Iterable[_Union[_worker_pb2.Worker, _Mapping]]] = ..., datasets: _Optional[_Iterable[_Union[_dataset_pb2.Dataset, _Mapping]]] = ..., removed_graph_ids: _Optional[_Iterable[int]] = ..., removed_worker_ids: _Optional[_Iterable[int]] = ..., removed_dataset_names: _Optional[_Iterable[str]] = ..., draining: bool = ..., life: _Optional[int] = ..., more: bool = ..., topics: _Optional[_Iterable[_Union[TopicPosition, _Mapping]]] = ...) -> None: ...

class TopicPosition(_message.Message):
    __slots__ = ("name", "number")
    NAME_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    name: str
    number: int
    def __init__(self, name: _Optional[str] = ..., number: _Optional[int] = ...) -> None: ...
