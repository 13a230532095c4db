"""Decide what native plugins share: one thread pool, its size, and who runs C kernels eagerly."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from .abi import ABI_VERSION
from .errors import AttrError, DataError, IndexRangeError, KernelError, PluginError
from .kernel import CFunction
from .locks import Lock

# structs is imported where a native plugin is met, calling where a C kernel is run without one.

if TYPE_CHECKING:
    from .structs import TyThreadPool

MAX_THREADS = 1024

# What the codes of failed kernels mean, where abi.h gives them a meaning.
FAILURES: dict[int, type[KernelError]] = {2: IndexRangeError, 3: DataError}

# invoke(address, attrs, inputs, outputs, workspace, threads): runs a ty_run on plain arrays.
Invoker = Callable[
    [int, bytes, Sequence[np.ndarray], Sequence[np.ndarray], "np.ndarray | None", int], None
]


class Engine(Protocol):
    """What a native plugin may bring: eager calls without Python between them.

    ``apply`` stands before core's, which sees to every call that the engine has no plan for and
    offers it the plan by ``engine_add`` (imperative/dispatch.py).
    """

    def apply(self, op: Any, operands: tuple[Any, ...], attrs: Any, /) -> Any: ...

    def wrap(self, data: Any, spec: Any, /) -> Any: ...

    def engine_setup(
        self, tensor: type, state: Any, choices: tuple[Any, ...], no_attrs: Any, slow: Any, /
    ) -> None: ...

    def engine_add(
        self,
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

    def engine_clear(self) -> None: ...


engine: Engine | None = None
crc32: Callable[[Any], int] | None = None  # of bytes, where a native plugin is quicker than zlib
_install: Callable[[Engine], None] | None = None

_lock = Lock()
_threads: int | None = None
_pool: Any = None


def _default_threads() -> int:
    text = os.environ.get("TIANYUAN_NUM_THREADS", "").strip()
    if not text:
        return (
            len(os.sched_getaffinity(0))
            if hasattr(os, "sched_getaffinity")
            else (os.cpu_count() or 1)
        )
    if not text.isdecimal() or not 1 <= int(text) <= MAX_THREADS:
        raise AttrError(
            f"TIANYUAN_NUM_THREADS: must be an integer, got {text!r}, expected 1 to {MAX_THREADS}"
        )
    return int(text)


def get_num_threads() -> int:
    """Return how many threads may take part in one kernel.

    Raises:
        AttrError: where TIANYUAN_NUM_THREADS is not a positive integer.

    >>> 1 <= get_num_threads() <= 1024
    True
    """
    global _threads
    if _threads is None:
        _threads = _default_threads()
    return _threads


def check_threads(owner: str, threads: Any) -> None:
    """Raise AttrError where a number of threads is no integer from 1 to 1024.

    >>> check_threads("load", 2)
    """
    if not isinstance(threads, int) or not 1 <= threads <= MAX_THREADS:
        raise AttrError(
            f"{owner}: threads must be an integer, got {threads!r}, expected 1 to {MAX_THREADS}"
        )


def set_num_threads(threads: int) -> None:
    """Choose how many threads may take part in one kernel.

    Raises:
        AttrError: where it is no integer from 1 to 1024.

    >>> before = get_num_threads()
    >>> set_num_threads(2)
    >>> get_num_threads()
    2
    >>> set_num_threads(before)
    """
    global _threads
    check_threads("set_num_threads", threads)
    with _lock:
        _threads = threads
        if _pool is not None:
            _resize(_pool, _threads)


def _pool_of(capsule: Any) -> TyThreadPool:
    from .structs import THREAD_POOL_CAPSULE, TyThreadPool, capsule_pointer

    return TyThreadPool.from_address(capsule_pointer(capsule, THREAD_POOL_CAPSULE))


def _resize(capsule: Any, threads: int) -> None:
    pool = _pool_of(capsule)
    pool.resize(pool.self, threads)


def publish_thread_pool(capsule: Any) -> Any:
    """Offer a ``ty_thread_pool`` capsule as the process's pool; return the one that won.

    The first that is offered wins, and is resized to ``get_num_threads()``; a plugin that gets
    another one back uses that.

    Raises:
        PluginError: where it is another capsule, or of another ABI version.
    """
    global _pool
    threads = get_num_threads()
    pool = _pool_of(capsule)
    if pool.abi_version != ABI_VERSION:
        raise PluginError(
            f"thread pool: ABI version differs, got {pool.abi_version}, expected {ABI_VERSION}"
        )
    with _lock:
        if _pool is None:
            _resize(capsule, threads)
            _pool = capsule
        return _pool


def published_thread_pool() -> Any:
    """Return the capsule of the process's thread pool, or None before a native plugin is used."""
    return _pool


def functions_of_table(capsule: Any) -> Mapping[str, CFunction]:
    """Return the functions of a ``ty_kernel_table`` capsule by kernel name, best first.

    Raises:
        PluginError: where it is another capsule, or of another ABI version.

    >>> import ctypes
    >>> from tianyuan.structs import KERNEL_TABLE_CAPSULE, TyKernelTable
    >>> new_capsule = ctypes.pythonapi.PyCapsule_New
    >>> new_capsule.restype = ctypes.py_object
    >>> new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    >>> table = TyKernelTable(abi_version=ABI_VERSION, count=0)
    >>> len(functions_of_table(new_capsule(ctypes.addressof(table), KERNEL_TABLE_CAPSULE, None)))
    0
    """
    from .structs import KernelFunctions

    return KernelFunctions(capsule)


def invoke_by_ctypes(
    address: int,
    attrs: bytes,
    inputs: Sequence[np.ndarray],
    outputs: Sequence[np.ndarray],
    workspace: np.ndarray | None,
    threads: int = 0,
) -> None:
    """Run a C kernel on one thread without any native plugin.

    Raises:
        KernelError: where an array cannot be passed or the kernel reports failure; one of
            ``FAILURES`` where its code says so.
    """
    from .calling import invoke

    invoke(address, attrs, inputs, outputs, workspace)


invoker: Invoker = invoke_by_ctypes  # replaced by the first native plugin that is used


def set_invoker(function: Invoker) -> None:
    """Install a faster way to run C kernels; the first native plugin's stays."""
    global invoker
    with _lock:
        if invoker is invoke_by_ctypes:
            invoker = function


def set_crc32(function: Callable[[Any], int]) -> None:
    """Install a faster CRC-32, with zlib's results; the first native plugin's stays."""
    global crc32
    with _lock:
        if crc32 is None:
            crc32 = function


def set_engine_installer(install: Callable[[Engine], None]) -> None:
    """Say how an engine takes core's place, once one is brought (tensors stand above this)."""
    global _install
    _install = install


def set_engine(brought: Engine) -> None:
    """Install an engine for eager calls; the first native plugin's stays."""
    global engine
    with _lock:
        if engine is None and _install is not None:
            _install(brought)
            engine = brought
