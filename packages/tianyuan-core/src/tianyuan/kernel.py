"""What a backend attaches to ops from outside: kernels and layouts, as plain data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from . import shapes
from .op import Op, Specs
from .records import record

PLAIN = "plain"  # C-contiguous over the logical shape
FULL, BF16 = "full", "bf16"  # precisions: that of the operands' dtype, or bfloat16 for float32
PRECISIONS = (FULL, BF16)
SAME = "same"  # any one layout, shared by all inputs and outputs of the full shape
MAX_DIMS = 8  # of tensors that the C ABI can describe


@record()
class Call:
    """All that a kernel may know when it is asked whether it serves: never data.

    >>> import numpy as np
    >>> from tianyuan.op import NO_ATTRS, TensorSpec
    >>> from tianyuan.registry import get_op
    >>> spec = TensorSpec((2, 3), np.dtype("float32"))
    >>> Call(get_op("exp"), (spec,), (spec,), NO_ATTRS).inputs[0].shape
    (2, 3)
    """

    op: Op
    inputs: Specs
    outputs: Specs
    attrs: Any
    threads: int = 1

    @cached_property
    def key(self) -> tuple[Any, ...]:
        """Return a hashable identity of everything that selection depends on in this call."""
        return (self.op.name, self.inputs, self.attrs, self.threads)

    @cached_property
    def memo(self) -> dict[Any, Any]:
        """What the functions of kernels work out of this call and ask for again, by whoever."""
        return {}

    @cached_property
    def dtypes(self) -> tuple[np.dtype, ...]:
        """Return the dtypes that a kernel goes by: of the inputs, or of the outputs without any."""
        return tuple(spec.dtype for spec in self.inputs or self.outputs)

    @cached_property
    def beyond_c(self) -> str | None:
        """Return why no C kernel can serve this call, or None."""
        specs = (*self.inputs, *self.outputs)
        if any(spec.ndim > MAX_DIMS for spec in specs):
            return f"serves at most {MAX_DIMS} dimensions"
        if any(spec.dtype.kind == "c" for spec in specs):
            return "complex numbers have no place in the C ABI"
        return None


@record()
class Layouts:
    """Layout names by input and by output; the last entry stands for all that follow.

    Use ``Layouts(("nchw16c", "oihw16i16o", "plain", "nchw16c"), ("nchw16c",))``, or
    ``Layouts((SAME,), (SAME,))`` for a kernel that walks memory flat.

    >>> Layouts(("nchw16c", PLAIN)).of_input(5)
    'plain'
    """

    inputs: tuple[str, ...] = (PLAIN,)
    outputs: tuple[str, ...] = (PLAIN,)

    def of_input(self, index: int) -> str:
        return self.inputs[min(index, len(self.inputs) - 1)]

    def of_output(self, index: int) -> str:
        return self.outputs[min(index, len(self.outputs) - 1)]


@record()
class Context:
    """What a Python kernel is told besides its data."""

    threads: int = 1


def _no_reason(call: Call) -> str | None:
    return None


def _no_workspace(call: Call) -> int:
    return 0


def bytes_cost(call: Call, bytes_per_second: float = 1e9) -> float:
    """Estimate seconds for a kernel that is bound by the memory it touches.

    >>> import numpy as np
    >>> from tianyuan.op import NO_ATTRS, TensorSpec
    >>> from tianyuan.registry import get_op
    >>> spec = TensorSpec((250,), np.dtype("float32"))
    >>> bytes_cost(Call(get_op("exp"), (spec,), (spec,), NO_ATTRS), bytes_per_second=1000)
    2.0
    """
    return sum(spec.nbytes for spec in (*call.inputs, *call.outputs)) / bytes_per_second


def python_cost(call: Call) -> float:
    """Estimate seconds for a Python kernel: what entering it takes, and the memory it touches."""
    return 3e-6 + bytes_cost(call)


PythonRun = Callable[
    [Any, Sequence[np.ndarray], Sequence[np.ndarray], Any, "np.ndarray | None"], None
]


@record(eq=False)
class CFunction:
    """The address of a ``ty_run``, and whatever must stay alive for it.

    >>> CFunction(4096)
    CFunction(address=4096)
    """

    address: int
    owner: Any = None

    def __repr__(self) -> str:
        return f"CFunction(address={self.address})"


@record(eq=False)
class Kernel:
    """One way to run one op.

    Attributes:
        name: ``family_types__isa_variant``, as in ``conv2d_f32__avx512_direct``.
        op: name of the op.
        run: ``run(ctx, inputs, outputs, attrs, workspace)`` on arrays, writing into ``outputs``;
            or a C function of the ABI.
        dtypes: accepted dtypes by input, the last standing for all that follow: a name, names
            joined by ``|``, or ``*``. None accepts all.
        layouts: what physical form inputs and outputs have.
        isa: instruction set that it needs: ``any``, ``avx2``, ``avx512`` …
        supports: returns None, or the reason why it refuses the call.
        cost: estimated seconds, without repacking around it.
        workspace: bytes of scratch memory that ``run`` needs, 64-byte aligned.
        inplace: pairs (output, input) that may share memory when shape and dtype agree.
        reproducible: whether the result depends neither on thread count nor on batch.
        tolerance: largest error over the largest magnitude of the result, where the method errs
            more than summing in another order does, as Winograd's; None for all others.
        precision: ``bf16`` where float32 operands are rounded to bfloat16, for programs that permit
            it only; ``tolerance`` then counts from rounded operands. ``full`` for all others.
        is_reference: set for references only, which are the last resort.
        backend: which plugin brought it; the registry fills it in where it is not given.

    >>> def exp(ctx, inputs, outputs, attrs, workspace):
    ...     np.exp(inputs[0], out=outputs[0])
    >>> Kernel("exp_f32__any_numpy", "exp", exp, dtypes=("float32",))
    Kernel(exp_f32__any_numpy)
    """

    name: str
    op: str
    run: PythonRun | CFunction
    dtypes: tuple[str, ...] | None = None
    layouts: Layouts = Layouts()
    isa: str = "any"
    supports: Callable[[Call], str | None] = _no_reason
    cost: Callable[[Call], float] = python_cost
    workspace: Callable[[Call], int] = _no_workspace
    inplace: tuple[tuple[int, int], ...] = ()
    reproducible: bool = True
    tolerance: float | None = None
    precision: str = FULL
    is_reference: bool = False
    backend: str = ""

    @property
    def is_native(self) -> bool:
        return isinstance(self.run, CFunction)

    def owned_by(self, backend: str) -> Kernel:
        """Return this kernel as one that a backend brought."""
        return self if self.backend == backend else Kernel(**{**vars(self), "backend": backend})

    def __repr__(self) -> str:
        return f"Kernel({self.name})"


@record(eq=False)
class KernelGroup:
    """Kernels of some ops that nobody describes before one of these ops is looked up.

    Attributes:
        ops: names of the ops, all that the group has kernels for.
        of: gives the kernels of one of them, best first.
        repacks: where one of the ops is ``relayout``, the layouts beside the plain one that its
            kernels for that read and write: the group is not asked for any others. None if unknown.

    >>> group = KernelGroup(("exp", "log"), lambda op: [Kernel(f"{op}_any__none", op, print)])
    >>> group.of("log")
    [Kernel(log_any__none)]
    """

    ops: tuple[str, ...]
    of: Callable[[str], Iterable[Kernel]]
    repacks: frozenset[str] | None = None


@record(eq=False)
class Layout:
    """A named physical form of values.

    Attributes:
        name: ``nchw16c``, ``oihw16i16o`` …
        ndim: rank of the logical values it applies to.
        extents: gives the physical shape for a logical one.
        pack: array of the logical shape -> C-contiguous array of the physical shape.
        unpack: (physical array, logical shape) -> array of the logical shape.
        padding: what lanes beyond the logical shape hold: ``zero`` or ``undefined``.
        trailing: extents that the last axes of the logical shape must have, as (3, 3).
        exact: whether the elements are the value's own; False where they are transformed, so that
            ``unpack`` only comes close to what was packed.
        tolerance: largest error of ``unpack`` after ``pack`` over the largest magnitude, where the
            elements are rounded.
        write: (array, uninitialised array of the physical shape and the same dtype) writes what
            ``pack`` returns, for large weights: memory then holds them once while they are packed.

    >>> columns = Layout(
    ...     "columns", 2, extents=lambda shape: shape[::-1],
    ...     pack=lambda x: np.ascontiguousarray(x.T), unpack=lambda packed, shape: packed.T,
    ... )
    >>> columns.extents((2, 3)), columns.pack(np.zeros((2, 3))).shape
    ((3, 2), (3, 2))
    """

    name: str
    ndim: int
    extents: Callable[[shapes.Shape], shapes.Shape]
    pack: Callable[[np.ndarray], np.ndarray]
    unpack: Callable[[np.ndarray, shapes.Shape], np.ndarray]
    padding: str = "zero"
    trailing: shapes.Shape = ()
    exact: bool = True
    tolerance: float = 0.0
    write: Callable[[np.ndarray, np.ndarray], None] | None = None


@record(eq=False)
class LayoutGroup:
    """Layouts that nobody describes before one of them is looked up.

    Attributes:
        names: of all layouts of the group.
        of: gives the layouts themselves.

    >>> def described():
    ...     return [Layout("columns", 2, lambda shape: shape[::-1], np.transpose, np.reshape)]
    >>> [layout.name for layout in LayoutGroup(("columns",), described).of()]
    ['columns']
    """

    names: tuple[str, ...]
    of: Callable[[], Iterable[Layout]]


@record()
class DeviceSpec:
    """A kind of device that a backend serves.

    Attributes:
        kind: ``cpu``, ``cuda`` …
        count: how many there are; touches hardware only when called.
        is_host: whether its tensors are numpy arrays.
        empty: makes uninitialised storage; only for devices that are not the host.
        to_device, to_host: copies between numpy arrays and the device's own storage.

    >>> DeviceSpec("toy", count=lambda: 2).count()
    2
    """

    kind: str
    count: Callable[[], int] = lambda: 1
    is_host: bool = True
    empty: Callable[[shapes.Shape, np.dtype, str], Any] | None = None
    to_device: Callable[[np.ndarray, str], Any] | None = None
    to_host: Callable[[Any], np.ndarray] | None = None
