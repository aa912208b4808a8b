from millrace._pb.millrace.v1 import coordination_pb2 as _coordination_pb2
from google.protobuf import descriptor as _descriptor
from typing import ClassVar as _ClassVar

DESCRIPTOR: _descriptor.FileDescriptor
