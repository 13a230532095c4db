"""Connectionist temporal classification, as a recursion over time in log space."""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from .. import shapes
from ..errors import AttrError, ShapeError
from ..imperative.tensor import Tensor
from . import elemwise, math
from .activation import logsumexp
from .arguments import choice, fixed, floating, run, same_shape, tensor
from .joining import concat, cut, stack
from .movement import broadcast_to, reshape

__all__ = ["ctc_loss"]

_NEVER = -1e30  # the logarithm of an impossible event; finite, so that gradients stay so
_LEAST = 1e-37


def ctc_loss(
    pred: Tensor,
    pred_lengths: Tensor,
    label: Tensor,
    label_lengths: Tensor,
    blank: int = 0,
    reduction: str = "mean",
) -> Tensor:
    """Return -log of the probability of the labels over all alignments, reduced.

    The mean is that of each loss divided by the length of its label, as in MegEngine and PyTorch.

    ``pred`` (T, N, C) holds probabilities, ``label`` class indices without blanks, (N, S) padded
    or all of them in one vector; the lengths are (N,). Follows Graves et al., 2006.

    Raises:
        ShapeError: where the shapes do not fit.
        AttrError: where ``blank`` is no class.
        TraceError: inside a trace for labels in one vector, whose split depends on data.

    >>> even = Tensor([[[0.5, 0.5]], [[0.5, 0.5]]])
    >>> f"{ctc_loss(even, Tensor([2]), Tensor([[1]]), Tensor([1])).item():.3f}"
    '0.288'
    """
    op = "ctc_loss"
    reduction = choice(op, "reduction", reduction, ("mean", "sum", "none"))
    scores = floating(tensor(op, pred, "pred"))
    if scores.ndim != 3:
        raise ShapeError(
            f"{op}: pred has the wrong rank, got {shapes.format_shape(scores.shape)}, "
            "expected (T, N, C)"
        )
    steps, n, classes = scores.shape
    if not 0 <= blank < int(classes):
        raise AttrError(f"{op}: blank is no class, got {blank}, expected 0 to {int(classes) - 1}")
    given = _column(op, "pred_lengths", pred_lengths, n)
    wanted = _column(op, "label_lengths", label_lengths, n)
    path = _with_blanks(_padded(op, tensor(op, label, "label"), wanted, n), blank)
    logs = elemwise.log(elemwise.clip(scores, lower=_LEAST))
    if fixed(steps) == 0:
        raise ShapeError(
            f"{op}: there are no time steps, got {shapes.format_shape(scores.shape)}, "
            "expected at least one step"
        )
    alpha = _recursion(logs, path, given, blank)
    last = run("gather", alpha, elemwise.mul(wanted, 2), axis=1)
    before = elemwise.maximum(elemwise.sub(elemwise.mul(wanted, 2), 1), 0)
    other = run("gather", alpha, before, axis=1)
    other = run("where", elemwise.greater(wanted, 0), other, _never(other))
    loss = elemwise.neg(reshape(elemwise.logaddexp(last, other), (n,)))
    if reduction == "none":
        return loss
    if reduction == "sum":
        return math.sum(loss)
    count = reshape(elemwise.maximum(wanted, 1), (n,))
    return math.mean(elemwise.div(loss, count.cast(loss.dtype)))


def _column(op: str, what: str, lengths: Any, n: int) -> Tensor:
    found = tensor(op, lengths, what)
    if not same_shape(found.shape, (n,)):
        raise ShapeError(
            f"{op}: {what} does not fit, got {shapes.format_shape(found.shape)}, "
            f"expected ({int(n)},)"
        )
    return reshape(found.cast("int32"), (n, 1))


def _padded(op: str, label: Tensor, lengths: Tensor, n: int) -> Tensor:
    """Return the labels as (N, S) int32."""
    if label.ndim == 1:
        counts = lengths.numpy().reshape(-1)
        if int(counts.sum()) != int(label.shape[0]):
            raise ShapeError(
                f"{op}: label does not fit, got {int(label.shape[0])} labels, "
                f"expected {int(counts.sum())}"
            )
        rows = np.zeros((len(counts), max(int(counts.max()), 1)), np.int32)
        rows[np.arange(rows.shape[1]) < counts[:, None]] = label.numpy()
        return Tensor(rows, device=label.device)
    if label.ndim != 2 or int(label.shape[0]) != int(n):
        raise ShapeError(
            f"{op}: label does not fit, got {shapes.format_shape(label.shape)}, "
            f"expected ({int(n)}, S) or one vector"
        )
    return cast(Tensor, label.cast("int32"))


def _with_blanks(label: Tensor, blank: int) -> Tensor:
    """Return blank, label, blank, label, ..., blank as (N, 2S + 1)."""
    n, size = label.shape
    blanks = cast(Tensor, label.full((n, size), blank))
    pairs = reshape(stack([blanks, label], 2), (n, 2 * size))
    return concat([pairs, cast(Tensor, label.full((n, 1), blank))], 1)


def _never(like: Tensor) -> Tensor:
    return cast(Tensor, like.full((), _NEVER))


def _shifted(alpha: Tensor, count: int) -> Tensor:
    """Return each state's ``count``-th predecessor."""
    n, states = alpha.shape
    missing = broadcast_to(_never(alpha), (n, count))
    return concat([missing, cut(alpha, 1, 0, states - count)], 1)


def _recursion(logs: Tensor, path: Tensor, given: Tensor, blank: int) -> Tensor:
    """Return the log probability (N, 2S + 1) of ending each path's prefix at its last step."""
    n, states = path.shape
    distinct = elemwise.not_equal(cut(path, 1, 2, states - 2), cut(path, 1, 0, states - 2))
    distinct = concat([broadcast_to(distinct.full((), False), (n, 2)), distinct], 1)
    may_skip = elemwise.logical_and(distinct, elemwise.not_equal(path, blank))
    start = Tensor(np.arange(int(states)) < 2, device=path.device)

    def at(step: int) -> Tensor:
        here = reshape(cut(logs, 0, step, 1), logs.shape[1:])
        return run("gather", here, path, axis=1)

    alpha = run("where", reshape(start, (1, states)), at(0), _never(logs))
    for step in range(1, int(logs.shape[0])):
        skipped = run("where", may_skip, _shifted(alpha, 2), _never(alpha))
        ways = stack([alpha, _shifted(alpha, 1), skipped], 2)
        moved = elemwise.add(logsumexp(ways, 2), at(step))
        alpha = run("where", elemwise.greater(given, step), moved, alpha)
    return alpha
