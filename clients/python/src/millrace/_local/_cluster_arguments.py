"""The arguments of local clusters: those of LocalCluster and LocalCUDACluster here, and those that
Dask's classes of the same names take.

Each argument of Dask's classes is in `ARGUMENTS`. It is mapped to settings of `millrace up`,
accepted with a sentence that says why no setting is needed, or refused with the reason and the
alternative. None is ignored silently.
"""

from __future__ import annotations

import difflib
import fcntl
import ipaddress
import logging
import socket
import struct
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, cast

from millrace import _check


class Treatment(Enum):
    """The effect of an argument."""

    #: It means the same, or is translated.
    MAPPED = "mapped"
    #: It has no effect, because no setting is needed; a warning says why.
    ACCEPTED = "accepted"
    #: It raises an error with the alternative.
    REFUSED = "refused"


#: The classes that have an argument: both, only the one for GPUs, or those of the workers that
#: both pass on.
BOTH, CUDA, WORKER = "LocalCluster", "LocalCUDACluster", "workers"


@dataclass(frozen=True)
class Argument:
    name: str
    of: str
    treatment: Treatment
    #: Its meaning here, or the reason why it is accepted or refused, as the end of a sentence.
    text: str
    #: Values that ask for nothing: they pass without a word.
    quiet: tuple[Any, ...] = (None,)


_ENDS = "the processes of a local cluster end with your program"
_SLAB = "results on a GPU are in one slab, which is allocated once and shared with the other GPUs: device_memory_limit= is its size"
_LINKS = "the links between GPUs and hosts are found, and the fastest one that each pair has is used"
_PUSHED = "the scheduler is told of each change at once"

