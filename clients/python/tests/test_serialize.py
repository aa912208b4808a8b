"""Encoding and decoding are inverse, by each of the encodings."""

from __future__ import annotations

import collections
import copyreg
import dataclasses
import io
import pickle
import random
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from millrace._pb.millrace.v1 import value_pb2
from millrace._values import _serialize

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


# ---- order ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("keys", ["abc", "cba", "bac", "", "z", "éa", "\U0001f600\ue000"])
def test_dicts_keep_their_order_and_stay_maps(keys: str) -> None:
    made = {k: {"inner": n, "deep": [n]} for n, k in enumerate(keys)}
    value = value_pb2.Value.FromString(_serialize.encode(made).header)
    assert value.WhichOneof("kind") == "map_value" and set(value.map_value.fields) == set(keys)
    back = there_and_back(made)
    assert back == made and list(back) == list(keys)
    assert all(list(v) == ["inner", "deep"] for v in back.values())


def test_order_is_only_sent_if_it_is_not_the_sorted_one() -> None:
    assert not value_pb2.Value.FromString(_serialize.encode({"a": 1, "b": 2}).header).map_value.order
    assert value_pb2.Value.FromString(_serialize.encode({"b": 1, "a": 2}).header).map_value.order == ["b", "a"]


def test_maps_without_an_order_or_with_a_wrong_one_are_sorted() -> None:
    value = value_pb2.Value()
    for key in "cab":
        value.map_value.fields[key].int_value = ord(key)
    assert list(_serialize.from_value(value, (), ())) == ["a", "b", "c"]
    for wrong in (["c", "a"], ["c", "c", "a"], ["c", "a", "x"]):
        value.map_value.order[:] = wrong
        assert list(_serialize.from_value(value, (), ()).items()) == [("a", 97), ("b", 98), ("c", 99)]


def test_other_keys_and_dict_types_survive() -> None:
    for made in ({1: "a", None: 2, (1, "b"): 3}, {"z": 1, 2: 3}, {"\ud800": 1}, {True: 1, "b": 2}):
        back = there_and_back(made)
        assert list(back.items()) == list(made.items()) and [type(k) for k in back] == [type(k) for k in made]
    ordered = collections.OrderedDict(z=1, a=2)
    back = there_and_back(ordered)
    assert type(back) is collections.OrderedDict and list(back) == ["z", "a"]


# ---- memory --------------------------------------------------------------------------------------


def strided() -> np.ndarray[Any, Any]:
    return np.arange(300_000.0).reshape(300, 1000)[::2, ::3]


@pytest.mark.parametrize(
    "make",
    [
        strided,
        lambda: (strided() / 1e5).astype("f2")[::2],
        lambda: strided().astype("M8[s]")[:, ::-1],
        lambda: (1, strided()),
        lambda: {"x": strided().astype("S3")[::2], 5: 6},
        lambda: np.broadcast_to(np.arange(1000.0), (200, 1000)),
    ],
)
def test_strided_arrays_are_copied_when_they_are_written_and_not_before(make: Callable[[], Any]) -> None:
    obj = make()
    tracemalloc.start()
    try:
        encoded = _serialize.encode(obj, strided=True)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # Each pickle copies the table of reducers, which other modules enlarge.
    assert peak < 20_000 + sys.getsizeof(dict(copyreg.dispatch_table)), f"{peak} bytes were taken to encode it"
    room = memoryview(bytearray(encoded.nbytes))
    frames, at = [], 0
    for frame in encoded.frames:
        _serialize.write(frame, room[at : at + frame.nbytes])
        frames.append(room[at : at + frame.nbytes])
        at += frame.nbytes
    np.testing.assert_equal(_serialize.decode(encoded.header, frames), obj)
    np.testing.assert_equal(there_and_back(obj), obj)


def test_fortran_order_is_not_copied_at_all() -> None:
    for array in (np.asfortranarray(np.arange(60_000.0).reshape(300, 200)), np.ones((100, 40, 30), "f4").T):
        encoded = _serialize.encode(array)
        (frame,) = encoded.frames
        assert np.shares_memory(np.frombuffer(frame, np.uint8), array)
        back = there_and_back(array)
        assert back.flags.f_contiguous and back.shape == array.shape
        np.testing.assert_array_equal(back, array)
    pickled = {1: np.asfortranarray(np.arange(6000, dtype="i2").reshape(30, 200))}
    (frame,) = _serialize.encode(pickled).frames
    assert np.shares_memory(np.frombuffer(frame, np.uint8), pickled[1])
    np.testing.assert_equal(there_and_back(pickled), pickled)


