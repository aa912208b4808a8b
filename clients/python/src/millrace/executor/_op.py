"""Ops of a session: what a run calls."""

from __future__ import annotations

import importlib
import pickle
import platform
import sys
from typing import TYPE_CHECKING, Any

from millrace._pb.millrace.v1 import task_pb2
from millrace.executor._failure import Refused, TaskStopped

if TYPE_CHECKING:
    from collections.abc import Callable


class Op:
    """An op of this session: resolved at its first use."""

    __slots__ = ("call", "longest", "spec")

    def __init__(self, spec: task_pb2.Op) -> None:
        self.spec = spec
        self.call: Callable[..., Any] | None = None
        #: Of the recent runs, in seconds; long until known.
        self.longest = 1.0

    def took(self, seconds: float) -> None:
        self.longest = max(seconds, 0.7 * self.longest)

    def resolve(self, functions: dict[bytes, bytes], worker: str) -> Callable[..., Any]:
        """What is to be called. `functions` are pickles by their hash."""
        spec = self.spec
        if spec.kind == task_pb2.OP_KIND_PYTHON_PICKLE:
            payload = functions.get(spec.function)
            if payload is None:
                raise Refused("FUNCTION_NOT_FOUND", f"the worker did not send the function {spec.name}")
            try:
                self.call = pickle.loads(payload)
            except TaskStopped:
                raise
            except BaseException as e:
                raise Refused(
                    "FUNCTION_NOT_FOUND",
                    f"function {spec.name} cannot be unpickled by Python {platform.python_version()} of worker "
                    f"{worker}: {type(e).__name__}: {e}. Are the same packages installed there?",
                ) from e
        else:
            self.call = _import(spec.name, worker)
        assert self.call is not None
        return self.call


def _import(path: str, worker: str) -> Callable[..., Any]:
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
