"""``python -m millrace.executor``: started by workers only."""

from __future__ import annotations

import sys

from millrace.executor._process import main

if __name__ == "__main__":
    sys.exit(main())
