"""The tests that need a GPU, as far as they can be checked without one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

TESTS = ("test_gpu.py", "test_gpu_torch.py", "test_gpu_cluster.py", "test_device_cluster.py")


def test_gpu_tests_have_their_fixtures() -> None:
    """They share tests and fixtures with other modules, so a rename there may break them."""
    here = Path(__file__).parent
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--setup-plan", "-p", "no:cacheprovider", *TESTS],
        cwd=here,
        env={**os.environ, "MILLRACE_GPU_TESTS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
