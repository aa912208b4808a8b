"""The worker's slab on a GPU, wrapped as arrays of CuPy, torch and others without a copy."""

from __future__ import annotations

import ctypes
import importlib.util
import sys
import zlib
from typing import TYPE_CHECKING, Any

from millrace._values._arrays import DeviceFrame, DeviceView
from millrace._values._driver import CudaError, Driver

if TYPE_CHECKING:
    from millrace._pb.millrace.executor.v1 import executor_pb2

__all__ = ["CudaError", "Device", "DeviceArray", "DeviceRange"]

#: Arrays on the GPU up to this size, in bytes, are stored with the header in host memory, which is
#: cheaper than slab memory of their own.
INLINE_BYTES = 4 << 10


#: Bytes that are copied to the host at a time for a checksum.
_PIECE = 16 << 20


class Owner:
    """Represents the use of one input. Every array over the input's memory refers to its Owner:
    while the Owner is alive, the input is in use."""

    __slots__ = ("__weakref__", "device")

    def __init__(self, device: Device) -> None:
        self.device = device


class DeviceRange:
    """A read-only frame of an input, given by its place in the slab."""

    __slots__ = ("device", "nbytes", "offset", "owner")

    def __init__(self, device: Device, offset: int, nbytes: int, owner: Owner | None = None) -> None:
        self.device, self.offset, self.nbytes, self.owner = device, offset, nbytes, owner


class DeviceArray:
    """The array type that a task is given on a machine with neither CuPy nor torch. Every library
    that reads `__cuda_array_interface__` accepts it without a copy."""

    def __init__(
        self, device: Device, pointer: int, dtype: Any, shape: tuple[int, ...], strides: Any, owner: Any = None
    ) -> None:
        self._device, self._owner = device, owner
        self.dtype, self.shape, self.strides = dtype, shape, strides
        self._pointer = pointer

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "version": 3,
            "typestr": self.dtype.str,
            "shape": self.shape,
            "strides": self.strides,
            "data": (self._pointer, False),
            "stream": None,  # the data was complete before the task began
        }

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        n = 1
        for length in self.shape:
            n *= length
        return n

    def get(self) -> Any:
        """Returns a NumPy copy."""
        import numpy as np

        view = DeviceView(
            self,
            "",
            self._pointer,
            self.dtype.name,
            self.dtype.itemsize,
            self.shape,
            self.strides,
        )
        return self._device.fetch(view, np.dtype(self.dtype))

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        array = self.get()
        return array if dtype is None else array.astype(dtype)

    def __repr__(self) -> str:
        return f"DeviceArray(shape={self.shape}, dtype={self.dtype})"