def test_small_buffers_stay_in_the_pickle() -> None:
    made = (np.arange(3), [np.ones(512)] * 2, np.zeros((3, 4), "M8[s]"), pickle.PickleBuffer(b"x" * 100))
    encoded = _serialize.encode(made)
    # 512 doubles are 4 KiB, which is the smallest size that gets a frame; an array that occurs
    # twice has a single frame.
    assert [f.nbytes for f in encoded.frames] == [4096]
    back = there_and_back(made)
    for a, b in zip(back[:3], made[:3], strict=True):
        np.testing.assert_array_equal(a, b)
    assert bytes(back[3]) == b"x" * 100


def test_arrays_of_objects_and_subclasses_keep_their_own_pickling() -> None:
    objects = np.array([{1: 2}, "x", None], dtype=object)
    assert there_and_back((objects,))[0].tolist() == objects.tolist()
    masked = np.ma.masked_array(np.arange(4.0), [0, 1, 0, 1])
    assert there_and_back((masked,))[0].tolist() == [0, None, 2, None]
    record = np.zeros(600, [("a", "i4"), ("b", "f8")])
    record["b"] = np.arange(600)
    for made in (record, record[::2], (record,), (record[::3],)):
        np.testing.assert_equal(there_and_back(made), made)
    structured = there_and_back((record,))[0]
    assert structured.dtype == record.dtype


@pytest.mark.parametrize("n", [3, 5000])
@pytest.mark.parametrize("wrap", [lambda a: a, lambda a: (a,), lambda a: [a], lambda a: (a.astype("i2"),)])
@pytest.mark.parametrize("frozen", [False, True])
def test_clients_may_write_and_tasks_may_not(n: int, wrap: Callable[[Any], Any], frozen: bool) -> None:
    array = np.arange(float(n))
    array.flags.writeable = not frozen
    encoded = _serialize.encode(wrap(array))

    def take(made: Any) -> np.ndarray[Any, Any]:
        return made if isinstance(made, np.ndarray) else made[0]

    copies = [np.frombuffer(f, np.uint8).copy().data for f in encoded.frames]
    mine = take(_serialize.decode(encoded.header, copies))
    assert mine.flags.writeable
    mine[0] = 7
    views = [memoryview(bytes(f)) for f in encoded.frames]
    theirs = take(_serialize.decode(encoded.header, views, readonly=True))
    assert not theirs.flags.writeable
    # Small results are stored inside of their header.
    value = value_pb2.Value()
    value.tensor_value.dtype = value_pb2.DTYPE_FLOAT64
    value.tensor_value.shape.append(1)
    value.tensor_value.inline_data = bytes(8)
    assert _serialize.from_value(value, (), ()).flags.writeable
    assert not _serialize.decode(value.SerializeToString(), (), readonly=True).flags.writeable


# ---- headers are small and not deep --------------------------------------------------------------


def _nested(kind: type, depth: int) -> object:
    tree: object = 1
    for _ in range(depth):
        tree = [tree] if kind is list else {"k": tree}
    return tree


@pytest.mark.parametrize("depth", [1, 29, 30, 31, 40, 60, 100, 400])
@pytest.mark.parametrize("kind", [list, dict])
def test_nested_collections_of_any_depth(kind: type, depth: int) -> None:
    tree = _nested(kind, depth)
    assert there_and_back(tree) == tree


def test_a_list_that_holds_itself() -> None:
    tree: list[object] = []
    tree.append(tree)
    again = there_and_back(tree)
    assert again[0] is again


@pytest.mark.parametrize(
    "data",
    [
        ["x" * 1000] * 100,
        ["\U0001f600" * 65_000],
        "\U0001f600" * 20_000,
        [b"x" * 65_000] * 200,
        {"k" * 60_000: 1, "l" * 60_000: 2},
        {f"{n}": "表" * 5000 for n in range(20)},
        ["é" * 32_768, "é"],
        {"z" * 30_000: 1, "a" * 30_000: 2},
    ],
)
def test_large_headers_become_frames(data: object) -> None:
    encoded = _serialize.encode(data)
    assert len(encoded.header) < 80 << 10
    assert _serialize.decode(encoded.header, encoded.frames) == data


