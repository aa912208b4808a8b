"""Test support: the part of cuDF's questions about types that Millrace uses."""

from cudf.api import types as types
