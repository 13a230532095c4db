"""Declare an op once: its attributes, inference, reference, gradient and decomposition."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from . import shapes
from .errors import AttrError, DTypeError, ShapeError
from .floats import FloatList
from .records import record, tell_zeros_apart

if TYPE_CHECKING:
    from .imperative.tensor import Tensor

# Field types that an attrs class may use; abi.py maps each to C.
Ints = tuple[int, ...]
Floats = tuple[float, ...] | FloatList
DTypeName = str


@record()
class QuantParams:
    """Scale and zero point of a quantised value, per tensor (axis -1) or per channel."""

    scales: Floats
    zero_points: Ints
    axis: int = -1


@record(eq=False)
class TensorSpec:
    """What inference knows of a value: logical shape, dtype, device, quantisation parameters.

    >>> TensorSpec((2, 3), np.dtype("float32")).nbytes
    24
    """

    shape: shapes.Shape
    dtype: np.dtype
    device: str = "cpu"
    quant: QuantParams | None = None

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return shapes.volume(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return (
            isinstance(other, TensorSpec)
            and self.shape == other.shape
            and self.dtype == other.dtype
            and self.device == other.device
            and self.quant == other.quant
        )

    def __hash__(self) -> int:
        # Kept, because every eager call looks its specs up.
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.shape, self.dtype, self.device, self.quant))

    def with_shape(self, shape: Sequence[int]) -> TensorSpec:
        """Return this spec with another shape, without quantisation parameters."""
        return TensorSpec(tuple(shape), self.dtype, self.device)

    def with_dtype(self, dtype: np.dtype) -> TensorSpec:
        """Return this spec with another dtype, without quantisation parameters."""
        return TensorSpec(self.shape, dtype, self.device)

    def moved(self, shape: Sequence[int]) -> TensorSpec:
        """Return this spec with another shape; of its quantisation what holds per tensor stays."""
        quant = self.quant if self.quant is not None and self.quant.axis < 0 else None
        return TensorSpec(tuple(shape), self.dtype, self.device, quant)

    def specialise(self, sizes: dict[str, int]) -> TensorSpec:
        """Return this spec with concrete sizes in place of symbols."""
        return TensorSpec(shapes.specialise(self.shape, sizes), self.dtype, self.device, self.quant)

    def __str__(self) -> str:
        text = f"{self.dtype.name}{shapes.format_shape(self.shape)}"
        return text if self.device == "cpu" else f"{text}@{self.device}"


_specs: dict[TensorSpec, TensorSpec] = {}
_SPEC_LIMIT = 8192


def intern_spec(spec: TensorSpec) -> TensorSpec:
    """Return the one object that stands for all equal specs, by which eager calls are looked up."""
    found = _specs.get(spec)
    if found is None:
        if len(_specs) >= _SPEC_LIMIT:
            _specs.clear()
        found = _specs.setdefault(spec, spec)
    return found


@record()
class NoAttrs:
    """The attributes of an op that has none."""


NO_ATTRS = NoAttrs()

Specs = tuple[TensorSpec, ...]


@record()
class Work:
    """The arithmetic of a call as the op defines it, whatever an algorithm saves of it.

    Attributes:
        products: multiplications, each with the addition that takes it.
        others: all other operations.

    >>> Work(products=30, others=10).operations
    70
    """

    products: int = 0
    others: int = 0

    @property
    def operations(self) -> int:
        """Return their number, where a multiplication and its addition are two."""
        return 2 * self.products + self.others


Infer = Callable[[Specs, Any], Specs]
Reference = Callable[[Sequence[np.ndarray], Any], Sequence[np.ndarray]]


class GradContext:
    """What a gradient may use: the call's inputs, outputs and attributes, and which it needs."""

    __slots__ = ("attrs", "inputs", "needs", "outputs")

    def __init__(
        self,
        inputs: tuple[Tensor, ...],
        outputs: tuple[Tensor, ...],
        attrs: Any,
        needs: tuple[bool, ...],
    ) -> None:
        self.inputs = inputs
        self.outputs = outputs
        self.attrs = attrs
        self.needs = needs


# Takes the inputs' specs, the outputs' and the attrs.
Count = Callable[[Specs, Specs, Any], Work]
# Takes the context and one gradient per output (None where it is zero); returns one per input.
Grad = Callable[[GradContext, "tuple[Tensor | None, ...]"], "Sequence[Tensor | None]"]
Decompose = Callable[["tuple[Tensor, ...]", Any], "Tensor | Sequence[Tensor]"]


