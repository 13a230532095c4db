"""Functions traced with a dynamic extent: one trace serves every size and agrees with eager."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import tianyuan.functional as F
import tianyuan.random as R
from tianyuan import Tensor
from tianyuan.jit import trace

RNG = np.random.default_rng(2)


def const(*shape):
    return Tensor(RNG.normal(size=shape).astype(np.float32))


WEIGHT, KERNEL, SCALE = const(5, 6), const(4, 2, 2, 2), const(2)
MATRIX = const(6, 6)


def updated(x):
    mean, var = F.zeros((2,)) + 0.0, F.ones((2,)) + 0.0
    y, mean, var = F.batch_norm(image(x), mean, var, SCALE, SCALE, training=True, inplace=False)
    return F.concat([F.flatten(y), mean, var])


def assigned(x):
    y = x * 2.0
    y[:, 0] = 1.0
    y[1:-1, 2:4] = x[1:-1, :2]
    y[-1] = x[0]
    return y


def image(x):
    """View (n, 6) as (n, 2, 3, 1), widened."""
    return F.tile(F.reshape(x, (-1, 2, 3, 1)), (1, 1, 1, 3))


FUNCTIONS = {
    "reshape": lambda x: F.reshape(x, (-1, 2, 3)),
    "reshape by shape": lambda x: F.reshape(x, (x.shape[0], -1, 2)),
    "flatten": lambda x: F.flatten(x),
    "flatten 1": lambda x: F.flatten(F.reshape(x, (-1, 2, 3)), 1),
    "transpose": lambda x: F.transpose(x, (1, "x", 0)),
    "expand": lambda x: F.squeeze(F.expand_dims(x, 0), 0),
    "broadcast": lambda x: F.broadcast_to(F.expand_dims(x, 1), (x.shape[0], 4, 6)),
    "concat": lambda x: F.concat([x, x * 2.0, F.zeros((x.shape[0], 6))], 1),
    "concat rows": lambda x: F.concat([x, x], 0)[x.shape[0] :],
    "stack": lambda x: F.stack([x, -x], 1),
    "split": lambda x: F.concat(F.split(x, 3, 1)[::-1], 1),
    "repeat": lambda x: F.repeat(x, 2, 0),
    "tile": lambda x: F.tile(x, (2, 1)),
    "roll": lambda x: F.roll(x, 1, 0),
    "flip": lambda x: x[::-1, ::2],
    "index": lambda x: x[[0, 1, -1], 1:3],
    "slice": lambda x: x[1:] - x[:-1],
    "stride": lambda x: x[1::2],
    "setitem": assigned,
    "where": lambda x: F.where(x > 0, x, 0.0),
    "mask set": lambda x: F.where(x > 0, 1.0, x),
    "reductions": lambda x: F.sum(x, 0) + F.mean(x) + F.max(x, 0) + F.var(x, 0) + F.norm(x),
    "keepdims": lambda x: x - F.mean(x, 1, True) - F.logsumexp(x, 0, True),
    "argmax": lambda x: F.argmax(x, 1),
    "argmax all": lambda x: F.argmax(x),
    "sort": lambda x: F.sort(x, dim=0)[0],
    "topk": lambda x: F.topk(x, 2)[0],
    "cumsum": lambda x: F.cumsum(x, 0),
    "softmax": lambda x: F.softmax(x, 1) + F.logsoftmax(x, 0),
    "linear": lambda x: F.linear(x, WEIGHT),
    "linear 3-d": lambda x: F.linear(F.expand_dims(x, 1), WEIGHT),
    "attention": lambda x: F.matmul(F.softmax(F.matmul(x, x, transpose_b=True), -1), x),
    "vector": lambda x: F.matmul(x, WEIGHT[0]),
    "einsum": lambda x: F.einsum("ni,ij->nj", x, MATRIX),
    "conv": lambda x: F.conv2d(image(x), KERNEL, padding=1),
    "conv transpose": lambda x: F.conv_transpose2d(image(x), F.transpose(KERNEL, (1, 0, 2, 3))),
    "pool": lambda x: F.max_pool2d(image(x), 2, 1) + F.avg_pool2d(image(x), 2, 1),
    "adaptive": lambda x: F.adaptive_avg_pool2d(image(x), 2),
    "batch norm": lambda x: F.batch_norm(image(x), weight=SCALE, bias=SCALE, training=True),
    "running values": updated,
    "layer norm": lambda x: F.layer_norm(x, (6,), False),
    "group norm": lambda x: F.group_norm(x, 2, False),
    "general norm": lambda x: F.general_norm(x, (0,), False),
    "pad": lambda x: F.nn.pad(x, ((1, 0), (0, 2))),
    "embedding": lambda x: F.embedding(F.argmax(x, 1), MATRIX),
    "one hot": lambda x: F.one_hot(F.argmax(x, 1), 6),
    "gather": lambda x: F.gather(x, 1, F.expand_dims(F.argmin(x, 1), 1)),
    "cross entropy": lambda x: F.nn.cross_entropy(x, F.argmin(x, 1), label_smooth=0.1),
    "accuracy": lambda x: F.topk_accuracy(x, F.argmax(x, 1)),
    "arange": lambda x: F.arange(x.shape[0]) * 2.0 + F.sum(x, 1),
    "full like": lambda x: F.full_like(x, 3.0) + F.ones((x.shape[0], 1)),
    "meshgrid": lambda x: F.stack(F.meshgrid(x[:, 0], x[0]), 0),
    "diag": lambda x: F.diag(x[:, 0]),
    "windows": lambda x: F.sliding_window(image(x), 2),
    "shuffle": lambda x: F.pixel_shuffle(F.reshape(x, (-1, 4, 3, 1)), 2),
    "extent as number": lambda x: F.div(F.sum(x, 0), x.shape[0]),
    "extent in arithmetic": lambda x: F.sum(x, 0) / x.shape[0] + x.size * F.mean(x),
    "dropout": lambda x: F.dropout(x, 0.5),
    "interpolate": lambda x: F.nn.interpolate(image(x), (5, 4)),
    "flip axes": lambda x: F.flip(x),
    "running product": lambda x: F.cumprod(x, 0),
    "triangles": lambda x: F.triu(x) - F.tril(x, -1),
    "masked": lambda x: F.masked_fill(x, x > 0, 2.0),
    "selected": lambda x: F.index_select(x, 0, F.argmin(x, 0)),
    "taken along": lambda x: F.take_along_axis(x, F.argsort(x[:, :1], axis=0), 0),
    "diagonal": lambda x: F.einsum("nii->ni", F.tile(F.reshape(x, (-1, 6, 1)), (1, 1, 6))),
    "self attention": lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True),
    "rotary": lambda x: F.rotary_embedding(x),
    "heads": lambda x: F.multi_head_attention(
        *[F.expand_dims(x, 1)] * 3, 6, 2, 0.0, 0.0, None, need_weights=True, is_causal=True,
        attn_mask=F.zeros((x.shape[0] * 2, 1, 1)), key_padding_mask=F.zeros((x.shape[0], 1)),
    )[0],
    "heads over rows": lambda x: F.multi_head_attention(
        *[F.expand_dims(x, 0)] * 3, 6, 2, 0.0, 0.0, None, is_causal=True, add_zero_attn=True,
    )[0],
    "rms norm": lambda x: F.rms_norm(x, (6,)),
    "synchronised": lambda x: F.sync_batch_norm(
        image(x), F.zeros(2) + 0.0, F.ones(2) + 0.0, training=True, eps_mode="max"
    ),
    "losses": lambda x: F.nn.kl_div(x, F.abs(x), "batchmean") + F.nn.huber_loss(x, x * 2.0),
    "likelihood": lambda x: F.nn.nll_loss(x, F.argmin(x, 1)),
    "activations": lambda x: F.nn.selu(x) + F.nn.mish(x) + F.nn.softsign(x) + F.nn.hardtanh(x),
    "columns": lambda x: F.nn.fold(F.nn.unfold(image(x), 2), (3, 3), 2),
    "regions": lambda x: F.region_restricted_conv(
        image(x), KERNEL, F.zeros((x.shape[0], 3, 3)), F.zeros((x.shape[0], 2, 2))
    ),
    "correlation": lambda x: F.vision.correlation(image(x), image(-x), pad_size=1),
    "turned": lambda x: F.vision.rot90(F.vision.flip(image(x))),
    "rotated": lambda x: F.vision.rotate(image(x), 30.0),
    "colours": lambda x: F.vision.cvt_color(F.reshape(x, (-1, 2, 1, 3)), "RGB2YUV"),
    "complex": lambda x: F.imag(F.complex(x, x + 1.0) * F.polar(x, x)),
    "deformed regions": lambda x: F.deformable_psroi_pooling(
        image(x), F.pad(x[:, :4], ((0, 0), (1, 0))), None, True, 2, 2, 2, 2, 1.0
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_one_trace_serves_every_size(name):
    body, runs = FUNCTIONS[name], []

    def function(x):
        runs.append(x.shape)
        return body(x)

    traced = trace(function, dynamic_shapes={"x": {0: "n"}}, opt_level=1)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="trace: ")
        for size in (4, 2, 8):
            x = Tensor(RNG.normal(size=(size, 6)).astype(np.float32))
            R.seed(size)
            want = body(x).numpy()
            R.seed(size)
            got = traced(x)
            assert got.shape == want.shape
            np.testing.assert_allclose(got.numpy(), want, rtol=2e-5, atol=1e-5)
    # At two example sizes, to see that none is baked in; the shift modulo n is one at both.
    assert len(runs) == (3 if name == "roll" else 2)
