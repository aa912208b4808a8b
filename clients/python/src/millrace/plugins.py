"""Plugins: code that prepares the processes in which tasks run. See `Client.register_plugin`."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib
import importlib.util
import inspect
import io
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import uuid
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

_log = logging.getLogger("millrace")

NO_SCHEDULER_PLUGINS = (
    "the scheduler of Millrace runs no Python, so that it survives its users' code, and has no plugins. Follow tasks by "
    "Future.add_done_callback and as_completed, workers by client.scheduler_info(), and all of it by the scheduler's "
    "/metrics and its API (Watch)"
)
NO_NANNY_PLUGINS = (
    "there are no nannies in Millrace. What prepares processes for tasks is a WorkerPlugin: its setup is called in each "
    "process before its first task, also after a restart. millrace.plugins has Environ, PipInstall, UploadFile and "
    "UploadDirectory"
)


def takes(function: Callable[..., Any], name: str) -> bool:
    """Returns whether a function has a parameter of this name."""
    try:
        return name in inspect.signature(function).parameters
    except (TypeError, ValueError):  # some functions of C tell nothing
        return False


class WorkerPlugin:
    """Base of plugins. A plugin is pickled, and each process in which tasks run has a copy.

    `worker` describes the worker: `name`, `id`, `local_directory` (of this process),
    `scheduler_address` and `plugins`, the plugins of the process by name.
    """

    #: Name of the plugin. Default: one that is made from the class.
    name: str
    #: If a plugin of the name is registered already, nothing is done.
    idempotent: bool = False

    def setup(self, worker: Any) -> Any:
        """Prepares the process. May be a coroutine function. If it takes longer than 30 minutes, the
        registration fails."""

    def teardown(self, worker: Any) -> Any:
        """Undoes `setup`: the plugin was unregistered or replaced, or the process ends."""

    def transition(self, key: Any, start: str, finish: str, **kwargs: Any) -> None:
        """Is called in the thread of the task when the process begins a task ("ready" to
        "executing"), and when it has ended ("executing" to "memory" or "error")."""


class SchedulerPlugin:
    """Not possible: the scheduler runs no Python."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        raise TypeError(f"{cls.__name__}(SchedulerPlugin): {NO_SCHEDULER_PLUGINS}")

    def __init__(self) -> None:
        raise TypeError(f"SchedulerPlugin: {NO_SCHEDULER_PLUGINS}")


