"""`make check` runs the Python tests whose input has changed, and no others."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

TOOLS = Path(__file__).parents[3] / "tools/changed"
INIT = """
import importlib
_HOMES = {"sums": ("add",), "_local._local_process": ("start",)}
def __getattr__(name):
    for module, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module("millrace." + module), name)
    raise AttributeError(name)
"""
CONFTEST = """
import sys
from pathlib import Path
import pytest
sys.path.insert(0, str(Path(__file__).parents[1] / "src"))
from millrace import start
collect_ignore = [] if "GPU" in sys.path else ["test_gpu.py"]
@pytest.fixture
def cluster():
    return start()
"""
FILES = {
    "bin/millrace": "a program",
    "docs/page.md": "from millrace import (\\n    add,\\n)",
    "tools/python-dev.lock": "",
    "clients/python/pyproject.toml": "[tool.pytest.ini_options]\\n",
    "clients/python/src/millrace/__init__.py": INIT,
    "clients/python/src/millrace/sums.py": """
from typing import TYPE_CHECKING
from millrace import numbers
if TYPE_CHECKING:
    from millrace.types import Number
def add(a, b):
    return numbers.one() * a + b
""",
    "clients/python/src/millrace/numbers.py": "def one():\\n    return 1\\n",
    "clients/python/src/millrace/types.py": "Number = int\\n",
    "clients/python/src/millrace/late.py": "",
    "clients/python/src/millrace/_local/__init__.py": "",
    "clients/python/src/millrace/_local/_local_process.py": "def start():\\n    return 1\\n",
    "clients/python/src/millrace/executor/__init__.py": "",
    "clients/python/src/millrace/executor/_process.py": "import importlib\\nimportlib.import_module('millrace.late')\\n",
    "clients/python/tests/conftest.py": CONFTEST,
    "clients/python/tests/test_add.py": "import helper\\ndef test_it():\\n    assert helper.add(1, 2) == 3\\n",
    "clients/python/tests/helper.py": "from millrace import add\\n",
    "clients/python/tests/test_cluster.py": "def test_it(cluster):\\n    assert cluster\\n",
    "clients/python/tests/test_gpu.py": "def test_it():\\n    assert False\\n",
    "clients/python/tests/test_page.py": """
from pathlib import Path
DOCS = Path(__file__).resolve().parents[3] / "docs"
def test_it():
    assert (DOCS / "page.md").read_text()
""",
}
TESTS = ["test_add.py", "test_cluster.py", "test_page.py"]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace("\\n", "\n"))
    shutil.copytree(TOOLS, tmp_path / "tools/changed", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], object]:
    """Imports a module of the tool, for one test."""
    monkeypatch.syspath_prepend(str(TOOLS))
    for name in ("inputs", "check", "flake"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return __import__


def files(module: Callable[[str], object], root: Path, test: str) -> dict[str, int]:
    """Returns the distances of a test's input, by the names of the files."""
    found = module("inputs").Inputs(root).distances(Path("clients/python/tests", test))  # type: ignore[attr-defined]
    return {str(p).removeprefix("clients/python/"): d for p, d in found.items()}


def test_inputs_are_found_through_imports_and_paths(repository: Path, tool: Callable[[str], object]) -> None:
    found = files(tool, repository, "test_add.py")
    assert {n: d for n, d in found.items() if n.endswith(("sums.py", "numbers.py", "helper.py", "test_add.py"))} == {
        "tests/test_add.py": 0, "tests/helper.py": 1, "src/millrace/sums.py": 2, "src/millrace/numbers.py": 3
    }  # fmt: skip
    assert not {"bin/millrace", "src/millrace/types.py", "src/millrace/late.py"} & set(found)
    page = files(tool, repository, "test_page.py")
    assert page["docs/page.md"] == 1 and page["src/millrace/numbers.py"] == 3 and "docs" not in page


def test_a_cluster_runs_the_program_and_the_executor(repository: Path, tool: Callable[[str], object]) -> None:
    found = files(tool, repository, "test_cluster.py")
    assert {"bin/millrace", "src/millrace/executor/_process.py", "src/millrace/late.py"} <= set(found)
    assert "src/millrace/sums.py" not in found


