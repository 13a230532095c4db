"""Rows in bfloat16 that products and attention leave to each other instead of float32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tianyuan as ty
from ml_dtypes import bfloat16
from tianyuan import functional as F
from tianyuan import jit, registry
from tianyuan.graph import lower
from tianyuan.graph.graph import Constant, Graph
from tianyuan.graph.options import Options
from tianyuan.graph.selection import Labelling
from tianyuan.graph.slab import Slab
from tianyuan.kernel import BF16, Kernel
from tianyuan.ops.attention_heads import AttentionHeads
from tianyuan.ops.matmul import MatmulFused

ROWS = "bmk_bf16"
KEPT = 2.0**-8  # of a value: what rounding it to bfloat16 may change


def kept(op: str) -> list[Kernel]:
    """Return the kernels of an op that read or leave rows in bfloat16."""
    found = registry.candidates(op, "cpu", "x86")
    return [k for k in found if ROWS in (*k.layouts.inputs, *k.layouts.outputs)]


pytestmark = pytest.mark.skipif(not kept("matmul_fused"), reason="the machine has no AVX512-BF16")


def rounded(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Return standard normal float32 values that bfloat16 holds."""
    found: np.ndarray = rng.standard_normal(shape).astype(bfloat16).astype(np.float32)
    return found


@pytest.mark.parametrize("rows", [1, 2, 15, 131])
@pytest.mark.parametrize(("n", "k"), [(32, 32), (96, 64), (64, 544), (33, 96), (128, 33)])
@pytest.mark.parametrize("activation", ["identity", "relu", "silu"])
def test_products_read_and_leave_rows(
    rows: int, n: int, k: int, activation: str, call_of: Any, run: Any
) -> None:
    """Sums are float32 sums of rounded operands; what is kept is rounded once more."""
    rng = np.random.default_rng(rows * n + k)
    a, b, bias = rounded(rng, 2, rows, k), rounded(rng, n, k), rounded(rng, n)
    total = a.astype(np.float64) @ b.T + bias
    want = {"identity": total, "relu": np.maximum(total, 0), "silu": total / (1 + np.exp(-total))}
    served = set()
    for transposed in (False, True):
        right = b if transposed else np.ascontiguousarray(b.T)
        attrs = MatmulFused(transpose_b=transposed, has_bias=True, activation=activation)
        call = call_of("matmul_fused", [a, right, bias], attrs, threads=2)
        for found in kept("matmul_fused"):
            if registry.refusal(found, call) is None:
                (got,) = run(found, call, [a, right, bias])
                rounds = KEPT if found.layouts.outputs == (ROWS,) else 0.0
                np.testing.assert_allclose(
                    got, want[activation], rtol=1e-5 + rounds, atol=1e-6 * (k + 8)
                )
                served.add((found.layouts.inputs[0] == ROWS, found.layouts.outputs == (ROWS,)))
    assert ((True, False) in served) == (k % 32 == 0)
    assert ((False, True) in served) == (n % 32 == 0)
    assert ((True, True) in served) == (k % 32 == 0 and n % 32 == 0)


def test_residuals_stay_in_float32(call_of: Any, run: Any) -> None:
    """A product adds what float32 holds, and so leaves float32."""
    rng = np.random.default_rng(1)
    a, b = rounded(rng, 1, 20, 64), rounded(rng, 64, 32)
    residual = rng.standard_normal((1, 20, 32)).astype(np.float32) * 100
    call = call_of("matmul_fused", [a, b, residual], MatmulFused(has_residual=True))
    served = [k for k in kept("matmul_fused") if registry.refusal(k, call) is None]
    assert {k.layouts.outputs for k in served} == {("plain",)}
    for found in served:
        (got,) = run(found, call, [a, b, residual])
        np.testing.assert_allclose(got, a.astype(np.float64) @ b + residual, rtol=1e-5, atol=1e-4)


# rows, keys, columns of an operand, attributes; the odd numbers of keys have a last pair of one
PLACES = [
    (130, 130, 288, AttentionHeads(0.3, False, 3, 32, 32, (0, 96, 192), (32, 32, 32))),
    (19, 51, 160, AttentionHeads(0.3, False, 2, 10, 48, (3, 20, 64), (10, 10, 48))),
    (17, 33, 1024, AttentionHeads(-0.2, False, 4, 64, 40, (0, 256, 512), (64, 64, 64))),
]


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("place", PLACES, ids=str)
def test_heads_are_read_from_rows(
    place: tuple[int, int, int, AttentionHeads], masked: bool, call_of: Any, run: Any
) -> None:
    """Attention errs by what its weights and its results are rounded by."""
    rows, keys, columns, attrs = place
    rng = np.random.default_rng(rows)
    x = [rounded(rng, 2, count, columns) for count in (rows, keys, keys)]
    mask = rounded(rng, rows, keys)
    arrays = [*x, *([mask] if masked else [])]
    places = zip(x, attrs.starts, attrs.steps, attrs.sizes, strict=True)
    q, k, v = (
        np.stack([a[..., at + h * step :][..., :size] for h in range(attrs.heads)], 1)
        for a, at, step, size in places
    )
    scores = q.astype(np.float64) @ k.swapaxes(-1, -2) * attrs.scale + (mask if masked else 0)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    want = (weights @ v).swapaxes(1, 2).reshape(2, rows, -1)
    limit = (weights @ np.abs(v)).swapaxes(1, 2).reshape(2, rows, -1) * KEPT * 1.5
    (found,) = kept("attention_heads")
    for threads in (1, 5):
        call = call_of("attention_heads", arrays, attrs, threads=threads)
        assert registry.refusal(found, call) is None
        (got,) = run(found, call, arrays)
        assert np.max(np.abs(got - want) / limit) < 1.0


