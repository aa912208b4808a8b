from millrace._pb.millrace.v1 import alarm_pb2 as _alarm_pb2
from millrace._pb.millrace.v1 import client_pb2 as _client_pb2
from millrace._pb.millrace.v1 import cluster_pb2 as _cluster_pb2
from millrace._pb.millrace.v1 import dataset_pb2 as _dataset_pb2
from millrace._pb.millrace.v1 import event_pb2 as _event_pb2
from millrace._pb.millrace.v1 import graph_pb2 as _graph_pb2
from millrace._pb.millrace.v1 import log_pb2 as _log_pb2
from millrace._pb.millrace.v1 import peer_pb2 as _peer_pb2
from millrace._pb.millrace.v1 import report_pb2 as _report_pb2
from millrace._pb.millrace.v1 import submission_pb2 as _submission_pb2
from millrace._pb.millrace.v1 import task_calls_pb2 as _task_calls_pb2
from millrace._pb.millrace.v1 import watch_pb2 as _watch_pb2
from millrace._pb.millrace.v1 import worker_calls_pb2 as _worker_calls_pb2
from google.protobuf import descriptor as _descriptor
from typing import ClassVar as _ClassVar

DESCRIPTOR: _descriptor.FileDescriptor
