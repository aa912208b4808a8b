"""A sample of dask's own tests, with Millrace as the scheduler of every computation. `make compat`
runs all of them, and compares with dask's threads and with distributed."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

TOOLS = Path(__file__).parents[3] / "tools/compat"
#: Tests of what Dask asks of a scheduler, and one of so many of them that runs.
CHOSEN = ["tests/test_delayed.py", "tests/test_base.py", "bag/tests/test_bag.py"]
ONE_OF_CHOSEN = 6
#: Tests of the collections. Of the others, some are slow: one has 2,500 partitions.
OTHERS = [
    *(f"array/tests/test_{name}.py" for name in ("linalg", "rechunk", "reductions", "slicing")),
    *(f"dataframe/tests/test_{name}.py" for name in ("groupby", "multi", "rolling", "shuffle", "ufunc")),
]
ONE_OF_OTHERS = 150


def load_compare() -> Any:
    spec = importlib.util.spec_from_file_location("compat_compare", TOOLS / "compare.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


compare = load_compare()


@pytest.mark.parametrize(("tests", "one_of"), [(CHOSEN, ONE_OF_CHOSEN), (OTHERS, ONE_OF_OTHERS)])
@pytest.mark.long
def test_a_sample(tests: list[str], one_of: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PYTEST_ADDOPTS", "PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT"):
        monkeypatch.delenv(name, raising=False)
    results = compare.run_tests(sys.executable, "millrace", tmp_path / "millrace.jsonl", tests, one_of)
    assert len(results) > 30
    reasons = compare.read_reasons()
    failed = {t: r.message for t, r in results.items() if r.outcome == "failed" and not compare.reason_for(t, reasons)}
    assert failed == {}
    assert sum(r.outcome == "passed" for r in results.values()) > 0.8 * len(results)


def result(outcome: str, seconds: float = 1.0) -> Any:
    return compare.Result(outcome, seconds, "message | first\nsecond")


def test_the_comparison_counts_what_only_millrace_fails() -> None:
    threads = {t: result("passed") for t in "abcd"} | {"e": result("failed")}
    ours = {"a": result("passed", 2.0), "b": result("failed"), "c": result("failed"), "e": result("passed")}
    found = compare.Comparison(threads, ours, {"b": result("passed"), "c": result("failed")})
    assert (found.passing, found.alone, found.shared) == (["a"], ["b"], ["c"])
    assert (found.share, found.ratio) == (0.5, 2.0)
    page = found.page("1", [("c*", "A reason.")])
    assert "| `b` | message \\| first |" in page and "| `c` | A reason. |" in page


def test_reasons_are_found_by_pattern() -> None:
    reasons = [(compare.escape("x.py::test[a]*"), "A."), ("x.py::*", "B.")]
    assert compare.reason_for("x.py::test[a]-1", reasons) == "A."
    assert compare.reason_for("x.py::testa", reasons) == "B."
    assert compare.reason_for("y.py::test", reasons) == ""
    assert all(text.endswith(".") for _, text in compare.read_reasons())
