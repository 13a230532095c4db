"""Decide how processes meet: an XML-RPC server with values by key, barriers and a rendezvous."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable
from socketserver import ThreadingMixIn
from time import monotonic, sleep
from typing import Any
from xmlrpc.client import Fault, ServerProxy
from xmlrpc.server import SimpleXMLRPCServer

from ..errors import DistributedError

PATIENCE = 1800.0  # seconds that a rank waits for another, unless told otherwise
_RETRY = 0.05
_LOOPBACK = ("localhost", "127.0.0.1")
_SETTLING = 2.0  # seconds that a closing server grants to calls it is answering


class Methods:
    """What the server offers; every method may be called by any rank.

    Args:
        mm_server_port: port of the server that exchanges addresses, for MegEngine's sake.

    Example::

        >>> methods = Methods(0)
        >>> methods.user_set("epoch", 3)
        >>> methods.user_get("epoch")
        3
    """

    def __init__(self, mm_server_port: int) -> None:
        self._port = mm_server_port
        self._changed = threading.Condition()
        self._values: dict[str, Any] = {}
        self._grads: dict[str, Any] = {}
        self._tracers: dict[str, Any] = {}
        self._arrived: dict[str, int] = {}
        self._rounds: dict[str, int] = {}
        self._shared: dict[str, list[Any]] = {}
        self._joined: dict[str, dict[int, Any]] = {}
        self._closed = False

    def _close(self) -> None:
        """Let go of everyone who waits."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _wait(self, ready: Callable[[], Any], what: Callable[[], str], timeout: float) -> None:
        """Wait with the lock held until ``ready()``.

        Raises:
            DistributedError: where it takes too long or the server is closed.
        """
        if not self._changed.wait_for(lambda: ready() or self._closed, timeout):
            raise DistributedError(f"{what()} within {timeout:g} s")
        if self._closed and not ready():
            raise DistributedError("server: it is closed, expected ranks to have finished")

    def _take(self, store: dict[str, Any], name: str, key: str, timeout: float, keep: bool) -> Any:
        with self._changed:
            self._wait(
                lambda: key in store,
                lambda: f"{name}: nobody set the key, got nothing for {key!r}",
                timeout,
            )
            return store[key] if keep else store.pop(key)

    def _put(self, store: dict[str, Any], key: str, value: Any) -> None:
        with self._changed:
            store[key] = value
            self._changed.notify_all()

    def connect(self) -> bool:
        """Answer that the server is there."""
        return True

    def get_mm_server_port(self) -> int:
        """Return the port of the server that exchanges addresses."""
        return self._port

    def set_is_grad(self, key: str, is_grad: bool) -> None:
        """Note whether a gradient will be sent back for a key."""
        self._put(self._grads, key, is_grad)

    def check_is_grad(self, key: str) -> bool:
        """Wait for ``set_is_grad`` of a key; return its value and forget it."""
        return bool(self._take(self._grads, "check_is_grad", key, PATIENCE, False))

    def set_remote_tracer(self, key: str, tracer_set: Any) -> None:
        """Note what another rank should know of the sender's trace for a key."""
        self._put(self._tracers, key, tracer_set)

    def check_remote_tracer(self, key: str) -> Any:
        """Wait for ``set_remote_tracer`` of a key; return its value and forget it."""
        return self._take(self._tracers, "check_remote_tracer", key, PATIENCE, False)

    def group_barrier(self, key: str, size: int, timeout: float = PATIENCE) -> None:
        """Return once ``size`` callers have come with this key; the next round starts anew.

        Raises:
            DistributedError: where they do not come within ``timeout`` seconds.
        """
        with self._changed:
            number = self._rounds.get(key, 0)
            self._arrived[key] = self._arrived.get(key, 0) + 1
            if self._arrived[key] >= size:
                self._arrived[key], self._rounds[key] = 0, number + 1
                self._changed.notify_all()
                return
            self._wait(
                lambda: self._rounds.get(key, 0) != number,
                lambda: (
                    f"group_barrier: ranks are missing, got {self._arrived[key]} of {size} "
                    f"for {key!r}"
                ),
                timeout,
            )

    def user_set(self, key: str, val: Any) -> None:
        """Keep a value by its key; it must be what XML-RPC carries, such as text and numbers."""
        self._put(self._values, key, val)

    def user_get(self, key: str, timeout: float = PATIENCE) -> Any:
        """Wait until a key is set, and return its value.

        Raises:
            DistributedError: where nobody sets it within ``timeout`` seconds.
        """
        return self._take(self._values, "user_get", key, timeout, True)

    def user_pop(self, key: str, timeout: float = PATIENCE) -> Any:
        """Wait until a key is set; return its value and forget it.

        Raises:
            DistributedError: where nobody sets it within ``timeout`` seconds.
        """
        return self._take(self._values, "user_pop", key, timeout, False)

    def bcast_val(self, val: Any, key: str, size: int) -> Any:
        """Return to all ``size`` callers of a key the value of the one that gives one.

        Raises:
            DistributedError: where none gives a value.
        """
        with self._changed:
            if val is not None:
                self._shared[key] = [val, size]
                self._changed.notify_all()
            self._wait(
                lambda: key in self._shared,
                lambda: f"bcast_val: nobody gives a value, got None for {key!r}",
                PATIENCE,
            )
            entry = self._shared[key]
            entry[1] -= 1
            if not entry[1]:
                del self._shared[key]
            return entry[0]

    def join(self, key: str, rank: int, size: int, info: Any, timeout: float) -> list[Any]:
        """Wait until all ``size`` ranks have joined, and return what each told, by rank.

        Raises:
            DistributedError: where a rank stands twice, or some are missing after ``timeout``
                seconds; the message names them.
        """
        with self._changed:
            known = self._joined.setdefault(key, {})
            if rank in known:
                raise DistributedError(f"init_process_group: rank {rank} stands twice in {key!r}")
            known[rank] = info
            self._changed.notify_all()
            try:
                self._wait(
                    lambda: len(known) >= size,
                    lambda: (
                        "init_process_group: ranks are missing, got none of "
                        f"{sorted(set(range(size)) - set(known))}, expected {size} ranks"
                    ),
                    timeout,
                )
            except DistributedError:
                known.pop(rank, None)
                raise
            if self._joined.get(key) is known:
                del self._joined[key]  # a later meeting under this key starts anew
            return [known[index] for index in sorted(known)]


