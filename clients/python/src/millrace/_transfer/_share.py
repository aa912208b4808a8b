"""The memory of a worker, mapped into a client on the same host.

The worker listens on an abstract unix socket that is named after its data address. It passes the
descriptor of its memory to processes of its own user that know the token, and grants leases on
objects. Gathered data are used in place, and scattered data are written to their final place. See
docs/borrow-protocol.md for the protocol.

A gathered array can be written to like any other: each large frame is mapped privately, so that the
kernel copies the pages that are written, and no other process sees the change.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import fcntl
import mmap
import os
import socket
import struct
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from millrace._pb.millrace.host.v1 import borrow_pb2
from millrace._pb.millrace.v1 import data_service_pb2

_LENGTH = struct.Struct("<I")
_MOST_BYTES = 256 << 20
#: Smaller frames, in bytes, are copied: a mapping of their own would cost as much, and the number
#: of mappings of a process is limited.
LEND_BYTES = 1 << 20
#: Longest wait for an answer, in seconds. The place for a new object may take as long as the worker
#: waits for memory.
_CALL_SECONDS = 10.0
_PLACE_SECONDS = 60.0
_MAP_NORESERVE = 0x4000
#: Most threads of a large copy, and the bytes that justify another thread.
_COPY_THREADS = 4
_COPY_BYTES = 32 << 20
_MAGIC = b"MILLRACE"
_HEADER = struct.Struct("<8sI4x16s16sQQ")


class NotSharedError(Exception):
    """This worker's memory cannot be mapped here: another host, another user, another token, an
    older version."""


class RefusedError(Exception):
    """The worker refused a request."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(f"{reason}: {message}")
        self.reason = reason


