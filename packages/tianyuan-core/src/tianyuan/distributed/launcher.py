"""Start a function as several ranks on this machine, and end all of them whatever happens."""

from __future__ import annotations

import functools
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from time import monotonic, sleep
from typing import Any

from .. import native, registry
from ..device import device_kind, parse_device
from ..errors import AttrError, DistributedError, PeerLostError
from . import group
from .server import PATIENCE, Server, interface_for

_LOOK = 0.2  # seconds between looks at whether ranks, or the launcher, still live
_GRACE = 1.0  # seconds in which a cause may still follow its consequence
_LEAVING = 5.0  # seconds for a rank to end when it is done, or asked to
_DONE, _FAILED, _LOST = "done", "failed", "lost"


@dataclass(frozen=True)
class _Job:
    """All that a rank needs to begin; it travels by fork or by pickle."""

    function: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    master_ip: str
    port: int
    world_size: int
    rank: int
    device: int
    backend: str
    device_type: str
    several_machines: bool
    threads: int
    timeout: float
    rendezvous_timeout: float


class _Named:
    """A function that is found by its name, where the name holds the launcher that wraps it."""

    def __init__(self, module: str, name: str) -> None:
        self._module = module
        self._name = name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        found: Any = sys.modules.get(self._module) or import_module(self._module)
        for part in self._name.split("."):
            found = getattr(found, part)
        return (found.func if isinstance(found, launcher) else found)(*args, **kwargs)


class launcher:
    """Run a function in one process per device, as the ranks of one process group.

    Use it as decorator, with or without options, or as ``launcher(function, n_gpus=2)``. A call
    returns the list of what this machine's ranks return. Processes start as ``multiprocessing``
    is set to (``fork``, ``spawn`` or ``forkserver``); each gets its share of the threads.

    Args:
        func: what every rank runs.
        n_gpus: how many ranks to start here, one per device by default.
        world_size: count of ranks on all machines, ``n_gpus`` by default.
        rank_start: the first rank of this machine; the machine of rank 0 is the master.
        master_ip: address of the master; other machines can reach it unless it is ``localhost``.
        port: where the master's server listens; 0 takes a free one, on a single machine only.
        device_type: kind of device; rank i of this machine gets device i.
        backend: name of the communicator, see ``init_process_group``.
        timeout, rendezvous_timeout: see ``init_process_group``.

    Raises:
        AttrError: for numbers that do not fit each other.
        DistributedError: by a call, where a rank raises or dies. It carries that rank's traceback;
            all ranks have ended then.

    Example::

        >>> from tianyuan import Tensor, distributed, functional
        >>> @distributed.launcher(n_gpus=2)
        ... def work(x):
        ...     given = Tensor([x + distributed.get_rank()])
        ...     return functional.distributed.all_reduce_sum(given).numpy()
        >>> work(1.0)
        [array([3.], dtype=float32), array([3.], dtype=float32)]
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        if not args and "func" not in kwargs:
            return functools.partial(cls, **kwargs)
        return super().__new__(cls)

    def __init__(
        self,
        func: Callable[..., Any],
        n_gpus: int | None = None,
        world_size: int | None = None,
        rank_start: int = 0,
        master_ip: str = "localhost",
        port: int = 0,
        device_type: str = "xpu",
        backend: str = "nccl",
        *,
        timeout: float = PATIENCE,
        rendezvous_timeout: float = 60.0,
    ) -> None:
        self.func = func
        where = parse_device(f"{device_type}0")
        self.n_gpus = registry.get_device_spec(where).count() if n_gpus is None else n_gpus
        self.world_size = self.n_gpus if world_size is None else world_size
        self.rank_start = rank_start
        self.master_ip = master_ip
        self.port = port
        self.device_type = device_type
        self.backend = backend
        self.timeout = timeout
        self.rendezvous_timeout = rendezvous_timeout
        functools.update_wrapper(self, func)
        self._check()
        group.resolve_backend(backend, device_kind(where))

    def _check(self) -> None:
        if self.n_gpus < 1 or not 0 <= self.rank_start <= self.world_size - self.n_gpus:
            raise AttrError(
                f"launcher: ranks do not fit, got n_gpus {self.n_gpus} from rank "
                f"{self.rank_start} of {self.world_size}, expected all within world_size"
            )
        if self.world_size > self.n_gpus and not self.port:
            raise AttrError(
                "launcher: several machines need a port, got 0, expected the one at which the "
                "master's server listens"
            )

    def __call__(self, *args: Any, **kwargs: Any) -> list[Any]:
        """Run the function on all ranks of this machine and return their results, by rank."""
        server = None
        if self.rank_start == 0:
            server = Server(self.port, host=interface_for(self.master_ip), start=False)
        ranks: list[_Rank] = []
        try:
            job = self._job(args, kwargs, self.port if server is None else server.py_server_port)
            for device in range(self.n_gpus):
                part = replace(job, rank=self.rank_start + device, device=device)
                ranks.append(_start(part, server))
            if server is not None:
                server.start()  # now that no more processes fork from here
            return _results(ranks)
        finally:
            _end(ranks)
            if server is not None:
                server.close()

    def _job(self, args: tuple[Any, ...], kwargs: dict[str, Any], port: int) -> _Job:
        threads = 0
        if registry.get_device_spec(parse_device(f"{self.device_type}0")).is_host:
            threads = max(1, native.get_num_threads() // self.n_gpus)
        return _Job(
            self._portable(), args, kwargs, self.master_ip, port, self.world_size, 0, 0,
            self.backend, self.device_type, self.world_size > self.n_gpus, threads, self.timeout,
            self.rendezvous_timeout,
        )  # fmt: skip

    def _portable(self) -> Any:
        """Return the function in a form that can be pickled, if need be by its name."""
        name = getattr(self.func, "__qualname__", "")
        by_name = name and "<" not in name
        return (
            _Named(self.func.__module__, name) if by_name and self._is_hidden(name) else self.func
        )

    def _is_hidden(self, name: str) -> bool:
        """Tell whether the function's own name holds this launcher, as for a decorated function."""
        found: Any = sys.modules.get(self.func.__module__)
        for part in name.split("."):
            found = getattr(found, part, None)
        return found is self


