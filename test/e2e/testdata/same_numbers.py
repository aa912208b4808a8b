"""The Python part of TestGoAndPythonGetTheSameNumbers. Prints its results as one JSON object."""

import json

import numpy as np

from millrace import Client

with Client(namespace="two-languages") as client:
    data = [1.5, 2.25, -3, 8.125, 0.1]
    random = client.op("array.random", [6, 4], seed=42)
    product = client.op("array.matmul", client.op("array.transpose", random), random)
    print(
        json.dumps(
            {
                "mean": client.submit("statistics:fmean", data).result(),
                "deviate": client.submit("statistics:pstdev", data).result(),
                "comb": client.submit("math:comb", 40, 20).result(),
                "random": np.asarray(random.result()).ravel().tolist(),
                "product": np.asarray(product.result()).ravel().tolist(),
                "singular": np.asarray(client.op("array.svd", random).result()[1]).tolist(),
                "sum": float(client.op("array.reduce", product, op="sum").result()),
                "shared": float(client.submit("numpy:linalg.norm", random).result()),
            }
        )
    )