ARGUMENTS: tuple[Argument, ...] = (
    # Both classes.
    Argument("name", BOTH, Treatment.MAPPED, "name of the cluster, for people"),
    Argument("n_workers", BOTH, Treatment.MAPPED, "number of workers; 0: a scheduler alone, until `scale` or `adapt`"),
    Argument(
        "threads_per_worker", BOTH, Treatment.MAPPED, "tasks that a worker runs at once, each in a process of its own"
    ),
    Argument(
        "processes", BOTH, Treatment.ACCEPTED,
        "tasks run in processes of their own all the same, so they do not hold each other up by the interpreter's lock, and "
        "cannot change variables of your program; the default is one worker with a slot for each core then", (None, True),
    ),
    Argument("host", BOTH, Treatment.MAPPED, "host or address at which the scheduler and the workers listen; default 127.0.0.1"),
    Argument("ip", BOTH, Treatment.MAPPED, "the same as host"),
    Argument("interface", BOTH, Treatment.MAPPED, "network interface at whose address they listen, instead of host"),
    Argument("scheduler_port", BOTH, Treatment.MAPPED, "port of the scheduler; 0: a free one"),
    Argument("dashboard_address", BOTH, Treatment.MAPPED, 'address of the HTTP port, ":8787" by default, or another port if that is taken; None: no HTTP port'),
    Argument("silence_logs", BOTH, Treatment.MAPPED, "lowest level of the cluster's log, which `get_logs` returns; it is never printed"),
    Argument("memory_limit", BOTH, Treatment.MAPPED, 'memory of each worker for results: bytes, "4GiB", a share of this machine\'s (0.2), or "auto"; further results go to disk'),
    Argument("local_directory", BOTH, Treatment.MAPPED, "where results go that there is no room for in memory"),
    Argument("asynchronous", BOTH, Treatment.MAPPED, "start at `await` or `async with`, and return awaitables from methods that wait"),
    Argument(
        "protocol", BOTH, Treatment.ACCEPTED,
        "each pair of workers uses the best way that it has: GPU memory of the same machine, shared memory, UCX or TCP "
        "(MILLRACE_PROTOCOL forces one); control messages are gRPC", (None, "auto"),
    ),
    Argument("security", BOTH, Treatment.REFUSED, "every cluster has a random token, and listens on 127.0.0.1 unless host= says otherwise; for other machines see docs/security.md", (None, False)),
    Argument("worker_class", BOTH, Treatment.REFUSED, "workers are one program; code for them goes into a worker plugin", (None,)),
    Argument("scheduler_kwargs", BOTH, Treatment.MAPPED, "a dict of host, interface, port, dashboard_address, protocol and worker_ttl; other keys are refused", (None, {})),
    Argument("loop", BOTH, Treatment.ACCEPTED, "clients need no event loop of tornado"),
    Argument("start", BOTH, Treatment.ACCEPTED, "a cluster starts when it is made, or with asynchronous=True when it is awaited"),
    Argument("scheduler_sync_interval", BOTH, Treatment.ACCEPTED, _PUSHED, (None, 1)),
    Argument("worker_dashboard_address", BOTH, Treatment.ACCEPTED, "workers have no pages of their own: the scheduler shows all of them"),
    Argument("services", BOTH, Treatment.REFUSED, "the scheduler runs no services of others", (None, {})),
    Argument("worker_services", BOTH, Treatment.REFUSED, "workers run no services of others", (None, {})),
    Argument("service_kwargs", BOTH, Treatment.REFUSED, "the scheduler runs no services of others", (None, {})),
    Argument("blocked_handlers", BOTH, Treatment.REFUSED, "what a caller may do depends on its token: tasks have one that cannot stop the cluster", (None, [], ())),
    # Arguments of Dask's workers.
    Argument("nthreads", WORKER, Treatment.MAPPED, "the same as threads_per_worker"),
    Argument("ncores", WORKER, Treatment.MAPPED, "the same as threads_per_worker"),
    Argument("resources", WORKER, Treatment.MAPPED, 'what each worker has of a resource: {"licence": 1}'),
    Argument("preload", WORKER, Treatment.MAPPED, "modules that the Python processes import before tasks need them; files and source text are refused: make a module, or a worker plugin", (None, [], ())),
    Argument("env", WORKER, Treatment.MAPPED, "environment variables of the workers and of the functions", (None, {})),
    Argument("max_spill", WORKER, Treatment.MAPPED, "what each worker keeps on disk: bytes or text; False: without a limit", (None,)),
    Argument("preload_argv", WORKER, Treatment.REFUSED, "preloaded modules are imported without arguments: read them from env=", (None, [], ())),
    Argument("preload_nanny", WORKER, Treatment.REFUSED, "the supervisor of the workers runs no Python: set env=, or preload= for the processes of tasks", (None, [], ())),
    Argument("preload_nanny_argv", WORKER, Treatment.REFUSED, "the supervisor of the workers runs no Python", (None, [], ())),
    Argument("plugins", WORKER, Treatment.REFUSED, "register them by a client, which also reaches workers that come later: client.register_plugin(plugin)", (None, [], ())),
    Argument("death_timeout", WORKER, Treatment.ACCEPTED, _ENDS),
    Argument("lifetime", WORKER, Treatment.REFUSED, "end a worker when its work can move: client.retire_workers, or cluster.scale", (None,)),
    Argument("lifetime_stagger", WORKER, Treatment.ACCEPTED, "without lifetime= it has no meaning"),
    Argument("lifetime_restart", WORKER, Treatment.ACCEPTED, "without lifetime= it has no meaning", (None, False)),
    Argument("memory_pause_fraction", WORKER, Treatment.MAPPED, "share of the memory that functions may use above which no further task begins; False: never. Default 0.8"),
    Argument("memory_terminate_fraction", WORKER, Treatment.MAPPED, "share of the memory that functions may use above which the process that uses most is ended; False: never. Default 0.95"),
    Argument("memory_target_fraction", WORKER, Treatment.ACCEPTED, "results are in a slab of exactly memory_limit, and move to disk when it is full"),
    Argument("memory_spill_fraction", WORKER, Treatment.ACCEPTED, "results are in a slab of exactly memory_limit, and move to disk when it is full"),
    Argument("nanny", WORKER, Treatment.ACCEPTED, "a supervisor always starts dead workers again", (None, True)),
    Argument("quiet", WORKER, Treatment.ACCEPTED, "workers print nothing: get_logs returns their log", (None, True)),
    Argument("validate", WORKER, Treatment.ACCEPTED, "invariants are checked by tests of the program", (None, False)),
    Argument("reconnect", WORKER, Treatment.ACCEPTED, "workers always reconnect", (None, True)),
    Argument("heartbeat_interval", WORKER, Treatment.ACCEPTED, _PUSHED),
    Argument("profile_cycle_interval", WORKER, Treatment.ACCEPTED, "stacks are sampled every 10 ms, and kept in periods of a second"),
    Argument("low_level_profiler", WORKER, Treatment.ACCEPTED, "stacks of Python functions are sampled, without those of C", (None, False)),
    Argument("transition_counter_max", WORKER, Treatment.ACCEPTED, "it is for tests of Dask itself", (None, False)),
    Argument("http_prefix", WORKER, Treatment.ACCEPTED, "workers have no pages of their own", (None, "/")),
    Argument("dashboard", WORKER, Treatment.ACCEPTED, "workers have no pages of their own: the scheduler shows all of them", (None, False, True)),
    Argument("config", WORKER, Treatment.REFUSED, "workers do not read Dask's configuration: set it in the function, or by env=", (None, {})),
    Argument("executor", WORKER, Treatment.REFUSED, "tasks run in processes; a task that needs threads starts them itself", (None,)),
    Argument("data", WORKER, Treatment.REFUSED, "results are kept by the worker itself: memory_limit=, local_directory= and max_spill= are its settings"),
    Argument("extensions", WORKER, Treatment.REFUSED, "workers are one program; code for them goes into a worker plugin", (None, {})),
    Argument("metrics", WORKER, Treatment.REFUSED, "workers are one program: see the scheduler's /metrics", (None, {})),
    Argument("startup_information", WORKER, Treatment.REFUSED, "workers are one program: see client.scheduler_info()", (None, {})),
    Argument("WorkerStateClass", WORKER, Treatment.REFUSED, "workers are one program, not a Python class"),
    Argument("contact_address", WORKER, Treatment.REFUSED, "workers of a local cluster are reached at host="),
    Argument("listen_address", WORKER, Treatment.REFUSED, "workers of a local cluster listen at host="),
    Argument("port", WORKER, Treatment.REFUSED, "workers take free ports; scheduler_port= is the scheduler's", (None, 0)),
    Argument("worker_port", WORKER, Treatment.REFUSED, "workers take free ports; scheduler_port= is the scheduler's", (None, 0)),
    Argument("scheduler_file", WORKER, Treatment.REFUSED, "a local cluster writes its own: `millrace up --scheduler-file` starts one with a file that you name"),
    Argument("scheduler_sni", WORKER, Treatment.REFUSED, "connections do not use TLS"),
    # Arguments of LocalCUDACluster.
    Argument("CUDA_VISIBLE_DEVICES", CUDA, Treatment.MAPPED, "GPUs, one for each worker: numbers, UUIDs or MIG instances, as a list or as text"),
    Argument("device_memory_limit", CUDA, Treatment.MAPPED, 'memory of each GPU for results, the "slab": bytes, "10GB" or a share; "default" and "auto": 70 % of it; further results go to host memory'),
    Argument("rmm_pool_size", CUDA, Treatment.MAPPED, "the size of the slab if device_memory_limit is not given"),
    Argument("pre_import", CUDA, Treatment.MAPPED, "the same as preload, also as text with commas"),
    Argument("ucx_net_devices", CUDA, Treatment.MAPPED, 'network devices for UCX ("mlx5_0:1"); "auto": those near the GPU, as without it'),
    Argument("enable_cudf_spill", CUDA, Treatment.MAPPED, "CUDF_SPILL=on for the functions", (None, False)),
    Argument("cudf_spill_stats", CUDA, Treatment.MAPPED, "CUDF_SPILL_STATS for the functions", (None, 0)),
    Argument("rmm_allocator_external_lib_list", CUDA, Treatment.ACCEPTED, "results of all libraries are moved into the slab by a copy within the GPU; executor_arena= gives CuPy memory of the slab itself, so that there is none", (None, [], ())),
    Argument("rmm_maximum_pool_size", CUDA, Treatment.ACCEPTED, _SLAB),
    Argument("rmm_async", CUDA, Treatment.ACCEPTED, _SLAB, (None, False)),
    Argument("rmm_release_threshold", CUDA, Treatment.ACCEPTED, _SLAB),
    Argument("rmm_managed_memory", CUDA, Treatment.REFUSED, "memory that the driver moves cannot be shared with other processes and GPUs. Leave it out: results that do not fit on the GPU move to host memory, and back when a task needs them", (None, False)),
    Argument("rmm_log_directory", CUDA, Treatment.ACCEPTED, "RMM is not used, so there is no log of it: `millrace memory` shows what is in each GPU's memory"),
    Argument("rmm_track_allocations", CUDA, Treatment.ACCEPTED, "what is in each GPU's memory is always known: see `millrace memory`", (None, False)),
    Argument("log_spilling", CUDA, Treatment.ACCEPTED, "what was moved to host memory and disk is always counted: see `millrace memory`", (None, False)),
    Argument("jit_unspill", CUDA, Treatment.ACCEPTED, "single results move to host memory and back, without a setting", (None,)),
    Argument("shared_filesystem", CUDA, Treatment.ACCEPTED, "results on disk are read by the worker that wrote them", (None,)),
    Argument("enable_tcp_over_ucx", CUDA, Treatment.ACCEPTED, _LINKS),
    Argument("enable_infiniband", CUDA, Treatment.ACCEPTED, _LINKS),
    Argument("enable_nvlink", CUDA, Treatment.ACCEPTED, _LINKS),
    Argument("enable_rdmacm", CUDA, Treatment.ACCEPTED, _LINKS),
)  # fmt: skip