class Share:
    """One connection to one worker, and the mapping of its memory."""

    def __init__(self, address: str, token: str, *, write: bool) -> None:
        self._lock = threading.Lock()  # one call at a time
        self._calls = 0
        self._broken = False
        if not hasattr(socket, "AF_UNIX") or not hasattr(socket, "SO_PEERCRED"):
            raise NotSharedError("this system has no abstract unix sockets")
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.settimeout(_CALL_SECONDS)
            try:
                self._socket.connect("\0millrace/" + address)
            except OSError as e:
                raise NotSharedError(f"no worker at {address} on this host ({e.strerror or e})") from None
            #: Descriptor of the worker's memory, to map frames.
            self._descriptor = -1
            self._memory = self._greet(token, write)
        except BaseException:
            self._socket.close()
            raise

    def _greet(self, token: str, write: bool) -> mmap.mmap:
        credentials = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        _, uid, _ = struct.unpack("3i", credentials)
        if uid != os.geteuid():
            raise NotSharedError(f"its socket belongs to user {uid}, we are {os.geteuid()}")
        request = borrow_pb2.BorrowRequest(hello=borrow_pb2.BorrowHello(token=token, write=write))
        try:
            self._send(request)
            prefix, descriptors = self._receive_descriptor()
            try:
                response = borrow_pb2.BorrowResponse.FromString(self._exactly(_LENGTH.unpack(prefix)[0]))
                if response.HasField("error"):
                    raise NotSharedError(f"{response.error.reason}: {response.error.message}")
                if not descriptors:
                    raise NotSharedError("it passed no descriptor of its memory")
                memory = _map(descriptors[0], response.welcome, write)
                self._descriptor = descriptors.pop(0)
                return memory
            finally:
                for descriptor in descriptors:
                    os.close(descriptor)
        except OSError as e:
            raise NotSharedError(f"the handshake failed: {e}") from e

    def _receive_descriptor(self) -> tuple[bytes, list[int]]:
        size = array.array("i").itemsize
        data, ancillary, _, _ = self._socket.recvmsg(_LENGTH.size, socket.CMSG_SPACE(4 * size), socket.MSG_CMSG_CLOEXEC)
        descriptors = array.array("i")
        for level, kind, content in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                descriptors.frombytes(content[: len(content) - len(content) % size])
        if not data:
            raise ConnectionError("the worker has closed the connection")
        return data + self._exactly(_LENGTH.size - len(data)), list(descriptors)

    def _exactly(self, n: int) -> bytes:
        if n > _MOST_BYTES:
            raise ConnectionError(f"a message of {n} bytes")
        parts: list[bytes] = []
        while n > 0:
            part = self._socket.recv(min(n, 1 << 20))
            if not part:
                raise ConnectionError("the worker has closed the connection")
            parts.append(part)
            n -= len(part)
        return b"".join(parts)

    def _send(self, request: borrow_pb2.BorrowRequest) -> None:
        data = request.SerializeToString()
        self._socket.sendall(_LENGTH.pack(len(data)) + data)

    def _call(self, request: borrow_pb2.BorrowRequest, timeout: float = _CALL_SECONDS) -> borrow_pb2.BorrowResponse:
        with self._lock:
            if self._broken:
                raise ConnectionError("the connection has ended")
            self._calls += 1
            request.call = self._calls
            try:
                self._socket.settimeout(timeout)
                self._send(request)
                while True:
                    response = borrow_pb2.BorrowResponse.FromString(self._exactly(_LENGTH.unpack(self._exactly(4))[0]))
                    if response.call == request.call:
                        break
            except BaseException:
                # The worker takes back everything that was in progress when the connection ends.
                self._broken = True
                self._socket.close()
                raise
        if response.HasField("error"):
            raise RefusedError(response.error.reason, response.error.message)
        return response

    @property
    def broken(self) -> bool:
        """True if the connection has ended."""
        return self._broken

    def close(self) -> None:
        """Ends the connection. Memory that is still used stays mapped."""
        with self._lock:
            self._broken = True
            self._socket.close()

    def __del__(self) -> None:
        if getattr(self, "_descriptor", -1) >= 0:
            os.close(self._descriptor)

    def acquire(self, refs: Sequence[data_service_pb2.ObjectRef]) -> Sequence[borrow_pb2.ReadLease]:
        """Returns leases, in the order of the objects. The lease_id is 0 for an object that cannot
        be lent."""
        request = borrow_pb2.BorrowRequest(acquire=borrow_pb2.BorrowAcquire(objects=refs))
        leases = self._call(request).acquired.leases
        if len(leases) != len(refs):
            raise ConnectionError(f"{len(leases)} leases for {len(refs)} objects")
        return leases

    def release(self, numbers: Sequence[int]) -> None:
        """Releases leases."""
        self._call(borrow_pb2.BorrowRequest(release=borrow_pb2.BorrowRelease(lease_ids=numbers)))

    def frames(self, lease: borrow_pb2.ReadLease, give_back: Callable[[], None], *, copy: bool) -> list[memoryview]:
        """Returns the frames of a leased object: large ones in place unless `copy` is set, the
        others copied. `give_back` is called when no view in place is used any more."""
        keeper = _Keeper(give_back)
        views: list[memoryview] = []
        for frame in lease.frames:
            if frame.offset + frame.bytes > len(self._memory):
                raise ConnectionError("a frame beyond the memory's end")
            if not copy and frame.bytes >= LEND_BYTES:
                with contextlib.suppress(OSError):  # too many mappings: copy this frame, too
                    views.append(np.asarray(_Mapped(self._descriptor, frame.offset, frame.bytes, keeper)).data)
                    continue
            copied = np.empty(frame.bytes, np.uint8)
            _copy(copied, np.frombuffer(self._memory, np.uint8, frame.bytes, frame.offset))
            views.append(copied.data)
        return views

    def write(self, head: data_service_pb2.ObjectHead, frames: Sequence[memoryview]) -> None:
        """Writes an object to its final place, which takes one copy."""
        request = borrow_pb2.BorrowRequest(create=borrow_pb2.BorrowCreate(head=head))
        created = self._call(request, _PLACE_SECONDS).created
        finish = borrow_pb2.BorrowFinish(place_id=created.place_id)
        try:
            if [f.bytes for f in created.frames] != [f.nbytes for f in frames]:
                raise ConnectionError("the place has another size than the object")
            for frame, data in zip(created.frames, frames, strict=True):
                if data.nbytes:
                    _copy(
                        np.frombuffer(self._memory, np.uint8, frame.bytes, frame.offset), np.frombuffer(data, np.uint8)
                    )
            finish.commit = True
        finally:
            self._call(borrow_pb2.BorrowRequest(finish=finish), _PLACE_SECONDS)


