"""What a network's forward does with tensors between layers works in integers as in floats."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import tianyuan
import tianyuan.functional as F
import tianyuan.module as M
import tianyuan.quantization as Q
from tianyuan import jit

X = np.random.default_rng(0).standard_normal((32, 8)).astype(np.float32)


def linear(layer, x):
    return x @ layer.weight.numpy().astype(np.float64).T + layer.bias.numpy()


def written(x):
    x[:, 0] = 0.5
    return x


def grown(x):
    x += 1
    x *= 2
    return x


CASES = {
    "product with an int": (lambda x: x * 2, lambda x: x * 2),
    "an int less it": (lambda x: 1 - x, lambda x: 1 - x),
    "sum with an int": (lambda x: x + 1, lambda x: x + 1),
    "product with its size": (lambda x: x * x.shape[1], lambda x: x * x.shape[1]),
    "numpy's int": (lambda x: x * np.int32(3), lambda x: x * 3),
    "hard swish": (lambda x: x * F.relu6(x + 3) / 6, lambda x: x * np.clip(x + 3, 0, 6) / 6),
    "leaky by where": (lambda x: F.where(x > 0, x, x * 0.25), lambda x: np.where(x > 0, x, x / 4)),
    "relu by maximum": (lambda x: F.maximum(x, 0), lambda x: np.maximum(x, 0)),
    "clip by ints": (lambda x: F.clip(x, -1, 1), lambda x: np.clip(x, -1, 1)),
    "ones of its dtype": (lambda x: x + F.ones_like(x), lambda x: x + 1),
    "numbers of its dtype": (lambda x: x + F.full((32, 1), 1.5, dtype=x.dtype), lambda x: x + 1.5),
    "rows one by one": (lambda x: F.stack([row * 2 for row in x]), lambda x: x * 2),
    "written to": (written, lambda x: written(x.copy())),
    "grown in place": (grown, lambda x: (x + 1) * 2),
    "the largest": (
        lambda x: F.topk(x, 8, descending=True)[0], lambda x: np.sort(x, axis=1)[:, ::-1]
    ),
    "sorted": (lambda x: F.sort(x)[0] * 2, lambda x: np.sort(x, axis=1) * 2),
}  # fmt: skip


class Around(M.Module):
    """A layer, some code, and perhaps another layer."""

    def __init__(self, code, between):
        super().__init__()
        self.code, self.first = code, M.Linear(8, 8)
        self.second = M.Linear(8, 4) if between else M.Identity()

    def forward(self, x):
        return self.second(self.code(self.first(x)))


@pytest.mark.parametrize("between", [True, False], ids=["between layers", "at the end"])
@pytest.mark.parametrize("name", list(CASES))
def test_code_sees_numbers(name, between, tmp_path):
    ours, theirs = CASES[name]
    tianyuan.random.seed(1)
    net = Around(ours, between).eval()
    want = theirs(linear(net.first, X))
    want = linear(net.second, want) if between else want
    integers = Q.quantize_static(net, [X]).module
    got = integers(tianyuan.Tensor(X)).numpy()
    np.testing.assert_allclose(got, want, atol=0.03 * np.abs(want).max())
    run = jit.trace(lambda x: integers(x), capture_as_const=True)
    np.testing.assert_array_equal(run(tianyuan.Tensor(X)).numpy(), got)


class Residual(M.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = M.Linear(8, 8), M.Linear(8, 8), M.Linear(8, 4)

    def forward(self, x):
        y = self.a(x)
        out = self.b(y)
        out += y
        return self.c(F.relu(out))


@pytest.mark.parametrize("trained", [False, True], ids=["calibrated", "trained"])
def test_a_sum_in_place_is_one_of_integers(trained):
    tianyuan.random.seed(2)
    net = Residual().eval()
    y = linear(net.a, X)
    want = linear(net.c, np.maximum(linear(net.b, y) + y, 0))
    if trained:
        config = Q.per_channel_fakequant_qconfig
        net = Q.quantize_qat(net.train(), qconfig=config, example=X)
        net(tianyuan.Tensor(X))
        shaped = net.eval()(tianyuan.Tensor(X)).numpy()
        integers = Q.quantize(net)
        np.testing.assert_allclose(integers(tianyuan.Tensor(X)).numpy(), shaped, atol=1e-6)
    else:
        integers = Q.quantize_static(net, [X]).module
    got = integers(tianyuan.Tensor(X)).numpy()
    np.testing.assert_allclose(got, want, atol=0.03 * np.abs(want).max())
    run = jit.trace(lambda x: integers(x), capture_as_const=True)
    run(tianyuan.Tensor(X))
    ops = [step.op for step in run.explain().steps]
    assert ops.count("add_quantized") == 1
    assert ops.count("dequantize") == 1  # that of the output: numbers nobody reads are not made


class Tanh(M.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return F.tanh(self.layer(x))


def test_a_layer_in_several_places_is_one_in_integers_too():
    tianyuan.random.seed(3)
    layer = M.Linear(8, 8)
    once = linear(layer, X)
    for net, want in (
        (M.Sequential(layer, M.ReLU(), layer), linear(layer, np.maximum(once, 0))),
        (M.Sequential(Tanh(layer), Tanh(layer)), np.tanh(linear(layer, np.tanh(once)))),
    ):
        integers = Q.quantize_static(net.eval(), [X]).module
        got = integers(tianyuan.Tensor(X)).numpy()
        np.testing.assert_allclose(got, want, atol=0.06 * np.abs(want).max())
        found = {id(m) for m in integers.modules() if type(m).__name__ == "Linear"}
        assert len(found) == 1
        assert not any(type(m) is M.Linear for m in integers.modules())


def test_a_part_in_training_form_becomes_integers_with_the_whole():
    tianyuan.random.seed(4)
    net = M.Sequential(Residual(), M.ReLU(), M.Linear(4, 4)).eval()
    want = net(tianyuan.Tensor(X)).numpy()
    Q.quantize_qat(net[0], qconfig=Q.per_channel_fakequant_qconfig, example=X)
    net.train()(tianyuan.Tensor(X))
    shaped = net.eval()(tianyuan.Tensor(X)).numpy()
    got = Q.quantize(net)(tianyuan.Tensor(X)).numpy()
    np.testing.assert_allclose(got, shaped, atol=1e-5)
    np.testing.assert_allclose(got, want, atol=0.05 * np.abs(want).max())
    assert type(net[2]) is M.Linear


class Queries(M.Module):
    """Layers that read what no op makes: a parameter, a moved one, an array of the host."""

    def __init__(self, way):
        super().__init__()
        self.way, self.first, self.last = way, M.Linear(8, 8), M.Linear(8, 4)
        self.query = tianyuan.Parameter(X[:1] * 3)

    def forward(self, x):
        found = {
            "parameter": lambda: self.query,
            "moved": lambda: self.query.reshape(8, 1).transpose(1, 0),
            "bounded": lambda: F.relu(self.query.reshape(1, 1, 8))[0],
            "of the host": lambda: tianyuan.Tensor(X[1:2]),
        }[self.way]()
        return self.last(found) + self.first(x)[:, :4]


@pytest.mark.parametrize("way", ["parameter", "moved", "bounded", "of the host"])
@pytest.mark.parametrize("trained", [False, True], ids=["calibrated", "trained"])
def test_layers_read_what_no_op_makes(way, trained):
    tianyuan.random.seed(7)
    net = Queries(way).eval()
    query = {"bounded": np.maximum(3 * X[:1], 0), "of the host": X[1:2]}.get(way, 3 * X[:1])
    want = linear(net.last, query) + linear(net.first, X)[:, :4]
    if trained:
        config = Q.per_channel_fakequant_qconfig
        net = Q.quantize_qat(net.train(), qconfig=config, example=X)
        net(tianyuan.Tensor(X))
        integers = Q.quantize(net.eval())
    else:
        integers = Q.quantize_static(net, [X]).module
    assert type(integers.last).__module__.startswith("tianyuan_quant.quantized")
    got = integers(tianyuan.Tensor(X)).numpy()
    np.testing.assert_allclose(got, want, atol=0.03 * np.abs(want).max())
    run = jit.trace(lambda x: integers(x), capture_as_const=True)
    np.testing.assert_array_equal(run(tianyuan.Tensor(X)).numpy(), got)


class Named(M.Module):
    """Layers whose names begin as those of a network's inputs do."""

    def __init__(self):
        super().__init__()
        self.input_norm, self.input_proj, self.last = M.LayerNorm(8), M.Linear(8, 8), M.Linear(8, 4)

    def forward(self, x):
        return self.last(self.input_norm(self.input_proj(x)))


