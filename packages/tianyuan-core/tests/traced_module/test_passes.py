"""Passes keep what a traced module computes, and leave less of it."""

from __future__ import annotations

import numpy as np
import pytest
import tianyuan as ty
import tianyuan.functional as F
import tianyuan.module as M
from tianyuan.errors import GraphError, TraceError
from tianyuan.registry import get_op
from tianyuan.traced_module import optimize, register_pass, trace_module
from tianyuan.traced_module._passes.const_pass import (
    AttrToConstant,
    FixInputShape,
    FlodConstant,
    NormElemWise,
)
from tianyuan.traced_module._passes.fold_scale_pass import BackwardFoldScale
from tianyuan.traced_module._passes.fuse_pass import FuseAddMul, FuseConvBn
from tianyuan.traced_module._passes.matcher import PatternMatcher
from tianyuan.traced_module._passes.pass_base import (
    BackwardPass,
    BasePass,
    ForwardPass,
    PassContext,
    get_default_pass_context,
    get_registered_pass,
)
from tianyuan.traced_module._passes.pattern import (
    AnyPattern,
    ApplyDefPattern,
    CallPattern,
    ConstantPattern,
    ExprPattern,
    FunctionPattern,
    GetOutputPaterrn,
    ModulePattern,
    OrPattern,
    TensorMethodPattern,
    VarPattern,
    any_node,
    is_const,
    is_op,
    is_var,
)
from tianyuan.traced_module._passes.utils import get_const_value, register_obj
from tianyuan.traced_module.expr import is_call_function, is_constant


def randomise(net):
    rng = np.random.default_rng(4)
    for name, tensor in net.named_tensors():
        value = rng.standard_normal(tuple(tensor.shape)) * 0.5
        value = np.abs(value) + 0.5 if name.endswith("running_var") else value
        tensor.set_value(value.astype(np.float32))
    return net.eval()


class Function(M.Module):
    def __init__(self, function, **members):
        super().__init__()
        self.__dict__["function"] = function
        for name, value in members.items():
            setattr(self, name, value)

    def forward(self, *args):
        return self.function(self, *args)


def check(module, x, names, tolerance=1e-5):
    """Optimise, compare on another input, and return the result."""
    traced = trace_module(module, x)
    found = optimize(traced, names)
    assert found is not traced
    np.testing.assert_allclose(
        found(x).numpy(), module(x).numpy(), rtol=tolerance, atol=tolerance
    )  # fmt: skip
    return found


def test_fuse_conv_bn_in_a_residual_network(resnet, image):
    fused = check(resnet, image(), ["FuseConvBn"])
    assert fused.graph.get_module_by_type(M.BatchNorm2d).as_count() == 0
    assert not any(isinstance(m, M.BatchNorm2d) for m in fused.modules())
    assert getattr(fused.blocks, "0").conv1.bias is not None
    x = image(3, 11, (3, 9, 7))
    np.testing.assert_allclose(fused(x).numpy(), resnet(x).numpy(), rtol=1e-5, atol=1e-5)
    # The original is as it was.
    assert sum(isinstance(m, M.BatchNorm2d) for m in resnet.modules()) == 4


@pytest.mark.parametrize(
    "layer",
    [
        lambda: M.Conv2d(4, 6, 3, groups=2, stride=2),
        lambda: M.Conv2d(4, 4, 3, groups=4, bias=False),
        lambda: M.ConvTranspose2d(4, 6, 3, stride=2),
        lambda: M.ConvTranspose2d(4, 6, 3, groups=2, bias=False),
    ],
)
def test_fuse_conv_bn_of_every_kind(layer, image):
    conv = layer()
    net = randomise(M.Sequential(conv, M.BatchNorm2d(conv.out_channels), M.ReLU()))
    fused = check(net, image(2, 1, (4, 7, 7)), "FuseConvBn")
    assert fused.graph.get_module_by_type(M.BatchNorm2d).as_count() == 0


