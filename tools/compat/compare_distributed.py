"""Runs distributed's own tests with Millrace in its place, and compares the results.

    compare_distributed.py PYTHON PYTHON_WITH_DISTRIBUTED TESTS [--version V] [--again]
        [--only NAME...]

TESTS is the folder distributed/tests of a checkout of distributed. Tests are run that use its
public interface only (public_tests.py), with Millrace and with distributed itself on workers that
are processes. Those that pass with distributed count.
Results are kept in out/compat/distributed, and a run that was interrupted continues there; --again
runs Millrace's part anew. A run of all tests writes its section of docs/compat.md.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
from collections import Counter
from pathlib import Path

from compare import HERE, ROOT, Result, Results, first_line, read_reasons, reason_for, results_of, write_section
from public_tests import LATE, PROCESSES, REASONS, File

FILES = (
    "actor as_completed client client_executor event_logging events locks multi_locks priorities publish queues "
    "reschedule resources semaphore variable worker_client"
).split()
#: Begins the section of the page.
INTRODUCTION = (
    "`make compat` also runs tests of distributed {version} with `millrace.as_distributed` in the place of "
    "distributed: those of {files}. Their fixtures are translated: scheduler and workers are processes that tests "
    "share, not objects in the test's process. Tests count that use the public interface only, and that pass with "
    "distributed itself on such processes. `make compat-distributed` runs these alone."
)
#: The least share that must pass.
GOAL = 0.95
#: A test that takes longer fails, in seconds.
LIMIT = 60
#: Number of tests of distributed that share a process, and the longest time of such a process, in
#: seconds.
GROUP, GROUP_LIMIT = 20, 300


def public_names() -> frozenset[str]:
    sys.path.insert(0, str(ROOT / "clients/python/src"))
    from millrace._dask_names import NAMES

    return NAMES


def copy_tests(tests: Path, out: Path) -> dict[str, str]:
    """Copies the files, and returns the tests that are excluded, with the reasons."""
    out.mkdir(parents=True, exist_ok=True)
    excluded: dict[str, str] = {}
    for name in FILES:
        file = File(tests / f"test_{name}.py", public_names())
        file.copy(out / f"test_{name}.py")
        excluded |= {f"test_{name}.py::{test}": reason for test, reason in file.excluded().items()}
    return excluded


def run_ours(python: str, folder: Path, tests: list[str]) -> Results:
    """Runs tests with Millrace that have no result yet, in one process."""
    out = folder / "millrace.jsonl"
    returncode = start(python, "millrace", folder, out, tests or [f"test_{name}.py" for name in FILES]).wait()
    if returncode not in (0, 1, 5):  # 5: there was no test left
        raise SystemExit(f"pytest ended with {returncode} for millrace")
    return results_of(out)


def run_theirs(python: str, folder: Path, tests: list[str]) -> Results:
    """Runs tests with distributed that have no result yet. After a test that fails, distributed may
    leave processes that keep a processor busy, so that later tests fail, too. Because of this, some
    tests at a time share a process, and those that do not pass there are run again, each alone."""
    together, alone = folder / "distributed.jsonl", folder / "distributed-alone.jsonl"
    left = [t for t in tests if t not in results_of(together)]
    for at in range(0, len(left), GROUP):
        run_group(python, folder, together, left[at : at + GROUP])
    passed = {t: r for t, r in results_of(together).items() if r.outcome != "failed"}
    known = results_of(alone)
    for test in (t for t in tests if t not in passed and t not in known):
        if not run_group(python, folder, alone, [test]):
            row = {"test": test, "outcome": "failed", "seconds": GROUP_LIMIT, "message": "Timeout of its process"}
            with alone.open("a") as file:
                file.write(json.dumps(row) + "\n")
    return {t: r for t, r in (results_of(alone) | passed).items() if t in tests}


def run_group(python: str, folder: Path, out: Path, tests: list[str]) -> bool:
    """Runs tests with distributed in one process, and ends all processes that they leave. Returns
    whether the process has ended in time."""
    started = start(python, "distributed", folder, out, tests, start_new_session=True)
    try:
        started.wait(GROUP_LIMIT)
    except subprocess.TimeoutExpired:
        return False
    else:
        return True
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGKILL)
        started.wait()


def start(
    python: str, scheduler: str, folder: Path, out: Path, tests: list[str], *, start_new_session: bool = False
) -> subprocess.Popen[bytes]:
    """Starts pytest for some tests."""
    env = dict(
        os.environ,
        COMPAT_SCHEDULER=scheduler,
        COMPAT_RESULTS=str(out),
        COMPAT_EXCLUDED=str(folder / "excluded.json"),
        PYTHONPATH=f"{HERE}{os.pathsep}{folder / 'tests'}",
        MILLRACE_BINARY=os.environ.get("MILLRACE_BINARY", str(ROOT / "bin/millrace")),
    )
    options = ["-q", "-p", "distributed_suite", "-p", "no:cacheprovider", "-p", "no:asyncio", f"--timeout={LIMIT}"]
    command = [python, "-m", "pytest", *options, "--tb=native", "--no-summary", "-W", "ignore", "-c", os.devnull]
    command += [f"--rootdir={folder / 'tests'}", *tests]
    return subprocess.Popen(command, env=env, cwd=folder / "tests", start_new_session=start_new_session)


class Share:
    """Which tests count, and which of them pass."""

    def __init__(self, excluded: dict[str, str], ours: Results, theirs: Results) -> None:
        ran = {t: r for t, r in ours.items() if r.outcome != "skipped" and t.partition("[")[0] not in excluded}
        counted = [t for t in ran if t in theirs and theirs[t].outcome == "passed"]
        self.passing = [t for t in counted if ran[t].outcome == "passed"]
        self.failing = [t for t in counted if ran[t].outcome == "failed"]
        left_out = {t: theirs[t] for t in ran if t not in counted and t in theirs}
        self.excluded = excluded | {t: LATE if late(r) else PROCESSES for t, r in left_out.items()}
        self.share = len(self.passing) / max(len(counted), 1)

    def lines(self) -> list[str]:
        return [
            f"distributed: {len(self.passing) + len(self.failing):,} tests use its public interface only and pass",
            f"  {len(self.passing):,} pass with Millrace, {self.share:.1%}",
            f"  {len(self.failing):,} fail with Millrace",
            f"  {len(self.excluded):,} are left out",
        ]

    def section(self, version: str, ours: Results, reasons: list[tuple[str, str]]) -> str:
        """Returns the section of docs/compat.md."""
        counts = Counter(self.excluded.values())
        rows = "\n".join(f"| {reason} | {counts[reason]} |" for reason in REASONS if counts[reason])
        failing = "\n".join(
            f"| `{t}` | {reason_for(t, reasons) or first_line(ours[t].message)} |" for t in sorted(self.failing)
        )
        lists = "\n\n".join(
            f"{reason}\n\n{names(t for t, r in self.excluded.items() if r == reason)}"
            for reason in REASONS
            if counts[reason]
        )
        introduction = textwrap.fill(INTRODUCTION.format(version=version, files=", ".join(FILES)), 99)
        return f"""## Distributed's own tests

