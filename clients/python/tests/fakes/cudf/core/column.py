"""Columns of cuDF, on buffers in GPU memory. A computation is that of pandas on a copy in host
memory. Columns of text have their bytes and their offsets as children."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from cudf.core.abc import Serializable
from cudf.core.buffer import as_buffer


class CategoricalDtype(Serializable):
    def __init__(self, categories: Any, ordered: bool) -> None:
        self.categories, self.ordered = categories, ordered

    def serialize(self) -> tuple[dict[str, Any], list[Any]]:
        categories, frames = self.categories.device_serialize()
        return {"ordered": self.ordered, "categories": categories, "frame_count": len(frames)}, frames

    @classmethod
    def deserialize(cls, header: dict[str, Any], frames: list[Any]) -> Any:
        return cls(Serializable.device_deserialize(header["categories"], frames), header["ordered"])


class Decimal128Dtype:
    def __init__(self, precision: int, scale: int) -> None:
        self.precision, self.scale = precision, scale

    def to_arrow(self) -> Any:
        return pa.decimal128(self.precision, self.scale)


#: The types that are objects; others are their names.
OBJECTS = (CategoricalDtype, Decimal128Dtype)


class Column(Serializable):
    """The parts are a buffer of the elements or None, a buffer with a byte for each missing value
    or None, and children."""

    def __init__(self, dtype: Any, size: int, data: Any, mask: Any, children: list[Column]) -> None:
        if dtype != "str" and not isinstance(dtype, OBJECTS):
            dtype = np.dtype(dtype).str
        self.dtype, self.size, self.data, self.mask, self.children = dtype, size, data, mask, children

    def serialize(self) -> tuple[dict[str, Any], list[Any]]:
        if isinstance(self.dtype, CategoricalDtype):
            dtype, frames = self.dtype.device_serialize()
        else:
            dtype, frames = self.dtype, []
        header: dict[str, Any] = {"dtype": dtype, "dtype_frames": len(frames), "size": self.size}
        header["parts"] = []
        for part in (self.data, self.mask, *self.children):
            described, more = (None, []) if part is None else _compact(part).device_serialize()
            header["parts"].append((described, len(more)))
            frames = [*frames, *more]
        header["frame_count"] = len(frames)
        return header, frames

    @classmethod
    def deserialize(cls, header: dict[str, Any], frames: list[Any]) -> Any:
        dtype, at = header["dtype"], header["dtype_frames"]
        if isinstance(dtype, dict):
            dtype = Serializable.device_deserialize(dtype, frames[:at])
        parts: list[Any] = []
        for described, n in header["parts"]:
            part = None if described is None else Serializable.device_deserialize(described, frames[at : at + n])
            parts.append(part)
            at += n
        return cls(dtype, header["size"], parts[0], parts[1], parts[2:])

    @classmethod
    def from_pandas(cls, values: Any, dtype: Any) -> Column:
        missing = np.asarray(values.isna())
        mask = as_buffer(memoryview(missing.view(np.uint8))) if missing.any() else None
        if dtype == "str":
            texts = [b"" if m else str(v).encode() for v, m in zip(values, missing, strict=True)]
            offsets = np.cumsum([0, *map(len, texts)], dtype=np.int64)
            chars = np.frombuffer(b"".join(texts), np.uint8)
            return cls(dtype, len(values), None, mask, [_numbers(chars), _numbers(offsets)])
        if isinstance(dtype, CategoricalDtype):
            host = np.asarray(values.cat.codes, np.int32)
        elif isinstance(dtype, Decimal128Dtype):
            there = pa.array([None if m else v for v, m in zip(values, missing, strict=True)], dtype.to_arrow())
            host = np.frombuffer(there.buffers()[1], np.int64)
        else:
            filler = False if np.dtype(dtype).kind == "b" else 0
            host = values.fillna(filler).to_numpy(dtype) if mask is not None else values.to_numpy(dtype)
        return cls(dtype, len(values), _numbers(host).data, mask, [])

    def to_pandas(self) -> pd.Series[Any]:
        if self.dtype == "str":
            chars, offsets = (child._host().tobytes() for child in self.children)
            ends = np.frombuffer(offsets, np.int64)
            values = pd.Series([chars[a:b].decode() for a, b in itertools.pairwise(ends)], dtype="str")
        elif isinstance(self.dtype, CategoricalDtype):
            categories = self.dtype.categories.to_pandas()
            return pd.Series(pd.Categorical.from_codes(self._host(), categories, ordered=self.dtype.ordered))
        elif isinstance(self.dtype, Decimal128Dtype):
            there = pa.Array.from_buffers(self.dtype.to_arrow(), self.size, [None, pa.py_buffer(self._host())])
            values = pd.Series(there.to_pylist(), dtype=object)
        else:
            values = pd.Series(self._host())
        if self.mask is None:
            return values
        missing = np.frombuffer(self.mask.memoryview(), bool)
        if values.dtype.kind in "iu":
            values = values.astype(values.dtype.name.capitalize().replace("Ui", "UI"))
        elif values.dtype.kind == "b":
            values = values.astype("boolean")
        return values.mask(missing)

    def _host(self) -> Any:
        dtype = {CategoricalDtype: np.int32, Decimal128Dtype: np.int64}.get(type(self.dtype)) or np.dtype(self.dtype)
        return np.frombuffer(self.data.memoryview(), dtype)

    def slice(self, a: int, b: int) -> Column:
        if self.children or self.mask is not None:
            return Column.from_pandas(self.to_pandas().iloc[a:b], self.dtype)
        width = self.data.size // max(self.size, 1)
        return Column(self.dtype, b - a, self.data[a * width : b * width], None, [])


def _numbers(host: Any) -> Column:
    return Column(host.dtype.str, len(host), as_buffer(memoryview(host.view(np.uint8))), None, [])


def _compact(part: Any) -> Any:
    """Copies a slice, so that the rest of its owner is not stored."""
    owner = getattr(part, "owner", None)
    if owner is None or part.size == owner.size or getattr(owner, "spilled", None) is not None:
        return part
    return as_buffer(part.memoryview())
