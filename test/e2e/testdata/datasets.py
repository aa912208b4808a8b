"""Reads the dataset "of-go", checks its results, and publishes "of-python" with them."""

import millrace
import numpy as np

with millrace.Client(namespace="datasets") as client:
    found = client.get_dataset("of-go")
    assert found["name"] == "squares" and found["none"] is None and found["axes"].tolist() == [0.5, 1.5], found
    assert client.gather(found["parts"]) == [1, 4, 9], found
    client.publish_dataset(
        "of-python",
        {"z": found["parts"], "a": (True, 2, 0.5, 1j, "x", b"y"), "small": np.arange(3, dtype="int32")},
    )
