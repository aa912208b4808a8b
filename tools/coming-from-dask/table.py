"""Prints docs/coming-from-dask.md: the public names of Dask's distributed beside ours.

names.json has distributed's names and parameters; names.py makes it. A name is the same if Millrace
has it with all parameters. Every other verdict is a note of this file, or the alternative in
millrace._dask_names. Run it with the environment of the tests:
.venv/bin/python tools/coming-from-dask/table.py > docs/coming-from-dask.md
"""

from __future__ import annotations

import enum
import inspect
import json
import re
from pathlib import Path
from typing import Any

import millrace
from millrace import _dask_names, servers
from millrace._client import _submission
from millrace._local import _cluster_arguments

HERE = Path(__file__).parent
VERDICTS = ("same", "better", "different", "refused", "missing")

#: Verdicts and sentences for names that are not simply the same. A name without a verdict here is
#: "same" if Millrace has it with all parameters.
NOTES: dict[str, tuple[str, str]] = {
    "CancelledError": ("same", "The error of a cancelled task."),
    "Client": (
        "better",
        "Also with `namespace`, `shared_memory` and `output`; `security` and `extensions` are refused: there are tokens.",
    ),
    "Future": ("different", "A key that no task has is an error."),
    "LocalCluster": (
        "same",
        "A scheduler and workers as child processes. `security`, `worker_class`, services and `blocked_handlers` are refused "
        "(local-clusters.md).",
    ),
    "Nanny": ("same", "A worker as a child process, as Worker: each has a supervisor."),
    "Scheduler": ("same", "A scheduler as a child process; what runs Python in it is refused."),
    "Worker": ("same", "A worker as a child process; a class or services for it are refused."),
    "NannyPlugin": ("refused", "There are no nannies: a WorkerPlugin prepares the processes of functions."),
    "SchedulerPlugin": ("refused", "The scheduler runs no Python: it survives the code of its users."),
    "KilledWorker": ("same", "The error of a task whose workers died; it is `millrace.errors.WorkerDiedError`."),
    "TimeoutError": ("same", "Python's own."),
    "WorkerPlugin.idempotent": ("same", "True: a plugin that is registered under the same name already stays."),
    "config": ("same", "Dask's own."),
    "dask": ("same", "The package dask."),
    "print": (
        "same",
        "Python's own: the output of tasks is shown at the client; in `millrace.as_distributed`, the text alone.",
    ),
    "warn": ("same", "Python's own: the warnings of tasks are shown at the client."),
    "Client.amm": (
        "refused",
        "Workers free copies that nobody reads; `drain_workers` and `rebalance` move results. Nothing is to be started.",
    ),
    "Client.asynchronous": ("same", "Whether methods return coroutines."),
    "Client.as_current": ("same", "Also unpickled futures use this client."),
    "Client.cancel": ("better", "Running functions are interrupted, and the futures are cancelled when it returns."),
    "Client.dump_cluster_state": ("better", "JSON by default; the client writes the file."),
    "Client.gather": ("better", "With a time limit; large arrays of this host are views of shared memory."),
    "Client.get_dataset": ("same", "An unknown name is a KeyError."),
    "Client.loop": ("different", "An asyncio loop with `add_callback` and `asyncio_loop`; there is no Tornado."),
    "Client.map": ("better", "Takes iterators, too."),
    "Client.publish_dataset": (
        "same",
        "Plain values and futures in it are read by every language; a tuple becomes a list.",
    ),
    "Client.replicate": ("better", "Copies go from worker to worker; GPUs pass them on while they arrive."),
    "Client.restart_workers": ("better", "Drains each worker first, so that no result is lost."),
    "Client.retire_workers": ("better", "Without a loss; says which results stay and why."),
    "Client.run_on_scheduler": ("refused", "The scheduler runs no Python: see `dump_cluster_state` and the gRPC API."),
    "Client.scatter": ("better", "A dict's keys name the data; small equal data are stored once."),
    "Client.scheduler_info": (
        "same",
        "More entries. Workers are named; in `millrace.as_distributed` they are addressed, here and elsewhere.",
    ),
    "Client.story": ("different", "Transitions as (key, old state, new state, cause, time); there are no stimuli."),
    "Client.submit": ("better", "With time limits, slots and `no_wait`."),
    "Client.sync": ("same", "On an AsyncClient, `sync` is the Client underneath: await the coroutine itself."),
    "Client.unregister_scheduler_plugin": ("refused", "The scheduler runs no Python, so it has no plugins."),
    "Client.write_scheduler_file": ("same", "Only its owner can read it, because it holds the token."),
    "LocalCluster.from_name": (
        "better",
        "Returns the cluster of this name that this process runs; Dask raises NotImplementedError.",
    ),
    "LocalCluster.loop": ("different", "As `Client.loop`."),
    "LocalCluster.name": ("same", "Name of the cluster, for people."),
    "LocalCluster.new_worker_spec": ("refused", "All workers of a local cluster are alike: `scale` adds some."),
    "LocalCluster.start_worker": ("same", "Raises NotImplementedError, as in Dask: `scale` adds workers."),
}

INTRO = """# Coming from Dask

> `tools/coming-from-dask/table.py` makes this page from the code. Do not edit it.

Programs for Dask change one line:

```python
from millrace import Client, wait  # instead of dask.distributed
```

`import millrace.as_distributed` instead makes the names of `dask.distributed` stand for Millrace in
the whole process. Dask's own collections, `dask.compute` and `dask.persist` use a `Client` as soon
as it is open.

The tables compare all public names of distributed {version}, with their parameters:

- **same**: it exists, with the same parameters. A parameter that needs no setting is accepted, and
  the log says why. A function that shall be called (`func`) is given by its position only.
- **better**: the same, and more.
- **different**: it exists; the sentence says how it differs.
- **refused**: it does not exist, or its use raises an error with the alternative.{missing}

{counts}
"""

