"""How functions reach executors: which Python can run them, how long clients keep them, and the
size limits."""

from __future__ import annotations

import operator
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest
from conftest import PATIENCE
from millrace import Client, errors
from millrace._task_states import _function_cache
from millrace._values import _serialize
from millrace.future import future_of_state


def closure(data: bytes, number: int) -> Any:
    return lambda: (len(data), number)


def test_a_function_that_captures_a_client(client: Client) -> None:
    with pytest.raises(errors.SerialisationError, match=r"To use a client there, call millrace\.get_client\(\)"):
        client.submit(lambda: client.submit(abs, 1))


# ---- versions ------------------------------------------------------------------------------------


def test_only_functions_by_value_need_a_version() -> None:
    here = "python {}.{}".format(*sys.version_info[:2])
    assert _serialize.dump_function(operator.add)[1] == ""
    assert _serialize.dump_function(np.linalg.norm)[1] == ""
    assert _serialize.dump_function(lambda: 1)[1] == here
    assert _serialize.dump_function(closure(b"", 1))[1] == here

    class Callable:
        def __call__(self) -> int:
            return 1

    assert _serialize.dump_function(Callable())[1] == here


def test_a_function_of_another_python_is_not_run(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_serialize, "version", lambda: (3, 2))
    here = r"{}\.{}".format(*sys.version_info[:2])
    failed = client.submit(lambda: 1)
    with pytest.raises(errors.VersionMismatchError, match=rf"(?i)(?s)python 3\.2.*python {here}"):
        failed.result(PATIENCE)
    assert client.submit(operator.add, 1, 2).result(PATIENCE) == 3
    assert client.submit("operator:mul", 2, 3).result(PATIENCE) == 6
    # The same holds for arguments, results and all other pickles that contain bytecode.
    data = _serialize.encode(closure(b"x", 2))
    with pytest.raises(pickle.UnpicklingError, match=r"VERSION_MISMATCH"):
        _serialize.decode(data.header, data.frames)
    failed = client.submit(map, lambda: 1, [])
    with pytest.raises(errors.TaskFailedError, match=rf"(?i)(?s)python 3\.2.*python {here}"):
        failed.result(PATIENCE)


def test_the_reason_has_a_class_of_its_own() -> None:
    from millrace._pb.millrace.v1 import error_pb2

    error = error_pb2.TaskError(reason="VERSION_MISMATCH", message="python 3.2 against python 3.11")
    assert isinstance(errors.from_task(error, "x", False), errors.VersionMismatchError)


def test_code_by_value_runs_in_its_own_python() -> None:
    data = _serialize.encode({"f": closure(b"abc", 2)})
    assert _serialize.decode(data.header, data.frames)["f"]() == (3, 2)


# ---- how long functions are kept -----------------------------------------------------------------


def test_a_client_forgets_functions(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_function_cache, "_FUNCTION_BYTES", 8 << 20)
    session = client.session
    kept = closure(b"k" * (1 << 20), -1)
    assert client.submit(kept, pure=False).result(PATIENCE) == (1 << 20, -1)
    for number in range(30):
        future = client.submit(closure(bytes(1 << 20), number))
        assert future.result(PATIENCE) == (1 << 20, number)
        assert sum(len(f[0]) for f in session.functions) <= 8 << 20
    assert session.functions.nbytes == sum(len(f[0]) for f in session.functions)
    # It is pickled again, with the same digest.
    assert client.submit(kept, pure=False).result(PATIENCE) == (1 << 20, -1)


def test_functions_that_wait_to_be_sent_are_not_lost(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_function_cache, "_FUNCTION_BYTES", 1)
    with client.session.changed:
        futures = [client.submit(closure(b"", n)) for n in range(100)]
    assert client.gather(futures, timeout=PATIENCE) == [(0, n) for n in range(100)]


def test_many_large_functions_in_one_submission(client: Client) -> None:
    """Together they are larger than a message, and the scheduler has none of them."""
    big = [closure(bytes(15 << 20), n) for n in range(6)]
    with client.session.changed:
        futures = [client.submit(f, pure=False) for f in big]
    assert client.gather(futures, timeout=PATIENCE) == [(15 << 20, n) for n in range(6)]
    del futures
    client.session.flush()
    for f in big:  # marked as sent, though the scheduler has dropped them
        client.session._sender.sent_functions.add(client._maker.op(f)[0][2])
    assert client.gather([client.submit(f, pure=False) for f in big], timeout=PATIENCE) == [
        (15 << 20, n) for n in range(6)
    ]


def test_a_large_function_with_large_arguments(client: Client) -> None:
    big = closure(bytes(30 << 20), 1)

    def both(data: bytes) -> Any:
        return big(), len(data)

    future = client.submit(both, bytes(30 << 20))
    assert future.result(PATIENCE) == ((30 << 20, 1), 30 << 20)


def test_modules_registered_later_go_by_value(client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "beside_the_script.py").write_text("def f():\n    return 6\n")
    monkeypatch.syspath_prepend(tmp_path)
    import beside_the_script  # pyright: ignore[reportMissingImports]

    first = client.submit(beside_the_script.f, pure=False)
    with pytest.raises(errors.FunctionNotFoundError):
        first.result(PATIENCE)
    cloudpickle.register_pickle_by_value(beside_the_script)
    try:
        assert client.submit(beside_the_script.f, pure=False).result(PATIENCE) == 6
    finally:
        cloudpickle.unregister_pickle_by_value(beside_the_script)


# ---- size limits ---------------------------------------------------------------------------------


def test_large_arguments_are_refused_if_they_are_code_or_inputs(client: Client) -> None:
    with pytest.raises(
        errors.InvalidRequestError, match=r"33\.0 MiB pickled, and the limit is 32\.0 MiB.*scatter"
    ) as caught:
        client.submit(closure(bytes(33 << 20), 1))
    assert caught.value.reason == "TOO_LARGE"
    futures = [future_of_state(client.session, client.session.state(f"{'k' * 1000}-{n}")[0]) for n in range(45_000)]
    with pytest.raises(errors.InvalidRequestError, match=r"with the keys of its inputs"):
        client.submit(len, futures)


def test_executors_do_not_import_more() -> None:
    code = "import sys, millrace._values._serialize; sys.exit('grpc' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
