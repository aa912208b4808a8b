"""The programs in the documentation run as they stand there."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest
from conftest import PATIENCE
from millrace import Client, Future, LocalCluster

_ROOT = Path(__file__).resolve().parents[3]
_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_CALL = re.compile(r"`((?:client|future)\.[^`]*)`")


def program(page: str) -> str:
    blocks = _BLOCK.findall((_ROOT / page).read_text())
    assert blocks
    return "\n".join(blocks)


@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        "docs/quickstart.md",
        "docs/polars.md",
        "docs/templates.md",
        *(pytest.param(f"docs/{name}.md", marks=pytest.mark.long) for name in ("arrays", "memory", "faults", "frames")),
    ],
)
def test_the_blocks_of_a_page_are_a_program(page: str, tmp_path: Path) -> None:
    file = tmp_path / "page.py"
    file.write_text(program(page))
    done = subprocess.run([sys.executable, file], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert not done.returncode, done.stdout + done.stderr


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The files that pages name, in the working directory of these tests and of their workers."""
    files, before = tmp_path_factory.mktemp("desk"), Path.cwd()
    numbers = pd.DataFrame({"person": range(40), "customer": [i % 3 for i in range(40)], "amount": 1.5})
    for name in ("orders-0", "orders-1", "people-0", "people-1", "a", "b"):
        numbers.to_parquet(files / f"{name}.parquet")
    (files / "module.py").write_text("X = 1\n")
    os.chdir(files)
    try:
        yield files
    finally:
        os.chdir(before)


@pytest.fixture(scope="module")
def beside(desk: Path) -> Iterator[LocalCluster]:
    """A cluster whose workers run beside the files."""
    with LocalCluster(2, memory_limit="256MiB", device="host") as cluster:
        yield cluster


def run(page: str) -> None:
    """Runs a page in this process, gathers its futures, and closes what it opens."""
    names: dict[str, object] = {"__name__": "page"}
    try:
        exec(compile(program(page), page, "exec"), names)
        for value in names.values():
            for future in value if isinstance(value, list) else [value]:
                if isinstance(future, Future):
                    future.result(PATIENCE)
    finally:
        for name in ("client", "cluster"):
            if isinstance(opened := names.get(name), Client | LocalCluster):
                opened.close()


# `Client()` finds the cluster by the environment.
@pytest.mark.parametrize("page", ["docs/dask.md", "docs/shuffle.md"])
def test_a_page_runs_on_a_cluster(page: str, beside: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLRACE_ADDRESS", beside.scheduler_address)
    monkeypatch.setenv("MILLRACE_TOKEN", beside.token)
    run(page)


def test_local_clusters(desk: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("MILLRACE_DEVICE", "host")
    run("docs/local-clusters.md")
    assert "alice-0 6" in capsys.readouterr().out


@pytest.mark.parametrize("page", ["docs/cudf.md", "docs/gpu-operations.md"])
def test_a_page_for_gpus(page: str, desk: Path) -> None:
    compile(program(page), page, "exec")
    if os.environ.get("MILLRACE_GPU_TESTS") and page != "docs/cudf.md":
        run(page)
    elif os.environ.get("MILLRACE_GPU_TESTS"):
        with contextlib.suppress(ModuleNotFoundError):  # the tests of GPUs run without cuDF, too
            run(page)


def test_the_calls_of_the_answers(beside: LocalCluster, desk: Path) -> None:
    calls = _CALL.findall((_ROOT / "docs/faq.md").read_text())
    assert len(calls) >= 5
    with Client(beside) as client:
        failed = client.submit(lambda: {}["absent"])
        failed.exception()
        for call in calls:
            with contextlib.suppress(KeyError):  # that of the task
                eval(call, {"client": client, "future": failed})
