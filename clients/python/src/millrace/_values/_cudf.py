"""Objects of cuDF: their own frames, by `device_serialize`, without a copy of their elements."""

from __future__ import annotations

import pickle
import sys
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from millrace._values._arrays import DeviceFrame, DeviceView

if TYPE_CHECKING:
    from millrace._values._device import Device, DeviceRange


#: `on` while this thread takes an object apart.
_taking_apart = threading.local()
_patching = threading.Lock()


def kinds() -> list[type]:
    """Returns the types of cuDF's objects; none if cuDF is not imported."""
    cudf = sys.modules.get("cudf")
    names = vars(cudf).values() if cudf is not None else ()
    return [kind for kind in names if isinstance(kind, type) and hasattr(kind, "device_serialize")]


def is_object(kind: type) -> bool:
    """Returns whether a type is one of cuDF's objects: data frames, and also types of columns and
    others that consist of frames."""
    return kind.__module__.partition(".")[0] == "cudf" and hasattr(kind, "device_serialize")


def take_apart(obj: Any, on_gpu: bool) -> tuple[bytes, list[Any]]:
    """Returns the description of an object, and its frames: DeviceFrames, or with `on_gpu` False
    copies in host memory."""
    _allow_questions()
    _taking_apart.on = True
    try:
        header, buffers = obj.device_serialize()
    finally:
        _taking_apart.on = False
    _without_spilling(header)
    frames = [_frame(b, on_gpu) for b in buffers]
    return pickle.dumps(header, 5), frames


def _allow_questions() -> None:
    """Lets a thread that takes an object apart ask a buffer for its `__cuda_array_interface__`.

    `device_serialize` asks each buffer whether it has that attribute. cuDF 26.10 takes the question
    for a write (core/abc.py, core/buffer/buffer.py), and moves a buffer that shares its memory to a
    copy: each buffer of an input, and so each result that is an input. For other threads, which may
    be about to write, nothing changes. If a later cuDF has another form, the copies return.
    """
    from cudf.core.buffer import Buffer  # pyright: ignore[reportMissingImports]

    with _patching:
        writes = vars(Buffer).get("__cuda_array_interface__")
        if not isinstance(writes, property) or isinstance(writes, _Question):
            return
        Buffer.__cuda_array_interface__ = _Question(writes)


class _Question(property):
    """The property of a buffer that is no write while its thread takes an object apart."""

    def __init__(self, writes: property) -> None:
        def interface(buffer: Any) -> Any:
            if not getattr(_taking_apart, "on", False):
                return writes.__get__(buffer)
            with buffer.access(mode="read"):
                return _interface(buffer.ptr, buffer.size)

        super().__init__(interface)


def _interface(pointer: int, nbytes: int) -> dict[str, Any]:
    return {"version": 3, "typestr": "|u1", "shape": (nbytes,), "strides": None, "data": (pointer, False)}


def _without_spilling(header: Any) -> None:
    """Describes all frames, at any depth, as buffers that cuDF does not spill. A process where its
    spilling is off could not read the others; one where it is on makes buffers that it can spill
    nevertheless. The bytes of a buffer that was spilled are copied to the GPU by its reader."""
    if isinstance(header, dict):
        if isinstance(header.get("is-cuda"), list):
            header["is-cuda"] = [True] * len(header["is-cuda"])
        for key in ("type-serialized-name", "owner-type-serialized-name"):
            if key in header:
                header[key] = str(header[key]).replace("SpillableBuffer", "Buffer")
        header = list(header.values())
    if isinstance(header, (list, tuple)):
        for part in header:
            _without_spilling(part)


def _frame(buffer: Any, on_gpu: bool) -> Any:
    if not hasattr(type(buffer), "__cuda_array_interface__"):
        return memoryview(buffer).cast("B")
    if not on_gpu:
        return buffer.memoryview().cast("B")
    # Not by __cuda_array_interface__: cuDF takes that for a write, and copies shared memory first.
    # The scope "external" keeps a buffer on the GPU that cuDF could spill.
    with buffer.access(mode="read", scope="external"):
        return DeviceFrame(DeviceView(buffer, "", buffer.ptr, "uint8", 1, (buffer.size,), None), gaps=False)


class _Lent:
    """A frame of an input, as memory that cuDF reads in place."""

    def __init__(self, device: Device, frame: DeviceRange) -> None:
        self._frame = frame  # keeps the input in use
        self._pointer = device.base + frame.offset if frame.nbytes else 0

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return _interface(self._pointer, self._frame.nbytes)


def put_together(header: bytes, frames: Sequence[Any], device: Device | None) -> Any:
    """Returns the object of a description and frames: DeviceRanges of `device`, or host memory, which
    cuDF copies to its GPU."""
    try:
        import cudf  # pyright: ignore[reportMissingImports]
        from cudf.core.buffer import as_buffer  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise ImportError(
            "an object of cuDF can be read only where cudf is installed: return its to_pandas() or to_arrow() from the task"
        ) from None
    parts: list[Any] = []
    for frame in frames:
        if isinstance(frame, (bytes, bytearray, memoryview)):
            parts.append(as_buffer(memoryview(frame)))
            continue
        assert device is not None
        lent = _Lent(device, frame)
        buffer: Any = as_buffer(lent)
        # cuDF copies memory that several buffers share before it writes there. This entry makes it
        # copy the input, which other tasks may be reading.
        buffer.owner._slices.add(lent)
        parts.append(buffer)
    return cudf.DataFrame.device_deserialize(pickle.loads(header), parts)
