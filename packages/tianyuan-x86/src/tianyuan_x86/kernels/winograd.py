"""Describe the Winograd convolutions: transformed weights, what each call costs, how far it errs.

The gradient of the input is such a convolution too, of the output's gradient with swapped channels
and kernels turned by half a turn; weights for it have a layout of their own.

F(m x m, 3 x 3) computes m x m outputs of a 3 x 3 kernel with (m + 2)^2 products per pair of
channels instead of 9 m^2 (Lavin and Gray, 2016). Its points are chosen so that rounding grows
little. With stride 2, taps 0 and 2 of an axis meet even samples only, where they are F(m, 2), and
tap 1 meets odd samples: (m + 1) + m products instead of 3 m, with m + 2 different weights.

Largest error over largest magnitude against float64, on standard normal data of the 3 x 3 layers of
ResNet (64 x 56^2 to 512 x 7^2) and, of stride 1, VGG16 (64 x 224^2 to 512 x 14^2), and the bound
that is stated:

================  ==========  =============  ==========
variant           measured    the direct     bound
================  ==========  =============  ==========
F(2, 3)           1.1e-6      2.9e-6         3e-6
F(4, 3)           6.4e-6      2.9e-6         1.5e-5
F(6, 3)           2.9e-5      2.9e-6         8e-5
F(2, 2), strided  1.2e-6      3.0e-6         3e-6
F(4, 2), strided  1.6e-6      3.0e-6         4e-6
================  ==========  =============  ==========
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
from tianyuan.kernel import PLAIN, Call, Kernel, Layout, Layouts
from tianyuan.shapes import Shape

from .._tier import LANES, Tier
from . import _conv_geometry as geo
from .layouts import activation_layout, blocks

_L2_FLOATS = 96 * 1024  # floats of transformed tiles that a block holds (L2_FLOATS of winograd.cpp)
_SEGMENT = 24  # bytes of a tile segment
_VECTORS = 2  # vectors of output channels of a register tile
_KERNEL = 3
_BLOCKS_AT_A_TIME = 8  # of a weight that is transformed


class Variant(NamedTuple):
    """A method along both axes: outputs of a tile, finite interpolation points, how far it errs.

    With ``stride`` 1 it is F(m x m, 3 x 3). With 2, taps 0 and 2 meet even samples as in F(m, 2),
    and tap 1 meets odd samples, which are multiplied as they are.

    ``tolerance`` bounds the error over the largest magnitude of the result; ``vector`` is how many
    seconds a vector of a tile takes through a transform, ``handicap`` by how much faster it must be
    for its larger error and weights to be worth it.
    """

    m: int
    points: tuple[float, ...]
    tolerance: float
    vector: float
    handicap: float = 1.0
    stride: int = 1

    @property
    def name(self) -> str:
        """Return the name of the variant, as in ``f43`` or ``f42s2``."""
        return f"f{self.m}{_KERNEL}" if self.stride == 1 else f"f{self.m}2s2"

    @property
    def size(self) -> int:
        """Return the edge of a tile of the input, and of its transform."""
        return self.stride * (self.m - 1) + _KERNEL

    @property
    def edge(self) -> int:
        """Return how many different weights the positions along an axis have."""
        return self.m + _KERNEL - 1

    def positions(self, outputs: int) -> int:
        """Return how many products an axis of a plane takes.

        A last tile that is not whole leaves out infinity, and odd samples of missing outputs.
        """
        missing = -outputs % self.m
        left_out = min(missing, 1) + (missing if self.stride == 2 else 0)
        return -(-outputs // self.m) * self.size - left_out

    def kernel_transform(self) -> np.ndarray:
        """Return G in float64, (m + 2) x 3: a row for each finite point, infinity, odd samples.

        Rows are [1, p, p^2] / prod (p - q) and [0, 0, 1]; with stride 2 [1, 0, p] / prod (p - q),
        [0, 0, 1] and [0, 1, 0].
        """
        rows = np.zeros((self.edge, _KERNEL))
        for row, p in zip(rows, self.points, strict=False):
            row[:: self.stride] = [p**k for k in range(len(row[:: self.stride]))]
            row /= np.prod([p - q for q in self.points if q != p])
        rows[len(self.points), -1] = 1.0
        if self.stride == 2:
            rows[-1, 1] = 1.0
        return rows


def _pairs(*points: float) -> tuple[float, ...]:
    return tuple(signed for p in points for signed in (p, -p))


# The points are those of winograd_transform.hpp and winograd_parity.hpp.
VARIANTS = (
    Variant(2, (0.0, *_pairs(1.0)), 3e-6, 1.2e-9),
    Variant(4, (0.0, *_pairs(0.5**0.5, 2.0**0.5)), 1.5e-5, 1.2e-9),
    Variant(6, (0.0, *_pairs(1.0, 0.5, 2.0)), 8e-5, 1.8e-9, 1.08),
    Variant(2, (0.0, 1.0), 3e-6, 1.2e-9, stride=2),
    Variant(4, _pairs(0.5, 1.25), 4e-6, 1.2e-9, stride=2),
)


class Form(NamedTuple):
    """Weights transformed for a variant in blocks of channels, for conv2d or for its gradient."""

    variant: Variant
    lanes: int
    gradient: bool = False

    @property
    def name(self) -> str:
        """Return the name of the layout."""
        suffix = "_gradient" if self.gradient else ""
        return f"wino_{self.variant.name}{suffix}_{self.lanes}i{self.lanes}o"

    def turned(self, array: np.ndarray) -> np.ndarray:
        """Return the weight of the convolution that the layout serves, and back."""
        return array[:, :, ::-1, ::-1].transpose(1, 0, 2, 3) if self.gradient else array

    def extents(self, shape: Shape) -> Shape:
        """Return the extents of a weight in this layout."""
        o, i = (shape[1], shape[0]) if self.gradient else (shape[0], shape[1])
        return _extents(self.variant, self.lanes, (o, i))

    def pack(self, array: np.ndarray) -> np.ndarray:
        """Transform a plain weight."""
        packed = np.empty(self.extents(array.shape), array.dtype)
        self.write(array, packed)
        return packed

    def write(self, array: np.ndarray, packed: np.ndarray) -> None:
        """Transform a plain weight into ``packed``."""
        _write(self.variant, self.lanes, self.turned(array), packed)

    def unpack(self, array: np.ndarray, shape: Shape) -> np.ndarray:
        """Return the plain weight that comes closest."""
        turned = (shape[1], shape[0], *shape[2:]) if self.gradient else shape
        found = self.turned(_unpack(self.variant, self.lanes, array, turned))
        return np.ascontiguousarray(found)


def _extents(variant: Variant, lanes: int, shape: Shape) -> Shape:
    return (blocks(shape[0], lanes), variant.edge**2, blocks(shape[1], lanes), lanes, lanes)


def _write(variant: Variant, lanes: int, array: np.ndarray, packed: np.ndarray) -> None:
    """Write G g G^T of each kernel, computed in float64, as blocks (o, weight, i, 16i, 16o)."""
    o, i = array.shape[:2]
    g = variant.kernel_transform()
    both = np.kron(g, g)  # acts on a kernel read as a vector of nine
    # A product for each block, so that BLAS wakes no threads, and few blocks at a time, so that
    # they stay in the cache.
    width = lanes * _BLOCKS_AT_A_TIME
    columns = np.zeros((_BLOCKS_AT_A_TIME, _KERNEL**2, lanes, lanes))
    for at in range(0, o, lanes):
        for channel in range(0, i, width):
            part = array[at : at + lanes, channel : channel + width]
            outputs, inputs = part.shape[:2]
            count = blocks(inputs, lanes)
            kernels = np.zeros((lanes, count * lanes, _KERNEL**2), array.dtype)
            kernels[:outputs, :inputs] = part.reshape(outputs, inputs, _KERNEL**2)
            columns[:count] = kernels.reshape(lanes, count, lanes, -1).transpose(1, 3, 2, 0)
            found = both @ columns[:count].reshape(count, _KERNEL**2, -1)
            place = packed[at // lanes, :, channel // lanes :][:, :count]
            place[:] = found.reshape(count, -1, lanes, lanes).swapaxes(0, 1)


def _unpack(variant: Variant, lanes: int, array: np.ndarray, shape: Shape) -> np.ndarray:
    """Return the kernels whose transforms come closest; exact up to rounding."""
    o, i = shape[:2]
    merged = array.transpose(0, 4, 2, 3, 1).reshape(
        array.shape[0] * lanes, -1, variant.edge, variant.edge
    )
    inverse = np.linalg.pinv(variant.kernel_transform())
    kernels = inverse @ merged[:o, :i].astype(np.float64) @ inverse.T
    return np.ascontiguousarray(kernels).astype(array.dtype)


def _forms(lanes: int) -> list[Form]:
    """Return the forms of weights; with stride 2, the gradient is no such convolution."""
    turns = [(v, gradient) for v in VARIANTS for gradient in (False, True)]
    return [Form(v, lanes, gradient) for v, gradient in turns if v.stride == 1 or not gradient]


def layouts() -> list[Layout]:
    """Return the layouts of transformed weights."""
    forms = [form for lanes in sorted(LANES.values(), reverse=True) for form in _forms(lanes)]
    return [
        Layout(
            name=form.name,
            ndim=4,
            extents=form.extents,
            pack=form.pack,
            unpack=form.unpack,
            write=form.write,
            trailing=(_KERNEL, _KERNEL),
            exact=False,
        )
        for form in forms
    ]


def _geometry(call: Call) -> geo.Geometry:
    """Return the geometry of the convolution that a call of either op amounts to."""
    g = geo.geometry(call)
    if call.op.name != "conv2d_backward_data":
        return g
    top, left = g.kh - 1 - g.top, g.kw - 1 - g.left
    return g._replace(c=g.o, h=g.oh, w=g.ow, o=g.c, oh=g.h, ow=g.w, top=top, left=left)


class _Plan(NamedTuple):
    """How winograd.cpp cuts a call into tiles; its plan_tiles knows the same.

    ``rows`` counts the rows of all products of matrices.
    """

    tiles: int
    rows: int
    c_blocks: int
    o_blocks: int
    block: int


def _plan(variant: Variant, lanes: int, call: Call) -> _Plan:
    g = _geometry(call)
    c_blocks, tile_rows = blocks(g.c, lanes), geo.TILE_ROWS[lanes]
    tiles = g.n * -(-g.oh // variant.m) * -(-g.ow // variant.m)
    fit = max(_L2_FLOATS // (variant.size**2 * c_blocks * lanes), 3 * tile_rows)
    count = -(-tiles // fit)
    block = -(-tiles // count)
    strips = -(-block // tile_rows)
    height = -(-block // strips)
    rows = g.n * variant.positions(g.oh) * variant.positions(g.ow)
    return _Plan(tiles, rows, c_blocks, blocks(g.o, lanes), height * strips)


def _workspace(variant: Variant, lanes: int, call: Call) -> int:
    g = _geometry(call)
    if 0 in (g.n, g.o) or g.oh <= 0 or g.ow <= 0:
        return 0
    p = _plan(variant, lanes, call)
    table = geo.round_up(p.c_blocks * _SEGMENT, 64)
    positions = variant.size**2
    tiles = positions * ((p.block * p.c_blocks + 1) | 1) * lanes
    products = positions * ((p.block * _VECTORS) | 1) * lanes
    # Fewer threads may run than are planned for, so the room does not depend on who shares.
    return table + 4 * (tiles + products) * call.threads


_START = 1.5e-6  # seconds to enter a kernel and cut its tiles
_RATE = {8: 9.0e10, 16: 1.08e11}  # operations per second and thread inside a register tile
_WEIGHTS = 2.0e10  # bytes per second at which a transformed weight streams in beside products
_HIDDEN = 0.15  # of the shorter of the two does not hide behind the longer
# How weights are transformed: bytes per second that are made, and what rounding on the way costs.
_PACKING = (("", 1.2e10, 3e-7), ("_in_double", 7.5e9, None))


def _refusal(variant: Variant, call: Call) -> str | None:
    g, stride = _geometry(call), (variant.stride, variant.stride)
    if g.groups != 1 or g.c == 0:
        return f"has {g.groups} groups of {g.c} channels in all, serves 1 of any channels"
    if (g.kh, g.kw) != (_KERNEL, _KERNEL):
        return f"serves 3 x 3 kernels, got {g.kh} x {g.kw}"
    if g.stride != stride or g.dilation != (1, 1):
        return f"serves stride {stride} and dilation (1, 1), got {g.stride} and {g.dilation}"
    return None


def _cost(variant: Variant, lanes: int, call: Call) -> float:
    g = _geometry(call)
    if 0 in (g.n, g.o) or g.oh <= 0 or g.ow <= 0:
        return _START
    p = _plan(variant, lanes, call)
    matrices = p.rows * p.c_blocks * p.o_blocks * lanes
    threads = min(float(call.threads), max(1.0, 2.0 * matrices * lanes / 1e6))
    products = 2.0 * matrices * lanes / _RATE[lanes]
    weights = 4.0 * variant.edge**2 * p.c_blocks * p.o_blocks * lanes**2 / _WEIGHTS
    vectors = p.tiles * variant.size**2 * 2.0 * (p.c_blocks + p.o_blocks)
    longer, shorter = max(products, weights), min(products, weights)
    seconds = longer + _HIDDEN * shorter + vectors * variant.vector
    return _START + variant.handicap * seconds / threads


def _epilogue_form(variant: Variant, unbiased: bool, call: Call) -> str | None:
    """Refuse the form of inputs that the other of a pair of kernels serves."""
    third_is_residual = call.attrs.has_residual and not call.attrs.has_bias
    if third_is_residual != unbiased:
        return f"serves {'a residual without bias' if unbiased else 'a bias before any residual'}"
    return _refusal(variant, call)


def _kernels_of(variant: Variant, tier: Tier) -> list[Kernel]:
    image, weight = activation_layout(tier.lanes), Form(variant, tier.lanes).name
    name = f"winograd_{variant.name}"

    def describe(
        op: str,
        name: str,
        inputs: tuple[str, ...],
        supports: Callable[[Call], str | None],
        weight: str = weight,
    ) -> Kernel:
        return tier.kernel(
            f"{op}_f32",
            name,
            op,
            dtypes=("float32",),
            layouts=Layouts((image, weight, *inputs), (image,)),
            supports=supports,
            cost=partial(_cost, variant, tier.lanes),
            workspace=partial(_workspace, variant, tier.lanes),
            tolerance=variant.tolerance,
        )

    serves, form = partial(_refusal, variant), partial(_epilogue_form, variant)
    found = [
        describe("conv2d", name, (), serves),
        describe("conv2d_fused", name, (PLAIN, image), partial(form, False)),
        describe("conv2d_fused", f"{name}_unbiased", (image,), partial(form, True)),
    ]
    if variant.stride == 1:
        turned = Form(variant, tier.lanes, gradient=True).name
        found.append(describe("conv2d_backward_data", name, (), serves, turned))
    return found


def _repacking(form: Form, tier: Tier) -> list[Kernel]:
    """Return the kernels that transform a weight, in float32 where it is no constant."""
    name, variant = form.name, form.variant

    def supports(call: Call) -> str | None:
        if (call.attrs.source, call.attrs.target) != (PLAIN, name):
            return f"repacks {PLAIN} to {name}"
        shape = call.inputs[0].shape
        return None if shape[2:] == (_KERNEL, _KERNEL) else f"transforms 3 x 3 kernels, got {shape}"

    def cost(rate: float, call: Call) -> float:
        o, i = (geo.round_up(int(n), tier.lanes) for n in call.inputs[0].shape[:2])
        return _START + 4 * variant.edge**2 * o * i / rate

    return [
        tier.kernel(
            "relayout_f32",
            f"pack_wino_{variant.name}{'_gradient' if form.gradient else ''}{suffix}",
            "relayout",
            dtypes=("float32",),
            layouts=Layouts((PLAIN,), (name,)),
            supports=supports,
            cost=partial(cost, rate),
            tolerance=tolerance,
        )
        for suffix, rate, tolerance in _PACKING
    ]


def kernels(tier: Tier) -> list[Kernel]:
    """Return the Winograd convolutions of a tier, and what transforms their weights."""
    found = [kernel for variant in VARIANTS for kernel in _kernels_of(variant, tier)]
    return found + [k for form in _forms(tier.lanes) for k in _repacking(form, tier)]
