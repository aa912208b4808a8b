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
__all__ = [
    "_C",
    "OutOfMemoryError",
    "Tensor",
    "as_tensor",
    "cuda",
    "empty",
    "float32",
    "full",
    "int64",
    "strided",
    "uint8",
]
strided = "strided"


class dtype:
    def __init__(self, name: str, itemsize: int) -> None:
        self.name, self.itemsize = name, itemsize

    def __repr__(self) -> str:
        return f"torch.{self.name}"


float32, int64, uint8 = dtype("float32", 4), dtype("int64", 8), dtype("uint8", 1)


class _Storage:
    segment: Any = None  # there was no memory

    def __init__(self, nbytes: int) -> None:
        self.segment = _allocator.allocate(nbytes)

    def __del__(self) -> None:
        if self.segment is not None:
            self.segment.used = False


class _Foreign:
    """Memory of another library, which is kept alive."""

    def __init__(self, owner: Any) -> None:
        self.owner = owner
        self.segment = _allocator.Segment(owner.__cuda_array_interface__["data"][0], 0)


class Tensor:
    is_cuda, layout = True, strided

    def __init__(self, storage: Any, shape: tuple[int, ...], dtype: dtype, offset: int = 0) -> None:
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

    def view(self, dtype: Any) -> Tensor:
        return Tensor(self._storage, (self.shape[0] * self.dtype.itemsize // dtype.itemsize,), dtype, self._offset)

    def as_strided(self, shape: tuple[int, ...], strides: Any) -> Tensor:
        assert list(strides) == [1] and len(shape) == 1
        return Tensor(self._storage, shape, self.dtype, self._offset)

    def set(self, data: bytes) -> None:
        cuda.write(self.data_ptr(), data)

    def get(self) -> bytes:
        return cuda.read(self.data_ptr(), self.dtype.itemsize * self.shape[0])

    def _numpy(self) -> Any:
        import numpy as np

        return np.frombuffer(self.get(), self.dtype.name)

    def __add__(self, value: int) -> Tensor:
        made = empty(self.shape[0], self.dtype)
        made.set((self._numpy() + value).tobytes())
        return made

    def __iadd__(self, value: int) -> Tensor:
        self.set((self._numpy() + value).tobytes())
        return self

    def sum(self) -> int:
        return int(self._numpy().sum())


def as_tensor(array: Any, device: str = "cuda") -> Tensor:
    cuda.init()
    face = array.__cuda_array_interface__
    assert face["typestr"] == "|u1"
    return Tensor(_Foreign(array), face["shape"], uint8)


def empty(n: int, dtype: Any = float32, device: str = "cuda") -> Tensor:
    cuda.init()
    return Tensor(_Storage(n * dtype.itemsize), (n,), dtype)


def full(shape: Any, value: float, dtype: Any = float32, device: str = "cuda") -> Tensor:
    import numpy as np

    n = shape if isinstance(shape, int) else shape[0]
    made = empty(n, dtype)
    made.set(np.full(n, value, dtype.name).tobytes())
    return made
