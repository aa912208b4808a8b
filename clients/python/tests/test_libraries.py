"""Arrays and functions of numba and JAX as arguments and results, in host memory."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
from conftest import PATIENCE
from millrace import Client
from millrace._values import _serialize

# Numba and JAX are imported by the tests: each process of pytest imports this module.


def test_functions_of_numba(client: Client) -> None:
    import numba

    @numba.njit
    def summed(x: Any) -> float:
        total = 0.0
        for value in x:
            total += value
        return total

    @numba.vectorize(["float64(float64)"])
    def cubed(x: float) -> float:
        return x**3

    data = np.arange(1000.0)
    assert client.submit(summed, data).result(PATIENCE) == data.sum()
    assert client.submit(lambda x: summed(x) + 1, data).result(PATIENCE) == data.sum() + 1
    assert (client.submit(cubed, data).result(PATIENCE) == data**3).all()
    inner = client.submit(np.ones, 5)
    assert client.gather(client.map(summed, [inner, data])) == [5, data.sum()]


@pytest.mark.parametrize("dtype", ["float32", "int32", "bool", "complex64", "bfloat16"])
@pytest.mark.parametrize("shape", [(), (3,), (0, 2), (100, 70)])
def test_arrays_of_jax_stay_arrays_of_jax(dtype: str, shape: tuple[int, ...]) -> None:
    from jax import numpy as jnp

    array = jnp.arange(int(np.prod(shape))).reshape(shape).astype(dtype)
    encoded = _serialize.encode({"deep": [array]})
    back = _serialize.decode(encoded.header, [memoryview(bytes(f)) for f in encoded.frames])["deep"][0]
    assert type(back) is type(array) and back.dtype == array.dtype and back.shape == shape
    assert np.array_equal(np.asarray(back), np.asarray(array))
    if array.nbytes >= _serialize.OUT_OF_BAND_BYTES:
        assert [f.nbytes for f in encoded.frames] == [array.nbytes]


def test_scalars_of_jax_keep_their_weak_type() -> None:
    from jax import numpy as jnp

    weak = jnp.asarray(2.0)
    encoded = _serialize.encode(weak)
    assert weak.weak_type and _serialize.decode(encoded.header, encoded.frames).weak_type


def test_tasks_take_and_return_arrays_of_jax(client: Client) -> None:
    import jax
    from jax import numpy as jnp

    @jax.jit
    def doubled(x: Any) -> Any:
        return x + x

    data = jnp.arange(100_000.0)
    made = client.submit(doubled, data)
    assert isinstance(made.result(PATIENCE), jax.Array) and bool((made.result() == 2 * data).all())
    assert client.submit(lambda x: isinstance(x, jax.Array), made).result(PATIENCE)
    assert bool((client.submit(doubled, made).result(PATIENCE) == 4 * data).all())
    scattered = client.scatter(data)
    assert float(client.submit(jnp.sum, scattered).result(PATIENCE)) == float(data.sum())
    assert client.submit(np.max, scattered).result(PATIENCE) == 99_999


def test_arrays_of_jax_are_read_by_processes_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from jax import numpy as jnp

    encoded = _serialize.encode(jnp.arange(5000.0))
    monkeypatch.setitem(sys.modules, "jax", None)
    back = _serialize.decode(encoded.header, encoded.frames)
    assert type(back) is np.ndarray and (back == np.arange(5000.0)).all()
