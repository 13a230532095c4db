"""Tracing a module gives a graph that computes what the module computes."""

from __future__ import annotations

import functools
import threading
import warnings

import numpy as np
import pytest
import tianyuan as ty
import tianyuan.functional as F
import tianyuan.module as M
import tianyuan.traced_module as tm
from tianyuan import jit
from tianyuan.errors import TraceError
from tianyuan.functional import tanh
from tianyuan.traced_module import names
from tianyuan.traced_module.expr import Apply, CallFunction, CallMethod, Constant, GetAttr
from tianyuan.traced_module.traced_module import TracedModuleBuilder, trace_module


def equal(a, b):
    return np.array_equal(a.numpy(), b.numpy())


def kinds(graph):
    return [type(expr).__name__ for expr in graph.exprs(recursive=False)]


def module_of(function, **members):
    """Return a module whose forward is a function of (self, ...)."""

    class Made(M.Module):
        def __init__(self):
            super().__init__()
            for name, value in members.items():
                setattr(self, name, value)

        forward = function

    return Made()


def test_lenet_computes_the_same_for_another_batch(lenet, image):
    traced = trace_module(lenet, image(2, 1, (1, 28, 28)))
    x = image(3, 5, (1, 28, 28))
    assert equal(traced(x), lenet(x))
    assert type(traced) is tm.TracedModule
    assert isinstance(traced, M.Module)


def test_nested_modules_become_traced_modules(resnet, image):
    traced = trace_module(resnet, image())
    x = image(4, 9, (3, 8, 8))
    assert equal(traced(x), resnet(x))
    assert isinstance(traced.blocks, tm.TracedModule)
    assert isinstance(getattr(traced.blocks, "1"), tm.TracedModule)
    assert type(traced.stem) is M.Conv2d
    assert list(traced.state_dict()) == list(resnet.state_dict())


def test_dict_tuple_list_and_extents_go_in_and_come_out(encoder, batch):
    traced = trace_module(encoder, batch(), scale=0.5)
    for n, length in ((2, 5), (3, 7)):
        given = batch(n, length, seed=n)
        want, want_length = encoder(given, scale=0.5)
        got, got_length = traced(given, scale=0.5)
        assert got_length == want_length == length
        assert list(got) == ["pooled", "states"]
        assert equal(got["pooled"], want["pooled"])
        assert isinstance(got["states"], tuple)
        assert all(equal(a, b) for a, b in zip(got["states"], want["states"], strict=True))


def test_arguments_by_position_and_by_name_are_one_call(encoder, batch):
    traced = trace_module(encoder, batch(), 0.5)
    given = batch()
    assert equal(traced(batch=given, scale=0.5)[0]["pooled"], encoder(given, 0.5)[0]["pooled"])


def test_arguments_of_another_structure_are_refused(encoder, batch):
    traced = trace_module(encoder, batch(), 0.5)
    with pytest.raises(TraceError, match="another structure"):
        traced(batch(), 0.25)
    with pytest.raises(TraceError, match="another structure"):
        traced(batch()["ids"])


def test_what_is_called_becomes_one_expression_each(image):
    net = module_of(
        lambda self, x: tanh(self.act(self.shift + x)).reshape(x.shape[0], -1),
        act=M.ReLU(),
        shift=ty.Parameter(np.ones((3, 1, 1), np.float32)),
    )
    traced = trace_module(net, image())
    assert kinds(traced.graph) == [
        "GetAttr", "CallMethod", "GetAttr", "CallMethod", "CallFunction", "CallMethod",
        "CallMethod",
    ]  # fmt: skip
    methods = [e.method for e in traced.graph.exprs(False) if isinstance(e, CallMethod)]
    assert methods == ["__add__", "__call__", "shape", "reshape"]
    [call] = traced.graph.get_function_by_type(F.tanh).as_list()
    assert isinstance(call, CallFunction)
    assert call.func is F.tanh
    assert [e.attr_name for e in traced.graph.exprs() if isinstance(e, GetAttr)] == ["shift", "act"]
    x = image(1)
    want = np.tanh(np.maximum(x.numpy() + 1, 0)).reshape(1, -1)
    np.testing.assert_allclose(traced(x).numpy(), want, rtol=1e-6)


