"""Tests of the executor process: inputs of its runs in the slab and in the memory of other workers,
and inputs that outlive their run. The test plays the worker."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest
from conftest import PATIENCE, Gate, eventually
from executor_worker import LENT, Lender, Pid, Worker, arguments, kept, run, stored
from millrace._pb.millrace.executor.v1 import executor_pb2
from millrace._pb.millrace.v1 import value_pb2
from millrace._values import _serialize

cloudpickle.register_pickle_by_value(sys.modules[__name__])


def test_an_input_that_cannot_be_decoded_is_no_error_of_the_function(worker: Worker) -> None:
    good = _serialize.encode(5).header
    broken = value_pb2.Value(
        opaque_value=value_pb2.Opaque(encoding="pickle5", data=b"cno_such_module\nThing\n.", type_name="lost.Thing")
    ).SerializeToString()
    foreign = value_pb2.Value(opaque_value=value_pb2.Opaque(encoding="feather", data=b"x")).SerializeToString()
    worker.define(1, lambda *args, **kwargs: (args, kwargs))
    for given, wanted in (
        (arguments(Pid(0), Pid(1)), "argument 1 of k"),
        (arguments(Pid(0), deep=[{"x": (Pid(1),)}]), "argument deep of k"),
        (arguments({Pid(0)}, {"a": {Pid(1)}}), "argument 1 of k"),
    ):
        error = run(worker, 1, given, good, broken).error
        assert error.reason == "INPUT_UNREADABLE", error
        assert wanted in error.message and "no_such_module" in error.message and "lost.Thing" in error.message, error
        assert not error.HasField("exception")
    error = run(worker, 1, arguments(Pid(0)), foreign).error
    assert error.reason == "INPUT_UNREADABLE" and "feather" in error.message
    error = run(worker, 1, arguments(1, Pid(0)), b"\xff\xff\xff").error
    assert error.reason == "INPUT_UNREADABLE" and "argument 1 of k" in error.message
    assert run(worker, 1, b"\xff\xff").error.reason == "INVALID_ARGUMENT"
    typed = value_pb2.Arguments(positional=[{"int_value": 1}, {"list_value": {"values": [{"input": 0}]}}])
    error = run(worker, 1, typed.SerializeToString(), broken).error
    assert error.reason == "INPUT_UNREADABLE" and "argument 1 of k" in error.message
    assert worker.value(run(worker, 1, arguments(Pid(0)), good)) == ((5,), {})


def test_inputs_are_read_only_wherever_they_lie(worker: Worker) -> None:
    def flags(*args: Any) -> list[bool]:
        return [x.flags.writeable for a in args for x in (a if isinstance(a, tuple) else (a,))]

    inline = value_pb2.Value()
    inline.tensor_value.dtype = value_pb2.DTYPE_FLOAT64
    inline.tensor_value.shape.append(2)
    inline.tensor_value.inline_data = bytes(16)
    pair = _serialize.encode((np.arange(4), np.arange(3, dtype="i2")))
    assert not pair.frames
    worker.define(1, flags)
    assert (
        worker.value(run(worker, 1, arguments(Pid(0), Pid(1)), inline.SerializeToString(), pair.header)) == [False] * 3
    )


def test_inputs_are_read_only_views_of_the_slab_and_results_go_there(worker: Worker) -> None:
    data = np.arange(10_000.0)
    worker.slab[4096 : 4096 + data.nbytes] = data.tobytes()
    header = _serialize.encode(data).header
    given = executor_pb2.ExecutorInput(header=header, frames=[{"offset": 4096, "size_bytes": data.nbytes}])

    class Pid:
        pass

    def use(x: Any) -> Any:
        try:
            x[0] = 1.0
        except ValueError:
            return x * 2
        return "inputs can be written to"

    worker.define(1, use)
    worker.runs += 1
    file = __import__("io").BytesIO()
    _serialize.CallPickler(file, lambda o: 0 if isinstance(o, Pid) else None).dump(((Pid(),), {}))
    arguments = value_pb2.Arguments(call=value_pb2.Opaque(encoding="pickle5", data=file.getvalue()))
    worker.send(
        runs=[{"task_id": 1, "attempt": 1, "op_id": 1, "arguments": arguments.SerializeToString(), "inputs": [given]}]
    )
    finished = worker.finished()
    assert finished.frames and finished.frames[0].offset >= 1 << 20
    np.testing.assert_array_equal(worker.value(finished), data * 2)
    # A view of an input is not copied.
    worker.define(2, lambda x: x[5000:])
    worker.send(
        runs=[{"task_id": 2, "attempt": 1, "op_id": 2, "arguments": arguments.SerializeToString(), "inputs": [given]}]
    )
    finished = worker.finished()
    assert finished.frames[0].offset == 4096 + 40_000


def test_a_write_to_an_input_says_what_to_do(worker: Worker) -> None:
    def write(x: Any) -> None:
        x[0] = 1

    worker.define(1, write)
    error = run(worker, 1, arguments(Pid(0)), stored(worker, 4096, np.arange(10.0))).error
    if sys.version_info >= (3, 11):
        assert "read-only" in error.message and "Copy first" in error.message, error.message


def test_inputs_in_segments_are_read_only_views_and_results_of_them_are_copied(worker: Worker) -> None:
    given = Lender(worker).attach(1)

    def use(x: Any) -> Any:
        try:
            x.flags.writeable = True
        except ValueError:
            return not x.flags.owndata, float(x.sum())
        return "a segment can be written to"

    worker.define(1, use)
    assert worker.value(run(worker, 1, arguments(Pid()), given)) == (True, 20_000.0)
    worker.define(2, lambda x: x[5000:])
    finished = run(worker, 2, arguments(Pid()), given)
    assert finished.frames[0].segment_id == 0 and finished.frames[0].offset >= 1 << 20
    np.testing.assert_array_equal(worker.value(finished), np.full(5000, 2.0))


def test_a_mapping_lives_as_long_as_what_looks_at_it(own: Worker) -> None:
    lender = Lender(own)
    given = lender.attach(1)

    def keep(x: Any) -> None:
        sys.kept = x  # type: ignore[attr-defined]

    def look() -> float:
        return float(sys.kept.sum())  # type: ignore[attr-defined]

    def forget() -> None:
        del sys.kept  # type: ignore[attr-defined]

    for op, function in enumerate((keep, look, forget), 1):
        own.define(op, function)
    finished = run(own, 1, arguments(Pid()), given)
    # The own cannot keep borrowed memory, so the process has made a copy at the same addresses.
    assert own.value(finished) is None and not finished.retained_inputs
    lender.memory[:] = bytes(LENT)
    assert own.value(run(own, 2, arguments())) == 20_000.0
    # Later inputs in the same segment have its current contents.
    lender.memory[4096 : 4096 + 80_000] = np.full(10_000, 3.0).tobytes()
    given = executor_pb2.ExecutorInput(header=given.header, frames=given.frames)
    own.define(4, lambda x: float(x.sum()))
    assert own.value(run(own, 4, arguments(Pid()), given)) == 30_000.0
    own.send(detach_segments=[{"segment_id": 1}])
    assert own.value(run(own, 2, arguments())) == 20_000.0
    assert lender.mappings()
    own.value(run(own, 3, arguments()))
    eventually(lambda: lender.mappings() == 0)


def test_views_may_end_while_they_are_detached() -> None:
    # A crash would end this process, so another one does it.
    code = """
