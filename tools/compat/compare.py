"""Runs dask's own tests with its threads, with Millrace and with distributed, and compares them.

    compare.py PYTHON PYTHON_WITH_DISTRIBUTED [--one-of N] [--tests PATH...] [--again]

PYTHON has dask and the Python client; the tests are those in its installed dask. Only tests that
pass with threads and fail with Millrace are run with distributed: the others cannot be to our
disadvantage. Results are kept in out/compat/VERSION, and a run that was interrupted continues
there; --again begins anew. A run of all tests with the newest dask writes docs/compat.md.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
#: The tests, from dask's folder on.
TESTS = ["array/tests", "dataframe/tests", "bag/tests", "tests/test_delayed.py", "tests/test_base.py"]
#: The version of dask whose results are docs/compat.md.
NEWEST = "2026.8.0"
#: A test that takes longer fails, in seconds.
LIMIT = 300


class Result(NamedTuple):
    """The result of one test."""

    outcome: str
    seconds: float
    message: str


Results = dict[str, Result]


def results_of(path: Path) -> Results:
    """Reads the results that the plugin has written."""
    if not path.exists():
        return {}
    rows = map(json.loads, path.read_text().splitlines())
    return {row["test"]: Result(row["outcome"], row["seconds"], row["message"]) for row in rows}


def home_of_dask(python: str) -> tuple[Path, str]:
    """Returns the folder and the version of a Python's dask."""
    code = "import dask; print(dask.__file__); print(dask.__version__)"
    file, version = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    return Path(file).parent, version


def run_tests(python: str, scheduler: str, out: Path, tests: list[str], one_of: int) -> Results:
    """Runs tests with a scheduler, those that have no result yet."""
    home, _ = home_of_dask(python)
    arguments = out.with_suffix(".arguments")
    arguments.write_text("\n".join(f"{home}/{test}" for test in tests) + "\n")
    env = dict(
        os.environ,
        COMPAT_SCHEDULER=scheduler,
        COMPAT_RESULTS=str(out),
        COMPAT_ONE_OF=str(one_of),
        PYTHONPATH=str(HERE),
        MILLRACE_BINARY=os.environ.get("MILLRACE_BINARY", str(ROOT / "bin/millrace")),
    )
    options = ["-q", "-p", "dask_suite", "-p", "no:cacheprovider", f"--timeout={LIMIT}", "--tb=no", "-W", "ignore"]
    command = [python, "-m", "pytest", *options, "-c", os.devnull, f"--rootdir={home}", f"@{arguments}"]
    done = subprocess.run(command, env=env, cwd=out.parent, check=False)
    if done.returncode not in (0, 1, 5):  # 5: there was no test left
        raise SystemExit(f"pytest ended with {done.returncode} for {scheduler}")
    return results_of(out)


def reason_for(test: str, reasons: list[tuple[str, str]]) -> str:
    """Returns the sentence for a test that fails; empty: there is none."""
    return next((text for pattern, text in reasons if fnmatch.fnmatchcase(test, pattern)), "")


def read_reasons() -> list[tuple[str, str]]:
    """Reads reasons.txt: lines of a pattern and a sentence, separated by a colon and a space."""
    lines = (HERE / "reasons.txt").read_text().splitlines()
    pairs = (line.rpartition(":: ") for line in lines if line and not line.startswith("#"))
    return [(escape(pattern.strip()), text.strip()) for pattern, _, text in pairs]


def escape(pattern: str) -> str:
    """Makes square brackets stand for themselves: names of tests have them."""
    return pattern.replace("[", "[[]")


