"""Integer kernels against sums in int64, and whole integer networks on every instruction set."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tianyuan import ops, registry
from tianyuan.graph.compile import compile_graph
from tianyuan.graph.graph import Graph, Value
from tianyuan.graph.options import Options
from tianyuan.imperative import dispatch
from tianyuan.imperative.dispatch import run_kernel
from tianyuan.kernel import Call, Kernel
from tianyuan.op import TensorSpec
from tianyuan.ops.quantized import Dequantize, Quantize
from tianyuan.ops.quantized_product import Conv2dQuantized, MatmulQuantized
from tianyuan.ops.reference import evaluate

ops.register_all()


def conv_attrs(**changes: object) -> Conv2dQuantized:
    base = Conv2dQuantized(
        stride=(1, 1), padding=(1, 1, 1, 1), dilation=(1, 1), groups=1, has_bias=True,
        has_residual=False, x_zero_point=128, w_zero_points=(0,), multipliers=(2.0**-12,),
        residual_zero_point=0, residual_multiplier=1.0, scale=1.0, zero_point=0, dtype="int8",
        lower=-128, upper=127,
    )  # fmt: skip
    return replace(base, **changes)  # type: ignore[arg-type]


def direct_sums(x: np.ndarray, w: np.ndarray, groups: int, pad: int, stride: int) -> np.ndarray:
    """Sum products of centred values in int64, output by output."""
    n, c, h, width = x.shape
    o, group_c, kh, kw = w.shape
    padded = np.zeros((n, c, h + 2 * pad, width + 2 * pad), np.int64)
    padded[:, :, pad : pad + h, pad : pad + width] = x
    oh, ow = (h + 2 * pad - kh) // stride + 1, (width + 2 * pad - kw) // stride + 1
    sums = np.zeros((n, o, oh, ow), np.int64)
    for out in range(o):
        first = out // (o // groups) * group_c
        for i in range(oh):
            for j in range(ow):
                rows = slice(i * stride, i * stride + kh)
                cols = slice(j * stride, j * stride + kw)
                patch = padded[:, first : first + group_c, rows, cols]
                sums[:, out, i, j] = (patch * w[out].astype(np.int64)).sum(axis=(1, 2, 3))
    return sums


def stored(sums: np.ndarray, factor: float, attrs: Conv2dQuantized | MatmulQuantized) -> np.ndarray:
    """Scale in float32, round half to even and clamp."""
    found = np.rint(sums.astype(np.float32) * np.float32(factor)).astype(np.float64)
    return np.clip(found + attrs.zero_point, attrs.lower, attrs.upper).astype(attrs.dtype)


def kernels_for(call: Call) -> list[Kernel]:
    return [
        kernel
        for kernel in registry.candidates(call.op.name, "cpu", "x86")
        if kernel.backend == "x86" and registry.refusal(kernel, call) is None
    ]


def call_of(name: str, arrays: list[np.ndarray], attrs: object, threads: int = 2) -> Call:
    op = registry.get_op(name)
    specs = tuple(TensorSpec(a.shape, a.dtype) for a in arrays)
    return Call(op, specs, op.infer(specs, attrs), attrs, threads)


@pytest.mark.parametrize(
    ("c", "o", "kernel", "groups", "stride", "dtype"),
    [
        (3, 24, 3, 1, 2, "uint8"),
        (3, 16, 7, 1, 1, "int8"),
        (64, 65, 1, 1, 1, "uint8"),
        (20, 130, 3, 1, 1, "int8"),
        (48, 96, 3, 3, 1, "uint8"),
        (15, 10, 3, 5, 1, "uint8"),
        (72, 72, 3, 72, 2, "uint8"),
        (130, 130, 5, 130, 1, "int8"),
        (3, 3, 1, 3, 1, "uint8"),
        (0, 17, 3, 1, 1, "uint8"),
    ],
)
def test_convolution_is_exact_at_the_ends_of_the_range(
    c: int, o: int, kernel: int, groups: int, stride: int, dtype: str, run: Any
) -> None:
    """Products of the largest values do not saturate on the way into the sum."""
    rng = np.random.default_rng(c + o)
    info = np.iinfo(dtype)
    x = rng.choice([info.min, info.max], (2, c, 9, 10)).astype(dtype)
    w = rng.choice([-128, 127], (o, c // groups, kernel, kernel)).astype(np.int8)
    bias = rng.integers(-(2**20), 2**20, o).astype(np.int32)
    zero = 7 if dtype == "int8" else 129
    pad = kernel // 2
    attrs = conv_attrs(
        x_zero_point=zero, padding=(pad,) * 4, groups=groups, stride=(stride, stride)
    )
    want = direct_sums(x.astype(np.int64) - zero, w, groups, pad, stride)
    want = stored(want + bias[:, None, None], 2.0**-12, attrs)
    call = call_of("conv2d_quantized", [x, w, bias], attrs)
    found = kernels_for(call)
    assert {kernel.isa for kernel in found} >= {"avx2"}
    for each in found:
        (got,) = run(each, call, [x, w, bias])
        np.testing.assert_array_equal(got, want, err_msg=each.name)


@pytest.mark.parametrize(
    ("c", "o", "kernel", "groups", "stride", "dtype"),
    [
        (3, 24, 3, 1, 2, "uint8"),
        (64, 65, 1, 1, 1, "uint8"),
        (20, 130, 3, 1, 1, "int8"),
        (48, 96, 3, 3, 1, "uint8"),
        (15, 10, 3, 5, 1, "int8"),
        (72, 72, 3, 72, 2, "uint8"),
        (70, 70, 3, 70, 1, "int8"),
        (17, 17, 5, 17, 1, "uint8"),
        (72, 72, 1, 72, 2, "uint8"),
    ],
)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("least", [-128, -127])
@pytest.mark.parametrize("residual", [False, True])
def test_convolution_with_zero_points_of_weights(
    c: int,
    o: int,
    kernel: int,
    groups: int,
    stride: int,
    dtype: str,
    residual: bool,
    least: int,
    bias: bool,
    run: Any,
) -> None:
    """A zero point per output channel, at both ends of its range, on every instruction set."""
    rng = np.random.default_rng(c * o)
    info = np.iinfo(dtype)
    x = rng.choice([info.min, info.max], (2, c, 9, 10)).astype(dtype)
    w = rng.choice([-128, 127], (o, c // groups, kernel, kernel)).astype(np.int8)
    zeros = rng.choice([least, -3, 0, 127], o)
    zero, pad = (7 if dtype == "int8" else 129), kernel // 2
    attrs = conv_attrs(
        x_zero_point=zero, padding=(pad,) * 4, groups=groups, stride=(stride, stride),
        w_zero_points=tuple(map(int, zeros)), has_bias=bias, has_residual=residual,
    )  # fmt: skip
    centred = w.astype(np.int64) - zeros[:, None, None, None]
    sums = direct_sums(x.astype(np.int64) - zero, centred, groups, pad, stride)
    arrays = [x, w]
    if bias:
        arrays.append(rng.integers(-(2**20), 2**20, o).astype(np.int32))
        sums += arrays[2][:, None, None]
    values = sums.astype(np.float32) * np.float32(2.0**-12)
    if residual:
        arrays.append(rng.integers(-128, 128, sums.shape).astype(np.int8))
        values = values + arrays[-1].astype(np.float32)
    want = np.clip(np.rint(values), -128, 127).astype(np.int8)
    call = call_of("conv2d_quantized", arrays, attrs)
    found = kernels_for(call)
    assert {kernel.isa for kernel in found} >= {"avx2"}
    assert any("depthwise" in kernel.name for kernel in found) == (groups == c)
    for each in found:
        (got,) = run(each, call, arrays)
        np.testing.assert_array_equal(got, want, err_msg=each.name)


@pytest.mark.parametrize("size", [(3, 1), (3, 2), (1, 3), (4, 1), (2, 3)])
@pytest.mark.parametrize("least", [-128, -127])
@pytest.mark.parametrize("groups", [1, 70])
def test_oblong_kernels_with_zero_points_of_weights(
    size: tuple[int, int], least: int, groups: int, run: Any
) -> None:
    """Taps that are there twice or three times are no columns of the kernel."""
    rng = np.random.default_rng(size[0])
    x = rng.integers(0, 256, (2, 70, 6, 5)).astype(np.uint8)
    w = rng.integers(-128, 128, (70, 70 // groups, *size)).astype(np.int8)
    zeros = rng.choice([least, 0, 127], 70)
    attrs = conv_attrs(groups=groups, has_bias=False, w_zero_points=tuple(map(int, zeros)))
    sums = direct_sums(x.astype(np.int64) - 128, w - zeros[:, None, None, None], groups, 1, 1)
    call = call_of("conv2d_quantized", [x, w], attrs)
    found = kernels_for(call)
    assert any("depthwise" in kernel.name for kernel in found) == (groups > 1)
    for each in found:
        (got,) = run(each, call, [x, w])
        np.testing.assert_array_equal(got, stored(sums, 2.0**-12, attrs), err_msg=each.name)


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize(
    ("shape", "kernel", "stride", "dilation", "padding", "dtype"),
    [
        ((1, 96, 40, 41), (3, 3), (1, 1), (1, 1), (1, 1, 1, 1), "uint8"),
        ((2, 96, 39, 40), (3, 3), (2, 2), (1, 1), (0, 1, 1, 0), "int8"),
        ((1, 70, 45, 50), (3, 3), (2, 1), (1, 1), (0, 0, 0, 0), "int8"),
        ((1, 48, 60, 60), (5, 4), (1, 2), (3, 2), (7, 3, 5, 0), "uint8"),
        ((3, 64, 5, 1100), (3, 3), (1, 1), (1, 1), (1, 1, 1, 1), "uint8"),
        ((1, 64, 3, 2100), (3, 1), (1, 1), (1, 1), (2, 0, 2, 0), "uint8"),
    ],
)
def test_large_depthwise_images_are_copied_by_bands(
    shape: tuple[int, ...],
    kernel: tuple[int, int],
    stride: tuple[int, int],
    dilation: tuple[int, int],
    padding: tuple[int, int, int, int],
    dtype: str,
    threads: int,
    run: Any,
) -> None:
    """Bands meet at every row, and no thread writes behind its share of the workspace."""
    rng, c = np.random.default_rng(threads), shape[1]
    info, (top, left, bottom, right) = np.iinfo(dtype), padding
    x = rng.integers(info.min, info.max + 1, shape).astype(dtype)
    w = rng.integers(-127, 128, (c, 1, *kernel)).astype(np.int8)
    bias = rng.integers(-1000, 1000, c).astype(np.int32)
    around = ((0, 0), (0, 0), (top, bottom), (left, right))
    padded = np.pad(x.astype(np.int64) - 100, around)
    spans = [(k - 1) * d for k, d in zip(kernel, dilation, strict=True)]
    taps = np.lib.stride_tricks.sliding_window_view(padded, [1 + s for s in spans], (2, 3))
    taps = taps[:, :, :: stride[0], :: stride[1], :: dilation[0], :: dilation[1]]
    sums = np.einsum("nchwij,cij->nchw", taps, w[:, 0].astype(np.int64)) + bias[:, None, None]
    residual = rng.integers(-128, 128, sums.shape).astype(np.int8)
    values = sums.astype(np.float32) * np.float32(2.0**-9) + residual.astype(np.float32)
    want = np.clip(np.rint(values), -128, 127).astype(np.int8)
    attrs = conv_attrs(
        x_zero_point=100, padding=padding, groups=c, stride=stride, dilation=dilation,
        has_residual=True, multipliers=(2.0**-9,),
    )  # fmt: skip
    arrays = [x, w, bias, residual]
    call = call_of("conv2d_quantized", arrays, attrs, threads)
    found = [each for each in kernels_for(call) if "depthwise" in each.name]
    assert {each.isa for each in found} >= {"avx2"}
    for each in found:
        (got,) = run(each, call, arrays)
        np.testing.assert_array_equal(got, want, err_msg=each.name)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32"])
@pytest.mark.parametrize("axis", [0, 1, 2, 3])
@pytest.mark.parametrize("shape", [(3, 5, 2, 19), (17, 1, 3, 1), (2, 0, 3, 4)])
def test_conversions_with_a_scale_per_channel(
    dtype: str, axis: int, shape: tuple[int, ...]
) -> None:
    rng = np.random.default_rng(axis)
    info, count = np.iinfo(dtype), shape[axis]
    x = (rng.standard_normal(shape) * 3).astype(np.float32)
    x.reshape(-1)[: min(x.size, 4)] = [np.nan, np.inf, -np.inf, -3e38][: x.size]
    scales = rng.uniform(0.01, 0.05, count).astype(np.float32)
    zeros = rng.integers(max(info.min, -(2**20)), min(info.max, 2**20), count)
    along = [-1 if i == axis else 1 for i in range(4)]
    with np.errstate(over="ignore", invalid="ignore"):
        divided = (x / scales.reshape(along)).astype(np.float64)
        rounded = np.rint(divided) + zeros.reshape(along)
    want = np.where(np.isnan(rounded), info.min, np.clip(rounded, info.min, info.max)).astype(dtype)
    form = {"scales": tuple(map(float, scales)), "zero_points": tuple(map(int, zeros))}
    call = call_of("quantize", [x], Quantize(**form, axis=axis, dtype=dtype))
    found = kernels_for(call)
    assert found
    for each in found:
        (got,) = run_kernel(each, call, [x])
        np.testing.assert_array_equal(got, want, err_msg=each.name)
    centred = (want.astype(np.int64) - zeros.reshape(along)).astype(np.float32)
    call = call_of("dequantize", [want], Dequantize(**form, axis=axis))
    found = kernels_for(call)
    assert found
    for each in found:
        (got,) = run_kernel(each, call, [want])
        np.testing.assert_array_equal(got, centred * scales.reshape(along), err_msg=each.name)


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize(
    ("c", "o", "groups", "pad"),
    [(3, 3, 3, 0), (4, 4, 4, 1), (6, 4, 2, 0), (20, 17, 1, 0), (24, 24, 24, 0), (68, 40, 1, 1)],
)
def test_convolutions_stay_inside_of_their_workspace(
    monkeypatch: pytest.MonkeyPatch, c: int, o: int, groups: int, pad: int, dtype: str
) -> None:
    guarded = []

    def with_guard(shape: tuple[int, ...], kind: np.dtype) -> np.ndarray:
        if len(shape) > 1:
            return plain(shape, kind)
        whole = plain((shape[0] + 65536,), kind)
        whole[shape[0] :] = 171
        guarded.append(whole[shape[0] :])
        return whole[: shape[0]]

    plain = dispatch.empty
    monkeypatch.setattr(dispatch, "empty", with_guard)
    x = np.ones((1, c, 7, 9), dtype)
    arrays = [x, np.ones((o, c // groups, 3, 3), np.int8), np.ones(o, np.int32)]
    attrs = conv_attrs(x_zero_point=3, padding=(pad,) * 4, groups=groups)
    call = call_of("conv2d_quantized", arrays, attrs)
    for each in kernels_for(call):
        guarded.clear()
        run_kernel(each, call, arrays)
        assert guarded
        assert all((guard == 171).all() for guard in guarded), each.name


@pytest.mark.parametrize("factor", [0.25, 0.75, 3.0, 20.0, 1e9])
@pytest.mark.parametrize(("dtype", "lower", "upper"), [("int8", -100, 90), ("uint8", 3, 255)])
def test_large_multipliers_clamp_as_small_ones_do(
    factor: float, dtype: str, lower: int, upper: int
) -> None:
    """Results beyond 16 and beyond 32 bits reach the bound on their own side."""
    rng = np.random.default_rng(8)
    x = rng.integers(0, 256, (1, 20, 5, 7)).astype(np.uint8)
    w = rng.integers(-128, 128, (37, 20, 1, 1)).astype(np.int8)
    bias = rng.integers(-(2**29), 2**29, 37).astype(np.int32)
    bias[::3] = 0
    attrs = conv_attrs(
        padding=(0, 0, 0, 0), multipliers=(factor,), dtype=dtype, lower=lower, upper=upper,
        zero_point=5,
    )  # fmt: skip
    sums = direct_sums(x.astype(np.int64) - 128, w, 1, 0, 1) + bias[:, None, None]
    want = stored(sums, factor, attrs)
    assert {lower, upper} <= set(np.unique(want))
    call = call_of("conv2d_quantized", [x, w, bias], attrs)
    for each in kernels_for(call):
        (got,) = run_kernel(each, call, [x, w, bias])
        np.testing.assert_array_equal(got, want, err_msg=each.name)


@pytest.mark.parametrize("b_dtype", ["int8", "uint8"])
@pytest.mark.parametrize("zero", [0, 5])
def test_products_with_zero_points_of_both_operands(b_dtype: str, zero: int) -> None:
    rng = np.random.default_rng(zero)
    a = rng.integers(0, 256, (3, 13, 37)).astype(np.uint8)
    b = rng.integers(0, 128, (3, 37, 21)).astype(b_dtype)
    attrs = MatmulQuantized(
        transpose_a=False, transpose_b=False, has_bias=False, has_residual=False, x_zero_point=3,
        w_zero_points=(zero,), multipliers=(2.0**-10,), residual_zero_point=0,
        residual_multiplier=1.0, scale=1.0, zero_point=-4, dtype="int8", lower=-128, upper=127,
    )  # fmt: skip
    sums = np.matmul(a.astype(np.int64) - 3, b.astype(np.int64) - zero)
    call = call_of("matmul_quantized", [a, b], attrs)
    found = kernels_for(call)
    assert found
    for each in found:
        (got,) = run_kernel(each, call, [a, b])
        np.testing.assert_array_equal(got, stored(sums, 2.0**-10, attrs), err_msg=each.name)


@pytest.mark.parametrize("layout", ["nhwc16", "oihw16o4i", "goihw64g4i"])
def test_layouts_carry_sums_of_weights(layout: str) -> None:
    """The last row of a packed weight holds the sum of each output's weights as int32."""
    rng = np.random.default_rng(2)
    found = registry.get_layout(layout)
    value = rng.integers(-128, 128, (70, 1, 3, 3)).astype(np.int8)
    packed = found.pack(value)
    np.testing.assert_array_equal(found.unpack(packed, value.shape), value)
    if layout == "nhwc16":
        return
    total = np.sort(packed[:, -1].copy().view(np.int32).reshape(-1))
    want = value.astype(np.int64).sum(axis=(1, 2, 3))
    want = np.sort(np.concatenate([want, np.zeros(total.size - 70, np.int64)]))
    np.testing.assert_array_equal(total, want)


