"""The process of an actor: it makes the object, and answers calls that come through a local socket.

The socket has a name in Linux's abstract namespace, so that no file is left behind. Every process
of the host can see the name. For this reason both sides ask the kernel for the user of the other
one, and a caller must have the actor's key, too. Each connection has a thread, so that none can
delay the others.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hmac
import inspect
import os
import pickle
import socket
import struct
import threading
import time
from collections.abc import Coroutine
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, TypeAlias

import cloudpickle

from millrace import errors

#: Seconds that a caller has to show the key.
HANDSHAKE_SECONDS = 10.0
#: Length of a key, in bytes.
KEY_BYTES = 32
#: Length of a message, in bytes.
_LENGTH = struct.Struct("<Q")
#: Process, user and group on the other side of a local socket (struct ucred).
_CREDENTIALS = struct.Struct("=iII")
#: Largest number of bytes that are read at once.
_CHUNK = 1 << 20
#: Seconds until the next connection is accepted if this process can open no more files.
_PAUSE = 0.1


@dataclass(frozen=True)
class Outcome:
    """The end of a call: the value that it returned, or the exception that it raised. A call that
    raises is no failed task: the calls after it have it as an input."""

    value: Any = None
    error: BaseException | None = None


#: Takes the answer of a call; None: the object has ended without one.
_Answer: TypeAlias = "SimpleQueue[bytes | None]"


# ---- messages ------------------------------------------------------------------------------------


def address(name: str, life: int) -> str:
    """Returns the name of the socket of an actor that was made for the `life`-th time."""
    return f"\0millrace-actor-{name}-{life}"


def connect(name: str, life: int, key: bytes) -> socket.socket:
    """Connects to an actor.

    Raises:
        ConnectionError: its process has ended, or the other side is of another user.
    """
    other = socket.socket(socket.AF_UNIX)
    try:
        other.connect(address(name, life))
        if _user(other) != os.getuid():
            raise ConnectionRefusedError(errno.ECONNREFUSED, "the process that listens is of another user")
        other.sendall(key)
    except BaseException:
        other.close()
        raise
    return other


def send(other: socket.socket, message: bytes) -> None:
    """Sends a message."""
    other.sendall(_LENGTH.pack(len(message)))
    other.sendall(message)


def receive(other: socket.socket) -> bytearray:
    """Receives a message. Raises EOFError if the other side has ended."""
    (length,) = _LENGTH.unpack(_read(other, _LENGTH.size))
    return _read(other, length)


def _read(other: socket.socket, size: int) -> bytearray:
    out = bytearray()
    while len(out) < size:
        some = other.recv(min(size - len(out), _CHUNK))
        if not some:
            raise EOFError("the connection was closed")
        out += some
    return out


def _user(other: socket.socket) -> int:
    """Returns the user on the other side."""
    found = other.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return _CREDENTIALS.unpack(found)[1]


# ---- the process ---------------------------------------------------------------------------------


class Host:
    """An object, and the socket through which it is called.

    Methods run in the thread that calls `serve`, one after the other. Those that are coroutines run
    together, in an event loop that stands still while another method runs.

    Args:
        made: the object.
        name: name of the actor.
        life: how often it was made, with this time.
        key: key that callers must have.
        handshake: seconds that a caller has to show the key.
    """

    def __init__(self, made: Any, name: str, life: int, key: bytes, handshake: float = HANDSHAKE_SECONDS) -> None:
        self._made, self._key, self._handshake = made, key, handshake
        self._loop = asyncio.new_event_loop()
        # Requests, with the queues that take their answers.
        self._inbox: asyncio.Queue[tuple[bytearray, _Answer]] = asyncio.Queue()
        # The queues of the callers that wait. Guarded by the lock.
        self._lock = threading.Lock()
        self._waiting: set[_Answer] = set()
        self._closed = False
        self._running: set[asyncio.Task[None]] = set()
        self._listener = socket.socket(socket.AF_UNIX)
        try:
            self._listener.bind(address(name, life))
            self._listener.listen(128)
        except BaseException:
            self.close()
            raise
        threading.Thread(target=self._accept, name="millrace-actor", daemon=True).start()

    def close(self) -> None:
        """Accepts no more calls, and ends those that run."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # ends `accept`, which closing alone does not
        self._listener.close()
        with self._lock:
            self._closed = True
            for answer in self._waiting:
                answer.put(None)
        self._loop.run_until_complete(self._cancel())
        self._loop.close()

    async def _cancel(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # ---- the threads of connections ----

    def _accept(self) -> None:
        while True:
            try:
                caller, _ = self._listener.accept()
            except OSError as e:
                if e.errno not in (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ECONNABORTED):
                    return  # the socket is closed
                time.sleep(_PAUSE)
                continue
            try:
                if _user(caller) != os.getuid():
                    caller.close()
                    continue
                threading.Thread(target=self._take, args=(caller,), name="millrace-actor", daemon=True).start()
            except (OSError, RuntimeError):  # RuntimeError: there can be no more threads
                caller.close()

    def _take(self, caller: socket.socket) -> None:
        """Reads the request of a caller, and sends the answer. A caller may end at any time."""
        answer: _Answer = SimpleQueue()
        with caller, contextlib.suppress(OSError, EOFError):
            caller.settimeout(self._handshake)
            if not hmac.compare_digest(_read(caller, KEY_BYTES), self._key):
                return
            caller.settimeout(None)
            request = receive(caller)
            with self._lock:
                if self._closed:
                    return
                self._waiting.add(answer)
                self._loop.call_soon_threadsafe(self._inbox.put_nowait, (request, answer))
            if (message := answer.get()) is not None:
                send(caller, message)
        with self._lock:
            self._waiting.discard(answer)

    # ---- the thread of the object ----

    def serve(self) -> None:
        """Answers calls, for ever."""
        while True:
            request, answer = self._loop.run_until_complete(self._inbox.get())
            try:
                method, args, kwargs = pickle.loads(request)
                found = getattr(self._made, method)
                value = found if args is None else found(*args, **kwargs)
            except Exception as e:
                answer.put(_pickled(Outcome(error=e)))
                continue
            if not inspect.iscoroutine(value):
                answer.put(_pickled(Outcome(value)))
                continue
            task = self._loop.create_task(self._finish(value, answer))
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    async def _finish(self, value: Coroutine[Any, Any, Any], answer: _Answer) -> None:
        try:
            answer.put(_pickled(Outcome(await value)))
        except (Exception, asyncio.CancelledError) as e:
            answer.put(_pickled(Outcome(error=e)))


def _pickled(outcome: Outcome) -> bytes:
    try:
        return cloudpickle.dumps(outcome, protocol=5)
    except Exception as e:
        error = e if outcome.error is None else outcome.error
        try:
            return cloudpickle.dumps(Outcome(error=error), protocol=5)
        except Exception:
            return cloudpickle.dumps(Outcome(error=errors.RemoteError(f"{type(error).__name__}: {error}")), protocol=5)
