"""The connections of a client to the memory of workers on its host."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from queue import Empty, SimpleQueue

from millrace._transfer import _share

#: Seconds until a worker that does not share its memory is asked again.
_ASK_AGAIN_SECONDS = 60.0

_log = logging.getLogger("millrace")


class Shares:
    """Connections by worker and access, made when they are first needed; and the thread that
    releases leases. Without `enabled`, there are none."""

    def __init__(self, token: str, *, enabled: bool) -> None:
        self._token, self._enabled = token, enabled
        # Guards the attributes below. Notified when an attempt to connect has ended. NB: it is not
        # held during the attempt, which takes up to 10 seconds.
        self._changed = threading.Condition(threading.Lock())
        # Connections, by address and access (True: writing).
        self._shares: dict[tuple[str, bool], _share.Share] = {}
        # Connections that a thread is making.
        self._opening: set[tuple[str, bool]] = set()
        # Workers without shared memory: the reason, and the monotonic time when to ask again.
        self._refused: dict[str, tuple[str, float]] = {}
        self._closed = False
        self._releaser: threading.Thread | None = None
        # Leases to release; None ends the thread. NB: SimpleQueue.put is reentrant: the garbage
        # collector may call it at any instruction.
        self._ended: SimpleQueue[tuple[_share.Share, int] | None] = SimpleQueue()

    def get(self, address: str, *, write: bool) -> _share.Share | None:
        """Returns the connection to the memory of a worker on this host. Makes it if there is none;
        a thread that needs a connection that another thread is making waits for that one. Returns
        None if the worker must be reached by DataService."""
        if not self._enabled:
            return None
        key = (address, write)
        with self._changed:
            while True:
                share = self._shares.get(key)
                if share is not None and not share.broken:
                    return share
                _, again = self._refused.get(address, ("", 0.0))
                if self._closed or time.monotonic() < again:
                    return None
                if key not in self._opening:
                    break
                self._changed.wait()
            self._opening.add(key)
        made: _share.Share | None = None
        refusal = ""
        try:
            made = _share.Share(address, self._token, write=write)
        except (_share.NotSharedError, OSError) as e:
            refusal = str(e)
            _log.info("data of the worker at %s goes by gRPC: %s", address, e)
        finally:
            with self._changed:
                self._opening.discard(key)
                self._note(key, made, refusal)
                self._changed.notify_all()
        return None if made is None or made.broken else made

    def _note(self, key: tuple[str, bool], made: _share.Share | None, refusal: str) -> None:
        """Keeps a new connection, or the reason why there is none. REQUIRES: the lock."""
        if made is None:
            if refusal:
                self._refused[key[0]] = (refusal, time.monotonic() + _ASK_AGAIN_SECONDS)
            return
        if self._closed:
            made.close()
            return
        self._refused.pop(key[0], None)
        self._shares[key] = made
        if self._releaser is None:
            self._releaser = threading.Thread(target=self._release_loop, name="millrace-leases", daemon=True)
            self._releaser.start()

    def reads(self, address: str) -> bool:
        """Returns whether the memory of a worker is read in place already."""
        with self._changed:
            return (address, False) in self._shares

    def paths(self) -> dict[str, str]:
        """Returns "shared memory", or the reason why not, for each worker that was asked, by its
        address."""
        with self._changed:
            out = {address: f"grpc ({why})" for address, (why, _) in self._refused.items()}
            out.update((address, "shared memory") for address, _ in self._shares)
            return out

    def release(self, share: _share.Share, lease: int) -> None:
        """Queues the release of a lease. Takes no lock, because the garbage collector calls it."""
        self._ended.put((share, lease))

    def _release_loop(self) -> None:
        while True:
            item = self._ended.get()
            ended: dict[_share.Share, list[int]] = {}
            with contextlib.suppress(Empty):
                while item is not None:
                    ended.setdefault(item[0], []).append(item[1])
                    item = self._ended.get_nowait()
            for share, numbers in ended.items():
                # The end of a connection has released all of its leases already.
                with contextlib.suppress(OSError, _share.RefusedError):
                    for at in range(0, len(numbers), 10_000):
                        share.release(numbers[at : at + 10_000])
            if item is None:
                return

    def close(self) -> None:
        """Closes all connections."""
        with self._changed:
            self._closed = True
            shares, self._shares = self._shares, {}
        self._ended.put(None)
        for share in shares.values():
            share.close()
