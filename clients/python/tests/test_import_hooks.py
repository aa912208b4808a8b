"""Calls that are made when a package is imported."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from conftest import PATIENCE
from millrace import _import_hooks
from millrace._import_hooks import when_imported


@pytest.fixture
def late_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "a_late_module.py").write_text("x = 1\n")
    (tmp_path / "a_broken_module.py").write_text("1 / 0\n")
    yield "a_late_module"
    for name in ("a_late_module", "a_broken_module"):
        sys.modules.pop(name, None)
        _import_hooks._waiting.pop(name, None)


def test_a_module_that_is_there() -> None:
    seen: list[ModuleType] = []
    when_imported("json", seen.append)
    assert seen == [sys.modules["json"]]


def test_a_module_that_comes_later(late_module: str) -> None:
    seen: list[int] = []
    when_imported(late_module, lambda module: seen.append(module.x))
    when_imported(late_module, lambda module: seen.append(module.x + 1))
    assert seen == []
    module = importlib.import_module(late_module)
    assert seen == [1, 2]
    assert "exec_module" not in vars(module.__loader__)
    importlib.reload(module)
    assert seen == [1, 2]  # each call is made once


def test_no_finder_is_left(late_module: str) -> None:
    before = dict(_import_hooks._waiting)
    when_imported(late_module, lambda _: None)
    importlib.import_module(late_module)
    assert _import_hooks._waiting == before
    assert (_import_hooks._finder in sys.meta_path) == bool(before)


def test_a_module_that_cannot_be_imported(late_module: str) -> None:
    seen: list[ModuleType] = []
    when_imported("a_broken_module", seen.append)
    when_imported("a_module_that_does_not_exist", seen.append)
    with pytest.raises(ZeroDivisionError):
        importlib.import_module("a_broken_module")
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("a_module_that_does_not_exist")
    assert seen == []
    _import_hooks._waiting.pop("a_module_that_does_not_exist")


def test_an_error_of_a_call_is_a_warning(late_module: str) -> None:
    when_imported(late_module, lambda module: module.gone)
    with pytest.warns(RuntimeWarning, match="millrace cannot serve a_late_module: AttributeError: .*'gone'"):
        assert importlib.import_module(late_module).x == 1


DEGRADED = """
import logging, sys, warnings
import pandas as pd
from millrace._dask import _default
# As if the private parts of Dask that these modules import had other names.
sys.modules["millrace._dask._shuffle"] = sys.modules["millrace._dask._rechunk"] = None
current = _default.CurrentClient(lambda: None)
_default.opened(current, current)
logged = []
log = logging.getLogger("millrace")
log.setLevel(logging.INFO)
handler = logging.Handler()
handler.emit = lambda record: logged.append(record.getMessage())
log.addHandler(handler)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import dask.array as da
    import dask.dataframe as dd
    frame = dd.from_pandas(pd.DataFrame({"k": range(9)}), npartitions=3)
    assert len(frame.shuffle("k").compute(scheduler="sync")) == 9
    assert len(frame.merge(frame, on="k", broadcast=False).compute(scheduler="sync")) == 9
    assert da.ones((4, 4), chunks=(2, 4)).rechunk((4, 2)).sum().compute(scheduler="sync") == 16
told = [str(w.message) for w in caught if "millrace" in str(w.message)]
assert len(told) == 1 and "does not know the private parts of Dask" in told[0], told
assert len(logged) == 3 and "merges are planned by Dask alone" in " ".join([*told, *logged]), logged
_default.closed(current)
import dask
assert dask.config.get("dataframe.shuffle.method", None) is None
"""


def test_dask_works_if_its_private_parts_have_changed() -> None:
    done = subprocess.run([sys.executable, "-c", DEGRADED], capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
