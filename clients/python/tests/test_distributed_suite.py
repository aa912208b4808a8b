"""How `make compat` chooses and copies tests of distributed."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

TOOLS = Path(__file__).parents[3] / "tools/compat"


def load(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"compat_{name}", TOOLS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


public = load("public_tests")

TESTS = '''"""Tests."""
from __future__ import annotations
import pytest
from distributed import Client, SchedulerPlugin, Worker
from distributed.client import _global_clients, wait
from distributed.core import ConnectionPool
from distributed.utils_test import BlockedGatherDep, gen_cluster, inc as plus

def looks(w):
    return w._data

@gen_cluster(client=True)
async def test_counts(c, s, a, b):
    x = c.submit(plus, 1, workers=[a.address])
    assert len(s.workers) == 2 and await x == 2

@gen_cluster(client=True)
async def test_inside(c, s, a, b):
    assert not s.tasks

@gen_cluster(client=True)
async def test_inside_worker(c, s, a, b):
    assert not b.data

@gen_cluster(client=True)
async def test_private(c, s, a, b):
    assert c._state

def test_private_helper(c):
    looks(c)

def test_private_import():
    assert _global_clients

def test_unlisted():
    ConnectionPool()

def test_unlisted_attribute(c):
    assert c.refcount

def test_unlisted_attribute_of_another_object(ac):
    assert ac.queue

def test_machinery():
    BlockedGatherDep()

def test_scheduler_code(c):
    c.run_on_scheduler(plus, 1)

@gen_cluster(client=True, worker_kwargs={"resources": {"A": 1}})
async def test_shape(c, s, a, b):
    pass

@gen_cluster(client=True, config={"distributed.worker.x": 1})
async def test_config(c, s, a, b):
    pass

@pytest.mark.slow
def test_slow():
    pass

def test_tls(tls_client):
    pass
'''


@pytest.fixture
def file(tmp_path: Path) -> Any:
    path = tmp_path / "test_x.py"
    path.write_text(TESTS)
    return public.File(path, ["Client", "SchedulerPlugin", "Worker", "wait"])


def test_each_rule_finds_its_tests(file: Any) -> None:
    assert file.excluded() == {
        "test_inside": public.INSIDE,
        "test_inside_worker": public.INSIDE,
        "test_private": public.PRIVATE,
        "test_private_helper": public.PRIVATE,
        "test_private_import": public.PRIVATE,
        "test_unlisted": public.UNLISTED,
        "test_unlisted_attribute": public.UNLISTED,
        "test_unlisted_attribute_of_another_object": public.UNLISTED,
        "test_machinery": public.MACHINERY,
        "test_scheduler_code": public.SCHEDULER_CODE,
        "test_shape": public.SHAPE,
        "test_config": public.CONFIG,
        "test_slow": public.SLOW,
        "test_tls": public.TLS,
    }


def test_a_copy_takes_names_from_the_fixtures(file: Any, tmp_path: Path) -> None:
    file.copy(tmp_path / "copy.py")
    lines = (tmp_path / "copy.py").read_text().splitlines()
    assert lines[1:5] == [
        "from __future__ import annotations",
        "import fixtures",
        "import pytest",
        "Client = fixtures.take('distributed', 'Client')",
    ]
    assert "plus = fixtures.take('distributed.utils_test', 'inc')" in lines
