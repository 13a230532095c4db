"""Losses with MegEngine's names and defaults; ``reduction`` is mean, sum or none."""

from __future__ import annotations

from typing import Any

from .. import shapes
from ..errors import AttrError, DTypeError, IndexRangeError, ShapeError
from ..imperative import dispatch
from ..imperative.tensor import Tensor
from . import elemwise, math
from .activation import logsumexp, relu, softplus
from .arguments import choice, floating, same_shape, tensor
from .ctc import ctc_loss
from .layers import indexing_one_hot
from .picking import where

__all__ = [
    "binary_cross_entropy", "cross_entropy", "ctc_loss", "hinge_loss", "huber_loss", "kl_div",
    "l1_loss", "mse_loss", "nll_loss", "smooth_l1_loss", "square_loss",
]  # fmt: skip

_REDUCTIONS = ("mean", "sum", "none")


def _reduced(op: str, loss: Tensor, reduction: str) -> Tensor:
    reduction = choice(op, "reduction", reduction, _REDUCTIONS)
    if reduction == "none":
        return loss
    return math.mean(loss) if reduction == "mean" else math.sum(loss)


def _pair(op: str, pred: Any, label: Any) -> tuple[Tensor, Tensor]:
    """Return prediction and label, which must have one shape.

    Raises:
        ShapeError: where they do not.
    """
    left, right = floating(tensor(op, pred, "pred")), tensor(op, label, "label")
    if not same_shape(left.shape, right.shape):
        raise ShapeError(
            f"{op}: shapes must agree, got {shapes.format_shape(left.shape)} and label "
            f"{shapes.format_shape(right.shape)}, "
            "expected equal ones"
        )
    return left, right


def l1_loss(pred: Tensor, label: Tensor, reduction: str = "mean") -> Tensor:
    """Return |pred - label|, reduced.

    >>> l1_loss(Tensor([1.0, 4.0]), Tensor([2.0, 2.0])).item()
    1.5
    """
    reduction = choice("l1_loss", "reduction", reduction, _REDUCTIONS)
    pred, label = _pair("l1_loss", pred, label)
    return _reduced("l1_loss", elemwise.abs(elemwise.sub(pred, label)), reduction)


def square_loss(pred: Tensor, label: Tensor, reduction: str = "mean") -> Tensor:
    """Return (pred - label)**2, reduced.

    >>> square_loss(Tensor([1.0, 4.0]), Tensor([2.0, 2.0])).item()
    2.5
    """
    return _squared("square_loss", pred, label, reduction)


def _squared(op: str, pred: Tensor, label: Tensor, reduction: str) -> Tensor:
    reduction = choice(op, "reduction", reduction, _REDUCTIONS)
    pred, label = _pair(op, pred, label)
    return _reduced(op, elemwise.square(elemwise.sub(pred, label)), reduction)


def cross_entropy(
    pred: Tensor,
    label: Tensor,
    axis: int = 1,
    with_logits: bool = True,
    label_smooth: float = 0,
    reduction: str = "mean",
) -> Tensor:
    """Return -log of the probability that ``pred`` gives to the class ``label``, reduced.

    ``pred`` holds one score per class along an axis: logits, or probabilities without
    ``with_logits``. ``label`` holds class indices, without that axis. With smoothing s the target
    is (1 - s) for the class plus s / classes for every class.

    Raises:
        ShapeError: where the label's shape is not that of pred without the axis.
        DTypeError: where the label is not an integer.
        AttrError: where the smoothing is not in 0 to 1.

    >>> f"{cross_entropy(Tensor([[0.0, 0.0]]), Tensor([1])).item():.3f}"
    '0.693'
    """
    reduction = choice("cross_entropy", "reduction", reduction, _REDUCTIONS)
    if not 0 <= label_smooth <= 1:
        raise AttrError(
            f"cross_entropy: label_smooth must be in 0 to 1, got {label_smooth}, "
            "expected 0 <= label_smooth <= 1"
        )
    scores = floating(tensor("cross_entropy", pred, "pred"))
    axis = shapes.normalize_axis("cross_entropy", axis, scores.ndim)
    rest = (*scores.shape[:axis], *scores.shape[axis + 1 :])
    if not same_shape(tensor("cross_entropy", label, "label").shape, rest):
        raise ShapeError(
            f"cross_entropy: label does not fit, got {shapes.format_shape(label.shape)} for pred "
            f"{shapes.format_shape(scores.shape)}, expected {shapes.format_shape(rest)}"
        )
    if label.dtype.kind not in "iu":
        raise DTypeError(
            f"cross_entropy: label must hold class indices, got {label.dtype.name}, "
            "expected an integer dtype"
        )
    if not with_logits:
        scores = elemwise.log(scores)
    target = indexing_one_hot(scores, _labels(label, scores.shape[axis]), axis)
    if label_smooth:
        even = elemwise.mul(math.mean(scores, axis), label_smooth)
        target = elemwise.add(elemwise.mul(target, 1.0 - label_smooth), even)
    loss = elemwise.sub(logsumexp(scores, axis), target) if with_logits else elemwise.neg(target)
    return _reduced("cross_entropy", loss, reduction)