class NannyPlugin:
    """Not possible: there are no nannies. See `WorkerPlugin`."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        raise TypeError(f"{cls.__name__}(NannyPlugin): {NO_NANNY_PLUGINS}")

    def __init__(self) -> None:
        raise TypeError(f"NannyPlugin: {NO_NANNY_PLUGINS}")


class Environ(WorkerPlugin):
    """Sets variables of the environment of functions.

    A library that reads its variables when it is imported must not be imported yet: start the
    workers with the variable, if it was.
    """

    def __init__(self, environ: Mapping[str, Any] | None = None) -> None:
        self.environ = {name: str(value) for name, value in (environ or {}).items()}
        self.name = "environ-" + _digest("\0".join(f"{k}={v}" for k, v in sorted(self.environ.items())).encode())
        self._before: dict[str, str | None] = {}

    def setup(self, worker: Any) -> None:
        self._before = {name: os.environ.get(name) for name in self.environ}
        os.environ.update(self.environ)

    def teardown(self, worker: Any) -> None:
        for name, value in self._before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


class InstallPlugin(WorkerPlugin):
    """Calls a function that installs software, once for each environment of workers: the processes
    that share a Python environment of one host call it one after the other, and only the first one
    runs it.

    Args:
        install_fn: the function, without arguments.
        restart_workers: start the processes of functions again afterwards, so that another version
            of a package that is imported already is used.
    """

    def __init__(self, install_fn: Callable[[], Any], restart_workers: bool = False) -> None:
        if not callable(install_fn):
            raise TypeError(f"install_fn: {install_fn!r} is no function")
        self.install_fn, self.restart_workers = install_fn, restart_workers
        self.name = f"install-{uuid.uuid4().hex}"

    def setup(self, worker: Any) -> None:
        done = Path(tempfile.gettempdir()) / f"millrace-{os.getuid()}-{_digest(sys.prefix.encode())}-{self.name}"
        with done.open("a+") as file:
            # Processes of one environment install one after the other, and once.
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            if file.read() != worker.scheduler_address:
                self._install()
                file.truncate(0)
                file.write(worker.scheduler_address)
        importlib.invalidate_caches()

    def _install(self) -> None:
        self.install_fn()


class PipInstall(InstallPlugin):
    """Installs packages by pip, once for each environment of workers.

    Args:
        packages: requirements, as pip takes them. Variables of the environment (``${TOKEN}``) are
            expanded on the worker.
        pip_options: options of ``pip install``.
        restart_workers: as for InstallPlugin.
    """

    def __init__(
        self, packages: Sequence[str], pip_options: Sequence[str] | None = None, restart_workers: bool = False
    ) -> None:
        self.packages, self.pip_options = _requirements(packages), list(pip_options or ())
        self.restart_workers = restart_workers
        self.name = "pip-install-" + _digest("\0".join([*self.packages, "", *self.pip_options]).encode())

    def _install(self) -> None:
        packages = [os.path.expandvars(p) for p in self.packages]
        _execute([sys.executable, "-m", "pip", "install", *self.pip_options, *packages], "pip install", self.packages)


class CondaInstall(InstallPlugin):
    """Installs packages by conda into the environment of the functions, once for each environment
    of workers. The program conda must be on PATH or in CONDA_EXE there.

    Args:
        packages: specifications, as conda takes them.
        conda_options: options of ``conda install``.
        restart_workers: as for InstallPlugin.
    """

    def __init__(
        self, packages: Sequence[str], conda_options: Sequence[str] | None = None, restart_workers: bool = False
    ) -> None:
        self.packages, self.conda_options = _requirements(packages), list(conda_options or ())
        self.restart_workers = restart_workers
        self.name = "conda-install-" + _digest("\0".join([*self.packages, "", *self.conda_options]).encode())

    def _install(self) -> None:
        conda = os.environ.get("CONDA_EXE") or shutil.which("conda")
        if conda is None:
            raise RuntimeError(
                f"conda install {' '.join(self.packages)}: there is no conda on PATH or in CONDA_EXE: use PipInstall, or "
                "install the packages where the workers are started"
            )
        command = [conda, "install", "--yes", "--prefix", sys.prefix, *self.conda_options, *self.packages]
        _execute(command, "conda install", self.packages)


def _requirements(packages: Sequence[str]) -> list[str]:
    if isinstance(packages, str):
        raise TypeError(f"packages: give a list of requirements, not {packages!r}")
    return list(packages)


def _execute(command: Sequence[str], what: str, packages: Sequence[str]) -> None:
    """Runs a program that installs packages. Raises RuntimeError if it fails."""
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        shown = " ".join(packages)
        raise RuntimeError(f"{what} {shown} failed with code {ended.returncode}: {ended.stderr.strip()[-2000:]}")
    _log.info("installed %s", ", ".join(packages))


class UploadFile(WorkerPlugin):
    """Sends a file to the workers. Functions can import it if it is a module (.py), or modules of
    it (.egg, .zip).

    Args:
        filepath: the file.
        load: import the module, or again if it is imported.
    """

    def __init__(self, filepath: str | os.PathLike[str], load: bool = True) -> None:
        path = Path(filepath)
        self.filename, self.load, self.data = path.name, load, path.read_bytes()
        self.name = f"upload-file-{self.filename}"

    def setup(self, worker: Any) -> None:
        folder = Path(worker.local_directory) / "uploads"
        folder.mkdir(exist_ok=True)
        path = folder / self.filename
        path.write_bytes(self.data)
        suffix = path.suffix
        if suffix not in (".py", ".egg", ".zip", ".pyz"):
            return
        _prepend(str(folder if suffix == ".py" else path))
        names = {path.stem} if suffix == ".py" else _packages(path)
        if suffix == ".py":  # its time may be that of the version before
            with contextlib.suppress(OSError):
                Path(importlib.util.cache_from_source(str(path))).unlink()
        importlib.invalidate_caches()
        for name in sorted(names):
            loaded = sys.modules.get(name)
            if loaded is not None:
                importlib.reload(loaded)
            elif self.load:
                importlib.import_module(name)
        worker.forget_functions()

    def teardown(self, worker: Any) -> None:
        """Removes the file. Modules that were imported stay."""
        path = Path(worker.local_directory) / "uploads" / self.filename
        with contextlib.suppress(OSError):
            path.unlink()
        with contextlib.suppress(ValueError):
            sys.path.remove(str(path))


class UploadDirectory(WorkerPlugin):
    """Sends a directory to the workers.

    Args:
        path: the directory, which may be a package.
        restart_workers: start the processes of functions again afterwards.
        update_path: put the directory into which it is written into `sys.path`, so that functions
            can import it as a package.
        skip_words: names of files and directories that are left out.
        skip: functions that take the path of a file, and return whether it is left out.
        mode: only "workers": the scheduler runs no Python, and needs no files.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        restart_workers: bool = False,
        update_path: bool = False,
        skip_words: Sequence[str] = (".git", ".github", ".pytest_cache", "tests", "docs"),
        skip: Sequence[Callable[[str], bool]] = (lambda name: name.endswith(".pyc"),),
        mode: str = "workers",
    ) -> None:
        if mode != "workers":
            raise ValueError(f"mode: {mode!r}: the scheduler runs no Python and needs no files; leave mode out")
        root = Path(path).expanduser().resolve()
        if not root.is_dir():
            raise NotADirectoryError(f"path: {str(path)!r} is no directory")
        self.path, self.restart_workers, self.update_path = root.name, restart_workers, update_path
        self.name = f"upload-directory-{root.name}"
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
            for file in _files(root, set(skip_words), skip):
                archive.write(file, file.relative_to(root.parent))
        self.data = packed.getvalue()

    def setup(self, worker: Any) -> None:
        folder = Path(worker.local_directory) / "uploads"
        with zipfile.ZipFile(io.BytesIO(self.data)) as archive:
            archive.extractall(folder)
        if self.update_path:
            _prepend(str(folder))
        importlib.invalidate_caches()


