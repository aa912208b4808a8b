"""Calls beside the runs: functions that the worker asks for while tasks run."""

from __future__ import annotations

import inspect
import pickle
import platform
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from millrace import plugins
from millrace._pb.millrace.executor.v1 import executor_pb2
from millrace._pb.millrace.v1 import task_pb2, value_pb2
from millrace._values import _packages, _serialize
from millrace.executor._failure import Refused, describe, qualified, shortened
from millrace.executor._op import compare, import_function
from millrace.executor._outbox import Outbox
from millrace.executor._worker import Worker

#: Most bytes of a result, with its frames.
_MOST = 16 << 20


class Calls:
    """Makes calls beside the runs. Each has a thread to itself, and calls that do not overlap have
    the same one: libraries that must be closed by the thread that opened them can be used in calls.

    A function that runs in the main thread and never lets go of the interpreter (a long call of C
    code that holds the GIL) delays them.

    Args:
        worker: given to functions that have a parameter `dask_worker`.
        out: messages to the worker.
    """

    def __init__(self, worker: Worker, out: Outbox) -> None:
        self._worker, self._out = worker, out
        self._threads = threading.local()
        # Calls for each thread, in the order of their start, and the numbers of idle threads. The
        # reader thread takes numbers out, and a thread puts its own number in.
        self._given: list[SimpleQueue[executor_pb2.ExecutorCall]] = []
        self._idle: list[int] = []

    def start(self, call: executor_pb2.ExecutorCall) -> None:
        """Makes a call. REQUIRES: the reader thread."""
        if self._idle:
            number = min(self._idle)
            self._idle.remove(number)
        else:
            number = len(self._given)
            self._given.append(SimpleQueue())
            threading.Thread(target=self._serve, args=(number,), name="millrace-call", daemon=True).start()
        self._given[number].put(call)

    def _serve(self, number: int) -> None:
        while True:
            self._run(self._given[number].get(), number)

    @property
    def here(self) -> bool:
        """True in a thread that makes a call."""
        return getattr(self._threads, "calling", False)

    def _run(self, call: executor_pb2.ExecutorCall, number: int) -> None:
        self._threads.calling = True
        returned = executor_pb2.ExecutorReturn(call_id=call.call_id)
        try:
            self._fill(returned, call)
        except Refused as e:
            returned.error.reason, returned.error.message = e.reason, shortened(str(e))
        except BaseException as e:  # sys.exit ends the call, not the process
            describe(e, returned.error)
        if returned.HasField("error"):
            returned.ClearField("header")
            del returned.frames[:]
        self._idle.append(number)  # first: the answer may bring the next call
        try:
            self._out.send_return(returned)
        except OSError:  # the worker is gone
            pass

    def _fill(self, returned: executor_pb2.ExecutorReturn, call: executor_pb2.ExecutorCall) -> None:
        function = self._function(call)
        args, kwargs = _arguments(call.arguments)
        if plugins.takes(function, "dask_worker"):
            kwargs["dask_worker"] = self._worker
        result = function(*args, **kwargs)
        if inspect.iscoroutine(result):
            import asyncio  # slow to import, and rarely needed

            result = asyncio.run(result)
        try:
            encoded = _serialize.encode(result)
        except Exception as e:
            raise Refused(
                "RESULT_NOT_SERIALISABLE",
                f"the result of {call.op.name}, a {qualified(type(result))}, cannot be pickled: "
                f"{type(e).__name__}: {e}. Return its data instead",
            ) from e
        size = len(encoded.header) + encoded.nbytes
        if size > _MOST:
            raise Refused(
                "RESULT_TOO_LARGE",
                f"the result of {call.op.name} has {size:,} bytes, and {_MOST:,} are allowed: submit a task instead, whose "
                "result stays in the worker's memory",
            )
        returned.header = encoded.header
        returned.frames.extend(_bytes(f) for f in encoded.frames)

    def _function(self, call: executor_pb2.ExecutorCall) -> Callable[..., Any]:
        name, where = call.op.name, self._worker.name
        if call.op.kind != task_pb2.OP_KIND_PYTHON_PICKLE:
            return import_function(name, where)
        compare(call.function.language, name, where)
        try:
            return pickle.loads(call.function.payload)
        except BaseException as e:
            raise Refused(
                "FUNCTION_NOT_FOUND",
                f"function {name} cannot be unpickled by Python {platform.python_version()} of worker "
                f"{where}: {type(e).__name__}: {e}. Are the same packages installed there?"
                f"{_packages.told(call.function.payload)} client.get_versions(check=True) compares all of them",
            ) from e


def _arguments(packed: bytes) -> tuple[Any, dict[str, Any]]:
    """Returns the arguments of a call, which refer to no inputs."""
    arguments = value_pb2.Arguments.FromString(packed)
    if arguments.HasField("call"):
        return _serialize.CallUnpickler(arguments.call.data, ()).load()
    args = [_serialize.from_value(v, (), ()) for v in arguments.positional]
    return args, {k: _serialize.from_value(v, (), ()) for k, v in arguments.named.items()}


def _bytes(frame: Any) -> bytes:
    data = bytearray(frame.nbytes)
    _serialize.write(frame, memoryview(data))
    return bytes(data)
