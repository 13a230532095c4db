"""Decide how worker processes make batches ahead, in order, and how they end in every case.

Each worker has its own pipe and answers its requests first come, first served. Requests are given
and batches taken in turn, one worker after the other: order needs no sorting, and no lock exists
that a dying worker could hold.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import secrets
import signal
import sys
import threading
import traceback
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from time import monotonic
from typing import Any

import numpy as np

from . import handover
from .interrupt import uninterrupted

AHEAD = 2  # batches that each worker may have in hand
_PATIENCE = 2.0  # seconds for a worker to leave by itself
_HEARTBEAT = 1.0  # seconds between a worker's looks at whether its loader lives
_SOON = 0.05  # seconds after which an interrupt is surely not met by a finaliser again
_LONGEST = 8_000  # characters of a traceback that surely fit into a pipe

_DONE, _FAILED, _ENDED = "done", "failed", "ended"


@dataclass(frozen=True)
class WorkerInfo:
    """What a dataset may know of the worker process it runs in.

    Attributes:
        idx: number of this worker, from 0.
        worker: how many workers there are.
        seed: what this worker's ``numpy.random`` and ``random`` were seeded with.
        dataset: this worker's copy of the dataset.

    >>> info = WorkerInfo(idx=1, worker=2, seed=7, dataset=[10, 11, 12, 13])
    >>> info.dataset[info.idx :: info.worker]
    [11, 13]
    """

    idx: int
    worker: int
    seed: int
    dataset: Any = field(repr=False)


class EndOfStreamError(Exception):
    """Raise in a worker's function where its stream has no more."""


_info: WorkerInfo | None = None


def get_worker_info() -> WorkerInfo | None:
    """Return what is known of this worker process, or None in any other process.

    >>> get_worker_info() is None  # outside of a worker
    True
    """
    return _info


# In the worker


def _run_worker(
    pipe: Connection, info: WorkerInfo, make: Callable[[Any], Any], prefix: str
) -> None:
    """Answer requests until the loader says so or is gone; ``make`` turns one into a batch."""
    global _info
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the loader decides what Ctrl-C means
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # blocked while it was started
    starter = os.getppid()  # the loader, or a fork server that ends with it
    _info = info
    outbox = handover.Outbox(prefix)
    random.seed(info.seed)
    np.random.seed(info.seed)
    try:
        while True:
            while not pipe.poll(_HEARTBEAT):
                if os.getppid() != starter:
                    return
            request = pipe.recv()
            if request is None:
                return
            pipe.send(_answer(make, request, outbox))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return  # the loader is gone


def _answer(
    make: Callable[[Any], Any], request: tuple[int, Any], outbox: handover.Outbox
) -> tuple[str, Any]:
    slot, wanted = request
    try:
        return _DONE, outbox.pack(make(wanted), slot)
    except EndOfStreamError:
        return _ENDED, None
    except (
        Exception,
        KeyboardInterrupt,
        GeneratorExit,
    ):  # raised by the dataset: SIGINT is ignored
        return _FAILED, traceback.format_exc()[-_LONGEST:]


# In the loader


@dataclass
class _Worker:
    process: BaseProcess
    pipe: Connection
    inbox: handover.Inbox
    asked: int = 0
    pending: deque[int] = field(default_factory=deque)  # numbers of the batches asked for


