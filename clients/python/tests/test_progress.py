"""Bars that show how far tasks are."""

from __future__ import annotations

import io
import re
from pathlib import Path

import millrace
import nbformat
import pytest
from conftest import PATIENCE, Gate
from millrace import AsyncClient, Client, LocalCluster
from millrace._tasks import _progress
from millrace._tasks._progress import Row, page_of, progress
from nbclient import NotebookClient
from tqdm import tqdm


def inc(x: int) -> int:
    return x + 1


def fail(x: int) -> int:
    raise ValueError(f"bad {x}")


def last_line(text: str) -> str:
    return text.rstrip("\n").rpartition("\r")[2].splitlines()[0]


def test_a_bar_in_a_terminal(client: Client, capsys: pytest.CaptureFixture[str]) -> None:
    first = client.map(inc, range(20))
    assert progress({"all": first}) is None
    out = capsys.readouterr().out
    assert re.fullmatch(r"\[#{40}\] \| 100% Completed \| 20/20 tasks \| +\d+\.\ds", last_line(out))
    second = client.map(inc, first, pure=False)
    progress(first, second)  # those that have ended count as well
    assert "| 40/40 tasks |" in last_line(capsys.readouterr().out)
    progress(client.map(inc, range(3), pure=False), complete=False)
    assert re.search(r"\| (\d)/\1 tasks \|", last_line(capsys.readouterr().out))


def test_tasks_that_no_future_stands_for(client: Client, gate: Gate) -> None:
    """They are counted, and the counts go up as they end."""

    def held(path: str) -> int:
        gate.pass_through()
        return 1

    future = client.get({"a": (held, "x"), "b": (inc, "a"), "c": (inc, "b")}, "c", sync=False)
    gate.wait()
    measure = _progress._Measure([future], True)
    assert {(r.name, r.total, r.ended) for r in measure.rows()} == {("held", 1, 0), ("inc", 2, 0)}
    gate.open()
    assert future.result(PATIENCE) == 3
    assert measure.done and {(r.name, r.total, r.ended) for r in measure.rows()} == {("held", 1, 1), ("inc", 2, 2)}


def test_errors_are_told(client: Client, capsys: pytest.CaptureFixture[str]) -> None:
    progress(client.map(fail, range(3), pure=False))
    out = capsys.readouterr().out
    assert "100% Completed" in last_line(out)
    assert re.search(r"\n3 of 3 futures failed; fail-\S+: ValueError: bad 0\n$", out)


async def test_a_bar_in_an_event_loop(cluster: LocalCluster, capsys: pytest.CaptureFixture[str]) -> None:
    async with AsyncClient(cluster) as client:
        await progress(client.map(inc, range(5)))
    assert "| 5/5 tasks |" in last_line(capsys.readouterr().out)


def test_wrong_arguments(client: Client) -> None:
    with pytest.raises(ValueError, match="group_by"):
        progress([], group_by="spans")


def test_the_page() -> None:
    page = page_of([Row("<inc>", 10, 4, 1)], False, "1 failed")
    assert "<b>Running</b>: 4 of 10 tasks" in page and "&lt;inc&gt;" in page
    assert "max='10' value='4'" in page and "4 / 10, 1 failed" in page and "1 failed</div>" in page


def test_many_bars_are_one_together(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    monkeypatch.setattr("IPython.display.display", lambda page, display_id: shown.append(page.data))
    _progress._Page(True).show([Row(f"f{n}", 2, 1, 0) for n in range(50)], False)
    assert shown[0].count("<tr>") == 20 and "others" in shown[0] and "31 / 62" in shown[0]
    _progress._Page(False).show([Row("a", 2, 1, 0), Row("b", 2, 1, 0)], False)
    assert shown[1].count("<tr>") == 1 and "2 / 4" in shown[1]


def test_a_notebook(tmp_path: Path) -> None:
    """The cell ends at once, and the bars in it go on until the futures have ended.

    A kernel says with each update which cell was the last one to begin. nbclient drops updates of a
    cell that has ended, so a task waits here until the next cell runs.
    """
    code = """
import os
from pathlib import Path
from millrace import Client, progress
gate = Path("gate").absolute()
os.mkfifo(gate)
client = Client(n_workers=1, memory_limit="64MiB", device="host")
futures = [*client.map(abs, range(6)), client.submit(Path.read_text, gate)]
progress(futures)"""
    wait = """
import threading
gate.write_text("")
client.gather(futures)
[t.join() for t in threading.enumerate() if t.name == "millrace-progress"]"""
    close = "client.close()"
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(c) for c in (code, wait, close)])
    NotebookClient(book, timeout=int(PATIENCE), kernel_name="python3").execute(cwd=str(tmp_path))
    outputs = [o for o in book.cells[0].outputs if o.output_type == "display_data"]
    assert "<b>Finished</b>: 7 of 7 tasks" in outputs[0]["data"]["text/html"]


def test_tqdm(client: Client) -> None:
    futures = client.map(inc, range(10))
    bar = tqdm(millrace.as_completed(futures), total=len(futures), file=io.StringIO())
    assert sorted(f.result() for f in bar) == list(range(1, 11))
    assert bar.n == 10
