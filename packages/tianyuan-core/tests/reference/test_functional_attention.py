"""Attention and rotary positions against torch, packed projections against torch's module."""

from __future__ import annotations

import math

import numpy as np
import pytest
import tianyuan.functional as F
from tianyuan import Tensor
from tianyuan.autodiff import GradManager
from tianyuan.errors import AttrError, ShapeError

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
TF = torch.nn.functional

RNG = np.random.default_rng(29)


def normal(*shape):
    return RNG.normal(size=shape).astype(np.float32)


def compare(ours, theirs, *arrays, rtol=2e-4, atol=2e-5):
    """Compare a function's value and its gradient with respect to every array with torch's."""
    peers = [torch.tensor(a, requires_grad=True) for a in arrays]
    want = theirs(*peers)
    weights = normal(*want.shape)
    (want * torch.tensor(weights)).sum().backward()
    tensors = [Tensor(a) for a in arrays]
    with GradManager() as gm:
        gm.attach(tensors)
        got = ours(*tensors)
        gm.backward(F.sum(got * Tensor(weights)))
    np.testing.assert_allclose(got.numpy(), want.detach().numpy(), rtol=rtol, atol=atol)
    for tensor, peer in zip(tensors, peers, strict=True):
        np.testing.assert_allclose(tensor.grad.numpy(), peer.grad.numpy(), rtol=rtol, atol=atol)


QKV = ((2, 3, 4, 8), (2, 3, 5, 8), (2, 3, 5, 6))
SEEN = np.tril(np.ones((4, 5), bool), 1)
BIAS = normal(2, 1, 4, 5)


@pytest.mark.parametrize(
    ("options", "peer"),
    [
        ({}, {}),
        ({"is_causal": True}, {"is_causal": True}),
        ({"scale": 0.3}, {"scale": 0.3}),
        ({"attn_mask": Tensor(SEEN)}, {"attn_mask": torch.tensor(SEEN)}),
        ({"attn_mask": Tensor(BIAS)}, {"attn_mask": torch.tensor(BIAS)}),
    ],
    ids=["plain", "causal", "scale", "bool mask", "float mask"],
)
def test_scaled_dot_product_attention(options, peer):
    compare(
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, **options),
        lambda q, k, v: TF.scaled_dot_product_attention(q, k, v, **peer),
        *(normal(*shape) for shape in QKV),
    )


def test_a_query_without_keys_gives_zeros_and_no_nan():
    q, k, v = (Tensor(normal(*shape)) for shape in QKV)
    mask = np.ones((4, 5), bool)
    mask[1] = False
    with GradManager() as gm:
        gm.attach([q, k, v])
        y = F.scaled_dot_product_attention(q, k, v, Tensor(mask))
        gm.backward(F.sum(y))
    assert not np.any(y.numpy()[:, :, 1])
    assert np.all(np.isfinite(q.grad.numpy()))


def test_attention_drops_weights_at_every_call():
    eye = Tensor(np.eye(64, dtype=np.float32)[None])
    flat = Tensor(np.zeros((1, 64, 4), np.float32))
    weights = F.scaled_dot_product_attention(flat, flat, eye, dropout_p=0.25).numpy()
    kept = weights != 0
    np.testing.assert_allclose(weights[kept], 1 / 64 / 0.75, rtol=1e-5)
    assert abs(kept.mean() - 0.75) < 0.05


def test_attention_refuses():
    x = Tensor(normal(1, 3, 4))
    with pytest.raises(AttrError, match="^scaled_dot_product_attention: a mask and is_causal"):
        F.scaled_dot_product_attention(x, x, x, x, is_causal=True)
    with pytest.raises(ShapeError, match="^scaled_dot_product_attention: shapes do not fit"):
        F.scaled_dot_product_attention(x, x, x[:, :2])


# rotary positions


