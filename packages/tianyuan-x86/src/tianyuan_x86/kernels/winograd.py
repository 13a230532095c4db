"""Describe the Winograd convolutions: transformed weights, what each call costs, how far it errs.

The gradient of the input is such a convolution too, of the output's gradient with swapped channels
and kernels turned by half a turn; weights for it have a layout of their own.

F(m x m, 3 x 3) computes m x m outputs of a 3 x 3 kernel with (m + 2)^2 products per pair of
channels instead of 9 m^2 (Lavin and Gray, 2016). Its points are chosen so that rounding grows
little. Largest error over largest magnitude against float64, on standard normal data of the 3 x 3
layers of ResNet (64 x 56^2 to 512 x 7^2) and VGG16 (64 x 224^2 to 512 x 14^2), and the bound that
is stated:

==========  ==========  =============  ==========
variant     measured    the direct     bound
==========  ==========  =============  ==========
F(2, 3)     1.1e-6      2.9e-6         3e-6
F(4, 3)     6.4e-6      2.9e-6         1.5e-5
F(6, 3)     2.9e-5      2.9e-6         8e-5
==========  ==========  =============  ==========
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
    """F(m x m, 3 x 3): its finite interpolation points beside 0, and how far it errs.

    ``tolerance`` bounds the error over the largest magnitude of the result; ``vector`` is how many
    seconds a vector of a tile takes through a transform, ``handicap`` by how much faster it must be
    for its larger error and weights to be worth it.
    """

    m: int
    points: tuple[float, ...]
    tolerance: float
    vector: float
    handicap: float = 1.0

    @property
    def name(self) -> str:
        """Return the name of the variant, as in ``f43``."""
        return f"f{self.m}{_KERNEL}"

    @property
    def size(self) -> int:
        """Return the edge of a tile of the input."""
        return self.m + _KERNEL - 1

    @property
    def frequencies(self) -> int:
        """Return how many products of matrices the method takes."""
        return self.size**2

    def positions(self, outputs: int) -> int:
        """Return how many products an axis of a plane takes: infinity is for whole tiles only."""
        return -(-outputs // self.m) * self.size - (outputs % self.m != 0)

    def kernel_transform(self) -> np.ndarray:
        """Return G in float64, (m + 2) x 3: rows [1, p, p^2] / prod (p - q), last [0, 0, 1]."""
        finite = [0.0] + [signed for p in self.points for signed in (p, -p)]
        rows = [
            np.array([1.0, p, p * p]) / np.prod([p - q for q in finite if q != p]) for p in finite
        ]
        return np.stack([*rows, np.array([0.0, 0.0, 1.0])])


# The points are those of winograd_transform.hpp.
VARIANTS = (
    Variant(2, (1.0,), 3e-6, 1.2e-9),
    Variant(4, (0.5**0.5, 2.0**0.5), 1.5e-5, 1.2e-9),
    Variant(6, (1.0, 0.5, 2.0), 8e-5, 1.8e-9, 1.08),
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
        return _pack(self.variant, self.lanes, self.turned(array))

    def unpack(self, array: np.ndarray, shape: Shape) -> np.ndarray:
        """Return the plain weight that comes closest."""
        turned = (shape[1], shape[0], *shape[2:]) if self.gradient else shape
        found = self.turned(_unpack(self.variant, self.lanes, array, turned))
        return np.ascontiguousarray(found)


def _extents(variant: Variant, lanes: int, shape: Shape) -> Shape:
    return (blocks(shape[0], lanes), variant.frequencies, blocks(shape[1], lanes), lanes, lanes)


def _pack(variant: Variant, lanes: int, array: np.ndarray) -> np.ndarray:
    """Return G g G^T of each kernel, computed in float64, as blocks (o, frequency, i, 16i, 16o)."""
    o, i = array.shape[:2]
    g = variant.kernel_transform()
    both = np.kron(g, g)  # acts on a kernel read as a vector of nine
    packed = np.zeros(_extents(variant, lanes, array.shape), array.dtype)
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
    return packed


def _unpack(variant: Variant, lanes: int, array: np.ndarray, shape: Shape) -> np.ndarray:
    """Return the kernels whose transforms come closest; exact up to rounding."""
    o, i = shape[:2]
    merged = array.transpose(0, 4, 2, 3, 1).reshape(
        array.shape[0] * lanes, -1, variant.size, variant.size
    )
    inverse = np.linalg.pinv(variant.kernel_transform())
    kernels = inverse @ merged[:o, :i].astype(np.float64) @ inverse.T
    return np.ascontiguousarray(kernels).astype(array.dtype)


def layouts() -> list[Layout]:
    """Return the layouts of transformed weights."""
    forms = [
        Form(variant, lanes, gradient)
        for lanes in sorted(LANES.values(), reverse=True)
        for variant in VARIANTS
        for gradient in (False, True)
    ]
    return [
        Layout(
            name=form.name,
            ndim=4,
            extents=form.extents,
            pack=form.pack,
            unpack=form.unpack,
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
    fit = max(_L2_FLOATS // (variant.frequencies * c_blocks * lanes), 3 * tile_rows)
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
    tiles = variant.frequencies * ((p.block * p.c_blocks + 1) | 1) * lanes
    products = variant.frequencies * ((p.block * _VECTORS) | 1) * lanes
    # Fewer threads may run than are planned for, so the room does not depend on who shares.
    return table + 4 * (tiles + products) * call.threads


_START = 1.5e-6  # seconds to enter a kernel and cut its tiles
_RATE = {8: 9.0e10, 16: 1.08e11}  # operations per second and thread inside a register tile
_WEIGHTS = 3.0e10  # bytes per second at which a transformed weight streams in beside products
_HIDDEN = 0.15  # of the shorter of the two does not hide behind the longer
_PACK = 1.2e10  # bytes per second at which a transformed weight is made


def _refusal(call: Call) -> str | None:
    g = _geometry(call)
    if g.groups != 1:
        return f"has {g.groups} groups, serves 1"
    if (g.kh, g.kw) != (_KERNEL, _KERNEL):
        return f"serves 3 x 3 kernels, got {g.kh} x {g.kw}"
    if g.stride != (1, 1) or g.dilation != (1, 1):
        return f"serves stride 1 and dilation 1, got {g.stride} and {g.dilation}"
    return None


def _cost(variant: Variant, lanes: int, call: Call) -> float:
    g = _geometry(call)
    if 0 in (g.n, g.o) or g.oh <= 0 or g.ow <= 0:
        return _START
    p = _plan(variant, lanes, call)
    matrices = p.rows * p.c_blocks * p.o_blocks * lanes
    threads = min(float(call.threads), max(1.0, 2.0 * matrices * lanes / 1e6))
    products = 2.0 * matrices * lanes / _RATE[lanes]
    weights = 4.0 * variant.frequencies * p.c_blocks * p.o_blocks * lanes**2 / _WEIGHTS
    vectors = p.tiles * variant.frequencies * 2.0 * (p.c_blocks + p.o_blocks)
    longer, shorter = max(products, weights), min(products, weights)
    seconds = longer + _HIDDEN * shorter + vectors * variant.vector
    return _START + variant.handicap * seconds / threads


def _epilogue_form(unbiased: bool, call: Call) -> str | None:
    """Refuse the form of inputs that the other of a pair of kernels serves."""
    third_is_residual = call.attrs.has_residual and not call.attrs.has_bias
    if third_is_residual != unbiased:
        return f"serves {'a residual without bias' if unbiased else 'a bias before any residual'}"
    return _refusal(call)


def _kernels_of(variant: Variant, tier: Tier) -> list[Kernel]:
    image, weight = activation_layout(tier.lanes), Form(variant, tier.lanes).name
    turned = Form(variant, tier.lanes, gradient=True).name
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

    return [
        describe("conv2d", name, (), _refusal),
        describe("conv2d_backward_data", name, (), _refusal, turned),
        describe("conv2d_fused", name, (PLAIN, image), partial(_epilogue_form, False)),
        describe("conv2d_fused", f"{name}_unbiased", (image,), partial(_epilogue_form, True)),
    ]


def _repacking(form: Form, tier: Tier) -> Kernel:
    """Return the kernel that transforms a weight which is no constant."""
    name, variant = form.name, form.variant

    def supports(call: Call) -> str | None:
        if (call.attrs.source, call.attrs.target) != (PLAIN, name):
            return f"repacks {PLAIN} to {name}"
        shape = call.inputs[0].shape
        return None if shape[2:] == (_KERNEL, _KERNEL) else f"transforms 3 x 3 kernels, got {shape}"

    def padded(call: Call) -> int:
        o, i = (geo.round_up(int(n), tier.lanes) for n in call.inputs[0].shape[:2])
        return 4 * o * i

    return tier.kernel(
        "relayout_f32",
        f"pack_wino_{variant.name}{'_gradient' if form.gradient else ''}",
        "relayout",
        dtypes=("float32",),
        layouts=Layouts((PLAIN,), (name,)),
        supports=supports,
        cost=lambda call: _START + variant.frequencies * padded(call) / _PACK,
        workspace=lambda call: _KERNEL**2 * padded(call),
    )


def kernels(tier: Tier) -> list[Kernel]:
    """Return the Winograd convolutions of a tier, and what transforms their weights."""
    found = [kernel for variant in VARIANTS for kernel in _kernels_of(variant, tier)]
    forms = [Form(v, tier.lanes, gradient) for v in VARIANTS for gradient in (False, True)]
    return found + [_repacking(form, tier) for form in forms]
