"""Recurrent networks, attention and the layers that quantisation fuses agree with PyTorch."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import tianyuan.functional as F
import tianyuan.module as M
import tianyuan.optimizer as optim
from tianyuan import Parameter, Tensor
from tianyuan.autodiff import GradManager
from tianyuan.errors import AttrError, ShapeError

torch = pytest.importorskip("torch")


def _input(*shape: int) -> np.ndarray:
    return np.random.default_rng(shape).standard_normal(shape).astype(np.float32)


def _close(got: Tensor, want: Any, tol: float = 2e-5) -> None:
    np.testing.assert_allclose(got.numpy(), want.detach().numpy(), rtol=tol, atol=tol)


def _take(theirs: Any, name: str, mine: Tensor) -> None:
    with torch.no_grad():
        getattr(theirs, name).copy_(torch.tensor(mine.numpy()))


@pytest.mark.parametrize("nonlinearity", ["tanh", "relu"])
@pytest.mark.parametrize("bias", [True, False])
def test_rnn_cell(nonlinearity: str, bias: bool) -> None:
    mine = M.RNNCell(3, 4, bias, nonlinearity)
    theirs = torch.nn.RNNCell(3, 4, bias, nonlinearity)
    for name, tensor in mine.named_parameters():
        _take(theirs, name, tensor)
        assert np.abs(tensor.numpy()).max() <= 0.5
    x, h = _input(5, 3), _input(5, 4)
    _close(mine(Tensor(x)), theirs(torch.tensor(x)))
    _close(mine(Tensor(x), Tensor(h)), theirs(torch.tensor(x), torch.tensor(h)))
    with pytest.raises(ShapeError, match=r"expected \(batch, 3\)"):
        mine(Tensor(_input(5, 4)))


@pytest.mark.parametrize("kind", ["LSTMCell", "GRUCell"])
@pytest.mark.parametrize("bias", [True, False])
def test_gated_cells(kind: str, bias: bool) -> None:
    mine, theirs = getattr(M, kind)(3, 4, bias), getattr(torch.nn, kind)(3, 4, bias)
    for name, tensor in mine.named_parameters():
        _take(theirs, name, tensor)
    x, h, c = _input(5, 3), _input(5, 4), _input(5, 4) * 0.5
    for given in (None, (h, c) if kind == "LSTMCell" else h):
        got = mine(Tensor(x), _each(given, Tensor))
        want = theirs(torch.tensor(x), _each(given, torch.tensor))
        pairs = zip(got, want, strict=True) if kind == "LSTMCell" else [(got, want)]
        for one, other in pairs:
            _close(one, other)


STACKS = [
    {},
    {"num_layers": 2, "bidirectional": True},
    {"batch_first": True, "bias": False},
    {"num_layers": 3, "bidirectional": True, "batch_first": True},
]


@pytest.mark.parametrize("kind", ["RNN", "LSTM", "GRU"])
def test_recurrent_layers_drop_what_they_hand_on_alone(kind: str) -> None:
    """Neither the input nor the last layer's outputs, and nothing in evaluation."""
    x = Tensor(_input(5, 2, 3))
    one = getattr(M, kind)(3, 4, dropout=0.9).train()
    np.testing.assert_array_equal(one(x)[0].numpy(), one.eval()(x)[0].numpy())
    two = getattr(M, kind)(3, 4, num_layers=2, dropout=0.9).train()
    dropped, whole = two(x)[0].numpy(), two.eval()(x)[0].numpy()
    assert not np.array_equal(dropped, whole)
    assert (dropped != 0).all()
    np.testing.assert_array_equal(two(x)[0].numpy(), whole)


