"""Attention of heads whose vectors lie side by side in the columns of rows, as linear maps leave
them, as one op, so that a kernel need not move them apart and together again."""

from __future__ import annotations

from typing import Any

from .. import shapes
from ..errors import AttrError, ShapeError
from ..op import Ints, Op, Specs, TensorSpec, Work
from ..records import record
from .attention import ATTENTION, Attention, result_of
from .shape import CONCAT, RESHAPE, SLICE, TRANSPOSE

OP = "attention_heads"


@record()
class AttentionHeads:
    """What attention is told, and in which columns the vectors of each head lie.

    Those of head h begin at ``starts[i] + h * steps[i]``, where i is 0 for queries, 1 for keys and
    2 for values; queries and keys have ``depth`` elements, values ``width``.
    """

    scale: float = 1.0
    causal: bool = False
    heads: int = 1
    depth: int = 1
    width: int = 1
    starts: Ints = (0, 0, 0)
    steps: Ints = (0, 0, 0)

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Elements of a vector of queries, keys and values."""
        return self.depth, self.depth, self.width


def _check_attrs(attrs: AttentionHeads) -> None:
    for what in ("heads", "depth", "width"):
        if getattr(attrs, what) < 1:
            raise AttrError(
                f"{OP}: {what} is wrong, got {getattr(attrs, what)}, expected 1 or more"
            )
    for what in ("starts", "steps"):
        values = getattr(attrs, what)
        if len(values) != 3 or min(values) < 0:
            raise AttrError(f"{OP}: {what} are wrong, got {values}, expected three of 0 or more")


def _infer(specs: Specs, attrs: AttentionHeads) -> Specs:
    _check_attrs(attrs)
    heads = []
    for index, size in enumerate(attrs.sizes):
        spec = specs[index]
        end = attrs.starts[index] + (attrs.heads - 1) * attrs.steps[index] + size
        if spec.ndim < 2 or int(spec.shape[-1]) < end:
            raise ShapeError(
                f"{OP}: an operand has too few columns, got {shapes.format_shape(spec.shape)}, "
                f"expected rows of {end} or more"
            )
        heads.append(spec.with_shape((*spec.shape[:-2], attrs.heads, spec.shape[-2], size)))
    out = result_of(OP, (*heads, *specs[3:]), Attention(attrs.scale, attrs.causal))
    return (_merged(out, attrs),)


def _merged(out: TensorSpec, attrs: AttentionHeads) -> TensorSpec:
    return out.with_shape((*out.shape[:-3], out.shape[-2], attrs.heads * attrs.width))


def _swapped(rank: int) -> tuple[int, ...]:
    """Return the permutation that swaps heads and rows."""
    return (*range(rank - 3), rank - 2, rank - 3, rank - 1)


def _apart(x: Any, start: int, step: int, heads: int, size: int) -> Any:
    """Return the vectors of every head, (..., heads, rows, size)."""
    cuts = [
        SLICE(
            x,
            starts=(*(0,) * (x.ndim - 1), start + head * step),
            sizes=(*x.shape[:-1], size),
            steps=(1,) * x.ndim,
        )
        for head in range(heads)
    ]
    rows = RESHAPE(CONCAT(*cuts, axis=x.ndim - 1), shape=(*x.shape[:-1], heads, size))
    return TRANSPOSE(rows, perm=_swapped(rows.ndim))


def _decompose(inputs: tuple[Any, ...], attrs: AttentionHeads) -> Any:
    given = zip(inputs[:3], attrs.starts, attrs.steps, attrs.sizes, strict=True)
    apart = [_apart(x, start, step, attrs.heads, size) for x, start, step, size in given]
    out = ATTENTION(*apart, *inputs[3:], scale=attrs.scale, causal=attrs.causal)
    rows = TRANSPOSE(out, perm=_swapped(out.ndim))
    return RESHAPE(rows, shape=(*rows.shape[:-2], attrs.heads * attrs.width))


def _work(inputs: Specs, outputs: Specs, attrs: AttentionHeads) -> Work:
    scores = shapes.volume(outputs[0].shape[:-1]) * attrs.heads * inputs[1].shape[-2]
    return Work(scores * (attrs.depth + attrs.width))


# Queries (..., L, columns), keys and values (..., S, columns), and perhaps a mask, as attention
# takes it, that broadcasts to (..., heads, L, S); gives (..., L, heads * width).
ATTENTION_HEADS = Op(
    OP,
    infer=_infer,
    decompose=_decompose,
    attrs=AttentionHeads,
    n_inputs=(3, 4),
    work=_work,
    family="matmul",
)
OPS: tuple[Op, ...] = (ATTENTION_HEADS,)
