from collections.abc import Sequence
from typing import Any

import numpy as np

def features() -> dict[str, bool]: ...
def tiers() -> list[str]: ...
def kernel_table() -> Any: ...
def thread_pool() -> Any: ...
def adopt_thread_pool(capsule: Any) -> None: ...
def crc32(data: Any, /) -> int: ...
def call(
    address: int,
    attrs: bytes,
    inputs: Sequence[np.ndarray],
    outputs: Sequence[np.ndarray],
    workspace: np.ndarray | None = None,
    threads: int = 0,
    /,
) -> None: ...

class Program:
    def __init__(
        self,
        slots: list[tuple[Any, ...]],
        steps: list[tuple[Any, ...]],
        counts: tuple[int, int, int],
        arena_size: int,
        threads: int,
        keep: object,
        dtypes: list[np.dtype],
        /,
    ) -> None: ...
    def run(
        self, inputs: list[np.ndarray], states: list[np.ndarray], outputs: list[np.ndarray], /
    ) -> None: ...
    def profile(
        self, inputs: list[np.ndarray], states: list[np.ndarray], outputs: list[np.ndarray], /
    ) -> list[float]: ...
    @property
    def arenas(self) -> int: ...

def apply(op: Any, operands: tuple[Any, ...], attrs: Any, /) -> Any: ...
def wrap(data: Any, spec: Any, /) -> Any: ...
def engine_setup(
    tensor: type, state: Any, choices: tuple[Any, ...], no_attrs: Any, slow: Any, /
) -> None: ...
def engine_add(
    op: Any,
    attrs: Any,
    specs: tuple[Any, ...],
    chosen: tuple[Any, ...],
    made: tuple[Any, ...],
    address: int,
    encoded: bytes,
    workspace: int,
    threads: int,
    title: str,
    owner: Any,
    /,
) -> None: ...
def engine_clear() -> None: ...
