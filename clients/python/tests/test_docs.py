"""The programs in the documentation run as they stand there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

_ROOT = Path(__file__).resolve().parents[3]
_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        "docs/quickstart.md",
        "docs/arrays.md",
        "docs/memory.md",
        "docs/faults.md",
        "docs/frames.md",
        "docs/polars.md",
    ],
)
def test_the_blocks_of_a_page_are_a_program(page: str, tmp_path: Path) -> None:
    blocks = _BLOCK.findall((_ROOT / page).read_text())
    assert blocks
    program = tmp_path / "page.py"
    program.write_text("\n".join(blocks))
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert not done.returncode, done.stdout + done.stderr
