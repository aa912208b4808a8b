"""Whether this process runs a program of Dask's distributed.

Where distributed and Millrace differ by choice, Millrace does as distributed does after `import
millrace.as_distributed`, which sets `distributed`.
"""

from __future__ import annotations

#: True after `import millrace.as_distributed`, in this process and in those of tasks.
distributed = False
