"""What a run is given: its inputs, wherever they lie, and its arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from millrace import _serialize
from millrace._pb.millrace.v1 import value_pb2
from millrace.executor._device import Device, DeviceRange
from millrace.executor._failure import Refused, TaskStopped
from millrace.executor._link import Segment, Slab

if TYPE_CHECKING:
    from collections.abc import Iterable

    from millrace._pb.millrace.v1 import data_service_pb2, executor_pb2


class _Undecodable:
    """Takes the place of an input that could not be decoded, to find out which argument it is."""


class Inputs:
    """The memory that inputs lie in: the slab in one of its two places, and that of other workers."""

    def __init__(self, worker: str, slab: Slab | None, device: Device | None) -> None:
        self._worker, self._slab, self._device = worker, slab, device
        # Address of the mapping that inputs are served from; 0 until it is needed.
        self._base = 0
        #: Memory of other workers by number; what could not be mapped says why. Changed by the reader, never while a run
        #: that refers to it is pending or working.
        self.segments: dict[int, Segment | OSError] = {}

    def arguments(self, run: executor_pb2.ExecutorRun) -> tuple[Any, Any]:
        inputs: list[Any] = []
        trouble: Exception | None = None
        bad = 0
        for number, given in enumerate(run.inputs):
            try:
                frames = [self._frame(f) for f in given.frames]
                inputs.append(_serialize.decode(given.header, frames, readonly=True, device=self._device))
            except TaskStopped:
                raise
            except Exception as e:
                trouble = e
                inputs = [None] * len(run.inputs)
                inputs[number] = _Undecodable()
                bad = number
                break
        try:
            args, kwargs = self._decoded(run.arguments, inputs)
        except TaskStopped:
            raise
        except Exception as e:
            if trouble is None:
                raise Refused(
                    "INVALID_ARGUMENT",
                    f"the arguments of {run.key} cannot be decoded on worker {self._worker}: {type(e).__name__}: {e}",
                ) from e
            args, kwargs = (), {}
        if trouble is None:
            return args, kwargs
        where = next((f"argument {n}" for n, a in [*enumerate(args), *kwargs.items()] if _within(a)), "an argument")
        raise Refused(
            "INPUT_UNREADABLE",
            f"{where} of {run.key}, {_type_of(run.inputs[bad].header)}, cannot be decoded on worker "
            f"{self._worker}: {type(trouble).__name__}: {trouble}. Are the same packages installed there as "
            "where it was made?",
        ) from trouble

    def _frame(self, at: data_service_pb2.FrameLocation) -> memoryview | DeviceRange:
        if self._device is not None:
            return DeviceRange(self._device, at.offset, at.bytes)
        if not at.segment:
            assert self._slab is not None
            return self._slab.readable[at.offset : at.offset + at.bytes]
        segment = self.segments[at.segment]
        if isinstance(segment, OSError):
            raise OSError(
                f"memory of another worker cannot be mapped: {segment}; look at ulimit -v and -n"
            ) from segment
        return segment.readable[at.offset : at.offset + at.bytes]

    @staticmethod
    def _decoded(serialised: bytes, inputs: list[Any]) -> tuple[Any, Any]:
        if not serialised:
            return (), {}
        arguments = value_pb2.Arguments.FromString(serialised)
        if arguments.HasField("call"):
            return _serialize.CallUnpickler(arguments.call.data, inputs).load()
        args = [_serialize.from_value(v, (), inputs) for v in arguments.positional]
        return args, {k: _serialize.from_value(v, (), inputs) for k, v in arguments.named.items()}

    def at(self, frame: Any) -> int | None:
        if not isinstance(frame, memoryview):
            return None
        import numpy as np

        assert self._slab is not None
        self._base = self._base or np.frombuffer(self._slab.readable, np.uint8).ctypes.data
        return np.frombuffer(frame, np.uint8).ctypes.data - self._base


def _within(tree: Any) -> bool:
    """An input that could not be decoded is in it."""
    if isinstance(tree, (list, tuple, set, frozenset)):
        return any(_within(item) for item in cast("Iterable[Any]", tree))
    if isinstance(tree, dict):
        return any(_within(item) for pair in cast("dict[Any, Any]", tree).items() for item in pair)
    return isinstance(tree, _Undecodable)


def _type_of(header: bytes) -> str:
    try:
        named = value_pb2.Value.FromString(header).opaque_value.type_name
    except Exception:
        return "whose header is damaged"
    return f"a {named}" if named else "a result"
