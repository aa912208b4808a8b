"""The socket, the slab and the control page that connect an executor process with its worker."""

from __future__ import annotations

import ctypes
import mmap
import os
import socket
import struct
import threading
from array import array
from collections import deque

from millrace._pb.millrace.executor.v1 import executor_pb2

#: Inherited descriptors. If the slab lies on a GPU, SLAB_FD is the lock file of DeviceLock instead.
LINK_FD, SLAB_FD, CONTROL_FD = 3, 4, 5
MAX_MESSAGE = 64 << 20
_WORD = struct.Struct("<Q")
_LENGTH = struct.Struct("<I")
#: Ancillary space for 253 descriptors, which is the most that the kernel sends in one message.
_ANCILLARY = socket.CMSG_SPACE(253 * 4)


class Link:
    """Framed messages over the inherited socket. Any thread may send; one receives."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._sending = threading.Lock()
        self._received = bytearray()
        # Descriptors that arrived with the bytes received so far and were not taken yet, in order.
        self._descriptors: deque[int] = deque()

    def send(self, message: executor_pb2.FromExecutor) -> None:
        data = message.SerializeToString()
        with self._sending:
            self._socket.sendall(_LENGTH.pack(len(data)) + data)

    def receive(self) -> executor_pb2.ToExecutor | None:
        """Returns the next message; None at the end of the link."""
        head = self._take(4)
        if head is None:
            return None
        (length,) = _LENGTH.unpack(head)
        if length > MAX_MESSAGE:
            raise ValueError(f"message of {length} bytes from the worker: the limit is {MAX_MESSAGE}")
        body = self._take(length)
        return None if body is None else executor_pb2.ToExecutor.FromString(body)

    def take_descriptor(self) -> int:
        """Returns the next descriptor that came with a message; the caller closes it. REQUIRES: the
        reader thread."""
        return self._descriptors.popleft()

    def _take(self, n: int) -> bytes | None:
        while len(self._received) < n:
            piece, ancillary, flags, _ = self._socket.recvmsg(
                max(1 << 18, n - len(self._received)), _ANCILLARY, socket.MSG_CMSG_CLOEXEC
            )
            for level, kind, data in ancillary:
                if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                    fds = array("i")
                    fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
                    self._descriptors.extend(fds)
            if flags & socket.MSG_CTRUNC:
                raise ValueError("descriptors from the worker were lost: too many are open here, look at ulimit -n")
            if not piece:
                return None
            self._received += piece
        taken = bytes(self._received[:n])
        del self._received[:n]
        return taken


class Slab:
    """The worker's slab in host memory, mapped twice: inputs are read through the read-only
    mapping, results are written through the other one."""

    def __init__(self, fd: int, size: int) -> None:
        self.readable = memoryview(mmap.mmap(fd, size, mmap.MAP_SHARED, mmap.PROT_READ))
        self.writable = memoryview(mmap.mmap(fd, size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE))
        os.close(fd)


class Segment:
    """Memory of another worker, mapped for reading."""

    def __init__(self, fd: int, size: int) -> None:
        # Views keep their mapping alive, also after the Segment is dropped.
        self._fd, self._size = fd, size
        self._map()

    def _map(self) -> None:
        #: A view of the whole segment.
        self.readable = memoryview(mmap.mmap(self._fd, self._size, mmap.MAP_SHARED, mmap.PROT_READ))

    def __del__(self) -> None:
        os.close(self._fd)

    def detach(self, ranges: list[tuple[int, int]]) -> None:
        """Detaches views of these ranges, given as (offset, bytes), from the segment: the views
        keep their present contents when the owner reuses the memory.

        The contents, rounded to whole pages, are copied to private pages of this process at the
        same addresses. Views that are made later use a new mapping of the segment. REQUIRES: the
        ranges have not been given back to the owner yet, and nothing reads other views of the old
        mapping.
        """
        import numpy as np

        # NB: keeps the old mapping until the end. Another thread may free the last view at any
        # moment: the addresses would then belong to nobody, or to other memory of the process.
        old = np.frombuffer(self.readable, np.uint8)
        base: int = old.ctypes.data
        self._map()
        page = mmap.PAGESIZE
        done = 0
        for offset, nbytes in sorted(ranges):
            begin = max(offset // page * page, done)
            done = max(-(-(offset + nbytes) // page) * page, done)
            if begin < done:
                _own_pages(base + begin, done - begin)


_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = _libc.mremap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.mremap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_FAILED = ctypes.c_void_p(-1).value
_MAYMOVE, _FIXED = 1, 2


def _own_pages(at: int, n: int) -> None:
    """Replaces mapped pages by read-only private copies. The replacement is atomic, so a thread
    that reads there sees no gap."""
    kind = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    copy = _libc.mmap(None, n, mmap.PROT_READ | mmap.PROT_WRITE, kind, -1, 0)
    if copy == _FAILED:
        raise OSError(ctypes.get_errno(), f"no memory for a copy of {n} bytes that outlive their run")
    ctypes.memmove(copy, at, n)
    _libc.mprotect(copy, n, mmap.PROT_READ)
    if _libc.mremap(copy, n, n, _MAYMOVE | _FIXED, at) == _FAILED:
        error = ctypes.get_errno()
        _libc.munmap(copy, n)
        raise OSError(error, f"the copy of {n} bytes that outlive their run cannot take their place")


class ControlPage:
    """A page of memory shared with the worker: the executor writes the ordinals of the last run
    that began, of the last that ended and of the last whose function was called, the worker the
    ordinal of a run to stop."""

    def __init__(self, fd: int) -> None:
        self._page = memoryview(mmap.mmap(fd, 4096, mmap.MAP_SHARED)).cast("Q")
        os.close(fd)

    def begin(self, ordinal: int) -> None:
        self._page[0] = ordinal

    def end(self, ordinal: int) -> None:
        self._page[1] = ordinal

    def call(self, ordinal: int) -> None:
        self._page[3] = ordinal

    @property
    def stop(self) -> int:
        """Ordinal of the run that the worker wants to stop; 0: none."""
        return self._page[2]


def open_socket() -> socket.socket:
    """Opens the inherited link. All three descriptors are set to close on exec, so that child
    processes of tasks do not keep them open."""
    for fd in (LINK_FD, SLAB_FD, CONTROL_FD):
        os.set_inheritable(fd, False)
    return socket.socket(fileno=LINK_FD)
