"""Hold ops, devices, layouts and kernels, and choose the kernel for a call."""

from __future__ import annotations

import copyreg
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from importlib import import_module

from . import config
from .device import device_kind, install_count
from .dtypes import DType, name_of
from .errors import BackendError, DeviceError, KernelError, PluginError
from .kernel import FULL, Call, DeviceSpec, Kernel, KernelGroup, Layout, LayoutGroup
from .op import Op
from .records import record

ISA_ORDER = ("any", "avx2", "avx512", "vnni", "bf16", "amx")


class Backend:
    """What one plugin brought for one kind of device: its kernels by op, best first."""

    def __init__(self, name: str, device: str) -> None:
        self.name = name
        self.device = device
        self._brought: dict[str, list[Kernel | KernelGroup]] = {}
        self._described: dict[tuple[str, frozenset[str] | None], tuple[Kernel, ...]] = {}

    def add(self, items: Iterable[Kernel | KernelGroup]) -> None:
        """Attach kernels, and groups that are asked for theirs when an op is looked up."""
        for item in items:
            for op in item.ops if isinstance(item, KernelGroup) else (item.op,):
                self._brought.setdefault(op, []).append(item)
        self._described.clear()

    def of(self, op: str, layouts: frozenset[str] | None = None) -> tuple[Kernel, ...]:
        """Return the kernels of an op, in the order of registration.

        Of kernels that repack, those that have to do with none of ``layouts`` may be left out.
        """
        found = self._described.get((op, layouts))
        if found is None:
            made = (
                kernel.owned_by(self.name)
                for item in self._brought.get(op, ())
                for kernel in _kernels_of(item, op, layouts)
            )
            found = self._described.setdefault((op, layouts), tuple(made))  # threads agree on one
        return found

    @property
    def kernels(self) -> dict[str, tuple[Kernel, ...]]:
        """All kernels by op; describes those that no one has asked for yet."""
        return {op: self.of(op) for op in self._brought}


def _kernels_of(
    item: Kernel | KernelGroup, op: str, layouts: frozenset[str] | None
) -> Iterable[Kernel]:
    if not isinstance(item, KernelGroup):
        return (item,)
    if layouts is not None and item.repacks is not None and layouts.isdisjoint(item.repacks):
        return ()
    return item.of(op)


@record()
class Selection:
    """A chosen kernel, and every kernel that was asked and refused, with its reason."""

    kernel: Kernel
    refusals: tuple[tuple[str, str], ...]


_ops: dict[str, Op] = {}
_layouts: dict[str, Layout | LayoutGroup] = {}
_devices: dict[str, DeviceSpec] = {}
_backends: dict[tuple[str, str], Backend] = {}
_candidates: dict[object, tuple[Kernel, ...]] = {}
_cache: dict[object, Selection] = {}
_heard: dict[tuple[str, str], tuple[str, str]] = {}
_CACHE_LIMIT = 8192
generation = 0  # grows with every registration, so that caches notice


def _bring_nothing(kind: str) -> None:
    """Stand in for the loader until plugins.py installs it."""


# Called with a kind of device before its kernels are looked up: plugins bring them on first use.
_loader: Callable[[str], None] = _bring_nothing


def _no_reason(name: str) -> str:
    return ""


# Called with the name of a backend that is not there.
_reason: Callable[[str], str] = _no_reason

# Core's own ops, by name, and the modules that declare them when one of theirs is looked up.
_own: Mapping[str, str] = {}

BACKEND_CHOICE: ContextVar[str | None] = ContextVar(
    "backend_choice", default=os.environ.get("TIANYUAN_BACKEND") or None
)
ISA_CAP: ContextVar[str | None] = ContextVar(
    "isa_cap", default=os.environ.get("TIANYUAN_ISA") or None
)
if ISA_CAP.get() not in (None, *ISA_ORDER):
    raise BackendError(
        f"TIANYUAN_ISA: unknown instruction set, got {ISA_CAP.get()!r}, "
        f"expected one of {', '.join(ISA_ORDER)}"
    )