def test_many_ways_of_computing(image):
    def forward(self, a):
        values, index = F.topk(a, 2, descending=True)
        parts = F.split(a, 3, axis=1)
        scaled = F.concat((part * i for i, part in enumerate(parts)), 1)
        rows = F.stack([row for row in a])  # noqa: C416
        same = (a == rows) & (a > 0)
        shifted = np.ones((2, 3), np.float32) + a
        product = a @ np.ones((3, 3), np.float32)
        columns = F.stack([column for column in a.T])  # noqa: C416
        out = F.where(same, scaled, shifted) + product * abs(a) // 1 + round(a)
        return out + a[..., index[0]].sum() - columns.sum() ** 2 % 3, (values, -index)

    net = module_of(forward)
    traced = trace_module(net, image(2, 1, (3,)))
    x = image(2, 5, (3,))
    (out, (values, index)), (want, (want_values, want_index)) = traced(x), net(x)
    assert equal(out, want)
    assert equal(values, want_values)
    assert equal(index, want_index)
    assert "radd_out = a.__radd__(array(float32(2, 3)))" in str(traced.graph)


def test_extents_are_computed_with(image):
    def forward(self, x):
        n, c, h, w = x.shape
        half = (h + 1) // 2 - 1 % w
        y = x.reshape(n, -c * -1, h * w) * h + w / 1
        return 2 * y[:, :, half:] / c + F.full((n, 1, 1), h - 1) + x.size * 0 - (-n)

    traced = trace_module(module_of(forward), image())
    x = image(3, 2, (2, 5, 6)).numpy()
    fixed = module_of(forward)
    want = fixed(ty.Tensor(x)).numpy()
    # w / 1 is a float that the run met: 6 in both.
    np.testing.assert_allclose(traced(ty.Tensor(x)).numpy(), want, rtol=1e-6)
    assert want.shape == (3, 2, 28)


def test_ops_below_functions_are_applied_as_they_are(image):
    from tianyuan.registry import get_op

    traced = trace_module(module_of(lambda self, x: get_op("neg")(x)), image())
    [expr] = traced.graph.exprs()
    assert isinstance(expr, Apply)
    assert expr.opdef.op.name == "neg"
    x = image(1)
    np.testing.assert_array_equal(traced(x).numpy(), -x.numpy())


def test_unused_extents_are_dropped_and_attributes_of_ops_shown(image):
    from tianyuan.registry import get_op

    def forward(self, x):
        x.shape[0] * x.shape[1]  # noqa: B018
        return get_op("sum")(x, axes=(0,), keepdims=True)

    traced = trace_module(module_of(forward), image())
    assert kinds(traced.graph) == ["Apply"]
    assert "sum_out = sum(x, axes=(0,), keepdims=True)" in str(traced.graph)


def test_tensors_made_by_forward_are_constants_or_calls(image):
    def forward(self, x):
        return x * ty.Tensor([2.0]) + F.ones((1,)) + ty.Tensor(x)

    traced = trace_module(module_of(forward), image())
    assert sum(isinstance(e, Constant) for e in traced.graph.exprs()) == 1
    x = image(1, 7)
    np.testing.assert_allclose(traced(x).numpy(), x.numpy() * 3 + 1, rtol=1e-5, atol=1e-6)


def test_in_place_changes_are_replayed(image):
    def forward(self, x):
        y = F.relu(x)
        y += 1
        y[:, 0] = 5.0
        y *= 2
        return y

    traced = trace_module(module_of(forward), image())
    x = image(1, 4)
    want = np.maximum(x.numpy(), 0) + 1
    want[:, 0] = 5
    np.testing.assert_array_equal(traced(x).numpy(), want * 2)