@pytest.mark.parametrize(
    "joined", [M.ConvBn2d, M.ConvBnRelu2d, M.ConvTransposeBn2d, M.ConvTransposeBnRelu2d]
)
def test_fuse_joined_modules(joined, image):
    net = randomise(M.Sequential(joined(3, 4, 3)))
    fused = check(net, image(), "FuseConvBn")
    assert type(getattr(fused, "0")) in (
        M.Conv2d, M.ConvRelu2d, M.ConvTranspose2d, M.ConvTransposeRelu2d,
    )  # fmt: skip


def test_fuse_functions_with_constants(image):
    def forward(self, x):
        y = F.conv2d(x, self.w, self.b, padding=1)
        return F.nn.batch_norm(y, self.mean, self.var, self.gamma, self.beta)

    rng = np.random.default_rng(0)
    draw = lambda *shape: ty.Tensor(rng.standard_normal(shape).astype("f"))  # noqa: E731
    net = Function(
        forward, w=draw(4, 3, 3, 3), b=draw(1, 4, 1, 1), mean=draw(1, 4, 1, 1),
        var=F.abs(draw(1, 4, 1, 1)) + 0.5, gamma=draw(1, 4, 1, 1), beta=draw(1, 4, 1, 1),
    )  # fmt: skip
    fused = check(net, image(), ["AttrToConstant", "FuseConvBn"])
    assert fused.graph.get_function_by_type(F.nn.batch_norm).as_count() == 0
    # Without constants there is nothing to compute with.
    kept = check(net, image(), ["FuseConvBn"])
    assert kept.graph.get_function_by_type(F.nn.batch_norm).as_count() == 1