def test_quantise_rounds_halves_to_even_and_saturates() -> None:
    x = np.array([0.25, 0.75, -0.25, -0.75, 1e30, -1e30, np.nan, np.inf] * 5, np.float32)
    attrs = Quantize((0.5,), (10,), -1, "uint8")
    want = np.array([10, 12, 10, 8, 255, 0, 0, 255] * 5, np.uint8)
    call = call_of("quantize", [x], attrs)
    found = kernels_for(call)
    assert found
    for each in found:
        np.testing.assert_array_equal(run_kernel(each, call, [x])[0], want, err_msg=each.name)


def network() -> Graph:
    """Build strided, grouped, depthwise and plain convolutions, a sum, a join and poolings."""
    graph, rng = Graph(), np.random.default_rng(11)

    def emit(name: str, *inputs: Value, **attrs: object) -> Value:
        op = registry.get_op(name)
        return graph.add_node(op, inputs, op.attrs(**attrs))[0]

    def conv(x: Value, outputs: int, size: int, groups: int = 1, stride: int = 1) -> Value:
        shape = (outputs, int(x.spec.shape[1]) // groups, size, size)
        weight = graph.add_constant(rng.integers(-128, 128, shape).astype(np.int8), "w")
        bias = graph.add_constant(rng.integers(-999, 999, outputs).astype(np.int32), "b")
        length = shape[1] * size * size
        factors = tuple(float(np.float32(0.01 * (1 + i % 3) / length**0.5)) for i in range(outputs))
        attrs = conv_attrs(
            stride=(stride, stride), padding=(size // 2,) * 4, groups=groups, x_zero_point=121,
            multipliers=factors, zero_point=121, dtype="uint8", lower=121, upper=255,
        )  # fmt: skip
        return graph.add_node(
            registry.get_op("conv2d_quantized"), (x, weight, bias), attrs
        )[0]  # fmt: skip

    form = {"scale": 1.0, "zero_point": 121, "dtype": "uint8", "lower": 0, "upper": 255}
    x = graph.add_input(TensorSpec((2, 3, 17, 18), np.dtype("float32")), "x")
    x = emit("quantize", x, scales=(0.015625,), zero_points=(121,), dtype="uint8")
    x = conv(x, 36, 3, stride=2)
    y = conv(conv(x, 36, 1, groups=3), 36, 3, groups=36)
    x = emit("add_quantized", x, y, a_zero_point=121, b_zero_point=121, a_multiplier=0.75,
             b_multiplier=0.5, **form)  # fmt: skip
    z = emit("max_pool2d", x, kernel=(3, 3), stride=(1, 1), padding=(1, 1, 1, 1))
    x = emit("concat_quantized", x, conv(z, 20, 3), axis=1, x_zero_points=(121, 121),
             multipliers=(1.0, 0.625), **form)  # fmt: skip
    x = conv(x, 70, 3, stride=2)
    x = emit("adaptive_avg_pool2d_quantized", x, size=(1, 1), x_zero_point=121, multiplier=1.5,
             **form)  # fmt: skip
    graph.outputs.append(emit("dequantize", x, scales=(0.5,), zero_points=(121,)))
    return graph


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("tier", ["avx2", "avx512", "vnni"])
def test_whole_network_agrees_bit_for_bit_on_every_tier(tier: str, threads: int) -> None:
    """All steps run natively below the cap, and the result is the references'."""
    graph = network()
    x = np.random.default_rng(4).uniform(-2, 2, (2, 3, 17, 18)).astype(np.float32)
    arrays = {value: constant.array for value, constant in graph.constants.items()}
    arrays[graph.inputs[0]] = x
    for node in graph.nodes:
        results = evaluate(node.op, [arrays[v] for v in node.inputs], node.attrs)
        arrays.update(zip(node.outputs, results, strict=True))
    want = arrays[graph.outputs[0]]
    assert len(np.unique(want)) > 10
    with registry.use_isa(tier):
        compiled = compile_graph(graph, {}, options=Options(threads=threads))
    assert all(step.kernel.is_native for step in compiled.program.steps)
    got = np.empty_like(want)
    compiled.executable.run([x], [], [got])
    np.testing.assert_array_equal(got, want)
