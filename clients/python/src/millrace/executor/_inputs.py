"""The inputs and arguments of a run, and the inputs that stay in use after it."""

from __future__ import annotations

import gc
import sys
import weakref
from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Any, cast

from millrace._pb.millrace.v1 import value_pb2
from millrace._values import _packages, _serialize
from millrace._values._device import Device, DeviceRange, Owner
from millrace.executor import _profile
from millrace.executor._failure import Refused, TaskStopped
from millrace.executor._link import Segment, Slab

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from millrace._pb.millrace.executor.v1 import executor_pb2


#: Most bytes and objects that a process keeps decoded, and most inputs of which it remembers that
#: it has decoded them once.
_DECODED_BYTES, _DECODED, _ONCE = 64 << 20, 128, 1024
#: Types whose decoding costs less than keeping them.
_PLAIN = (type(None), bool, int, float, complex, str, bytes)


#: Task, generation and item.
_Name = tuple[int, int, int]


def _name_of(given: executor_pb2.ExecutorInput) -> _Name:
    return given.task_id, given.generation, given.item


class _Decoded:
    """Inputs that are kept decoded, for tasks that may share them: an input is kept when it is
    decoded for the second time. The least recently used ones are dropped."""

    def __init__(self, most: int) -> None:
        self._most = most
        # Objects and their sizes by name, the most recently used one last.
        self._objects: OrderedDict[_Name, tuple[Any, int]] = OrderedDict()
        self._bytes = 0
        # Inputs that were decoded once.
        self._once: OrderedDict[_Name, None] = OrderedDict()

    def get(self, given: executor_pb2.ExecutorInput) -> tuple[Any] | None:
        """Returns an input in a tuple, or None."""
        name = _name_of(given)
        known = self._objects.get(name)
        if known is None:
            return None
        self._objects.move_to_end(name)
        return (known[0],)

    def add(self, given: executor_pb2.ExecutorInput, value: Any) -> bool:
        """Notes that an input was decoded. Returns whether it is kept."""
        name = _name_of(given)
        if (
            not given.task_id
            or isinstance(value, _PLAIN)
            or _is_array(value)
            or any(f.segment_id for f in given.frames)
        ):
            return False
        if name not in self._once:
            self._once[name] = None
            if len(self._once) > _ONCE:
                self._once.popitem(last=False)
            return False
        size = len(given.header) + sum(f.size_bytes for f in given.frames)
        if size > self._most:
            return False
        self._objects[name] = value, size
        self._bytes += size
        while self._bytes > self._most or len(self._objects) > _DECODED:
            self._bytes -= self._objects.popitem(last=False)[1][1]
        return True

    def clear(self) -> None:
        """Drops all objects."""
        self._objects.clear()
        self._once.clear()
        self._bytes = 0


def _is_array(value: Any) -> bool:
    np: Any = sys.modules.get("numpy")
    return np is not None and isinstance(value, (np.ndarray, np.generic))


class _Undecodable:
    """Placeholder for an input that could not be decoded or was changed, to find the argument that
    contains it."""