{introduction}

| | tests |
| --- | --- |
| count, and pass with Millrace | {len(self.passing):,} |
| count, and fail with Millrace | {len(self.failing):,} |
| are left out | {len(self.excluded):,} |

{self.share:.1%} of the tests that count pass with Millrace.

### Tests that count and fail with Millrace

| test | reason |
| --- | --- |
{failing}

### Tests that are left out

| reason | tests |
| --- | --- |
{rows}

{lists}
"""


def late(result: Result) -> bool:
    """Returns whether a test failed because it did not end in time."""
    return "Timeout" in result.message


def names(tests: object) -> str:
    """Returns names of tests, a line of each file."""
    files: dict[str, list[str]] = {}
    for test in sorted(tests):  # pyright: ignore[reportArgumentType, reportUnknownVariableType, reportUnknownArgumentType]
        file, _, name = str(test).partition("::")
        files.setdefault(file, []).append(name.removeprefix("test_"))
    lines = (f"- `{file}`: {', '.join(f'`{n}`' for n in tests)}" for file, tests in files.items())
    return "\n".join(textwrap.fill(line, 99, subsequent_indent="  ", break_long_words=False) for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("python")
    parser.add_argument("python_with_distributed")
    parser.add_argument("tests", type=Path)
    parser.add_argument("--version", default="", help="of distributed's tests, for the page")
    parser.add_argument("--only", nargs="+", default=[], help="tests, as test_client.py::test_submit")
    parser.add_argument("--again", action="store_true")
    given = parser.parse_args()
    folder = ROOT / "out/compat/distributed"
    excluded = copy_tests(given.tests, folder / "tests")
    (folder / "excluded.json").write_text(json.dumps(excluded, indent=1))
    if given.again:
        (folder / "millrace.jsonl").unlink(missing_ok=True)
    ours = run_ours(given.python, folder, given.only)
    theirs = run_theirs(given.python_with_distributed, folder, [t for t, r in ours.items() if r.outcome != "skipped"])
    compared = Share(excluded, ours, theirs)
    print("\n".join(compared.lines()))
    for test in sorted(compared.failing):
        print(f"  fails: {test}: {first_line(ours[test].message)}")
    if not given.only:
        write_section("distributed", compared.section(given.version, ours, read_reasons()))
    sys.exit(compared.share < GOAL)


if __name__ == "__main__":
    main()
