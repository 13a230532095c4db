"""A traced module is a module: it trains, copies, dumps and is quantised."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import tianyuan as ty
import tianyuan.functional as F
import tianyuan.module as M
from tianyuan import autodiff, jit, optimizer
from tianyuan.errors import AttrError, DTypeError, TraceError
from tianyuan.op import QuantParams
from tianyuan.traced_module import trace_module
from tianyuan.traced_module.fake_quant import FakeQuantize


def train(net, x, labels, steps=3):
    gm = autodiff.GradManager().attach(net.parameters())
    opt = optimizer.SGD(net.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for _ in range(steps):
        with gm:
            loss = F.loss.cross_entropy(net(x), labels)
            gm.backward(loss)
        opt.step().clear_grad()
        losses.append(loss.item())
    return losses


def test_training_gives_the_losses_and_weights_of_the_original(resnet, image):
    x, labels = image(4), ty.Tensor(np.array([0, 1, 2, 4], np.int32))
    original = copy.deepcopy(resnet).train()
    traced = trace_module(copy.deepcopy(resnet).train(), x)
    assert train(traced, x, labels) == train(original, x, labels)
    want = original.state_dict()
    for name, value in traced.state_dict().items():
        assert np.array_equal(value, want[name]), name
    assert np.array_equal(traced.eval()(x).numpy(), original.eval()(x).numpy())


def test_parameters_are_shared_with_the_original(lenet, image):
    traced = trace_module(lenet, image(1, 1, (1, 28, 28)))
    assert [id(p) for p in traced.parameters()] == [id(p) for p in lenet.parameters()]
    traced.load_state_dict({k: v * 2 for k, v in lenet.state_dict().items()})
    x = image(1, 2, (1, 28, 28))
    assert np.array_equal(traced(x).numpy(), lenet(x).numpy())


def test_a_deep_copy_is_independent(resnet, image):
    traced = trace_module(resnet, image())
    copied = copy.deepcopy(traced)
    x = image(1, 5)
    want = traced(x).numpy()
    for p in copied.parameters():
        p.reset_zero()
    copied.graph.reset_outputs(copied.graph.get_node_by_name("stem_out").as_unique())
    assert np.array_equal(traced(x).numpy(), want)
    assert copied(x).shape == (1, 4, 6, 6)
    assert not copied(x).numpy().any()
    inner = getattr(copied.blocks, "0").graph
    assert inner.top_graph.top_graph is copied.graph
    assert str(copied.blocks.graph) == str(traced.blocks.graph)


def test_a_shallow_copy_shares_modules_but_not_its_graph(resnet, image):
    traced = trace_module(resnet, image())
    copied = copy.copy(traced)
    assert copied.fc is traced.fc
    copied.graph.reset_outputs(copied.graph.get_node_by_name("mean_out").as_unique())
    assert copied(image()).shape == (2, 4)
    assert traced(image()).shape == (2, 5)


def test_long_graphs_are_copied():
    class Long(M.Module):
        def forward(self, x):
            for _ in range(1100):
                x = x + 1
            return x

    copied = copy.deepcopy(trace_module(Long(), ty.Tensor([0.0])))
    assert copied(ty.Tensor([2.0])).item() == 1102


def test_a_traced_module_is_compiled_and_dumped(encoder, batch, tmp_path):
    traced = trace_module(encoder, batch())

    class Pooled(M.Module):
        def __init__(self):
            super().__init__()
            self.net = traced

        def forward(self, ids, mask):
            return self.net({"ids": ids, "mask": mask})[0]["pooled"]

    net = Pooled().eval()
    given = batch()
    sizes = {"ids": {0: "n", 1: "length"}, "mask": {0: "n", 1: "length"}}
    compiled = jit.trace(
        lambda ids, mask: net(ids, mask), capture_as_const=True, dynamic_shapes=sizes
    )
    want = encoder(given)[0]["pooled"].numpy()
    np.testing.assert_allclose(compiled(given["ids"], given["mask"]).numpy(), want, atol=1e-5)
    path = tmp_path / "net.tym"
    compiled.dump(path, arg_names=["ids", "mask"])
    model = jit.load(path)
    found = model(given["ids"].numpy(), given["mask"].numpy())
    np.testing.assert_allclose(np.asarray(found).reshape(want.shape), want, atol=1e-5)
    # What was read from shapes follows them, through both traces.
    other = batch(3, 9)
    want = encoder(other)[0]["pooled"].numpy()
    found = model(other["ids"].numpy(), other["mask"].numpy())
    np.testing.assert_allclose(np.asarray(found).reshape(want.shape), want, atol=1e-5)


def test_a_compiled_traced_module_notices_changes_of_its_graph():
    class Net(M.Module):
        def forward(self, x):
            return F.exp(x)

    x = ty.Tensor([0.5, 1.0])
    traced = trace_module(M.Sequential(Net()), x)
    compiled = jit.trace(lambda x: traced(x))
    np.testing.assert_allclose(compiled(x).numpy(), np.exp(x.numpy()), rtol=1e-6)
    inner = getattr(traced, "0").graph
    inner.exprs().as_unique().func = F.tanh
    np.testing.assert_allclose(compiled(x).numpy(), np.tanh(x.numpy()), rtol=1e-6)
    with traced.graph.insert_exprs():
        twice = traced.graph.outputs[0] * 2
    traced.graph.replace_node({traced.graph.outputs[0]: twice})
    np.testing.assert_allclose(compiled(x).numpy(), np.tanh(x.numpy()) * 2, rtol=1e-6)
    twice.expr.set_arg(1, 3)
    np.testing.assert_allclose(compiled(x).numpy(), np.tanh(x.numpy()) * 3, rtol=1e-6)
    traced.graph.reset_outputs(twice.expr.inputs[0])
    np.testing.assert_allclose(compiled(x).numpy(), np.tanh(x.numpy()), rtol=1e-6)


def test_a_traced_module_is_quantised(resnet, image, tmp_path):
    quantization = pytest.importorskip("tianyuan_quant")
    traced = trace_module(resnet, image())
    x = image(4, 9)
    want = resnet(x).numpy()
    found = []
    for module in (traced, resnet):
        net = quantization.quantize_qat(module, inplace=False, example=image())
        quantization.enable_observer(net)
        for seed in range(3):
            net(image(8, seed))
        quantization.disable_observer(net)
        integers = quantization.quantize(net, inplace=False)
        found.append((net(x).numpy(), integers(x).numpy()))
    for ours, originals in zip(*found, strict=True):
        assert np.array_equal(ours, originals)
        assert 0 < np.abs(ours - want).max() < 0.1 * np.abs(want).max()
    net = quantization.quantize_qat(traced, inplace=False, example=image())
    with pytest.raises(TypeError, match=r"forward that was replaced.*dump it by jit\.trace"):
        ty.save(net, tmp_path / "net.tm")
    with pytest.raises(TraceError, match="trace first"):
        trace_module(net, x)
    # The float module is as it was.
    assert np.array_equal(traced(x).numpy(), want)


def test_fake_quantize_rounds_as_the_formula_says():
    x = np.array([-3.0, -0.26, 0.24, 0.25, 0.75, 200.0], np.float32)
    fake = FakeQuantize("qint8")
    fake.set_qparams(QuantParams((0.5,), (3,)))
    assert fake.get_qparams().zero_points == (3,)
    want = (np.clip(np.rint(x / np.float32(0.5)) + 3, -128, 127) - 3) * 0.5
    np.testing.assert_array_equal(fake(ty.Tensor(x)).numpy(), want)
    other = QuantParams((0.5, 0.25), (0, 0), 1)
    y = np.array([[0.3, 0.3]], np.float32)
    np.testing.assert_array_equal(fake(ty.Tensor(y), other).numpy(), [[0.5, 0.25]])
    fake.disable()
    np.testing.assert_array_equal(fake(ty.Tensor(x)).numpy(), x)
    fake.enable()
    assert fake.enabled


def test_fake_quantize_passes_gradients_inside_its_range():
    fake = FakeQuantize("quint8")
    fake.set_qparams(QuantParams((1.0,), (0,)))
    x = ty.Tensor([-5.0, 3.2, 300.0])
    gm = autodiff.GradManager().attach([x])
    with gm:
        gm.backward(fake(x).sum())
    np.testing.assert_array_equal(x.grad.numpy(), [0.0, 1.0, 0.0])


def test_fake_quantize_checks_and_is_kept_in_files(tmp_path):
    with pytest.raises(DTypeError, match="unknown dtype, got 'qint3'"):
        FakeQuantize("qint3")
    with pytest.raises(AttrError, match="no scale is known"):
        FakeQuantize("qint8")(ty.Tensor([1.0]))

    class Meta:
        name, qmin, qmax = "mine", -1, 1

    fake = FakeQuantize(Meta(), enable=True)
    fake.set_qparams(QuantParams((1.0,), (0,)))
    np.testing.assert_array_equal(fake(ty.Tensor([0.7, 5.0])).numpy(), [1.0, 1.0])
    net = trace_module(M.Sequential(M.ReLU(), fake), ty.Tensor([1.0]))
    assert net.graph.get_module_by_type(FakeQuantize).as_count() == 1
    ty.save(net, tmp_path / "net.tm")
    found = ty.load(tmp_path / "net.tm")(ty.Tensor([0.7, 5.0, -2.0]))
    np.testing.assert_array_equal(found.numpy(), [1.0, 1.0, 0.0])


def test_an_imported_network_is_traced(tmp_path):
    onnx = pytest.importorskip("onnx")
    from tianyuan.onnx import load

    weight = np.random.default_rng(0).standard_normal((3, 2)).astype(np.float32)
    make = onnx.helper
    graph = make.make_graph(
        [make.make_node("MatMul", ["x", "w"], ["h"]), make.make_node("Relu", ["h"], ["y"])],
        "net",
        [make.make_tensor_value_info("x", 1, ["n", 3])],
        [make.make_tensor_value_info("y", 1, ["n", 2])],
        [onnx.numpy_helper.from_array(weight, "w")],
    )
    model = make.make_model(graph, opset_imports=[make.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "net.onnx")
    traced = trace_module(load(tmp_path / "net.onnx"), ty.Tensor(np.ones((1, 3), np.float32)))
    x = np.random.default_rng(1).standard_normal((4, 3)).astype(np.float32)
    found = traced(ty.Tensor(x)).numpy()
    np.testing.assert_allclose(found, np.maximum(x @ weight, 0), rtol=1e-5, atol=1e-6)
    ty.save(traced, tmp_path / "net.tm")
    assert np.array_equal(ty.load(tmp_path / "net.tm")(ty.Tensor(x)).numpy(), found)