class Inputs:
    """Gives runs access to the memory that their inputs lie in: the slab on the host or on a GPU,
    and segments of other workers."""

    def __init__(self, worker: str, slab: Slab | None) -> None:
        self._worker, self._slab = worker, slab
        #: The slab on a GPU; None if it lies in host memory, or is not opened yet.
        self.device: Device | None = None
        # Address of the slab's read-only mapping; 0 until it is needed.
        self._base = 0
        # For each input of the current run: its index, and a weak reference to its owner. The owner
        # is an object that every array over the input's memory refers to. An input with several
        # frames in host memory has one owner for each frame.
        self._given: list[tuple[int, weakref.ref[Any]]] = []
        # Inputs of earlier runs that are still in use, by the number under which the worker keeps
        # them. `_kept`: how many owners of each are alive. `_watched`: weak references whose
        # callbacks run when an owner is freed, in any thread.
        self._kept: dict[int, int] = {}
        self._watched: dict[int, list[weakref.ref[Any]]] = {}
        #: Decoded inputs that tasks share. Those in the slab are in use for longer than a run.
        self.decoded = _Decoded(min(_DECODED_BYTES, (0 if slab is None else len(slab.readable)) // 16))
        # The inputs of the current run that were added to them.
        self._added: set[int] = set()
        #: Called when an owner is freed, in any thread.
        self.on_gone: Callable[[], None] | None = None
        self._gone: deque[int] = deque()
        #: Segments of other workers by number, or the error if one could not be mapped. Changed by
        #: the reader thread, but never while a run that uses the segment is pending or running.
        self.segments: dict[int, Segment | OSError] = {}

    def arguments(self, run: executor_pb2.ExecutorRun, *, share: bool = False) -> tuple[Any, Any]:
        """Returns the arguments of a run. With `share`, other runs may get the same objects as
        inputs."""
        inputs: list[Any] = []
        self._added.clear()
        share = share and self.device is None
        trouble: Exception | None = None
        bad = 0
        for number, given in enumerate(run.inputs):
            if share and (known := self.decoded.get(given)) is not None:
                inputs.append(known[0])
                continue
            try:
                frames = self._frames(number, given.frames) if given.frames else ()
                inputs.append(_serialize.decode(given.header, frames, readonly=True, device=self.device))
                if share and self.decoded.add(given, inputs[-1]):
                    self._added.add(number)
            except TaskStopped:
                raise
            except Exception as e:
                trouble = e
                inputs = [None] * len(run.inputs)
                inputs[number] = _Undecodable()
                bad = number
                break
        try:
            args, kwargs = self.unpacked(run.arguments, inputs)
        except TaskStopped:
            raise
        except Exception as e:
            if trouble is None:
                raise Refused(
                    "INVALID_ARGUMENT",
                    f"the arguments of {run.key} cannot be decoded on worker {self._worker}: {type(e).__name__}: {e}."
                    f"{_packages.told(_pickle_of(value_pb2.Arguments, run.arguments))} "
                    "client.get_versions(check=True) compares all packages",
                ) from e
            args, kwargs = (), {}
        if trouble is None:
            return args, kwargs
        where = self._where(args, kwargs)
        raise Refused(
            "INPUT_UNREADABLE",
            f"{where} of {run.key}, {_type_of(run.inputs[bad].header)}, cannot be decoded on worker "
            f"{self._worker}: {type(trouble).__name__}: {trouble}. Are the same packages installed there as "
            f"where it was made?{_packages.told(_pickle_of(value_pb2.Value, run.inputs[bad].header))} "
            "client.get_versions(check=True) compares all of them",
        ) from trouble

    def _frames(
        self, number: int, places: Iterable[executor_pb2.FrameLocation]
    ) -> list[memoryview] | list[DeviceRange]:
        if self.device is not None:
            owner = Owner(self.device)
            self._given.append((number, weakref.ref(owner)))
            return [DeviceRange(self.device, at.offset, at.size_bytes, owner) for at in places]
        import numpy as np

        out: list[memoryview] = []
        for at in places:
            view = self._memory(at.segment_id)[at.offset : at.offset + at.size_bytes]
            if at.size_bytes:
                # Every array that a library makes from this one keeps it alive. NumPy stores as the
                # base of a derived array not the array itself but that array's base, if the base is
                # an array, too. Here the base is a memoryview, so the chain ends at this array.
                owner: Any = np.frombuffer(view, np.uint8)
                self._given.append((number, weakref.ref(owner)))
                view = memoryview(owner)
            out.append(view)
        return out

    def _memory(self, number: int) -> memoryview:
        """Returns a view of the whole slab (number 0) or of a segment."""
        if not number:
            assert self._slab is not None
            return self._slab.readable
        segment = self.segments[number]
        if isinstance(segment, OSError):
            raise OSError(
                f"memory of another worker cannot be mapped: {segment}; look at ulimit -v and -n"
            ) from segment
        return segment.readable

    # ---- inputs that are used for longer than the run --------------------------------------------

    def keep(
        self, run: executor_pb2.ExecutorRun, finished: executor_pb2.ExecutorFinished, number: Callable[[], int]
    ) -> None:
        """Finds the inputs of a run that other objects still refer to. The worker is asked to keep
        those in the slab. Those in a segment, which is only lent, are copied. `number` makes the
        numbers under which the worker keeps inputs. Raises OSError if the process has no memory for
        a copy: no input is kept then, and lent memory may still be read.

        REQUIRES: the run is over, the executor itself has no reference to the run's arguments or
        result, and `finished` was not sent.
        """
        in_use = self._in_use()
        if in_use:
            _profile.settle()
            in_use = self._in_use()
        if in_use:
            gc.collect(1)  # breaks reference cycles, for instance of an exception and its frames
        given, self._given = self._given, []
        if not in_use and not self._added:
            return
        by_input: dict[int, list[weakref.ref[Any]]] = {}
        for n, ref in given:
            if ref() is not None:
                by_input.setdefault(n, []).append(ref)
        lent: dict[int, list[tuple[int, int]]] = {}
        own: list[tuple[int, list[weakref.ref[Any]]]] = []
        for n, refs in by_input.items():
            places = run.inputs[n].frames
            if not places[0].segment_id:
                own.append((n, refs))
                continue
            for at in places:
                lent.setdefault(at.segment_id, []).append((at.offset, at.size_bytes))
        # The copies come first, because they can fail.
        for segment, ranges in lent.items():
            there = self.segments[segment]
            assert isinstance(there, Segment)
            there.detach(ranges)
        for n, refs in own:
            request = number()
            finished.retained_inputs.add(request_id=request, input_index=n)
            self._watch(request, refs)

    def _in_use(self) -> bool:
        """Returns whether something refers to an input of the run that is not kept decoded."""
        return any(ref() is not None and n not in self._added for n, ref in self._given)

    def _watch(self, request: int, refs: list[weakref.ref[Any]]) -> None:
        def gone(_: Any) -> None:
            self._gone.append(request)
            if self.on_gone is not None:
                self.on_gone()

        self._kept[request] = len(refs)
        watched: list[weakref.ref[Any]] = []
        for ref in refs:
            owner = ref()
            if owner is None:  # it was freed just now
                self._gone.append(request)
            else:
                watched.append(weakref.ref(owner, gone))
        self._watched[request] = watched

    @property
    def keeps(self) -> bool:
        """True if inputs of earlier runs are still in use."""
        return bool(self._kept)

    def released(self) -> list[int]:
        """Returns the numbers of kept inputs that nothing uses any more. REQUIRES: all work
        submitted to the GPU is complete."""
        out: list[int] = []
        while self._gone:
            request = self._gone.popleft()
            self._kept[request] -= 1
            if not self._kept[request]:
                del self._kept[request], self._watched[request]
                out.append(request)
        return out

    # ---- inputs that were changed ----------------------------------------------------------------

    def checksums(self, run: executor_pb2.ExecutorRun) -> list[list[int]]:
        """Returns the checksums of all frames of all inputs on the GPU. Inputs in host memory are
        mapped read-only and need none."""
        device = self.device
        if device is None:
            return []
        return [[device.checksum(f.offset, f.size_bytes) for f in given.frames] for given in run.inputs]

    def changed(self, run: executor_pb2.ExecutorRun, before: list[list[int]]) -> str:
        """Names the first input that a function has changed; "" if there is none."""
        for number, (was, now) in enumerate(zip(before, self.checksums(run), strict=True)):
            if was != now:
                inputs: list[Any] = [None] * len(run.inputs)
                inputs[number] = _Undecodable()
                return f"{self._where(*self.unpacked(run.arguments, inputs))} (input {number})"
        return ""

    @staticmethod
    def _where(args: Any, kwargs: Any) -> str:
        """Names the argument that contains the placeholder."""
        return next((f"argument {n}" for n, a in [*enumerate(args), *kwargs.items()] if _within(a)), "an argument")

    @staticmethod
    def unpacked(serialised: bytes, inputs: list[Any]) -> tuple[Any, Any]:
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

        self._base = self._base or np.frombuffer(self._memory(0), np.uint8).ctypes.data
        return np.frombuffer(frame, np.uint8).ctypes.data - self._base


def _within(tree: Any) -> bool:
    """Returns whether an argument contains the placeholder."""
    if isinstance(tree, (list, tuple, set, frozenset)):
        return any(_within(item) for item in cast("Iterable[Any]", tree))
    if isinstance(tree, dict):
        return any(_within(item) for pair in cast("dict[Any, Any]", tree).items() for item in pair)
    return isinstance(tree, _Undecodable)


def _pickle_of(kind: Any, message: bytes) -> bytes:
    """Returns the pickle in a serialised Value or Arguments message; nothing if there is none, or
    the message is damaged."""
    try:
        found = kind.FromString(message)
    except Exception:
        return b""
    return (found.opaque_value if kind is value_pb2.Value else found.call).data


def _type_of(header: bytes) -> str:
    try:
        value = value_pb2.Value.FromString(header)
        named = value.opaque_value.type_name or value.table_value.type_name
    except Exception:
        return "whose header is damaged"
    return f"a {named}" if named else "a result"