import os
from millrace.executor._link import Segment
fd = os.memfd_create("lent")
os.truncate(fd, 1 << 20)
segment = Segment(fd, 1 << 20)
segment.detach([(4096, 500_000)])  # no view of the old mapping is left
print(len(segment.readable))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE)
    assert (done.stdout, done.returncode) == ("1048576\n", 0), done.stderr


def test_segments_leave_nothing_behind(worker: Worker) -> None:
    lender = Lender(worker)
    worker.define(1, lambda x: float(x[-1]))

    def open_files() -> int:
        return len(list(Path(f"/proc/{worker.process.pid}/fd").iterdir()))

    def once(number: int) -> None:
        given = lender.attach(number)
        assert worker.value(run(worker, 1, arguments(Pid()), given)) == 2.0
        worker.send(detach_segments=[{"segment_id": number}])

    once(1)
    eventually(lambda: lender.mappings() == 0)
    before = open_files()
    for number in range(2, 202):
        once(number)
    eventually(lambda: lender.mappings() == 0)
    eventually(lambda: open_files() == before)


def keep_in_a_global(x: Any) -> None:
    sys.kept = x  # type: ignore[attr-defined]


def keep_in_an_exception(x: Any) -> None:
    try:
        raise ValueError(x)
    except ValueError as e:
        sys.kept = e  # type: ignore[attr-defined]


def keep_a_part(x: Any) -> None:
    sys.kept = memoryview(x[5:].reshape(-1, 5).T)  # type: ignore[attr-defined]


def keep_in_a_closure(x: Any) -> None:
    y = x[::2]
    sys.kept = lambda: y.sum()  # type: ignore[attr-defined]


@pytest.mark.parametrize("keep", [keep_in_a_global, keep_in_an_exception, keep_a_part, keep_in_a_closure])
def test_an_input_that_outlives_its_run_is_kept(own: Worker, keep: Callable[[Any], None]) -> None:
    given = stored(own, 4096, np.arange(10_000.0))
    other = stored(own, 400_000, np.arange(5.0))
    own.define(1, lambda x, y: keep(y))
    own.define(2, lambda: delattr(sys, "kept"))
    finished = run(own, 1, arguments(Pid(0), Pid(1)), other, given)
    # The frames of an exception refer to all arguments.
    assert kept(finished) == ([0, 1] if keep is keep_in_an_exception else [1])
    # The input is kept as long as it is referenced.
    again = run(own, 1, arguments(Pid(0), Pid(1)), given, other)
    assert 1 in kept(again)
    numbers = {k.request_id for k in finished.retained_inputs}
    while not numbers <= set(own.released):
        own.take()
    assert set(own.released) == numbers
    run(own, 2, arguments())
    numbers |= {k.request_id for k in again.retained_inputs}
    while not numbers <= set(own.released):
        own.take()
    assert len(own.released) == len(numbers)