class Preload(WorkerPlugin):
    """Imports modules in each process, as `preload` of distributed's workers. A module may have a
    function `dask_setup(worker)`, which is called then, and `dask_teardown(worker)`.

    Args:
        modules: their names.
    """

    def __init__(self, *modules: str) -> None:
        self.modules = modules
        self.name = "preload-" + "-".join(modules)

    def setup(self, worker: Any) -> None:
        self._call("dask_setup", worker)

    def teardown(self, worker: Any) -> None:
        self._call("dask_teardown", worker)

    def _call(self, name: str, worker: Any) -> None:
        for module in self.modules:
            function = getattr(importlib.import_module(module), name, None)
            if function is not None:
                function(worker)


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=8).hexdigest()


def _prepend(folder: str) -> None:
    if folder not in sys.path:
        sys.path.insert(0, folder)


def _packages(path: Path) -> set[str]:
    """Returns the names of the top-level modules in an archive."""
    with zipfile.ZipFile(path) as archive:
        tops = {name.partition("/")[0] for name in archive.namelist()}
    return {top.removesuffix(".py") for top in tops if top.removesuffix(".py").isidentifier()}


def _files(root: Path, words: set[str], skip: Sequence[Callable[[str], bool]]) -> Iterator[Path]:
    for file in sorted(root.rglob("*")):
        inside = file.relative_to(root.parent).parts
        if file.is_file() and not words & set(inside) and not any(leave_out(str(file)) for leave_out in skip):
            yield file
