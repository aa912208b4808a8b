"""The stand-in for the package distributed. It changes the modules of its process, so each test is
a program."""

from __future__ import annotations

import subprocess
import sys

import millrace
import pytest
from conftest import PATIENCE


def run(code: str) -> str:
    """Runs a program, and returns its output."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    return done.stdout


def error_of(code: str) -> str:
    """Runs a program, and returns the last line of its errors."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 1
    return done.stderr.splitlines()[-1]


def test_a_program_of_dask() -> None:
    code = """
import millrace.as_distributed
import joblib
from dask.distributed import Client, LocalCluster, as_completed, wait

def imports(x):
    from distributed import worker
    return x, worker.__name__

with LocalCluster(n_workers=1, memory_limit="64MiB", device="host") as cluster, Client(cluster) as client:
    futures = client.map(imports, range(2))
    wait(futures)
    print(sorted(f.result() for f in as_completed(futures)))
    with joblib.parallel_config("dask"):
        print(joblib.Parallel()(joblib.delayed(abs)(x) for x in [-1, -2]))
"""
    assert run(code).splitlines() == ["[(0, 'distributed.worker'), (1, 'distributed.worker')]", "[1, 2]"]


def test_names_that_are_there() -> None:
    names = [
        n for n in ("Client", "Future", "LocalCluster", "as_completed", "get_client", "wait") if n in millrace.__all__
    ]
    code = f"import millrace.as_distributed, distributed, millrace\nprint([getattr(distributed, n) is getattr(millrace, n) for n in {names}])"
    assert run(code).strip() == str([True] * len(names))


def test_names_of_older_versions_and_of_inner_modules() -> None:
    code = """
import millrace
import millrace.as_distributed
from dask.distributed import Pub, Sub
from distributed.pubsub import Pub as same
from distributed.system import CPU_COUNT
from distributed.worker import thread_state
print(Pub is same is millrace.Pub, Sub is millrace.Sub, CPU_COUNT > 0, hasattr(thread_state, "execution_state"))
"""
    assert run(code).split() == ["True", "True", "True", "False"]


def test_every_name_and_module_can_be_imported() -> None:
    code = """
import millrace.as_distributed as stand_in
import importlib
for name, own in stand_in.MODULES.items():
    module = importlib.import_module(name)
    for n in own:
        getattr(module, n)
    assert set(own) <= set(dir(module))
from distributed import *
print(Client.__name__, "SSHCluster" in globals())
from distributed import SSHCluster
print(SSHCluster.__module__)
"""
    assert run(code).split() == ["Client", "False", "distributed"]


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (
            "from distributed import SSHCluster; SSHCluster([])",
            "NotImplementedError: distributed.SSHCluster: Millrace has no SSHCluster. Start",
        ),
        (
            "import distributed.security as s; s.Security.temporary",
            "NotImplementedError: distributed.security.Security: Mill",
        ),
        ("from distributed import nonsense", "ImportError: cannot import name 'nonsense' from 'distributed' ("),
        ("import distributed; distributed.nonsense", "AttributeError: distributed.nonsense: Millrace's stand-in for"),
        (
            "import distributed.dashboard",
            "ModuleNotFoundError: distributed.dashboard: Millrace's stand-in for distributed has",
        ),
        (
            "from distributed.protocol import serialize; serialize(1)",
            "NotImplementedError: distributed.protocol.serialize: Millrace has no serialize. Objects travel as pickles",
        ),
    ],
)
def test_missing_names_fail_by_name(use: str, message: str) -> None:
    assert error_of(f"import millrace.as_distributed\n{use}").startswith(message)


def test_classes_may_derive_from_names_that_are_missing() -> None:
    """Packages do so at their import, and may never use the class."""
    code = "import millrace.as_distributed\nfrom distributed import Scheduler\nclass Own(Scheduler): pass\nprint(isinstance(5, Scheduler))"
    assert run(code).strip() == "False"


def test_it_comes_first() -> None:
    code = "import sys, types\nsys.modules['distributed'] = types.ModuleType('distributed')\nimport millrace.as_distributed"
    assert error_of(code).startswith("ImportError: the package distributed has been imported already")