TITLES = {
    "distributed": "Names of the package",
    "Client": "Client",
    "Future": "Future",
    "as_completed": "as_completed",
    "LocalCluster": "LocalCluster",
}


def found(owner: str, name: str) -> Any:
    """Returns our thing of this name; None if there is none."""
    if owner == "distributed":
        thing = getattr(millrace, name, None)
        return None if type(thing) is _dask_names.Absent else thing
    kind = getattr(millrace, owner, None)
    if kind is None or type(kind) is _dask_names.Absent:
        return None
    thing = inspect.getattr_static(kind, name, None)
    if thing is None and name in getattr(kind, "__annotations__", {}):
        return True
    return thing.__func__ if isinstance(thing, (classmethod, staticmethod)) else thing


def lacking(thing: Any, wanted: list[str] | None, owner: str, name: str) -> list[str]:
    """Returns the parameters that ours has not."""
    if wanted is None or not callable(thing) or not _is_made_by_users(thing):
        return []
    try:
        # `__new__` of Client passes everything on.
        parameters = inspect.signature(thing.__init__ if thing is millrace.Client else thing).parameters
    except (TypeError, ValueError):
        return []
    names = {p.name for p in parameters.values() if p.kind is not p.VAR_POSITIONAL}
    return [p for p in wanted if p not in names and p not in _more_arguments(thing)]


def _is_made_by_users(thing: Any) -> bool:
    """Returns False for classes whose objects users do not make: exceptions, enumerations, and the
    results of calls of actors."""
    return not isinstance(thing, type) or not issubclass(thing, (BaseException, enum.Enum, millrace.ActorFuture))


def _more_arguments(thing: Any) -> frozenset[str]:
    """Returns the names that a function takes by `**`: those that it checks one by one."""
    if thing is millrace.LocalCluster:
        return frozenset(a.name for a in _cluster_arguments.ARGUMENTS if a.of != _cluster_arguments.CUDA)
    if thing is millrace.Scheduler:
        return frozenset({*servers.SCHEDULER_MAPPED, *servers.SCHEDULER_REFUSED})
    if thing in (millrace.Worker, millrace.Nanny):
        return servers.worker_arguments()
    return _submission.FROM_DASK if thing is millrace.Client.get else frozenset()


def sentence(thing: Any) -> str:
    """Returns the first sentence of a docstring."""
    text = inspect.getdoc(thing) or ""
    first = re.split(r"(?<=[.])\s|\n\n|: ", text.replace("\n", " ").strip(), maxsplit=1)[0]
    return first.rstrip(".:").replace("|", "\\|") + "." if first else ""


def row(owner: str, name: str, wanted: list[str] | None) -> tuple[str, str, str]:
    """Returns the name, the verdict and the sentence of a row."""
    full = name if owner == "distributed" else f"{owner}.{name}"
    thing = found(owner, name)
    noted = NOTES.get(full)
    if thing is None:
        if noted is not None and noted[0] == "refused":
            return name, *noted
        instead = _dask_names.INSTEAD.get(full, "" if owner != "distributed" else _dask_names.INSTEAD.get(name, ""))
        return (name, "refused", instead) if instead else (name, "missing", "Millrace does not have it yet.")
    without = lacking(thing, wanted, owner, name)
    if noted is not None:
        verdict, text = noted
        if without and verdict in ("same", "better"):
            return name, "different", f"{text} Without {', '.join(without)}."
        return name, verdict, text
    if without:
        return name, "different", f"Without {', '.join(f'`{p}`' for p in without)}."
    text = sentence(thing.fget if isinstance(thing, property) else thing) if thing is not True else ""
    if owner == "distributed" and not getattr(thing, "__module__", "millrace").startswith("millrace"):
        text = ""
    return name, "same", text


def rows() -> dict[str, list[tuple[str, str, str]]]:
    """Returns the rows of all tables, by owner."""
    names = json.loads((HERE / "names.json").read_text())
    names.pop("version")
    return {owner: [row(owner, n, p) for n, p in members.items()] for owner, members in names.items()}


def page() -> str:
    """Returns the page."""
    tables = rows()
    everything = [r for table in tables.values() for r in table]
    counted = {v: sum(r[1] == v for r in everything) for v in VERDICTS}
    good = counted["same"] + counted["better"]
    counts = (
        f"Of {len(everything)} names, {counted['same']} are the same and {counted['better']} better "
        f"({100 * good // len(everything)} %), {counted['different']} different, {counted['refused']} refused"
        + (f", {counted['missing']} missing." if counted["missing"] else ".")
    )
    missing = "\n- **missing**: it is not there yet." if counted["missing"] else ""
    version = json.loads((HERE / "names.json").read_text())["version"]
    parts = [INTRO.format(version=version, counts=counts, missing=missing)]
    for owner, table in tables.items():
        lines = [f"| `{name}` | {verdict} | {text} |" for name, verdict, text in table]
        title = TITLES.get(owner, owner)
        parts.append(f"## {title}\n\n| name | verdict | |\n|---|---|---|\n" + "\n".join(lines) + "\n")
    return "\n".join(parts)


if __name__ == "__main__":
    print(page(), end="")
