"""What integer forms must give, by numpy: the operands and the arithmetic that tests share."""

from __future__ import annotations

import numpy as np
import tianyuan
from tianyuan.functional.quantized import qint8_narrow, quint8
from tianyuan.module import quantized

INPUT, WEIGHT = quint8(0.03, 120), qint8_narrow(0.02)


def data(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def integers(array):
    """Return a tensor of the integers that stand for floats as INPUT says."""
    return quantized.QuantStub(INPUT)(tianyuan.Tensor(array))


def stored(array, form):
    """Return the integers that stand for floats, as float64."""
    q = np.rint((array / np.float32(form.scale)).astype(np.float64)) + form.zero_point
    return np.clip(q, form.lower, form.upper)


def finished(form, sums, bias, relu=False):
    """Return what sums of products become as ``form`` says, with a bias on their grid."""
    grid = np.float64(INPUT.scale) * WEIGHT.scale
    sums = sums + np.rint(bias.astype(np.float64) / grid)
    factor = np.float32(grid / form.scale)
    q = np.rint((sums.astype(np.float32) * factor).astype(np.float64)) + form.zero_point
    return np.clip(q, form.zero_point if relu else 0, 255)