def check(root: Path, *options: str) -> tuple[list[str], str]:
    """Runs the tool, and returns the names of the test files that ran, and its output."""
    done = subprocess.run(
        [sys.executable, "tools/changed/check.py", "-v", "-p", "no:cacheprovider", *options],
        cwd=root, capture_output=True, text=True, check=False,
    )  # fmt: skip
    ran = {line.split("::")[0].split("/")[-1] for line in done.stdout.splitlines() if "::test_it " in line}
    return sorted(ran), f"{done.returncode} {done.stdout}{done.stderr}"


def test_changed_files_run_again(repository: Path) -> None:
    assert check(repository)[0] == TESTS
    assert check(repository)[0] == []
    # Python takes a compiled module for new if the file has the same second and the same length.
    (repository / "clients/python/src/millrace/numbers.py").write_text("def one():\n    return 20\n")
    ran, said = check(repository)
    assert ran == ["test_add.py", "test_page.py"] and said.startswith("1 ")
    # A failed test runs again.
    ran, said = check(repository)
    assert ran == ["test_add.py"] and said.startswith("1 ")
    (repository / "clients/python/src/millrace/numbers.py").write_text("def one():\n    return 1\n")
    ran, said = check(repository)
    assert ran == ["test_add.py"] and said.startswith("0 ")


def test_the_nearest_run_first_within_the_budget(tmp_path: Path, tool: Callable[[str], object]) -> None:
    module: object = tool("check")
    record = module.Record(tmp_path / "record.json")  # type: ignore[attr-defined]
    old = {"a": "1", "b": "1"}
    for name, seconds in (("test_far.py", 10), ("test_near.py", 20), ("test_failed.py", 5), ("test_same.py", 1)):
        record.add(name, old, seconds, failed=False)
    record.add("test_failed.py", old, 5, failed=True)
    record.save(["test_far.py", "test_near.py", "test_failed.py", "test_same.py"])
    record = module.Record(tmp_path / "record.json")  # type: ignore[attr-defined]
    new = {"a": "2", "b": "1"}
    inputs = {"test_far.py": new, "test_near.py": new, "test_failed.py": new, "test_same.py": old}
    distances = {
        "test_far.py": {"a": 3},
        "test_near.py": {"a": 1},
        "test_failed.py": {"a": 5},
        "test_same.py": {"a": 1},
    }

    def chosen(budget: float) -> tuple[list[str], list[str]]:
        run, left = module.choose(record, inputs, distances, budget, 2)  # type: ignore[attr-defined]
        return [c.file for c in run], [c.file for c in left]

    assert chosen(100) == (["test_failed.py", "test_near.py", "test_far.py"], [])
    assert chosen(13) == (["test_failed.py", "test_near.py"], ["test_far.py"])
    assert chosen(0) == (["test_failed.py"], ["test_near.py", "test_far.py"])
    record.add("test_far.py", new, 10, failed=False)
    assert record.passed("test_far.py", new) and record.passed("test_far.py", old)
    record.save(["test_far.py"])
    assert not module.Record(tmp_path / "record.json").passed("test_same.py", old)  # type: ignore[attr-defined]


# ---- make flake ----------------------------------------------------------------------------------


@pytest.mark.long
def test_failures_are_counted_beside_a_load(repository: Path) -> None:
    """A test that fails every second time fails once in two rounds."""
    test = repository / "clients/python/tests/test_odd.py"
    test.write_text("""
from pathlib import Path
COUNT = Path(__file__).with_name("count")
def test_it():
    rounds = COUNT.read_text() if COUNT.exists() else ""
    COUNT.write_text(rounds + "x")
    assert len(rounds) % 2
""")
    command = [sys.executable, "tools/changed/flake.py", "--times", "2", "--load", "1", "--tests", str(test)]
    done = subprocess.run(command, cwd=repository, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "failed 1 times in 2 rounds: Python tests: " in done.stdout and "test_odd.py::test_it" in done.stdout
    assert sorted(p.name for p in (repository / "out/flake").iterdir()) == ["1-Python-tests.log"]


def test_flake_takes_the_tests_of_changed_files(repository: Path, tool: Callable[[str], object]) -> None:
    module: object = tool("flake")
    (repository / "server").mkdir()
    (repository / "server/a_test.go").touch()
    changed = [Path("server/a.go"), Path("worker/b.go"), Path("docs/page.md"), Path("clients/python/tests/helper.py")]
    assert module.chosen_packages(changed, repository) == ["./server"]  # type: ignore[attr-defined]
    tests = module.chosen_tests(changed, repository)  # type: ignore[attr-defined]
    assert [Path(t).name for t in tests] == ["test_add.py", "test_page.py"]
