"""The ops of a session: the functions that runs call."""

from __future__ import annotations

import importlib
import pickle
import platform
import sys
from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Any

from millrace._pb.millrace.v1 import task_pb2
from millrace._values import _packages
from millrace.executor._failure import Refused, TaskStopped

if TYPE_CHECKING:
    from collections.abc import Callable


#: Most bytes of pickles whose unpickled functions are kept. Beyond it, the least recently used
#: function is dropped, and unpickled again when it is needed.
_MOST = 256 << 20


class Functions:
    """Pickled functions by their hash. The reader thread calls `add` and `forget`, the main thread
    everything else."""

    def __init__(self) -> None:
        # Pickle and language of each function.
        self._known: dict[bytes, tuple[bytes, str]] = {}
        # Ops whose function was unpickled, with the size of the pickle. Ordered by use: the most
        # recently used op is last.
        self._unpickled: OrderedDict[Op, int] = OrderedDict()
        self._weight = 0
        # Ops that no run will use again.
        self._gone: deque[Op] = deque()
        #: Grows when modules have changed: functions that were resolved before are resolved again,
        #: and kept inputs are decoded again.
        self.generation = 0

    def add(self, function: task_pb2.Function) -> None:
        self._known[function.hash] = function.payload, function.language

    def forget(self, hashes: set[bytes], ops: list[Op]) -> None:
        """Forgets functions that no task refers to any more, and the ops that call them."""
        for one in hashes:
            self._known.pop(one, None)
        self._gone += ops

    def get(self, one: bytes) -> tuple[bytes, str] | None:
        return self._known.get(one)

    def used(self, op: Op, size: int = 0) -> None:
        """Notes that an op is about to be called. `size`: bytes of its pickle if it was unpickled
        just now. REQUIRES: the main thread."""
        if not size:
            self._unpickled.move_to_end(op)
            return
        self._weight += size - self._unpickled.pop(op, 0)
        self._unpickled[op] = size
        while self._gone:
            self._drop(self._gone.popleft())
        while self._weight > _MOST and len(self._unpickled) > 1:
            self._drop(next(iter(self._unpickled)))

    def _drop(self, op: Op) -> None:
        op.call = None
        self._weight -= self._unpickled.pop(op, 0)


class Op:
    """An op of this session. Its function is resolved at its first use."""

    __slots__ = ("call", "generation", "longest", "spec")

    def __init__(self, spec: task_pb2.Op) -> None:
        self.spec = spec
        self.call: Callable[..., Any] | None = None
        self.generation = 0
        #: Duration of the recent runs in seconds: the maximum, which decays by 30 % with each run.
        #: Initially 1 second, so that an unknown op does not count as short.
        self.longest = 1.0

    def took(self, seconds: float) -> None:
        self.longest = max(seconds, 0.7 * self.longest)

    def resolve(self, functions: Functions, worker: str) -> Callable[..., Any]:
        """Returns the function to call."""
        spec = self.spec
        pickled = spec.kind == task_pb2.OP_KIND_PYTHON_PICKLE
        if self.generation != functions.generation:
            self.generation = functions.generation
            self.call = None
        if self.call is not None:
            if pickled:
                functions.used(self)
            return self.call
        payload = b""
        if pickled:
            known = functions.get(spec.function)
            if known is None:
                raise Refused("FUNCTION_NOT_FOUND", f"the worker did not send the function {spec.name}")
            payload, language = known
            compare(language, spec.name, worker)
            try:
                self.call = pickle.loads(payload)
                if not callable(self.call):
                    self.call, found = None, type(self.call).__name__
                    raise TypeError(f"it is a {found}, not a function")
            except TaskStopped:
                raise
            except BaseException as e:
                raise Refused(
                    "FUNCTION_NOT_FOUND",
                    f"function {spec.name} cannot be unpickled by Python {platform.python_version()} of worker "
                    f"{worker}: {type(e).__name__}: {e}. Are the same packages installed there?"
                    f"{_packages.told(payload)} client.get_versions(check=True) compares all of them",
                ) from e
        else:
            self.call = import_function(spec.name, worker)
        call = self.call
        assert call is not None
        if pickled:
            functions.used(self, len(payload))
        return call


def compare(language: str, name: str, worker: str) -> None:
    """Refuses a function that was pickled by another minor version of Python. Its bytecode would
    fail in any way, from a TypeError to a crash."""
    theirs = language.removeprefix("python ").split(".")[:2]
    ours = [str(n) for n in sys.version_info[:2]]
    if not language or theirs == ours:
        return
    there = ".".join(theirs) if language.startswith("python ") else language
    raise Refused(
        "VERSION_MISMATCH",
        f"function {name} was pickled by {'Python ' * language.startswith('python ')}{there}, and worker {worker} runs Python "
        f"{'.'.join(ours)}: code that travels by value runs with the minor version that made it. Use Python {'.'.join(ours)} "
        f"in the client, start the worker with --python and an interpreter of {there}, or put the function into a module "
        "that is installed on both sides: then only its import path travels",
    )


def import_function(path: str, worker: str) -> Callable[..., Any]:
    """Returns the function of an import path, "package.module:function"."""
    module, _, name = path.partition(":")
    if not module or not name:
        raise Refused("FUNCTION_NOT_FOUND", f"{path!r} is no import path: write package.module:function")
    try:
        found: Any = importlib.import_module(module)
    except TaskStopped:
        raise
    except BaseException as e:
        raise Refused(
            "FUNCTION_NOT_FOUND",
            f"module {module} cannot be imported on worker {worker}: {type(e).__name__}: {e}. "
            f"Install it for {sys.executable}, or add its folder to PYTHONPATH where the worker starts",
        ) from e
    for part in name.split("."):
        found = getattr(found, part, None)
        if found is None:
            near = [n for n in dir(sys.modules[module]) if n.lower()[:3] == part.lower()[:3] and n[0] != "_"]
            hint = f"; near names: {', '.join(near[:5])}" if near else ""
            raise Refused("FUNCTION_NOT_FOUND", f"module {module} has no {part}{hint}")
    if not callable(found):
        raise Refused("FUNCTION_NOT_FOUND", f"{path} is a {type(found).__name__}, not a function")
    return found