def test_no_header_is_large() -> None:
    """A property of the encoder for any mix of leaves."""
    dice = random.Random(5)

    def make(depth: int) -> object:
        kind = dice.randrange(8 if depth else 5)
        if kind == 0:
            return dice.choice("aé表\U0001f600") * dice.randrange(40_000)
        if kind == 1:
            return bytes(dice.randrange(70_000))
        if kind == 2:
            return dice.randrange(1 << 60)
        if kind == 3:
            return 1.5
        if kind == 4:
            return None
        if kind == 5:
            return {f"{dice.randrange(1 << 30)}" * dice.randrange(1, 2000): make(depth - 1) for _ in range(3)}
        return [make(depth - 1) for _ in range(dice.randrange(6))]

    for _ in range(300):
        tree = make(3)
        encoded = _serialize.encode(tree)
        assert len(encoded.header) < 80 << 10
        assert _serialize.decode(encoded.header, encoded.frames) == tree


def test_arrays_beside_functions_are_frames_as_well() -> None:
    array = np.arange(40_000.0).reshape(200, 200)[:, ::2]
    encoded = _serialize.encode((lambda: 1, array), strided=True)
    assert any(f is array or getattr(f, "base", None) is array.base for f in encoded.frames)
    back = there_and_back((lambda: 1, array))
    np.testing.assert_array_equal(back[1], array)


def _tensor(shape: list[int], strides: list[int] | None = None, offset: int = 0, **where: Any) -> bytes:
    tensor = value_pb2.Tensor(dtype=value_pb2.DTYPE_FLOAT64, shape=shape, strides=strides, offset_bytes=offset)
    for name, what in (where or {"frame": 0}).items():
        if what is not None:
            setattr(tensor, name, what)
    return value_pb2.Value(tensor_value=tensor).SerializeToString()


#: Headers of a frame of 64 bytes. NumPy checks them with 64 bits, which wrap.
BEYOND: dict[str, bytes] = {
    "too long": _tensor([9]),
    "offset": _tensor([1], None, 57),
    "offset that wraps": _tensor([2], None, 2**63 - 1),
    "offset of 2^64": _tensor([2], None, 2**64 - 1),
    "shape that wraps": _tensor([2**61]),
    "stride that wraps": _tensor([2**32 + 1], [2**32]),
    "stride that wraps and an offset": _tensor([2**32 + 1], [2**32], 8),
    "stride of 2": _tensor([2], [2**63 - 1]),
    "smallest stride": _tensor([3], [-(2**63)]),
    "before the frame": _tensor([2], [-8], 7),
    "negative axis": _tensor([-1]),
    "negative axis and stride": _tensor([-1], [8]),
    "fewer strides": _tensor([2, 2], [8]),
    "more strides": _tensor([2], [8, 8]),
    "another frame": _tensor([1], frame=7),
    "no place": _tensor([4], frame=None),
    "no place of a scalar": _tensor([], frame=None),
    "too little inline": _tensor([2], inline_data=bytes(15)),
    "65 axes": _tensor([1] * 65),
}


@pytest.mark.parametrize("header", BEYOND.values(), ids=BEYOND)
def test_headers_that_reach_beyond_their_frames_are_refused(header: bytes) -> None:
    for readonly in (False, True):
        with pytest.raises((ValueError, IndexError)):
            _serialize.decode(header, [memoryview(bytearray(64))], readonly=readonly)


@pytest.mark.parametrize("strides", [None, [8], [-8]])
def test_arrays_without_elements_need_no_place(strides: list[int] | None) -> None:
    for header in (_tensor([0], strides, 2**64 - 1), _tensor([0], strides, frame=None), _tensor([0], strides)):
        assert _serialize.decode(header, [memoryview(b"")]).shape == (0,)


def test_any_header_is_an_array_or_an_error() -> None:
    choose = random.Random(1)
    edges = [0, 1, 2, 3, 8, 63, 2**31, 2**32, 2**32 + 1, 2**61, 2**62, 2**63 - 1]
    signed = edges + [-n for n in edges] + [-(2**63)]
    read = 0
    for _ in range(20_000):
        axes = choose.randrange(4)
        shape = choose.choices(edges[: choose.randrange(1, len(edges))], k=axes)
        strides = choose.choices(signed, k=axes) if choose.random() < 0.7 else None
        header = _tensor(shape, strides, choose.choice([0, 0, 8, 56, 2**63 - 1, 2**64 - 1]))
        frame = np.arange(8.0)
        try:
            array = _serialize.decode(header, [frame.data.cast("B")])
        except (ValueError, MemoryError):
            continue
        read += 1
        if array.size:  # its corners are in the frame
            for corner in ((0,) * axes, (-1,) * axes, *(tuple(-(a == b) for b in range(axes)) for a in range(axes))):
                assert bytes(array[corner]) in bytes(frame)
    assert read > 100


