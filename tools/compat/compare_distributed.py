"""Runs distributed's own tests with Millrace in its place, and compares the results.

    compare_distributed.py PYTHON PYTHON_WITH_DISTRIBUTED TESTS [--version V] [--again]
        [--only NAME...]

TESTS is the folder distributed/tests of a checkout of distributed. Tests are run that use its
public interface only (public_tests.py). Those that fail with Millrace are run with distributed
itself on workers that are processes, and count if they pass.
Results are kept in out/compat/distributed, and a run that was interrupted continues there; --again
runs Millrace's part anew. A run of all tests writes its section of docs/compat.md.
"""

from __future__ import annotations

import argparse
import json
import os
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
    "share, not objects in the test's process. Tests count that use the public interface only; of those that fail "
    "with Millrace, only the ones that pass with distributed itself on such processes, or do not end there in time."
)
#: The least share that must pass.
GOAL = 0.95
#: A test that takes longer fails, in seconds.
LIMIT = 60


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


def run_tests(python: str, scheduler: str, folder: Path, tests: list[str]) -> Results:
    out = folder / f"{scheduler}.jsonl"
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
    command += [f"--rootdir={folder / 'tests'}", *(tests or [f"test_{name}.py" for name in FILES])]
    done = subprocess.run(command, env=env, cwd=folder / "tests", check=False)
    if done.returncode not in (0, 1, 5):  # 5: there was no test left
        raise SystemExit(f"pytest ended with {done.returncode} for {scheduler}")
    return results_of(out)


class Share:
    """Which tests count, and which of them pass."""

    def __init__(self, excluded: dict[str, str], ours: Results, theirs: Results) -> None:
        self.excluded = dict(excluded)
        self.passing = [t for t, r in ours.items() if r.outcome == "passed"]
        failing = [t for t, r in ours.items() if r.outcome == "failed"]
        self.failing = [t for t in failing if t not in theirs or theirs[t].outcome == "passed"]
        self.excluded |= {t: LATE if late(theirs[t]) else PROCESSES for t in failing if t not in self.failing}
        self.share = len(self.passing) / max(len(self.passing) + len(self.failing), 1)

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
    ours = run_tests(given.python, "millrace", folder, given.only)
    failing = [t for t, r in ours.items() if r.outcome == "failed"]
    theirs = run_tests(given.python_with_distributed, "distributed", folder, failing) if failing else {}
    compared = Share(excluded, ours, theirs)
    print("\n".join(compared.lines()))
    for test in sorted(compared.failing):
        print(f"  fails: {test}: {first_line(ours[test].message)}")
    if not given.only:
        write_section("distributed", compared.section(given.version, ours, read_reasons()))
    sys.exit(compared.share < GOAL)


if __name__ == "__main__":
    main()
