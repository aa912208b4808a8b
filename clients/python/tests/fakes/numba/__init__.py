"""Test support: the part of numba that Millrace and its tests use, on the fake CUDA driver of
memory/cuda/cudatest."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np


class DeviceNDArray:
    """Wraps an object that has `__cuda_array_interface__`, and keeps it alive."""

    def __init__(self, owner: Any) -> None:
        self._owner = owner
        self._interface: dict[str, Any] = owner.__cuda_array_interface__
        self._handle = ctypes.c_void_p(1)  # as in numba, an attribute that cannot be pickled
        self.shape: tuple[int, ...] = self.__cuda_array_interface__["shape"]
        self.dtype = np.dtype(self.__cuda_array_interface__["typestr"])

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return self._interface

    def copy_to_host(self) -> Any:
        interface = self.__cuda_array_interface__
        assert interface["strides"] is None
        n = int(np.prod(self.shape)) * self.dtype.itemsize
        return np.frombuffer(ctypes.string_at(interface["data"][0], n), self.dtype).reshape(self.shape)


class _CudaAPIError(RuntimeError):
    __module__ = "numba.cuda.cudadrv.driver"


class cuda:
    CudaAPIError = _CudaAPIError

    @staticmethod
    def as_cuda_array(obj: Any) -> DeviceNDArray:
        return DeviceNDArray(obj)

    @staticmethod
    def to_device(array: Any) -> DeviceNDArray:
        import cupy

        return DeviceNDArray(cupy.asarray(array))
