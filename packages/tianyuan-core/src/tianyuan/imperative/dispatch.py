"""The one ``apply``: infer, record on the trace or run at once, record on the tapes."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import abi, config, native, plugins, registry, shapes
from ..errors import AttrError, DeviceError, DTypeError, KernelError, ShapeError, TraceError
from ..kernel import PLAIN, SAME, Call, CFunction, Context, DeviceSpec, Kernel
from ..op import NO_ATTRS, Op, Specs, TensorSpec, intern_spec
from . import memory, monitor
from .state import state

if TYPE_CHECKING:
    from .tensor import Tensor

_PACKAGE = os.path.dirname(os.path.dirname(__file__)) + os.sep
_FUNCTIONAL = os.path.join(_PACKAGE, "functional", "")
_ARGUMENTS = os.path.join(_FUNCTIONAL, "arguments.py")  # what all functions reach ops through
_ALIGNMENT = 64
_ALIGN_FROM = 4096  # below this, a plain allocation is cheaper than what alignment saves

wrap: Callable[[Any, TensorSpec], Tensor]  # makes a tensor of data in its final form


def install(maker: Callable[[Any, TensorSpec], Tensor]) -> None:
    """Say how outputs become tensors (tensor.py stands above this module)."""
    global wrap
    wrap = maker


def is_concrete(data: Any) -> bool:
    """Tell whether data is stored somewhere, rather than a value of a graph being traced."""
    return isinstance(data, np.ndarray) or not hasattr(data, "node")


def is_known(tensor: Tensor) -> bool:
    """Tell whether a tensor's value can be looked at: it is stored, and no trace is recorded."""
    return state.recorder is None and is_concrete(tensor._data)


def user_line() -> str:
    """Return ``file:line`` of the innermost frame outside of this package and of plugins'.

    Where something stands in for it, that is returned.
    """
    return state.origin or _user()[0]


def user_call(op: str) -> str:
    """Return ``user_line()``, and which function was called there, where it is not named as the op.

    What a user wrote as ``cross_entropy`` is several ops, one of which may fail.
    """
    if state.origin:
        return state.origin
    line, called = _user()
    return line if called in ("", op) else f"{line} in {called}"


def _user() -> tuple[str, str]:
    """Return the user's line, and the function of ``functional`` that it reached first, or none."""
    inner = (_PACKAGE, *plugins.folders())
    frame, called = sys._getframe(1), ""
    while frame is not None and frame.f_code.co_filename.startswith(inner):
        code = frame.f_code
        known = code.co_filename.startswith(_FUNCTIONAL) and code.co_filename != _ARGUMENTS
        if known and not code.co_name.startswith(("_", "<")):
            called = code.co_name
        frame = frame.f_back  # type: ignore[assignment]
    return f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame is not None else "?", called


def raising_line(error: BaseException) -> str:
    """Return ``file:line`` of the innermost frame of a user's that an error came through."""
    inner = (_PACKAGE, *plugins.folders())
    found, trail = "?", error.__traceback__
    while trail is not None:
        file = trail.tb_frame.f_code.co_filename
        if not file.startswith(inner):
            found = f"{file}:{trail.tb_lineno}"
        trail = trail.tb_next
    return found


def apply(op: Op, operands: Sequence[Any], attrs: Any) -> Any:
    """Apply an op to tensors in the active runtime.

    Returns a Tensor, or a tuple of them where the op has several outputs.

    Raises:
        ShapeError, DTypeError, AttrError: where inference refuses the inputs.
        DeviceError: where the inputs lie on different devices.
        KernelError: where no kernel serves the call.
    """
    if state.interceptor is not None:
        return state.interceptor(op, operands, attrs)
    if state.precision is not None:
        from . import precision  # while autocast is on only

        operands = precision.meet(op.name, operands, *state.precision)
    try:
        specs = [tensor._spec for tensor in operands]
    except AttributeError:
        kinds = ", ".join(type(operand).__name__ for operand in operands)
        raise AttrError(
            f"{op.name}: inputs must be tensors, got {kinds}, expected Tensor alone"
        ) from None
    recorder = state.recorder
    if recorder is not None:
        datas = [recorder.lift(tensor) for tensor in operands]
        outputs = recorder.record(op, datas, attrs)
        if any(spec.quant is not None for spec in specs):
            _expect_numbers(op, specs, tuple(tensor._spec for tensor in outputs))
    else:
        datas = [tensor._data for tensor in operands]
        outputs = _run_now(op, datas, tuple(specs), attrs)
    for tape in state.tapes:
        tape.record_op(op, attrs, datas, specs, outputs)
    return outputs[0] if len(outputs) == 1 else tuple(outputs)


