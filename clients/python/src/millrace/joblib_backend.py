"""The backend "millrace" of joblib: ``with joblib.parallel_config("millrace"):``.

scikit-learn and other packages that compute with joblib then run on the cluster. This module is
imported when the backend is first used.
"""

# joblib has no type annotations, and those that are inferred are those of its empty methods.
# pyright: reportIncompatibleMethodOverride=false

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from joblib._parallel_backends import AutoBatchingMixin, SequentialBackend  # pyright: ignore[reportMissingTypeStubs]
from joblib.parallel import ParallelBackendBase  # pyright: ignore[reportMissingTypeStubs]

from millrace import _check
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
    Calls see them read-only. Inside of a task, a nested Parallel runs in that task's slot.

    Args:
        client: default: the open client of this process.
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
        client: Client | None = None,
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
            self._client = get_client() if client is None else client
        except ValueError as e:
            raise ValueError(
                'the joblib backend "millrace" needs an open client: call millrace.Client(...) first, or give client='
            ) from e
        self._patience = _check.seconds(wait_for_workers_timeout, "wait_for_workers_timeout")
        self._options: dict[str, Any] = {"pure": False, **checked(options, 'the joblib backend "millrace"')}
        # Objects in the cluster, and their futures, by id(). The objects are held, so that no other
        # object gets their id.
        self._given = self._scattered(scatter)
        self._shared: dict[int, tuple[Any, Future[Any]]] = {}
        self._open: set[Future[Any]] = set()

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
        calls = [
            (call, tuple(map(self._share, args)), {k: self._share(v) for k, v in kwargs.items()})
            for call, args, kwargs in func.items
        ]
        shell = partial(type(func), backend_and_jobs=(func._backend, func._n_jobs))
        future: Future[Any] = self._client.submit(_run_batch, shell, calls, **self._options)
        self._open.add(future)
        future.add_done_callback(self._open.discard)
        if callback is not None:
            future.add_done_callback(callback)
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

    def get_nested_backend(self) -> tuple[Any, None]:
        """Returns the backend of a Parallel inside of a call: that call's own slot."""
        return SequentialBackend(nesting_level=(self.nesting_level or 0) + 1), None

    def __reduce__(self) -> Any:
        return MillraceBackend, ()

    # ---- shared arguments ------------------------------------------------------------------------

    def _share(self, value: Any) -> Any:
        """Returns a future for a large object, and else the object."""
        known = self._given.get(id(value)) or self._shared.get(id(value))
        if known is None and _size(value) >= SHARED_FROM:
            self._shared.update(self._scattered([value]))
            known = self._shared[id(value)]
        return value if known is None else known[1]

    def _scattered(self, values: Sequence[Any]) -> dict[int, tuple[Any, Future[Any]]]:
        futures = self._client.scatter(list(values)) if values else []
        return {id(value): (value, future) for value, future in zip(values, futures, strict=True)}


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
