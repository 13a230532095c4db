"""Define the attributes that ops carry; field order is the order of the C structs of attrs.h.

Axes are normalised (non-negative, sorted) by whoever builds the attributes; extents may be
symbolic.
"""

from __future__ import annotations

from ..op import DTypeName, Floats, Ints
from ..records import record


@record()
class Cast:
    """The dtype to convert to."""

    dtype: DTypeName


@record()
class Relayout:
    """The names of the layouts between which a value is repacked."""

    source: str
    target: str


@record()
class Reduce:
    """The axes to reduce, and whether they stay with extent 1."""

    axes: Ints
    keepdims: bool = False


@record()
class ArgReduce:
    """The axis to search, and whether it stays with extent 1."""

    axis: int
    keepdims: bool = False


@record()
class Axis:
    """The axis that an op works along."""

    axis: int


@record()
class Shape:
    """The shape of the result."""

    shape: Ints


@record()
class Transpose:
    """For each axis of the result, the axis of the input it comes from."""

    perm: Ints


@record()
class Pad:
    """How many elements to add at each axis, and what they hold."""

    before: Ints
    after: Ints
    mode: str = "constant"
    value: float = 0.0


@record()
class PadBackward:
    """What ``pad`` added at each axis, and how it filled it."""

    before: Ints
    after: Ints
    mode: str = "constant"


@record()
class Slice:
    """First index, count and step at each axis."""

    starts: Ints
    sizes: Ints
    steps: Ints


@record()
class SliceBackward:
    """The shape that was sliced, and first index and step at each axis."""

    shape: Ints
    starts: Ints
    steps: Ints


@record()
class SliceSet:
    """The region that is replaced: first index, count and step at each axis."""

    starts: Ints
    sizes: Ints
    steps: Ints


@record()
class TakeBackward:
    """The axis that ``take`` indexed, and its extent."""

    axis: int
    size: int


@record()
class Index:
    """How many leading axes the index arrays address."""

    count: int


@record()
class OneHot:
    """The number of classes, and the dtype of the result."""

    depth: int
    dtype: DTypeName


@record()
class Sort:
    """The axis to sort along, and the order."""

    axis: int
    descending: bool = False


@record()
class TopK:
    """How many elements to keep along an axis; the largest where descending."""

    k: int
    axis: int
    descending: bool = True


@record()
class Svd:
    """Whether the unitary matrices are square, and whether they are returned at all."""

    full_matrices: bool = False
    compute_uv: bool = True


@record()
class Full:
    """The shape, the value that every element has, and the dtype."""

    shape: Ints
    value: float
    dtype: DTypeName


@record()
class Arange:
    """The first value, the difference between neighbours, their count and the dtype."""

    start: float
    step: float
    count: int
    dtype: DTypeName


@record()
class Eye:
    """The extents, which diagonal holds ones (0 the main one), and the dtype."""

    rows: int
    cols: int
    k: int
    dtype: DTypeName


@record()
class RandomFill:
    """The shape and dtype of the result, and how many Philox blocks to skip."""

    shape: Ints
    dtype: DTypeName
    skip: int = 0


@record()
class SgdUpdate:
    """Hyper-parameters of stochastic gradient descent that stay fixed during training."""

    momentum: float
    weight_decay: float
    nesterov: bool


@record()
class MatmulSgdUpdate:
    """A product, whose operands may be swapped first, and what its result is a gradient for."""

    transpose_a: bool
    transpose_b: bool
    momentum: float
    weight_decay: float
    nesterov: bool


@record()
class AdamUpdate:
    """Hyper-parameters of Adam and AdamW that stay fixed during training."""

    beta1: float
    beta2: float
    eps: float
    weight_decay: float
    decoupled: bool


@record()
class FusedElementwise:
    """A straight-line program over registers, four ints per instruction.

    Registers hold first the inputs, then the constants, then one result per instruction, which is
    an opcode of ``ops/codes.py`` and three registers; ``outputs`` names those that are returned.
    """

    code: Ints
    constants: Floats
    outputs: Ints
