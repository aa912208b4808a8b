"""Questions about types."""

from __future__ import annotations

from typing import Any


def is_string_dtype(obj: Any) -> bool:
    return isinstance(obj, str) and obj == "str"
