"""Makes open clients Dask's default scheduler, as long as they are open; and inside of tasks, the
cluster that runs them.

Dask may be imported before or after a client is opened.
"""

from __future__ import annotations

import functools
import importlib
import logging
import sys
import threading
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from millrace._import_hooks import when_imported

#: Settings of Dask whose defaults need the package distributed, or one file system for all workers,
#: with the values that they get unless users have set them.
_SETTINGS = {"dataframe.shuffle.method": "millrace", "array.rechunk.method": "millrace"}
#: The name of the shuffles and rechunks of this package, and that of distributed's, for which users
#: mean the same.
_METHOD, _OTHERS = "millrace", "p2p"
#: Names by which users choose the scheduler.
_NAMES = ("millrace", "distributed", "dask.distributed")

_log = logging.getLogger("millrace")
_lock = threading.RLock()
# The clients that are Dask's default, the most recently opened one last. Guarded by _lock.
_clients: list[Any] = []
# The values of Dask's settings before the first client was opened, by name; _MISSING: it had none.
# None: Dask's settings are its own. Guarded by _lock.
_before: dict[str, Any] | None = None
_MISSING = object()
# Dask was not imported when the last client was opened. Guarded by _lock.
_waits = False
# Modules of Dask with a function get_scheduler_lock of their own.
_USE_LOCKS = ("dask.utils", "dask.array.core", "dask.dataframe.io.hdf")
# The functions of Dask's modules were replaced, or will be at their import. Guarded by _lock.
_extended = False
# A warning has said that Dask has other private parts. Guarded by _lock.
_told = False


class CurrentClient:
    """A scheduler for Dask that uses the current client at each call."""

    asynchronous = False

    def __init__(self, find: Callable[[], Any]) -> None:
        self._find = find

    def get(self, dsk: Any, keys: Any, **options: Any) -> Any:
        """Computes a graph: see `Client.get`."""
        return self._find().get(dsk, keys, **options)

    __call__ = get

    def persist(self, collections: Any, **options: Any) -> Any:
        """Starts to compute collections: see `Client.persist`."""
        return self._find().persist(collections, **options)


def opened(client: Any, current: CurrentClient) -> None:
    """Makes a client Dask's default scheduler. In a process of tasks, that remains the client of the
    task which computes: the process runs tasks of several namespaces."""
    global _waits
    with _lock:
        if any(isinstance(c, CurrentClient) for c in _clients):
            return
        _clients.append(client)
        waits, _waits = _waits, True
    if not waits:
        when_imported("dask", lambda _: _register(current))


def in_task_process() -> None:
    """Makes the cluster of this process Dask's default scheduler: the process runs its tasks, and
    opens a client when one of them computes a collection."""
    current = CurrentClient(lambda: importlib.import_module("millrace").get_client())
    opened(current, current)


def closed(client: Any) -> None:
    """Makes the client that was opened before this one the default again; without one, restores
    Dask's settings."""
    with _lock:
        if not any(c is client for c in _clients):
            return
        _clients[:] = [c for c in _clients if c is not client]
        if _before is not None:
            _update()


def _register(current: CurrentClient) -> None:
    global _before, _extended, _waits
    import dask.base
    import dask.config

    with _lock:
        _waits = False
        if not _extended:
            _extended = True
            for name in _USE_LOCKS:
                _extend(name, _share_locks, "locks of store() are those of one process")
            _extend("dask.bag.core", _group_by_tasks, "groupby of bags needs dask.config.set(shuffle='tasks')")
            _extend("dask.array.rechunk", _add_rechunk, "rechunks are those of Dask", "array.rechunk.method")
            _extend(
                "dask.dataframe.dask_expr._shuffle",
                _add_shuffle,
                "shuffles are those of Dask",
                "dataframe.shuffle.method",
            )
            _extend("dask.dataframe.dask_expr._merge", _add_merge, "merges are planned by Dask alone")
            _extend("dask.dataframe.dask_expr._collection", _add_frames, 'shuffle() refuses the method "p2p"')
        if not _clients:
            return
        if _before is None:
            names = {"scheduler": None, **_SETTINGS}
            _before = {name: dask.config.get(name, _MISSING) for name in names}
        for name in _NAMES:
            if name == "millrace" or "distributed" not in sys.modules:
                dask.base.named_schedulers.setdefault(name, current)
        _update()