def set_own_ops(modules: Mapping[str, str]) -> None:
    """Say which module declares each of core's own ops, as its ``OPS``, in the order of ops."""
    global _own
    _own = modules


def set_loader(loader: Callable[[str], None], reason: Callable[[str], str]) -> None:
    """Install what brings a device's kernels on their first use and tells why a backend failed."""
    global _loader, _reason
    _loader, _reason = loader, reason


def register_op(op: Op) -> Op:
    """Make an op known by its name.

    Raises:
        PluginError: where another op has the name.
    """
    known = _ops.get(op.name)
    if known is not None and known is not op:
        raise PluginError(f"registry: two ops have one name, got {op.name!r}")
    _ops[op.name] = op
    return op


def has_op(name: str) -> bool:
    """Tell whether there is an op of a name, declaring nothing."""
    return name in _ops or name in _own


def get_op(name: str) -> Op:
    """Return the op of a name; raise KeyError where there is none."""
    if name not in _ops and name in _own:
        _declare(_own[name])
    return _ops[name]


def _declare(module: str) -> None:
    for op in import_module(module).OPS:
        register_op(op)


def _named(op: Op) -> tuple[Callable[[str], Op], tuple[str]]:
    """Reduce an op, which is compared by identity, to its name: a copy is the op itself."""
    if not has_op(op.name) or get_op(op.name) is not op:
        raise TypeError(
            f"{op.name}: an op that is not registered can be neither copied nor pickled, expected "
            "one that registry.get_op returns"
        )
    return get_op, (op.name,)


copyreg.pickle(Op, _named)


def all_ops() -> tuple[Op, ...]:
    """Return every registered op, core's own first, then others in the order of registration."""
    for module in dict.fromkeys(_own.values()):
        _declare(module)
    return tuple(_ops[name] for name in dict.fromkeys((*_own, *_ops)))


def register_layout(layout: Layout | LayoutGroup) -> None:
    """Make a layout known; two plugins may bring the same name only with the same extents rule."""
    for name in layout.names if isinstance(layout, LayoutGroup) else (layout.name,):
        _layouts.setdefault(name, layout)


def get_layout(name: str) -> Layout:
    """Return the layout of a name; raise KeyError where there is none."""
    if name not in _layouts:
        _loader("cpu")
    found = _layouts[name]
    if isinstance(found, LayoutGroup):
        described = {layout.name: layout for layout in found.of()}
        _layouts.update({n: described[n] for n in found.names if _layouts.get(n) is found})
        return get_layout(name)
    return found


def register_device(spec: DeviceSpec) -> None:
    """Make a kind of device known."""
    _devices.setdefault(spec.kind, spec)


def get_device_spec(device: str) -> DeviceSpec:
    """Return the spec of a device's kind.

    Raises:
        DeviceError: where no backend serves it.
    """
    spec = _devices.get(device_kind(device))
    if spec is None:
        raise DeviceError(
            f"device: no backend serves it, got {device!r}, "
            f"expected one of {', '.join(sorted(_devices))}"
        )
    return spec


def _count_devices(kind: str) -> int:
    """Return how many devices of a kind the backends serve, loading nothing of them."""
    spec = _devices.get(kind)
    return spec.count() if spec is not None else 0


install_count(_count_devices)


def register_kernels(backend: str, device: str, kernels: Iterable[Kernel | KernelGroup]) -> None:
    """Attach a backend's kernels for one kind of device, best first."""
    global generation
    _backends.setdefault((backend, device), Backend(backend, device)).add(kernels)
    generation += 1
    _candidates.clear()
    _cache.clear()


