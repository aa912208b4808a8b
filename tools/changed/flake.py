"""Runs tests again and again beside busy processes, and counts their failures.

    tools/changed/flake.py [--times N] [--minutes M] [--load N]
        [--packages "./a ./b"] [--tests "FILE..."]

Without packages and tests, those of what has changed run: since the branch left main, or in the
last commit if it is main, and what is not committed. Of Go, the packages of the changed files; of
Python, the changed test files, and those that import a changed module themselves. The output of
each run that failed is kept in out/flake.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from inputs import Inputs

ROOT = Path(__file__).resolve().parents[2]
OUT = Path("out/flake")
#: A line that names a failed test, of Go or of pytest.
FAILED = re.compile(r"^(?:\s*--- FAIL: (\S+)|(?:FAILED|ERROR) (\S+))", re.MULTILINE)


class Run(NamedTuple):
    """A command that runs tests once."""

    name: str
    command: Sequence[str]
    directory: Path


def git(*arguments: str) -> list[str]:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.split("\n")[:-1]


def changed() -> list[Path]:
    """Returns the files that have changed since the branch left main."""
    (head,) = git("rev-parse", "HEAD")
    base = head
    for main in ("main", "origin/main"):
        if subprocess.run(
            ["git", "rev-parse", "-q", "--verify", main], cwd=ROOT, capture_output=True, check=False
        ).stdout:
            (base,) = git("merge-base", "HEAD", main)
            break
    names = git("diff", "--name-only", base if base != head else "HEAD~1")
    return sorted({Path(name) for name in [*names, *git("ls-files", "-o", "--exclude-standard")]})


def chosen_packages(files: Sequence[Path], root: Path) -> list[str]:
    """Returns the Go packages of files that have tests. Those that run clusters of processes are
    left out: they have a target of their own, and run only if they are named."""
    folders = sorted({f.parent for f in files if f.suffix == ".go"} - {Path()})
    return [
        f"./{f}"
        for f in folders
        if any((root / f).glob("*_test.go")) and f.parts[0] not in ("test", "tools") and "testdata" not in f.parts
    ]


def chosen_tests(files: Sequence[Path], root: Path) -> list[str]:
    """Returns the Python test files that have changed, or import a changed file themselves."""
    found = Inputs(root)
    near = {test: {p for p, distance in found.distances(test).items() if distance <= 1} for test in found.test_files()}
    return [str(test) for test, paths in near.items() if paths & set(files)]


def go_runs(packages: Sequence[str], scratch: Path) -> list[Run]:
    """Compiles the tests of packages, so that runs take no time for it."""
    listed = ["go", "list", "-f", "{{.ImportPath}} {{.Dir}}", *packages]
    runs: list[Run] = []
    for line in subprocess.run(listed, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines():
        package, _, folder = line.partition(" ")
        binary = scratch / f"{package.replace('/', '-')}.test"
        subprocess.run(["go", "test", "-c", "-tags", "invariants", "-o", binary, package], cwd=ROOT, check=True)
        if binary.exists():
            runs.append(Run(package, [str(binary), "-test.short"], Path(folder)))
    return runs


def python_runs(tests: Sequence[str]) -> list[Run]:
    options = ["-q", "-rfE", "-p", "no:cacheprovider", "--tb=short"]
    if len(tests) > 1:
        options += ["-n", "2", "--dist", "loadfile"]
    return [Run("Python tests", [sys.executable, "-m", "pytest", *options, *tests], ROOT)] if tests else []


def once(run: Run, seconds: float) -> tuple[str, set[str]] | None:
    """Runs tests, and returns the output and the names of those that failed; None: the time was
    over."""
    with subprocess.Popen(
        run.command,
        cwd=run.directory,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=max(seconds, 0.1))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return None
    if process.returncode == 0:
        return output, set()
    names = {go or python for go, python in FAILED.findall(output)}
    # Go names the test and its part; the part says more.
    names = {n for n in names if not any(other.startswith(n + "/") for other in names)}
    return output, names or {f"the process, which ended with {process.returncode}"}


def repeat(runs: Sequence[Run], times: int, minutes: float) -> tuple[Counter[str], int]:
    """Returns how often each test failed, and the number of complete rounds."""
    end = time.monotonic() + 60 * minutes
    failures: Counter[str] = Counter()
    shutil.rmtree(ROOT / OUT, ignore_errors=True)
    for number in range(times):
        for run in runs:
            result = once(run, end - time.monotonic())
            if result is None:
                return failures, number
            output, failed = result
            for test in failed:
                failures[f"{run.name}: {test}"] += 1
            if failed:
                log = ROOT / OUT / f"{number + 1}-{run.name.replace('/', '-').replace(' ', '-')}.log"
                log.parent.mkdir(parents=True, exist_ok=True)
                log.write_text(output)
                print(
                    f"flake: round {number + 1}: {', '.join(sorted(failed))}; see {log.relative_to(ROOT)}", flush=True
                )
    return failures, times


def main() -> int:
    parser = argparse.ArgumentParser(description="Runs tests again and again beside busy processes.")
    parser.add_argument("--times", type=int, default=20, help="number of rounds (default: 20)")
    parser.add_argument("--minutes", type=float, default=15, help="longest time of all rounds (default: 15)")
    parser.add_argument("--load", type=int, default=8, help="number of busy processes (default: 8)")
    parser.add_argument("--packages", default="", help="Go packages, instead of those that have changed")
    parser.add_argument("--tests", default="", help="Python test files, instead of those that have changed")
    options = parser.parse_args()
    packages, tests = options.packages.split(), options.tests.split()
    if not packages and not tests:
        files = changed()
        packages, tests = chosen_packages(files, ROOT), chosen_tests(files, ROOT)
    print(f"flake: {' '.join([*packages, *tests]) or 'no tests: nothing that has some has changed'}", flush=True)
    with tempfile.TemporaryDirectory(prefix="flake-") as scratch:
        runs = [*(go_runs(packages, Path(scratch)) if packages else []), *python_runs(tests)]
        busy = [
            subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(options.load if runs else 0)
        ]
        try:
            failures, rounds = repeat(runs, options.times, options.minutes)
        finally:
            for process in busy:
                process.kill()
                process.wait()
    if rounds < options.times:
        print(f"flake: {options.minutes:g} minutes are over after {rounds} of {options.times} complete rounds")
    for test, count in failures.most_common():
        print(f"flake: failed {count} times in {rounds or 1} rounds: {test}")
    print(f"flake: {'FAILED' if failures else 'ok'}: {rounds} rounds beside {options.load} busy processes")
    return 1 if failures or (runs and not rounds) else 0


if __name__ == "__main__":
    raise SystemExit(main())
