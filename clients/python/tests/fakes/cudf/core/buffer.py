"""Buffers of cuDF. Several share one owner, and a write to one of them copies it first. With
CUDF_SPILL=on, buffers whose address nobody has taken can be moved to host memory."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import cupy
import numpy as np
import rmm

from cudf.core.abc import Serializable


class BufferOwner(Serializable):
    def __init__(self, ptr: int, size: int, owner: Any) -> None:
        self.ptr, self.size, self.owner = ptr, size, owner
        self._slices: weakref.WeakSet[Any] = weakref.WeakSet()

    @classmethod
    def from_device_memory(cls, data: Any) -> Any:
        interface = data.__cuda_array_interface__
        return cls(interface["data"][0] or 0, interface["shape"][0], data)

    @classmethod
    def from_host_memory(cls, data: memoryview) -> Any:
        return cls.from_device_memory(rmm.DeviceBuffer.to_device(data))


class SpillableBufferOwner(BufferOwner):
    exposed = False
    #: The contents in host memory, if they are there.
    spilled: memoryview | None = None

    def __init__(self, ptr: int, size: int, owner: Any) -> None:
        if not spilling():
            raise ValueError("a spillable buffer needs a spill manager")
        super().__init__(ptr, size, owner)

    @classmethod
    def from_host_memory(cls, data: memoryview) -> Any:
        made = cls(0, data.nbytes, None)
        made.spilled = data
        return made

    def spill(self) -> None:
        if self.spilled is not None:
            return
        host = np.empty(self.size, np.uint8)
        rmm.copy_ptr_to_host(self.ptr, host)
        self.spilled, self.ptr, self.owner = memoryview(host), 0, None

    def expose(self) -> None:
        if self.spilled is not None:
            self.owner = rmm.DeviceBuffer.to_device(self.spilled)
            self.ptr, self.spilled = self.owner.ptr, None
        self.exposed = True


class Buffer(Serializable):
    def __init__(self, owner: Any, offset: int = 0, size: int | None = None) -> None:
        self.owner, self._offset, self.size = owner, offset, owner.size if size is None else size
        owner._slices.add(self)

    @property
    def nbytes(self) -> int:
        return self.size

    @property
    def ptr(self) -> int:
        return self.owner.ptr + self._offset

    @contextmanager
    def access(self, *, mode: str, **_more: Any) -> Iterator[Any]:
        assert mode == "read"
        yield self

    def __getitem__(self, key: slice) -> Any:
        start, stop, _ = key.indices(self.size)
        return type(self)(self.owner, self._offset + start, stop - start)

    def memoryview(self) -> memoryview:
        host = np.empty(self.size, np.uint8)
        rmm.copy_ptr_to_host(self.ptr, host)
        return memoryview(host)

    def write(self, host: Any) -> None:
        """Stands for a kernel that writes to the buffer."""
        self._own()
        memory = cupy.cuda.UnownedMemory(self.ptr, self.size, self)
        cupy.ndarray((self.size,), "u1", cupy.cuda.MemoryPointer(memory, 0))[...] = np.frombuffer(host, np.uint8)

    def _own(self) -> None:
        """Moves the buffer to a copy of its memory, if other buffers share it."""
        if len(self.owner._slices) > 1:
            self.owner._slices.remove(self)
            copied = rmm.DeviceBuffer(ptr=self.ptr, size=self.size)
            self.owner, self._offset = type(self.owner).from_device_memory(copied), 0
            self.owner._slices.add(self)

    @property
    def __cuda_array_interface__(self) -> Any:
        self._own()  # as in cuDF, even a question for the attribute is a write
        return {"version": 3, "typestr": "|u1", "shape": (self.size,), "strides": None, "data": (self.ptr, False)}

    def serialize(self) -> tuple[dict[str, Any], list[Any]]:
        return {"owner-type-serialized-name": type(self.owner).__name__, "frame_count": 1}, [self]

    @classmethod
    def deserialize(cls, header: dict[str, Any], frames: list[Any]) -> Any:
        (frame,) = frames
        if isinstance(frame, cls):
            return frame
        owner = Serializable.kinds[header["owner-type-serialized-name"]]
        make = owner.from_host_memory if isinstance(frame, memoryview) else owner.from_device_memory
        return cls(make(frame))


class SpillableBuffer(Buffer):
    @contextmanager
    def access(self, *, mode: str, scope: str = "internal", **_more: Any) -> Iterator[Any]:
        assert mode == "read"
        if scope == "external":
            self.owner.expose()
        yield self

    def memoryview(self) -> memoryview:
        if self.owner.spilled is None:
            return super().memoryview()
        return self.owner.spilled[self._offset : self._offset + self.size]

    def serialize(self) -> tuple[dict[str, Any], list[Any]]:
        header, _ = super().serialize()
        if self.owner.spilled is not None:
            return header, [self.memoryview()]
        return header, [Buffer(BufferOwner(self.ptr, self.size, self))]


def spilling() -> bool:
    return os.environ.get("CUDF_SPILL") == "on"


def as_buffer(data: Any) -> Any:
    if isinstance(data, Buffer):
        return data
    owner, buffer = (SpillableBufferOwner, SpillableBuffer) if spilling() else (BufferOwner, Buffer)
    return buffer(owner.from_host_memory(data) if isinstance(data, memoryview) else owner.from_device_memory(data))
