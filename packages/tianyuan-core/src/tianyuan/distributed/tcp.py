"""Core's communicator: numpy arrays over TCP, every sum in the order of the ranks.

Ranks exchange blocks directly instead of passing them around a ring: each sends and receives as
many bytes as in a ring (2 (n - 1) / n of the array for an all-reduce), in two steps instead of
2 (n - 1), and each block is summed by one rank from first to last. So results are the same bits on
every rank, and depend neither on where in an array a value stands nor on timing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from itertools import pairwise
from typing import Any

import numpy as np

from ..dtypes import is_float
from ..plugin import hookimpl
from .communicator import MAX, MIN, SUM, Communicator, World
from .transport import Incoming, Transport, views_of

TIANYUAN_API = (1, 0)

NAME = "tcp"
CHUNK = 1 << 23  # bytes worked on at a time, so that scratch memory is bounded
SMALL = 1 << 15  # bytes up to which all send all to all, in one step

_COMBINE: Mapping[str, Any] = {SUM: np.add, MAX: np.maximum, MIN: np.minimum}


class TCPCommunicator(Communicator):
    """Collectives between processes of one or several machines, with nothing installed."""

    def __init__(self, ranks: Sequence[int], position: int, world: World) -> None:
        super().__init__(ranks, position, world)
        self._transport: Transport = world.shared[NAME]
        found = self._transport.open(",".join(map(str, ranks)), ranks)
        self._links = {index: found[rank] for index, rank in enumerate(ranks) if rank in found}
        self._others = tuple(self._links)

    @classmethod
    def prepare(cls, world: World) -> None:
        """Open the socket at which others reach this process."""
        if NAME not in world.shared:
            world.shared[NAME] = Transport(world)

    def close(self) -> None:
        """Close the group's connections."""
        self._transport.drop(list(self._links.values()))

    def _exchange(
        self,
        title: str,
        sends: Mapping[int, np.ndarray],
        receives: Mapping[int, np.ndarray],
    ) -> None:
        self._transport.exchange(
            title,
            {self._links[place]: views_of(array) for place, array in sends.items()},
            {
                self._links[place]: Incoming(title, self.ranks[place], array)
                for place, array in receives.items()
            },
        )

    def all_reduce(self, x: np.ndarray, out: np.ndarray, how: str) -> None:
        """Combine as ``Communicator.all_reduce`` says."""
        self._reduce(f"all_reduce_{how} {_describe(x)}", x, out, how, None)

    def reduce(self, x: np.ndarray, out: np.ndarray | None, root: int) -> None:
        """Combine as ``Communicator.reduce`` says."""
        title = f"reduce_sum {_describe(x)} to {self.ranks[root]}"
        self._reduce(title, x, np.empty_like(x) if out is None else out, SUM, root)

    def _reduce(
        self, title: str, x: np.ndarray, out: np.ndarray, how: str, root: int | None
    ) -> None:
        flat, result = x.reshape(-1), out.reshape(-1)
        for part in _chunks(flat.size, x.itemsize):
            if flat[part].nbytes <= SMALL:
                self._reduce_small(title, flat[part], result[part], how, root)
            else:
                self._reduce_blocks(title, flat[part], result[part], how, root)

    def _reduce_small(
        self, title: str, x: np.ndarray, out: np.ndarray, how: str, root: int | None
    ) -> None:
        wanted = self._others if root is None else tuple({root} & set(self._others))
        mine = root in (None, self.position)
        parts = {place: np.empty_like(x) for place in self._others} if mine else {}
        self._exchange(title, dict.fromkeys(wanted, x), parts)
        if mine:
            self._combine(x, parts, out, how)

    def _reduce_blocks(
        self, title: str, x: np.ndarray, out: np.ndarray, how: str, root: int | None
    ) -> None:
        blocks = self._blocks(x.size)
        mine = blocks[self.position]
        parts = {place: np.empty_like(x[mine]) for place in self._others}
        self._exchange(title, {place: x[blocks[place]] for place in self._others}, parts)
        self._combine(x[mine], parts, out[mine], how)
        self._collect(title, out, blocks, root)

    def _combine(
        self, x: np.ndarray, parts: Mapping[int, np.ndarray], out: np.ndarray, how: str
    ) -> None:
        """Combine what the ranks gave, in their order; 16-bit floats are summed in float32."""
        ordered = [parts.get(place, x) for place in range(self.size)]
        if is_float(x.dtype) and x.itemsize == 2:
            out[...] = reduce(_COMBINE[how], [part.astype(np.float32) for part in ordered])
            return
        np.copyto(out, ordered[0])
        for part in ordered[1:]:
            _COMBINE[how](out, part, out=out)

    def _blocks(self, size: int) -> list[slice]:
        """Split a flat array into one block per rank."""
        bounds = [size * place // self.size for place in range(self.size + 1)]
        return [slice(*pair) for pair in pairwise(bounds)]

    def _collect(
        self, title: str, out: np.ndarray, blocks: Sequence[slice], root: int | None
    ) -> None:
        """Let every rank (or the root) have the blocks that each rank has of ``out``."""
        to = self._others if root is None else tuple({root} & set(self._others))
        into = self._others if root in (None, self.position) else ()
        self._exchange(
            title,
            dict.fromkeys(to, out[blocks[self.position]]),
            {place: out[blocks[place]] for place in into},
        )

    def broadcast(self, x: np.ndarray | None, out: np.ndarray, root: int) -> None:
        """Copy as ``Communicator.broadcast`` says: in blocks that the ranks then pass on."""
        title = f"broadcast {_describe(out)} from {self.ranks[root]}"
        if x is not None:
            out[...] = x
        result = out.reshape(-1)
        for part in _chunks(result.size, out.itemsize):
            chunk = result[part]
            small = chunk.nbytes <= SMALL
            blocks = [slice(None)] * self.size if small else self._blocks(chunk.size)
            if x is not None:
                self._exchange(title, {place: chunk[blocks[place]] for place in self._others}, {})
            else:
                self._exchange(title, {}, {root: chunk[blocks[self.position]]})
            if not small:
                self._pass_on(title, chunk, blocks, root)

    def _pass_on(self, title: str, chunk: np.ndarray, blocks: Sequence[slice], root: int) -> None:
        rest = tuple(place for place in self._others if place != root)
        if self.position == root:
            rest_blocks = dict.fromkeys(self._others, chunk[blocks[root]])
            self._exchange(title, rest_blocks, {})
            return
        self._exchange(
            title,
            dict.fromkeys(rest, chunk[blocks[self.position]]),
            {place: chunk[blocks[place]] for place in (*rest, root)},
        )

    def all_gather(self, x: np.ndarray, out: np.ndarray) -> None:
        """Copy as ``Communicator.all_gather`` says."""
        out[self.position] = x
        others = self._others
        self._exchange(
            f"all_gather {_describe(x)}",
            dict.fromkeys(others, x),
            {place: out[place : place + 1] for place in others},
        )

    def gather(self, x: np.ndarray, out: np.ndarray | None, root: int) -> None:
        """Copy as ``Communicator.gather`` says."""
        title = f"gather {_describe(x)} to {self.ranks[root]}"
        if out is None:
            self._exchange(title, {root: x}, {})
            return
        out[self.position] = x
        self._exchange(title, {}, {place: out[place : place + 1] for place in self._others})

    def scatter(self, x: np.ndarray | None, out: np.ndarray, root: int) -> None:
        """Copy as ``Communicator.scatter`` says."""
        title = f"scatter {_describe(out)} from {self.ranks[root]}"
        if x is None:
            self._exchange(title, {}, {root: out})
            return
        out[...] = x[self.position]
        self._exchange(title, {place: x[place : place + 1] for place in self._others}, {})

    def reduce_scatter(self, x: np.ndarray, out: np.ndarray) -> None:
        """Combine as ``Communicator.reduce_scatter`` says."""
        title = f"reduce_scatter_sum {_describe(x)}"
        rows, result = x.reshape(self.size, out.size), out.reshape(-1)
        for part in _chunks(out.size, x.itemsize):
            parts = {place: np.empty_like(result[part]) for place in self._others}
            self._exchange(title, {place: rows[place, part] for place in self._others}, parts)
            self._combine(rows[self.position, part], parts, result[part], SUM)

    def all_to_all(self, x: np.ndarray, out: np.ndarray) -> None:
        """Copy as ``Communicator.all_to_all`` says."""
        out[self.position] = x[self.position]
        self._exchange(
            f"all_to_all {_describe(x)}",
            {place: x[place : place + 1] for place in self._others},
            {place: out[place : place + 1] for place in self._others},
        )

    def send(self, x: np.ndarray, peer: int) -> None:
        """Hand over as ``Communicator.send`` says."""
        self._exchange(f"send {_describe(x)}", {peer: x}, {})

    def receive(self, out: np.ndarray, peer: int) -> None:
        """Wait as ``Communicator.receive`` says."""
        self._exchange(f"send {_describe(out)}", {}, {peer: out})


def _describe(array: np.ndarray) -> str:
    return f"{array.dtype.name}{array.shape}"


def _chunks(size: int, itemsize: int) -> Iterator[slice]:
    """Cut a flat array into pieces; one, empty, where it is empty."""
    step = max(1, CHUNK // itemsize)
    for start in range(0, max(size, 1), step):
        yield slice(start, min(start + step, size))


@hookimpl
def tianyuan_communicators() -> dict[str, Any]:
    """Return core's communicator."""
    return {NAME: TCPCommunicator}