class ThreadXMLRPCServer(ThreadingMixIn, SimpleXMLRPCServer):
    """An XML-RPC server that answers each call in a thread, since calls may wait.

    Example::

        >>> with ThreadXMLRPCServer(("127.0.0.1", 0)) as server:
        ...     server.server_address[0]
        '127.0.0.1'
    """

    daemon_threads = True
    block_on_close = False
    request_queue_size = 1024

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._calls = 0
        self._idle = threading.Condition()
        super().__init__(*args, **kwargs)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer a call in a thread of its own."""
        with self._idle:
            self._calls += 1
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer a call."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._idle:
                self._calls -= 1
                self._idle.notify_all()

    def settle(self, seconds: float) -> None:
        """Wait until every call is answered, so many seconds at most."""
        with self._idle:
            self._idle.wait_for(lambda: not self._calls, seconds)


def make_server(port: int, host: str, verbose: bool = False) -> tuple[ThreadXMLRPCServer, Methods]:
    """Bind a server without serving yet.

    Raises:
        DistributedError: where the port is taken.
    """
    try:
        server = ThreadXMLRPCServer(
            (host, port), logRequests=verbose, allow_none=True, use_builtin_types=True
        )
    except OSError as error:
        raise DistributedError(f"Server: cannot listen on port {port} ({error})") from error
    methods = Methods(server.server_address[1])
    server.register_instance(methods)
    return server, methods


def interface_for(master_ip: str) -> str:
    """Return the interface to listen on: the loopback where all ranks are on this machine."""
    return "127.0.0.1" if master_ip in _LOOPBACK else ""


class Server:
    """The meeting point of all ranks, in a thread of this process.

    Args:
        port: where to listen; 0 takes a free one, see ``py_server_port``.
        host: interface to listen on, all by default.
        start: whether to serve at once; callers queue until ``start()`` otherwise.

    Raises:
        DistributedError: where the port is taken.

    Example::

        >>> server = Server()
        >>> client = Client("localhost", server.py_server_port)
        >>> client.user_set("lr", 0.5)
        >>> client.user_get("lr")
        0.5
        >>> server.close()
    """

    def __init__(self, port: int = 0, *, host: str = "", start: bool = True) -> None:
        self._server, self._methods = make_server(port, host)
        self._thread: threading.Thread | None = None
        self.py_server_port = int(self._server.server_address[1])
        self.mm_server_port = self.py_server_port
        if start:
            self.start()

    def start(self) -> None:
        """Serve from now on."""
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.05,), name="tianyuan-server", daemon=True
        )
        self._thread.start()
        self._process = os.getpid()
        atexit.register(self._at_exit)

    def _at_exit(self) -> None:
        """Answer who has called, so that ranks that end together do not miss the last barrier."""
        if os.getpid() == self._process:
            self.close()

    def close(self) -> None:
        """Stop serving, let go of callers that wait, and give the port back."""
        if self._thread is not None:
            self._methods._close()
            self._server.shutdown()
            self._thread.join()
            self._thread = None
            self._server.settle(_SETTLING)
        self._server.server_close()
        atexit.unregister(self._at_exit)

    def abandon(self) -> None:
        """Close this process's copy of the socket, in a child that was forked."""
        self._server.socket.close()