_BY_NAME = {a.name: a for a in ARGUMENTS}
#: Arguments that only this package has.
OWN = ("device", "python", "start_timeout", "check_inputs", "executor_arena", "function_memory_limit")
#: Worker classes of Dask that programs name without meaning another program.
_WORKER_CLASSES = ("Nanny", "Worker", "CUDAWorker")
_LEVELS = ((logging.ERROR, "error"), (logging.WARNING, "warn"), (logging.INFO, "info"), (0, "debug"))
#: Variables of Dask for settings that are not needed here, by their beginnings.
_DASK_VARIABLES = ("DASK_UCX__", "DASK_DISTRIBUTED__COMM__UCX__", "DASK_RMM__", "DASK_DISTRIBUTED__RMM__")


@dataclass
class Plan:
    """The settings that the arguments of a local cluster ask for."""

    #: Flags of `millrace up`, without the dashes.
    flags: dict[str, str] = field(default_factory=dict[str, str])
    #: Variables to add to the environment of the cluster.
    env: dict[str, str] = field(default_factory=dict[str, str])
    #: Sentences on arguments that have no effect.
    #: Each is the argument, its value and the reason.
    notes: list[tuple[str, Any, str]] = field(default_factory=list[tuple[str, Any, str]])
    name: str = ""
    #: None: one for each GPU or core.
    n_workers: int | None = None
    asynchronous: bool = False
    #: True if the user has named the port of the dashboard.
    port_named: bool = False
    #: Shares of the memory of functions above which they are warned about, paused, and ended.
    levels: list[float] = field(default_factory=lambda: [0.7, 0.8, 0.95])
    host: str = ""
    port: int = 0
    #: Host and port of the dashboard; an empty host is the scheduler's. None: no dashboard.
    http: tuple[str, int] | None = ("", 8787)