def _labels(label: Tensor, classes: int) -> Tensor:
    """Return class indices of which none counts from the end.

    Raises:
        IndexRangeError: where one lies outside the classes; in a trace the run raises.
    """
    if dispatch.is_known(label):
        found = dispatch.host_array(label, label._data)
        if found.size and not (found.min() >= 0 and found.max() < classes):
            outside = found.min() if found.min() < 0 else found.max()
            raise IndexRangeError(
                f"cross_entropy: label is out of range, got {outside}, expected 0 to {classes - 1}"
            )
        return label
    found_in_run: Tensor = where(label < 0, classes, label)
    return found_in_run


def binary_cross_entropy(
    pred: Tensor, label: Tensor, with_logits: bool = True, reduction: str = "mean"
) -> Tensor:
    """Return -(y*log(p) + (1 - y)*log(1 - p)), reduced, for labels y and p = sigmoid(pred).

    Without ``with_logits`` p is ``pred`` itself.

    Raises:
        ShapeError: where the shapes differ.

    >>> f"{binary_cross_entropy(Tensor([0.0]), Tensor([1.0])).item():.3f}"
    '0.693'
    """
    op = "binary_cross_entropy"
    reduction = choice(op, "reduction", reduction, _REDUCTIONS)
    pred, label = _pair(op, pred, label)
    if with_logits:
        # log(1 + e^x) - x*y is the same and does not overflow.
        loss = elemwise.sub(softplus(pred), elemwise.mul(pred, label))
    else:
        hit = elemwise.mul(label, elemwise.log(pred))
        miss = elemwise.mul(elemwise.sub(1.0, label), elemwise.log(elemwise.sub(1.0, pred)))
        loss = elemwise.neg(elemwise.add(hit, miss))
    return _reduced(op, loss, reduction)


def hinge_loss(pred: Tensor, label: Tensor, norm: str = "L1", reduction: str = "mean") -> Tensor:
    """Return the sum over axis 1 of max(0, 1 - pred*label), squared for ``norm="L2"``, reduced.

    Labels are -1 or 1.

    Raises:
        ShapeError: where the shapes differ or there is no axis 1.
        AttrError: where the norm is unknown.

    >>> hinge_loss(Tensor([[0.5, -2.0]]), Tensor([[1.0, -1.0]])).item()
    0.5
    """
    reduction = choice("hinge_loss", "reduction", reduction, _REDUCTIONS)
    norm = choice("hinge_loss", "norm", norm, ("L1", "L2"))
    pred, label = _pair("hinge_loss", pred, label)
    if pred.ndim < 2:
        raise ShapeError(
            f"hinge_loss: input has the wrong rank, got {shapes.format_shape(pred.shape)}, "
            "expected (N, classes, ...)"
        )
    gap = relu(elemwise.sub(1.0, elemwise.mul(pred, label)))
    loss = math.sum(gap if norm == "L1" else elemwise.square(gap), axis=1)
    return _reduced("hinge_loss", loss, reduction)


def mse_loss(pred: Tensor, label: Tensor, reduction: str = "mean") -> Tensor:
    """Return (pred - label)**2, reduced: ``square_loss`` under PyTorch's name.

    >>> mse_loss(Tensor([1.0, 3.0]), Tensor([1.0, 1.0])).item()
    2.0
    """
    return _squared("mse_loss", pred, label, reduction)


