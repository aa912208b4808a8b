"""Test support: the part of RMM that Millrace and its tests use, on the fake CUDA driver. As in RMM,
memory belongs to the resource that allocated it, whichever is set later."""

from __future__ import annotations

import ctypes
from typing import Any

import cupy
import numpy as np

from rmm import mr
from rmm.mr import DEFAULT_STREAM, Stream

__version__ = "fake"
_lib = cupy._lib
_lib.cuMemcpyDtoHAsync_v2.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p]


def _on(stream: Stream) -> int:
    """Returns the stream of the fake driver: CuPy's stands for the default one."""
    return stream.handle or cupy.cuda.get_current_stream().ptr


class DeviceBuffer:
    def __init__(self, *, ptr: int = 0, size: int = 0, stream: Stream = DEFAULT_STREAM) -> None:
        """Allocates memory. `ptr` is memory on the GPU that it is a copy of."""
        self.mr, self.stream, self.size = mr.get_current_device_resource(), stream, size
        self.ptr = self.mr.allocate(size, stream) if size else 0
        if ptr and size:
            assert not _lib.cuMemcpyDtoDAsync_v2(self.ptr, ptr, size, _on(stream))

    def __del__(self) -> None:
        if getattr(self, "ptr", 0):
            self.mr.deallocate(self.ptr, self.size, self.stream)

    @staticmethod
    def to_device(data: Any, stream: Stream = DEFAULT_STREAM) -> DeviceBuffer:
        host = np.frombuffer(data, np.uint8)
        made = DeviceBuffer(size=host.nbytes, stream=stream)
        if host.nbytes:
            assert not _lib.cuMemcpyHtoDAsync_v2(made.ptr, host.ctypes.data, host.nbytes, _on(stream))
        return made

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        data = (self.ptr, False)
        return {"version": 0, "typestr": "|u1", "shape": (self.size,), "strides": None, "data": data}


def copy_ptr_to_host(at: int, host: Any) -> None:
    if len(host):
        to = np.frombuffer(host, np.uint8)
        assert not _lib.cuMemcpyDtoHAsync_v2(to.ctypes.data, at, to.nbytes, _on(DEFAULT_STREAM))
        cupy.cuda.get_current_stream().synchronize()