def rotated(x, place, base, interleaved):
    """Turn pairs as complex numbers."""
    size = x.shape[-1]
    angles = place[..., None] * base ** (-2.0 * np.arange(size // 2) / size)
    first, second = (x[..., 0::2], x[..., 1::2]) if interleaved else np.split(x, 2, -1)
    turned = (first + 1j * second) * np.exp(1j * angles)
    if not interleaved:
        return np.concatenate([turned.real, turned.imag], -1)
    return np.stack([turned.real, turned.imag], -1).reshape(x.shape)


@pytest.mark.parametrize("interleaved", [False, True])
def test_rotary_embedding(interleaved):
    x = RNG.normal(size=(2, 3, 7, 8))
    got = F.nn.rotary_embedding(Tensor(x), interleaved=interleaved).numpy()
    want = rotated(x, np.arange(7.0), 10000.0, interleaved)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    place = RNG.integers(0, 50, (2, 1, 7))
    got = F.nn.rotary_embedding(Tensor(x), Tensor(place), base=500.0, interleaved=interleaved)
    want = rotated(x, place.astype(float), 500.0, interleaved)
    np.testing.assert_allclose(got.numpy(), want, rtol=1e-3, atol=1e-4)


def test_rotary_embedding_of_a_part():
    x = RNG.normal(size=(5, 6))
    got = F.nn.rotary_embedding(Tensor(x), rotary_dim=4).numpy()
    np.testing.assert_allclose(got[:, :4], rotated(x[:, :4], np.arange(5.0), 1e4, False), atol=1e-5)
    np.testing.assert_array_equal(got[:, 4:], x[:, 4:].astype(np.float32))
    with pytest.raises(AttrError, match="^rotary_embedding: rotary_dim must be even"):
        F.nn.rotary_embedding(Tensor(x), rotary_dim=3)


def test_rotary_embedding_gradient_turns_back():
    x = Tensor(RNG.normal(size=(4, 6)))
    g = RNG.normal(size=(4, 6))
    with GradManager() as gm:
        gm.attach([x])
        gm.backward(F.nn.rotary_embedding(x), Tensor(g))
    want = rotated(g, -np.arange(4.0), 1e4, False)
    np.testing.assert_allclose(x.grad.numpy(), want, atol=1e-5)


# packed projections

N, L, S, E, HEADS = 2, 4, 5, 6, 2
SIZES = {"qproj_size": E, "kproj_size": E, "vproj_size": E, "oproj_size": E}
BIASES = {"qbias": True, "kbias": True, "vbias": True, "obias": True}


def theirs(weights, biases, **options):
    """Run torch's function, which multiplies by transposed weights."""

    def function(q, k, v):
        out, attention = TF.multi_head_attention_forward(
            *(x.transpose(0, 1) for x in (q, k, v)), E, HEADS, None,
            torch.tensor(np.concatenate(biases[:3])), options.pop("bias_k", None),
            options.pop("bias_v", None), options.pop("add_zero_attn", False), 0.0,
            torch.tensor(weights[3].T), torch.tensor(biases[3]),
            use_separate_proj_weight=True, average_attn_weights=False,
            q_proj_weight=torch.tensor(weights[0].T), k_proj_weight=torch.tensor(weights[1].T),
            v_proj_weight=torch.tensor(weights[2].T), **options,
        )  # fmt: skip
        return torch.cat([out.transpose(0, 1).reshape(-1), attention.reshape(-1)])

    return function


PADDING = np.array([[False] * 3 + [True] * 2, [False] * 4 + [True]])
HIDDEN = np.triu(np.ones((L, S), bool), 1)
EACH = normal(N * HEADS, L, S)
KEY, VALUE = normal(1, 1, E), normal(1, 1, E)
CASES = {
    "plain": ({}, {}),
    "padding": (
        {"key_padding_mask": Tensor(PADDING)}, {"key_padding_mask": torch.tensor(PADDING)}
    ),
    "causal": ({"is_causal": True}, {"attn_mask": torch.tensor(HIDDEN)}),
    "bool mask": ({"attn_mask": Tensor(HIDDEN)}, {"attn_mask": torch.tensor(HIDDEN)}),
    "float mask": ({"attn_mask": Tensor(EACH)}, {"attn_mask": torch.tensor(EACH)}),
    "more keys": (
        {
            "bias_k": Tensor(KEY), "bias_v": Tensor(VALUE), "add_zero_attn": True,
            "attn_mask": Tensor(HIDDEN), "key_padding_mask": Tensor(PADDING),
        },
        {
            "bias_k": torch.tensor(KEY), "bias_v": torch.tensor(VALUE), "add_zero_attn": True,
            "attn_mask": torch.tensor(HIDDEN), "key_padding_mask": torch.tensor(PADDING),
        },
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_multi_head_attention(name):
    ours, peer = CASES[name]
    weights, biases = normal(4, E, E) * 0.4, normal(4, E)
    packed = Tensor(np.concatenate([weights.reshape(-1), biases.reshape(-1)]))

    def function(q, k, v):
        out, attention = F.multi_head_attention(
            q, k, v, E, HEADS, 0.0, 0.0, packed, **SIZES, **BIASES, need_weights=True, **ours
        )
        assert attention.shape[:2] == (N * HEADS, L)
        return F.concat([F.reshape(out, (-1,)), F.reshape(attention, (-1,))])

    peer = {key: value.clone() for key, value in peer.items() if key != "add_zero_attn"} | {
        key: value for key, value in peer.items() if key == "add_zero_attn"
    }
    compare(
        function, theirs(weights, biases, **peer), normal(N, L, E), normal(N, S, E), normal(N, S, E)
    )


def softmax(x):
    powers = np.exp(x - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def test_multi_head_attention_with_other_sizes_and_none():
    q, k, v = RNG.normal(size=(3, N, L, E))
    wq, wk, wv, wo = (RNG.normal(size=s) for s in ((E, 8), (E, 8), (E, 4), (4, 10)))
    packed = np.concatenate([w.reshape(-1) for w in (wq, wk, wv, wo)])
    out, weights = F.multi_head_attention(
        *map(Tensor, (q, k, v)), E, HEADS, 0.0, 0.0, Tensor(packed),
        qproj_size=8, kproj_size=8, vproj_size=4, oproj_size=10,
    )  # fmt: skip
    heads = []
    for h in range(HEADS):
        part = slice(4 * h, 4 * h + 4)
        scores = (q @ wq)[..., part] @ (k @ wk)[..., part].swapaxes(1, 2) / math.sqrt(E / HEADS)
        heads.append(softmax(scores) @ (v @ wv)[..., 2 * h : 2 * h + 2])
    assert weights is None
    np.testing.assert_allclose(out.numpy(), np.concatenate(heads, -1) @ wo, rtol=2e-4, atol=2e-4)
    plain, mean = F.multi_head_attention(
        *map(Tensor, (q, k, v)), E, HEADS, 0.0, 0.0, None,
        need_weights=True, average_attn_weights=True, reslink=True,
    )  # fmt: skip
    each = [
        softmax(q[..., p] @ k[..., p].swapaxes(1, 2) / math.sqrt(3))
        for p in (slice(0, 3), slice(3, 6))
    ]
    joined = np.concatenate([w @ v[..., p] for w, p in
                             zip(each, (slice(0, 3), slice(3, 6)), strict=True)], -1)  # fmt: skip
    np.testing.assert_allclose(plain.numpy(), joined + q, rtol=2e-4, atol=2e-5)
    np.testing.assert_allclose(mean.numpy(), (each[0] + each[1]) / 2, rtol=2e-4, atol=2e-5)


def test_multi_head_attention_drops_in_training_only():
    x = Tensor(normal(1, 8, 4))
    args = (x, x, x, 4, 1, 0.0, 0.5, None)
    dropped = F.multi_head_attention(*args)[0].numpy()
    full = F.multi_head_attention(*args, training=False)[0].numpy()
    kept = dropped != 0
    assert 0 < kept.mean() < 1
    np.testing.assert_allclose(dropped[kept], 2 * full[kept], rtol=1e-5)


@pytest.mark.parametrize(
    ("options", "count", "error", "match"),
    [
        ({}, 4 * E * E - 1, ShapeError, "io_weight_bias is too short"),
        ({}, 4 * E * E + 1, ShapeError, "io_weight_bias is too long"),
        ({"maybe_cudnn_style_mask": True}, 4 * E * E, AttrError, "maybe_cudnn_style_mask"),
        ({"attn_mask": Tensor(normal(2, 2))}, 4 * E * E, ShapeError, "attn_mask does not fit"),
        ({"bias_k": Tensor(KEY)}, 4 * E * E, AttrError, "only one of bias_k and bias_v"),
    ],
)
def test_multi_head_attention_refuses(options, count, error, match):
    x = Tensor(normal(1, 3, E))
    packed = Tensor(normal(count))
    with pytest.raises(error, match=f"^multi_head_attention: {match}"):
        F.multi_head_attention(x, x, x, E, HEADS, 0.0, 0.0, packed, **SIZES, **options)
    with pytest.raises(AttrError, match="^multi_head_attention: num_heads must divide"):
        F.multi_head_attention(x, x, x, E, 4, 0.0, 0.0, None)