@record(eq=False)
class Op:
    """One operator, shared by the imperative and the graph runtime.

    Attributes:
        name: what users, kernels and model files call it.
        infer: gives the outputs' specs from the inputs' specs and the attrs; never sees layouts.
        reference: the slow oracle on numpy arrays; None where ``decompose`` gives it.
        grad: the gradient, written in ops; None means not differentiable.
        decompose: the op as a function in terms of other ops; gives reference and gradient.
        attrs: frozen dataclass of its attributes, of the field types that abi.py knows.
        n_inputs: count of inputs, or (least, most); most -1 means any number.
        work: how much arithmetic a call takes; None means one operation for each element of the
            largest operand, and nothing where elements are only moved or made.
        version: raised when the meaning of attrs or outputs changes.
        takes_complex: whether inputs may be complex; inference refuses them otherwise. Movement
            and indexing take them anyway.
        pure: False for an effect, which passes must neither drop, merge nor reorder.
        family: ``elementwise``, ``reduction``, ``movement`` …: what passes go by.

    >>> def double(inputs, attrs):
    ...     return (inputs[0] * 2,)
    >>> op = Op("double", infer=lambda specs, attrs: specs, reference=double)
    >>> op, op.n_inputs
    (Op(double), 1)
    """

    name: str
    infer: Infer
    reference: Reference | None = None
    grad: Grad | None = None
    decompose: Decompose | None = None
    attrs: type = NoAttrs
    n_inputs: int | tuple[int, int] = 1
    work: Count | None = None
    version: int = 1
    pure: bool = True
    family: str = ""
    differentiable: bool = True
    takes_complex: bool = False

    def __post_init__(self) -> None:
        if "__dataclass_fields__" in self.attrs.__dict__:
            tell_zeros_apart(self.attrs)  # results of equal attributes are shared
        if not self.takes_complex and self.family not in ("movement", "indexing"):
            object.__setattr__(self, "infer", _without_complex(self.name, self.infer))

    def __repr__(self) -> str:
        return f"Op({self.name})"

    def __call__(self, *operands: Any, **attrs: Any) -> Any:
        """Apply the op in whatever runtime the operands belong to.

        Returns the output, or a tuple where the op has several.
        """
        given = self.attrs(**attrs) if attrs or self.attrs is not NoAttrs else NO_ATTRS
        return operands[0]._apply(self, operands, given)

    def work_of(self, inputs: Specs, outputs: Specs, attrs: Any) -> Work:
        """Return how much arithmetic a call takes."""
        if self.work is not None:
            return self.work(inputs, outputs, attrs)
        if self.family in ("movement", "creation", "indexing"):
            return Work()
        return Work(others=max((spec.size for spec in (*inputs, *outputs)), default=0))

    def check_count(self, count: int) -> None:
        """Raise AttrError where the number of inputs is not one that the op takes."""
        least, most = self.n_inputs if isinstance(self.n_inputs, tuple) else (self.n_inputs,) * 2
        if count < least or (most >= 0 and count > most):
            raise AttrError(
                f"{self.name}: wrong number of inputs, got {count}, expected "
                f"{least if least == most else f'{least} to {most if most >= 0 else chr(8734)}'}"
            )


def _without_complex(op: str, infer: Infer) -> Infer:
    def checked(specs: Specs, attrs: Any) -> Specs:
        for spec in specs:
            if spec.dtype.kind == "c":
                raise DTypeError(
                    f"{op}: complex numbers are not taken, got {spec.dtype.name}, expected a real "
                    "dtype; functional.real, imag and abs give one"
                )
        return infer(specs, attrs)

    return checked


# The helpers below are how ops phrase their checks, so that every message has the same form.


def expect_rank(op: str, spec: TensorSpec, rank: int, what: str = "input") -> None:
    """Raise ShapeError unless a spec has the rank."""
    if spec.ndim != rank:
        raise ShapeError(
            f"{op}: {what} has the wrong rank, got shape {shapes.format_shape(spec.shape)}, "
            f"expected {rank} dimensions"
        )


def expect_float(op: str, spec: TensorSpec, what: str = "input") -> None:
    """Raise DTypeError unless a spec has a floating dtype."""
    from .dtypes import is_float

    if not is_float(spec.dtype):
        raise DTypeError(
            f"{op}: {what} must be floating, got {spec.dtype.name}, expected a float dtype"
        )


def expect_integer(op: str, spec: TensorSpec, what: str = "input") -> None:
    """Raise DTypeError unless a spec has an integer dtype."""
    if spec.dtype.kind not in "iu":
        raise DTypeError(
            f"{op}: {what} must be an integer, got {spec.dtype.name}, expected an integer dtype"
        )


def expect_same_dtype(op: str, specs: Sequence[TensorSpec]) -> None:
    """Raise DTypeError unless all specs have one dtype."""
    if any(spec.dtype != specs[0].dtype for spec in specs[1:]):
        got = ", ".join(spec.dtype.name for spec in specs)
        raise DTypeError(
            f"{op}: inputs must have one dtype, got {got}, expected {specs[0].dtype.name}"
        )