def test_buffers_are_updated_in_place_and_survive_compile(image):
    def forward(self, x):
        self.count += 1
        return x + 1

    net = module_of(forward, count=ty.Tensor([0.0]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        traced = trace_module(net, image())
    assert net.count.item() == 0  # tracing leaves state as it was
    traced.graph.compile()
    traced(image())
    traced(image())
    assert traced.count.item() == 2


def test_statistics_and_random_state_are_left_as_they_were(resnet, image):
    ty.random.seed(7)
    before = {k: v.copy() for k, v in resnet.state_dict().items()}
    numbers = ty.random.get_state()
    trace_module(resnet.train(), image())
    assert ty.random.get_state() == numbers
    assert all(np.array_equal(v, before[k]) for k, v in resnet.state_dict().items())


def test_the_same_tensor_given_twice_stays_two_inputs(image):
    traced = trace_module(module_of(lambda self, x, y: x - y), *[image()] * 2)
    a, b = image(1, 1), image(1, 2)
    np.testing.assert_array_equal(traced(a, b).numpy(), a.numpy() - b.numpy())


def test_a_module_called_twice_is_traced_once_per_structure(image):
    inner = module_of(lambda self, x, twice=False: x * (2 if twice else 3))
    net = module_of(lambda self, x: self.a(x) + self.a(x) + self.a(x, True), a=inner)
    traced = trace_module(net, image())
    assert len(traced.a.argdef_graph_map) == 2
    x = image(1, 3)
    np.testing.assert_allclose(traced(x).numpy(), 8 * x.numpy(), rtol=1e-6)


def test_two_ways_with_one_structure_are_refused(image):
    inner = module_of(lambda self, x: F.relu(x) if x.shape[0] > 1 else F.tanh(x))
    net = module_of(lambda self, x: (self.a(x), self.a(x[:1])), a=inner)
    with pytest.raises(TraceError, match="different ways"):
        trace_module(net, image())


def test_shared_modules_stay_shared(image):
    layer = M.Linear(6, 6)
    net = module_of(lambda self, x: self.a(self.b(x)), a=layer, b=layer)
    traced = trace_module(net, image())
    assert traced.a is traced.b
    x = image(1, 3)
    assert equal(traced(x), net(x))


def test_training_of_the_traced_leaves_the_original_in_evaluation(resnet, image):
    traced = trace_module(resnet, image())
    traced.train()
    assert getattr(traced.blocks, "0").bn1.training
    assert not getattr(resnet.blocks, "0").bn1.training


def test_wrapped_functions_are_one_expression(image):
    @tm.wrap
    def halve(x, by):
        for _ in range(by):
            x = x / 2
        return x

    traced = trace_module(module_of(lambda self, x: halve(x, by=3) + 1), image())
    [call] = traced.graph.get_function_by_type(halve).as_list()
    assert call.kwargs == {"by": 3}
    x = image(1, 3)
    np.testing.assert_allclose(traced(x).numpy(), x.numpy() / 8 + 1, rtol=1e-6)
    with pytest.raises(TypeError, match="not a function"):
        tm.wrap(3)


def test_decorated_functions_are_not_mistaken_for_what_they_decorate(image):
    @functools.wraps(F.relu)
    def shifted(x):
        return F.relu(x) + 1

    tm.wrap(shifted)
    traced = trace_module(module_of(lambda self, x: shifted(x)), image())
    x = image(1, 3)
    np.testing.assert_array_equal(traced(x).numpy(), np.maximum(x.numpy(), 0) + 1)
    assert traced.graph.exprs().as_unique().func is shifted
    # The name of the decorated one still leads to it.
    assert names.function_named(f"{F.relu.__module__}.relu") is F.relu
    assert names.function_named(names.function_name(shifted)) is shifted


def test_functions_kept_in_attributes_are_seen(image):
    traced = trace_module(module_of(lambda self, x: self.act(x), act=F.relu), image())
    assert traced.graph.get_function_by_type(F.relu).as_count() == 1


def test_classes_registered_as_builtin_are_called_as_a_whole(image):
    class Scaled(M.Module):
        def forward(self, x):
            return x * 3

    inner = Scaled()
    assert isinstance(trace_module(module_of(lambda s, x: s.a(x), a=inner), image()).a,
                      tm.TracedModule)  # fmt: skip
    assert tm.register_as_builtin(Scaled) is Scaled
    traced = trace_module(module_of(lambda s, x: s.a(x), a=inner), image())
    assert type(traced.a) is Scaled
    assert traced.a is not inner
    x = image(1, 3)
    np.testing.assert_allclose(traced(x).numpy(), x.numpy() * 3)
    with pytest.raises(TypeError, match="class of modules"):
        tm.register_as_builtin(F.relu)


def test_registered_types_pass_through(image):
    class Pair:
        def __init__(self, a, b):
            self.a, self.b = a, b

    net = module_of(lambda self, p: Pair(p.a + p.b, p.a * p.b))
    pair = Pair(image(1, 1), image(1, 2))
    with pytest.raises(TypeError, match="register_supported_type"):
        trace_module(net, pair)
    tm.register_supported_type(Pair, lambda p: ([p.a, p.b], None), lambda c, _: Pair(*c))
    traced = trace_module(net, pair)
    out = traced(Pair(image(1, 5), image(1, 6)))
    np.testing.assert_array_equal(out.b.numpy(), image(1, 5).numpy() * image(1, 6).numpy())


def test_a_traced_module_is_traced_again(resnet, image):
    once = trace_module(resnet, image())
    twice = trace_module(once, image())
    assert kinds(twice.graph) == kinds(once.graph)
    x = image(3, 8)
    assert equal(twice(x), resnet(x))


def test_reading_a_value_is_said(image):
    net = module_of(lambda self, x: x * float(x.numpy().max()))
    tm.disable_default_checker()
    with pytest.warns(UserWarning, match="value of a tensor is read by numpy"):
        trace_module(net, image())


def test_keeping_a_value_is_said(image):
    def forward(self, x):
        self.last = x + 1
        return self.last

    with pytest.warns(UserWarning, match="does not keep it"):
        trace_module(module_of(forward), image())


def test_plain_tracing_says_nothing(resnet, image):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trace_module(resnet, image())


def test_default_checker_finds_what_does_not_repeat(image):
    numbers = iter(range(1, 100))
    hidden = tm.wrap(lambda x: x * float(next(numbers)))
    net = module_of(lambda self, x: self.hidden(F.relu(x)), hidden=hidden)
    with pytest.raises(TraceError, match="does not give the module's own result"):
        trace_module(net, image())
    tm.disable_default_checker()
    assert trace_module(net, image()).graph.get_function_by_type(hidden).as_count() == 1


def test_expr_checker_names_the_expression(image):
    numbers = iter(range(1, 100))

    @tm.wrap
    def unsteady(x):
        return x * float(next(numbers))

    tm.enable_expr_checker()
    with pytest.raises(TraceError, match="expression .*unsteady"):
        trace_module(module_of(lambda self, x: unsteady(F.relu(x))), image())


def test_expr_checker_passes_what_repeats(resnet, encoder, image, batch):
    tm.enable_expr_checker()
    traced = trace_module(resnet, image())
    assert equal(traced(image()), resnet(image()))
    trace_module(encoder, batch())


def test_dropout_draws_anew_in_each_call(image):
    net = module_of(lambda self, x: F.dropout(x, 0.5, training=True))
    traced = trace_module(net, image())
    ones = ty.Tensor(np.ones((1, 3, 6, 6), np.float32))
    a, b = traced(ones).numpy(), traced(ones).numpy()
    assert not np.array_equal(a, b)
    assert set(np.unique(a)) <= {0.0, 2.0}


def test_everything_patched_is_put_back(resnet, image):
    members = dict(vars(ty.Tensor))
    functions = {k: getattr(F, k) for k in F.__all__}
    call = M.Module.__call__
    trace_module(resnet, image())
    with pytest.raises(ZeroDivisionError):
        trace_module(module_of(lambda self, x: 1 / 0), image())
    assert dict(vars(ty.Tensor)) == members
    assert all(getattr(F, k) is v for k, v in functions.items())
    assert M.Module.__call__ is call
    assert tanh.__name__ == "tanh"
    assert not hasattr(tanh, "__wrapped__")


def test_a_value_of_another_call_is_refused(image):
    class Outer(M.Module):
        def __init__(self):
            super().__init__()
            self.inner = Inner(self)

        def forward(self, x):
            self.__dict__["kept"] = F.relu(x)
            return self.inner(x)

    class Inner(M.Module):
        def __init__(self, outer):
            super().__init__()
            self.outer = lambda: outer

        def forward(self, x):
            return x + self.outer().kept

    with pytest.raises(TraceError, match="computed outside"):
        trace_module(Outer(), image())


def test_wrong_calls_are_refused(image, resnet):
    with pytest.raises(TypeError, match="not a module"):
        trace_module(F.relu, image())
    with pytest.raises(TraceError, match="another trace"):
        jit.trace(lambda x: trace_module(resnet, x)(x))(image())


def test_what_other_threads_compute_is_not_recorded(image):
    def forward(self, x):
        worker = threading.Thread(target=lambda: F.exp(ty.Tensor([1.0])) + 1)
        worker.start()
        worker.join()
        return F.relu(x)

    assert kinds(trace_module(module_of(forward), image()).graph) == ["CallFunction"]


def test_a_compiled_function_is_seen_through(image):
    compiled = jit.trace(lambda x: F.exp(x) * 2)
    traced = trace_module(module_of(lambda self, x: compiled(F.relu(x)) + 1), image())
    assert kinds(traced.graph) == ["CallFunction", "CallFunction", "CallMethod", "CallMethod"]
    x = image(1, 5)
    want = np.exp(np.maximum(x.numpy(), 0)) * 2 + 1
    np.testing.assert_allclose(traced(x).numpy(), want, rtol=1e-5)


def test_classes_are_changed_once(lenet, image):
    # CPython gives up on classes that are changed a thousand times.
    x = image(1, 1, (1, 28, 28))
    trace_module(lenet, x)
    before = [dict(vars(cls)) for cls in (ty.Tensor, M.Module)]
    trace_module(lenet, x)
    assert [dict(vars(cls)) for cls in (ty.Tensor, M.Module)] == before


def test_builder_records_and_builds(lenet, image):
    from tianyuan.traced_module.patching import patched

    x = image(1, 1, (1, 28, 28))
    builder = TracedModuleBuilder(lenet, is_top_module=True)
    with patched(lenet):
        out = builder.record([x], {}, "LeNet", None)
    traced = builder.build()
    assert builder.build() is traced
    assert equal(traced(x), out)
    assert traced.graph.name == "LeNet"


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("named", [{}, {"flag": False}, {"w": None}, {"flag": True, "w": None}])
def test_signatures_of_every_kind(count, named, image):
    class Net(M.Module):
        def __init__(self):
            super().__init__()
            self.fc = M.Linear(3, 3)

        def forward(self, x, y=None, *rest, flag=True, **others):
            z = self.fc(x) if y is None else self.fc(x) + y
            for other in rest:
                z = z - other
            return z * others["w"] if flag and "w" in others else z

    def arguments(n, seed):
        given = [image(n, seed + i, (3,)) for i in range(count)]
        return given, {k: given[0] + 1 if k == "w" else v for k, v in named.items()}

    net = Net()
    args, kwargs = arguments(2, 1)
    traced = trace_module(net, *args, **kwargs)
    args, kwargs = arguments(4, 7)
    want = net(*args, **kwargs)
    assert equal(traced(*args, **kwargs), want)
    assert equal(traced.flatten()(*args, **kwargs), want)


def test_extents_go_into_and_come_out_of_called_modules(image):
    class Inner(M.Module):
        def forward(self, x, n, sizes=None):
            return x.reshape(n, -1), sizes[0] * sizes[-1]

    def forward(self, x):
        y, size = self.inner(x, x.shape[0], sizes=x.shape[1:])
        z, _ = self.inner(y, n=size, sizes=(y.shape[1],))
        return y.sum(1) + size, z

    inner = Inner()
    traced = trace_module(module_of(forward, inner=inner), image(2))
    x = image(6, 3, (2, 3, 3))
    y, z = traced(x)
    want = x.numpy().reshape(6, -1).sum(1) + 2 * 3
    np.testing.assert_allclose(y.numpy(), want, rtol=1e-5)
    np.testing.assert_array_equal(z.numpy(), x.numpy().reshape(6, -1))
    assert len(traced.inner.argdef_graph_map) == 2
    flat = traced.flatten()
    assert all(equal(a, b) for a, b in zip(flat(x), (y, z), strict=True))


def test_a_function_may_take_the_module_and_other_functions(image):
    @tm.wrap
    def through(module, x, activation):
        return activation(module.fc(x))

    net = module_of(lambda self, x: through(self, x, F.relu), fc=M.Linear(3, 2))
    traced = trace_module(net, image(2, 1, (3,)))
    x = image(4, 2, (3,))
    assert equal(traced(x), net(x))
    assert "through(self, x, relu)" in str(traced.graph)


def test_a_function_that_returns_another_structure_is_refused(image):
    results = [1, 2, 2]

    @tm.wrap
    def fickle(x):
        return (x,) * results.pop(0) if len(results) > 1 else [x]

    net = module_of(lambda self, x: fickle(x)[0])
    tm.disable_default_checker()
    traced = trace_module(net, image())
    with pytest.raises(TraceError, match="the result has another structure"):
        traced(image())


def test_a_name_of_a_traced_module_is_not_free(image):
    net = module_of(lambda self, x: x * self.arg_names, arg_names=ty.Tensor([2.0]))
    with pytest.raises(TraceError, match="name is taken, got 'arg_names'"):
        trace_module(net, image())
