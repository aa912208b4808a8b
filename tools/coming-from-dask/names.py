"""Prints the public names of Dask's distributed and their parameters, as JSON.

Run it in an environment with distributed: tools/coming-from-dask/names.py > names.json. The table
of docs/coming-from-dask.md compares ours with them.
"""

from __future__ import annotations

import inspect
import json
import sys
from typing import Any

import distributed

#: Classes whose methods and attributes are compared.
CLASSES = (
    "Client", "Future", "as_completed", "LocalCluster", "Lock", "MultiLock", "Semaphore", "Event", "Queue", "Variable",
    "ActorFuture", "WorkerPlugin",
)  # fmt: skip
#: Members that Lock and the others inherit from distributed's machinery, without documentation.
MACHINERY = frozenset({"asynchronous", "client", "loop", "register", "scheduler", "sync"})


def parameters(thing: Any) -> list[str] | None:
    """Returns the names of parameters; None for attributes."""
    if isinstance(thing, property) or not callable(thing):
        return None
    try:
        found = inspect.signature(thing).parameters.values()
    except (TypeError, ValueError):
        return None
    kinds = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
    return [p.name for p in found if p.kind not in kinds and p.name not in ("self", "cls")]


def members(kind: type) -> dict[str, list[str] | None]:
    """Returns the public members of a class that distributed defines."""
    names: dict[str, list[str] | None] = {}
    for base in kind.__mro__:
        if base.__module__.partition(".")[0] == "distributed":
            for name, thing in vars(base).items():
                if not name.startswith("_") and (
                    name not in MACHINERY or kind.__name__ in ("Client", "Future", "LocalCluster")
                ):
                    plain = thing.__func__ if isinstance(thing, (classmethod, staticmethod)) else thing
                    names.setdefault(name, parameters(plain))
    return dict(sorted(names.items()))


def main() -> None:
    module = {n: parameters(getattr(distributed, n)) for n in sorted(distributed.__all__)}
    classes = {n: members(getattr(distributed, n)) for n in CLASSES}
    json.dump({"version": distributed.__version__, "distributed": module, **classes}, sys.stdout, indent=1)
    print()


main()