class WorkerPool:
    """Iterate over the batches that worker processes make, in the order of the requests.

    Args:
        dataset: what ``get_worker_info`` shows.
        make: the function from a request to a batch that each worker calls; raises EndOfStreamError
            where it has no more.
        requests: what to ask for, drawn from as batches are taken.
        count: how many workers.
        timeout: seconds to wait for one batch; 0 waits for ever.

    Raises:
        RuntimeError: on ``next``, where a worker raised, died or took too long. Whatever is
            raised, all workers have ended then and left nothing in shared memory.
    """

    def __init__(
        self,
        dataset: Any,
        make: Callable[[Any], Any],
        requests: Iterator[Any],
        count: int,
        timeout: float,
    ) -> None:
        self._requests = requests
        self._timeout = timeout
        self._asked = 0
        self._workers: list[_Worker] = []
        self._owner = os.getpid()
        self._dropped = weakref.finalize(self, _end_dropped, self._workers, self._owner)
        handover.start_tracker()
        base = int(np.random.randint(0, 2**31 - count))
        token = f"ty_{os.getpid()}_{secrets.token_hex(4)}"
        try:
            with uninterrupted():  # half-started workers run the loader's code
                for index in range(count):
                    info = WorkerInfo(index, count, base + index, dataset)
                    self._workers.append(_start(info, make, f"{token}_{index}"))
            self._turns = deque(self._workers)
            for worker in self._workers * AHEAD:
                self._ask(worker)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End all workers and remove what they left in shared memory."""
        _end_workers(self._workers, self._owner)
        self._dropped.detach()  # kept until then, in case Ctrl-C comes first

    def __iter__(self) -> WorkerPool:
        return self

    def __next__(self) -> Any:
        try:
            while self._turns:
                worker = self._turns[0]
                if not worker.pending:
                    self._turns.popleft()
                    continue
                state, batch = self._receive(worker)
                if state == _ENDED:
                    worker.pending.clear()  # its open answers are as empty as this one
                    continue
                self._turns.rotate(-1)
                self._ask(worker)
                return batch
            raise StopIteration
        except BaseException:
            self._turns.clear()
            self.close()
            raise

    def _ask(self, worker: _Worker) -> None:
        try:
            request = next(self._requests)
        except StopIteration:
            return
        # A slot is free again: its batch was taken before this request for the next one.
        slot, sent = worker.asked % AHEAD, False
        worker.pending.append(self._asked)
        worker.asked += 1
        self._asked += 1
        with suppress(BrokenPipeError, ConnectionResetError):
            worker.pipe.send((slot, request))
            sent = True
        if not sent:
            # Not raised above: its context would keep a pickler's buffer alive in a cycle.
            raise self._death(worker)

    def _receive(self, worker: _Worker) -> tuple[str, Any]:
        deadline = monotonic() + self._timeout if self._timeout else None
        sentinels = {entry.process.sentinel: entry for entry in self._workers}
        while not worker.pipe.poll():
            left = None if deadline is None else deadline - monotonic()
            if left is not None and left <= 0:
                raise RuntimeError(
                    f"DataLoader: batch {worker.pending[0]} took too long, got none from worker "
                    f"{worker.process.name} within {self._timeout} s"
                )
            ready = wait([worker.pipe, *sentinels], left)
            dead = [sentinels[item] for item in ready if isinstance(item, int)]
            if dead and worker.pipe not in ready:
                raise self._death(dead[0])
        try:
            state, value = worker.pipe.recv()
        except (EOFError, ConnectionResetError):
            raise self._death(worker) from None
        number = worker.pending[0]
        if state == _FAILED:
            raise RuntimeError(
                f"DataLoader: batch {number} failed in worker {worker.process.name}:\n{value}"
            )
        worker.pending.popleft()
        return state, None if state == _ENDED else worker.inbox.unpack(value)

    @staticmethod
    def _death(worker: _Worker) -> RuntimeError:
        worker.process.join(_PATIENCE)
        code = worker.process.exitcode
        how = f"exit code {code}"
        if code is not None and code < 0:
            how = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
            how += ": /dev/shm is full" if -code == signal.SIGBUS else ""
        return RuntimeError(
            f"DataLoader: worker {worker.process.name} (pid {worker.process.pid}) died, got {how}"
        )


def _start(info: WorkerInfo, make: Callable[[Any], Any], prefix: str) -> _Worker:
    context = multiprocessing.get_context()
    ours, theirs = context.Pipe()
    process = context.Process(
        target=_run_worker,
        args=(theirs, info, make, prefix),
        name=str(info.idx),
        daemon=True,
    )
    try:
        # A worker forked while text waits in a buffer would print it again.
        sys.stdout.flush()
        with handover.TRACKED:
            process.start()
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
    return _Worker(process, ours, handover.Inbox(prefix, AHEAD))


def _end_dropped(workers: list[_Worker], owner: int) -> None:
    """End the workers of an iterator that is garbage, where whatever is raised would be lost."""
    try:
        _end_workers(workers, owner)
    except KeyboardInterrupt:
        again = threading.Timer(_SOON, os.kill, (owner, signal.SIGINT))
        again.daemon = True
        again.start()


def _end_workers(workers: list[_Worker], owner: int) -> None:
    if os.getpid() != owner:
        return  # a forked copy of the loader: the workers are not its children
    with uninterrupted():
        for worker in workers:
            if worker.pending:
                worker.process.terminate()
            else:
                with suppress(BrokenPipeError, ConnectionResetError):
                    worker.pipe.send(None)
        leaving = monotonic() + _PATIENCE
        for worker in workers:
            worker.process.join(max(0.0, leaving - monotonic()))
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
        for worker in workers:
            worker.pipe.close()
            worker.process.close()
            worker.inbox.close()
        workers.clear()
