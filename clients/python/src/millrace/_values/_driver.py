"""The few CUDA driver calls that an executor needs itself, independent of the libraries that its
tasks use."""

from __future__ import annotations

import ctypes
import time
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p
from typing import Any

_OK, _NOT_READY = 0, 600
_NON_BLOCKING = 1
_BLOCKING_SYNC, _NO_TIMING = 1, 2
_LAZY_PEER_ACCESS = 1
OUT_OF_MEMORY = 2
#: Error codes after which every further call in the context fails; the same as in
#: memory/cuda/errors.go.
LOST = frozenset({4, 214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721, 805, 806, 810})
#: How long a wait polls without a pause before it sleeps between polls, and how long it sleeps, in
#: seconds.
_SPIN, _NAP = 0.0002, 0.00005


class CudaError(RuntimeError):
    """A driver call failed."""

    def __init__(self, call: str, code: int, name: str, text: str) -> None:
        super().__init__(f"{call}: {name} ({code}): {text}")
        self.code = code

    @property
    def lost(self) -> bool:
        """True if the context is lost: no GPU work is possible in this process any more."""
        return self.code in LOST


class _Handle(ctypes.Structure):
    _fields_ = (("bytes", ctypes.c_ubyte * 64),)


class Driver:
    """One GPU with its primary context, which all libraries use. All methods are called in the main
    thread."""

    def __init__(self, library: str, uuid: bytes, ordinal: int) -> None:
        self._lib = ctypes.CDLL(library or "libcuda.so.1")
        self._lib.cuMemcpyHtoDAsync_v2.argtypes = [c_uint64, c_void_p, c_size_t, c_void_p]
        self._lib.cuMemcpyDtoHAsync_v2.argtypes = [c_void_p, c_uint64, c_size_t, c_void_p]
        self._lib.cuMemcpyDtoDAsync_v2.argtypes = [c_uint64, c_uint64, c_size_t, c_void_p]
        self._lib.cuIpcOpenMemHandle_v2.argtypes = [c_void_p, _Handle, c_uint]
        self._lib.cuEventRecord.argtypes = [c_void_p, c_void_p]
        self._lib.cuEventQuery.argtypes = [c_void_p]
        self._lib.cuCtxSetCurrent.argtypes = [c_void_p]
        self._call("cuInit", 0)
        device = self._find(uuid, ordinal)
        context = c_void_p()
        self._call("cuDevicePrimaryCtxRetain", byref(context), device)
        self._call("cuCtxSetCurrent", context)
        self._stream = c_void_p()
        self._call("cuStreamCreateWithPriority", byref(self._stream), _NON_BLOCKING, 0)
        # One event for each stream that can be waited for at the same time.
        self._events: list[c_void_p] = []
        # True if work was submitted to the own stream and not waited for yet.
        self._busy = False

    def _call(self, name: str, *args: Any) -> None:
        code = getattr(self._lib, name)(*args)
        if code != _OK:
            raise self._error(name, code)

    def _error(self, name: str, code: int) -> CudaError:
        said, text = c_char_p(), c_char_p()
        self._lib.cuGetErrorName(code, byref(said))
        self._lib.cuGetErrorString(code, byref(text))
        return CudaError(name, code, (said.value or b"unknown error").decode(), (text.value or b"").decode())

    def _find(self, uuid: bytes, ordinal: int) -> int:
        count = c_int()
        self._call("cuDeviceGetCount", byref(count))
        numbers = sorted(range(count.value), key=lambda n: n != ordinal)
        for n in numbers:
            device, found = c_int(), (ctypes.c_ubyte * 16)()
            self._call("cuDeviceGet", byref(device), n)
            self._call("cuDeviceGetUuid_v2", byref(found), device)
            if bytes(found) == uuid:
                return device.value
        raise RuntimeError(f"the worker's GPU, {uuid.hex()}, is not among the {count.value} that this process sees")

    def addresses(self, *names: str) -> list[int]:
        """Returns the addresses of driver functions, for C code that calls them itself."""
        return [ctypes.cast(getattr(self._lib, name), c_void_p).value or 0 for name in names]

    def open(self, handle: bytes) -> int:
        """Maps another process's allocation, and returns its address in this process."""
        at = c_uint64()
        self._call("cuIpcOpenMemHandle_v2", byref(at), _Handle.from_buffer_copy(handle), _LAZY_PEER_ACCESS)
        return at.value

    def read(self, to: int, at: int, n: int) -> None:
        """Copies from the GPU to host memory, and waits for the copy."""
        self._call("cuMemcpyDtoHAsync_v2", to, at, n, self._stream)
        self._busy = True
        self.wait()

    def write(self, at: int, data: int, n: int) -> None:
        """Begins to copy host memory to the GPU. The memory must stay unchanged until `wait`."""
        self._call("cuMemcpyHtoDAsync_v2", at, data, n, self._stream)
        self._busy = True

    def copy(self, to: int, at: int, n: int) -> None:
        """Begins to copy on the GPU; the copy is complete after `wait`."""
        self._call("cuMemcpyDtoDAsync_v2", to, at, n, self._stream)
        self._busy = True

    def wait(self, *streams: int) -> None:
        """Waits until all work that was submitted to these streams and to the own stream is
        done."""
        if self._busy:
            self._busy = False
            streams = (self._stream.value or 0, *streams)
        while len(self._events) < len(streams):
            event = c_void_p()
            self._call("cuEventCreate", byref(event), _NO_TIMING)
            self._events.append(event)
        events = self._events[: len(streams)]
        for event, stream in zip(events, streams, strict=True):
            self._call("cuEventRecord", event, stream)
        for event in events:
            until = 0.0
            while True:
                code = self._lib.cuEventQuery(event)
                if code == _OK:
                    break
                if code != _NOT_READY:
                    raise self._error("cuEventQuery", code)
                now = time.perf_counter()
                until = until or now + _SPIN
                if now > until:
                    time.sleep(_NAP)

    def wait_for_all(self) -> None:
        """Waits until all work that this process submitted to the GPU is done. Work of other
        processes is not waited for."""
        self._busy = False
        self._call("cuCtxSynchronize")

    def memory(self) -> tuple[int, int]:
        """Returns the free bytes of the GPU, considering all processes, and its total bytes."""
        free, total = c_size_t(), c_size_t()
        self._call("cuMemGetInfo_v2", byref(free), byref(total))
        return free.value, total.value
