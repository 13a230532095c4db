"""Know the extents of a convolution and the workspace that its native kernels lay out in it."""

from __future__ import annotations

from typing import NamedTuple

from tianyuan.kernel import Call

_BAND = 96 * 1024  # floats of a band of copied rows (BAND_FLOATS of conv.hpp)
_CHUNK = 1 << 20  # floats of a chunk of images (CHUNK_FLOATS of conv_backward.cpp)
_LINE = 16  # floats of a cache line
_RECORD = 24  # bytes of a tap and of a tile segment
ROW_OUTPUTS = 8  # output channels that meet one copied plane (conv_depthwise.cpp)
TILE_ROWS = {8: 6, 16: 14}  # pixels or channels of the largest tile, by lanes


def round_up(value: int, to: int) -> int:
    """Return the least multiple of ``to`` that is not below ``value``."""
    return -(-value // to) * to


def _table(records: int) -> int:
    return round_up(records * _RECORD, 64) // 4


class Geometry(NamedTuple):
    """A convolution's extents, whichever of its three ops asks; c and o count all groups."""

    n: int
    c: int
    h: int
    w: int
    o: int
    oh: int
    ow: int
    kh: int
    kw: int
    stride: tuple[int, int]
    dilation: tuple[int, int]
    top: int
    left: int
    groups: int

    @property
    def taps(self) -> int:
        """Return the number of kernel elements."""
        return self.kh * self.kw

    @property
    def span(self) -> tuple[int, int]:
        """Return the distance of the first and last kernel element in source pixels."""
        return (self.kh - 1) * self.dilation[0], (self.kw - 1) * self.dilation[1]

    @property
    def flops(self) -> float:
        """Return the floating-point operations of any of the three ops."""
        pixels = float(self.n * self.oh * self.ow)
        return 2.0 * pixels * self.taps * self.o * (self.c // self.groups)

    @property
    def is_depthwise(self) -> bool:
        """Tell whether each group has one input and one output channel."""
        return self.groups == self.c == self.o

    def fills_blocks(self, lanes: int) -> bool:
        """Tell whether no block of ``lanes`` channels holds two groups."""
        widths = (self.c // self.groups, self.o // self.groups)
        return self.groups == 1 or all(width % lanes == 0 for width in widths)


def geometry(call: Call) -> Geometry:
    """Return the geometry of a call of conv2d, conv2d_fused or one of the gradients."""
    found: Geometry | None = call.memo.get(geometry)
    if found is None:
        found = call.memo[geometry] = _geometry(call)
    return found


def _geometry(call: Call) -> Geometry:
    x, w, y = call.inputs[0].shape, call.inputs[1].shape, call.outputs[0].shape
    if call.op.name == "conv2d_backward_data":
        x, y = y, x
    elif call.op.name == "conv2d_backward_weight":
        w, y = y, w
    a = call.attrs
    return Geometry(
        n=int(x[0]),
        c=int(x[1]),
        h=int(x[2]),
        w=int(x[3]),
        o=int(y[1]),
        oh=int(y[2]),
        ow=int(y[3]),
        kh=int(w[2]),
        kw=int(w[3]),
        stride=(int(a.stride[0]), int(a.stride[1])),
        dilation=(int(a.dilation[0]), int(a.dilation[1])),
        top=int(a.padding[0]),
        left=int(a.padding[1]),
        groups=int(a.groups),
    )


def _band(rows: int, first_row: int, next_row: int, row: int) -> int:
    """Return the floats of a band: as many rows as fit, one at least, all at most."""
    whole, one = (first_row + (rows - 1) * next_row) * row, first_row * row
    return round_up(max(min(whole, _BAND), one), _LINE)


def _forward_band(g: Geometry, lanes: int, blocked: bool, words: int, copies: bool) -> int:
    (sh, sw), (span_y, span_x) = g.stride, g.span
    inside = g.top == g.left == 0
    inside &= span_y + (g.oh - 1) * sh < g.h and span_x + g.ow - 1 < g.w
    if sw == 1 and inside and not copies:
        return 0
    channels = round_up(g.c // g.groups, lanes) if blocked else g.c // g.groups
    return _band(g.oh, span_y + 1, sh, sw * (g.ow + span_x // sw) * channels // words)


def _packed_weight(outputs: int, inputs: int, taps: int, lanes: int) -> int:
    return round_up(outputs, lanes) * round_up(inputs, lanes) * taps


def forward_bytes(
    g: Geometry,
    lanes: int,
    threads: int,
    blocked: bool,
    packs: bool,
    words: int = 1,
    copies: bool = False,
) -> int:
    """Return the workspace of the direct convolution; ``packs`` where it takes plain weights.

    ``words`` is how many values a word of 32 bits holds; ``copies`` where no source is read in
    place.
    """
    c, o = g.c // g.groups, g.o // g.groups
    floats = _table(g.taps) + _table(round_up(c, lanes) // lanes * g.taps)
    if packs:
        floats += _packed_weight(o, c, g.taps, lanes)
    return 4 * (floats + threads * _forward_band(g, lanes, blocked, words, copies))


def _plane(g: Geometry) -> int:
    """Return the floats of one channel copied with its padding."""
    (sh, sw), (span_y, span_x) = g.stride, g.span
    return ((g.oh - 1) * sh + span_y + 1) * sw * (g.ow + span_x // sw)


def depthwise_bytes(g: Geometry, threads: int) -> int:
    """Return the workspace of the depthwise convolution on plain values."""
    return 4 * (2 * _table(g.taps) + threads * round_up(_plane(g), _LINE))


def _phases(g: Geometry, axis: int) -> list[tuple[int, int]]:
    """Return, for each phase of the stride along an axis, positions and the span of its taps."""
    size, kernel = ((g.h, g.kh), (g.w, g.kw))[axis]
    stride, dilation, pad = g.stride[axis], g.dilation[axis], (g.top, g.left)[axis]
    found = []
    for phase in range(stride):
        count = -(-(size - phase) // stride)
        reach = [phase + pad - i * dilation for i in range(kernel)]
        taps = [position // stride for position in reach if position % stride == 0] or [0]
        if count > 0:
            found.append((count, max(taps) - min(taps)))
    return found


def backward_data_bytes(g: Geometry, lanes: int, threads: int) -> int:
    """Return the workspace of the gradient with respect to the input."""
    c, o = g.c // g.groups, g.o // g.groups
    bands = [
        _band(rows, span_y + 1, 1, (cols + span_x) * o)
        for rows, span_y in _phases(g, 0)
        for cols, span_x in _phases(g, 1)
    ]
    tables = _table(g.taps) + _table(round_up(o, lanes) // lanes * g.taps)
    packed = _packed_weight(c, o, g.taps, lanes)
    return 4 * (tables + packed + threads * max(bands, default=0))


def depthwise_backward_data_bytes(g: Geometry, threads: int) -> int:
    """Return the workspace of the depthwise gradient with respect to the input."""
    planes = [
        round_up((rows + span_y) * (cols + span_x), _LINE)
        for rows, span_y in _phases(g, 0)
        for cols, span_x in _phases(g, 1)
    ]
    return 4 * (2 * _table(g.taps) + threads * max(planes, default=0))


def backward_weight_bytes(g: Geometry, lanes: int) -> int:
    """Return the workspace of the gradient with respect to the weight."""
    rows, tile_lanes = TILE_ROWS[lanes], 2 * lanes
    c, o = g.c // g.groups, g.o // g.groups
    plane = (-(-_plane(g) // _LINE) | 1) * _LINE
    outputs = round_up(o, tile_lanes)
    image = c * plane + g.oh * g.ow * outputs
    chunk = min(max(g.n, 1), max(1, _CHUNK // (image + 1)))
    tiles = -(-c // rows) * (outputs // tile_lanes)
    sums = tiles * g.taps * rows * tile_lanes
    return 4 * (_table(g.taps) + _table(chunk * g.oh) + chunk * image + sums)


def rows_backward_weight_bytes(g: Geometry, lanes: int, threads: int) -> int:
    """Return the workspace of the gradient with respect to the weight, lanes along the row."""
    outputs = 1 if g.groups > 1 else ROW_OUTPUTS
    sums = outputs * (g.c // g.groups) * g.taps * lanes
    return 4 * (2 * _table(g.taps) + threads * (round_up(_plane(g), _LINE) + sums))
