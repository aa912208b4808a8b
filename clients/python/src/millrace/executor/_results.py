"""Stores the results of runs in the worker's memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from millrace._pb.millrace.executor.v1 import executor_pb2
from millrace._values import _serialize
from millrace._values._arrays import DeviceFrame
from millrace._values._device import CudaError
from millrace.executor._device_memory import DeviceMemory
from millrace.executor._failure import NoRoom, Refused, TaskStopped, qualified
from millrace.executor._inputs import Inputs
from millrace.executor._link import Slab
from millrace.executor._memory import Lease
from millrace.executor._outbox import LARGEST, Outbox
from millrace.executor._stopping import Stopping


class Results:
    """Encodes results, and writes their frames to memory that the worker allocates. Frames that lie
    there already, in an input or in a lease of this process, stay where they are.

    Args:
        out: requests to the worker.
        inputs: the inputs of the run.
        slab: the slab in host memory; None if it lies on a GPU.
        inline_bytes: frames up to this total are sent over the link.
        stopping: stops of the run.
        meanwhile: called while a run waits for memory, as in `Outbox.ask`.
    """

    def __init__(
        self,
        out: Outbox,
        inputs: Inputs,
        slab: Slab | None,
        inline_bytes: int,
        stopping: Stopping,
        meanwhile: Callable[[], None],
    ) -> None:
        self._out, self._inputs, self._slab = out, inputs, slab
        self._inline_bytes, self._stopping, self._meanwhile = inline_bytes, stopping, meanwhile
        #: The slab on a GPU; None if it lies in host memory, or is not opened yet.
        self.memory: DeviceMemory | None = None
        #: Approximate size of the last result in bytes, without the data in the slab.
        self.size = 0

    def store(self, run: executor_pb2.ExecutorRun, result: list[Any], finished: executor_pb2.ExecutorFinished) -> None:
        """Stores the value in `result`. May empty the list, to give up the last reference to the
        value."""
        in_leases = self._write(run, result[0], finished)
        if not in_leases:
            return
        # These frames lie in leases of this process. They can stay there without a copy if nothing
        # else in the process refers to that memory any more.
        memory = self.memory
        assert memory is not None
        if memory.torch is not None:
            memory.torch.end()
        memory.arena.mark_for_result({lease.offset: lease for _, lease in in_leases}.values())
        result.clear()
        if memory.torch is not None:
            with self._stopping.deferred():  # a stop would leave its bookkeeping inconsistent
                memory.torch.withdraw_results()
        held = {lease.offset for _, lease in in_leases if not memory.unused(lease)}
        frames = [finished.frames[n] for n, lease in in_leases if lease.offset in held]
        if not frames:
            return
        device = memory.device
        for frame, place in zip(frames, self._allocate(run, [f.size_bytes for f in frames]), strict=True):
            device.driver.copy(device.base + place.offset, device.base + frame.offset, frame.size_bytes)
            frame.offset = place.offset
        device.wait()
        memory.arena.unmark_all()

    def _write(
        self, run: executor_pb2.ExecutorRun, result: Any, finished: executor_pb2.ExecutorFinished
    ) -> list[tuple[int, Lease]]:
        """Encodes a result and writes its frames to memory that is allocated for them.

        Returns the frames that lie in leases already and could stay there, as pairs of frame number
        and lease. `finished` has the location of every frame.
        """
        device = None if self.memory is None else self.memory.device
        try:
            encoded = _serialize.encode(result, strided=True, device=device)
        except TaskStopped:
            raise
        except CudaError:
            raise
        except Exception as e:
            raise Refused(
                "RESULT_NOT_SERIALISABLE",
                f"the result of {run.key}, a {qualified(type(result))}, cannot be pickled: "
                f"{type(e).__name__}: {e}. Return its data instead",
            ) from e
        frames = encoded.frames
        # The link carries the header, and the location of each frame.
        self.size = len(encoded.header) + 32 * len(frames)
        if self.size > LARGEST:
            raise Refused(
                "RESULT_TOO_LARGE",
                f"the result of {run.key} has {self.size:,} bytes besides its arrays and buffers, in {len(frames):,} of "
                f"these, and {LARGEST:,} are allowed. Return fewer and larger arrays, or one bytes object",
            )
        finished.header = encoded.header
        if not frames:
            return []
        on_gpu = [f for f in frames if isinstance(f, DeviceFrame)]
        if encoded.nbytes <= self._inline_bytes and not on_gpu:
            finished.inline_frames.extend(f.tobytes() for f in frames)
            return []
        if on_gpu:
            # Encoding may have started work on the GPU, and the stream that copies the frames waits
            # for no other stream.
            assert device is not None
            device.wait(*{f.view.stream for f in on_gpu})
        # Frames that lie in an input need no memory of their own: the result shares the input's.
        shared = [self._shared(f, run) for f in frames]
        wanted = [f for f, at in zip(frames, shared, strict=True) if at is None]
        places = iter(self._allocate(run, [f.nbytes for f in wanted]) if wanted else ())
        in_leases: list[tuple[int, Lease]] = []
        for n, (frame, known) in enumerate(zip(frames, shared, strict=True)):
            if known is None:
                at = next(places).offset
                if device is not None:
                    device.write(frame, at)
                elif frame.nbytes:
                    assert self._slab is not None
                    _serialize.write(frame, self._slab.writable[at : at + frame.nbytes])
            else:
                at, lease = known
                if lease is not None:
                    in_leases.append((n, lease))
            finished.frames.add(offset=at, size_bytes=frame.nbytes)
        if device is not None and wanted:
            device.wait()
        return in_leases

    def _shared(self, frame: Any, run: executor_pb2.ExecutorRun) -> tuple[int, Lease | None] | None:
        """Returns where a frame lies in the slab, if it lies in an input or in a lease there.

        If it lies in a lease, the lease is returned with it: the frame may stay there only if
        nothing else refers to the lease. Inputs in another worker's segment are only lent to this
        worker: frames in them are not shared.
        """
        if not frame.nbytes:
            return None
        if self.memory is not None:
            at = self.memory.device.offset(frame)
        elif any(i.frames for i in run.inputs):
            at = self._inputs.at(frame)
        else:
            return None
        if at is None:
            return None
        for i in run.inputs:
            for f in i.frames:
                if not f.segment_id and f.offset <= at and at + frame.nbytes <= f.offset + f.size_bytes:
                    return at, None
        lease = None if self.memory is None else self.memory.holds(at, frame.nbytes)
        return None if lease is None else (at, lease)

    def _allocate(self, run: executor_pb2.ExecutorRun, sizes: list[int]) -> Any:
        answer = self._out.ask(sizes, run, meanwhile=self._meanwhile)
        if answer.HasField("error"):
            raise NoRoom(answer.error)
        return answer.frames
