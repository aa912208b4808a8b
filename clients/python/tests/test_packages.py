"""Versions of packages in errors of what a worker cannot unpickle."""

from __future__ import annotations

import importlib.metadata
import os
import pickle
from typing import Any

import numpy as np
import pytest
from conftest import PATIENCE
from millrace import Client, errors
from millrace._values import _packages


def only_in_the_client() -> Any:
    if os.environ.get("MILLRACE_EXECUTOR"):
        raise ImportError("there is no such thing in this version")
    return Newer()


class Newer:
    def __reduce__(self) -> Any:
        return only_in_the_client, ()

    def __call__(self, *_: Any) -> int:
        return 1


def test_the_packages_of_a_pickle_are_told() -> None:
    payload = pickle.dumps([np.zeros(3), pytest.approx], protocol=5)
    told = _packages.told(payload)
    assert f"numpy {np.__version__}" in told and f"pytest {pytest.__version__}" in told
    assert _packages.told(pickle.dumps([1, "no module of this name"])) == "" == _packages.told(b"no pickle")
    assert _packages.compared(f"why?{told} more") == "why? Its packages have the same versions in the client. more"
    assert _packages.compared("nothing told") == "nothing told"


def test_versions_that_differ_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        if name == "pytest":
            raise importlib.metadata.PackageNotFoundError(name)
        return {"numpy": "9.9", "dask": "1"}[name]

    monkeypatch.setattr(importlib.metadata, "version", version)
    said = _packages.compared("why? Its packages there: dask 1, numpy 1.0, pytest 7.0; more")
    assert said == (
        "why? Versions differ: numpy is 1.0 there and 9.9 in the client; pytest is 7.0 there and not installed in the client. "
        "more"
    )


def take(x: Any) -> Any:
    return x


def makes_newer() -> Any:
    return Newer(), np.float32


def test_the_errors_of_arguments_and_inputs_compare_versions(client: Client) -> None:
    for future, kind in (
        (client.submit(take, [Newer(), np.float32], pure=False), errors.TaskFailedError),
        (client.submit(take, client.submit(makes_newer, pure=False)), errors.InputUnreadableError),
    ):
        with pytest.raises(kind, match="no such thing in this version") as caught:
            future.result(PATIENCE)
        assert "Its packages have the same versions in the client. client.get_versions" in str(caught.value)


def test_the_error_of_a_function_compares_versions(client: Client) -> None:
    newer, kind = Newer(), np.float32

    def function() -> Any:
        return newer(kind)

    for call in (lambda: client.submit(function).result(PATIENCE), lambda: client.run(function)):
        with pytest.raises(errors.MillraceError, match="no such thing in this version") as caught:
            call()
        assert "Its packages have the same versions in the client. client.get_versions" in str(caught.value)
