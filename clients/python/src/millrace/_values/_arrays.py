"""Recognises arrays on a GPU, of any library, without importing the library: every such array has
an attribute that gives its address."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import numpy as np

    Function = TypeVar("Function", bound=Callable[..., Any])

#: Libraries whose arrays tasks can be given.
LIBRARIES = ("cupy", "torch", "numba", "numpy")
#: Attribute of a function that names the library it wants.
WANTS = "__millrace_arrays__"
#: Attribute of a function that names the streams which the end of its task waits for.
STREAMS = "__millrace_streams__"
_CUDA = 2  # kDLCUDA


def arrays(library: str, *, streams: str = "all") -> Callable[[Function], Function]:
    """Decorator of a function that is to run as a task: on a worker with a GPU its inputs are
    arrays of this library.

    Args:
        library: "cupy", the default if it is installed; "torch" or "numba", without a copy as well;
            "numpy": copied to host memory.
        streams: the GPU work that must be complete before the task ends. Until then its result is
            not valid and its inputs are kept. "all": all work that this process has submitted to
            the GPU. "current": only the work in the default stream and in the current streams of
            CuPy and torch; a function that uses other streams must join them to one of these before
            it returns.
    """
    if library not in LIBRARIES:
        raise ValueError(f"arrays of {library!r}: one of {', '.join(LIBRARIES)}")
    if streams not in ("all", "current"):
        raise ValueError(f"streams={streams!r}: all or current")

    def mark(function: Function) -> Function:
        setattr(function, WANTS, library)
        setattr(function, STREAMS, streams)
        return function

    return mark


class DeviceView:
    """The address and layout of an array on a GPU."""

    __slots__ = ("dtype", "itemsize", "library", "owner", "pointer", "shape", "stream", "strides")

    def __init__(
        self,
        owner: Any,
        library: str,
        pointer: int,
        dtype: str,
        itemsize: int,
        shape: tuple[int, ...],
        strides: Any,
        stream: int = 0,
    ) -> None:
        #: The array, which keeps the memory alive.
        self.owner = owner
        #: "cupy", "torch", or "" for others.
        self.library = library
        #: Address of element [0, ..., 0].
        self.pointer = pointer
        #: NumPy's name of the element type, or another one such as "bfloat16".
        self.dtype, self.itemsize = dtype, itemsize
        self.shape = shape
        #: Strides in bytes.
        self.strides: tuple[int, ...] = tuple(strides) if strides is not None else _dense(shape, itemsize)
        #: The elements are valid once the work submitted to this stream is done. The number is that
        #: of `__cuda_array_interface__`; 0: no wait is necessary.
        self.stream = stream

    @property
    def nbytes(self) -> int:
        n = self.itemsize
        for length in self.shape:
            n *= length
        return n

    @property
    def order(self) -> str:
        """ "C" or "F" if the elements lie in that order without gaps, else ""."""
        if _same(self.shape, self.strides, _dense(self.shape, self.itemsize)):
            return "C"
        if _same(self.shape, self.strides, _dense(self.shape[::-1], self.itemsize)[::-1]):
            return "F"
        return ""


class DeviceFrame:
    """A frame whose bytes are still on the GPU. One with gaps has to be written in C order."""

    __slots__ = ("gaps", "nbytes", "view")

    def __init__(self, view: DeviceView, gaps: bool) -> None:
        self.view, self.gaps, self.nbytes = view, gaps, view.nbytes


def _dense(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    strides: list[int] = []
    for length in reversed(shape):
        strides.append(itemsize)
        itemsize *= length
    return tuple(reversed(strides))


def _same(shape: tuple[int, ...], a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    """Compares strides, except those of axes with a single element, which do not matter."""
    return all(n == 1 or x == y for n, x, y in zip(shape, a, b, strict=True))


def is_tensor(kind: type) -> bool:
    """Returns whether the type is torch's Tensor, which lies on the host or on a GPU."""
    return kind.__name__ == "Tensor" and kind.__module__ == "torch"


def view_of(obj: Any) -> DeviceView | None:
    """Returns the layout of an array on a GPU; None for everything else."""
    kind = type(obj)
    library = kind.__module__.partition(".")[0]
    if library in ("builtins", "numpy"):
        return None
    if library == "cupy":
        if kind.__name__ != "ndarray":
            return None
        return DeviceView(obj, "cupy", obj.data.ptr, obj.dtype.name, obj.dtype.itemsize, obj.shape, obj.strides)
    if library == "torch":
        if not is_tensor(kind) or not obj.is_cuda or obj.layout is not sys.modules["torch"].strided:
            return None
        if obj.is_conj() or obj.is_neg():  # the stored elements differ from the values
            obj = obj.resolve_conj().resolve_neg()
        size = obj.element_size()
        name = str(obj.dtype).removeprefix("torch.")
        return DeviceView(obj, "torch", obj.data_ptr(), name, size, tuple(obj.shape), [size * s for s in obj.stride()])
    # The class of JAX's arrays has the attribute, but only those on a GPU have a value of it.
    interface = getattr(obj, "__cuda_array_interface__", None) if hasattr(kind, "__cuda_array_interface__") else None
    if interface is not None:
        return _of_interface(obj, interface)
    if hasattr(kind, "__dlpack_device__"):
        for name in ("cupy", "torch"):
            module = sys.modules.get(name)
            if module is not None and obj.__dlpack_device__()[0] == _CUDA:
                return view_of(module.from_dlpack(obj))
    return None


def _of_interface(obj: Any, interface: dict[str, Any]) -> DeviceView:
    import numpy as np

    dtype = np.dtype(interface["typestr"])
    if interface.get("mask") is not None:
        raise TypeError("a masked array on a GPU cannot be stored: fill it first")
    return DeviceView(
        obj,
        "",
        interface["data"][0] or 0,
        dtype.name,
        dtype.itemsize,
        interface["shape"],
        interface.get("strides"),
        interface.get("stream") or 0,
    )


def to_host(view: DeviceView) -> np.ndarray[Any, Any] | None:
    """Returns a copy in host memory, made by the array's own library; None if NumPy lacks the
    element type."""
    owner = view.owner
    if view.library == "torch":
        try:
            return owner.detach().cpu().numpy()
        except TypeError:
            return None
    for name in ("get", "copy_to_host"):
        copy = getattr(owner, name, None)
        if copy is not None:
            return copy()
    raise TypeError(
        f"{type(owner).__module__}.{type(owner).__qualname__} cannot be copied from the GPU: it has no get()"
    )