@pytest.mark.parametrize("masks_all", [False, True])
def test_hidden_keys_weigh_nothing(masks_all: bool, call_of: Any, run: Any) -> None:
    """A score of minus infinity has no weight; where all have it, nothing is left to divide by."""
    attrs = AttentionHeads(0.5, False, 1, 32, 32, (0, 0, 0), (0, 0, 0))
    x, mask = rounded(np.random.default_rng(2), 1, 40, 32), np.zeros((40, 40), np.float32)
    mask[:, 7:] = -np.inf
    mask[3] = -np.inf if masks_all else 0.0
    call = call_of("attention_heads", [x, x, x, mask], attrs)
    for found in registry.candidates("attention_heads", "cpu", "x86"):
        if found.precision == BF16:
            (got,) = run(found, call, [x, x, x, mask])
            assert np.isnan(got[0, 3]).all() == masks_all
            (want,) = run(found, call, [x, x, np.where(np.arange(40)[:, None] < 7, x, 9), mask])
            others = np.arange(40) != 3
            np.testing.assert_array_equal(got[0, others], want[0, others])


def encoder_layer(width: int) -> Callable[[ty.Tensor], ty.Tensor]:
    """Return a layer of an encoder on (batch, rows, width) whose heads come from one product."""
    rng = np.random.default_rng(8)
    sizes = ((width, 3 * width), (width, width), (width, 4 * width), (4 * width, width))
    weights = [
        (ty.Tensor(rng.standard_normal(size, np.float32) / size[0] ** 0.5),
         ty.Tensor(rng.standard_normal(size[1], np.float32)))
        for size in sizes
    ]  # fmt: skip

    def linear(x: ty.Tensor, index: int) -> ty.Tensor:
        weight, bias = weights[index]
        return F.matmul(x, weight) + bias

    def forward(x: ty.Tensor) -> ty.Tensor:
        b, s, w = x.shape
        qkv = linear(x, 0).reshape(b, s, 3, w // 32, 32).transpose(2, 0, 3, 1, 4)
        heads = F.scaled_dot_product_attention(qkv[0], qkv[1], qkv[2])
        x = F.layer_norm(x + linear(heads.transpose(0, 2, 1, 3).reshape(b, s, w), 1), w, False)
        return x + linear(F.gelu(linear(x, 2)), 3)

    return forward


def test_an_encoder_keeps_rows_between_its_products() -> None:
    """No value goes through float32 on the way to attention, from it, or within the MLP."""
    forward, made = encoder_layer(128), {}
    x = np.random.default_rng(5).standard_normal((2, 48, 128)).astype(np.float32)
    for precision in ("full", "bf16"):
        traced = jit.trace(forward, capture_as_const=True, precision=precision)
        for _ in range(2):
            made[precision] = traced(ty.Tensor(x)).numpy()
    text = str(traced.explain())
    assert "attention_heads_bf16__bf16_whole_kept" in text, text
    assert "packed_to_kept  " in text, text
    assert "packed_from_kept  " in text, text
    want, got = made["full"], made["bf16"]
    assert 0 < np.abs(got - want).max() < 2e-2 * np.abs(want).max()
    cosine = np.sum(want * got) / np.sqrt(np.sum(want**2) * np.sum(got**2))
    assert cosine > 0.9999


def test_weights_lie_side_by_side() -> None:
    """Rounded weights are as many as exact ones, and small pages would cost them as much."""
    rng = np.random.default_rng(9)
    constants = [Constant(rng.standard_normal((512, 768), np.float32)) for _ in range(3)]
    labelling, slab = (
        Labelling(Graph(), {}, "cpu", Options(precision=BF16)),
        Slab(c.spec.nbytes for c in constants),
    )
    layout = registry.get_layout("kn32n2k_bf16")
    packed = [lower.packed(c, layout.name, labelling, slab).array for c in constants]
    for constant, array, first in zip(constants, packed, [packed[0]] * 3, strict=True):
        np.testing.assert_array_equal(array, layout.pack(constant.array))
        assert array.base is not None
        assert array.base is first.base