@pytest.mark.parametrize("function", [random.random, random.gauss, np.random.random, np.random.normal])
def test_random_numbers_are_drawn_by_the_generator_of_each_process(function: Any) -> None:
    data, language = _serialize.dump_function(function)
    assert pickle.loads(data) is function and language == ""
    closure = pickle.loads(_serialize.dump_function(lambda: function)[0])
    assert closure() is function
    own = random.Random(5)
    assert pickle.loads(_serialize.dump_function(own.random)[0])() == own.random()
    assert pickle.loads(_serialize.dump_function(len)[0]) is len


_IN_ANOTHER_PROCESS = "import pickle, sys; sys.path[:0] = %r; from millrace._values import _serialize as s; %s"


def through_another_process(obj: Any) -> Any:
    """Sends an object by value to a process that knows nothing of its class, and back."""
    code = (
        "e = s.encode(s.decode(*pickle.load(sys.stdin.buffer))); "
        "pickle.dump((e.header, [bytes(f) for f in e.frames]), sys.stdout.buffer)"
    )
    encoded = _serialize.encode(obj)
    sent = pickle.dumps((encoded.header, [bytes(f) for f in encoded.frames]))
    command = [sys.executable, "-c", _IN_ANOTHER_PROCESS % (sys.path, code)]
    header, frames = pickle.loads(subprocess.run(command, input=sent, stdout=subprocess.PIPE, check=True).stdout)
    return _serialize.decode(header, [memoryview(f) for f in frames])


def test_objects_with_slots_come_back_from_a_process_without_their_class() -> None:
    class Base:
        __slots__ = ("__hidden", "array")

        def __init__(self, hidden: int) -> None:
            self.__hidden, self.array = hidden, np.arange(3)

        @property
        def hidden(self) -> int:
            return self.__hidden

    class Open(Base):
        """Its objects have a dict, too."""

    class One(Base):
        __slots__ = "text"

    class Weak:
        __slots__ = ("__weakref__", "x")

    @dataclasses.dataclass(slots=True)
    class Data:
        x: int
        y: list[int] = dataclasses.field(default_factory=list)

    given = [Base(1), Open(2), One(3), Weak(), Data(4, [5])]
    given[1].more, given[2].text, given[3].x = "more", "t", 6  # pyright: ignore[reportAttributeAccessIssue]
    back = through_another_process(given)
    assert [type(o) for o in back] == [type(o) for o in given]
    assert [o.hidden for o in back[:3]] == [1, 2, 3] and back[2].array.tolist() == [0, 1, 2]
    assert (back[1].more, back[2].text, back[3].x) == ("more", "t", 6) and back[4] == Data(4, [5])
    with pytest.raises(AttributeError):
        back[0].other = 1


@pytest.mark.parametrize("gaps", [np.s_[:2, :2], np.s_[::-1], np.s_[:, 1], np.s_[:]], ids=repr)
@pytest.mark.parametrize("dtype", [">f8", ">M8[s]", "<i4", [("a", ">i4"), ("b", "f8")]], ids=repr)
def test_arguments_keep_the_order_of_their_bytes(dtype: Any, gaps: Any) -> None:
    array = np.arange(12).reshape(3, 4).astype(dtype)[gaps]
    file = io.BytesIO()
    _serialize.CallPickler(file, lambda _: None).dump(([array], {}))
    for back in (pickle.loads(file.getvalue())[0][0], there_and_back((array,))[0]):
        assert back.dtype == array.dtype and (back == array).all()


@pytest.mark.parametrize("gaps", [np.s_[:2, :2], np.s_[::-1], np.s_[:]], ids=repr)
@pytest.mark.parametrize("dtype", [">i2", ">f8", ">M8[s]", ">U3", "<i4"])
def test_masked_arrays_keep_their_values(dtype: str, gaps: Any) -> None:
    """NumPy pickles them in the order of the machine."""
    array = np.ma.masked_array(np.arange(12).reshape(3, 4).astype(dtype), np.arange(12).reshape(3, 4) % 3 == 0)[gaps]
    file = io.BytesIO()
    _serialize.CallPickler(file, lambda _: None).dump(([array], {}))
    for back in (pickle.loads(file.getvalue())[0][0], there_and_back((array,))[0]):
        assert type(back) is np.ma.MaskedArray and back.dtype == array.dtype.newbyteorder("=")
        assert back.data.tolist() == array.data.tolist() and back.mask.tolist() == array.mask.tolist()
        assert str(back.fill_value) == str(array.fill_value)