def unregister(
    backend: str,
    ops: Iterable[str] = (),
    layouts: Iterable[str] = (),
    devices: Iterable[str] = (),
) -> None:
    """Take back all that a backend brought."""
    global generation
    for key in [key for key in _backends if key[0] == backend]:
        del _backends[key]
    for name in ops:
        _ops.pop(name, None)
    for name in layouts:
        _layouts.pop(name, None)
    for kind in devices:
        if not any(served == kind for _, served in _backends) and kind != "cpu":
            _devices.pop(kind, None)
    generation += 1
    _candidates.clear()
    _cache.clear()


def backends(device: str = "cpu") -> tuple[str, ...]:
    """Return the names of the backends that serve a kind of device, first registered first."""
    _loader(device)
    return tuple(name for name, kind in _backends if kind == device)


def all_backends() -> dict[tuple[str, str], Backend]:
    """Return what every backend brought, by (name, kind of device)."""
    return dict(_backends)


def chosen_backend() -> str | None:
    """Return the backend that ``use_backend`` or ``TIANYUAN_BACKEND`` narrows the choice to."""
    return BACKEND_CHOICE.get()


@contextmanager
def use_backend(name: str | None) -> Iterator[None]:
    """Narrow kernel selection to one backend (references stay the last resort) inside a block.

    >>> import tianyuan as ty
    >>> with ty.use_backend("numpy"):
    ...     (ty.Tensor([1.0]) + 1).item()
    2.0
    """
    token = BACKEND_CHOICE.set(name)
    try:
        yield
    finally:
        BACKEND_CHOICE.reset(token)


def candidates(
    op: str,
    device: str = "cpu",
    backend: str | None = None,
    layouts: frozenset[str] | None = None,
) -> tuple[Kernel, ...]:
    """Return all kernels of an op for a device, in the order of registration, references last.

    Of kernels that repack, those that have to do with none of ``layouts`` may be left out.

    Raises:
        BackendError: where the backend asked for does not serve the device.
    """
    kind = device_kind(device)
    _loader(kind)
    known = generation
    key = (op, kind, backend, layouts, known)
    found = _candidates.get(key)
    if found is None:
        found = _found_candidates(op, kind, backend, layouts)
        if generation != known:  # describing them failed, and their backend was taken back
            return candidates(op, device, backend, layouts)
        _candidates[key] = found
    return found


def _found_candidates(
    op: str, kind: str, backend: str | None, layouts: frozenset[str] | None
) -> tuple[Kernel, ...]:
    if backend is not None and (backend, kind) not in _backends:
        why = f" ({_reason(backend)})" if _reason(backend) else ""
        raise BackendError(
            f"backend: not available for {kind}, got {backend!r}{why}, "
            f"expected one of {', '.join(backends(kind)) or 'none'}"
        )
    found = [
        kernel
        for (name, served), entry in list(_backends.items())
        if served == kind
        for kernel in entry.of(op, layouts)
        if backend in (None, name) or kernel.is_reference
    ]
    return tuple(sorted(found, key=lambda kernel: kernel.is_reference))


def refusal(kernel: Kernel, call: Call, isa_cap: str | None = None) -> str | None:
    """Return why a kernel cannot serve a call, or None where it can."""
    if isa_cap and isa_cap in ISA_ORDER and kernel.isa in ISA_ORDER:
        beyond = ISA_ORDER.index(kernel.isa) > ISA_ORDER.index(isa_cap)
        if beyond:
            return f"needs {kernel.isa}, capped at {isa_cap}"
    if kernel.is_native and call.beyond_c is not None:
        return call.beyond_c
    if kernel.dtypes is not None:
        reason = _dtype_refusal(kernel.dtypes, call.dtypes)
        if reason is not None:
            return reason
    try:
        return kernel.supports(call)
    except Exception as error:
        raise KernelError(
            f"{call.op.name}: kernel {kernel.name} of {kernel.backend or 'no backend'} raised in "
            f"supports: {type(error).__name__}: {error}"
        ) from error


