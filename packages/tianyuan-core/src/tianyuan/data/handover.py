"""Decide how a batch travels from a worker process to the loader: through shared memory.

A batch is pickled with its arrays out of band (protocol 5). Pickle and arrays are laid into one
segment whose name the loader can tell beforehand, so that it can remove what a dead worker left.
Only the segment's layout goes through the pipe, which therefore never fills up.
"""

from __future__ import annotations

import pickle
from contextlib import closing
from multiprocessing import resource_tracker, shared_memory
from pathlib import Path
from typing import Any

_ALIGNMENT = 64

# Offsets and lengths of the pickle and of each array in a segment.
Places = tuple[tuple[int, int], ...]


def start_tracker() -> None:
    """Start the process that removes segments after a crash, so that all workers share it."""
    resource_tracker.ensure_running()


def pack(batch: Any, name: str) -> Places:
    """Lay a batch into a new segment and return where its parts lie."""
    buffers: list[pickle.PickleBuffer] = []
    head = pickle.dumps(batch, protocol=5, buffer_callback=buffers.append)
    parts = [memoryview(head), *(buffer.raw() for buffer in buffers)]
    places, position = [], 0
    for part in parts:
        places.append((position, part.nbytes))
        position += -(-part.nbytes // _ALIGNMENT) * _ALIGNMENT
    segment = shared_memory.SharedMemory(name, create=True, size=position)
    with closing(segment):
        memory = _memory(segment)
        for part, (start, length) in zip(parts, places, strict=True):
            memory[start : start + length] = part
    return tuple(places)


def unpack(name: str, places: Places) -> Any:
    """Return the batch of a segment, in memory of its own, and remove the segment."""
    segment = shared_memory.SharedMemory(name)
    with closing(segment):
        segment.unlink()
        memory = _memory(segment)
        head, *arrays = (bytearray(memory[start : start + length]) for start, length in places)
    return pickle.loads(head, buffers=arrays)


def _memory(segment: shared_memory.SharedMemory) -> memoryview:
    assert segment.buf is not None  # it is open
    return segment.buf


def discard(name: str) -> None:
    """Remove a segment if it exists."""
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
