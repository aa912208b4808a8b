"""Runs the Python tests whose input has changed since they last succeeded, file by file.

    tools/changed/check.py [--all] [--budget SECONDS] [--list] [options of pytest]

inputs.py says what the input of a file is. A file whose tests all passed is recorded with the
hashes of its input, and with the seconds that its tests took, in .tools/done/python-tests.json. The
record has one entry for each test file, with its last inputs, so it does not grow.

If the tests whose input has changed take longer than the budget, as after a change of the program
or of a module on which all else depends, the nearest to the change run: first those that failed the
last time, then those with the fewest imports between them and what has changed. SMOKE counts as
near to every change. The rest is named, and runs the next time, or in `make test`. With --all,
everything runs, and what succeeds is recorded.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from inputs import Inputs

ROOT = Path(__file__).resolve().parents[2]
RECORD = Path(".tools/done/python-tests.json")
#: Tests of what every program does: a client connects, submits, and reads results and errors.
SMOKE = frozenset({"test_imports.py", "test_submission.py", "test_results.py", "test_functions.py"})
#: The assumed time of the tests of a file that never ran, in seconds.
UNKNOWN = 20.0
#: The number of inputs of a file that are remembered, for people who switch between branches.
KEYS = 8


class Chosen(NamedTuple):
    file: str
    seconds: float


def _key(inputs: dict[str, str]) -> str:
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()[:20]


class Record:
    """The results of the test files in earlier runs."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._files: dict[str, dict[str, Any]] = json.loads(path.read_text())
        except (OSError, ValueError):
            self._files = {}

    def passed(self, file: str, inputs: dict[str, str]) -> bool:
        entry = self._files.get(file)
        return entry is not None and not entry["failed"] and _key(inputs) in entry["keys"]

    def seconds(self, file: str) -> float:
        entry = self._files.get(file)
        return UNKNOWN if entry is None else entry["seconds"]

    def nearness(self, file: str, inputs: dict[str, str], distances: dict[str, int]) -> int:
        """Returns the number of imports between a file and what has changed; 0 if it failed or is
        new."""
        entry = self._files.get(file)
        if entry is None or entry["failed"] or not entry["inputs"]:
            return 0
        changed = (path for path, digest in inputs.items() if entry["inputs"].get(path) != digest)
        near = min((distances.get(path, 99) for path in changed), default=99)
        return min(near, 1) if Path(file).name in SMOKE else near

    def add(self, file: str, inputs: dict[str, str], seconds: float, failed: bool) -> None:
        entry = self._files.setdefault(file, {"inputs": {}, "keys": [], "seconds": UNKNOWN})
        entry["failed"] = failed
        if not failed:
            key = _key(inputs)
            entry["seconds"] = round(seconds, 1)
            entry["inputs"] = inputs
            entry["keys"] = [*(k for k in entry["keys"] if k != key), key][-KEYS:]

    def save(self, files: Iterable[str]) -> None:
        """Writes the entries of the files that still exist."""
        kept = {file: self._files[file] for file in files if file in self._files}
        self._path.parent.mkdir(parents=True, exist_ok=True)
        new = self._path.with_suffix(".new")
        new.write_text(json.dumps(kept, separators=(",", ":")))
        new.replace(self._path)


def choose(
    record: Record,
    inputs: dict[str, dict[str, str]],
    distances: dict[str, dict[str, int]],
    budget: float,
    parallel: int,
) -> tuple[list[Chosen], list[Chosen]]:
    """Returns the files that run, and those that would not fit into the budget. At least one runs
    if any has changed."""
    due = [f for f in inputs if not record.passed(f, inputs[f])]
    order = {
        f: (record.nearness(f, inputs[f], distances[f]), Path(f).name not in SMOKE, record.seconds(f), f) for f in due
    }
    run: list[Chosen] = []
    left: list[Chosen] = []
    total = 0.0
    for file in sorted(due, key=lambda f: order[f]):
        seconds = record.seconds(file)
        if run and total + seconds > budget * parallel:
            left.append(Chosen(file, seconds))
        else:
            total += seconds
            run.append(Chosen(file, seconds))
    return run, left


