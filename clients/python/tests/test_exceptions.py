"""Exceptions and tracebacks of tasks, as the user of a client sees them."""

from __future__ import annotations

import asyncio
import builtins
import importlib
import linecache
import re
import sys
import threading
import traceback
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import pytest
from conftest import PATIENCE
from millrace import AsyncClient, Client, LocalCluster, errors
from millrace._values import _exceptions, _source
from nbclient import NotebookClient


class OfTwo(Exception):
    def __init__(self, a: int, b: int) -> None:
        super().__init__(f"{a}-{b}")
        self.a = a


def helper(x: int) -> float:
    y = x - 1
    return 3 + (10 / y)


def chained(x: int) -> float:
    try:
        return helper(x)
    except ZeroDivisionError as e:
        raise ValueError(f"bad x={x}") from e


def during() -> None:
    try:
        helper(1)
    except ZeroDivisionError:
        raise OfTwo(1, 2)  # noqa: B904


def without_context() -> None:
    try:
        helper(1)
    except ZeroDivisionError:
        raise KeyError("alone") from None


def endless(n: int) -> int:
    return endless(n + 1)


def in_a_circle() -> None:
    a, b = KeyError("a"), KeyError("b")
    a.__cause__, b.__cause__ = b, a
    raise a


def unusual_context() -> None:
    error = OSError(2, "no")
    error.lock = threading.Lock()  # type: ignore[attr-defined]
    try:
        raise error
    except OSError:
        raise RuntimeError("later")  # noqa: B904


@pytest.mark.parametrize("fail", [lambda: chained(1), during, without_context, in_a_circle])
def test_exceptions_print_as_they_would_have(fail: Callable[[], Any]) -> None:
    with pytest.raises(Exception) as caught:
        fail()
    sent = _exceptions.dumps(caught.value)
    assert sent is not None
    assert "".join(traceback.format_exception(_exceptions.loads(sent))) == "".join(
        traceback.format_exception(caught.value.with_traceback(caught.value.__traceback__))
    )


@pytest.mark.skipif(sys.version_info < (3, 11), reason="there are no groups before Python 3.11")
def test_members_of_groups_have_tracebacks(client: Client) -> None:
    group = vars(builtins)["ExceptionGroup"]

    def fail() -> None:
        found = []
        for x in (1, "a"):
            try:
                helper(x)  # pyright: ignore[reportArgumentType]
            except Exception as e:
                found.append(e)
        raise group("both", found)

    with pytest.raises(group, match="both") as caught:
        client.submit(fail).result(PATIENCE)
    zero, kind = caught.value.exceptions
    assert isinstance(zero, ZeroDivisionError) and isinstance(kind, TypeError)
    for member in (zero, kind):
        assert traceback.extract_tb(member.__traceback__)[-1].name == "helper"


def test_exceptions_that_cannot_be_sent_are_named(client: Client) -> None:
    with pytest.raises(RuntimeError, match="later") as caught:
        client.submit(unusual_context).result(PATIENCE)
    assert str(caught.value.__context__) == "FileNotFoundError: [Errno 2] no"
    assert traceback.extract_tb(caught.value.__context__.__traceback__)[-1].name == "unusual_context"  # pyright: ignore[reportOptionalMemberAccess]


def test_long_tracebacks_are_short(client: Client) -> None:
    error = client.submit(endless, 0).exception(PATIENCE)
    assert isinstance(error, RecursionError)
    assert len(traceback.extract_tb(error.__traceback__)) <= 100


@pytest.mark.parametrize("how", ["result", "gather", "get", "await"])
def test_few_frames_of_ours_are_in_the_traceback(client: Client, how: str, cluster: LocalCluster) -> None:
    async def wait() -> None:
        async with AsyncClient(cluster) as other:
            await other.submit(chained, 1)

    calls: dict[str, Callable[[], Any]] = {
        "result": lambda: client.submit(chained, 1).result(),
        "gather": lambda: client.gather(client.submit(chained, 1)),
        "get": lambda: client.get({"x": (chained, 1)}, "x"),
        "await": lambda: asyncio.run(wait()),
    }
    with pytest.raises(ValueError, match="bad x=1") as caught:
        calls[how]()
    files = [f.filename for f in traceback.extract_tb(caught.value.__traceback__)]
    package = str(Path(errors.__file__).parent)
    assert sum(f.startswith(package) for f in files) <= 2
    assert traceback.extract_tb(caught.value.__traceback__)[-1].name == "chained"


