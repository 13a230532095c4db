"""Say what a communicator is: the collectives of one group of ranks, on plain arrays.

A plugin brings one through the hook ``tianyuan_communicators`` as ``{name: class}``; every rank of
a group makes an instance by ``class(ranks, position, world)``, on first use. Arrays are
numpy arrays, or the storage of a device that ``devices`` names. All are C-contiguous; outputs are
written in full, and overlap no input. Every rank must end up with the same bits.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from .server import Client

SUM, MAX, MIN = "sum", "max", "min"


@dataclass
class World:
    """What a communicator may know of the process it works in.

    Attributes:
        rank, size: of this process among all.
        host: address under which other ranks reach this process.
        client: the key-value server that all ranks share.
        timeout: seconds after which a silent rank counts as lost.
        shared: what all groups of this process share, by name; each has ``close()``.

    Example::

        >>> from tianyuan.distributed import Server
        >>> server = Server()
        >>> client = Client("localhost", server.py_server_port)
        >>> World(0, 2, "localhost", client, timeout=60.0).size
        2
        >>> server.close()
    """

    rank: int
    size: int
    host: str
    client: Client
    timeout: float
    shared: dict[str, Any] = field(default_factory=dict)


class Communicator(ABC):
    """The collectives of one group.

    Attributes:
        devices: kinds of device whose storage it moves.

    Args:
        ranks: the group, by rank among all processes.
        position: this process's place in ``ranks``; roots and peers are places too.
        world: the process it works in.

    Example::

        >>> sorted(Communicator.__abstractmethods__)[:3]  # what a subclass defines
        ['all_gather', 'all_reduce', 'all_to_all']
    """

    devices: tuple[str, ...] = ("cpu",)

    def __init__(self, ranks: Sequence[int], position: int, world: World) -> None:
        self.ranks = tuple(ranks)
        self.position = position
        self.world = world

    @classmethod  # noqa: B027  # most need no more than the world
    def prepare(cls, world: World) -> None:
        """Make ready what all groups share, before any is made; every process calls it."""

    @property
    def size(self) -> int:
        """Count of ranks in the group."""
        return len(self.ranks)

    @abstractmethod
    def all_reduce(self, x: Any, out: Any, how: str) -> None:
        """Combine ``x`` of all ranks into ``out`` on every rank; ``how`` is sum, max or min."""

    @abstractmethod
    def reduce(self, x: Any, out: Any, root: int) -> None:
        """Sum ``x`` of all ranks into ``out`` of the root; ``out`` is None elsewhere."""

    @abstractmethod
    def broadcast(self, x: Any, out: Any, root: int) -> None:
        """Copy ``x`` of the root to ``out`` of every rank; ``x`` is None elsewhere."""

    @abstractmethod
    def all_gather(self, x: Any, out: Any) -> None:
        """Copy ``x`` of rank i to ``out[i]`` of every rank."""

    @abstractmethod
    def gather(self, x: Any, out: Any, root: int) -> None:
        """Copy ``x`` of rank i to ``out[i]`` of the root; ``out`` is None elsewhere."""

    @abstractmethod
    def scatter(self, x: Any, out: Any, root: int) -> None:
        """Copy ``x[i]`` of the root to ``out`` of rank i; ``x`` is None elsewhere."""

    @abstractmethod
    def reduce_scatter(self, x: Any, out: Any) -> None:
        """Sum ``x[i]`` of all ranks into ``out`` of rank i."""

    @abstractmethod
    def all_to_all(self, x: Any, out: Any) -> None:
        """Copy ``x[j]`` of rank i to ``out[i]`` of rank j."""

    @abstractmethod
    def send(self, x: Any, peer: int) -> None:
        """Hand ``x`` to a rank; may return before it has arrived."""

    @abstractmethod
    def receive(self, out: Any, peer: int) -> None:
        """Wait for what a rank sends, in the order of its sending."""

    def close(self) -> None:  # noqa: B027  # most have nothing of their own to give back
        """Give back what the communicator holds."""
