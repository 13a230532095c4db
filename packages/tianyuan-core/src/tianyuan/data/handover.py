"""Decide how batches travel from a worker process to the loader: through shared memory.

A batch is pickled with its arrays out of band (protocol 5). Pickle and arrays are laid into a
segment; only its layout goes through the pipe, which therefore never fills up. A worker has a few
slots that it fills in turn. The segment of a slot is used again and again, because fresh shared
memory costs far more than copying, and is replaced by a larger one where a batch does not fit.

A segment has a name only until the loader has seen it: then the loader removes the name, and the
memory lives as long as the two processes hold it. So nothing is left when they are gone, and a
loader can tell beforehand which names a dead worker may have left.
"""

from __future__ import annotations

import pickle
import threading
from multiprocessing import resource_tracker, shared_memory
from pathlib import Path
from typing import Any

import numpy as np

from .interrupt import uninterrupted

_ALIGNMENT = 64
_GROWTH = 1.25  # so that batches of slowly growing sizes do not need a new segment each

# Held where this process talks to the tracker of shared memory, and while it forks: a worker
# forked while another thread talks would wait for ever for a lock that nobody gives back.
TRACKED = threading.RLock()

# Slot, generation of its segment, and offsets and lengths of the pickle and of each array.
Parcel = tuple[int, int, tuple[tuple[int, int], ...]]
_Segments = dict[int, tuple[int, shared_memory.SharedMemory]]


def start_tracker() -> None:
    """Start the process that removes segments after a crash, so that all workers share it."""
    with TRACKED:
        resource_tracker.ensure_running()


class Outbox:
    """A worker's side: lays batches into the segments of its slots."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._segments: _Segments = {}

    def pack(self, batch: Any, slot: int) -> Parcel:
        """Lay a batch into a slot whose last batch has been taken, and tell where its parts lie."""
        buffers: list[pickle.PickleBuffer] = []
        head = pickle.dumps(batch, protocol=5, buffer_callback=buffers.append)
        parts = [memoryview(head), *(buffer.raw() for buffer in buffers)]
        places, size = [], 0
        for part in parts:
            places.append((size, part.nbytes))
            size += -(-part.nbytes // _ALIGNMENT) * _ALIGNMENT
        generation, segment = self._segment(slot, size)
        memory = _memory(segment)
        for part, (start, length) in zip(parts, places, strict=True):
            memory[start : start + length] = part
        return slot, generation, tuple(places)

    def _segment(self, slot: int, size: int) -> tuple[int, shared_memory.SharedMemory]:
        generation, segment = self._segments.get(slot, (0, None))
        if segment is not None:
            if segment.size >= size:
                return generation, segment
            segment.close()
            size = int(size * _GROWTH)
        name = _name(self._prefix, slot, generation + 1)
        made = shared_memory.SharedMemory(name, create=True, size=size)
        self._segments[slot] = generation + 1, made
        return self._segments[slot]


class Inbox:
    """The loader's side of one worker's slots."""

    def __init__(self, prefix: str, slots: int) -> None:
        self._prefix = prefix
        self._slots = slots
        self._segments: _Segments = {}

    def unpack(self, parcel: Parcel) -> Any:
        """Return the batch that lies in a slot, in memory of its own."""
        slot, generation, places = parcel
        held = self._segments.get(slot)
        if held is None or held[0] != generation:
            if held is not None:
                held[1].close()
            with uninterrupted(), TRACKED:
                segment = shared_memory.SharedMemory(_name(self._prefix, slot, generation))
                segment.unlink()
                self._segments[slot] = generation, segment
        segment = self._segments[slot][1]
        head, *arrays = [_copied(segment, start, length) for start, length in places]
        return pickle.loads(head.data, buffers=arrays)

    def close(self) -> None:
        """Let go of all segments, and remove what the worker made and the loader never saw."""
        for slot in range(self._slots):
            generation, segment = self._segments.pop(slot, (0, None))
            if segment is not None:
                segment.close()
            _discard(_name(self._prefix, slot, generation + 1))


def _name(prefix: str, slot: int, generation: int) -> str:
    return f"{prefix}_{slot}_{generation}"


def _memory(segment: shared_memory.SharedMemory) -> memoryview:
    assert segment.buf is not None  # it is open
    return segment.buf


def _copied(segment: shared_memory.SharedMemory, start: int, length: int) -> np.ndarray:
    """Return a part of a segment in memory of its own.

    No name stands for the view: Ctrl-C would keep it in its traceback, and a segment that is viewed
    cannot be closed.
    """
    fresh = np.empty(length, np.uint8)  # numpy asks for huge pages, which several times pays
    fresh[:] = np.frombuffer(_memory(segment), np.uint8, length, start)
    return fresh


def _discard(name: str) -> None:
    with TRACKED:
        try:
            segment = shared_memory.SharedMemory(name)
        except FileNotFoundError:
            return
        except ValueError:
            # Its worker died between making it and giving it a size, before the tracker knew it.
            Path("/dev/shm", name).unlink(missing_ok=True)
        else:
            segment.close()
            segment.unlink()
