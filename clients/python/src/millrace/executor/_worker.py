"""The worker, as functions that run in its processes see it."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

from millrace._cluster._scheduler_place import SchedulerPlace
from millrace._connection._event_loop import EventLoop, of_process
from millrace._pb.millrace.executor.v1 import executor_pb2
from millrace._status import Status
from millrace.executor._op import Functions


class Worker:
    """The worker that an executor process belongs to."""

    def __init__(self, hello: executor_pb2.ExecutorHello, functions: Functions) -> None:
        #: Its name, unique in the cluster.
        self.name = hello.worker_name
        #: Its number in the cluster; 0 if it was not registered when the process was started.
        self.id = hello.worker_id
        #: Its address, as Dask writes it: "tcp://host:port".
        self.address = f"tcp://{hello.data_address}"
        #: Address of the scheduler.
        self.scheduler_address = hello.scheduler_address
        #: Directory for temporary files of this process, which ends with it.
        self.local_directory = hello.scratch_directory
        #: The plugins of this process, by name.
        self.plugins: dict[str, Any] = {}
        # The plugins that follow tasks: their bound methods `transition`.
        self._observers: tuple[Callable[..., Any], ...] = ()
        self._functions = functions

    @property
    def scheduler(self) -> SchedulerPlace:
        """The scheduler's address, as "tcp://host:port": it is a process of its own."""
        return SchedulerPlace(self.scheduler_address, lambda: Status.running)

    @property
    def loop(self) -> EventLoop:
        """An event loop in a thread of its own, which is also `loop` of the clients of tasks."""
        return of_process()

    def forget_functions(self) -> None:
        """Makes the process import and unpickle functions again before it calls them, because
        modules have changed. May be called in any thread."""
        self._functions.generation += 1

    def observe(self) -> None:
        """Finds the plugins that follow tasks."""
        methods = (getattr(plugin, "transition", None) for plugin in list(self.plugins.values()))
        self._observers = tuple(m for m in methods if m is not None and not _inherited(m))

    @property
    def observed(self) -> bool:
        """True if a plugin follows tasks."""
        return bool(self._observers)

    def tell(self, key: Any, start: str, finish: str) -> None:
        """Tells plugins that a task has changed its state. Their errors are printed: they are none
        of the task."""
        for observer in self._observers:
            try:
                observer(key, start, finish)
            except Exception:
                traceback.print_exc()

    def __repr__(self) -> str:
        return f"<Worker {self.name!r}>"


def _inherited(method: Any) -> bool:
    """Returns whether a method `transition` is that of a base class of plugins, which does
    nothing."""
    module = getattr(getattr(method, "__func__", None), "__module__", "")
    return module == "millrace.plugins" or module.startswith("distributed.diagnostics.")