@pytest.mark.parametrize("kind", ["RNN", "LSTM", "GRU"])
@pytest.mark.parametrize("options", STACKS)
def test_recurrent_stacks(kind: str, options: dict[str, Any]) -> None:
    mine, theirs = getattr(M, kind)(3, 4, **options), getattr(torch.nn, kind)(3, 4, **options)
    for layer, cells in enumerate(mine.cells):
        for way, cell in enumerate(cells):
            for name, tensor in cell.named_parameters():
                _take(theirs, f"{name}_l{layer}" + "_reverse" * way, tensor)
    x = _input(5, 2, 3)
    count = len(mine.cells) * len(mine.cells[0])
    batch = 5 if options.get("batch_first") else 2
    h, c = _input(count, batch, 4), _input(count, batch, 4) * 0.5
    start = (h, c) if kind == "LSTM" else h
    for given in (None, start):
        hx = _each(given, Tensor)
        inp, leaf = Tensor(x), torch.tensor(x, requires_grad=True)
        manager = GradManager().attach([inp, *mine.parameters()])
        for parameter in mine.parameters():
            parameter.grad = None
        theirs.zero_grad()
        with manager:
            y, end = mine(inp, hx)
            manager.backward((y * y).sum())
        want, want_end = theirs(leaf, _each(given, torch.tensor))
        (want * want).sum().backward()
        for layer, cells in enumerate(mine.cells):
            for way, cell in enumerate(cells):
                for name, tensor in cell.named_parameters():
                    grad = getattr(theirs, f"{name}_l{layer}" + "_reverse" * way).grad.numpy()
                    np.testing.assert_allclose(tensor.grad.numpy(), grad, rtol=1e-3, atol=1e-4)
        _close(y, want)
        np.testing.assert_allclose(inp.grad.numpy(), leaf.grad.numpy(), rtol=1e-4, atol=1e-5)
        pairs = zip(end, want_end, strict=True) if kind == "LSTM" else [(end, want_end)]
        for got_state, want_state in pairs:
            _close(got_state, want_state)


def _each(value: Any, make: Any) -> Any:
    if value is None:
        return None
    return tuple(map(make, value)) if isinstance(value, tuple) else make(value)


def test_recurrent_options_are_checked() -> None:
    with pytest.raises(AttrError, match="proj_size"):
        M.LSTM(3, 4, proj_size=2)
    with pytest.raises(AttrError, match="num_layers"):
        M.RNN(3, 4, 0)
    with pytest.raises(ShapeError, match="expected 3 dimensions"):
        M.LSTM(3, 4)(Tensor(_input(2, 3)))


@pytest.mark.parametrize("extra", [{}, {"add_bias_kv": True}, {"add_zero_attn": True}])
@pytest.mark.parametrize("masks", ["none", "causal", "padding", "pairs", "added"])
def test_attention(masks: str, extra: dict[str, bool]) -> None:
    mine = M.MultiHeadAttention(6, 2, kdim=5, vdim=4, **extra)
    theirs = torch.nn.MultiheadAttention(6, 2, kdim=5, vdim=4, batch_first=True, **extra)
    for name in ("bias_k", "bias_v") if "add_bias_kv" in extra else ():
        bias = getattr(mine, name)
        assert not bias.numpy().any()
        bias[...] = Tensor(_input(1, 1, 6) * (1 if name == "bias_k" else -2))
        _take(theirs, name, bias)
    for name in ("q", "k", "v"):
        _take(theirs, f"{name}_proj_weight", getattr(mine, f"{name}_proj").weight)
    for parameter in (p for _, p in mine.named_parameters() if p.ndim == 1):
        parameter[...] = Tensor(_input(6))
    biases = [getattr(mine, f"{name}_proj").bias.numpy() for name in ("q", "k", "v")]
    _take(theirs, "in_proj_bias", Tensor(np.concatenate(biases)))
    _take(theirs.out_proj, "weight", mine.out_proj.weight)
    _take(theirs.out_proj, "bias", mine.out_proj.bias)
    q, k, v = _input(3, 4, 6), _input(3, 4, 5), _input(3, 4, 4)
    rng = np.random.default_rng(0)
    kwargs: dict[str, Any] = {}
    other: dict[str, Any] = {}
    if masks == "causal":
        kwargs["is_causal"] = True
        other["attn_mask"] = torch.tensor(np.triu(np.ones((4, 4), bool), 1))
    elif masks == "padding":
        mask = np.array([[0, 0, 0, 1], [0, 1, 0, 0], [0, 0, 1, 1]], bool)
        kwargs["key_padding_mask"] = Tensor(mask)
        other["key_padding_mask"] = torch.tensor(mask)
    elif masks == "pairs":
        mask = rng.random((4, 4)) < 0.4
        mask[:, 0] = False
        kwargs["attn_mask"], other["attn_mask"] = Tensor(mask), torch.tensor(mask)
    elif masks == "added":
        bias = _input(4, 4)
        kwargs["attn_mask"], other["attn_mask"] = Tensor(bias), torch.tensor(bias)
    y, weights = mine(
        *map(Tensor, (q, k, v)), need_weights=True, average_attn_weights=True, **kwargs
    )
    want, want_weights = theirs(*map(torch.tensor, (q, k, v)), **other)
    _close(y, want)
    _close(weights, want_weights)
    assert mine(*map(Tensor, (q, k, v)))[1] is None


