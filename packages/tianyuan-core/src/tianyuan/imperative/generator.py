"""Hand out Philox blocks: every draw takes its own, eagerly and in each run of a trace alike."""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any

import numpy as np

from .. import registry, shapes
from ..errors import AttrError, AttrTypeError
from .hostvalue import host_value
from .state import state

# A draw takes whole strides of blocks (four 32-bit words each), so that a traced function whose
# extents are symbolic leaves the generator where an eager one would.
STRIDE = 1 << 28


class Generator:
    """A stream of random numbers, wholly described by (seed, offset).

    Args:
        seed: any int from 0 to 2**64 - 1; taken from the system if None.
    """

    def __init__(self, seed: int | None = None) -> None:
        self._lock = threading.Lock()
        self._shared: _Shared | None = None
        self.seed(int.from_bytes(os.urandom(4), "little") if seed is None else seed)

    def __getstate__(self) -> dict[str, int]:
        return self.get_state()

    def __setstate__(self, value: dict[str, int]) -> None:
        self._lock, self._shared = threading.Lock(), None
        self.set_state(value)

    def seed(self, seed: int) -> None:
        """Start the stream of a seed anew.

        Raises:
            AttrTypeError: where the seed is not an int of 64 bits.
        """
        if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)):
            raise AttrTypeError(f"seed: must be an int, got {seed!r}, expected 0 to 2**64 - 1")
        if not 0 <= int(seed) < 1 << 64:
            raise AttrError(f"seed: out of range, got {seed}, expected 0 to 2**64 - 1")
        with self._lock:
            self._seed, self._offset = int(seed), 0

    def get_state(self) -> dict[str, int]:
        """Return seed and offset, from which ``set_state`` continues."""
        with self._lock:
            return {"seed": self._seed, "offset": self._offset}

    def set_state(self, value: dict[str, int]) -> None:
        """Continue from what ``get_state`` returned.

        Raises:
            AttrError: where a key is missing or a value is not an int.
        """
        try:
            seed, offset = int(value["seed"]), int(value["offset"])
        except (KeyError, TypeError, ValueError):
            raise AttrError(
                f"set_state: got {value!r}, expected a dict with ints 'seed' and 'offset'"
            ) from None
        self.seed(seed)
        with self._lock:
            self._offset = offset

    def _take(self, blocks: int) -> np.ndarray:
        """Return (seed, offset) as an op takes it, and step over some blocks."""
        with self._lock:
            place = np.array([self._seed, self._offset], np.uint64).view(np.int64)
            self._offset = (self._offset + blocks) % (1 << 64)
        return place

    def _step(self, blocks: int) -> None:
        self._take(blocks)

    def draw(self, op: str, shape: shapes.Shape, dtype: str) -> Any:
        """Apply a random op to the blocks that are next, and step over them."""
        words = 2 if dtype == "float64" else 1
        blocks = -(-int(shapes.volume(shape)) * words // 4)
        taken = STRIDE * max(1, -(-blocks // STRIDE))
        found, skip = registry.get_op(op), 0
        if state.recorder is None:
            place = host_value(lambda: self._take(taken), "int64")
        else:
            shared = self._shared_by(state.recorder)
            place, skip = shared.place, shared.taken
            shared.taken += taken
        return found(place, shape=tuple(shape), dtype=dtype, skip=skip)

    def _shared_by(self, recorder: Any) -> _Shared:
        """Return the one program input that all draws of a trace start from."""
        shared = self._shared
        if shared is None or shared.recorder() is not recorder:
            shared = self._shared = _Shared(recorder)
            shared.place = host_value(
                lambda: self._take(0), "int64", lambda: self._step(shared.taken)
            )
        return shared


class _Shared:
    """Where the draws of one trace start, and how many blocks they take together."""

    def __init__(self, recorder: Any) -> None:
        self.recorder = weakref.ref(recorder)
        self.place: Any = None
        self.taken = 0


default = Generator()
