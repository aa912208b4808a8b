"""Random native operations have the results of NumPy. `make native-ops` tries more of them."""

from __future__ import annotations

from millrace import Client
from random_ops import failures

#: Calls of the test.
CALLS = 1500


def test_random_operations_have_the_results_of_numpy(client: Client) -> None:
    """If one differs, it is printed with its seed and its arguments."""
    found = failures(client, 0, CALLS)
    assert not found, "\n\n".join(found)