class Comparison:
    """The results of Millrace beside those of threads and distributed."""

    def __init__(self, threads: Results, ours: Results, theirs: Results) -> None:
        self.threads, self.ours, self.theirs = threads, ours, theirs
        both = [t for t, r in threads.items() if r.outcome == "passed" and t in ours]
        self.passing = [t for t in both if ours[t].outcome == "passed"]
        failing = [t for t in both if ours[t].outcome != "passed"]
        #: Tests that pass with threads and with distributed, and not with Millrace.
        self.alone = [t for t in failing if t in theirs and theirs[t].outcome == "passed"]
        #: Tests that pass with threads alone.
        self.shared = [t for t in failing if t not in self.alone]
        self.share = len(self.passing) / max(len(self.passing) + len(self.alone), 1)
        self.ratio = sum(ours[t].seconds for t in self.passing) / max(
            sum(threads[t].seconds for t in self.passing), 1e-9
        )

    def lines(self, version: str) -> list[str]:
        """Returns the figures for people."""
        return [
            f"dask {version}: {len(self.ours):,} tests were run, {len(self.threads):,} with threads",
            f"  {len(self.passing):,} pass with threads and with Millrace",
            f"  {len(self.alone):,} pass with threads and with distributed, and fail with Millrace",
            f"  {len(self.shared):,} pass with threads alone",
            f"  {self.share:.2%} of the tests that pass with threads and with distributed pass with Millrace",
            f"  time of the tests that pass: {self.ratio:.2f} times that of threads",
        ]

    def page(self, version: str, reasons: list[tuple[str, str]]) -> str:
        """Returns the section of docs/compat.md."""

        def table(tests: list[str]) -> str:
            rows = [f"| `{t}` | {reason_for(t, reasons) or first_line(self.ours[t].message)} |" for t in sorted(tests)]
            return "\n".join(["| test | reason |", "| --- | --- |", *rows]) if rows else "None."

        return f"""## Dask's own tests

`make compat` runs tests of dask {version} with the threaded scheduler and with Millrace as the
scheduler of every computation: those of arrays, data frames, bags, `test_delayed.py` and
`test_base.py`. It then runs with distributed the tests that pass with threads and fail with
Millrace. Each cluster has two worker processes.
With `--one-of` it runs a part, chosen by the names of the tests.
These figures are of a run of {len(self.ours):,} tests.

| | tests |
| --- | --- |
| pass with threads and with Millrace | {len(self.passing):,} |
| pass with threads and with distributed, and fail with Millrace | {len(self.alone):,} |
| pass with threads alone | {len(self.shared):,} |

{self.share:.2%} of the tests that pass with threads and with distributed pass with Millrace.
Those that pass took {sum(self.ours[t].seconds for t in self.passing):,.0f} s with Millrace,
{self.ratio:.2f} times as long as with threads.

### Tests that pass with distributed and fail with Millrace

{table(self.alone)}

### Tests that pass with threads alone

{table(self.shared)}
"""


PAGE = """# Dask's and distributed's own tests

`make compat` runs tests of dask and of distributed with Millrace in the place of distributed, and
writes this page.

"""


def write_section(name: str, text: str) -> None:
    """Writes a section of docs/compat.md, that of dask or of distributed, and keeps the other."""
    page = ROOT / "docs/compat.md"
    parts = page.read_text().removeprefix(PAGE).partition("## Distributed's own tests\n")
    dask, distributed = parts[0], parts[1] + parts[2]
    if name == "dask":
        dask = text + "\n" if distributed else text
    else:
        distributed = text
    page.write_text(PAGE + dask.rstrip("\n") + "\n" + ("\n" + distributed if distributed else ""))


def first_line(message: str) -> str:
    """Returns the beginning of a message, as it can stand in a table."""
    return message.partition("\n")[0][:120].replace("|", "\\|").replace("`", "'")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("python")
    parser.add_argument("python_with_distributed")
    parser.add_argument("--one-of", type=int, default=1, help="run one of so many tests")
    parser.add_argument("--tests", nargs="+", default=TESTS)
    parser.add_argument("--again", action="store_true")
    given = parser.parse_args()
    _, version = home_of_dask(given.python)
    out = ROOT / "out/compat" / version
    out.mkdir(parents=True, exist_ok=True)
    if given.again:
        for file in out.iterdir():
            file.unlink()
    threads = run_tests(given.python, "threads", out / "threads.jsonl", given.tests, given.one_of)
    ours = run_tests(given.python, "millrace", out / "millrace.jsonl", given.tests, given.one_of)
    failing = [t for t, r in ours.items() if r.outcome == "failed" and t in threads and threads[t].outcome == "passed"]
    theirs: Results = {}
    if failing:
        theirs = run_tests(given.python_with_distributed, "distributed", out / "distributed.jsonl", failing, 1)
    compared = Comparison(threads, ours, theirs)
    print("\n".join(compared.lines(version)))
    for test in sorted(compared.alone):
        print(f"  only Millrace fails: {test}: {first_line(ours[test].message)}")
    if given.tests == TESTS and version == NEWEST:
        write_section("dask", compared.page(version, read_reasons()))
    sys.exit(compared.share < 0.995)


if __name__ == "__main__":
    main()