def _copy(to: np.ndarray[Any, Any], data: np.ndarray[Any, Any]) -> None:
    """Copies bytes, large amounts with several threads: the first access to new pages takes longer
    than the copy itself."""
    threads = min(_COPY_THREADS, len(os.sched_getaffinity(0)), data.nbytes // _COPY_BYTES)
    if threads < 2:
        np.copyto(to, data)
        return
    each = -(-data.nbytes // threads // mmap.PAGESIZE) * mmap.PAGESIZE
    parts = [slice(at, at + each) for at in range(0, data.nbytes, each)]
    others = [threading.Thread(target=np.copyto, args=(to[p], data[p])) for p in parts[1:]]
    for thread in others:
        thread.start()
    np.copyto(to[parts[0]], data[parts[0]])
    for thread in others:
        thread.join()


class _Keeper:
    """Ends a lease when the last user of its bytes is freed."""

    __slots__ = ("_give_back",)

    def __init__(self, give_back: Callable[[], None]) -> None:
        self._give_back = give_back

    def __del__(self) -> None:
        self._give_back()


_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


class _Mapped:
    """A private mapping of one frame; arrays that NumPy makes from it keep it alive. The mmap
    module is not used because it would keep a descriptor open for each mapping."""

    def __init__(self, descriptor: int, offset: int, size: int, keeper: _Keeper) -> None:
        self._keeper = keeper
        self._address = 0
        into = offset % mmap.PAGESIZE
        self._size = size + into
        address = _libc.mmap(
            None,
            self._size,
            mmap.PROT_READ | mmap.PROT_WRITE,
            mmap.MAP_PRIVATE | _MAP_NORESERVE,
            descriptor,
            offset - into,
        )
        if address is None or address == ctypes.c_void_p(-1).value:
            raise OSError(ctypes.get_errno(), "a frame cannot be mapped")
        self._address = address
        self.__array_interface__ = {"shape": (size,), "typestr": "|u1", "data": (address + into, False), "version": 3}

    def __del__(self) -> None:
        if self._address:
            _libc.munmap(self._address, self._size)


def _map(descriptor: int, welcome: Any, write: bool) -> mmap.mmap:
    size = os.fstat(descriptor).st_size
    if size != welcome.memory_bytes:
        raise NotSharedError(f"its memory has {size} bytes instead of {welcome.memory_bytes}")
    if size < _HEADER.size:
        raise NotSharedError(f"its memory of {size} bytes has no room for a header")
    # Without the seal its owner could shrink the file, which would kill this process by SIGBUS.
    if not fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
        raise NotSharedError("its memory is not sealed against shrinking")
    protection = mmap.PROT_READ | (mmap.PROT_WRITE if write else 0)
    memory = mmap.mmap(descriptor, size, flags=mmap.MAP_SHARED | _MAP_NORESERVE, prot=protection)
    magic, _, uuid, incarnation, nonce, stated = _HEADER.unpack_from(memory)
    if (magic, uuid, incarnation, nonce, stated) != (
        _MAGIC,
        welcome.worker_uuid,
        welcome.incarnation,
        welcome.nonce,
        size,
    ):
        raise NotSharedError("the memory that it passed is not the one that it described")
    return memory