class _Plan:
    """How an eager call of one kind runs: chosen once, then only looked up."""

    __slots__ = ("specs", "run", "workspace", "device", "native")

    def __init__(self, op: Op, specs: Specs, attrs: Any) -> None:
        op.check_count(len(specs))
        device = _common_device(op, specs)
        self.specs = tuple(map(intern_spec, op.infer(specs, attrs)))
        if any(spec.quant is not None for spec in specs):
            _expect_numbers(op, specs, self.specs)
        if not specs and device != "cpu":
            self.specs = tuple(TensorSpec(s.shape, s.dtype, device, s.quant) for s in self.specs)
        call = Call(op, specs, self.specs, attrs, native.get_num_threads())
        kernel = registry.select(call, device).kernel
        run = bind_kernel(kernel, call)
        self.run = monitor.watched(run, kernel, call, user_line) if monitor.active else run
        self.workspace = kernel.workspace(call)
        self.device = registry.get_device_spec(device)
        self.native = None
        if kernel.is_native and self.device.is_host and not monitor.active:
            self.native = (
                *_encode(kernel, call), self.workspace, call.threads, _title(kernel, call), kernel,
            )  # fmt: skip


# They order or copy elements, for which integers serve as well as the numbers they stand for.
_OF_INTEGERS = ("argmax", "argmin", "argsort")


def _expect_numbers(op: Op, specs: Sequence[TensorSpec], outputs: Specs) -> None:
    """Raise DTypeError where an op would take a quantised tensor's integers for numbers."""
    aware = op.family == "quantized" or any(spec.quant is not None for spec in outputs)
    spec = next(spec for spec in specs if spec.quant is not None)
    if op.name == "cast":
        fits = outputs[0].dtype.kind in "iu"
    else:  # integers of several scales have another order than their numbers
        fits = op.name in _OF_INTEGERS and spec.quant.axis < 0  # type: ignore[union-attr]
    if state.of_integers or aware or fits:
        return
    raise DTypeError(
        f"{op.name}: an input is quantised, got {spec.dtype.name} at scale {spec.quant.scales[0]:g}"  # type: ignore[union-attr]
        ", whose integers are no numbers yet; expected its numbers, x.astype('float32')"
    )


_plans: dict[Any, _Plan] = {}
_PLAN_LIMIT = 8192


def _run_now(op: Op, datas: list[Any], specs: Specs, attrs: Any) -> list[Tensor]:
    for data in datas:
        if data.__class__ is not np.ndarray and not is_concrete(data):
            return _extend(op, data, datas, attrs)
    chosen = (registry.chosen_backend(), registry.isa_cap(), registry.generation,
              native.get_num_threads(), config.setting, memory.following,
              monitor.active)  # fmt: skip
    key = (op, specs, attrs, chosen)
    plan = _plans.get(key)
    if plan is None:
        plan = _Plan(op, specs, attrs)
        if registry.generation == chosen[2]:
            if len(_plans) >= _PLAN_LIMIT:
                _plans.clear()
            _plans[key] = plan
    try:
        outputs = [_allocate(plan.device, spec) for spec in plan.specs]
    except ValueError as error:  # numpy's, of extents that no array can have
        raise ShapeError(
            f"{op.name}: no array can have the output's shape, got "
            f"{shapes.format_shape(plan.specs[0].shape)}, expected fewer axes or elements: {error}"
        ) from None
    if memory.following:
        memory.note(outputs)
    elif native.engine is not None and plan.native is not None:
        native.engine.engine_add(op, attrs, specs, chosen, plan.specs, *plan.native)
    scratch = empty((plan.workspace,), np.dtype(np.uint8)) if plan.workspace else None
    plan.run(datas, outputs, scratch)
    return [wrap(data, spec) for data, spec in zip(outputs, plan.specs, strict=True)]


def set_up_engine(engine: native.Engine, tensor: type[Tensor]) -> None:
    """Tell an engine what tensors are and what its plans depend on, in the order of ``chosen``."""
    chosen = (
        registry.BACKEND_CHOICE, registry.ISA_CAP, (vars(registry), "generation"),
        (vars(native), "_threads"), (vars(config), "setting"), (vars(memory), "following"),
        (vars(monitor), "active"),
    )  # fmt: skip
    install(engine.wrap)
    engine.engine_setup(tensor, state, chosen, NO_ATTRS, apply)


def _extend(op: Op, data: Any, datas: list[Any], attrs: Any) -> list[Tensor]:
    """Let the graph to which data belongs take the op, where it is one that can be extended."""
    extend = getattr(data, "extend", None)
    if extend is None:
        raise TraceError(
            f"{op.name}: an input is a tensor of a trace that has ended, got one, expected tensors "
            "to leave a traced function only through its return value"
        )
    outputs: list[Tensor] = extend(op, datas, attrs)
    return outputs


def _common_device(op: Op, specs: Specs) -> str:
    devices = {spec.device for spec in specs}
    if len(devices) > 1:
        raise DeviceError(
            f"{op.name}: inputs lie on different devices, got {' and '.join(sorted(devices))}; "
            "expected one, see Tensor.to"
        )
    return devices.pop() if devices else "cpu"


