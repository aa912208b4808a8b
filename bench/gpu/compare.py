"""Compares two versions of Millrace on the GPUs of this machine: compare.py [options] [groups].

The folders old and new beside this file have the programs of the versions, as "gpu-bundle compare
COMMIT" packs them. The versions run in turns (old, new, old, new, …), because machines of the same
kind differ by more than versions do, and the speed of one machine changes within seconds. Writes to
$OUT (./out if it is not set):

  table.txt   for each figure the medians over all rounds, their ranges, and the ratio of the
              medians. A figure is marked better or worse if the ranges do not overlap and the
              medians differ by 3 % or more
  table.json  all values
  log.txt     all output

The exit code is 1 if a program failed, and 2 if no round was finished.
"""

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterable
from pathlib import Path

HERE = Path(__file__).resolve().parent
SIDES = ("old", "new")
# The tests that measure a group.
TESTS = {"fetch": "FetchFigures", "alltoall": "AllToAllFigures", "chain": "ChainFigures"}
# The benchmarks of whole clusters, and their arguments.
BENCHES = {
    "transfer": ["transfer", "--sizes", "64KiB,1MiB,64MiB,256MiB,1GiB", "--objects", "1"],
    "exchange": ["alltoall", "--sizes", "1MiB,256MiB", "--repetitions", "10"],
    "broadcast": ["broadcast", "--sizes", "1MiB,256MiB"],
}
GROUPS = (*TESTS, *BENCHES)
# Figures of the other side of a comparison within one version, and tails, are left out of the text.
LEFT_OUT = ("by asking", "p99", "raw", "us_max")
DIFFERENT = 0.03
# The time in seconds after which a group counts as hanging.
LONGEST = 120

Figures = dict[tuple[str, str], list[float]]


def rates(lines: Iterable[str]) -> Iterable[tuple[tuple[str, str], float]]:
    """Returns the figures that a test has written: a name of several words, a number, a unit."""
    for line in lines:
        *name, value, unit = line.split()
        yield (" ".join(name), unit), float(value)


def flat(bench: dict) -> Iterable[tuple[tuple[str, str], float]]:
    """Returns the figures of a benchmark's JSON."""
    for row in bench["rows"]:
        what = f"{bench['bench']} of {row['bytes'] >> 10} KiB"
        for key, value in row.items():
            unit = "us" if "us_" in key else "GB/s" if key.endswith("gb_per_s") else None
            if unit:
                yield (f"{what}: {key}", unit), value


def run(side: str, group: str, limit: float, log) -> list[tuple[tuple[str, str], float]] | None:
    """Runs one group of one version. Returns None if it failed."""
    folder, found = HERE / side, Path(log.name).with_name("rates")
    found.write_text("")
    environment = os.environ | {"MILLRACE_CUDA_REAL": "1", "MILLRACE_RATES": str(found)}
    if group in TESTS:
        command = [folder / "transfer_ipc.test", "-test.run", f"^TestGPU{TESTS[group]}$"]
    else:
        workers = [] if group == "transfer" else ["--workers", str(gpus())]
        command = [folder / "millrace", "bench", *BENCHES[group], "--memory", "cuda", *workers, "--json"]
    log.write(f"\n===== {side} {group}\n")
    log.flush()
    # The program gets a session of its own, so that all its processes can be killed.
    program = subprocess.Popen(
        list(map(str, command)), env=environment, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True
    )
    try:
        output, _ = program.communicate(timeout=limit)
        log.write(output)
        if program.returncode:
            raise subprocess.CalledProcessError(program.returncode, command)
        return list(rates(found.read_text().splitlines()) if group in TESTS else flat(json.loads(output)))
    except (subprocess.SubprocessError, ValueError, KeyError) as error:
        log.write(f"{error}\n")
        print(f"{side} {group}: {error}", file=sys.stderr)
        return None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(program.pid, signal.SIGKILL)
        program.wait()