def _cost(kernel: Kernel, call: Call) -> float:
    try:
        return float(kernel.cost(call))
    except Exception as error:
        raise KernelError(
            f"{call.op.name}: kernel {kernel.name} of {kernel.backend or 'no backend'} raised in "
            f"cost: {type(error).__name__}: {error}"
        ) from error


@lru_cache(1024)
def _dtype_refusal(accepted: tuple[str, ...], given: tuple[DType, ...]) -> str | None:
    for index, dtype in enumerate(given):
        served, name = accepted[min(index, len(accepted) - 1)], name_of(dtype)
        if served != "*" and name not in served.split("|"):
            return f"input {index} is {name}, serves {served}"
    return None


def isa_cap() -> str | None:
    """Return the instruction set that ``TIANYUAN_ISA`` or ``use_isa`` caps kernels at, or None."""
    return ISA_CAP.get()


@contextmanager
def use_isa(cap: str | None) -> Iterator[None]:
    """Leave out kernels that need more than an instruction set inside a block.

    Raises:
        BackendError: where the name is not a known instruction set.
    """
    if cap is not None and cap not in ISA_ORDER:
        raise BackendError(
            f"use_isa: unknown instruction set, got {cap!r}, expected one of {', '.join(ISA_ORDER)}"
        )
    token = ISA_CAP.set(cap)
    try:
        yield
    finally:
        ISA_CAP.reset(token)


def supporting(
    call: Call, device: str = "cpu", asked: Iterable[Kernel] | None = None
) -> tuple[dict[Kernel, float], list[tuple[str, str]]]:
    """Return the kernels that serve a call with their costs, and the refusals of the others.

    The cheapest comes first, references last. ``asked`` are those to ask, all of the op's
    candidates if None.
    """
    cap, costs, refused = isa_cap(), {}, []
    if len(_heard) >= _CACHE_LIMIT:
        _heard.clear()
    if asked is None:
        asked = candidates(call.op.name, device, chosen_backend())
    for kernel in asked:
        reason = refusal(kernel, call, cap)
        if reason is None and config.deterministic_kernel and not kernel.reproducible:
            reason = "not reproducible, which config.deterministic_kernel asks for"
        if reason is None:
            costs[kernel] = _cost(kernel, call)
        else:
            heard = (kernel.name, reason)
            refused.append(_heard.setdefault(heard, heard))  # most calls hear the same
    served = sorted(costs, key=lambda kernel: (kernel.is_reference, costs[kernel]))
    return {kernel: costs[kernel] for kernel in served}, refused


def select(call: Call, device: str = "cpu", plain_only: bool = True) -> Selection:
    """Choose the cheapest kernel that serves a call; ``plain_only`` leaves out blocked layouts.

    Raises:
        KernelError: where none serves it; the message names every refusal.
    """
    key = (call.key, device, chosen_backend(), isa_cap(), plain_only, config.setting,
           generation)  # fmt: skip
    found = _cache.get(key)
    if found is None:
        found = _select(call, device, plain_only)
        if len(_cache) >= _CACHE_LIMIT:
            _cache.clear()
        _cache[key] = found
    return found


def _select(call: Call, device: str, plain_only: bool) -> Selection:
    served, refused = supporting(call, device)
    for kernel in served:
        if kernel.precision != FULL:
            refused.append((kernel.name, f"computes in {kernel.precision}, eagerly is {FULL}"))
            continue
        names = (*kernel.layouts.inputs, *kernel.layouts.outputs)
        if not plain_only or all(name in ("plain", "same") for name in names):
            return Selection(kernel, tuple(refused))
        refused.append((kernel.name, f"works on layout {names[0]}"))
    reasons = "; ".join(f"{name}: {reason}" for name, reason in refused) or "no kernel is known"
    inputs = ", ".join(map(str, call.inputs))
    raise KernelError(f"{call.op.name}: no kernel serves ({inputs}) on {device}: {reasons}")
