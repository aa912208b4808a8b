"""Tokens by which Dask names objects."""

from __future__ import annotations

import sys
from typing import Any


def own_token(obj: Any) -> str | None:
    """Returns Dask's token of an object whose class says by itself how it is named: by
    `__dask_tokenize__`, or by a function that is registered with `dask.tokenize.normalize_token`.
    None: it does not, or Dask is not imported here."""
    tokens: Any = sys.modules.get("dask.tokenize")
    if tokens is None:
        return None
    kind = type(obj)
    if not hasattr(kind, "__dask_tokenize__"):
        function = tokens.normalize_token.dispatch(kind)
        home = getattr(function, "__module__", None) or ""
        if home == "dask" or home.startswith("dask."):
            return None
    return str(tokens.tokenize(obj))
