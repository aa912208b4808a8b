"""The 22 queries of bench/frames/pdsh at a small scale, compared with Polars' own engine."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
from millrace import Client
from millrace.polars import Engine, Options
from polars.testing import assert_frame_equal

_HOME = Path(__file__).resolve().parents[3] / "bench" / "frames" / "pdsh"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"pdsh_{name}", _HOME / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> object:
    home = tmp_path_factory.mktemp("pdsh")
    load("data").make(home, 0.01)
    return load("queries").Tables(home)


@pytest.mark.parametrize("limit", [0, 1 << 20], ids=["far", "near"])
@pytest.mark.parametrize("number", range(1, 23))
def test_answers_of_pdsh(number: int, limit: int, tables: object, client: Client) -> None:
    lf = load("queries").QUERIES[number](tables)
    options = Options(parts=3, least_bytes=1, broadcast_limit=limit, gather_limit=limit, fallback_mode="raise")
    assert_frame_equal(lf.collect(engine=Engine(client, options=options)), lf.collect(), rel_tol=1e-9)
