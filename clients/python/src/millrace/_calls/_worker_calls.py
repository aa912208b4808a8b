"""Functions that workers call beside their tasks."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import grpc

from millrace import _check, errors
from millrace._connection._steps import Step, Steps
from millrace._pb.millrace.v1 import executor_service_pb2, task_pb2, worker_pb2
from millrace._session._session import Session
from millrace._tasks._arguments import name_of
from millrace._tasks._task_maker import TaskMaker
from millrace._values import _serialize
from millrace.ops import ExecutorOp, NativeOp

#: Most bytes of a function and its arguments together, so that they fit into one message.
_MOST = 18 << 20
#: Longest time of a restart of processes, in seconds.
_RESTART_SECONDS = 60.0
#: Longest time of a call, in seconds: a year, because gRPC knows no deadlines at infinity.
_LONGEST = 31_536_000.0


def request(
    maker: TaskMaker, function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> executor_service_pb2.RunFunctionRequest:
    """Returns the request to call a function.

    Raises:
        SerialisationError: the function or an argument cannot be pickled.
        TypeError: it is a native op.
        InvalidRequestError: function and arguments are too large.
    """
    if isinstance(function, NativeOp):
        raise TypeError(f"{function!r} is an operation of the worker itself: submit it as a task")
    (kind, name, digest), pickled = maker.op(function)
    made = executor_service_pb2.RunFunctionRequest(name=name)
    if kind == task_pb2.OP_KIND_PYTHON_PICKLE:
        assert pickled is not None
        made.function.hash, made.function.payload, made.function.language = digest, *pickled
    if isinstance(function, ExecutorOp):
        for place, obj in [*enumerate(args), *kwargs.items()]:
            value = made.arguments.named[place] if isinstance(place, str) else made.arguments.positional.add()
            _serialize.fill_argument(value, obj, lambda _: None)
    elif args or kwargs:
        file = io.BytesIO()
        try:
            _serialize.CallPickler(file, lambda _: None).dump((args, dict(kwargs)))
        except Exception as e:
            raise errors.SerialisationError(
                f"the arguments of {name_of(function)} cannot be pickled: {type(e).__name__}: {e}"
            ) from e
        made.arguments.call.encoding, made.arguments.call.data = "pickle5", file.getvalue()
    if made.ByteSize() > _MOST:
        error = errors.InvalidRequestError(
            f"{name_of(function)} takes {_check.above(made.ByteSize(), _MOST, ' with its arguments')}: "
            "let it read what is large from a file, or submit a task with scattered data"
        )
        error.reason = "TOO_LARGE"
        raise error
    return made


def call(
    session: Session, workers: Sequence[worker_pb2.Worker], made: executor_service_pb2.RunFunctionRequest
) -> Steps[list[executor_service_pb2.RunFunctionResponse | errors.MillraceError]]:
    """Makes a call on all of these workers at the same time. Returns the answer or the error of
    each, in their order."""
    return (
        yield from _asked(session, workers, "RunFunction", made, executor_service_pb2.RunFunctionResponse, made.name)
    )


def profiles(
    session: Session, workers: Sequence[worker_pb2.Worker], asked: executor_service_pb2.GetProfileRequest
) -> Steps[list[executor_service_pb2.GetProfileResponse]]:
    """Returns the profiles of these workers, in their order."""
    answers = yield from _asked(
        session, workers, "GetProfile", asked, executor_service_pb2.GetProfileResponse, "a profile"
    )
    for answer in answers:
        if isinstance(answer, Exception):
            raise answer
    return answers


def _asked(
    session: Session, workers: Sequence[worker_pb2.Worker], method: str, asked: Any, answer: Any, name: str
) -> Steps[list[Any]]:
    """Makes a call of ExecutorService on all of these workers at the same time. Returns the answer
    or the error of each, in their order."""
    pending: list[Any] = []
    try:
        for worker in workers:
            make = session.worker_channel(worker.data_address).unary_unary(
                f"/millrace.v1.ExecutorService/{method}",
                request_serializer=type(asked).SerializeToString,
                response_deserializer=answer.FromString,
            )
            pending.append(make.future(asked, metadata=session.connection.metadata, timeout=_LONGEST))
        yield _Answered(pending)
    finally:
        for one in pending:
            one.cancel()  # no effect on those that have ended
    return [_answer(worker, one, name) for worker, one in zip(workers, pending, strict=True)]


def restart(session: Session, workers: Sequence[worker_pb2.Worker], timeout: float | None = None) -> Steps[None]:
    """Ends the processes of functions on these workers, and waits until they are gone, at most
    `timeout` seconds (None: a minute)."""
    limit = _RESTART_SECONDS if timeout is None else timeout
    pending: list[Any] = []
    made = executor_service_pb2.RestartExecutorsRequest()
    for worker in workers:
        make = session.worker_channel(worker.data_address).unary_unary(
            "/millrace.v1.ExecutorService/RestartExecutors",
            request_serializer=executor_service_pb2.RestartExecutorsRequest.SerializeToString,
            response_deserializer=executor_service_pb2.RestartExecutorsResponse.FromString,
        )
        pending.append(make.future(made, metadata=session.connection.metadata, timeout=limit))
    yield _Answered(pending)
    for worker, one in zip(workers, pending, strict=True):
        answer = _answer(worker, one, "a restart")
        if isinstance(answer, errors.SchedulerLostError) and one.code() == grpc.StatusCode.DEADLINE_EXCEEDED:
            raise TimeoutError(f"the processes of worker {worker.name} did not end within {limit:g} s")
        if isinstance(answer, Exception):
            raise answer


def _answer(worker: worker_pb2.Worker, call: Any, name: str) -> Any:
    try:
        return call.result()
    except grpc.RpcError as e:
        return errors.from_rpc(e, f"running {name} on {worker.name}")


def value(result: executor_service_pb2.FunctionResult) -> Any:
    """Returns the result of one process, or raises its error."""
    if result.HasField("error"):
        what = f"a function that process {result.pid} of worker {result.error.worker} was asked to run"
        raise errors.from_task(result.error, "", cancelled=False, what=what)
    return _serialize.decode(result.value.SerializeToString(), [bytearray(f) for f in result.frames])


class _Answered(Step):
    """The answers to several calls."""

    def __init__(self, calls: Sequence[Any]) -> None:
        super().__init__(None)
        self._calls, self._left = calls, len(calls)
        self._lock = threading.Lock()

    def _watch(self, call: Callable[[], None]) -> None:
        if not self._calls:
            call()
            return

        def ended(_: Any) -> None:
            with self._lock:
                self._left -= 1
                last = not self._left
            if last:
                call()

        for one in self._calls:
            one.add_done_callback(ended)

    def _forget(self, call: Callable[[], None]) -> None:
        pass
