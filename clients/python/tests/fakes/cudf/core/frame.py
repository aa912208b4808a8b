"""Data frames, series and indexes of cuDF."""

from __future__ import annotations

from typing import Any

import cupy
import numpy as np
import pandas as pd
import pyarrow as pa

from cudf.core.abc import Serializable
from cudf.core.column import OBJECTS, CategoricalDtype, Column, Decimal128Dtype


def dtype_of(values: Any) -> Any:
    if isinstance(values.dtype, pd.CategoricalDtype):
        return CategoricalDtype(Index.from_pandas(values.cat.categories), values.cat.ordered)
    if pd.api.types.infer_dtype(values, skipna=True) == "decimal":
        return Decimal128Dtype(38, pa.array(values, from_pandas=True).type.scale)
    if not isinstance(values.dtype, np.dtype) and getattr(values.dtype, "numpy_dtype", None) is not None:
        return values.dtype.numpy_dtype.str
    return "str" if values.dtype.kind == "O" else values.dtype.str


class Frame(Serializable):
    def __init__(self, columns: dict[Any, Column], index: Any = None) -> None:
        self._columns, self.index = columns, index

    def serialize(self) -> tuple[dict[str, Any], list[Any]]:
        header: dict[str, Any] = {"labels": tuple(self._columns), "columns": [], "index": None}
        frames: list[Any] = []
        if self.index is not None:
            header["index"], frames = self.index.device_serialize()
        header["index_frame_count"] = len(frames)
        for column in self._columns.values():
            described, more = column.device_serialize()
            header["columns"].append(described)
            frames = [*frames, *more]
        return header, frames

    @classmethod
    def deserialize(cls, header: dict[str, Any], frames: list[Any]) -> Any:
        at, columns = header["index_frame_count"], {}
        index = None if header["index"] is None else Serializable.device_deserialize(header["index"], frames[:at])
        for label, described in zip(header["labels"], header["columns"], strict=True):
            n = described["frame_count"]
            columns[label] = Column.deserialize(described, frames[at : at + n])
            at += n
        assert at == len(frames)
        return cls(columns, index)

    def __len__(self) -> int:
        return next((c.size for c in self._columns.values()), 0)


class Index(Frame):
    ndim = 1

    @classmethod
    def from_pandas(cls, index: Any) -> Any:
        if isinstance(index, pd.RangeIndex):
            return RangeIndex(index.start, index.stop, index.step)
        values = index.to_series()
        return cls({index.name: Column.from_pandas(values, dtype_of(values))})

    @property
    def name(self) -> Any:
        return next(iter(self._columns))

    @property
    def dtype(self) -> Any:
        return next(iter(self._columns.values())).dtype

    def to_pandas(self) -> pd.Index[Any]:
        ((name, column),) = self._columns.items()
        return pd.Index(column.to_pandas(), name=name)

    def to_arrow(self) -> Any:
        return pa.array(self.to_pandas())


class RangeIndex(Index):
    name, dtype = None, "<i8"

    def __init__(self, start: int, stop: int, step: int) -> None:
        self.range = range(start, stop, step)

    def __len__(self) -> int:
        return len(self.range)

    def serialize(self) -> tuple[dict[str, Any], list[Any]]:
        return {"range": (self.range.start, self.range.stop, self.range.step), "frame_count": 0}, []

    @classmethod
    def deserialize(cls, header: dict[str, Any], frames: list[Any]) -> Any:
        assert not frames
        return cls(*header["range"])

    def to_pandas(self) -> pd.Index[Any]:
        return pd.RangeIndex(self.range.start, self.range.stop, self.range.step)


class _Rows(Frame):
    """The common part of data frames and series."""

    def take(self, indices: Any) -> Any:
        assert isinstance(indices, cupy.ndarray)
        return from_pandas(self.to_pandas().iloc[indices.get()])

    @property
    def iloc(self) -> Any:
        return _Slices(self)

    def to_pandas(self) -> Any:
        raise NotImplementedError


class _Slices:
    def __init__(self, frame: Any) -> None:
        self._frame = frame

    def __getitem__(self, key: slice) -> Any:
        a, b, _ = key.indices(len(self._frame))
        frame = self._frame
        index = Index.from_pandas(frame.index.to_pandas()[a:b])
        return type(frame)({label: c.slice(a, b) for label, c in frame._columns.items()}, index)


