"""Whether this process runs a program of Dask's distributed.

After `import millrace.as_distributed`, which sets `distributed`, Millrace does as distributed does
in what the two have chosen differently.
"""

from __future__ import annotations

#: True after `import millrace.as_distributed`, in this process and in those of tasks.
distributed = False
