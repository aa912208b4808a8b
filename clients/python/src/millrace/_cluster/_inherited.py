"""Dask's configuration of this process, for the processes that it starts."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Mapping
from typing import Any, cast

#: The variable that Dask reads when it is imported.
_VARIABLE = "DASK_INTERNAL_INHERIT_CONFIG"
#: Settings that an open client makes in its own process only.
_OF_CLIENTS = ("scheduler", "shuffle", "dataframe.shuffle.method", "dataframe.shuffle.algorithm")


def environment() -> dict[str, str]:
    """Returns the variables that give a process the configuration of Dask that this one has; none
    if Dask is not imported here. Values that JSON does not have are left out."""
    config: Any = sys.modules.get("dask.config")
    if config is None:
        return {}
    kept = _plain(config.global_config, "")
    return {_VARIABLE: config.serialize(kept)} if kept else {}


def _plain(settings: Mapping[str, Any], path: str) -> dict[str, Any]:
    """Returns a copy of settings with the values that JSON has."""
    out: dict[str, Any] = {}
    for name, value in list(settings.items()):
        if path + name in _OF_CLIENTS:
            continue
        if isinstance(value, Mapping):
            out[name] = _plain(cast("Mapping[str, Any]", value), f"{path}{name}.")
            continue
        with contextlib.suppress(TypeError, ValueError):
            json.dumps(value)
            out[name] = value
    return out