@dataclass
class _Rank:
    """The launcher's side of one rank."""

    number: int
    process: BaseProcess
    pipe: Connection
    outcome: tuple[str, Any] | None = None

    def look(self) -> None:
        """Take the outcome in if there is one, from the pipe or from how the process ended."""
        ended = not self.process.is_alive()  # asked first: what it sent is in the pipe by then
        try:
            if self.pipe.poll():
                self.outcome = self.pipe.recv()
                return
        except (EOFError, OSError):
            ended = True
            self.process.join(_LEAVING)
        except Exception:  # the result is of a kind that cannot be loaded here
            self.outcome = _FAILED, traceback.format_exc()
            return
        if ended:
            self.outcome = _FAILED, _how_it_ended(self.process.exitcode)


def _start(job: _Job, server: Server | None) -> _Rank:
    context = multiprocessing.get_context()
    ours, theirs = context.Pipe(duplex=False)
    inherited = server if context.get_start_method() == "fork" else None
    process = context.Process(
        target=_run_rank,
        args=(job, theirs, ours if inherited else None, inherited),
        name=f"rank-{job.rank}",
    )
    try:
        sys.stdout.flush()  # a rank forked while text waits in a buffer would print it again
        sys.stderr.flush()
        process.start()
    except (AttributeError, TypeError, pickle.PicklingError) as error:
        ours.close()
        raise DistributedError(
            f"launcher: the function or an argument cannot be sent to a new process, got {error}; "
            "expected functions of a module, and arguments that can be pickled"
        ) from error
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
    return _Rank(job.rank, process, ours)


def _results(ranks: list[_Rank]) -> list[Any]:
    """Wait for all ranks and return what they return.

    Raises:
        DistributedError: where one fails; of several, one that did not merely lose another.
    """
    patience = None
    while True:
        open_ranks = [rank for rank in ranks if rank.outcome is None]
        failed = [rank for rank in ranks if rank.outcome and rank.outcome[0] == _FAILED]
        lost = [rank for rank in ranks if rank.outcome and rank.outcome[0] == _LOST]
        if lost and patience is None:
            patience = monotonic() + _GRACE
        waited = not open_ranks or (patience is not None and monotonic() > patience)
        if failed or (lost and waited):
            cause = (failed or lost)[0]
            assert cause.outcome is not None
            raise DistributedError(f"launcher: rank {cause.number} failed, got\n{cause.outcome[1]}")
        if not open_ranks:
            return [rank.outcome[1] for rank in ranks if rank.outcome is not None]
        wait([item for r in open_ranks for item in (r.pipe, r.process.sentinel)], _LOOK)
        for rank in open_ranks:
            rank.look()


def _how_it_ended(code: int | None) -> str:
    if code is not None and code < 0:
        known = -code in set(signal.Signals)
        return f"its process was ended by {signal.Signals(-code).name if known else -code}"
    return f"its process ended with exit code {code} and without a result"


def _end(ranks: list[_Rank]) -> None:
    """End all processes: those that are done leave by themselves, others are made to."""
    for rank in ranks:
        if rank.outcome is None and rank.process.is_alive():
            rank.process.terminate()
    leaving = monotonic() + _LEAVING
    for rank in ranks:
        rank.process.join(max(0.0, leaving - monotonic()))
        if rank.process.is_alive():
            rank.process.kill()
            rank.process.join()
        rank.process.close()
        rank.pipe.close()


# In the rank's process.


def _run_rank(
    job: _Job, pipe: Connection, other_end: Connection | None, server: Server | None
) -> None:
    """Join the others, run the function and tell the launcher how it went."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the launcher decides what Ctrl-C means
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if server is not None and other_end is not None:
        server.abandon()
        other_end.close()
    threading.Thread(target=_leave_with, args=(os.getppid(),), daemon=True).start()
    outcome: tuple[str, Any] = _DONE, None
    try:
        outcome = _DONE, _work(job)
    except SystemExit as leaving:
        if leaving.code not in (None, 0):
            outcome = _FAILED, f"it left with {leaving.code!r}"
    except PeerLostError:
        outcome = _LOST, traceback.format_exc()
    except BaseException:
        outcome = _FAILED, traceback.format_exc()
    try:
        pipe.send(outcome)
    except Exception:  # the result is of a kind that cannot be sent
        pipe.send((_FAILED, traceback.format_exc()))
    finally:
        pipe.close()
        group.close()


def _work(job: _Job) -> Any:
    group.close()  # where the launcher itself belongs to a group
    if job.threads and "TIANYUAN_NUM_THREADS" not in os.environ:
        native.set_num_threads(job.threads)
    group.init_process_group(
        job.master_ip, job.port, job.world_size, job.rank, job.device, job.backend,
        job.device_type, timeout=job.timeout, rendezvous_timeout=job.rendezvous_timeout,
    )  # fmt: skip
    found = job.function(*job.args, **job.kwargs)
    if job.several_machines:
        group.group_barrier()  # the server must not go before others are done with it
    return found


def _leave_with(starter: int) -> None:
    """End this process once the launcher's (or its fork server) is gone."""
    while os.getppid() == starter:
        sleep(_LOOK)
    os._exit(1)