class Device:
    """The worker's GPU as this process uses it. All methods are called in the main thread."""

    def __init__(self, hello: executor_pb2.ExecutorDevice, size: int) -> None:
        self.hello = hello
        self.driver = Driver(hello.driver_library, hello.uuid, hello.ordinal)
        self.size = size
        self.base = self.driver.open(hello.memory_handle)
        found = ctypes.create_string_buffer(len(hello.slab_header))
        self.driver.read(ctypes.addressof(found), self.base, len(hello.slab_header))
        if found.raw != hello.slab_header:
            raise RuntimeError(
                "the memory behind the worker's handle is not its slab: it is that of an earlier life of it"
            )
        #: Arrays up to this size, in bytes, are stored with the header.
        self.inline_bytes = INLINE_BYTES
        #: Library whose arrays the current run is given; "": DeviceArray.
        self.library = ""
        # The current run only wants the libraries' current streams to be waited for.
        self._only_current = False
        self._default: str | None = None
        # CuPy's object for the whole slab, for arrays without an owner.
        self._unowned: Any = None

    # ---- inputs ----------------------------------------------------------------------------------

    def choose(self, wanted: str | None, streams: str = "all") -> None:
        """Sets the library for the next run, and the streams that the end of the run waits for."""
        self._only_current = streams == "current"
        if wanted is None:
            if self._default is None:
                found = (n for n in ("cupy", "torch") if n in sys.modules or importlib.util.find_spec(n) is not None)
                self._default = next(found, "")
            wanted = self._default
        self.library = wanted

    def tensor(
        self, data: Any, dtype: Any, shape: tuple[int, ...], offset: int, strides: tuple[int, ...] | None
    ) -> Any:
        """Makes an array from an input with axes. `data` is a DeviceRange, or bytes that came with
        the header; None: the array has no elements."""
        import numpy as np

        if self.library == "numpy":
            host = self.host(data) if isinstance(data, DeviceRange) else data
            array = np.empty(shape, dtype) if host is None else np.ndarray(shape, dtype, host, offset, strides)
            array.flags.writeable = False
            return array
        if not isinstance(data, DeviceRange):
            array = np.empty(shape, dtype) if data is None else np.ndarray(shape, dtype, data, offset, strides)
            return self.upload(array)
        return self.wrap(self.library, self.base + data.offset + offset, dtype.name, shape, strides, data.owner)

    def wrap(
        self,
        library: str,
        pointer: int,
        dtype: str,
        shape: tuple[int, ...],
        strides: tuple[int, ...] | None,
        owner: Owner | None = None,
    ) -> Any:
        """Wraps slab memory as an array of a library. The array keeps `owner` alive."""
        if library == "cupy":
            import cupy  # pyright: ignore[reportMissingImports]

            if owner is not None:
                memory = cupy.cuda.UnownedMemory(self.base, self.size, owner, 0)
            else:
                if self._unowned is None:
                    self._unowned = cupy.cuda.UnownedMemory(self.base, self.size, self, 0)
                memory = self._unowned
            return cupy.ndarray(shape, dtype, cupy.cuda.MemoryPointer(memory, pointer - self.base), strides or None)
        if library == "torch":
            return self._torch(pointer, dtype, shape, strides, owner)
        import numpy as np

        array = DeviceArray(self, pointer, np.dtype(dtype), shape, strides or None, owner)
        if library == "numba":
            from numba import cuda  # pyright: ignore[reportMissingImports]

            return cuda.as_cuda_array(array)
        return array

    def restore(self, data: DeviceRange, library: str, dtype: str, shape: tuple[int, ...], order: str) -> Any:
        """Makes an array from a pickle. It belongs to `library`, unless the task wants NumPy
        arrays."""
        import numpy as np

        if self.library == "numpy" and library != "torch":
            array = np.frombuffer(self.host(data), dtype).reshape(shape, order=order)  # pyright: ignore[reportCallIssue, reportArgumentType]
            array.flags.writeable = False
            return array
        strides = None
        if order == "F":
            strides, step = [], data.nbytes
            for n in shape:
                step //= n
            for n in shape:
                strides.append(step)
                step *= n
            strides = tuple(strides)
        return self.wrap(library or self.library, self.base + data.offset, dtype, shape, strides, data.owner)

    def _torch(
        self, pointer: int, name: str, shape: tuple[int, ...], strides: tuple[int, ...] | None, owner: Owner | None
    ) -> Any:
        import numpy as np
        import torch  # pyright: ignore[reportMissingImports]

        dtype = getattr(torch, name)
        itemsize = dtype.itemsize
        view = DeviceView(None, "", pointer, name, itemsize, shape, strides)
        if any(s < 0 or s % itemsize for s in view.strides):  # torch supports no such strides
            return torch.from_numpy(self.fetch(view, np.dtype(name))).cuda()
        if 0 in shape:
            return torch.empty(shape, dtype=dtype, device="cuda")
        extent = itemsize + sum((n - 1) * s for n, s in zip(shape, view.strides, strict=True))
        # The tensor keeps the DeviceArray alive, which keeps the owner alive.
        flat = torch.as_tensor(DeviceArray(self, pointer, np.dtype("u1"), (extent,), None, owner), device="cuda").view(
            dtype
        )
        return flat.as_strided(shape, [s // itemsize for s in view.strides])

    def upload(self, array: Any, library: str | None = None) -> Any:
        """Copies a small array in host memory to the GPU."""
        library = self.library if library is None else library
        if library == "cupy":
            import cupy  # pyright: ignore[reportMissingImports]

            return cupy.asarray(array)
        if library == "torch":
            import torch  # pyright: ignore[reportMissingImports]

            return torch.tensor(array, device="cuda")
        if library == "numba":
            from numba import cuda  # pyright: ignore[reportMissingImports]

            return cuda.to_device(array)
        return array  # DeviceArray has no library that could free the memory

    def host(self, frame: DeviceRange) -> memoryview:
        """Returns a copy of a frame in host memory."""
        data = bytearray(frame.nbytes)
        if data:
            room = (ctypes.c_ubyte * len(data)).from_buffer(data)
            self.driver.read(ctypes.addressof(room), self.base + frame.offset, len(data))
        return memoryview(data).toreadonly()

    def checksum(self, offset: int, nbytes: int) -> int:
        """Returns the checksum of slab memory, to detect a change later."""
        room = (ctypes.c_ubyte * min(nbytes, _PIECE))()
        found = 0
        for at in range(offset, offset + nbytes, _PIECE):
            n = min(_PIECE, offset + nbytes - at)
            self.driver.read(ctypes.addressof(room), self.base + at, n)
            found = zlib.crc32(memoryview(room)[:n], found)
        return found

    def fetch(self, view: DeviceView, dtype: Any) -> Any:
        """Returns a NumPy copy of an array. It first waits for work that was submitted before,
        because that may write the array."""
        import numpy as np

        self.wait(view.stream)
        low = sum((n - 1) * s for n, s in zip(view.shape, view.strides, strict=True) if s < 0)
        high = sum((n - 1) * s for n, s in zip(view.shape, view.strides, strict=True) if s > 0)
        if 0 in view.shape:
            return np.empty(view.shape, dtype)
        data = np.empty(high - low + view.itemsize, np.uint8)
        self.driver.read(data.ctypes.data, view.pointer + low, data.nbytes)
        array = np.ndarray(view.shape, dtype, data, -low, view.strides)
        return array if not view.order == "" else np.ascontiguousarray(array)

    # ---- results ---------------------------------------------------------------------------------

    def offset(self, frame: Any) -> int | None:
        """Returns where a frame lies in the slab; None if it lies elsewhere."""
        if not isinstance(frame, DeviceFrame) or frame.gaps:
            return None
        at = frame.view.pointer - self.base
        return at if 0 <= at and at + frame.nbytes <= self.size else None

    def write(self, frame: Any, at: int) -> None:
        """Begins to copy a frame of a result to its place in the slab, on a stream that waits for
        no other. REQUIRES: all writes to the frame are complete, and the frame stays unchanged
        until `wait`."""
        if not frame.nbytes:
            return
        if not isinstance(frame, DeviceFrame):
            import numpy as np

            host = np.frombuffer(frame, np.uint8) if isinstance(frame, memoryview) else np.ascontiguousarray(frame)
            self.driver.write(self.base + at, host.ctypes.data, host.nbytes)
            # The driver copies large memory that is not registered with it before the call returns,
            # but it may still read small memory after that.
            self.driver.wait()
            return
        view = frame.view
        if not frame.gaps:
            self.driver.copy(self.base + at, view.pointer, view.nbytes)
        elif view.library == "torch":
            self.wrap("torch", self.base + at, view.dtype, view.shape, None).copy_(view.owner.detach())
        else:
            cupy: Any = sys.modules.get("cupy")
            if cupy is None:
                host = self.fetch(view, view.dtype)
                self.driver.write(self.base + at, host.ctypes.data, host.nbytes)
                self.driver.wait()
                return
            self.wrap("cupy", self.base + at, view.dtype, view.shape, None)[...] = cupy.asarray(view.owner)

    def error(self) -> CudaError | None:
        """Waits for all submitted GPU work. Returns an error if the GPU does not work in this
        process any more. An error can be transient, or come from an earlier call: it counts only if
        the next call fails as well."""
        for last in (False, True):
            try:
                self.driver.wait_for_all()
            except CudaError as e:
                if e.lost or last:
                    return e
            else:
                break
        return None

    # ---- order -----------------------------------------------------------------------------------

    def wait(self, *others: int) -> None:
        """Waits until all work that the task submitted to the GPU is done, and this object's
        copies. If the function asks for it, only the libraries' current streams are waited for, and
        those given in `others`."""
        streams = {0, *others}
        cupy: Any = sys.modules.get("cupy")
        if cupy is not None:
            streams.add(cupy.cuda.get_current_stream().ptr)
        # Another thread may be importing torch.
        torch: Any = getattr(sys.modules.get("torch"), "cuda", None)
        if torch is not None and torch.is_initialized():
            streams.add(torch.current_stream().cuda_stream)
        # The streams are polled first, because a run cannot be interrupted inside of the driver's
        # blocking wait.
        self.driver.wait(*streams)
        if not self._only_current:
            self.driver.wait_for_all()
