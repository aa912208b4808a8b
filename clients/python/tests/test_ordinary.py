"""Common first steps of users, and the errors that must explain a mistake."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from conftest import PATIENCE
from millrace import Client, LocalCluster


def read(name: str) -> str:
    return Path(name).read_text()


def absent_here() -> int:
    """Stands for a module that only the workers have."""
    if "MILLRACE_EXECUTOR" not in os.environ:
        raise ModuleNotFoundError("No module named 'absent'")
    return 1


class OnlyThere:
    def __reduce__(self) -> tuple[object, tuple[()]]:
        return absent_here, ()


def test_relative_paths_are_those_of_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data.txt").write_text("ours")
    monkeypatch.chdir(tmp_path)
    with LocalCluster(1, memory_limit="64MiB", device="host") as cluster, Client(cluster) as client:
        assert client.submit(read, "data.txt").result(PATIENCE) == "ours"
    other = tmp_path / "other"
    other.mkdir()
    (other / "data.txt").write_text("another")
    monkeypatch.setenv("MILLRACE_WORKING_DIRECTORY", str(other))
    with LocalCluster(1, memory_limit="64MiB", device="host") as cluster, Client(cluster) as client:
        assert client.submit(read, "data.txt").result(PATIENCE) == "another"


def test_a_result_that_cannot_be_decoded_here_is_named(client: Client) -> None:
    future = client.submit(OnlyThere, key="of-there")
    with pytest.raises(ModuleNotFoundError, match="absent") as caught:
        future.result(PATIENCE)
    if sys.version_info >= (3, 11):  # notes exist since 3.11
        assert "decoding the result of 'of-there' in this process" in "".join(caught.value.__notes__)


def test_a_released_future_may_be_cancelled(client: Client) -> None:
    future = client.submit(read, "nothing", workers="nobody")
    future.release()
    future.cancel()
    client.cancel([future])


def test_programs_that_do_not_exist_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FileNotFoundError, match="python: '/no/python' is no program"):
        LocalCluster(1, python="/no/python")
    monkeypatch.setenv("MILLRACE_BINARY", str(tmp_path / "millrace"))
    with pytest.raises(FileNotFoundError, match=r"MILLRACE_BINARY: .* is no program"):
        LocalCluster(1)


def test_values_that_cannot_be_called_are_named(client: Client) -> None:
    with pytest.raises(TypeError, match="5 cannot be called"):
        client.submit(5)  # pyright: ignore[reportArgumentType, reportCallIssue]
