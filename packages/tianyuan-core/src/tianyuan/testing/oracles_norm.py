"""Answers for normalisations, whose gradients are products with explicit Jacobians, and random."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np

from ..dtypes import as_dtype
from .oracles import Arrays, Oracle


def _wide(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float64)


def _rows(x: np.ndarray) -> np.ndarray:
    """Bring channels to the front: (C, everything else)."""
    return np.moveaxis(_wide(x), 1, 0).reshape(x.shape[1], -1)


def _back(rows: np.ndarray, like: np.ndarray) -> np.ndarray:
    moved = np.moveaxis(like, 1, 0)
    return np.moveaxis(rows.reshape(moved.shape), 0, 1).astype(like.dtype)


def _column(x: np.ndarray) -> np.ndarray:
    return _wide(x).reshape(-1, 1)


def _batch_norm(arrays: Arrays, attrs: Any) -> Arrays:
    x, mean, var, weight, bias = arrays
    normal = (_rows(x) - _column(mean)) / np.sqrt(_column(var) + attrs.eps)
    return [_back(normal * _column(weight) + _column(bias), x)]


def _batch_norm_train(arrays: Arrays, attrs: Any) -> Arrays:
    x, weight, bias = arrays
    with warnings.catch_warnings():
        # The mean of nothing is NaN, which numpy warns of.
        warnings.simplefilter("ignore", RuntimeWarning)
        mean, var = _rows(x).mean(1), _rows(x).var(1)
    (y,) = _batch_norm([x, mean, var, weight, bias], attrs)
    return [y, mean.astype(x.dtype), var.astype(x.dtype)]


def _through(normal: np.ndarray, scale: float, g: np.ndarray) -> np.ndarray:
    """Return the product of g with the Jacobian of normalising, (I - 1/n - u u^T/n) / scale."""
    n = max(len(normal), 1)
    jacobian = (np.eye(len(normal)) - 1 / n - np.outer(normal, normal) / n) / scale
    return np.asarray(jacobian @ g)


def _batch_norm_backward(arrays: Arrays, attrs: Any) -> Arrays:
    x, weight, mean, var, g = arrays
    scale = np.sqrt(_column(var) + attrs.eps)
    normal, given = (_rows(x) - _column(mean)) / scale, _rows(g)
    lanes = zip(normal, scale[:, 0], given * _column(weight), strict=True)
    dx = np.array([_through(*lane) for lane in lanes])
    sums = (given * normal).sum(1), given.sum(1)
    return [_back(dx, x), *(total.astype(x.dtype) for total in sums)]


def _layers(x: np.ndarray, ndim: int) -> np.ndarray:
    """Return the elements that are normalised together as rows."""
    return _wide(x).reshape(-1, int(np.prod(x.shape[x.ndim - ndim :])))


def _normalised(rows: np.ndarray, eps: float) -> tuple[np.ndarray, np.ndarray]:
    scale = np.sqrt(rows.var(1, keepdims=True) + eps)
    return (rows - rows.mean(1, keepdims=True)) / scale, scale


def _layer_norm(arrays: Arrays, attrs: Any) -> Arrays:
    x = arrays[0]
    y, _ = _normalised(_layers(x, attrs.ndim), attrs.eps)
    if attrs.affine:
        y = y * _wide(arrays[1]).reshape(-1) + _wide(arrays[2]).reshape(-1)
    return [y.reshape(x.shape).astype(x.dtype)]


def _layer_norm_backward(arrays: Arrays, attrs: Any) -> Arrays:
    x, given = arrays[0], _layers(arrays[1], attrs.ndim)
    normal, scale = _normalised(_layers(x, attrs.ndim), attrs.eps)
    weighted = given * _wide(arrays[2]).reshape(-1) if attrs.affine else given
    dx = [_through(*lane) for lane in zip(normal, scale[:, 0], weighted, strict=True)]
    result = [np.array(dx).reshape(x.shape).astype(x.dtype)]
    if attrs.affine:
        for total in ((given * normal).sum(0), given.sum(0)):
            result.append(total.reshape(arrays[2].shape).astype(x.dtype))
    return result


def _group_norm(arrays: Arrays, attrs: Any) -> Arrays:
    x, weight, bias = arrays
    together = x.reshape(x.shape[0], attrs.groups, -1) if x.size else x.reshape(0, 1)
    y, _ = _normalised(_wide(together).reshape(-1, together.shape[-1]), attrs.eps)
    channels = (1, -1, *(1,) * (x.ndim - 2))
    result = y.reshape(x.shape) * _wide(weight).reshape(channels)
    return [(result + _wide(bias).reshape(channels)).astype(x.dtype)]


# Philox4x32-10, Salmon et al., SC 2011, on Python's integers: ten rounds of two products.


def _philox(seed: int, number: int) -> list[int]:
    low = 2**32
    words, keys = [number % low, number // low, 0, 0], [seed % low, seed // low]
    for _ in range(10):
        high_a, low_a = divmod(words[0] * 0xD2511F53, low)
        high_b, low_b = divmod(words[2] * 0xCD9E8D57, low)
        words = [high_b ^ words[1] ^ keys[0], low_b, high_a ^ words[3] ^ keys[1], low_a]
        keys = [(keys[0] + 0x9E3779B9) % low, (keys[1] + 0xBB67AE85) % low]
    return words


def _stream(arrays: Arrays, attrs: Any, count: int) -> np.ndarray:
    seed, offset = (int(v) % 2**64 for v in arrays[0])
    blocks = range(-(-count // 4))
    words = [w for b in blocks for w in _philox(seed, (offset + attrs.skip + b) % 2**64)]
    return np.array(words[:count], np.uint64)


def _philox_bits(arrays: Arrays, attrs: Any) -> Arrays:
    words = _stream(arrays, attrs, math.prod(attrs.shape))
    return [words.astype(np.uint32).reshape(attrs.shape)]


def _philox_uniform(arrays: Arrays, attrs: Any) -> Arrays:
    dtype, count = as_dtype(attrs.dtype), math.prod(attrs.shape)
    if attrs.dtype == "float64":
        pairs = _stream(arrays, attrs, 2 * count).reshape(-1, 2)
        joined = pairs[:, 1] * np.uint64(2**32) + pairs[:, 0]
        values = (joined // np.uint64(2**11)).astype(np.float64) / 2.0**53
    else:
        values = (_stream(arrays, attrs, count) // np.uint64(2**8)).astype(np.float64) / 2.0**24
    return [values.astype(dtype).reshape(attrs.shape)]


def _philox_normal(arrays: Arrays, attrs: Any) -> Arrays:
    count = math.prod(attrs.shape)
    words = _stream(arrays, attrs, count + count % 2).astype(np.float64).reshape(-1, 2)
    radius = np.sqrt(-2 * np.log((words[:, 0] + 0.5) / 2.0**32))
    polar = radius * np.exp(2j * np.pi * words[:, 1] / 2.0**32)
    values = np.stack((polar.real, polar.imag), 1).reshape(-1)[:count]
    # What is drawn in single precision is rounded to it first.
    wide = values if attrs.dtype == "float64" else values.astype(np.float32)
    return [wide.astype(as_dtype(attrs.dtype)).reshape(attrs.shape)]


NORMS: dict[str, Oracle] = {
    "batch_norm": _batch_norm,
    "batch_norm_train": _batch_norm_train,
    "batch_norm_backward": _batch_norm_backward,
    "layer_norm": _layer_norm,
    "layer_norm_backward": _layer_norm_backward,
    "group_norm": _group_norm,
    "philox_bits": _philox_bits,
    "philox_uniform": _philox_uniform,
    "philox_normal": _philox_normal,
}