def plan(cls: str, given: Mapping[str, Any]) -> Plan:
    """Returns what to start for the arguments that a user gave to the class with this name.

    Raises:
        TypeError, ValueError: an argument is refused, unknown or wrong; the message names it.
    """
    out = Plan()
    for name, value in given.items():
        argument = _BY_NAME.get(name)
        if argument is None or (argument.of == CUDA and cls != CUDA):
            raise TypeError(_unknown(cls, name))
        if any(_same(value, q) for q in argument.quiet) and name not in ("dashboard_address", "memory_limit"):
            continue
        _apply(out, cls, argument, value)
    _finish(out, given)
    return out


def _same(value: Any, quiet: Any) -> bool:
    # NumPy arrays and such have an == of their own.
    return type(value) is type(quiet) and bool(value == quiet)


def _unknown(cls: str, name: str) -> str:
    argument = _BY_NAME.get(name)
    if argument is not None:
        return f"{cls}: {name} is an argument of {argument.of}"
    known = [a.name for a in ARGUMENTS if a.of != CUDA or cls == CUDA] + list(OWN)
    near = difflib.get_close_matches(name, known, 1)
    return f"{cls} has no argument {name!r}" + (f"; did you mean {near[0]}?" if near else "")


def _apply(out: Plan, cls: str, argument: Argument, value: Any) -> None:
    handler = _HANDLERS.get(argument.name)
    if handler is not None:
        handler(out, value)
    elif argument.treatment is Treatment.REFUSED:
        raise ValueError(f"{cls}: {argument.name}={value!r} is refused: {argument.text}")
    else:
        out.notes.append((argument.name, value, argument.text))


