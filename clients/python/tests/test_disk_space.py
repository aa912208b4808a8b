"""A full disk is told before tests begin, and what builds and tests leave is bounded."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

TOOLS = Path(__file__).parents[3] / "tools"
STEPS, CLEAN = TOOLS / "steps", TOOLS / "clean-caches"
#: Two days ago.
OLD = time.time() - 2 * 86_400


def test_a_full_disk_is_told_before_the_first_step(tmp_path: Path) -> None:
    df = tmp_path / "df"
    df.write_text("#!/bin/sh\necho header\necho /dev/x 9000000000 1 $((FREE * 1000000)) 99% /the/disk\n")
    df.chmod(0o755)

    def steps(name: str, free: int) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "FREE": str(free), "MAKE": "echo ran"}
        return subprocess.run([STEPS, name, "one"], env=env, capture_output=True, text=True, check=False)

    for name, free in (("check", 2), ("test", 9)):
        done = steps(name, free)
        assert done.returncode == 1 and "ran one" not in done.stdout
        assert f"{free} GB are free on the disk /the/disk" in done.stdout and "make clean-caches" in done.stdout
    done = steps("check", 3)
    assert done.returncode == 0 and "ran one" in done.stdout


def test_old_files_go_and_open_ones_stay(tmp_path: Path) -> None:
    temporary, cache = tmp_path / "tmp", tmp_path / "cache/go"
    paths = [temporary / "millrace-old", temporary / "millrace-open", temporary / "millrace-new", temporary / "others"]
    for path in paths:
        path.mkdir(parents=True)
        (path / "file").touch()
        if path.name != "millrace-new":
            os.utime(path, (OLD, OLD))
    (cache / "aa").mkdir(parents=True)
    for number in range(4):
        file = cache / f"aa/{number} of them"
        file.write_bytes(bytes(1000))
        os.utime(file, (OLD + number, OLD + number))
    env = {**os.environ, "TMPDIR": str(temporary), "GOCACHE": str(cache), "GOLANGCI_LINT_CACHE": str(tmp_path / "none")}
    with (temporary / "millrace-open/file").open():
        subprocess.run([CLEAN, "0.0000025"], env=env, check=True)
    assert sorted(p.name for p in temporary.iterdir()) == ["millrace-new", "millrace-open", "others"]
    assert sorted(p.name for p in (cache / "aa").iterdir()) == ["2 of them", "3 of them"]
