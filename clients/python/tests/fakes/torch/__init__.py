"""Test support: the part of torch that Millrace's tests use, on the fake CUDA driver of
memory/cuda/cudatest, with an allocator that has torch's pools.

The variable MILLRACE_FAKE_TORCH simulates an unsuitable version: with `first` the pool that was
begun first is used, as in older versions; with `aside` no pool is used; with `broken` a graph
capture has no pool of its own.
"""

from __future__ import annotations

import math
from typing import Any

from torch import _C, _allocator, cuda
from torch._allocator import OutOfMemoryError

__version__ = "fake"
__all__ = ["_C", "OutOfMemoryError", "Tensor", "cuda", "empty", "float32", "full", "strided", "uint8"]
strided = "strided"


class dtype:
    def __init__(self, name: str, itemsize: int) -> None:
        self.name, self.itemsize = name, itemsize

    def __repr__(self) -> str:
        return f"torch.{self.name}"


float32, uint8 = dtype("float32", 4), dtype("uint8", 1)


class _Storage:
    def __init__(self, nbytes: int) -> None:
        self.segment = _allocator.allocate(nbytes)

    def __del__(self) -> None:
        self.segment.used = False


class Tensor:
    is_cuda, layout = True, strided

    def __init__(self, storage: _Storage, shape: tuple[int, ...], dtype: dtype, offset: int = 0) -> None:
        self._storage, self.shape, self.dtype, self._offset = storage, shape, dtype, offset

    def data_ptr(self) -> int:
        return self._storage.segment.at + self._offset

    def element_size(self) -> int:
        return self.dtype.itemsize

    def stride(self) -> tuple[int, ...]:
        return tuple(math.prod(self.shape[i + 1 :]) for i in range(len(self.shape)))

    def is_conj(self) -> bool:
        return False

    is_neg = is_conj
    requires_grad = False

    def detach(self) -> Tensor:
        return self

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, part: slice) -> Tensor:
        begin, end, _ = part.indices(self.shape[0])
        return Tensor(self._storage, (end - begin,), self.dtype, self._offset + begin * self.dtype.itemsize)

    def set(self, data: bytes) -> None:
        cuda.write(self.data_ptr(), data)

    def get(self) -> bytes:
        return cuda.read(self.data_ptr(), self.dtype.itemsize * self.shape[0])


def empty(n: int, dtype: Any = float32, device: str = "cuda") -> Tensor:
    cuda.init()
    return Tensor(_Storage(n * dtype.itemsize), (n,), dtype)


def full(n: int, value: float, dtype: Any = float32, device: str = "cuda") -> Tensor:
    import numpy as np

    made = empty(n, dtype)
    made.set(np.full(n, value, dtype.name).tobytes())
    return made
