"""The protocol by which cuDF's objects become frames, and are made of them again. A class is found
by its name, and each part of a header describes its own frames, as in cuDF 26.10."""

from __future__ import annotations

from typing import Any, ClassVar


class Serializable:
    kinds: ClassVar[dict[str, type]] = {}

    def __init_subclass__(cls) -> None:
        Serializable.kinds[cls.__name__] = cls

    def device_serialize(self) -> tuple[dict[str, Any], list[Any]]:
        header, frames = self.serialize()
        header["type-serialized-name"] = type(self).__name__
        header["is-cuda"] = [hasattr(f, "__cuda_array_interface__") for f in frames]  # may be a write
        header["lengths"] = [f.nbytes for f in frames]
        return header, frames

    @classmethod
    def device_deserialize(cls, header: dict[str, Any], frames: list[Any]) -> Any:
        from cudf.core.buffer import as_buffer

        given = [as_buffer(f) if c else memoryview(f) for c, f in zip(header["is-cuda"], frames, strict=True)]
        return Serializable.kinds[header["type-serialized-name"]].deserialize(header, given)

    def serialize(self) -> tuple[dict[str, Any], list[Any]]:
        raise NotImplementedError

    @classmethod
    def deserialize(cls, header: dict[str, Any], frames: list[Any]) -> Any:
        raise NotImplementedError

    def __reduce_ex__(self, _protocol: Any) -> Any:
        raise AssertionError("an object of cuDF was copied to the host")