def test_results_raised_twice_keep_their_frames(client: Client) -> None:
    future = client.submit(chained, 1)
    lengths = set()
    for _ in range(3):
        with pytest.raises(ValueError) as caught:
            future.result(PATIENCE)
        lengths.add(len(traceback.extract_tb(caught.value.__traceback__)))
    assert len(lengths) == 1


def test_source_comes_from_the_worker(client: Client, tmp_path: Path) -> None:
    """The module is one that only the worker can read."""
    archive = tmp_path / "modules.zip"
    with zipfile.ZipFile(archive, "w") as packed:
        packed.writestr("elsewhere_only.py", "def broken(x):\n    return x['line of the worker']\n")

    def call(directory: str) -> Any:
        sys.path.insert(0, directory)
        try:
            return importlib.import_module("elsewhere_only").broken({})
        finally:
            sys.path.remove(directory)

    error = client.submit(call, str(archive)).exception(PATIENCE)
    linecache.checkcache()
    text = "".join(traceback.format_exception(error))
    assert f"{archive}/elsewhere_only.py" in text and "return x['line of the worker']" in text


def test_files_that_differ_have_two_names(tmp_path: Path) -> None:
    file = tmp_path / "module.py"
    file.write_text("one\ntwo\n")
    assert _source.remember(str(file), {1: "one", 2: "two"}) == str(file)
    other = _source.remember(str(file), {2: "deux"})
    assert other == f"{file} (as on the worker)"
    assert (linecache.getline(other, 2), linecache.getline(str(file), 2)) == ("deux\n", "two\n")


def test_exits_do_not_end_the_client(client: Client) -> None:
    with pytest.raises(errors.RemoteError, match="SystemExit: 3") as caught:
        client.submit(sys.exit, 3).result(PATIENCE)
    assert not isinstance(caught.value, SystemExit)


CELLS = """
import millrace
client = millrace.Client(n_workers=1, device="host")
---
def bad(x):
    y = {"a": x}
    return y["b"]
---
client.submit(bad, 1).result()
---
%debug
---
def talk(x):
    print("said", x)
    return x
print(client.submit(talk, 2).result())
---
print(client.submit(lambda: __import__("inspect").getsource(bad)).result())
---
client.close()
"""


def cells(text: str, tmp_path: Path) -> list[str]:
    """Executes a notebook. Returns the output of each cell, without colours."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(c.strip()) for c in text.split("---")])
    NotebookClient(
        notebook, timeout=int(PATIENCE), allow_errors=True, resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    out = []
    for cell in notebook.cells:
        parts = ["".join(o.get("traceback", [])) + o.get("text", "") + str(o.get("data", "")) for o in cell.outputs]
        out.append(re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(parts)))
    return out


def test_notebooks_show_the_cell_that_failed(tmp_path: Path) -> None:
    _, _, failed, debugged, talked, source, _ = cells(CELLS, tmp_path)
    assert 'return y["b"]' in failed and "KeyError" in failed, failed
    assert "hidden" in failed and "_data.py" not in failed, failed
    assert "bad()" in debugged or "bad(" in debugged, debugged
    assert 'return y["b"]' in debugged and "fetch" not in debugged, debugged
    assert "said 2" in talked and "[talk-" in talked, talked
    assert 'y = {"a": x}' in source, source


def test_failures_are_made_again_here(client: Client) -> None:
    def divide(x: int, pair: tuple[int, int], *, by: int) -> float:
        numerator = x + pair[0]
        return numerator / by

    three = client.submit(int, "3")
    failed = client.submit(divide, three, (4, 5), by=0)
    for future in (failed, client.submit(str, failed)):
        with pytest.raises(ZeroDivisionError) as caught:
            client.recreate_error_locally(future)
        frame = caught.traceback[-1].frame
        assert (frame.f_locals["numerator"], frame.f_locals["pair"]) == (7, (4, 5))
    with pytest.raises(ValueError, match="has not failed"):
        client.recreate_error_locally(three)
    with pytest.raises(ValueError, match="no function of Python"):
        client.recreate_error_locally(client.op("array.reshape", [1.0], [7]))


def test_failures_of_others_are_not_made_again(client: Client, cluster: LocalCluster) -> None:
    failed = client.submit(chained, 1, key="of another")
    with Client(cluster) as other:
        joined = other.submit(chained, 1, key="of another")
        assert isinstance(joined.exception(PATIENCE), ValueError)
        other.session.recent._tasks.clear()
        with pytest.raises(errors.NotFoundError, match="of another"):
            other.recreate_error_locally(joined)
    assert failed.status == "error"