def huber_loss(pred: Tensor, label: Tensor, reduction: str = "mean", delta: float = 1.0) -> Tensor:
    """Return d**2 / 2 for d = |pred - label| <= delta and delta * (d - delta / 2) beyond, reduced.

    Raises:
        ShapeError: where the shapes differ.
        AttrError: where delta is not positive.

    >>> huber_loss(Tensor([0.0, 0.0]), Tensor([1.0, 3.0]), "none").tolist()
    [0.5, 2.5]
    """
    reduction = choice("huber_loss", "reduction", reduction, _REDUCTIONS)
    if not delta > 0:
        raise AttrError(f"huber_loss: delta must be positive, got {delta}, expected delta > 0")
    pred, label = _pair("huber_loss", pred, label)
    gap = elemwise.abs(elemwise.sub(pred, label))
    near = elemwise.minimum(gap, float(delta))
    loss = elemwise.mul(near, elemwise.sub(gap, elemwise.mul(near, 0.5)))
    return _reduced("huber_loss", loss, reduction)


def smooth_l1_loss(
    pred: Tensor, label: Tensor, reduction: str = "mean", beta: float = 1.0
) -> Tensor:
    """Return d**2 / (2 * beta) for d = |pred - label| < beta and d - beta / 2 beyond, reduced.

    With beta 0 it is ``l1_loss``.

    Raises:
        ShapeError: where the shapes differ.
        AttrError: where beta is negative.

    >>> smooth_l1_loss(Tensor([0.0, 0.0]), Tensor([1.0, 3.0]), "none").tolist()
    [0.5, 2.5]
    """
    reduction = choice("smooth_l1_loss", "reduction", reduction, _REDUCTIONS)
    if not beta >= 0:
        raise AttrError(
            f"smooth_l1_loss: beta must not be negative, got {beta}, expected beta >= 0"
        )
    pred, label = _pair("smooth_l1_loss", pred, label)
    if beta == 0:
        return l1_loss(pred, label, reduction)
    return elemwise.div(huber_loss(pred, label, reduction, beta), float(beta))


def nll_loss(pred: Tensor, label: Tensor, axis: int = 1, reduction: str = "mean") -> Tensor:
    """Return the negative of the log-probability that ``pred`` gives to the label, reduced.

    ``pred`` holds one log-probability per class along the axis (0 for a vector), ``label`` class
    indices without that axis.

    Raises:
        ShapeError: where the label's shape is not that of pred without the axis.
        IndexRangeError: where a label lies outside the classes; in a trace the run raises.

    >>> nll_loss(Tensor([[-1.0, -2.0]]), Tensor([1])).item()
    2.0
    """
    reduction = choice("nll_loss", "reduction", reduction, _REDUCTIONS)
    logs = floating(tensor("nll_loss", pred, "pred"))
    axis = shapes.normalize_axis("nll_loss", axis if logs.ndim > 1 else 0, logs.ndim)
    picked = indexing_one_hot(logs, _labels(label, logs.shape[axis]), axis)
    return _reduced("nll_loss", elemwise.neg(picked), reduction)


def kl_div(
    pred: Tensor, label: Tensor, reduction: str = "mean", log_target: bool = False
) -> Tensor:
    """Return label * (log(label) - pred), reduced, for log-probabilities ``pred``.

    ``label`` holds probabilities, or their logarithms with ``log_target``; a probability of 0
    adds nothing. The reduction may also be ``batchmean``: the sum over the first extent.

    Raises:
        ShapeError: where the shapes differ.

    >>> kl_div(Tensor([[0.0, -1.0]]), Tensor([[1.0, 0.0]]), "batchmean").item()
    0.0
    """
    reduction = choice("kl_div", "reduction", reduction, (*_REDUCTIONS, "batchmean"))
    pred, label = _pair("kl_div", pred, label)
    label = floating(label)
    if log_target:
        loss = elemwise.mul(elemwise.exp(label), elemwise.sub(label, pred))
    else:
        safe = where(elemwise.greater(label, 0), label, 1.0)
        entropy = elemwise.mul(label, elemwise.log(safe))
        loss = elemwise.sub(entropy, elemwise.mul(label, pred))
    if reduction != "batchmean":
        return _reduced("kl_div", loss, reduction)
    if pred.ndim == 0:
        raise ShapeError("kl_div: batchmean needs a first axis, got a scalar")
    count = pred.extent(pred.shape[0], pred.dtype)
    return elemwise.div(math.sum(loss), count)
