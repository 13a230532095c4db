"""Decide how bytes move between processes: over TCP, one connection per pair and group.

Whoever waits, for space to send or for bytes to arrive, meanwhile takes in whatever any peer sends.
So no order of sends and receives in which each message has its receiver can come to a standstill.
"""

from __future__ import annotations

import json
import os
import secrets
import selectors
import socket
import struct
import weakref
from collections.abc import Mapping, Sequence
from time import monotonic

import numpy as np

from ..errors import DistributedError, PeerLostError
from ..locks import ForkSafeLock
from .communicator import World
from .server import interface_for

HEADER = 256  # bytes that tell what a message is, so that ranks out of step notice
_READ_AHEAD = 1 << 18
_LENGTH = struct.Struct("<I")
_HELLO = 5.0  # seconds for a new connection to say who it is
_DIAL = 60.0
_TOKEN = "tcp/token"


class Link:
    """One connection to one rank, for one group."""

    def __init__(self, peer: int, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setblocking(False)
        self.peer = peer
        self.socket = connection
        self.early = bytearray()  # what came before anybody asked for it
        self.gone = ""  # why the peer can no longer be reached
        self.watched = False

    def send(self, views: list[memoryview]) -> None:
        """Send what the connection takes now; what is left stays in ``views``."""
        try:
            while views:
                sent = self.socket.sendmsg(views)
                while views and sent >= len(views[0]):
                    sent -= len(views.pop(0))
                if views and sent:
                    views[0] = views[0][sent:]
        except BlockingIOError:
            return
        except OSError as error:
            self.gone = str(error)

    def receive(self, incoming: Incoming | None) -> None:
        """Take in what has come, into ``incoming`` or ahead of its receiver."""
        try:
            while incoming is not None and not incoming.done:
                count = self.socket.recv_into(incoming.space)
                if not count:
                    self.gone = "its connection is closed"
                    return
                incoming.advance(count)
            if incoming is None:
                data = self.socket.recv(_READ_AHEAD)
                self.early += data
                if not data:
                    self.gone = "its connection is closed"
        except BlockingIOError:
            return
        except OSError as error:
            self.gone = str(error)

    def close(self) -> None:
        """Close this process's end."""
        self.gone = self.gone or "the group is closed here"
        self.watched = False
        self.socket.close()

    def hand_over(self, incoming: Incoming) -> None:
        """Give what came early to its receiver."""
        while self.early and not incoming.done:
            count = min(len(self.early), len(incoming.space))
            incoming.space[:count] = self.early[:count]
            del self.early[:count]
            incoming.advance(count)


class Incoming:
    """A message that is expected: what its header must say, and where its bytes go."""

    def __init__(self, title: str, peer: int, target: np.ndarray) -> None:
        self._title = title
        self._peer = peer
        self._head = bytearray(HEADER)
        self._views = [memoryview(self._head), *views_of(target)]
        self._checked = False

    @property
    def done(self) -> bool:
        return not self._views

    @property
    def space(self) -> memoryview:
        return self._views[0]

    def advance(self, count: int) -> None:
        """Note that bytes have arrived.

        Raises:
            DistributedError: where the header shows that the peer does something else.
        """
        self._views[0] = self._views[0][count:]
        if not len(self._views[0]):
            self._views.pop(0)
            if not self._checked:
                self._check()

    def _check(self) -> None:
        self._checked = True
        if self._head != header(self._title):
            found = self._head.rstrip(b"\0").decode(errors="replace")
            raise DistributedError(
                f"{self._title.partition(' ')[0]}: rank {self._peer} does something else, got "
                f"'{found}', expected '{self._title}'"
            )


def views_of(array: np.ndarray) -> list[memoryview]:
    """Return the bytes of a C-contiguous array, nothing where it is empty."""
    return [array.reshape(-1).view(np.uint8).data] if array.size else []


def header(title: str) -> memoryview:
    """Return the header of a message."""
    return memoryview(title.encode()[:HEADER].ljust(HEADER, b"\0"))


class Transport:
    """All connections of this process, and the socket at which others reach it."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._lock = ForkSafeLock()
        self._selector = selectors.DefaultSelector()
        self._links: list[Link] = []
        self._closed = False
        self._early: dict[tuple[str, int], Link] = {}  # of groups that are not yet open here
        self._listener = socket.create_server(
            (interface_for(world.client.master_ip), 0), backlog=max(128, world.size)
        )
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ)
        if world.rank == 0:
            world.client.user_set(_TOKEN, secrets.token_hex(16))
        self._token = str(world.client.user_get(_TOKEN, world.timeout))
        address = [world.host, self._listener.getsockname()[1]]
        world.client.user_set(_address_key(world.rank), address)
        _transports.add(self)

    def open(self, key: str, ranks: Sequence[int]) -> dict[int, Link]:
        """Connect with every other rank of a group; all of them must do so.

        Raises:
            DistributedError: where one cannot be reached in time.
        """
        if self._closed:
            raise DistributedError(
                f"group: this process left all groups, expected ranks {key} to be distinct from "
                "the processes that they fork"
            )
        me, links = self._world.rank, {}
        with self._lock:
            for rank in ranks:
                if rank != me:
                    dial = ranks.index(rank) < ranks.index(me)
                    links[rank] = self._dial(key, rank) if dial else self._await(key, rank)
        return links

    def _dial(self, key: str, rank: int) -> Link:
        world = self._world
        host, port = world.client.user_get(_address_key(rank), world.timeout)
        try:
            connection = socket.create_connection((host, port), timeout=_DIAL)
        except OSError as error:
            raise PeerLostError(
                f"group: rank {rank} cannot be reached at {host}:{port}, got {error}"
            ) from error
        hello = json.dumps([self._token, key, world.rank]).encode()
        connection.sendall(_LENGTH.pack(len(hello)) + hello)
        return self._keep(rank, connection)

    def _await(self, key: str, rank: int) -> Link:
        """Wait until a rank has connected for a group."""
        deadline = monotonic() + self._world.timeout
        while (key, rank) not in self._early:
            self._check_peers(f"group of ranks {key}", [x for x in self._links if x.peer == rank])
            if not self._serve(deadline, {}, {}):
                raise DistributedError(
                    f"group: rank {rank} did not come within {self._world.timeout:g} s, expected "
                    f"all of ranks {key}"
                )
        return self._early.pop((key, rank))

    def _keep(self, rank: int, connection: socket.socket) -> Link:
        """Watch a connection from here on, so that what comes is taken in."""
        link = Link(rank, connection)
        self._links.append(link)
        self._selector.register(link.socket, selectors.EVENT_READ, link)
        link.watched = True
        return link

    def _accept(self) -> None:
        try:
            connection = self._listener.accept()[0]
        except BlockingIOError:
            return
        caller = self._greet(connection)
        if caller is None:
            connection.close()  # a stranger
        else:
            self._early[caller] = self._keep(caller[1], connection)

    def _greet(self, connection: socket.socket) -> tuple[str, int] | None:
        """Return for which group a new connection is and from which rank; None for strangers."""
        connection.settimeout(_HELLO)
        try:
            size = _LENGTH.unpack(_exactly(connection, _LENGTH.size))[0]
            if size > HEADER * 64:
                return None
            token, key, rank = json.loads(_exactly(connection, size))
        except (OSError, ValueError, TypeError):
            return None
        return (key, rank) if token == self._token else None

    def exchange(
        self,
        title: str,
        sends: Mapping[Link, Sequence[memoryview]],
        receives: Mapping[Link, Incoming],
    ) -> None:
        """Send and receive until all is done, in whatever order it goes.

        Raises:
            PeerLostError: where a peer is gone.
            DistributedError: where a peer does something else, or is silent for too long.
        """
        head = header(title)
        with self._lock:
            out = {link: [head, *views] for link, views in sends.items()}
            into = dict(receives)
            for link, incoming in receives.items():
                link.hand_over(incoming)
            try:
                self._progress(title, out, into)
            finally:
                for link in out:
                    self._watch(link, selectors.EVENT_READ)

    def _progress(
        self, title: str, out: dict[Link, list[memoryview]], into: dict[Link, Incoming]
    ) -> None:
        for link, views in list(out.items()):
            link.send(views)
            if not views:
                del out[link]
            else:
                self._watch(link, selectors.EVENT_READ | selectors.EVENT_WRITE)
        silent = monotonic() + self._world.timeout
        while True:
            for link in [link for link, incoming in into.items() if incoming.done]:
                del into[link]
            if not out and not into:
                return
            self._check_peers(title, [*out, *into])
            if not self._serve(silent, out, into):
                raise self._silence(title, [*into, *out])
            silent = monotonic() + self._world.timeout

    def _serve(
        self, until: float, out: dict[Link, list[memoryview]], into: Mapping[Link, Incoming]
    ) -> bool:
        """Wait until something can be done and do it; tell whether there was anything in time."""
        ready = self._selector.select(max(0.0, until - monotonic()))
        for key, mask in ready:
            link = key.data
            if link is None:
                self._accept()
                continue
            if mask & selectors.EVENT_READ:
                link.receive(into.get(link))
            if mask & selectors.EVENT_WRITE and link in out:
                link.send(out[link])
                if not out[link]:
                    del out[link]
                    self._watch(link, selectors.EVENT_READ)
            if link.gone:
                self._unwatch(link)
        return bool(ready)

    def _silence(self, title: str, peers: Sequence[Link]) -> DistributedError:
        names = ", ".join(str(rank) for rank in sorted({link.peer for link in peers}))
        return DistributedError(
            f"{title.partition(' ')[0]}: rank {names} is silent, got nothing for "
            f"{self._world.timeout:g} s, expected it to call '{title}' too"
        )

    @staticmethod
    def _check_peers(title: str, peers: Sequence[Link]) -> None:
        for link in peers:
            if link.gone:
                raise PeerLostError(
                    f"{title.partition(' ')[0]}: rank {link.peer} is gone ({link.gone}), expected "
                    f"it in '{title}' too"
                )

    def _watch(self, link: Link, events: int) -> None:
        if link.watched:
            self._selector.modify(link.socket, events, link)

    def _unwatch(self, link: Link) -> None:
        if link.watched:
            self._selector.unregister(link.socket)
            link.watched = False

    def drop(self, links: Sequence[Link]) -> None:
        """Close the connections of a group."""
        for link in links:
            if link in self._links:
                self._unwatch(link)
                self._links.remove(link)
                link.close()

    def close(self) -> None:
        """Close everything; a forked child calls it too, and leaves its parent's at work."""
        self._closed = True
        self._selector.close()
        self._listener.close()
        for link in self._links:
            link.close()
        self._links.clear()
        self._early.clear()


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = connection.recv(size - len(data))
        if not more:
            raise ConnectionError("closed")
        data += more
    return data


def _address_key(rank: int) -> str:
    return f"tcp/address/{rank}"


_transports: weakref.WeakSet[Transport] = weakref.WeakSet()


def _close_copies() -> None:
    """Close a forked child's copies: with them, peers would not notice that the parent died."""
    for transport in list(_transports):
        transport.close()


os.register_at_fork(after_in_child=_close_copies)
