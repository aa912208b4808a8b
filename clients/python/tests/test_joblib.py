"""The cluster as a backend of joblib."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import joblib
import numpy as np
import pytest
from conftest import PATIENCE
from millrace import Client, LocalCluster


def square(x: int) -> int:
    return x * x


def where(x: int) -> str:
    import os

    return os.environ.get("MILLRACE_EXECUTOR", "the client")


def test_calls_run_on_the_cluster(client: Client) -> None:
    with joblib.parallel_config("millrace"):
        assert joblib.effective_n_jobs() == 2
        assert joblib.Parallel()(joblib.delayed(square)(i) for i in range(1000)) == [i * i for i in range(1000)]
        assert "the client" not in joblib.Parallel()(joblib.delayed(where)(i) for i in range(4))
        assert sum(joblib.Parallel(return_as="generator")(joblib.delayed(square)(i) for i in range(10))) == 285


def test_a_grid_search(client: Client) -> None:
    # In the tests, because each process of pytest imports this module.
    from sklearn.datasets import load_iris
    from sklearn.model_selection import GridSearchCV
    from sklearn.svm import SVC

    x, y = load_iris(return_X_y=True)
    with joblib.parallel_config("millrace"):
        search = GridSearchCV(SVC(), {"C": [0.01, 1.0]}, cv=3).fit(x, y)
    assert search.best_params_ == {"C": 1.0}


def test_a_parallel_in_a_parallel_runs_on_the_cluster(client: Client) -> None:
    def inner(n: int) -> list[int]:
        return joblib.Parallel(n_jobs=2)(joblib.delayed(square)(i) for i in range(n))

    with joblib.parallel_config("millrace"):
        assert joblib.Parallel()(joblib.delayed(inner)(n) for n in range(4)) == [[], [0], [0, 1], [0, 1, 4]]


def test_nested_calls_run_in_other_slots(client: Client) -> None:
    """More calls than slots, which all wait for calls of their own, on two levels."""

    def inner(depth: int) -> set[int]:
        found = {os.getpid()}
        if depth:
            found.update(*joblib.Parallel(n_jobs=2)(joblib.delayed(inner)(depth - 1) for _ in range(2)))
        return found

    with joblib.parallel_config("millrace"):
        found = joblib.Parallel(batch_size=1)(joblib.delayed(inner)(2) for _ in range(3))
    assert all(len(processes) > 1 for processes in found)


@pytest.mark.long
def test_a_search_over_forests(client: Client) -> None:
    """Each fit of the search, which is a task, calls joblib for its trees."""
    from sklearn.base import clone
    from sklearn.datasets import load_iris
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.model_selection import GridSearchCV

    data = load_iris()
    search = GridSearchCV(
        RandomForestClassifier(n_estimators=4, random_state=1, n_jobs=2), {"max_depth": [2, 4]}, cv=2, n_jobs=-1
    )
    expected = clone(search).fit(data.data, data.target)
    with joblib.parallel_config("millrace"):
        search.fit(data.data, data.target)
    assert search.best_params_ == expected.best_params_
    assert np.array_equal(search.cv_results_["mean_test_score"], expected.cv_results_["mean_test_score"])


@pytest.mark.parametrize("make", [lambda i: np.full(100_000, i), lambda i: bytes([i]) * 100_000])
def test_arguments_of_calls_that_have_ended_are_given_up(client: Client, make: Any) -> None:
    """The cluster and the client hold the arguments of the calls that joblib has dispatched, which
    may be more than pre_dispatch: while its first loop lasts, each call that ends queues two."""
    most = 0

    def arguments() -> Iterator[Any]:
        nonlocal most
        for i in range(40):
            dispatched = len(backend._open)
            most = max(most, len(backend._shared) - dispatched)
            yield make(i)

    with joblib.parallel_config("millrace") as config:
        backend = config["backend"]
        calls = (joblib.delayed(len)(value) for value in arguments())
        assert joblib.Parallel(pre_dispatch=4, batch_size=1)(calls) == [100_000] * 40
    assert most <= 4
    assert not backend._shared


def test_an_error_ends_the_other_calls(client: Client) -> None:
    def fail(x: int) -> int:
        if x == 3:
            raise ValueError("three")
        return x

    with joblib.parallel_config("millrace"):
        with pytest.raises(ValueError, match="three"):
            joblib.Parallel()(joblib.delayed(fail)(i) for i in range(50))
        assert joblib.Parallel()(joblib.delayed(square)(i) for i in range(3)) == [0, 1, 4]


def test_large_arguments_are_sent_once(client: Client) -> None:
    large, given = np.ones(100_000), np.full(100_000, 2.0)
    with joblib.parallel_config("millrace", scatter=[given], priority=1) as config:
        backend = config["backend"]
        sent: list[object] = []
        scattered = backend._scattered
        backend._scattered = lambda values: sent.extend(values) or scattered(values)
        calls = [joblib.delayed(np.dot)(large, given) for _ in range(20)]
        assert joblib.Parallel()(calls) == [200_000.0] * 20
        assert len(sent) == 1 and sent[0] is large
        assert not backend._shared  # they are given up at the end of the Parallel


def test_arguments_of_the_backend(cluster: LocalCluster, client: Client) -> None:
    with pytest.raises(TypeError, match=r"unsupported arguments to .*colour.*; there are: .*priority"):
        joblib.parallel_config("millrace", colour="red")
    with pytest.raises(TypeError, match="scatter must be a list"):
        joblib.parallel_config("millrace", scatter=np.ones(3))
    with Client(cluster) as second:
        second.wait_for_workers(2, timeout=PATIENCE)
        with joblib.parallel_config("millrace", client=client, n_jobs=1) as config:
            assert config["backend"]._client is client
            assert joblib.effective_n_jobs(config["n_jobs"]) == 1


@pytest.mark.parametrize(
    "order", ["import joblib; from millrace import Client", "from millrace import Client; import joblib"]
)
def test_the_name_is_known_in_either_order_of_imports(order: str) -> None:
    code = f"{order}\njoblib.parallel_config('millrace')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE)
    assert 'the joblib backend "millrace" needs an open client: call millrace.Client(...) first' in done.stderr
