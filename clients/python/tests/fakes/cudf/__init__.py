"""Test support: the part of cuDF that Millrace and its tests use, on the fakes of CuPy and RMM.
Objects become frames and back, buffers are copied before writes, and buffers move to host memory,
as in cuDF 26.10."""

from __future__ import annotations

from cudf import api as api
from cudf.core.column import CategoricalDtype as CategoricalDtype
from cudf.core.column import Decimal128Dtype as Decimal128Dtype
from cudf.core.frame import DataFrame as DataFrame
from cudf.core.frame import Index as Index
from cudf.core.frame import RangeIndex as RangeIndex
from cudf.core.frame import Series as Series
from cudf.core.frame import concat as concat
from cudf.core.frame import from_pandas as from_pandas

__version__ = "fake"