def test_fuse_leaves_alone_what_it_must(image):
    class Net(M.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.bn = M.Conv2d(3, 3, 1), M.BatchNorm2d(3)

        def forward(self, x):
            y = self.conv(x)
            return self.bn(y) + y

    kept = check(randomise(Net()), image(), ["FuseConvBn"])
    assert kept.graph.get_module_by_type(M.BatchNorm2d).as_count() == 1
    net = randomise(M.Sequential(M.Conv2d(3, 4, 1), M.BatchNorm2d(4)))
    training = trace_module(net, image()).train()
    with pytest.warns(UserWarning, match=r"call eval\(\) first"):
        assert optimize(training).graph.get_module_by_type(M.BatchNorm2d).as_count() == 1
    shared = M.Conv2d(3, 3, 1)
    norms = [M.BatchNorm2d(3), M.BatchNorm2d(3)]
    net = randomise(M.Sequential(shared, norms[0], shared, norms[1]))
    kept = check(net, image(), ["FuseConvBn"])
    assert kept.graph.get_module_by_type(M.BatchNorm2d).as_count() == 2


def test_attributes_become_constants(image):
    net = Function(lambda self, x: x * self.w + 1, w=ty.Parameter([3.0]))
    found = check(net, image(), ["AttrToConstant"])
    assert [is_constant(e) for e in found.graph.exprs()] == [True, False, False]
    net.w.set_value([0.0])
    np.testing.assert_allclose(found(image()).numpy(), image().numpy() * 3 + 1, rtol=1e-6)


def test_constants_are_folded(image):
    def forward(self, x):
        table = F.exp(self.w) * 2
        return x + F.concat([table, table], axis=0).sum() + F.dropout(self.w, 0.0)

    net = Function(forward, w=ty.Parameter([0.5]))
    found = check(net, image(), ["AttrToConstant", "FlodConstant"])
    assert found.graph.get_function_by_type(F.exp).as_count() == 0
    assert found.graph.get_function_by_type(F.concat).as_count() == 0
    # Random numbers are no constants.
    assert found.graph.get_function_by_type(F.dropout).as_count() == 1


def test_input_shapes_are_fixed(image):
    net = Function(lambda self, x: x.reshape(x.shape[0] * x.shape[1], -1) * 2)
    traced = trace_module(net, image(2))
    x = image(4)
    assert traced(x).shape == (12, 36)
    found = check(net, image(2), ["FixInputShape"])
    assert found.graph.get_method_by_type("shape").as_count() == 0
    assert found.graph.get_method_by_type("reshape").as_unique().args[1:] == (6, -1)
    assert found(x).shape == (6, 72)


def test_arithmetic_is_normalised(image):
    def forward(self, x):
        y = 3 - (x - 1) / 4
        return -(2.0 * y) + F.sub(x, ty.Tensor([0.5])) - F.div(x, 2)

    found = check(Function(forward), image(), ["NormElemWise"])
    exprs = [e for e in found.graph.exprs() if not is_constant(e)]
    two = [e for e in exprs if not is_call_function(e, [F.add, F.mul])]
    assert sorted(e.method for e in two) == ["__add__", "__sub__"]  # of two tensors each
    for expr in exprs:
        if expr not in two:
            assert get_const_value(expr.args[1]) is not None
    whole = Function(lambda self, x: x - 1)
    kept = check(whole, ty.Tensor(np.array([1, 2], np.int32)), ["NormElemWise"])
    assert kept.graph.get_method_by_type("__sub__").as_count() == 1


def test_sums_and_products_in_a_row_are_joined(image):
    def forward(self, x):
        return ((((x + 1) - 3) * 2) / 4 + 0.25) * self.c * 3

    net = Function(forward, c=ty.Parameter(np.full((3, 1, 1), 2, np.float32)))
    found = check(net, image(), ["AttrToConstant", "FuseAddMul"])
    calls = [e for e in found.graph.exprs() if not is_constant(e)]
    assert [e.func for e in calls] == [F.mul, F.add]
    np.testing.assert_allclose(get_const_value(calls[0].args[1]).reshape(-1), [3, 3, 3])


def test_joining_leaves_what_grows_or_is_read_twice(image):
    def forward(self, x):
        y = x + 1
        return y * 2 + y

    found = check(Function(forward), image(), ["FuseAddMul"])
    assert found.graph.get_function_by_type(F.add).as_count() == 1


def test_scales_are_folded_backwards(image):
    def positive(net):
        net.scale.set_value(np.array([0.5, 2, 3, 4], "f").reshape(1, 4, 1, 1))
        return net

    class Net(M.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.pool, self.fc = M.Conv2d(3, 4, 3), M.MaxPool2d(2), M.Linear(16, 5)
            self.scale = ty.Parameter(np.zeros((1, 4, 1, 1), np.float32))

        def forward(self, x):
            y = self.pool(F.relu(self.conv(x))) * self.scale
            return self.fc(F.flatten(y, 1) * 0.5) * ty.Tensor([[1.0, 2, 3, -4, 5]])

    found = check(positive(randomise(Net())), image(), ["AttrToConstant", "BackwardFoldScale"])
    assert found.graph.get_function_by_type(F.mul).as_count() == 0
    assert found.graph.get_method_by_type("__mul__").as_count() == 0


def test_scales_that_cannot_be_folded_stay(image):
    class Net(M.Module):
        def __init__(self):
            super().__init__()
            self.conv = M.Conv2d(3, 4, 3)

        def forward(self, x):
            return F.relu(self.conv(x)) * -2

    found = check(randomise(Net()), image(), ["BackwardFoldScale"])
    assert found.graph.get_function_by_type(F.mul).as_count() == 1
    sigmoid = Function(lambda s, x: F.sigmoid(s.conv(x)) * 2, conv=M.Conv2d(3, 4, 3))
    found = check(randomise(sigmoid), image(), ["BackwardFoldScale"])
    assert found.graph.get_function_by_type(F.mul).as_count() == 1


def test_all_passes_together(resnet, encoder, image, batch):
    names = ["FuseConvBn", "AttrToConstant", "FlodConstant", "FuseAddMul", "BackwardFoldScale"]
    check(resnet, image(), names)
    traced = trace_module(encoder, batch())
    found = optimize(traced, names)(batch())[0]["pooled"].numpy()
    np.testing.assert_allclose(found, encoder(batch())[0]["pooled"].numpy(), rtol=1e-4, atol=1e-5)


def test_users_add_passes(image):
    @register_pass("ReluToGelu")
    class ReluToGelu(ForwardPass):
        required_pass = ("NormElemWise",)

        def run_transform(self, expr):
            if is_call_function(expr, F.relu):
                expr.func = F.gelu

    order = []

    @register_pass("Order")
    class Order(BackwardPass):
        def run_transform(self, expr):
            order.append(expr.outputs[0].name)

        def before_visit_graph(self, graph):
            order.append(graph.name)

    net = Function(lambda self, x: F.relu(x - 1))
    found = optimize(trace_module(net, image()), ["ReluToGelu", "Order"])
    x = ty.Tensor([1.5])
    want = 0.5 * 0.5 * (1 + 0.38292492)  # x Phi(x) at 0.5
    np.testing.assert_allclose(found(image()).shape, image().shape)
    [relu] = found.graph.get_function_by_type(F.gelu).as_list()
    np.testing.assert_allclose(relu.interpret(x - 1)[0].numpy(), [want], rtol=1e-5)
    assert order == ["Function", "relu_out", "add_out"]
    assert get_registered_pass("ReluToGelu") is ReluToGelu
    with pytest.raises(ValueError, match="taken"):
        register_pass("Order")(Order)
    with pytest.raises(GraphError, match="unknown pass, got 'Nothing'"):
        optimize(found, ["Nothing"])
    with pytest.raises(TraceError, match="expected a TracedModule"):
        optimize(net)
    with pytest.raises(TypeError):
        BasePass()


def test_registered_passes_have_their_names():
    for cls in (
        AttrToConstant, BackwardFoldScale, FixInputShape, FlodConstant, FuseAddMul, FuseConvBn,
        NormElemWise,
    ):  # fmt: skip
        assert get_registered_pass(cls.__name__) is cls
        assert cls.name == cls.__name__


def test_contexts_leave_passes_out(image):
    net = Function(lambda self, x: (x - 1) - 2)
    context = PassContext(["NormElemWise"], {"level": 3})
    assert context.config == {"level": 3}
    assert get_default_pass_context().pass_enabled("NormElemWise")
    kept = FuseAddMul()(trace_module(net, image()), context)
    assert kept.graph.get_method_by_type("__sub__").as_count() == 2
    joined = FuseAddMul()(trace_module(net, image()), PassContext())
    assert joined.graph.exprs().as_count() == 1


@pytest.fixture
def exprs(image):
    def forward(self, x):
        y = F.split(self.conv(x), 2, axis=1)
        return F.maximum(y[1] * 2, ty.Tensor([1.0])) + get_op("neg")(F.relu(y[0]))

    traced = trace_module(Function(forward, conv=M.Conv2d(3, 4, 1)), image())
    return {e.outputs[0].name: e for e in traced.graph.exprs()}


def test_patterns_fit_what_they_name(exprs):
    def which(pattern):
        return [name for name, e in exprs.items() if PatternMatcher().match(pattern, e)]

    assert which(is_op(M.Conv2d)) == ["conv_out"]
    assert which(is_op(F.maximum)) == ["maximum_out"]
    assert which(is_op("__mul__")) == ["mul_out"]
    assert which(is_op(get_op("neg"))) == ["neg_out"]
    assert which(is_op(F.relu) | is_op(M.Conv2d)) == ["conv_out", "relu_out"]
    assert which(is_const()) == ["const_tensor"]
    assert len(which(is_var())) == len(exprs) - 1
    assert len(which(any_node())) == len(exprs)
    assert which(is_op(F.maximum)(is_var(), is_const())) == ["maximum_out"]
    assert which(is_op(F.maximum)(is_const(), is_var())) == []
    assert which(is_op("__mul__")(is_op(F.split)[1], is_const())) == ["mul_out"]
    assert which(is_op("__mul__")(is_op(F.split)[0], any_node())) == []
    assert which(is_op(F.split).check_users()) == ["split_out"]
    with pytest.raises(TypeError, match="is_op"):
        is_op(3)
    with pytest.raises(NotImplementedError):
        ExprPattern().fits(None)


def test_patterns_are_of_their_classes(exprs):
    neg = get_op("neg")
    for pattern, cls in (
        (is_op(M.Conv2d), ModulePattern),
        (is_op(F.relu), FunctionPattern),
        (is_op("sum"), TensorMethodPattern),
        (is_op(neg), ApplyDefPattern),
        (is_op(neg)(any_node()), CallPattern),
        (is_op(neg) | is_var(), OrPattern),
        (is_op(neg)[0], GetOutputPaterrn),
        (is_const(), ConstantPattern),
        (is_var(), VarPattern),
        (any_node(), AnyPattern),
    ):
        assert type(pattern) is cls
        assert isinstance(pattern, ExprPattern)


def test_a_match_says_what_fitted(exprs):
    inner, c = is_op("__mul__"), is_const()
    matcher = PatternMatcher()
    assert matcher.match(is_op(F.maximum)(inner, c), exprs["maximum_out"])
    assert matcher.matched_exprs[inner] is exprs["mul_out"]
    assert matcher.matched_exprs[c] is exprs["const_tensor"]
    same = any_node()
    assert not matcher.match(is_op(F.maximum)(same, same), exprs["maximum_out"])


def test_utilities(exprs):
    np.testing.assert_array_equal(get_const_value(exprs["const_tensor"]), [1.0])
    np.testing.assert_array_equal(get_const_value(exprs["const_tensor"].outputs[0]), [1.0])
    assert get_const_value(exprs["mul_out"], "no") == "no"
    assert get_const_value("text") is None
    assert get_const_value(3) == 3
    table = {}
    register_obj(["a", "b"], table)(1)
    register_obj("c", table)(2)
    assert table == {"a": 1, "b": 1, "c": 2}


def test_modules_in_lists_and_dicts_are_replaced(image):
    class Net(M.Module):
        def __init__(self):
            super().__init__()
            self.layers = [M.Conv2d(3, 4, 1), [M.BatchNorm2d(4)]]
            self.more = {"conv": M.Conv2d(4, 2, 1), "norms": {"bn": M.BatchNorm2d(2)}}

        def forward(self, x):
            x = self.layers[1][0](self.layers[0](x))
            return self.more["norms"]["bn"](self.more["conv"](x))

    net = randomise(Net())
    fused = check(net, image(), ["FuseConvBn"])
    assert not any(isinstance(m, M.BatchNorm2d) for m in fused.modules())
    assert [type(m) for m in fused.children()] == [M.Conv2d, M.Conv2d]
    flat = optimize(trace_module(net, image()).flatten())
    np.testing.assert_allclose(flat(image()).numpy(), net(image()).numpy(), rtol=1e-5, atol=1e-5)


def test_normalisation_without_weights_is_folded(image):
    net = randomise(M.Sequential(M.Conv2d(3, 4, 1), M.BatchNorm2d(4, affine=False)))
    fused = check(net, image(), ["FuseConvBn"])
    assert fused.graph.get_module_by_type(M.BatchNorm2d).as_count() == 0
    batch = randomise(M.Sequential(M.Conv2d(3, 4, 1), M.BatchNorm2d(4, track_running_stats=False)))
    kept = check(batch, image(), ["FuseConvBn"])
    assert kept.graph.get_module_by_type(M.BatchNorm2d).as_count() == 1


def test_a_scale_of_a_layer_without_bias_is_folded(image):
    net = Function(lambda s, x: s.conv(x) * 0.25, conv=M.Conv2d(3, 4, 3, bias=False))
    found = check(randomise(net), image(), ["BackwardFoldScale"])
    assert found.conv.bias is None
    assert found.graph.get_function_by_type(F.mul).as_count() == 0
