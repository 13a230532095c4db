"""Know the physical forms of 8-bit values and the workspace of the products on them."""

from __future__ import annotations

from functools import partial

import numpy as np
from tianyuan.kernel import Call, Layout
from tianyuan.shapes import Shape

IMAGE = "nhwc16"  # channels last, their number rounded up as `channels` has it
CONV_WEIGHT = "oihw16o4i"
GROUPS = (2, 3, 4, 8)  # whose outputs need not fill whole blocks: see grouped_weight
DEPTHWISE_WEIGHT = "goihw64g4i"
COLUMNS_WEIGHT = "owhi16o4i"  # panels of the kernel's columns, filled up to fours once
MATRIX = "kn16n4k"  # second operand (K, N)
MATRIX_TRANSPOSED = "nk16n4k"  # second operand (N, K)
FORMS = "int8|uint8"


def round_up(value: int, to: int) -> int:
    """Return the least multiple of ``to`` that is not below ``value``."""
    return -(-value // to) * to


def channels(count: int) -> int:
    """Return how many bytes a pixel of an image takes."""
    return 4 if count <= 4 else round_up(count, 16)


def table_bytes(outputs: int) -> int:
    """Return the bytes of one padded table of values by output (q8_columns_bytes of int8.hpp)."""
    return round_up(4 * (outputs + 32), 64)


def packed_bytes(outputs: int, terms: int) -> int:
    """Return the bytes of a packed weight; ``terms`` are counted in fours."""
    return -(-outputs // 16) * (panel_rows(terms) + 1) * 64


def panel_rows(terms: int) -> int:
    """Return the rows of a packed weight: the fewest equal steps of at most 16, as tiles hold."""
    steps = -(-terms // 16)
    return round_up(terms, steps) if steps else 0


TILE_ROWS = (
    26  # the fewest rows that keep tiles busy: products of the same sums wait for each other
)
TILE_RATE = 1.3e9  # rows of 64 terms by 16 outputs per second and thread, an estimate


def row_room(tier: str, terms: int) -> int:
    """Return the terms between rows of a copied first operand (q8_row_room of int8.hpp)."""
    return 4 * (panel_rows(terms) if tier == "amx" else terms)


def tile_seconds(rows: float, steps: float, outputs: int, results: int) -> float:
    """Estimate what a product takes in tiles, whose sums become results beside it.

    ``steps`` counts the tiles along the terms, ``results`` the sums.
    """
    multiplied = max(rows, TILE_ROWS) * steps * -(-outputs // 16)
    return (multiplied + 0.2 * results) / TILE_RATE


def _image_extents(shape: Shape) -> Shape:
    n, c, h, w = shape
    return (n, h, w, channels(c))


def _pack_image(array: np.ndarray) -> np.ndarray:
    n, c, h, w = array.shape
    packed = np.zeros((n, h, w, channels(c)), array.dtype)
    packed[..., :c] = array.transpose(0, 2, 3, 1)
    return packed


def _unpack_image(array: np.ndarray, shape: Shape) -> np.ndarray:
    return np.ascontiguousarray(array[..., : shape[1]].transpose(0, 3, 1, 2))


# Bytes of a weight that are packed at a time, so that what packing needs stays small.
_SLICE = 1 << 18


def _write_sums(rows: np.ndarray) -> None:
    """Write the int32 sums of all rows but the last one, and of the last axis, into the last row.

    Integers of 8 bits only are ever summed; other values get zeros in their place.
    """
    if rows.dtype.itemsize == 1:
        sums = rows[:, :-1].sum(axis=(1, -1), dtype=np.int32)
        rows[:, -1] = sums[..., None].view(rows.dtype)
    else:
        rows[:, -1] = 0


def pack_panels(matrix: np.ndarray) -> np.ndarray:
    """Pack (outputs, taps, terms) into panels of 16 outputs with 4 terms next to each other."""
    o, taps, c = matrix.shape
    rows = panel_rows(taps * -(-c // 4)) + 1
    packed = np.empty((-(-o // 16), rows, 16, 4), matrix.dtype)
    _write_panels(matrix, packed)
    return packed


def _write_panels(matrix: np.ndarray, packed: np.ndarray) -> None:
    taps, c = matrix.shape[1:]
    fours = taps * -(-c // 4)
    packed[:, fours:-1] = 0
    step = max(_SLICE // (64 * packed.shape[1]), 1)
    for block in range(0, packed.shape[0], step):
        part, rows = packed[block : block + step], matrix[16 * block : 16 * (block + step)]
        padded = np.zeros((16 * part.shape[0], taps, round_up(c, 4)), matrix.dtype)
        padded[: rows.shape[0], :, :c] = rows
        split = padded.reshape(part.shape[0], 16, fours, 4)
        _as_words(part)[:, :fours] = _as_words(split).swapaxes(1, 2)
        if matrix.dtype.itemsize == 1:
            sums = padded.sum(axis=(1, 2), dtype=np.int32)
            _as_words(part)[:, -1] = sums.reshape(-1, 16)
        else:  # integers of 8 bits only are ever summed
            part[:, -1] = 0


def _as_words(fours: np.ndarray) -> np.ndarray:
    """Return each four bytes as a number, which is moved faster; other values as they are."""
    return fours.view(np.int32)[..., 0] if fours.dtype.itemsize == 1 else fours


def unpack_panels(array: np.ndarray, o: int, taps: int, c: int) -> np.ndarray:
    """Return (outputs, taps, terms) without the sums."""
    split = array[:, : taps * -(-c // 4)].transpose(0, 2, 1, 3)
    rows: np.ndarray = split.reshape(array.shape[0] * 16, taps, round_up(c, 4))[:o, :, :c]
    return rows


def grouped_weight(groups: int) -> str:
    """Return the layout of a convolution's weight whose groups each start a panel."""
    return f"{groups}g{CONV_WEIGHT}"


def _grouped_extents(groups: int, shape: Shape) -> Shape:
    blocks, *rest = _weight_extents((-(-shape[0] // groups), *shape[1:]))
    return (groups * blocks, *rest)


def _pack_grouped(groups: int, array: np.ndarray) -> np.ndarray:
    own = -(-array.shape[0] // groups)
    padded = np.zeros((groups * own, *array.shape[1:]), array.dtype)
    padded[: array.shape[0]] = array
    return np.concatenate([pack_conv_weight(part) for part in np.split(padded, groups)])


def _unpack_grouped(groups: int, array: np.ndarray, shape: Shape) -> np.ndarray:
    own = (-(-shape[0] // groups), *shape[1:])
    parts = [unpack_conv_weight(part, own) for part in np.split(array, groups)]
    return np.concatenate(parts)[: shape[0]]


def _weight_extents(shape: Shape) -> Shape:
    o, i, h, w = shape
    return (-(-o // 16), panel_rows(h * w * -(-i // 4)) + 1, 16, 4)


def pack_conv_weight(array: np.ndarray) -> np.ndarray:
    """Pack a convolution's weight into panels, with sums."""
    return pack_panels(_by_taps(array))


def write_conv_weight(array: np.ndarray, packed: np.ndarray) -> None:
    """Write what ``pack_conv_weight`` returns."""
    _write_panels(_by_taps(array), packed)


def _by_taps(array: np.ndarray) -> np.ndarray:
    o, i, h, w = array.shape
    taps: np.ndarray = array.reshape(o, i, h * w).transpose(0, 2, 1)
    return taps


def unpack_conv_weight(array: np.ndarray, shape: Shape) -> np.ndarray:
    """Return a convolution's weight from its panels."""
    o, i, h, w = shape
    rows = unpack_panels(array, o, h * w, i).transpose(0, 2, 1)
    return np.ascontiguousarray(rows).reshape(shape)


def _matrix_extents(swapped: bool, shape: Shape) -> Shape:
    n, k = shape if swapped else shape[::-1]
    return (-(-n // 16), panel_rows(-(-k // 4)) + 1, 16, 4)


def _pack_matrix(swapped: bool, array: np.ndarray) -> np.ndarray:
    return pack_panels((array if swapped else array.T)[:, None])


def _write_matrix(swapped: bool, array: np.ndarray, packed: np.ndarray) -> None:
    _write_panels((array if swapped else array.T)[:, None], packed)


def _unpack_matrix(swapped: bool, array: np.ndarray, shape: Shape) -> np.ndarray:
    n, k = shape if swapped else shape[::-1]
    rows = unpack_panels(array, n, 1, k).reshape(n, k)
    return np.ascontiguousarray(rows if swapped else rows.T)


def depthwise_fours(shape: Shape) -> int:
    """Return the groups of four taps of a depthwise weight, whose columns fill whole groups."""
    return int(shape[3]) * -(-int(shape[2]) // 4)


def _depthwise_extents(shape: Shape) -> Shape:
    return (-(-shape[0] // 64), shape[1] * depthwise_fours(shape) + 1, 4, 16, 4)


def _pack_depthwise(array: np.ndarray) -> np.ndarray:
    g, i, h, w = array.shape
    padded = np.zeros((round_up(g, 64), i, w, round_up(h, 4)), array.dtype)
    padded[:g, :, :, :h] = array.transpose(0, 1, 3, 2)
    # Channel 16 l + 4 q + i lies in lane 4 l + i of vector q, where unpacking bytes puts it.
    packed = np.empty(_depthwise_extents(array.shape), array.dtype)
    blocks, fours = packed.shape[0], packed.shape[1] - 1
    split = padded.reshape(blocks, 4, 4, 4, fours, 4).transpose(0, 4, 2, 1, 3, 5)
    packed[:, :-1] = split.reshape(blocks, fours, 4, 16, 4)
    _write_sums(packed)
    return packed


def _unpack_depthwise(array: np.ndarray, shape: Shape) -> np.ndarray:
    g, i, h, w = shape
    blocks, fours = array.shape[0], array.shape[1] - 1
    split = array[:, :-1].reshape(blocks, fours, 4, 4, 4, 4).transpose(0, 3, 2, 4, 1, 5)
    columns = split.reshape(blocks * 64, i, w, round_up(h, 4))[:g, :, :, :h]
    return np.ascontiguousarray(columns.transpose(0, 1, 3, 2))


def all_layouts() -> list[Layout]:
    """Return the layouts of 8-bit images and weights; what pads an image is never looked at."""
    found = [
        Layout(IMAGE, 4, _image_extents, _pack_image, _unpack_image, "undefined"),
        Layout(
            CONV_WEIGHT,
            4,
            _weight_extents,
            pack_conv_weight,
            unpack_conv_weight,
            "undefined",
            write=write_conv_weight,
        ),
        Layout(
            DEPTHWISE_WEIGHT, 4, _depthwise_extents, _pack_depthwise, _unpack_depthwise, "undefined"
        ),
    ]
    for groups in GROUPS:
        found.append(
            Layout(
                grouped_weight(groups),
                4,
                partial(_grouped_extents, groups),
                partial(_pack_grouped, groups),
                partial(_unpack_grouped, groups),
                "undefined",
            )
        )
    for name, swapped in ((MATRIX, False), (MATRIX_TRANSPOSED, True)):
        found.append(
            Layout(
                name,
                2,
                partial(_matrix_extents, swapped),
                partial(_pack_matrix, swapped),
                partial(_unpack_matrix, swapped),
                "undefined",
                write=partial(_write_matrix, swapped),
            )
        )
    return found


def image_reason(call: Call) -> str | None:
    """Return why a call is not about images, or None where it is."""
    if all(spec.ndim == 4 for spec in (*call.inputs, *call.outputs)):
        return None
    return "serves images"


def nonzero_weight_points(call: Call) -> bool:
    """Tell whether the second operand of a product has a zero point other than 0."""
    return any(point != 0 for point in call.attrs.w_zero_points)