def test_attention_options_are_checked() -> None:
    with pytest.raises(AttrError, match="must divide"):
        M.MultiHeadAttention(6, 4)
    x = Tensor(_input(2, 6))
    with pytest.raises(ShapeError, match="query"):
        M.MultiHeadAttention(6, 2)(x, x, x)


def test_fused_layers_are_their_parts() -> None:
    x = Tensor(_input(2, 4, 5, 6))
    rows = Tensor(_input(3, 4))
    relu = M.ReLU()
    for cls, part in ((M.ConvRelu2d, M.Conv2d), (M.ConvTransposeRelu2d, M.ConvTranspose2d)):
        fused = cls(4, 6, 3, padding=1, groups=2)
        plain = part(4, 6, 3, padding=1, groups=2)
        plain.load_state_dict(fused.state_dict())
        np.testing.assert_array_equal(fused(x).numpy(), relu(plain(x)).numpy())
    linear = M.LinearRelu(4, 3)
    want = np.maximum(rows.numpy() @ linear.weight.numpy().T + linear.bias.numpy(), 0)
    np.testing.assert_allclose(linear(rows).numpy(), want, rtol=1e-5, atol=1e-6)
    for cls, parts, inp in (
        (M.ConvBn2d, ("conv", "bn"), x),
        (M.ConvBnRelu2d, ("conv", "bn"), x),
        (M.ConvTransposeBn2d, ("conv_transpose2d", "bn"), x),
        (M.ConvTransposeBnRelu2d, ("conv_transpose2d", "bn"), x),
        (M.LinearBn1d, ("linear", "bn"), rows),
        (M.LinearBnRelu1d, ("linear", "bn"), rows),
    ):
        fused = cls(4, 6, 3) if inp is x else cls(4, 6)
        y = inp
        for part in parts:
            y = getattr(fused, part)(y)
        y = relu(y) if "Relu" in cls.__name__ else y
        np.testing.assert_allclose(fused(inp).numpy(), y.numpy(), rtol=1e-5, atol=1e-6)
        assert {name.split(".")[0] for name in fused.state_dict()} == set(parts)
    stub = (M.QuantStub(), M.DequantStub())
    assert all(module(x) is x for module in stub)


@pytest.mark.parametrize("mode", ["identity", "relu"])
def test_batch_matmul_activation(mode: str) -> None:
    mine = M.BatchMatMulActivation(3, 4, 5, nonlinear_mode=mode)
    mine.bias[...] = Tensor(_input(5, 1))
    x = _input(3, 4, 2)
    want = mine.weight.numpy() @ x + mine.bias.numpy()
    want = np.maximum(want, 0) if mode == "relu" else want
    np.testing.assert_allclose(mine(Tensor(x)).numpy(), want, rtol=1e-5, atol=1e-6)
    with pytest.raises(AttrError, match="nonlinear_mode"):
        M.BatchMatMulActivation(3, 4, 5, nonlinear_mode="tanh")


@pytest.mark.parametrize(
    ("correct", "decay", "adapt"), list(itertools.product([True, False], [0.0, 0.1], [True, False]))
)
def test_lamb_follows_its_formula(correct: bool, decay: float, adapt: bool) -> None:
    rng = np.random.default_rng(0)
    values = [rng.standard_normal(3), np.zeros(2)]
    params = [Parameter(value.astype(np.float32)) for value in values]
    optimizer = optim.LAMB(params, 0.1, (0.8, 0.9), 1e-6, correct, decay, adapt)
    moments = [[0.0, 0.0], [0.0, 0.0]]
    for step in range(1, 5):
        for index, param in enumerate(params):
            grad = rng.standard_normal(values[index].shape).astype(np.float32)
            param.grad = Tensor(grad)
            m = moments[index][0] = 0.8 * moments[index][0] + 0.2 * grad
            v = moments[index][1] = 0.9 * moments[index][1] + 0.1 * grad.astype(float) ** 2
            if correct:
                m, v = m / (1 - 0.8**step), v / (1 - 0.9**step)
            change = m / (np.sqrt(v) + 1e-6) + decay * values[index]
            size = np.linalg.norm(values[index])
            ratio = size / np.linalg.norm(change) if (decay or adapt) and size else 1.0
            values[index] = values[index] - 0.1 * ratio * change
        optimizer.step().clear_grad()
        for param, value in zip(params, values, strict=True):
            np.testing.assert_allclose(param.numpy(), value, rtol=1e-4, atol=1e-5)