class Client:
    """A rank's side of the server.

    Args:
        master_ip: machine of the server.
        port: its port.
        timeout: seconds to try to reach it.

    Raises:
        DistributedError: where it cannot be reached.

    Example::

        >>> server = Server()
        >>> client = Client("localhost", server.py_server_port)
        >>> client.bcast_val("hello", "greeting", 1)
        'hello'
        >>> server.close()
    """

    def __init__(self, master_ip: str, port: int, *, timeout: float = 60.0) -> None:
        self.master_ip = master_ip
        self.port = port
        self._timeout = timeout
        self._local = threading.local()
        self.connect()

    def connect(self) -> None:
        """Wait until the server answers.

        Raises:
            DistributedError: where it does not answer in time.
        """
        deadline = monotonic() + self._timeout
        while True:
            try:
                self._call("connect")
                return
            except OSError as error:
                if monotonic() > deadline:
                    raise DistributedError(
                        f"Client: no server answers at {self.master_ip}:{self.port} within "
                        f"{self._timeout:g} s, got {error}"
                    ) from error
                sleep(_RETRY)

    def _call(self, name: str, *args: Any) -> Any:
        proxy = getattr(self._local, "proxy", None)
        if proxy is None:  # a proxy serves one thread
            proxy = self._local.proxy = ServerProxy(
                f"http://{self.master_ip}:{self.port}", allow_none=True, use_builtin_types=True
            )
        try:
            return getattr(proxy, name)(*args)
        except Fault as fault:
            raise DistributedError(fault.faultString.partition(">:")[2] or str(fault)) from None

    def get_mm_server_port(self) -> int:
        """Return the port of the server that exchanges addresses."""
        return int(self._call("get_mm_server_port"))

    def set_is_grad(self, key: str, is_grad: bool) -> None:
        """Note whether a gradient will be sent back for a key."""
        self._call("set_is_grad", key, is_grad)

    def check_is_grad(self, key: str) -> bool:
        """Wait for ``set_is_grad`` of a key; return its value and forget it."""
        return bool(self._call("check_is_grad", key))

    def set_remote_tracer(self, key: str, tracer_set: Any) -> None:
        """Note what another rank should know of this one's trace for a key."""
        self._call("set_remote_tracer", key, tracer_set)

    def check_remote_tracer(self, key: str) -> Any:
        """Wait for ``set_remote_tracer`` of a key; return its value and forget it."""
        return self._call("check_remote_tracer", key)

    def group_barrier(self, key: str, size: int, timeout: float = PATIENCE) -> None:
        """Return once ``size`` callers have come with this key.

        Raises:
            DistributedError: where they do not come within ``timeout`` seconds.
        """
        self._call("group_barrier", key, size, timeout)

    def user_set(self, key: str, val: Any) -> None:
        """Keep a value by its key; it must be what XML-RPC carries, such as text and numbers."""
        self._call("user_set", key, val)

    def user_get(self, key: str, timeout: float = PATIENCE) -> Any:
        """Wait until a key is set, and return its value.

        Raises:
            DistributedError: where nobody sets it within ``timeout`` seconds.
        """
        return self._call("user_get", key, timeout)

    def user_pop(self, key: str, timeout: float = PATIENCE) -> Any:
        """Wait until a key is set; return its value and forget it.

        Raises:
            DistributedError: where nobody sets it within ``timeout`` seconds.
        """
        return self._call("user_pop", key, timeout)

    def bcast_val(self, val: Any, key: str, size: int) -> Any:
        """Return to all ``size`` callers of a key the value of the one that gives one."""
        return self._call("bcast_val", val, key, size)

    def join(self, key: str, rank: int, size: int, info: Any, timeout: float) -> list[Any]:
        """Wait until all ``size`` ranks have joined, and return what each told, by rank.

        Raises:
            DistributedError: where a rank stands twice or some do not come in time.
        """
        return list(self._call("join", key, rank, size, info, timeout))


def main(port: int = 0, verbose: bool = True) -> None:
    """Serve in the foreground until interrupted, on all interfaces.

    Example::

        >>> from multiprocessing import get_context
        >>> process = get_context("spawn").Process(target=main, args=(0, False))
        >>> process.start()
        >>> process.is_alive()
        True
        >>> process.terminate(); process.join()
    """
    server, _ = make_server(port, "", verbose)
    if verbose:
        print(f"serving on port {server.server_address[1]}", flush=True)
    with server:
        server.serve_forever()


if __name__ == "__main__":
    main()
