"""Plugins, files and restarts of the processes in which tasks run."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import millrace
import pytest
from conftest import PATIENCE, Gate, eventually
from millrace import (
    AsyncClient,
    Client,
    Environ,
    Future,
    LocalCluster,
    PipInstall,
    Preload,
    UploadDirectory,
    UploadFile,
    WorkerPlugin,
    errors,
)


@pytest.fixture(scope="module")
def own() -> Iterator[LocalCluster]:
    with LocalCluster(2, memory_limit="128MiB", device="host") as made:
        yield made


@pytest.fixture
def client(own: LocalCluster) -> Iterator[Client]:
    with Client(own) as made:
        made.wait_for_workers(2, timeout=PATIENCE)
        yield made


class Marks(WorkerPlugin):
    """Marks the process."""

    def __init__(self, value: int, name: str = "marks") -> None:
        self.value, self.name = value, name

    def setup(self, worker: Any) -> None:
        vars(sys)[self.name] = (self.value, worker.name)

    def teardown(self, worker: Any) -> None:
        del vars(sys)[self.name]


def mark(name: str = "marks") -> Any:
    return getattr(sys, name, None)


def test_a_plugin_is_in_all_processes(client: Client, gate: Gate) -> None:
    held = client.submit(Gate.pass_through, gate, workers="host-0", pure=False)
    gate.wait()
    # In the process that runs a task, and in those that start now and later.
    assert client.register_plugin(Marks(1)) == {"host-0": {"status": "OK"}, "host-1": {"status": "OK"}}
    assert client.run(mark) == {"host-0": (1, "host-0"), "host-1": (1, "host-1")}
    gate.open()
    held.result(PATIENCE)
    with pytest.raises(errors.WorkerDiedError):
        client.submit(os._exit, 3, workers="host-0", pure=False).result(PATIENCE)
    assert client.submit(mark, workers="host-0", pure=False).result(PATIENCE) == (1, "host-0")
    # Replaced: the old one is torn down.
    client.register_plugin(Marks(2))
    assert client.run(mark) == {"host-0": (2, "host-0"), "host-1": (2, "host-1")}
    client.unregister_worker_plugin("marks")
    assert client.run(mark) == {"host-0": None, "host-1": None}
    assert client.submit(mark, pure=False).result(PATIENCE) is None
    with pytest.raises(errors.NotFoundError, match='there is no plugin "marks": give the name'):
        client.unregister_worker_plugin("marks")


def test_a_plugin_that_fails_is_registered_nowhere(client: Client) -> None:
    class Fails(Marks):
        def setup(self, worker: Any) -> None:
            super().setup(worker)
            if worker.name == "host-1":
                raise KeyError("not on this one")

    with pytest.raises(KeyError, match="not on this one"):
        client.register_plugin(Fails(3, "failing"))
    eventually(lambda: client.run(mark, "failing")["host-0"] is None)
    assert client.submit(mark, "failing", workers="host-1", pure=False).result(PATIENCE) in (None, (3, "host-1"))
    with pytest.raises(errors.NotFoundError):
        client.unregister_worker_plugin("failing")


def test_an_idempotent_plugin_stays(client: Client) -> None:
    plugin = Marks(4)
    plugin.idempotent = True
    client.register_plugin(plugin, name="once")
    again = Marks(5)
    again.idempotent = True
    assert client.register_plugin(again, name="once") == {}
    assert client.run(mark, workers="host-0") == {"host-0": (4, "host-0")}
    client.unregister_worker_plugin("once")


def test_a_worker_that_joins_gets_the_plugins() -> None:
    with LocalCluster(1, memory_limit="64MiB", device="host") as cluster, Client(cluster) as client:
        client.register_plugin(Marks(6))
        client.restart_workers("host-0", timeout=PATIENCE)
        assert client.submit(mark, pure=False).result(PATIENCE) == (6, "host-0")


def test_transitions_of_tasks(client: Client) -> None:
    class Follows(WorkerPlugin):
        name = "follows"

        def setup(self, worker: Any) -> None:
            self.seen: list[Any] = []
            vars(sys)["follows"] = self.seen

        def transition(self, key: Any, start: str, finish: str, **kwargs: Any) -> None:
            self.seen.append((key, start, finish))
            raise ValueError("errors of plugins are none of tasks")

    client.register_plugin(Follows())
    assert client.submit(abs, -1, key="fine", workers="host-0").result(PATIENCE) == 1
    client.submit(abs, "x", key=("bad", 1), workers="host-0").exception(PATIENCE)
    seen = client.run(mark, "follows")["host-0"]
    client.unregister_worker_plugin("follows")
    assert seen == [
        ("fine", "ready", "executing"),
        ("fine", "executing", "memory"),
        (("bad", 1), "ready", "executing"),
        (("bad", 1), "executing", "error"),
    ]


def test_refused_plugins(client: Client) -> None:
    with pytest.raises(TypeError, match=r"Mine\(SchedulerPlugin\): the scheduler of Millrace runs no Python"):

        class Mine(millrace.SchedulerPlugin):
            pass

    with pytest.raises(TypeError, match="there are no nannies in Millrace"):
        type("Mine", (millrace.NannyPlugin,), {})
    theirs = type("SchedulerPlugin", (), {})  # of distributed
    with pytest.raises(TypeError, match="Theirs is a SchedulerPlugin: the scheduler"):
        client.register_plugin(type("Theirs", (theirs,), {})())
    with pytest.raises(TypeError, match="is no plugin"):
        client.register_plugin(3)
    with pytest.raises(TypeError, match=r"give an instance, Marks\(...\)"):
        client.register_plugin(Marks)
    with pytest.raises(NotImplementedError, match="runs no Python"):
        client.run_on_scheduler(abs, 1)
    with pytest.raises(TypeError, match="give a list of requirements"):
        millrace.CondaInstall("x")
    with pytest.raises(TypeError, match="is no function"):
        millrace.InstallPlugin("x")  # type: ignore[arg-type]


# ---- installations -------------------------------------------------------------------------------


def test_a_function_installs_once_for_each_environment(client: Client, tmp_path: Path) -> None:
    def install() -> None:
        with (tmp_path / "installed").open("a") as file:
            file.write("x")

    client.register_plugin(millrace.InstallPlugin(install))
    assert (tmp_path / "installed").read_text() == "x", "both workers have one environment"
    client.register_plugin(millrace.InstallPlugin(install))
    assert (tmp_path / "installed").read_text() == "xx"


def test_conda_installs_into_the_environment_of_the_functions(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    conda = tmp_path / "conda"
    conda.write_text(
        f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\n[ "$6" != "bad" ] || {{ echo no such package >&2; exit 1; }}\n'
    )
    conda.chmod(0o755)
    client.register_plugin(millrace.Environ({"CONDA_EXE": str(conda)}))
    client.register_plugin(millrace.CondaInstall(["left-pad=1", "b"], ["-q"]))
    assert (tmp_path / "calls").read_text() == f"install --yes --prefix {sys.prefix} -q left-pad=1 b\n"
    with pytest.raises(RuntimeError, match="conda install bad failed with code 1: no such package"):
        client.register_plugin(millrace.CondaInstall(["bad"], ["-q"]))
    monkeypatch.delenv("CONDA_EXE", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    with pytest.raises(RuntimeError, match="there is no conda"):
        millrace.CondaInstall(["x"])._install()


# ---- code ----------------------------------------------------------------------------------------


def test_upload_file(client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    module = tmp_path / "uploaded_module.py"
    module.write_text("def f():\n    return 'first'\n")
    import uploaded_module  # type: ignore[import-not-found]  # pyright: ignore[reportMissingImports]

    f: Any = uploaded_module.f
    with pytest.raises(errors.FunctionNotFoundError):
        client.submit(f, pure=False).result(PATIENCE)
    client.upload_file(str(module))
    assert client.submit(f, pure=False).result(PATIENCE) == "first"
    module.write_text("def f():\n    return 'second one'\n")
    client.upload_file(module)
    assert {client.submit(f, pure=False, workers=w).result(PATIENCE) for w in ("host-0", "host-1")} == {"second one"}
    module.write_text("raise ValueError('broken module')\n")
    with pytest.raises(ValueError, match="broken module"):
        client.upload_file(module)


def test_upload_directory(client: Client, tmp_path: Path) -> None:
    package = tmp_path / "uploaded_package"
    (package / "docs").mkdir(parents=True)
    (package / "__init__.py").write_text("from uploaded_package.inner import VALUE\n")
    (package / "inner.py").write_text("VALUE = 42\n")
    (package / "docs" / "left_out.txt").write_text("x")
    client.register_plugin(UploadDirectory(package, update_path=True))

    def use() -> tuple[int, bool]:
        import uploaded_package  # type: ignore[import-not-found]  # pyright: ignore[reportMissingImports]

        here: Any = uploaded_package
        return here.VALUE, Path(here.__file__).with_name("docs").exists()

    assert client.submit(use).result(PATIENCE) == (42, False)
    with pytest.raises(ValueError, match="leave mode out"):
        UploadDirectory(package, mode="all")


def test_environ_and_preload(client: Client, tmp_path: Path) -> None:
    def read() -> str | None:
        return os.environ.get("SET_BY_PLUGIN")

    plugin = Environ({"SET_BY_PLUGIN": 7})
    client.register_plugin(plugin)
    assert client.submit(read, pure=False).result(PATIENCE) == "7"
    client.unregister_worker_plugin(plugin.name)
    assert client.submit(read, pure=False).result(PATIENCE) is None
    module = tmp_path / "preloaded.py"
    module.write_text("import sys\ndef dask_setup(worker):\n    sys.preloaded_on = worker.name\n")
    client.register_plugin(UploadFile(module))
    client.register_plugin(Preload("preloaded"))
    assert client.run(mark, "preloaded_on") == {"host-0": "host-0", "host-1": "host-1"}


def test_pip_install(client: Client, tmp_path: Path) -> None:
    pip = tmp_path / "pip.py"  # stands for pip: it has no network
    pip.write_text(
        "import sys, pathlib\n"
        f"open({str(tmp_path / 'calls')!r}, 'a').write(' '.join(sys.argv[1:]) + chr(10))\n"
        "sys.exit('no such package' if 'nothing' in sys.argv else 0)\n"
    )
    client.register_plugin(Environ({"PYTHONPATH": str(tmp_path)}))
    plugin = PipInstall([f"package-{os.getpid()}"], ["--quiet"])
    client.register_plugin(plugin)
    # Once for the environment that the processes of both workers share.
    assert (tmp_path / "calls").read_text() == f"install --quiet package-{os.getpid()}\n"
    with pytest.raises(RuntimeError, match="pip install nothing failed with code 1: no such package"):
        client.register_plugin(PipInstall(["nothing"]))


def test_worker_callbacks(client: Client) -> None:
    def note(dask_worker: Any) -> None:
        vars(sys)["noted"] = dask_worker.name

    client.register_worker_callbacks(note)
    assert client.run(mark, "noted") == {"host-0": "host-0", "host-1": "host-1"}
    client.register_worker_callbacks(setup=lambda: vars(sys).update(plain=1))
    assert set(client.run(mark, "plain").values()) == {1}


# ---- restart -------------------------------------------------------------------------------------


def test_restart(own: LocalCluster, client: Client, gate: Gate) -> None:
    with Client(own) as other:
        theirs = other.submit(Gate.pass_through, gate, workers="host-0", pure=False)
        gate.wait()
        client.run(lambda: vars(sys).update(left_behind=1))
        before = client.run(os.getpid)
        done = client.submit(abs, -5)
        done.result(PATIENCE)
        waiting: Future[int] = client.submit(lambda x: x, theirs, key="waiting")
        client.restart()
        for future in (done, waiting):
            assert future.cancelled()
            with pytest.raises(errors.CancelledError, match="restart"):
                future.result(PATIENCE)
        after = client.run(os.getpid)
        assert not set(before.values()) & set(after.values())
        assert client.run(mark, "left_behind") == {"host-0": None, "host-1": None}
        assert client.submit(abs, -5).result(PATIENCE) == 5
        gate.wait()  # the other client's task began again
        gate.open()
        theirs.result(PATIENCE)


def test_retiring_without_an_end(client: Client) -> None:
    with pytest.raises(ValueError, match="workers: name them"):
        client.retire_workers()
    with pytest.raises(ValueError, match="within: it bounds"):
        client.retire_workers("host-1", close_workers=False, within=3)
    (drained,) = client.retire_workers("host-1", close_workers=False, timeout=PATIENCE)
    assert drained["drain"]["purpose"] == "keep"
    client.drain_workers("host-1", undo=True)
    client.wait_for_workers(2, timeout=PATIENCE)


async def test_in_asyncio(own: LocalCluster) -> None:
    async with AsyncClient(own) as client:
        assert (await client.register_plugin(Marks(9, "in_asyncio"))).keys() == {"host-0", "host-1"}
        assert set((await client.run(mark, "in_asyncio", workers="host-0")).values()) == {(9, "host-0")}
        await client.unregister_worker_plugin("in_asyncio")
        await client.restart()
