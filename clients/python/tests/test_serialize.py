"""What goes in comes out: the serialisation ladder."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from millrace import _serialize

PLAIN: list[Any] = [None, True, False, 0, -5, 2**63 - 1, -(2**63), 2.5, float("inf"), "", "häß", b"", b"\0x", 1 - 2j]
TREES: list[Any] = [[], [1, "a", [None]], {}, {"k": [1.5, {"l": b"x"}]}]
PICKLED: list[Any] = [(1, 2), {1: 2}, 2**70, {3, 4}, "x" * 100_000, b"y" * 100_000, list(range(1000)), "\ud800"]


def there_and_back(obj: Any) -> Any:
    encoded = _serialize.encode(obj)
    return _serialize.decode(encoded.header, [memoryview(bytes(f)) for f in encoded.frames])


@pytest.mark.parametrize("obj", PLAIN + TREES + PICKLED, ids=lambda o: repr(o)[:20])
def test_values_keep_type_and_content(obj: Any) -> None:
    back = there_and_back(obj)
    assert type(back) is type(obj)
    assert back == obj


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int32", "int64", "float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize("shape", [(0,), (5,), (2, 3), (2, 0, 3), (1, 1, 1)])
def test_arrays_are_one_frame_and_no_pickle(dtype: str, shape: tuple[int, ...]) -> None:
    array = np.arange(int(np.prod(shape))).reshape(shape).astype(dtype)
    encoded = _serialize.encode(array)
    assert len(encoded.frames) == (1 if array.size else 0)
    assert b"pickle" not in encoded.header
    back = there_and_back(array)
    assert back.dtype == array.dtype and back.shape == shape
    np.testing.assert_array_equal(back, array)


def test_strided_arrays_are_made_contiguous() -> None:
    array = np.arange(24.0).reshape(4, 6)[::-2, 1::2]
    np.testing.assert_array_equal(there_and_back(array), array)
    np.testing.assert_array_equal(
        there_and_back(np.asfortranarray(np.arange(6).reshape(2, 3))), np.arange(6).reshape(2, 3)
    )


def test_other_arrays_travel_out_of_band() -> None:
    array = np.arange(100_000, dtype=np.int16)
    encoded = _serialize.encode(array)
    assert encoded.nbytes >= array.nbytes and b"pickle5" in encoded.header
    np.testing.assert_array_equal(there_and_back(array), array)


def test_buffers_are_not_collected_twice_when_cloudpickle_takes_over() -> None:
    class Local:
        def __init__(self) -> None:
            self.array = np.arange(50_000.0)

    encoded = _serialize.encode(Local())
    assert encoded.nbytes < 2 * 400_000
    np.testing.assert_array_equal(there_and_back(Local()).array, np.arange(50_000.0))


def test_zero_dimensional_arrays_and_scalars_keep_their_type() -> None:
    assert type(there_and_back(np.array(3.0))) is np.ndarray
    assert type(there_and_back(np.float32(3.0))) is np.float32


def test_decoded_arrays_share_the_frame() -> None:
    encoded = _serialize.encode(np.zeros(1000))
    frame = bytearray(bytes(encoded.frames[0]))
    array = _serialize.decode(encoded.header, [memoryview(frame)])
    frame[:8] = np.float64(7.0).tobytes()
    assert array[0] == 7.0
    readonly = _serialize.decode(encoded.header, [memoryview(frame).toreadonly()])
    assert not readonly.flags.writeable