class Series(_Rows):
    ndim = 1

    def __init__(self, data: Any, index: Any = None, *, dtype: Any = None, name: Any = None) -> None:
        if not isinstance(data, dict):
            values = pd.Series(data, name=name)
            if dtype is not None and not isinstance(dtype, Decimal128Dtype):
                values = values.astype(dtype)
            made = Column.from_pandas(values, dtype or dtype_of(values))
            data, index = {name: made}, Index.from_pandas(values.index)
        super().__init__(data, index)

    @property
    def _column(self) -> Column:
        return next(iter(self._columns.values()))

    @property
    def name(self) -> Any:
        return next(iter(self._columns))

    @property
    def dtype(self) -> Any:
        dtype = self._column.dtype
        return dtype if dtype == "str" or isinstance(dtype, OBJECTS) else np.dtype(dtype)

    @property
    def values(self) -> cupy.ndarray:
        assert self._column.mask is None, "cuDF makes no array with missing values"
        return cupy.asarray(self._column.to_pandas().to_numpy())

    def to_pandas(self) -> pd.Series[Any]:
        return self._column.to_pandas().set_axis(self.index.to_pandas()).rename(self.name)

    def to_frame(self) -> DataFrame:
        return DataFrame({0 if self.name is None else self.name: self._column}, self.index)

    def astype(self, dtype: Any) -> Series:
        values = self.to_pandas()
        if self._column.mask is not None and dtype != "str":
            values = values.astype(np.dtype(dtype).name.capitalize())  # pandas' own has no missing values
        else:
            values = values.astype(dtype)
        return Series({self.name: Column.from_pandas(values, dtype)}, self.index)

    def fillna(self, value: Any) -> Series:
        if self._column.dtype == "|b1" and not isinstance(value, bool):
            raise TypeError(f"Cannot safely cast non-equivalent {type(value).__name__} to bool")
        return Series(self.to_pandas().fillna(value), name=self.name)

    def to_arrow(self) -> Any:
        dtype = self._column.dtype
        return pa.array(self.to_pandas(), dtype.to_arrow() if isinstance(dtype, Decimal128Dtype) else None)

    def factorize(self, use_na_sentinel: bool) -> tuple[cupy.ndarray, Index]:
        if isinstance(self._column.dtype, Decimal128Dtype):
            raise NotImplementedError("Unsupported column type passed to create an Index: DecimalColumn")
        codes, values = pd.factorize(self.to_pandas(), use_na_sentinel=use_na_sentinel)
        return cupy.asarray(codes), Index.from_pandas(pd.Index(values))

    def isna(self) -> Series:
        return Series(self.to_pandas().isna())

    def any(self) -> bool:
        return bool(self.to_pandas().any())

    def searchsorted(self, values: Series, side: str = "left") -> cupy.ndarray:
        assert values.dtype == self.dtype
        there = values.to_pandas()
        known = there.notna()
        found = np.full(len(there), len(self), np.int32)
        found[known] = self.to_pandas().searchsorted(there[known], side=side)
        return cupy.asarray(found)


class DataFrame(_Rows):
    ndim = 2

    @property
    def columns(self) -> pd.Index[Any]:
        return pd.Index(list(self._columns))

    @property
    def dtypes(self) -> pd.Series[Any]:
        numpys = {label: c.dtype for label, c in self._columns.items()}
        return pd.Series(
            {k: d if d == "str" or isinstance(d, OBJECTS) else np.dtype(d) for k, d in numpys.items()},
            dtype=object,
        )

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, list):
            return DataFrame({label: self._columns[label] for label in key}, self.index)
        return Series({key: self._columns[key]}, self.index)

    def __setitem__(self, key: Any, value: Series) -> None:
        self._columns[key] = value._column

    def to_pandas(self) -> pd.DataFrame:
        return pd.DataFrame({label: c.to_pandas() for label, c in self._columns.items()}).set_axis(
            self.index.to_pandas()
        )

    def hash_values(self, method: str) -> Series:
        """As in cuDF, equal numbers of different widths have different hashes."""
        assert method == "xxhash64"
        total = np.zeros(len(self), np.uint64)
        for column in self._columns.values():
            values = column.to_pandas()
            salt = np.uint64(len(str(column.dtype)) * 131 + ord(str(column.dtype)[-1]))
            total = total * np.uint64(31) + pd.util.hash_pandas_object(values, index=False).to_numpy() * (
                salt * np.uint64(2) + np.uint64(1)
            )
        return Series(pd.Series(total))


def from_pandas(obj: Any) -> Any:
    index = Index.from_pandas(obj.index)
    if isinstance(obj, pd.Series):
        return Series({obj.name: Column.from_pandas(obj, dtype_of(obj))}, index)
    return DataFrame({label: Column.from_pandas(obj[label], dtype_of(obj[label])) for label in obj.columns}, index)


def concat(frames: list[Any]) -> Any:
    return from_pandas(pd.concat([f.to_pandas() for f in frames]))