def _allocate(device: DeviceSpec, spec: TensorSpec) -> Any:
    if device.is_host:
        return empty(spec.shape, spec.dtype)
    assert device.empty is not None
    return device.empty(spec.shape, spec.dtype, spec.device)


def empty(shape: shapes.Shape, dtype: np.dtype) -> np.ndarray:
    """Return an uninitialised C-contiguous array, 64-byte aligned where it is not tiny."""
    count = shapes.volume(shape) * dtype.itemsize
    if count < _ALIGN_FROM:
        return np.empty(shape, dtype)
    raw = np.empty(count + _ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % _ALIGNMENT
    return raw[start : start + count].view(dtype).reshape(shape)


Runner = Callable[[Sequence[Any], Sequence[Any], "np.ndarray | None"], None]


def bind_kernel(kernel: Kernel, call: Call) -> Runner:
    """Return ``run(inputs, outputs, workspace)`` for one kernel and one kind of call."""
    run, attrs = kernel.run, call.attrs
    if isinstance(run, CFunction):
        return _native_runner(*_encode(kernel, call), _title(kernel, call), call.threads)
    context = Context(call.threads)
    return lambda inputs, outputs, workspace: run(context, inputs, outputs, attrs, workspace)


def _encode(kernel: Kernel, call: Call) -> tuple[int, bytes]:
    """Return a C kernel's address and the attributes as it reads them."""
    assert isinstance(kernel.run, CFunction)
    attrs = abi.encode_attrs(call.op, call.attrs, len(call.inputs), len(call.outputs))
    return kernel.run.address, attrs


def _title(kernel: Kernel, call: Call) -> str:
    return f"{call.op.name}: {kernel.name}"


def _native_runner(address: int, attrs: bytes, title: str, threads: int) -> Runner:
    def run(inputs: Any, outputs: Any, workspace: Any) -> None:
        try:
            native.invoker(address, attrs, inputs, outputs, workspace, threads)
        except KernelError as error:
            op, _, kernel = title.partition(": ")
            start = "" if str(error).startswith(f"{op}: ") else f"{op}: "
            raise type(error)(f"{start}{error} ({kernel})") from None

    return run


def run_kernel(kernel: Kernel, call: Call, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Run one kernel on plain arrays, whatever layouts it works on, and return plain arrays."""
    layouts = kernel.layouts
    inputs = [_pack(layouts.of_input(index), array) for index, array in enumerate(arrays)]
    outputs = []
    for index, spec in enumerate(call.outputs):
        extents = spec.shape
        name = layouts.of_output(index)
        if name not in (PLAIN, SAME):
            extents = registry.get_layout(name).extents(spec.shape)
        outputs.append(empty(extents, spec.dtype))
    size = kernel.workspace(call)
    scratch = empty((size,), np.dtype(np.uint8)) if size else None
    if kernel.is_native:
        # C kernels are told logical shapes over whatever physical form the memory has.
        bind_kernel(kernel, call)(
            [logical(a, s.shape) for a, s in zip(inputs, call.inputs, strict=True)],
            [logical(a, s.shape) for a, s in zip(outputs, call.outputs, strict=True)],
            scratch,
        )
    else:
        bind_kernel(kernel, call)(inputs, outputs, scratch)
    return [
        _unpack(layouts.of_output(index), data, call.outputs[index].shape)
        for index, data in enumerate(outputs)
    ]


def logical(array: np.ndarray, shape: shapes.Shape) -> np.ndarray:
    """Return an array of the logical shape over memory in any physical form, for C kernels only.

    Memory whose elements are narrower than the dtype, as of rounded layouts, may be shorter than
    the array says, which only kernels of the layout know to heed.
    """
    if array.shape == shape:
        return array
    strides = [array.itemsize * shapes.volume(shape[axis + 1 :]) for axis in range(len(shape))]
    return np.lib.stride_tricks.as_strided(array, shape, strides)


def _pack(layout: str, array: np.ndarray) -> np.ndarray:
    if layout in (PLAIN, SAME):
        return np.ascontiguousarray(array).reshape(array.shape)
    return registry.get_layout(layout).pack(array)


def _unpack(layout: str, data: np.ndarray, shape: shapes.Shape) -> np.ndarray:
    if layout in (PLAIN, SAME):
        return data
    return registry.get_layout(layout).unpack(data, shape)


def to_device(spec: DeviceSpec, array: np.ndarray, device: str) -> Any:
    """Copy a numpy array to a device that is not the host."""
    assert spec.to_device is not None
    return spec.to_device(array, device)


def to_host(spec: DeviceSpec, data: Any) -> np.ndarray:
    """Copy a device's storage to a numpy array."""
    assert spec.to_host is not None
    return spec.to_host(data)


def host_array(tensor: Tensor, data: Any) -> np.ndarray:
    """Return a tensor's data as numpy array, without copying where it lies on the host."""
    if isinstance(data, np.ndarray):
        return data
    return to_host(registry.get_device_spec(tensor.device), data)