def test_inputs_of_pickles_with_several_buffers_are_kept(own: Worker) -> None:
    given = stored(own, 4096, {1: np.arange(2000.0), 2: np.arange(3000.0), 3: "x"})
    assert len(given.frames) == 2
    own.define(1, lambda d: keep_in_a_global([d[1][:10], d[2][:10]]))

    def forget_one() -> None:
        del sys.kept[0]  # type: ignore[attr-defined]

    own.define(2, forget_one)
    finished = run(own, 1, arguments(Pid(0)), given)
    assert kept(finished) == [0]
    run(own, 2, arguments())
    assert not own.released  # the other half is still referenced
    run(own, 2, arguments())
    while not own.released:
        own.take()
    assert own.released == [finished.retained_inputs[0].request_id]


def result_is_a_view(x: Any) -> Any:
    return x[100:]


def result_is_pickled(x: Any) -> Any:
    return {1: x, "f": lambda: 3}


def arguments_in_a_cycle(x: Any) -> Any:
    cycle: list[Any] = [x]
    cycle.append(cycle)


def an_exception_with_its_frames(x: Any) -> Any:
    try:
        raise ValueError(x)
    except ValueError as e:
        f = e  # noqa: F841


@pytest.mark.parametrize(
    "use", [result_is_a_view, result_is_pickled, arguments_in_a_cycle, an_exception_with_its_frames]
)
def test_an_input_that_nothing_looks_at_is_not_kept(worker: Worker, use: Callable[[Any], Any]) -> None:
    given = stored(worker, 4096, np.arange(10_000.0))
    worker.define(1, use)
    for _ in range(3):
        assert kept(run(worker, 1, arguments(Pid(0)), given)) == []
    worker.define(2, lambda x: 1 // 0)
    finished = run(worker, 2, arguments(Pid(0)), given)
    assert finished.error.reason == "PYTHON_EXCEPTION" and not finished.retained_inputs


def test_a_failed_run_keeps_its_inputs_as_well(own: Worker) -> None:
    def fail(x: Any) -> None:
        keep_in_a_global(x)
        raise ValueError

    own.define(1, fail)
    finished = run(own, 1, arguments(Pid(0)), stored(own, 4096, np.arange(10_000.0)))
    assert finished.error.reason == "PYTHON_EXCEPTION" and [k.input_index for k in finished.retained_inputs] == [0]


def test_a_process_that_cannot_copy_lent_memory_ends(own: Worker) -> None:
    def keep(kept: Any, lent: Any) -> None:
        from millrace.executor import _link

        def fail(at: int, n: int) -> None:
            raise OSError(12, f"no memory for a copy of {n} bytes")

        _link._own_pages = fail
        sys.kept = kept, lent  # type: ignore[attr-defined]
        # A thread like this one may read the lent memory until the process ends.
        threading.Thread(target=threading.Event().wait).start()

    given = stored(own, 4096, np.arange(10_000.0))
    own.define(1, keep)
    own.define(2, lambda: None)
    finished = run(own, 1, arguments(Pid(0), Pid(1)), given, Lender(own).attach(1))
    assert finished.error.reason == "OUT_OF_MEMORY" and "no memory for a copy" in finished.error.message
    assert not finished.retained_inputs and not own.released
    with pytest.raises((EOFError, ConnectionError)):
        run(own, 2, arguments())
    assert own.process.wait(PATIENCE) == 70


def test_a_thread_that_ends_while_nothing_runs_gives_its_input_back(own: Worker, gate: Gate) -> None:
    def start(x: Any, path: str) -> None:
        def use(x: Any) -> None:
            Path(path + ".here").write_bytes(b"x")
            with Path(path + ".open").open("rb") as pipe:
                pipe.read(1)

        threading.Thread(target=use, args=(x,)).start()

    own.define(1, start)
    finished = run(own, 1, arguments(Pid(0), gate.path), stored(own, 4096, np.arange(10_000.0)))
    assert kept(finished) == [0]
    gate.wait()
    gate.open()
    while not own.released:
        own.take()
    assert own.released == [finished.retained_inputs[0].request_id]


def test_an_idle_process_looks_for_cycles(own: Worker) -> None:
    def old(x: Any) -> None:
        cycle: list[Any] = [x]
        cycle.append(cycle)
        sys.kept = cycle  # type: ignore[attr-defined]

    def drop() -> None:
        import gc

        gc.collect()  # moves the cycle to the oldest generation
        gc.collect()
        del sys.kept  # type: ignore[attr-defined]

    own.define(1, old)
    own.define(2, drop)
    assert kept(run(own, 1, arguments(Pid(0)), stored(own, 4096, np.arange(10_000.0)))) == [0]
    run(own, 2, arguments())
    while not own.released:
        own.take()
