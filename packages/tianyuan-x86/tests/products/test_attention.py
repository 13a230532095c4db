"""Streaming attention against numpy in float64, which holds the whole matrix of scores."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tianyuan.module as M
from tianyuan import Tensor, registry
from tianyuan.jit import trace
from tianyuan.kernel import FULL, Kernel, Layouts
from tianyuan.ops.attention import Attention
from tianyuan.ops.attention_heads import AttentionHeads


def kernels() -> list[Kernel]:
    """Return the plugin's own kernels of attention that multiply what they are given."""
    return [
        kernel
        for kernel in registry.candidates("attention", "cpu", "x86")
        if kernel.is_native and kernel.precision == FULL
    ]


KERNELS = kernels()
# queries, keys, extents of keys and values: one query, few, tails of tiles and panels, several
# blocks of keys, several pieces of rows.
SIZES = [
    (1, 1, 1, 1), (1, 300, 40, 70), (2, 33, 5, 16), (4, 520, 64, 64), (5, 32, 16, 32),
    (14, 256, 7, 17), (15, 257, 33, 31), (29, 600, 20, 48), (200, 40, 8, 33), (340, 1, 3, 5),
    (3, 9, 0, 4),
]  # fmt: skip


def operands(size: tuple[int, ...], seed: int = 0, spread: float = 1.0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    rows, keys, depth, width = size
    shapes = ((2, 3, rows, depth), (3, keys, depth), (2, 1, keys, width))
    return [(rng.standard_normal(shape) * spread).astype(np.float32) for shape in shapes]


def answer(arrays: list[np.ndarray], attrs: Attention) -> np.ndarray:
    q, k, v = (x.astype(np.float64) for x in arrays[:3])
    scores = q @ k.swapaxes(-1, -2) * attrs.scale
    seen = np.tri(*scores.shape[-2:], dtype=bool) if attrs.causal else np.ones((1, 1), bool)
    if len(arrays) == 4 and arrays[3].dtype.kind == "b":
        seen = seen & arrays[3]
    elif len(arrays) == 4:
        scores = scores + arrays[3]
    scores = np.where(seen, scores, -np.inf)
    best = np.max(scores, -1, keepdims=True)
    powers = np.exp(scores - np.where(np.isfinite(best), best, 0))
    total = powers.sum(-1, keepdims=True)
    return powers / np.where(total == 0, 1, total) @ v


def masks(size: tuple[int, ...]) -> list[np.ndarray]:
    rng = np.random.default_rng(7)
    rows, keys = size[:2]
    some = rng.random((2, 1, rows, keys)) < 0.4
    some[0, 0, rows // 2] = False
    late = np.zeros((rows, keys), np.float32)
    late[:, : keys - 1] = -np.inf  # whole blocks of -inf before the one key that counts
    return [
        some, some[0, 0, :1], some[:, :, :, :1], late,
        rng.standard_normal((3, rows, keys)).astype(np.float32) * 9,
        rng.standard_normal((rows, 1)).astype(np.float32),
    ]  # fmt: skip


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_attention(kernel: Kernel, size: tuple[int, ...], call_of: Any, run: Any) -> None:
    plain = operands(size)
    for mask in (None, *masks(size)):
        arrays = plain if mask is None else [*plain, mask]
        for causal in (False, True):
            attrs = Attention(-0.3, causal)
            if causal and mask is not None and mask.dtype.kind == "f" and np.isinf(mask).any():
                continue  # leaves rows without a key, on which the kit has cases
            (got,) = run(kernel, call_of("attention", arrays, attrs), arrays)
            np.testing.assert_allclose(got, answer(arrays, attrs), rtol=2e-5, atol=3e-6)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("batch", [0, 2])
def test_nothing_is_asked_of_empty_results(
    batch: int, threads: int, call_of: Any, run: Any
) -> None:
    heads, served = AttentionHeads(0.5, False, 2, 8, 16, (0, 0, 0), (8, 8, 16)), set()
    for rows in (16, 0) if batch else (16,):
        q = np.ones((batch, rows, 16), np.float32)
        k, v = np.ones((batch, 5, 16), np.float32), np.ones((batch, 5, 32), np.float32)
        for op, attrs in (("attention", Attention(0.5, False)), ("attention_heads", heads)):
            call = call_of(op, (q, k, v), attrs, threads)
            for kernel in registry.candidates(op, "cpu", "x86"):
                if kernel.is_native and registry.refusal(kernel, call) is None:
                    (got,) = run(kernel, call, (q, k, v))
                    served.add(kernel.precision)
                    # Weights sum up to one, and so do these values.
                    np.testing.assert_allclose(got, np.ones((batch, rows, 32)), rtol=2**-8)
    assert FULL in served


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_large_scores_stay_exact(kernel: Kernel, call_of: Any, run: Any) -> None:
    """The largest score moves from block to block, and powers would overflow without it."""
    arrays, attrs = operands((6, 900, 4, 5), 3, 8.0), Attention(2.0)
    arrays[1] *= np.linspace(0.1, 3, 900, dtype=np.float32)[:, None]
    (got,) = run(kernel, call_of("attention", arrays, attrs), arrays)
    # Scores near 1000 are rounded at 6e-5, and weights follow relatively.
    np.testing.assert_allclose(got, answer(arrays, attrs), rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
@pytest.mark.parametrize("rows", [1, 4, 20, 400])
def test_bits_depend_on_neither_threads_nor_other_rows(
    kernel: Kernel, rows: int, call_of: Any, run: Any
) -> None:
    arrays, attrs = operands((rows, 300, 24, 40)), Attention(0.2, causal=True)
    call = call_of("attention", arrays, attrs)
    (want,) = run(kernel, call, arrays)
    for threads in (2, 3, 16):
        (got,) = run(kernel, replace(call, threads=threads), arrays)
        assert got.tobytes() == want.tobytes()
    if rows > 8:
        fewer = [arrays[0][:, :, : rows - 3], *arrays[1:]]
        fewer[0] = np.ascontiguousarray(fewer[0])
        (got,) = run(kernel, call_of("attention", fewer, attrs), fewer)
        np.testing.assert_array_equal(got, want[:, :, : rows - 3])


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_nan_and_infinities_stay_in_their_rows(kernel: Kernel, call_of: Any, run: Any) -> None:
    for rows in (4, 9):
        arrays, attrs = operands((rows, 300, 8, 20)), Attention(1.0)
        clean = answer(arrays, attrs)
        arrays[0][:, :, 0, 3], arrays[0][:, :, 2, 5] = np.nan, np.inf
        (got,) = run(kernel, call_of("attention", arrays, attrs), arrays)
        assert np.isnan(got[:, :, [0, 2]]).all()
        np.testing.assert_allclose(got[:, :, [1, 3]], clean[:, :, [1, 3]], rtol=2e-5, atol=3e-6)


HEADS = [
    k
    for k in registry.candidates("attention_heads", "cpu", "x86")
    if k.is_native and k.layouts == Layouts()
]
APART = {k.name: k for k in registry.candidates("attention", "cpu", "x86")}
# rows, keys, columns behind those of the heads, attributes: cut from one product; heads whose
# operands lie together, one query; rows 4 KiB apart.
PLACES = [
    (130, 130, 0, AttentionHeads(0.3, False, 3, 32, 32, (0, 96, 192), (32, 32, 32))),
    (19, 50, 3, AttentionHeads(0.3, False, 2, 9, 21, (0, 20, 40), (9, 9, 22))),
    (3, 300, 5, AttentionHeads(0.3, False, 2, 24, 40, (0, 24, 48), (88, 88, 88))),
    (1, 70, 1, AttentionHeads(0.3, True, 4, 8, 33, (0, 32, 64), (8, 8, 33))),
    (70, 40, 1024 - 192, AttentionHeads(0.3, True, 2, 32, 32, (0, 64, 128), (32, 32, 32))),
]


@pytest.mark.parametrize("kernel", HEADS, ids=lambda kernel: kernel.name)
@pytest.mark.parametrize("place", PLACES, ids=str)
def test_heads_in_place_give_the_bits_of_heads_apart(
    kernel: Kernel, place: tuple[int, int, int, AttentionHeads], call_of: Any, run: Any
) -> None:
    rows, keys, spare, attrs = place
    given = list(zip(attrs.starts, attrs.steps, attrs.sizes, strict=True))
    columns = max(start + (attrs.heads - 1) * step + size for start, step, size in given) + spare
    rng = np.random.default_rng(3)
    arrays = [
        rng.standard_normal((2, count, columns)).astype(np.float32) for count in (rows, keys, keys)
    ]
    apart = [
        np.stack([x[..., start + h * step :][..., :size] for h in range(attrs.heads)], 1)
        for x, (start, step, size) in zip(arrays, given, strict=True)
    ]
    if kernel.supports(call_of("attention_heads", arrays, attrs)) is not None:
        pytest.skip("the kernel does not serve this call")
    plain = Attention(attrs.scale, attrs.causal)
    alone = APART[kernel.name.replace("_heads", "")]
    (want,) = run(alone, call_of("attention", apart, plain), apart)
    tolerance = 3e-6 if kernel.precision == FULL else 2e-2
    np.testing.assert_allclose(want, answer(apart, plain), rtol=tolerance * 7, atol=tolerance)
    merged = want.swapaxes(1, 2).reshape(2, rows, -1)
    for threads in (1, 2, 5):
        call = replace(call_of("attention_heads", arrays, attrs), threads=threads)
        (got,) = run(kernel, call, arrays)
        assert got.tobytes() == merged.tobytes()


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_the_scores_are_never_held(kernel: Kernel, call_of: Any) -> None:
    """Workspace grows with neither queries nor keys."""
    sizes = ((512, 512, 64, 64), (4096, 4096, 64, 64))
    specs = [
        call_of("attention", [np.broadcast_to(np.float32(0), s) for s in (
            (1, rows, depth), (1, keys, depth), (1, keys, width))], Attention())
        for rows, keys, depth, width in sizes
    ]  # fmt: skip
    small, large = map(kernel.workspace, specs)
    assert small == large < 512 * 512 * 4


def backward_kernels() -> list[Kernel]:
    """Return the plugin's own kernels of attention's gradient."""
    found = registry.candidates("attention_backward", "cpu", "x86")
    return [kernel for kernel in found if kernel.is_native and kernel.precision == FULL]


@pytest.mark.parametrize("kernel", backward_kernels(), ids=lambda kernel: kernel.name)
def test_bits_of_the_gradient_do_not_depend_on_threads(
    kernel: Kernel, call_of: Any, run: Any
) -> None:
    q, k, v = (np.ascontiguousarray(x) for x in operands((340, 300, 24, 40)))
    attrs = Attention(0.2, causal=True)
    out = answer([q, k, v], attrs).astype(np.float32)
    arrays = [q, k, v, out, np.cos(out)]
    call = call_of("attention_backward", arrays, attrs)
    want = run(kernel, call, arrays)
    for threads in (2, 3):
        got = run(kernel, replace(call, threads=threads), arrays)
        for one, other in zip(got, want, strict=True):
            assert one.tobytes() == other.tobytes()


@pytest.mark.parametrize("kernel", backward_kernels(), ids=lambda kernel: kernel.name)
def test_the_gradient_never_holds_the_scores(kernel: Kernel, call_of: Any) -> None:
    """Workspace grows with three numbers a query and nothing else."""
    calls = [
        call_of("attention_backward", [np.broadcast_to(np.float32(0), (1, n, 64))] * 5, Attention())
        for n in (512, 4096)
    ]
    small, large = map(kernel.workspace, calls)
    assert large - small == 3 * 4 * (4096 - 512) * calls[0].threads


def test_a_traced_layer_reads_its_heads_in_place() -> None:
    """A layer of an encoder, with fewer steps than without fusion and the same results."""
    rng = np.random.default_rng(4)
    layer = M.MultiHeadAttention(48, 3).eval()
    x = Tensor(rng.standard_normal((2, 20, 48)).astype(np.float32))

    def forward(value: Tensor) -> Tensor:
        return layer(value, value, value)[0]

    results, programs = [], []
    for level in (0, 2):
        traced = trace(symbolic=True, opt_level=level)(forward)
        results.append(traced(x).numpy())
        programs.append(traced.explain())
    np.testing.assert_allclose(results[1], results[0], rtol=2e-5, atol=2e-6)
    assert "attention_heads_f32" in str(programs[1])
    assert "attention_heads" not in str(programs[0])
    assert "transpose_" not in str(programs[1])
