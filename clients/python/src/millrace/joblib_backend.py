"""The backend "millrace" of joblib: ``with joblib.parallel_config("millrace"):``.

scikit-learn and other packages that compute with joblib then run on the cluster. This module is
imported when the backend is first used.
"""

# joblib has no type annotations, and those that are inferred are those of its empty methods.
# pyright: reportIncompatibleMethodOverride=false

from __future__ import annotations

import contextlib
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from joblib._parallel_backends import AutoBatchingMixin  # pyright: ignore[reportMissingTypeStubs]
from joblib.parallel import ParallelBackendBase  # pyright: ignore[reportMissingTypeStubs]

from millrace import _check
from millrace._connection._slot import rejoin, secede
from millrace._tasks._task_options import checked
from millrace.client import Client, get_client
from millrace.future import Future, cancel, results_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from millrace._tasks._task_options import SubmitOptions

#: Arguments with at least this number of bytes are sent once for all calls of one Parallel.
SHARED_FROM = 64 << 10


class MillraceBackend(AutoBatchingMixin, ParallelBackendBase):  # pyright: ignore[reportUntypedBaseClass]
    """A cluster as a backend of joblib. Short calls travel in batches.

    Large arguments are put into the cluster once, and all calls of one Parallel share them there.
    They leave it when the program has no reference to them and the calls that use them have ended.
    Calls see them read-only. A Parallel inside of a call runs on the cluster, too; the call gives
    its slot back while it waits.

    Args:
        client: default: the open client of this process. A function is called when the client is
            first needed.
        scatter: objects to put into the cluster beforehand: the arguments of calls that are one of
            these objects are not sent again. Large arguments need no mention.
        wait_for_workers_timeout: longest wait for a first worker, in seconds, as a timedelta or as
            text; 0: do not wait.
        options: keyword options of `Client.submit` for every batch (priority, workers, ...).
    """

    supports_retrieve_callback = True
    default_n_jobs = -1
    # Shorter batches than joblib's own: a task costs a tenth of a millisecond here.
    MIN_IDEAL_BATCH_DURATION = 0.05
    MAX_IDEAL_BATCH_DURATION = 1.0

    def __init__(
        self,
        *,
        client: Client | Callable[[], Client] | None = None,
        scatter: Sequence[Any] = (),
        wait_for_workers_timeout: _check.Seconds = 10,
        nesting_level: int | None = None,
        inner_max_num_threads: int | None = None,
        **options: Unpack[SubmitOptions],
    ) -> None:
        super().__init__(nesting_level=nesting_level, inner_max_num_threads=inner_max_num_threads)
        if not isinstance(scatter, (list, tuple)):
            raise TypeError(f"scatter must be a list or a tuple, not {scatter!r}")
        try:
            self._found = get_client() if client is None else client
        except ValueError as e:
            raise ValueError(
                'the joblib backend "millrace" needs an open client: call millrace.Client(...) first, or give client='
            ) from e
        self._patience = _check.seconds(wait_for_workers_timeout, "wait_for_workers_timeout")
        self._options: dict[str, Any] = {"pure": False, **checked(options, 'the joblib backend "millrace"')}
        # Objects in the cluster, and their futures, by id(). The objects are held, so that no other
        # object gets their id.
        self._given = self._scattered(scatter)
        # The same of the arguments of this Parallel, with weak references to the objects.
        self._shared: dict[int, tuple[Callable[[], Any], Future[Any]]] = {}
        # The open batches that use an object without weak references, by its id().
        self._uses: Counter[int] = Counter()
        self._lock = threading.Lock()  # of _uses
        self._open: set[Future[Any]] = set()

    @property
    def _client(self) -> Client:
        if not isinstance(self._found, Client):
            self._found = self._found()
        return self._found

    # ---- what joblib calls -----------------------------------------------------------------------

    def effective_n_jobs(self, n_jobs: int | None) -> int:
        """Returns the number of slots of the cluster; `n_jobs` if that is positive and less."""
        if not self._client.session.workers():
            if not self._patience:
                return 0
            try:
                self._client.wait_for_workers(1, timeout=self._patience)
            except TimeoutError as e:
                raise TimeoutError(
                    f"the cluster had no worker after {self._patience:g} s: start one, or allow more time with "
                    f'joblib.parallel_config("millrace", wait_for_workers_timeout={max(10, 2 * self._patience):g})'
                ) from e
        slots = sum(worker.slots for worker in self._client.session.workers())
        return min(n_jobs, slots) if n_jobs is not None and n_jobs > 0 else slots

    def configure(self, n_jobs: int = 1, parallel: Any = None, **_: Any) -> int:
        """Takes the Parallel that this backend serves from now on."""
        self.parallel = parallel
        return self.effective_n_jobs(n_jobs)

    def submit(self, func: Any, callback: Callable[[Future[Any]], Any] | None = None) -> Future[Any]:
        """Runs a batch of calls, and calls back with its future."""
        # The batch travels without its calls, in which futures are looked for.
        used: set[int] = set()
        calls = [
            (call, tuple(self._share(a, used) for a in args), {k: self._share(v, used) for k, v in kwargs.items()})
            for call, args, kwargs in func.items
        ]
        shell = partial(type(func), backend_and_jobs=(func._backend, func._n_jobs))
        future: Future[Any] = self._client.submit(_run_batch, shell, calls, **self._options)
        self._open.add(future)

        def ended(done: Future[Any]) -> None:
            # joblib dispatches the next batch when this one has given up its arguments.
            self._open.discard(done)
            self._give_up(used)
            if callback is not None:
                callback(done)

        future.add_done_callback(ended)
        return future

    def retrieve_result_callback(self, out: Future[Any]) -> Any:
        """Returns the results of a batch."""
        return results_of([out])[0]

    def abort_everything(self, ensure_ready: bool = True) -> None:
        """Cancels the batches that have not ended."""
        cancel(list(self._open), force=False, reason="joblib ended this Parallel")

    def stop_call(self) -> None:
        """Gives up the objects that the calls of this Parallel shared."""
        self._shared.clear()
        with self._lock:
            self._uses.clear()

    def get_nested_backend(self) -> tuple[Any, int]:
        """Returns the backend of a Parallel inside of a call: the cluster of that call."""
        return MillraceBackend(client=self._found, nesting_level=(self.nesting_level or 0) + 1), -1

    @contextlib.contextmanager
    def retrieval_context(self) -> Iterator[None]:
        """Returns a context in which joblib waits for batches. Inside of a task, others run in its
        slot meanwhile."""
        try:
            secede()
        except ValueError:  # no task runs here
            yield
            return
        try:
            yield
        finally:
            rejoin()

    def __reduce__(self) -> Any:
        return _in_call, (self.nesting_level,)

    # ---- shared arguments ------------------------------------------------------------------------

    def _share(self, value: Any, used: set[int]) -> Any:
        """Returns a future for a large object, and else the object. Adds to `used` the id of an
        object that stays here until the batch has ended."""
        place = id(value)
        if place in self._given:
            return self._given[place][1]
        known = self._shared.get(place)
        if known is None or known[0]() is not value:
            if _size(value) < SHARED_FROM:
                return value
            _, future = self._scattered([value])[place]
            try:
                # The future goes with the object, and before another object gets its id.
                found: Callable[[], Any] = weakref.ref(value, lambda _: self._shared.pop(place, None))
            except TypeError:  # bytes and text have no weak references

                def found() -> Any:
                    return value

            known = self._shared[place] = found, future
        if not isinstance(known[0], weakref.ref) and place not in used:
            used.add(place)
            with self._lock:
                self._uses[place] += 1
        return known[1]

    def _give_up(self, used: set[int]) -> None:
        """Gives up the objects of a batch that has ended, unless others use them."""
        with self._lock:
            self._uses.subtract(used)
            for place in used:
                if self._uses[place] <= 0:
                    del self._uses[place]
                    self._shared.pop(place, None)

    def _scattered(self, values: Sequence[Any]) -> dict[int, tuple[Any, Future[Any]]]:
        futures = self._client.scatter(list(values)) if values else []
        return {id(value): (value, future) for value, future in zip(values, futures, strict=True)}


def _in_call(nesting_level: int | None) -> MillraceBackend:
    """Returns the backend inside of a call. Only a Parallel there opens a client."""
    return MillraceBackend(client=get_client, nesting_level=nesting_level)


def _size(value: Any) -> int:
    """Returns the number of bytes of an array, frame or sparse matrix, or of text; of other
    objects 0."""
    if isinstance(value, type):
        return 0
    nbytes = getattr(value, "nbytes", None)
    if isinstance(nbytes, int):
        return nbytes
    if callable(used := getattr(value, "memory_usage", None)):  # a frame of pandas
        return int(cast(Any, used()).sum())
    inner = getattr(getattr(value, "data", None), "nbytes", None)  # a matrix of scipy.sparse
    return inner if isinstance(inner, int) else sys.getsizeof(value) if isinstance(value, (bytes, str)) else 0


def _run_batch(batch: Callable[[list[Any]], Callable[[], list[Any]]], calls: list[Any]) -> list[Any]:
    return batch(calls)()