def _finish(out: Plan, given: Mapping[str, Any]) -> None:
    """Completes settings that several arguments decide together."""
    if given.get("interface") is not None and (given.get("host") is not None or given.get("ip") is not None):
        raise ValueError("interface and host exclude each other: give one of them")
    if out.levels != [0.7, 0.8, 0.95]:
        out.levels[0] = min(level for level in out.levels if level)
        out.flags["function-memory-levels"] = ",".join(f"{level:g}" for level in out.levels)
    host = out.host or "127.0.0.1"
    if out.host or out.port:
        out.flags["listen"] = _joined(host, out.port)
    out.flags["http"] = "" if out.http is None else _joined(out.http[0] or host, out.http[1])
    if given.get("processes") is False and out.n_workers is None:
        out.n_workers = 1
    if "device-memory-limit" in out.flags and "rmm-pool-size" in out.flags:
        del out.flags["rmm-pool-size"]
        out.notes.append(("rmm_pool_size", given["rmm_pool_size"], "device_memory_limit is given, too; " + _SLAB))


def _joined(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


# ---- handlers of mapped arguments --------------------------------------------------------------


def _n_workers(out: Plan, value: Any) -> None:
    out.n_workers = _check.integer(value, "n_workers", 0, 4096)


def _slots(out: Plan, value: Any) -> None:
    out.flags["slots"] = str(_check.integer(value, "threads_per_worker", 1, 1 << 16))


def _processes(out: Plan, value: Any) -> None:
    if _check.boolean(value, "processes") is False:
        warnings.warn(f"processes=False has no effect: {_BY_NAME['processes'].text}", UserWarning, stacklevel=2)


def _name(out: Plan, value: Any) -> None:
    out.name = str(value)


def _host(out: Plan, value: Any) -> None:
    text = _check.text(value, "host").strip().rpartition("://")[2].rstrip("/")
    bare = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    try:
        ipaddress.ip_address(bare)
    except ValueError:
        bare, mark, port = text.partition(":")
        if mark:
            _scheduler_port(out, int(port) if port.isdigit() else port)
    if not bare:
        raise ValueError(f"host: {value!r} names no host")
    out.host = bare


def _interface(out: Plan, value: Any) -> None:
    name = _check.text(value, "interface", 15)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        try:
            # SIOCGIFADDR: the address is in bytes 20 to 24 of the answer.
            answer = fcntl.ioctl(any_socket.fileno(), 0x8915, struct.pack("256s", name.encode()))
        except OSError as e:
            there = ", ".join(n for _, n in socket.if_nameindex())
            raise ValueError(f"interface: {name!r} has no IPv4 address ({e.strerror}); there are {there}") from e
    out.host = socket.inet_ntoa(answer[20:24])


def _scheduler_port(out: Plan, value: Any) -> None:
    out.port = _check.integer(value, "scheduler_port", 0, 65535)


def _dashboard(out: Plan, value: Any) -> None:
    if value is None or value is False:
        out.http = None
        return
    text = str(value).rpartition("://")[2].rstrip("/")
    host, mark, port = text.rpartition(":")
    if not (port or "0").isdigit() or not 0 <= int(port or 0) <= 65535 or not (mark or port):
        raise ValueError(
            f'dashboard_address: {value!r} is no address: give ":8787", "host:port", or None for no HTTP port'
        )
    out.http = host.strip("[]"), int(port or 0)
    out.port_named = int(port or 0) != 0


def _silence_logs(out: Plan, value: Any) -> None:
    if value is False:
        out.flags["log-level"] = "info"
        return
    level: Any = (
        logging.getLevelName(value.upper()) if isinstance(value, str) else logging.WARNING if value is True else value
    )
    if not isinstance(level, int):
        raise ValueError(
            f"silence_logs: {value!r} is no level: give one of the module logging, such as logging.WARNING, or False"
        )
    out.flags["log-level"] = next(name for least, name in _LEVELS if level >= least)


def _memory(value: Any, what: str, least: int = 1 << 20) -> str:
    """Returns an amount of memory as `millrace up` reads it: bytes, a share, or text with a unit."""
    if isinstance(value, str):
        return _check.text(value, what)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f'{what} must be text such as "1GiB", bytes, or a share from 0 to 1, not {value!r}')
    if isinstance(value, float) and 0 < value <= 1:
        return repr(value)
    if not value >= least:
        raise ValueError(f"{what} must be at least {_check.size(least)}, or a share from 0 to 1, not {value!r} bytes")
    return str(int(value))


