"""Parse device strings, hold the default device, and answer what devices and memory there are.

Example:
    >>> from tianyuan import device
    >>> device.get_default_device(), device.what_is_xpu()
    ('cpu', 'cpu')
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from enum import Enum
from functools import lru_cache
from typing import Protocol

from .errors import DeviceError

_ALIASES = {"xpu": "cpu", "gpu": "cuda", "multithread": "cpu"}
_PATTERN = r"^([a-z]+?)(x|\d+)?(?::(x|\d+|default)(?::(\d+))?)?$"


class DeviceType(Enum):
    """Kinds of devices, as ``set_prealloc_config`` takes them.

    Example:
        >>> from tianyuan.device import DeviceType
        >>> DeviceType.CUDA.value
        'cuda'
    """

    CPU = "cpu"
    CUDA = "cuda"
    ROCM = "rocm"
    CAMBRICON = "cambricon"
    ATLAS = "atlas"
    MULTITHREAD = "multithread"


class MemorySource(Protocol):
    """Answers about the memory of the host; the imperative runtime installs it."""

    def total_and_free(self) -> tuple[int, int]: ...
    def allocated(self, where: str) -> int: ...
    def max_allocated(self) -> int: ...
    def reserved(self) -> int: ...
    def max_reserved(self) -> int: ...
    def reset(self) -> None: ...
    def coalesce(self) -> None: ...


_memory: MemorySource
_count_of: Callable[[str], int]


def install_memory(source: MemorySource) -> None:
    """Say who knows about memory (it stands above this module)."""
    global _memory
    _memory = source


def install_count(count_of: Callable[[str], int]) -> None:
    """Say who knows how many devices of a kind the backends serve."""
    global _count_of
    _count_of = count_of


@lru_cache(maxsize=256)
def parse_device(text: str) -> str:
    """Return the canonical name of a device: ``cpu``, ``cuda:0``, ``cuda:1``.

    MegEngine's spellings are understood: ``cpux``, ``cpu0``, ``cpu:default``, ``gpu0``, ``xpux``,
    ``multithread4:0``, ``multithread:default:4``.

    Raises:
        DeviceError: where the text names no device.

    Example:
        >>> from tianyuan.device import parse_device
        >>> [parse_device(text) for text in ("cpux", "multithread4:0", "gpu1")]
        ['cpu', 'cpu', 'cuda:1']
    """
    if text == "cpu":
        return text  # as nearly always; compiling the pattern takes a while
    match = re.match(_PATTERN, text) if isinstance(text, str) else None
    if match is None:
        raise DeviceError(
            f"device: cannot be parsed, got {text!r}, expected like 'cpu' or 'cuda:0'"
        )
    kind = _ALIASES.get(match[1], match[1])
    if kind == "cpu":
        return "cpu"
    first = match[3] if match[3] not in (None, "default") else match[2]
    index = 0 if first in (None, "x") else int(first)
    return f"{kind}:{index}"


def device_kind(device: str) -> str:
    """Return ``cpu`` for ``cpu`` and ``cuda`` for ``cuda:1``.

    Example:
        >>> from tianyuan.device import device_kind
        >>> device_kind("cuda:1")
        'cuda'
    """
    return device.partition(":")[0]


_default = parse_device(os.environ.get("TIANYUAN_DEFAULT_DEVICE", "cpu"))


def get_default_device() -> str:
    """Return the device on which new tensors lie when none is named.

    Example:
        >>> import tianyuan as ty
        >>> ty.get_default_device()
        'cpu'
    """
    return _default


def set_default_device(device: str = "xpux") -> None:
    """Choose the device on which new tensors lie when none is named.

    Raises:
        DeviceError: where the text names no device.

    Example:
        >>> import tianyuan as ty
        >>> ty.set_default_device("cpux")
        >>> ty.get_default_device()
        'cpu'
    """
    global _default
    _default = parse_device(device)


def what_is_xpu() -> str:
    """Return the kind of device that ``xpu`` stands for: always ``cpu``.

    A program names ``cuda`` to get it, so that installing a backend never moves its tensors.

    Example:
        >>> from tianyuan.device import what_is_xpu
        >>> what_is_xpu()
        'cpu'
    """
    return device_kind(parse_device("xpux"))


def get_device_count(device_type: str) -> int:
    """Return how many devices of a kind there are: for ``cpu`` the cores this process may use.

    A kind that no installed backend serves has none.

    Raises:
        DeviceError: where the text names no kind of device.

    Example:
        >>> from tianyuan.device import get_device_count
        >>> get_device_count("cpu") >= 1
        True
    """
    kind = device_kind(parse_device(device_type))
    if kind == "cpu":
        affinity = getattr(os, "sched_getaffinity", None)
        return len(affinity(0)) if affinity else os.cpu_count() or 1
    return _count_of(kind)


def is_cuda_available() -> bool:
    """Tell whether a backend serves a CUDA device here.

    Example:
        >>> from tianyuan.device import get_device_count, is_cuda_available
        >>> is_cuda_available() == (get_device_count("gpu") > 0)
        True
    """
    return get_device_count("cuda") > 0


def is_rocm_available() -> bool:
    """Tell whether a backend serves a ROCm device here.

    Example:
        >>> from tianyuan.device import is_rocm_available
        >>> is_rocm_available()
        False
    """
    return get_device_count("rocm") > 0


def is_cambricon_available() -> bool:
    """Tell whether a backend serves a Cambricon device here.

    Example:
        >>> from tianyuan.device import is_cambricon_available
        >>> is_cambricon_available()
        False
    """
    return get_device_count("cambricon") > 0


def is_atlas_available() -> bool:
    """Tell whether a backend serves an Atlas device here.

    Example:
        >>> from tianyuan.device import is_atlas_available
        >>> is_atlas_available()
        False
    """
    return get_device_count("atlas") > 0


def _host(device: str | None, what: str) -> str:
    where = _default if device is None else parse_device(device)
    if device_kind(where) != "cpu":
        raise DeviceError(f"{what}: only the host's memory is counted, got {where}, expected 'cpu'")
    return where


def get_mem_status_bytes(device: str | None = None) -> tuple[int, int]:
    """Return a device's bytes of memory in all, and those still free.

    Args:
        device: the default device if None. This and the functions below count the host only.

    Raises:
        DeviceError: for another device than the host.

    Example:
        >>> from tianyuan.device import get_mem_status_bytes
        >>> total, free = get_mem_status_bytes("cpux")
        >>> 0 < free <= total
        True
    """
    _host(device, "get_mem_status_bytes")
    return _memory.total_and_free()


def get_allocated_memory(device: str | None = None) -> int:
    """Return the bytes that live tensors hold; memory that several share counts once.

    Raises:
        DeviceError: for another device than the host.

    Example:
        >>> import numpy as np, tianyuan as ty
        >>> from tianyuan.device import get_allocated_memory
        >>> before = get_allocated_memory()
        >>> x = ty.Tensor(np.zeros(1000, np.float32)) + 1
        >>> get_allocated_memory() - before >= 4000
        True
    """
    return _memory.allocated(_host(device, "get_allocated_memory"))


def get_max_allocated_memory(device: str | None = None) -> int:
    """Return the most bytes that tensors held at a time.

    Every result is followed from the first ``reset_max_memory_stats`` on; before that, the most
    that was seen when somebody asked.

    Raises:
        DeviceError: for another device than the host.

    Example:
        >>> from tianyuan.device import get_allocated_memory, get_max_allocated_memory
        >>> get_max_allocated_memory() >= get_allocated_memory()
        True
    """
    _host(device, "get_max_allocated_memory")
    return _memory.max_allocated()


def get_reserved_memory(device: str | None = None) -> int:
    """Return the bytes that the process holds of the system: its resident set.

    Raises:
        DeviceError: for another device than the host.

    Example:
        >>> from tianyuan.device import get_reserved_memory
        >>> get_reserved_memory() > 0
        True
    """
    _host(device, "get_reserved_memory")
    return _memory.reserved()


def get_max_reserved_memory(device: str | None = None) -> int:
    """Return the most bytes that the process held of the system since the last reset.

    Raises:
        DeviceError: for another device than the host.

    Example:
        >>> from tianyuan.device import get_max_reserved_memory
        >>> get_max_reserved_memory() > 0
        True
    """
    _host(device, "get_max_reserved_memory")
    return _memory.max_reserved()


def reset_max_memory_stats(device: str | None = None) -> None:
    """Begin the peaks anew, and follow every result of an eager op from here on.

    Raises:
        DeviceError: for another device than the host.

    Example:
        >>> from tianyuan import device
        >>> device.reset_max_memory_stats()
        >>> device.get_max_allocated_memory() >= device.get_allocated_memory()
        True
    """
    _host(device, "reset_max_memory_stats")
    _memory.reset()


def coalesce_free_memory() -> None:
    """Give memory that no object uses back to the system.

    Example:
        >>> from tianyuan.device import coalesce_free_memory
        >>> coalesce_free_memory()
    """
    _memory.coalesce()


def set_prealloc_config(
    alignment: int = 1,
    min_req: int = 32 * 1024 * 1024,
    max_overhead: int = 0,
    growth_factor: float = 2.0,
    device_type: DeviceType = DeviceType.CUDA,
) -> None:
    """Check a configuration of preallocation, which has nothing to act on.

    Host memory is the C allocator's, arenas of programs have exactly the planned size, and other
    devices' pools belong to their backends, so nothing is allocated ahead of need.

    Args:
        alignment: bytes, a power of two.
        min_req: least bytes of one request to the system.
        max_overhead: most bytes that may lie unused.
        growth_factor: how much larger each request is than the last, at least 1.
        device_type: the kind of device that is meant.

    Raises:
        DeviceError: where a value cannot be one.

    Example:
        >>> from tianyuan.device import set_prealloc_config
        >>> set_prealloc_config(alignment=64)
    """
    faults = {
        "alignment": alignment < 1 or alignment & (alignment - 1),
        "min_req": min_req < 0,
        "max_overhead": max_overhead < 0,
        "growth_factor": growth_factor < 1,
        "device_type": not isinstance(device_type, DeviceType),
    }
    wrong = [name for name, fault in faults.items() if fault]
    if wrong:
        raise DeviceError(f"set_prealloc_config: wrong value of {', '.join(wrong)}")