class Outcomes:
    """A plugin of pytest that counts what happens to the tests of each file."""

    def __init__(self) -> None:
        self.expected: dict[str, set[str]] = {}
        self.ended: dict[str, set[str]] = {}
        self.failed: set[str] = set()
        self.seconds: dict[str, float] = {}

    def _file(self, test: str, config_root: Path) -> str:
        path = (config_root / test.split("::")[0]).resolve()
        return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else test

    def pytest_configure(self, config: pytest.Config) -> None:
        self._root = config.rootpath

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        self._expect(item.nodeid for item in items)

    def _expect(self, tests: Iterable[str]) -> None:
        for test in tests:
            self.expected.setdefault(self._file(test, self._root), set()).add(test)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        self._expect(ids)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.failed.add(self._file(report.nodeid, self._root))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        file = self._file(report.nodeid, self._root)
        self.seconds[file] = self.seconds.get(file, 0.0) + report.duration
        if report.failed:
            self.failed.add(file)
        if report.when == "teardown":
            self.ended.setdefault(file, set()).add(report.nodeid)

    def passed(self, file: str) -> bool:
        # A file whose tests are all left out has none that ended, and passes.
        return file not in self.failed and self.expected.get(file, set()) <= self.ended.get(file, set())


def main() -> int:
    parser = argparse.ArgumentParser(usage="check.py [--all] [--budget SECONDS] [--list] [options of pytest]")
    parser.add_argument("--all", action="store_true", help="run all tests, whether their input changed or not")
    parser.add_argument("--budget", type=float, default=100.0, help="longest time of the tests in seconds")
    parser.add_argument("--parallel", type=int, default=4, help="number of processes that run the tests")
    parser.add_argument("--list", action="store_true", help="print what would run, with the reason, and run nothing")
    options, others = parser.parse_known_args()

    found = Inputs(ROOT)
    files = [str(f) for f in found.test_files()]
    inputs = {f: found.digests(Path(f)) for f in files}
    distances = {f: {str(p): d for p, d in found.distances(Path(f)).items()} for f in files}
    record = Record(ROOT / RECORD)
    run, left = choose(record, inputs, distances, options.budget, options.parallel)
    if options.all:
        run, left = [Chosen(f, record.seconds(f)) for f in files], []
    same = len(files) - len(run) - len(left)
    print(f"python tests: {len(run)} files run, {same} have succeeded with the same input", flush=True)
    if left:
        names = " ".join(Path(c.file).name for c in left)
        print(
            f"python tests: {len(left)} files more have changed input, and would take about "
            f"{sum(c.seconds for c in left) / options.parallel:.0f} s: {names}\n"
            "python tests: make check runs them the next time, and make test always",
            flush=True,
        )
    if options.list:
        for chosen in run:
            print(f"  {record.nearness(chosen.file, inputs[chosen.file], distances[chosen.file]):2} {chosen.file}")
        return 0
    if not run:
        return 0

    outcomes = Outcomes()
    sys.path[:] = [p for p in sys.path if p != str(Path(__file__).parent)]
    os.chdir(ROOT)
    status = pytest.main([*others, *(c.file for c in run)], plugins=[outcomes])
    for chosen in run:
        seconds = outcomes.seconds.get(chosen.file, 0.0)
        if chosen.file in outcomes.failed or (outcomes.passed(chosen.file) and status in (0, 1)):
            record.add(chosen.file, inputs[chosen.file], seconds, failed=chosen.file in outcomes.failed)
    record.save(files)
    return 0 if status == pytest.ExitCode.NO_TESTS_COLLECTED else int(status)


if __name__ == "__main__":
    raise SystemExit(main())