def _memory_limit(out: Plan, value: Any) -> None:
    if value is None or value == 0:  # in Dask: no limit
        out.flags |= {"memory-limit": "auto", "function-memory-limit": "none"}
    else:
        out.flags["memory-limit"] = _memory(value, "memory_limit")


def _pause_fraction(out: Plan, value: Any) -> None:
    out.levels[1] = _level(value, "memory_pause_fraction")


def _terminate_fraction(out: Plan, value: Any) -> None:
    out.levels[2] = _level(value, "memory_terminate_fraction")


def _level(value: Any, what: str) -> float:
    if value is False:
        return 0.0
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= 1:
        raise ValueError(f"{what} must be a share from 0 to 1, or False, not {value!r}")
    return float(value)


def _device_memory_limit(out: Plan, value: Any) -> None:
    if value in ("default", "auto", None):
        return
    if isinstance(value, (int, float)) and not isinstance(value, bool) and value == 0:
        out.notes.append((
            "device_memory_limit", 0,
            "moving results to host memory cannot be switched off, and begins when "
            "70 % of the GPU is full; give a larger share, such as 0.9",
        ))  # fmt: skip
        return
    out.flags["device-memory-limit"] = _memory(value, "device_memory_limit")


def _pool(out: Plan, value: Any) -> None:
    out.flags["rmm-pool-size"] = _memory(value, "rmm_pool_size")


def _max_spill(out: Plan, value: Any) -> None:
    if value is not False:
        out.flags["spill-limit"] = _memory(value, "max_spill")


def _local_directory(out: Plan, value: Any) -> None:
    out.flags["local-directory"] = str(Path(value).absolute())


def _asynchronous(out: Plan, value: Any) -> None:
    out.asynchronous = _check.boolean(value, "asynchronous")


def _security(out: Plan, value: Any) -> None:
    if value is not True:
        raise ValueError(f"security={value!r} is refused: {_BY_NAME['security'].text}")
    out.notes.append(("security", True, "clients need the random token of the cluster; bytes are not encrypted"))


def _worker_class(out: Plan, value: Any) -> None:
    name = value if isinstance(value, str) else getattr(value, "__name__", repr(value))
    if str(name).rpartition(".")[2] not in _WORKER_CLASSES:
        raise ValueError(f"worker_class={value!r} is refused: {_BY_NAME['worker_class'].text}")
    out.notes.append(("worker_class", name, "workers are one program, on GPUs, too"))


def _scheduler_kwargs(out: Plan, value: Any) -> None:
    for name, one in _mapping(value, "scheduler_kwargs").items():
        if name == "worker_ttl":
            out.flags["worker-lease"] = f"{_check.seconds(one, 'scheduler_kwargs: worker_ttl'):g}s"
        elif name == "port":
            _scheduler_port(out, one)
        elif name in ("host", "interface", "dashboard_address", "protocol"):
            _apply(out, BOTH, _BY_NAME[name], one)
        else:
            raise ValueError(
                f"scheduler_kwargs: {name!r} is refused: the scheduler is a program, not a Python class; "
                "`millrace scheduler --help` lists its settings"
            )