def serves(method: str | None) -> bool:
    """Returns whether this package's shuffles and rechunks serve a method: "millrace", and as long as
    a client is open "p2p", the method of distributed."""
    return method == _METHOD or (method == _OTHERS and bool(_clients))


def _extend(name: str, change: Callable[[Any], object], without: str, setting: str | None = None) -> None:
    """Changes a module of Dask when it is imported. If Dask has other private parts than those that
    are changed, Dask works without the change. The first such module is a warning, the others are
    written to the log.

    Args:
        name: the module.
        change: the change.
        without: what holds without it.
        setting: the setting of Dask that then gets the method "tasks".
    """

    def changed(module: Any) -> None:
        global _told
        try:
            change(module)
        except Exception as e:
            dask: Any = sys.modules["dask"]
            with _lock:
                told, _told = _told, True
            if told:
                _log.info("no private parts of Dask are known in %s (%s: %s): %s", name, type(e).__name__, e, without)
            else:
                warnings.warn(
                    f"millrace does not know the private parts of Dask {dask.__version__} ({name}: {type(e).__name__}: "
                    f"{e}): {without}. Install a newer millrace, or the Dask for which this one was made. Other parts "
                    'of which this is true are written to the log "millrace" at level INFO',
                    RuntimeWarning,
                    stacklevel=2,
                )
            if setting is not None:
                with _lock:
                    _SETTINGS[setting] = "tasks"
                    if _before is not None:
                        _update()

    when_imported(name, changed)


def _share_locks(module: Any) -> None:
    """Makes store(lock=True) of Dask's collections use a lock of the cluster, when a client computes
    them. The locks that Dask makes itself exclude the tasks of one process only."""
    plain = module.get_scheduler_lock
    if hasattr(plain, "__wrapped__"):
        return

    @functools.wraps(plain)
    def get_scheduler_lock(collection: Any = None, scheduler: Any = None) -> Any:
        import dask.base

        found: Any = dask.base.get_scheduler(collections=[collection], scheduler=scheduler)
        owner = getattr(found, "__self__", found)  # a client's method get, or a CurrentClient
        if type(owner).__module__.partition(".")[0] == "millrace":
            return importlib.import_module("millrace").Lock()
        return plain(collection, scheduler)

    module.get_scheduler_lock = get_scheduler_lock


def _add_rechunk(module: Any) -> None:
    """Makes Dask's arrays know the rechunk method "millrace"."""
    importlib.import_module("millrace._dask._rechunk").use_in_rechunks(module)


def _add_shuffle(module: Any) -> None:
    """Makes Dask's data frames know the shuffle method "millrace"."""
    importlib.import_module("millrace._dask._shuffle").use_in_shuffles(module)


def _add_merge(module: Any) -> None:
    """Makes Dask's merges broadcast a small side with the shuffle method "millrace", too."""
    importlib.import_module("millrace._dask._shuffle").use_in_merges(module)


def _add_frames(module: Any) -> None:
    """Makes the method `shuffle` of Dask's data frames take "p2p" for "millrace"."""
    importlib.import_module("millrace._dask._shuffle").use_in_frames(module)


def _group_by_tasks(module: Any) -> None:
    """Makes the groupby of bags use tasks with the shuffle method "millrace", as it does with that
    of distributed: it knows only two methods of its own."""
    plain = module.get_default_shuffle_method

    @functools.wraps(plain)
    def get_default_shuffle_method() -> str:
        method = plain()
        return "tasks" if method == "millrace" else method

    module.get_default_shuffle_method = get_default_shuffle_method


def _unset(value: Any) -> bool:
    return value is _MISSING or value is None


def _update() -> None:
    """Sets Dask's settings for the clients that are open. REQUIRES: the lock."""
    global _before
    import dask.base
    import dask.config

    assert _before is not None
    if _clients:
        dask.config.set({"scheduler": _clients[-1]})
        dask.config.set({name: value for name, value in _SETTINGS.items() if _unset(_before[name])})
        return
    for name, value in _before.items():
        if name in _SETTINGS and not _unset(value):
            continue  # it was not changed
        if value is _MISSING:
            _forget(dask.config.config, name.split("."))
        else:
            dask.config.set({name: value})
    for name in _NAMES:
        if isinstance(dask.base.named_schedulers.get(name), CurrentClient):
            del dask.base.named_schedulers[name]
    _before = None


def _forget(config: dict[str, Any], path: Sequence[str]) -> None:
    for part in path[:-1]:
        config = config.get(part, {})
    config.pop(path[-1], None)