def gpus() -> int:
    """Returns the number of GPUs that programs see."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        query = ["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"]
        visible = subprocess.run(query, capture_output=True, text=True, check=True).stdout.replace("\n", ",")
    return len([index for index in visible.split(",") if index.strip()])


def verdict(unit: str, old: list[float], new: list[float]) -> str:
    """Returns better or worse, or nothing if the values do not show a difference."""
    if abs(statistics.median(new) - statistics.median(old)) < DIFFERENT * statistics.median(old):
        return ""
    if max(new) < min(old):
        return "worse" if unit == "GB/s" else "better"
    if min(new) > max(old):
        return "better" if unit == "GB/s" else "worse"
    return ""


def table(values: dict[str, Figures], everything: bool) -> Iterable[str]:
    """Returns the lines of the table."""
    yield f"{'figure':<58} {'unit':<5} {'old':>10} {'new':>10} {'new/old':>8}  {'old range':>21}  {'new range':>21}"
    for (name, unit), old in values["old"].items():
        new = values["new"].get((name, unit))
        if not new or (not everything and any(word in name for word in LEFT_OUT)):
            continue
        before, after = statistics.median(old), statistics.median(new)
        ratio = f"{after / before:8.3f}" if before else f"{'-':>8}"
        spans = "  ".join(f"{f'{min(some):.4g}-{max(some):.4g}':>21}" for some in (old, new))
        yield f"{name:<58} {unit:<5} {before:10.5g} {after:10.5g} {ratio}  {spans}  {verdict(unit, old, new)}".rstrip()


def main() -> int:
    """Runs the rounds and writes the table after each, so that a limit of time leaves one."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--limit", type=float, default=570, help="seconds after which no round begins that may not end in time"
    )
    parser.add_argument("--all", action="store_true", help="print all figures")
    parser.add_argument("groups", nargs="*", metavar="group", help=f"{', '.join(GROUPS)}; all if there is none")
    arguments = parser.parse_args()
    groups = arguments.groups or GROUPS
    if unknown := set(groups) - set(GROUPS):
        parser.error(f"there is no group {', '.join(sorted(unknown))}; the groups are {', '.join(GROUPS)}")
    began, longest, failed, finished = time.monotonic(), 0.0, False, 0
    packed = HERE / "programs.tar.xz"
    if packed.exists():
        with tarfile.open(packed) as file:
            file.extractall(HERE, filter="data")
        packed.unlink()
    out = Path(os.environ.get("OUT", "out"))
    out.mkdir(parents=True, exist_ok=True)
    values: dict[str, Figures] = {side: {} for side in SIDES}
    with (out / "log.txt").open("w") as log:
        for number in range(arguments.rounds):
            start = time.monotonic()
            left = arguments.limit - (start - began)
            if left < longest * 1.2:
                print(f"{number} of {arguments.rounds} rounds fit into {arguments.limit:.0f} s", file=sys.stderr)
                break
            for group in groups:
                for side in SIDES:
                    figures = run(side, group, min(LONGEST, max(left - (time.monotonic() - start), 1)), log)
                    failed |= figures is None
                    for key, value in figures or ():
                        values[side].setdefault(key, []).append(value)
            longest, finished = max(longest, time.monotonic() - start), number + 1
            versions = [f"{side} {(HERE / side / 'version').read_text().strip()}" for side in SIDES]
            lines = [
                f"{', '.join(versions)}; {finished} rounds, {gpus()} GPUs, {os.cpu_count()} processors",
                *table(values, arguments.all),
            ]
            (out / "table.txt").write_text("\n".join(lines) + "\n")
            whole = {side: {f"{name} [{unit}]": some for (name, unit), some in values[side].items()} for side in SIDES}
            (out / "table.json").write_text(json.dumps({"rounds": finished, **whole}))
    (out / "rates").unlink(missing_ok=True)
    if not finished:
        return 2
    print((out / "table.txt").read_text(), end="")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