def _mapping(value: Any, what: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise TypeError(f"{what} must be a dict, not {value!r}")
    return cast("Mapping[str, Any]", value)


def _resources(out: Plan, value: Any) -> None:
    amounts = _check.resources(value)
    out.flags["resources"] = ",".join(f"{name}={amount:g}" for name, amount in amounts.items())


def _preload(out: Plan, value: Any) -> None:
    listed: Iterable[Any] = value.split(",") if isinstance(value, str) else value
    modules = [_check.text(m, "preload").strip() for m in listed]
    for module in modules:
        if not all(part.isidentifier() for part in module.split(".")) or module.endswith(".py"):
            raise ValueError(
                f"preload: {module!r} is no name of a module: put the code into a module that the workers find, or into a "
                "worker plugin (client.register_plugin)"
            )
    before = out.flags.get("preload")
    out.flags["preload"] = ",".join([before, *modules] if before else modules)


def _env(out: Plan, value: Any) -> None:
    out.env.update({str(k): str(v) for k, v in _mapping(value, "env").items()})


def _devices(out: Plan, value: Any) -> None:
    one = isinstance(value, (str, int))
    listed: Sequence[Any] = str(value).split(",") if one else list(value)
    names = [str(d).strip() for d in listed if str(d).strip()]
    for d in names:
        if not (d.isdigit() or d.lower().startswith(("gpu-", "mig-"))):
            raise ValueError(
                f"CUDA_VISIBLE_DEVICES: {d!r} is no GPU: give numbers (0, 1), or UUIDs as nvidia-smi -L prints them (GPU-…, MIG-…)"
            )
    if len(set(names)) < len(names):
        raise ValueError(f"CUDA_VISIBLE_DEVICES: {value!r} names a GPU twice, and each has one worker")
    out.env["CUDA_VISIBLE_DEVICES"] = ",".join(names)


def _net_devices(out: Plan, value: Any) -> None:
    if value != "auto":
        out.flags["ucx-net-devices"] = _check.text(value, "ucx_net_devices")


def _cudf_spill(out: Plan, value: Any) -> None:
    if _check.boolean(value, "enable_cudf_spill"):
        out.env["CUDF_SPILL"] = "on"


def _cudf_stats(out: Plan, value: Any) -> None:
    out.env["CUDF_SPILL_STATS"] = str(_check.integer(value, "cudf_spill_stats", 0, 100))


_HANDLERS: dict[str, Callable[[Plan, Any], None]] = {
    "n_workers": _n_workers, "threads_per_worker": _slots, "nthreads": _slots, "ncores": _slots, "processes": _processes,
    "name": _name, "host": _host, "ip": _host, "interface": _interface, "scheduler_port": _scheduler_port,
    "dashboard_address": _dashboard, "silence_logs": _silence_logs, "memory_limit": _memory_limit,
    "memory_pause_fraction": _pause_fraction, "memory_terminate_fraction": _terminate_fraction,
    "device_memory_limit": _device_memory_limit, "rmm_pool_size": _pool, "max_spill": _max_spill,
    "local_directory": _local_directory, "asynchronous": _asynchronous, "security": _security,
    "worker_class": _worker_class, "scheduler_kwargs": _scheduler_kwargs, "resources": _resources,
    "preload": _preload, "pre_import": _preload, "env": _env, "CUDA_VISIBLE_DEVICES": _devices,
    "ucx_net_devices": _net_devices, "enable_cudf_spill": _cudf_spill, "cudf_spill_stats": _cudf_stats,
}  # fmt: skip


def dask_variables(environ: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """Returns each variable of Dask's UCX and RMM settings that is set, with its value and the
    reason why it has no effect."""
    out: list[tuple[str, str, str]] = []
    for name in sorted(environ):
        if name.startswith(_DASK_VARIABLES):
            text = _LINKS
            if name.endswith("NET_DEVICES"):
                text = "workers use it for UCX, as MILLRACE_UCX_NET_DEVICES"
            elif "_RMM__" in name:
                text = "clients and schedulers need no memory of a GPU"
            out.append((name, environ[name], text))
    return out


def table() -> str:
    """Returns all arguments of Dask's classes as a table in Markdown, for the documentation."""
    lines = ["| argument | of | here | |", "| --- | --- | --- | --- |"]
    lines += [f"| `{a.name}` | {a.of} | {a.treatment.value} | {a.text} |" for a in ARGUMENTS]
    return "\n".join(lines) + "\n"
