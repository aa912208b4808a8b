"""Notebooks: the example of Dask, and clients in the running event loop of a kernel."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import nbformat
import pytest
from conftest import PATIENCE
from millrace import LocalCluster
from nbclient import NotebookClient

EXAMPLES = Path(__file__).parents[3] / "examples"


def run_cells(cells: list[str], **environment: str) -> list[list[Any]]:
    """Runs cells in a kernel, and returns the outputs of each."""
    notebook = nbformat.v4.new_notebook()
    notebook.cells = [nbformat.v4.new_code_cell(cell) for cell in cells]
    return run_notebook(notebook, **environment)


def run_notebook(notebook: Any, **environment: str) -> list[list[Any]]:
    kernel = NotebookClient(notebook, timeout=int(PATIENCE), allow_errors=True, kernel_name="python3")
    before = dict(os.environ)
    os.environ.update(environment)
    try:
        kernel.execute()
    finally:
        os.environ.clear()
        os.environ.update(before)
    return [cell.get("outputs", []) for cell in notebook.cells if cell.cell_type == "code"]


def errors_of(outputs: list[list[Any]]) -> list[str]:
    return ["\n".join(o["traceback"]) for cell in outputs for o in cell if o["output_type"] == "error"]


def html_of(outputs: list[Any]) -> str:
    return "".join(o["data"].get("text/html", "") for o in outputs if "data" in o)


def text_of(outputs: list[Any]) -> str:
    return "".join(o["data"].get("text/plain", "") for o in outputs if "data" in o)


@pytest.mark.long
def test_the_example_of_dask() -> None:
    notebook = nbformat.read(EXAMPLES / "dask_overview.ipynb", as_version=4)
    outputs = run_notebook(notebook, MILLRACE_EXAMPLE_ROWS="20000")
    assert errors_of(outputs) == []
    assert any("slots" in html_of(cell) for cell in outputs), "the card of the client"


@pytest.fixture(scope="module")
def joined(cluster: LocalCluster) -> str:
    return f"import millrace\nclient = millrace.Client({cluster.address!r}, token={cluster.token!r})"


def test_cells_show_cards_and_run_magics(joined: str) -> None:
    *_, client, future, timed, info, last = outputs = run_cells([
        joined,
        "client",
        "future = client.submit(lambda x: x + 1, 1)\nmillrace.wait(future)\nfuture",
        "%time future.result()",
        "client.scheduler_info()",
        "client.close()",
    ])  # fmt: skip
    assert errors_of(outputs) == [] and last == []
    assert "<details>" in html_of(client) and "worker" in html_of(client)
    assert "finished" in html_of(future)
    assert text_of(timed) == "2" and "2 workers" in html_of(info)


def test_cells_await_in_the_event_loop_of_the_kernel(joined: str) -> None:
    outputs = run_cells([
        joined.replace("client = millrace.Client(", "client = await millrace.Client(asynchronous=True, address="),
        "await client.submit(sum, [1, 2]).result()",
        "await client.gather(client.map(abs, range(3)))",
        "[await f async for f in millrace.as_completed(client.map(abs, [5]))]",
        "client",
        "await client.close()",
    ])  # fmt: skip
    assert errors_of(outputs) == []
    assert [text_of(cell) for cell in outputs[1:4]] == ["3", "[0, 1, 2]", "[5]"]
    assert "AsyncClient" in html_of(outputs[4])


def test_the_error_of_a_task_shows_the_cell(joined: str) -> None:
    outputs = run_cells([joined, "def bad(x):\n    return 1 / x\n", "client.submit(bad, 0).result()", "client.close()"])
    (error,) = errors_of(outputs)
    assert "ZeroDivisionError" in error and "bad" in error
