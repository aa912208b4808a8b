"""Calls that are made when another package is imported.

The client serves packages that it does not import itself, because their import takes long: dask,
joblib, pandas. A hook acts at once if the package is there, and else right after its import.
"""

from __future__ import annotations

import importlib.util
import sys
import threading
import warnings
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

_lock = threading.Lock()
# Calls by the name of the module whose import they wait for. Guarded by _lock.
_waiting: dict[str, list[Callable[[ModuleType], object]]] = {}


def when_imported(name: str, call: Callable[[ModuleType], object]) -> None:
    """Calls with a module: now if it has been imported, else once its import has ended, in the
    thread that imports it. An error of a call after an import is a RuntimeWarning: the module works
    for its users without the call."""
    with _lock:
        module = sys.modules.get(name)
        if module is None or getattr(module.__spec__, "_initializing", False):
            _waiting.setdefault(name, []).append(call)
            if _finder not in sys.meta_path:
                sys.meta_path.insert(0, _finder)
            return
    call(module)


def _imported(name: str) -> None:
    """Makes the calls that waited for a module."""
    with _lock:
        calls = _waiting.pop(name, [])
        if not _waiting and _finder in sys.meta_path:
            sys.meta_path.remove(_finder)
    for call in calls:
        try:
            call(sys.modules[name])
        except Exception as e:
            warnings.warn(f"millrace cannot serve {name}: {type(e).__name__}: {e}", RuntimeWarning, stacklevel=2)


class _Finder(MetaPathFinder):
    """Finds the modules that are waited for, by means of the other finders, and adds the calls to
    their execution."""

    def __init__(self) -> None:
        self._finding = threading.local()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in _waiting or getattr(self._finding, "name", None) == fullname:
            return None
        self._finding.name = fullname
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._finding.name = None
        loader = None if spec is None else spec.loader
        if loader is not None:
            execute = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                # A module may replace itself, and be imported again: the loader is as before.
                vars(loader).pop("exec_module", None)
                execute(module)
                _imported(fullname)

            vars(loader)["exec_module"] = exec_module
        return spec


_finder = _Finder()