def test_attention_weights_are_dropped_in_training_only() -> None:
    net = M.MultiHeadAttention(4, 1, attn_dropout=0.5)
    net.eval()
    x = F.ones((1, 3, 4))
    first, second = net(x, x, x)[0].numpy(), net(x, x, x)[0].numpy()
    np.testing.assert_array_equal(first, second)
    net.train()
    draws = {net(x, x, x)[0].numpy().tobytes() for _ in range(20)}
    assert len(draws) > 1


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("masks", ["none", "causal", "padding"])
def test_transformer_encoder(norm_first: bool, activation: str, masks: str) -> None:
    options: dict[str, Any] = {"activation": activation, "norm_first": norm_first, "dropout": 0.0}
    mine = M.TransformerEncoder(M.TransformerEncoderLayer(6, 2, 10, **options), 2, M.LayerNorm(6))
    theirs = torch.nn.TransformerEncoder(
        torch.nn.TransformerEncoderLayer(6, 2, 10, batch_first=True, **options), 2,
        torch.nn.LayerNorm(6), enable_nested_tensor=False,
    )  # fmt: skip
    rng = np.random.default_rng(0)
    for parameter in mine.parameters():
        parameter[...] = Tensor(rng.uniform(-0.5, 0.5, parameter.shape).astype(np.float32))
    given = theirs.state_dict()
    for name, array in mine.state_dict().items():
        if "_proj." in name and "out_proj" not in name:
            where, part = name.split(".self_attn.")[0], name.split(".self_attn.")[1]
            third = "qkv".index(part[0])
            target = given[f"{where}.self_attn.in_proj_{part.split('.')[1]}"]
            target[6 * third : 6 * third + 6] = torch.tensor(array)
        else:
            given[name] = torch.tensor(array)
    theirs.load_state_dict(given)
    x = _input(3, 4, 6)
    kwargs: dict[str, Any] = {}
    other: dict[str, Any] = {}
    if masks == "causal":
        kwargs["is_causal"] = True
        other["mask"] = torch.tensor(np.triu(np.ones((4, 4), bool), 1))
    elif masks == "padding":
        mask = np.array([[0, 0, 0, 1], [0, 1, 0, 0], [0, 0, 1, 1]], bool)
        kwargs["src_key_padding_mask"] = Tensor(mask)
        other["src_key_padding_mask"] = torch.tensor(mask)
    inp, leaf = Tensor(x), torch.tensor(x, requires_grad=True)
    manager = GradManager().attach([inp])
    with manager:
        y = mine(inp, **kwargs)
        manager.backward((y * y * y).sum())
    want = theirs(leaf, **other)
    (want * want * want).sum().backward()
    _close(y, want)
    np.testing.assert_allclose(inp.grad.numpy(), leaf.grad.numpy(), rtol=1e-3, atol=1e-4)


def test_transformer_copies_start_alike_and_learn_apart() -> None:
    layer = M.TransformerEncoderLayer(4, 2, 8)
    net = M.TransformerEncoder(layer, 2)
    first, second = net.layers
    np.testing.assert_array_equal(first.linear1.weight.numpy(), second.linear1.weight.numpy())
    first.linear1.weight[...] = Tensor(np.zeros((8, 4), np.float32))
    assert second.linear1.weight.numpy().any()
    assert len(list(net.parameters())) == 2 * len(list(layer.parameters()))
    with pytest.raises(AttrError, match="activation"):
        M.TransformerEncoderLayer(4, 2, activation="tanh")