@pytest.mark.parametrize("keep", [[], ["input_proj"]], ids=str)
def test_layers_may_be_named_as_inputs_are(keep):
    tianyuan.random.seed(8)
    net = Named().eval()
    want = net(tianyuan.Tensor(X)).numpy()
    got = Q.quantize_static(net, [X], keep=keep).module(tianyuan.Tensor(X)).numpy()
    np.testing.assert_allclose(got, want, atol=0.05 * np.abs(want).max())


def test_threads_share_a_network_with_layers_in_floats():
    tianyuan.random.seed(6)
    net = Residual().eval()
    integers = Q.quantize_static(net, [X], keep=["a"]).module
    want = net(tianyuan.Tensor(X)).numpy()
    forward, found = integers.a.forward, []
    other = threading.Thread(target=lambda: found.append(integers(tianyuan.Tensor(X)).numpy()))
    inside, resumed = threading.Event(), threading.Event()

    def staged(x):
        """Let the other thread leave the layer while this one is inside of it."""
        if threading.current_thread() is other:
            inside.set()
            assert resumed.wait(60)
        else:
            resumed.set()
            other.join()
        return forward(x)

    integers.a.forward = staged
    other.start()
    assert inside.wait(60)
    found.append(integers(tianyuan.Tensor(X)).numpy())
    assert len(found) == 2
    for got in found:
        np.testing.assert_allclose(got, want, atol=0.05 * np.abs(want).max())


def test_the_training_form_trains_under_autocast():
    tianyuan.random.seed(5)
    net = Residual()
    Q.quantize_qat(net, qconfig=Q.per_channel_fakequant_qconfig, example=X)
    net.train()(tianyuan.Tensor(X))
    Q.disable_observer(net)
    found = []
    for enabled in (False, True):
        manager = tianyuan.autodiff.GradManager().attach(net.parameters())
        with manager:
            with tianyuan.amp.autocast(enabled):
                loss = net(tianyuan.Tensor(X)).astype("float32").mean()
            manager.backward(loss)
        found.append([p.grad.numpy() for p in net.parameters()])
        assert all(p.grad.dtype == np.float32 for p in net.parameters())
        for p in net.parameters():
            p.grad = None
    for plain, mixed in zip(*found, strict=True):
        np.testing.assert_allclose(mixed, plain, atol=0.03 * max(np.abs(plain).max(), 0.1))
