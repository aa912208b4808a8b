"""The client's methods for code on workers: plugins and files."""

from __future__ import annotations

import io
import os
import uuid
from collections.abc import Callable
from typing import Any

from millrace import _check, errors, plugins
from millrace._calls import _worker_calls
from millrace._client._client_part import AsyncPart, ClientPart, awaited
from millrace._connection._steps import run
from millrace._pb.millrace.v1 import plugin_service_pb2
from millrace._values import _serialize

#: Longest wait for the plugins of all workers, in seconds: they may install packages.
_LONGEST = 86_400.0

_NO_PYTHON = "the scheduler of Millrace runs no Python, so that it survives its users' code: "


class PluginCalls(ClientPart):
    """Registers plugins and sends files."""

    def register_plugin(self, plugin: Any, name: str | None = None) -> dict[str, Any]:
        """Registers a plugin: its `setup` is called in each process in which tasks run, in those
        that exist and, before their first task, in those that start later. It returns when all
        workers have called it. A plugin of the same name is replaced, unless the new one is
        `idempotent`.

        Args:
            plugin: an instance of a subclass of `WorkerPlugin`, or of distributed's. It is pickled.
            name: its name. Default: its attribute `name`, else one that is made from its class.

        Returns:
            {"status": "OK"} by name of the worker.

        Raises:
            The exception of `setup`. Then the plugin is not registered anywhere.
            TypeError: it is no such instance, or a plugin for schedulers or nannies.
            SerialisationError: it cannot be pickled.
        """
        _check_plugin(plugin)
        named = _check.text(name or getattr(plugin, "name", None) or _name(plugin), "name", 256)
        request = plugin_service_pb2.RegisterPluginRequest(idempotent=bool(getattr(plugin, "idempotent", False)))
        made = request.plugin
        made.name = named
        made.setup.name, made.teardown.name = "millrace.executor._plugins:setup", "millrace.executor._plugins:teardown"
        _pack(made.setup, named, plugin)
        _pack(made.teardown, named)
        response = self.session.call("RegisterPlugin", request, timeout=_LONGEST)
        for outcome in response.workers:
            for failure in outcome.failures:
                _worker_calls.value(failure)
        if getattr(plugin, "restart_workers", False):
            run(_worker_calls.restart(self.session, self.session.workers()))
        return {outcome.worker: {"status": "OK"} for outcome in response.workers}

    def unregister_worker_plugin(self, name: str, nanny: bool | None = None) -> dict[str, Any]:
        """Removes a plugin: its `teardown` is called in each process that has it.

        Args:
            name: its name.
            nanny: accepted, and without effect: all plugins are plugins of the processes in which
                tasks run.

        Returns:
            {"status": "OK"} by name of the worker.

        Raises:
            NotFoundError: there is none of this name.
            The exception of `teardown`; the plugin is removed nevertheless.
        """
        request = plugin_service_pb2.UnregisterPluginRequest(name=_check.text(name, "name", 256))
        response = self.session.call("UnregisterPlugin", request, timeout=_LONGEST)
        for outcome in response.workers:
            for failure in outcome.failures:
                _worker_calls.value(failure)
        return {outcome.worker: {"status": "OK"} for outcome in response.workers}

    def unregister_scheduler_plugin(self, name: str) -> None:
        """Not possible: there are no plugins of schedulers."""
        raise NotImplementedError(
            f"unregister_scheduler_plugin({name!r}): {_NO_PYTHON}it has no plugins. Plugins of workers are removed by "
            "unregister_worker_plugin"
        )

    def run_on_scheduler(self, function: Any, *args: Any, **kwargs: Any) -> None:
        """Not possible: the scheduler runs no Python."""
        raise NotImplementedError(
            f"run_on_scheduler: {_NO_PYTHON}call the function on workers by client.run; client.scheduler_info(), "
            "client.story() and `millrace describe` tell what the scheduler knows"
        )

    def register_worker_callbacks(self, setup: Callable[..., Any] | None = None) -> dict[str, Any]:
        """Calls a function in each process in which tasks run, in those that exist and in those
        that start later. If it has a parameter `dask_worker`, it gets a description of its worker.

        Returns and raises what `register_plugin` does.
        """
        if not callable(setup):
            raise TypeError(f"setup: give a function, not {setup!r:.100}")
        return self.register_plugin(_Callback(setup), f"callback-{uuid.uuid4().hex[:12]}")

    def upload_file(self, filename: str | os.PathLike[str], load: bool = True) -> dict[str, Any]:
        """Sends a file to all workers, and to those that come later. Functions can import it if it
        is a module (.py), or modules of it (.egg, .zip); a module that was imported already is
        imported again. Other files are in the directory `uploads` of the worker's
        `local_directory`.

        Args:
            filename: the file; at most 16 MiB.
            load: import the module at once, so that errors in it are raised here.

        Returns and raises what `register_plugin` does.
        """
        return self.register_plugin(plugins.UploadFile(filename, load=_check.boolean(load, "load")))


class AsyncPluginCalls(AsyncPart):
    """The methods of `PluginCalls`, as coroutines."""

    register_plugin = awaited(PluginCalls.register_plugin)
    unregister_worker_plugin = awaited(PluginCalls.unregister_worker_plugin)
    unregister_scheduler_plugin = awaited(PluginCalls.unregister_scheduler_plugin)
    run_on_scheduler = awaited(PluginCalls.run_on_scheduler)
    register_worker_callbacks = awaited(PluginCalls.register_worker_callbacks)
    upload_file = awaited(PluginCalls.upload_file)


class _Callback(plugins.WorkerPlugin):
    """A plugin of one function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def setup(self, worker: Any) -> Any:
        return self.function(**({"dask_worker": worker} if plugins.takes(self.function, "dask_worker") else {}))


def _check_plugin(plugin: Any) -> None:
    if isinstance(plugin, type):
        raise TypeError(f"plugin: give an instance, {plugin.__name__}(...), and not the class")
    bases = {base.__name__ for base in type(plugin).__mro__}
    if "SchedulerPlugin" in bases and not {"InstallPlugin", "UploadDirectory"} & bases:
        raise TypeError(f"{type(plugin).__name__} is a SchedulerPlugin: " + plugins.NO_SCHEDULER_PLUGINS)
    if bases & {"NannyPlugin", "InstallPlugin", "UploadDirectory"} and not isinstance(plugin, plugins.WorkerPlugin):
        raise TypeError(f"{type(plugin).__name__} is a plugin of distributed's nannies: " + plugins.NO_NANNY_PLUGINS)
    if "WorkerPlugin" not in bases:
        raise TypeError(f"plugin: {plugin!r:.100} is no plugin: derive its class from millrace.WorkerPlugin")


def _name(plugin: Any) -> str:
    return f"{type(plugin).__name__}-{uuid.uuid4().hex[:12]}"


def _pack(call: Any, *args: Any) -> None:
    """Writes the arguments of a call."""
    file = io.BytesIO()
    try:
        _serialize.CallPickler(file, lambda _: None).dump((args, {}))
    except Exception as e:
        raise errors.SerialisationError(f"plugin {args[0]} cannot be pickled: {type(e).__name__}: {e}") from e
    call.arguments.call.encoding, call.arguments.call.data = "pickle5", file.getvalue()
