"""Plugins in an executor process. The worker calls these functions when the plugins of the cluster
change."""

from __future__ import annotations

import contextlib
import inspect
import sys
import traceback
from typing import Any

from millrace.executor._worker import Worker


def setup(name: str, plugin: Any, dask_worker: Worker) -> None:
    """Gives the process a plugin."""
    _call(plugin, "setup", dask_worker)
    dask_worker.plugins[name] = plugin
    dask_worker.observe()


def teardown(name: str, dask_worker: Worker) -> None:
    """Takes a plugin from the process."""
    plugin = dask_worker.plugins.pop(name, None)
    dask_worker.observe()
    _call(plugin, "teardown", dask_worker)


def end(worker: Worker) -> None:
    """Takes all plugins from a process that is about to end."""
    for name in reversed(list(worker.plugins)):
        try:
            teardown(name, worker)
        except BaseException:
            with contextlib.suppress(Exception):
                traceback.print_exc(file=sys.__stderr__)


def _call(plugin: Any, method: str, worker: Worker) -> None:
    function = getattr(plugin, method, None)
    if function is None:
        return
    result = function(worker=worker)
    if inspect.iscoroutine(result):
        import asyncio  # slow to import, and rarely needed

        asyncio.run(result)
