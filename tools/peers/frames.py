"""Measures data frames on distributed and on Millrace, and the queries of PDS-H on Millrace beside
Polars' own in-memory engine, on this machine. Prints the tables, and progress while it runs.

    frames.py PYTHON_WITH_DASK PYTHON_WITH_MILLRACE MILLRACE_BINARY [OPTION ...]

Each program of bench/frames/workload.py runs on a new cluster, with distributed and then with
Millrace, within a limit of memory and then within half of it. The exit status is 1 if something
fails on Millrace.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import clusters

BENCH = Path(__file__).resolve().parents[2] / "bench" / "frames"
#: The programs, and the greatest ratio to the time with distributed that is wanted.
PROGRAMS = {"shuffle": 0.67, "merge": 0.67, "groupby": 0.67, "set_index": 1.0, "rechunk": 1.0}
#: The number of the queries of PDS-H, and the greatest ratio to the time of Polars' own engine that
#: is wanted for all of them together.
QUERIES, QUERIES_WANTED = 22, 1.3
LIBRARIES = ("dask", "millrace")


@dataclass
class Run:
    """One run of a program.

    Attributes:
        seconds: its time. NaN: it failed.
        peak: the most memory of the cluster in bytes.
        error: the last line of its output, if it failed.
    """

    seconds: float
    peak: int
    error: str = ""

    def __str__(self) -> str:
        return self.error or f"{self.seconds:.1f} s, {self.peak / 1e9:.2f} GB"


@dataclass
class Case:
    """A program within a limit of memory in GB, with its run on each system."""

    program: str
    limit: float
    runs: dict[str, Run]

    def line(self) -> str:
        dask, ours = self.runs["dask"], self.runs["millrace"]
        ratio = ours.seconds / dask.seconds
        cells = f"{self.program:12}{self.limit:9.3g}{dask.seconds:13.1f}{ours.seconds:10.1f}{ratio:7.2f}"
        cells += f"{PROGRAMS[self.program]:8.2f}{dask.peak / 1e9:13.2f}{ours.peak / 1e9:10.2f}"
        errors = [f"{name}: {run.error.partition(':')[0]}" for name, run in self.runs.items() if run.error]
        return "  ".join([cells, *errors])


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def run(program: str, library: str, limit: float, given: argparse.Namespace) -> Run:
    """Runs a program on a new cluster. `limit`: the memory of all its workers in GB."""
    memory = int(limit * 1e9 / clusters.WORKERS)
    with tempfile.TemporaryDirectory(dir=given.directory) as name:
        folder = Path(name)
        if library == "dask":
            python, opened = given.dask, clusters.dask(given.dask, folder, memory)
        else:
            python, opened = given.python, clusters.millrace(given.python, given.binary, folder, memory)
        with opened as cluster:
            command = [python, str(BENCH / "workload.py"), library, cluster.where, str(given.gigabytes), program]
            with cluster.peak() as peak:
                try:
                    done = subprocess.run(command, capture_output=True, text=True, timeout=given.deadline)
                except subprocess.TimeoutExpired:
                    return Run(math.nan, peak[0], f"no end within {given.deadline} s")
            if done.returncode:
                return Run(math.nan, peak[0], ["failed", *done.stderr.strip().splitlines()][-1])
            return Run(json.loads(done.stdout.splitlines()[-1])[program], peak[0])


def programs(given: argparse.Namespace) -> list[Case]:
    """Runs the programs on both systems, in turns."""
    found: list[Case] = []
    for limit in (given.memory * share for share in given.limits):
        for program in given.programs:
            runs: dict[str, Run] = {}
            for library in LIBRARIES:
                runs[library] = run(program, library, limit, given)
                say(f"{program} within {limit:.3g} GB, {library}: {runs[library]}")
            found.append(Case(program, limit, runs))
    return found


def queries(given: argparse.Namespace) -> tuple[dict[int, dict[str, float]], int]:
    """Returns the seconds of the queries of PDS-H by number and engine, and the most memory of the
    cluster. Queries after one that fails are missing."""
    found: dict[int, dict[str, float]] = {}
    with tempfile.TemporaryDirectory(dir=given.directory) as name:
        tables = Path(name) / "tables"
        say(f"PDS-H: writing the tables of scale {given.scale:g}")
        pdsh = BENCH / "pdsh"
        subprocess.run([given.python, pdsh / "data.py", tables, "--scale", str(given.scale)], check=True)
        with clusters.millrace(given.python, given.binary, Path(name)) as cluster, cluster.peak() as peak:
            command = [given.python, pdsh / "run.py", cluster.where, tables]
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
                assert process.stdout is not None
                for line in process.stdout:
                    times = json.loads(line)
                    number = times.pop("query")
                    found[number] = times
                    say(
                        f"query {number} of {QUERIES}, polars: {times['polars']:.3f} s, millrace: {times['millrace']:.3f} s"
                    )
    return found, peak[0]


def print_programs(cases: list[Case], given: argparse.Namespace) -> None:
    print(f"\nData frames of pandas, and an array, {given.gigabytes:g} GB, by Dask's collections; seconds")
    print("The limit of memory is that of all workers; the peak is that of all processes of the cluster; in GB")
    columns = f"{'':12}{'limit':>9}{'distributed':>13}{'millrace':>10}{'ratio':>7}{'wanted':>8}"
    print(columns + f"{'peak: distr.':>13}{'millrace':>10}")
    for case in cases:
        print(case.line())


def print_queries(found: dict[int, dict[str, float]], peak: int, given: argparse.Namespace) -> None:
    print(f"\nQueries of PDS-H at scale {given.scale:g}, seconds; the peak of the cluster was {peak / 1e9:.2f} GB")
    print(f"{'':12}{'polars':>9}{'millrace':>10}{'ratio':>7}{'wanted':>8}")
    for number, times in found.items():
        print(f"{number:<12}{times['polars']:9.3f}{times['millrace']:10.3f}{times['millrace'] / times['polars']:7.2f}")
    theirs, ours = (sum(times[name] for times in found.values()) for name in ("polars", "millrace"))
    print(f"{'all':12}{theirs:9.3f}{ours:10.3f}{ours / theirs:7.2f}{QUERIES_WANTED:8.2f}")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dask", help="an interpreter that has distributed")
    parser.add_argument("python", help="an interpreter that has millrace")
    parser.add_argument("binary", help="the program millrace")
    parser.add_argument("--gigabytes", type=float, default=5.0, help="size of the data frames; 0: no programs on them")
    parser.add_argument("--memory", type=float, help="limit of all workers in GB; default: the size of the data")
    parser.add_argument("--limits", type=float, nargs="+", default=[1.0, 0.5], help="shares of --memory, in turn")
    parser.add_argument("--programs", nargs="+", choices=PROGRAMS, default=list(PROGRAMS))
    parser.add_argument("--scale", type=float, default=1.0, help="scale of PDS-H; 0: no queries")
    parser.add_argument("--deadline", type=float, default=900.0, help="seconds for each program")
    parser.add_argument("--directory", help="where tables and results beyond the memory are written")
    given = parser.parse_args()
    given.memory = given.memory or given.gigabytes
    return given


def main() -> None:
    given = arguments()
    cases = programs(given) if given.gigabytes else []
    found, peak = queries(given) if given.scale else ({}, 0)
    print(f"{clusters.WORKERS} workers of one thread and the client on {os.cpu_count()} CPUs", end="")
    print(f"; load before the end: {os.getloadavg()[0]:.1f}")
    if cases:
        print_programs(cases, given)
    if found:
        print_queries(found, peak, given)
    report = {
        "options": vars(given),
        "programs": [asdict(case) for case in cases],
        "queries": found,
        "queries_peak": peak,
    }
    out = Path("out/bench")
    out.mkdir(parents=True, exist_ok=True)
    (out / "frames.json").write_text(json.dumps(report, indent=2) + "\n")
    if any(case.runs["millrace"].error for case in cases) or (given.scale and len(found) < QUERIES):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
