"""Network: what is found in a dumped model, what surgery makes of it, and what is refused."""

from __future__ import annotations

import copy
import io
import json
from pathlib import Path

import numpy as np
import pytest
import tianyuan as ty
import tianyuan.functional as F
import tianyuan.module as M
from tianyuan.errors import AttrError, GraphError, ModelFormatError, ShapeError
from tianyuan.graph.container import read_container, write_container
from tianyuan.jit import load
from tianyuan.registry import backends
from tianyuan.utils import network as N
from tianyuan.utils import network_node as O
from tianyuan.utils.network import Network

CLOSE = {"rtol": 2e-5, "atol": 2e-6}
BACKENDS = [name for name in ("numpy", "x86") if name in backends()]


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def small() -> tuple[Network, N.as_varnode, N.as_varnode]:
    """Return a network that computes y = relu(2 x + 1) and its ends."""
    net = Network()
    x = net.make_input_node((4,), "float32", name="x")
    y = F.relu(x * 2 + 1)
    y.name = "y"
    net.add_output(y)
    return net, x, y


def run(net: Network, *arrays: object, **named: object) -> object:
    """Dump a network and run the file on every backend, which must agree."""
    stream = io.BytesIO()
    net.dump(stream)
    path = Path(run.folder) / "dumped.tym"  # type: ignore[attr-defined]
    path.write_bytes(stream.getvalue())
    results = [load(path, backend=name)(*arrays, **named) for name in BACKENDS]
    for other in results[1:]:
        a, b = (r if isinstance(r, tuple) else (r,) for r in (results[0], other))
        for left, right in zip(a, b, strict=True):
            np.testing.assert_allclose(left, right, **CLOSE)
    return results[0]


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path) -> None:
    run.folder = tmp_path  # type: ignore[attr-defined]


X = np.array([-3, -0.25, 0.5, 2], np.float32)


# What is there.


def test_operators_stand_after_what_they_read_and_have_the_eager_models_parts(lenet) -> None:
    net = Network.load(lenet.file)
    seen: set[int] = set()
    for opr in net.all_oprs:
        assert all(id(var) in seen for var in opr.inputs)
        seen |= {id(var) for var in opr.outputs}
        assert all(var.owner is opr and var.graph is net for var in opr.outputs)
    assert [opr.type for opr in net.all_oprs if opr.type.startswith(("conv", "mat"))] == [
        "conv2d", "conv2d", "matmul", "matmul",
    ]  # fmt: skip
    assert len(net.all_vars) == len(net.all_vars_dict) == len(net.all_oprs_dict)
    assert [var.name for var in net.dest_vars] == ["logits"]
    assert net.metadata["graph_modified"] is False


def test_variables_know_shape_dtype_name_owner(lenet) -> None:
    net = Network.load(lenet.file)
    data = net.get_var_by_name("data")
    assert (data.shape, data.dtype, data.name, data.ndim) == ((2, 1, 28, 28), "float32", "data", 4)
    assert data.owner is net.get_opr_by_name("data")
    assert [opr.type for opr in net.get_var_receive_oprs(data)] == ["conv2d"]
    assert net.get_var_by_name("logits") is net.dest_vars[0]


def test_weights_are_params_and_inputs_are_data_providers(lenet) -> None:
    net = Network.load(lenet.file)
    held = {opr.numpy().tobytes() for opr in net.params_filter}
    own = {p.numpy().tobytes() for p in lenet.module.parameters()}
    assert held == own
    assert [opr.name for opr in net.data_providers_filter] == ["data"]
    assert net.opr_filter.param_provider().as_list() == net.params_filter.as_list()
    assert net.opr_filter.data_provider().as_count() == 1


def test_filters_chain(lenet) -> None:
    net = Network.load(lenet.file)
    convs = net.opr_filter.type(O.ConvolutionForward)
    assert convs.as_count() == 2
    assert isinstance(convs, N.NodeFilterType)
    assert [o.type for o in net.opr_filter.type("max_pool2d")] == ["max_pool2d"] * 2
    assert net.opr_filter.type("ConvolutionForward").as_list() == convs.as_list()
    assert net.opr_filter.type(ty.registry.get_op("conv2d")).as_list() == convs.as_list()
    rest = net.opr_filter.not_type(O.ConvolutionForward)
    assert isinstance(rest, N.NodeFilterNotType)
    assert rest.as_count() == len(net.all_oprs) - 2
    assert convs.check_type(O.OpNode).as_list() == convs.as_list()
    assert isinstance(convs.check_type(O.OpNode), N.NodeFilterCheckType)
    with pytest.raises(GraphError, match="another kind"):
        net.opr_filter.check_type(O.ConvolutionForward).as_list()
    data = net.get_var_by_name("data")
    first = net.opr_filter.has_input(data)
    assert isinstance(first, N.NodeFilterHasInput)
    assert first.type("conv2d").as_unique() is convs.as_list()[0]
    assert first.type("relu").as_list() == []
    named = net.opr_filter.name("CONV2D*")
    assert isinstance(named, N.NodeFilterName)
    assert named.as_list() == convs.as_list()
    assert net.opr_filter.name("CONV2D*", ignorecase=False).as_count() == 0
    assert set(net.opr_filter.type("conv2d").as_dict()) == {o.name for o in convs}
    assert N.NodeFilterName.make_re("a?c").match("abc")
    assert not N.NodeFilterName.make_re("a?c").match("abbc")


def test_filter_of_all_dependencies_equals_get_dep_oprs(resnet) -> None:
    net = Network.load(resnet.file)
    pool = net.get_opr_by_type(O.AdaptivePoolingForward).outputs[0]
    deps = N.NodeFilter.make_all_deps(pool).as_list()
    assert deps == net.get_dep_oprs(pool)
    assert sum(opr.type == "conv2d" for opr in deps) == 8
    assert not any(opr.type == "matmul" for opr in deps)


def test_lookups_are_unique_or_lists(lenet) -> None:
    net = Network.load(lenet.file)
    assert len(net.get_opr_by_type("relu", unique=False)) == 3
    assert len(net.get_opr_by_name("relu*", unique=False)) == 3
    assert len(net.get_var_by_name("relu*", unique=False)) == 3
    with pytest.raises(GraphError, match="expected one node, got 3: relu"):
        net.get_opr_by_type("relu")
    with pytest.raises(GraphError, match="expected one node, got 2"):
        net.var_filter.name("conv2d*").as_unique()


@pytest.mark.parametrize("verb", ["get_opr_by_name", "get_var_by_name"])
def test_unknown_names_are_answered_with_those_known(lenet, verb: str) -> None:
    net = Network.load(lenet.file)
    with pytest.raises(GraphError, match="got 'nothing', expected one of .*data"):
        getattr(net, verb)("nothing")


def test_unknown_kinds_are_refused() -> None:
    net, _, _ = small()
    with pytest.raises(GraphError, match="unknown kind of operator, got 'conv9d', expected one of"):
        net.get_opr_by_type("conv9d")
    with pytest.raises(GraphError, match="must be a class"):
        net.opr_filter.type(7)


def test_conversions_between_operators_and_variables() -> None:
    _, x, y = small()
    assert N.as_varnode(y.owner) is y
    assert N.as_varnode([y]) is y
    assert N.as_oprnode(y) is y.owner
    assert N.as_oprnode(x.owner) is x.owner
    with pytest.raises(GraphError, match="one variable"):
        N.as_varnode([x, y])
    with pytest.raises(GraphError, match="one variable"):
        N.as_oprnode("x")


def test_symbolic_shape_is_kept_or_left(resnet) -> None:
    net = Network.load(resnet.file)
    data = net.get_var_by_name("data")
    before = N.set_symbolic_shape(True)
    try:
        kept = F.reshape(data, (data.shape[0], -1))
        N.set_symbolic_shape(False)
        fixed = F.reshape(data, (data.shape[0], -1))
        assert type(data.shape[0]) is int
    finally:
        N.set_symbolic_shape(before)
    assert ty.shapes.symbols_of(kept.shape) == {"batch"}
    assert not ty.shapes.symbols_of(fixed._spec.shape)


# Extending.


def test_variables_take_operators_functions_modules_and_arrays() -> None:
    net = Network()
    x = net.make_input_node((2, 3), "float32", name="x")
    linear = M.Linear(3, 4)
    table = np.arange(4, dtype=np.float32)
    y = F.concat([linear(x) + table, ty.Tensor(np.ones((2, 1), np.float32))], axis=1)
    z = 2 - y[:, 1:] ** 2
    z.name = "z"
    net.add_output(z)
    a = np.random.default_rng(0).standard_normal((2, 3)).astype(np.float32)
    full = a @ linear.weight.numpy().T + linear.bias.numpy() + table
    want = 2 - np.concatenate([full, np.ones((2, 1))], 1)[:, 1:] ** 2
    np.testing.assert_allclose(run(net, a), want, **CLOSE)


def test_an_eager_call_of_the_same_kind_is_not_confused_with_a_variable() -> None:
    net, x, _ = small()
    np.testing.assert_array_equal(F.relu(ty.Tensor(X)).numpy(), np.maximum(X, 0))
    made = F.relu(x)
    assert isinstance(made, O.VarNode)
    assert isinstance(ty.Tensor(X) + x, O.VarNode)
    np.testing.assert_array_equal((ty.Tensor(X) + ty.Tensor(X)).numpy(), X + X)
    assert isinstance(x + ty.Tensor(X), O.VarNode)


VERBS = {
    "split": (lambda x: F.split(x, 2, axis=1), [(2, 4)]),
    "topk": (lambda x: F.topk(x, 2, descending=True), [(2, 4)]),
    "interpolate": (lambda x: F.vision.interpolate(x, scale_factor=2), [(1, 2, 4, 4)]),
    "take": (lambda x, i: x[i], [(4, 3), np.array([0, 2], np.int32)]),
    "slices": (lambda x: x[1:, ::-1, None], [(4, 3)]),
    "where": (lambda x, y: F.where(x > 0, x, y), [(4, 3), (4, 3)]),
    "batch_norm": (M.BatchNorm2d(3).eval(), [(2, 3, 4, 4)]),
    "layer_norm": (M.LayerNorm((4,)).eval(), [(2, 3, 4)]),
    "embedding": (M.Embedding(5, 4), [np.array([0, 2], np.int32)]),
    "conv_transpose": (M.ConvTranspose2d(3, 4, 3, 2, 1), [(1, 3, 5, 5)]),
    "std": (lambda x: F.std(x, 1), [(2, 4)]),
    "cross_entropy": (F.nn.cross_entropy, [(2, 4), np.array([0, 2], np.int32)]),
    "arithmetic": (lambda x: 2 ** (-x) // 0.5 % 3 - abs(x), [(3, 4)]),
    "logic": (lambda x: (x >= 0) & ~(x < 1), [(3, 4)]),
    "einsum": (lambda x, y: F.einsum("ij,jk->ik", x, y), [(3, 4), (4, 2)]),
    "methods": (lambda x: x.transpose(1, 0).flatten().sum() + x.max().detach(), [(3, 4)]),
    "rows": (lambda x: list(x), [(2, 3)]),
}


@pytest.mark.parametrize("name", VERBS)
def test_verbs_on_variables_give_what_they_give_eagerly(name: str) -> None:
    verb, given = VERBS[name]
    rng = np.random.default_rng(0)
    arrays = [
        g if isinstance(g, np.ndarray) else rng.standard_normal(g).astype(np.float32) for g in given
    ]
    net = Network()
    made = verb(*(net.make_input_node(a.shape, a.dtype, f"in{i}") for i, a in enumerate(arrays)))
    want = verb(*map(ty.Tensor, arrays))
    made, want = (list(r) if isinstance(r, (tuple, list)) else [r] for r in (made, want))
    for index, var in enumerate(made):
        assert isinstance(var, O.VarNode)
        var.name = f"out{index}"
    net.add_output(*made)
    got = run(net, *arrays)
    got = got if isinstance(got, tuple) else (got,)
    assert len(got) == len(want)
    for left, right in zip(got, want, strict=True):
        np.testing.assert_allclose(left, right.numpy(), rtol=1e-4, atol=1e-5)


def test_variables_are_not_copied_by_accident() -> None:
    net, x, _ = small()
    for copying in (copy.copy, copy.deepcopy):
        with pytest.raises(GraphError, match="stands for itself only, got 'x'"):
            copying(x)
    other = copy.deepcopy(net)  # a whole network is one of its own
    assert [var.name for var in other.dest_vars] == [var.name for var in net.dest_vars]
    assert not set(other.all_vars) & set(net.all_vars)
    held = ty.Tensor(x)
    assert N.as_varnode(held) is x
    assert isinstance(F.relu(held), O.VarNode)
    assert x.detach() is x


def test_in_place_operators_give_new_variables() -> None:
    net, x, _ = small()
    y = x
    y += 1
    assert y is not x
    assert y.owner.type == "add"
    assert x.owner.type == "Host2DeviceCopy"
    with pytest.raises(GraphError, match="replace_vars"):
        x[0] = 1


def test_identity_decides_equality() -> None:
    _, x, y = small()
    assert x == x
    assert x != y
    assert x in [y, x]


def test_constants_can_be_computed_and_inputs_not() -> None:
    net, x, y = small()
    c = net.make_const(np.array([1, 2], np.float32), name="c")
    np.testing.assert_array_equal((c * 3 + 1).numpy(), [4, 7])
    assert net.make_const([1.5]).dtype == "float32"
    with pytest.raises(GraphError, match="depends on the input 'x'"):
        y.numpy()


def test_networks_do_not_mix() -> None:
    _, x, _ = small()
    other, y, _ = small()
    with pytest.raises(GraphError, match="another network"):
        x + y
    with pytest.raises(GraphError, match="another network"):
        other.add_output(x)


def test_inputs_are_checked() -> None:
    net, _, _ = small()
    with pytest.raises(AttrError, match="shape is not valid"):
        net.make_input_node((-1,), "float32")
    with pytest.raises(AttrError, match="device"):
        net.make_input_node((1,), "float32", device="gpu0")
    with pytest.raises(AttrError, match="device"):
        net.make_const(1.0, device="gpu0")


def test_a_dynamic_input_serves_every_size() -> None:
    net = Network()
    x = net.make_input_node(("n", 3), "float32", name="x")
    y = x * 2 + F.zeros_like(x) + 1
    y.name = "y"
    net.add_output(y)
    for n in (1, 5):
        a = np.full((n, 3), 4, np.float32)
        np.testing.assert_array_equal(run(net, a), np.full((n, 3), 9))


# Surgery.


@pytest.mark.parametrize("model", ["lenet", "resnet"])
def test_a_round_trip_computes_the_same(model: str, request) -> None:
    dumped = request.getfixturevalue(model)
    net = Network.load(dumped.file)
    np.testing.assert_allclose(run(net, dumped.x), dumped.y, **CLOSE)
    again = Network.load(Path(run.folder) / "dumped.tym")  # type: ignore[attr-defined]
    assert [o.type for o in again.all_oprs] == [o.type for o in net.all_oprs]


def test_add_and_remove_outputs(lenet) -> None:
    net = Network.load(lenet.file)
    logits = net.get_var_by_name("logits")
    prob = F.softmax(logits, axis=1)
    prob.name = "prob"
    features = net.get_opr_by_type("reshape").outputs[0]
    features.name = "features"
    net.add_output(prob, features)
    net.add_output(prob)
    got = run(net, lenet.x)
    np.testing.assert_allclose(got[0], lenet.y, **CLOSE)
    np.testing.assert_allclose(got[1], softmax(lenet.y), **CLOSE)
    assert got[2].shape == (2, 80)
    net.remove_output(logits, features)
    assert net.dest_vars == [prob]
    np.testing.assert_allclose(run(net, lenet.x), softmax(lenet.y), **CLOSE)
    with pytest.raises(GraphError, match="not an output, got 'logits', expected some of prob"):
        net.remove_output(logits)
    other = logits + 1
    other.name = "prob"
    with pytest.raises(GraphError, match="an output has the name already"):
        net.add_output(other)
    net.remove_output(prob)
    with pytest.raises(GraphError, match="no output"):
        net.dump(io.BytesIO())


def test_outspec_chooses_outputs_and_cuts_the_rest(resnet) -> None:
    net = Network.load(resnet.file, outspec=["adaptive_avg_pool2d_0"])
    assert not any(opr.type == "matmul" for opr in net.all_oprs)
    x = F.relu(resnet.module.stem(ty.Tensor(resnet.x)))
    want = resnet.module.blocks(x).numpy().mean((2, 3), keepdims=True)
    np.testing.assert_allclose(run(net, resnet.x), want, **CLOSE)
    with pytest.raises(GraphError, match="got 'x', expected one of data"):
        Network.load(resnet.file, outspec=["x"])


def test_replace_vars_puts_preprocessing_before_the_input(lenet) -> None:
    net = Network.load(lenet.file)
    data = net.get_var_by_name("data")
    image = net.make_input_node((2, 28, 28, 1), "uint8", name="image")
    net.replace_vars({data: F.transpose(image.astype("float32") / 255 - 0.5, (0, 3, 1, 2))})
    raw = np.random.default_rng(1).integers(0, 256, (2, 28, 28, 1), dtype=np.uint8)
    want = lenet.eager(raw.transpose(0, 3, 1, 2).astype(np.float32) / np.float32(255) - 0.5)
    np.testing.assert_allclose(run(net, image=raw), want, rtol=1e-4, atol=1e-5)
    assert [
        opr.name for opr in net.get_dep_oprs(net.dest_vars[0]) if opr.type == "Host2DeviceCopy"
    ] == ["image"]


def test_an_input_is_replaced_by_another_of_its_name() -> None:
    net, x, y = small()
    other = net.make_input_node((4,), "int32", name="x")
    net.replace_vars({x: other.astype("float32")})
    assert net.get_var_by_name("x") is other
    assert [opr.outputs[0] for opr in net.data_providers_filter] == [other]
    ints = np.array([-3, -1, 0, 2], np.int32)
    np.testing.assert_array_equal(run(net, x=ints), np.maximum(2 * ints + 1, 0))
    twin = net.make_input_node((4,), "float32", name="x")
    z = twin + y
    net.add_output(z)
    with pytest.raises(GraphError, match="two inputs have one name, got x"):
        net.dump(io.BytesIO())


def test_replace_vars_inserts_behind_a_variable_and_keeps_outputs_names() -> None:
    net, x, y = small()
    net.replace_vars({y: y + 10, x: x * 3})
    assert [var.name for var in net.dest_vars] == ["y"]
    np.testing.assert_allclose(run(net, X), np.maximum(2 * 3 * X + 1, 0) + 10)


def test_replace_vars_can_swap_two_inputs() -> None:
    net = Network()
    a = net.make_input_node((2,), "float32", name="a")
    b = net.make_input_node((2,), "float32", name="b")
    y = a - b
    y.name = "y"
    net.add_output(y)
    net.replace_vars({a: b, b: a})
    one, two = np.array([1, 2], np.float32), np.array([5, 9], np.float32)
    np.testing.assert_array_equal(run(net, a=one, b=two), two - one)


def test_replace_vars_follows_new_shapes_downstream() -> None:
    net, x, y = small()
    wide = net.make_input_node((2, 4), "float32", name="wide")
    net.replace_vars({x: wide})
    assert net.dest_vars[0].shape == (2, 4)
    a = np.stack([X, -X])
    np.testing.assert_allclose(run(net, a), np.maximum(2 * a + 1, 0))


def test_a_refused_replacement_changes_nothing(lenet) -> None:
    net = Network.load(lenet.file)
    data = net.get_var_by_name("data")
    bad = net.make_input_node((2, 3, 28, 28), "float32", name="bad")
    with pytest.raises(GraphError, match="replace_vars: 'conv2d_0' refuses: conv2d"):
        net.replace_vars({data: bad})
    np.testing.assert_allclose(run(net, lenet.x), lenet.y, **CLOSE)


def test_a_replacement_in_a_circle_is_refused() -> None:
    net = Network()
    a = net.make_input_node((2,), "float32", name="a")
    b = net.make_input_node((2,), "float32", name="b")
    p, q = -b, F.abs(a)
    y = p + q
    net.add_output(y)
    with pytest.raises(GraphError, match="in a circle"):
        net.replace_vars({a: p, b: q})
    assert (p.owner.inputs, q.owner.inputs) == ([b], [a])


def test_replace_oprs_replaces_every_relu(lenet) -> None:
    net = Network.load(lenet.file)
    relus = net.get_opr_by_type("relu", unique=False)
    net.replace_oprs({opr: F.maximum(opr.inputs[0], -0.5).owner for opr in relus})
    m = lenet.module

    def clip(x: ty.Tensor) -> ty.Tensor:
        return F.maximum(x, -0.5)

    x = F.max_pool2d(clip(m.conv1(ty.Tensor(lenet.x))), 2)
    x = F.flatten(F.max_pool2d(clip(m.conv2(x)), 2), 1)
    want = m.fc2(clip(m.fc1(x))).numpy()
    np.testing.assert_allclose(run(net, lenet.x), want, **CLOSE)
    values = F.topk(net.dest_vars[0], 2)
    assert len(values[0].owner.outputs) == 2
    with pytest.raises(GraphError, match="another number of outputs, got 2, expected 1"):
        net.replace_oprs({net.dest_vars[0].owner: values[0].owner})


def test_make_const_replaces_a_weight(lenet) -> None:
    net = Network.load(lenet.file)
    bias = net.dest_vars[0].owner.inputs[1]
    net.replace_vars({bias: net.make_const(np.full(10, 5, np.float32), name="fives")})
    want = lenet.y - lenet.module.fc2.bias.numpy() + 5
    np.testing.assert_allclose(run(net, lenet.x), want, **CLOSE)


def test_a_params_value_can_be_set(lenet) -> None:
    net = Network.load(lenet.file)
    bias = net.dest_vars[0].owner.inputs[1].owner
    bias.set_value(np.zeros(10))
    want = lenet.y - lenet.module.fc2.bias.numpy()
    np.testing.assert_allclose(run(net, lenet.x), want, **CLOSE)
    with pytest.raises(GraphError, match="another shape"):
        bias.set_value(np.zeros(3))


def test_dependence_that_no_output_has_is_kept_by_add_dep_oprs() -> None:
    net, x, _ = small()
    z = x - 4
    assert z.owner not in net.all_oprs
    added = net.add_dep_oprs(z)
    assert z.owner in added
    assert z.owner in net.all_oprs
    assert net.get_opr_by_type("sub") is z.owner


def test_names_of_operators_are_modified(lenet) -> None:
    net = Network.load(lenet.file)
    names = [opr.name for opr in net.all_oprs]
    net.modify_opr_names("left")
    assert [opr.name for opr in net.all_oprs] == [f"left.{name}" for name in names]
    net.modify_opr_names(lambda name: name.removeprefix("left."))
    assert [opr.name for opr in net.all_oprs] == names
    with pytest.raises(GraphError, match="different strings"):
        net.modify_opr_names(lambda name: "same")
    with pytest.raises(GraphError, match="string or function"):
        net.modify_opr_names(3)


@pytest.mark.parametrize("model", ["lenet", "resnet"])
@pytest.mark.parametrize("batch", [1, 5])
def test_batch_size_is_reset(model: str, batch: int, request) -> None:
    dumped = request.getfixturevalue(model)
    net = Network.load(dumped.file)
    net.reset_batch_size(batch)
    assert net.dest_vars[0].shape[0] == batch
    x = np.repeat(dumped.x, 3, axis=0)[:batch]
    np.testing.assert_allclose(run(net, x), dumped.eager(x), **CLOSE)
    with pytest.raises(ShapeError):
        run(net, np.repeat(x, 2, axis=0))


def test_batch_size_leaves_the_blacklist_and_refuses_what_differs() -> None:
    net = Network()
    x = net.make_input_node((2, 3), "float32", name="x")
    w = net.make_input_node((3,), "float32", name="w")
    y = x * w
    y.name = "y"
    net.add_output(y)
    with pytest.raises(GraphError, match="one batch size"):
        net.reset_batch_size(4)
    with pytest.raises(GraphError, match="blacklist names no input, got v, expected some of x, w"):
        net.reset_batch_size(4, blacklist=["v"])
    with pytest.raises(GraphError, match="positive"):
        net.reset_batch_size(0, blacklist=["w"])
    net.reset_batch_size(4, blacklist=["w"])
    empty = Network()
    empty.add_output(empty.make_input_node((0, 2), "float32", name="x"))
    with pytest.raises(GraphError, match="batch of 0"):
        empty.reset_batch_size(4)
    assert (x.shape, w.shape, y.shape) == ((4, 3), (3,), (4, 3))


def test_batch_size_refuses_what_holds_the_old_one() -> None:
    net = Network()
    x = net.make_input_node((2, 3), "float32", name="x")
    y = x + np.ones((2, 3), np.float32)
    net.add_output(y)
    with pytest.raises(GraphError, match="reset_batch_size: 'add_0' refuses"):
        net.reset_batch_size(4)
    assert x.shape == (2, 3)


# Writing.


def test_optimisation_fuses_and_keeps_values_and_names(resnet) -> None:
    net = Network.load(resnet.file)
    [better] = net.optimize_for_inference(
        net.dest_vars, enable_fuse_conv_bias_nonlinearity=True, enable_nchw44=True
    )
    assert better.name == "logits"
    kinds = [opr.type for opr in net.get_dep_oprs(better)]
    assert "conv2d_fused" in kinds
    assert "batch_norm" not in kinds
    stream = io.BytesIO()
    net.dump(stream, enable_fuse_conv_bias_with_z=True)
    again = Network.load(io.BytesIO(stream.getvalue()))
    assert again.metadata["optimized_for_inference"] is True
    assert again.opr_filter.type(O.ConvBiasForward).as_count() == 8
    np.testing.assert_allclose(run(again, resnet.x), resnet.y, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("option", ["enable_ioc16", "enable_chwn4", "enable_anything"])
def test_options_that_are_not_offered_are_refused_by_name(option: str) -> None:
    net, _, _ = small()
    with pytest.raises(AttrError, match=f"not offered, got {option}"):
        net.dump(io.BytesIO(), **{option: True})
    with pytest.raises(AttrError, match=f"not offered, got {option}"):
        net.optimize_for_inference(net.dest_vars, **{option: True})


@pytest.mark.parametrize(
    ("option", "value"),
    [("append", True), ("dump_format", "FBS"), ("compat_older_version", "8.14"),
     ("user_info", object())],
)  # fmt: skip
def test_dump_refuses_what_the_format_lacks(option: str, value: object) -> None:
    net, _, _ = small()
    with pytest.raises(AttrError, match=option):
        net.dump(io.BytesIO(), **{option: value})


def test_dump_keeps_the_names_that_are_asked_for(lenet, tmp_path: Path) -> None:
    net = Network.load(lenet.file)
    net.modify_opr_names(lambda name: name if name == "data" else f"net/{name}")
    net.get_opr_by_name("net/relu_0").outputs[0].name = "hidden"
    file = tmp_path / "named.tym"
    result = net.dump(
        file, keep_var_name=2, keep_opr_name=True, keep_param_name=True, user_info={"v": [1]}
    )
    assert (result.inputs, result.outputs) == (["data"], ["logits"])
    assert result.tot_bytes == file.stat().st_size
    assert result.tensor_value_bytes == sum(p.numpy().nbytes for p in lenet.module.parameters())
    again = Network.load(file)
    assert [o.name for o in again.all_oprs] == [o.name for o in net.all_oprs]
    assert again.get_var_by_name("hidden").owner.type == "relu"
    assert again.metadata["user_info"] == {"v": [1]}
    fresh = F.relu(again.get_var_by_name("hidden")).owner.name
    assert fresh not in {o.name for o in again.all_oprs}
    net.dump(file, keep_var_name=0, enable_metadata=False)
    bare = Network.load(file)
    assert [v.name for v in bare.dest_vars] == ["output_0"]
    assert {o.name for o in bare.params_filter} == {f"param_{i}" for i in range(8)}
    assert bare.metadata["is_valid"] is False


def test_priorities_order_operators_and_are_kept() -> None:
    net = Network()
    x = net.make_input_node((2,), "float32", name="x")
    first, second = F.exp(x), F.abs(x)
    first.owner.priority, second.owner.priority = 2, 1
    y = first + second
    net.add_output(y)
    stream = io.BytesIO()
    net.dump(stream, keep_opr_priority=True)
    again = Network.load(io.BytesIO(stream.getvalue()))
    ranks = {o.type: o.priority for o in again.all_oprs if o.priority}
    assert ranks == {"exp": 2, "abs": 1}
    nodes = json.loads(json.dumps(_graph_of(stream)))["nodes"]
    assert [n["op"] for n in nodes] == ["abs", "exp", "add"]


def _graph_of(stream: io.BytesIO) -> object:
    path = Path(run.folder) / "priority.tym"  # type: ignore[attr-defined]
    path.write_bytes(stream.getvalue())
    return read_container(path).graph


def test_what_a_model_needs_is_written_beside_it(tmp_path: Path) -> None:
    net, _, _ = small()
    info = tmp_path / "needs.json"
    net.dump(io.BytesIO(), strip_info_file=info)
    net.dump(io.BytesIO(), strip_info_file=info, append_json=True)
    lines = info.read_text().splitlines()
    assert len(lines) == 2
    assert json.loads(lines[0]) == {
        "opr_types": ["add", "full", "mul", "relu"], "dtypes": ["float32"],
    }  # fmt: skip


def test_an_input_may_be_an_output_and_a_value_two_of_them() -> None:
    net, x, y = small()
    twin = F.copy(y)
    twin.name = "twin"
    net.add_output(x, twin)
    got = run(net, X)
    np.testing.assert_array_equal(got[1], X)
    np.testing.assert_array_equal(got[0], got[2])
    again = Network.load(Path(run.folder) / "dumped.tym")  # type: ignore[attr-defined]
    assert [v.name for v in again.dest_vars] == ["y", "x", "twin"]
    np.testing.assert_array_equal(run(again, X)[1], X)


def test_outputs_of_one_name_are_refused_at_dump() -> None:
    net, x, y = small()
    z = x + 3
    net.add_output(z)
    z.name = "y"
    with pytest.raises(GraphError, match="two outputs have one name, got y"):
        net.dump(io.BytesIO())


def test_damaged_notes_are_refused(tmp_path: Path) -> None:
    net, _, _ = small()
    file = tmp_path / "a.tym"
    net.dump(file)
    container = read_container(file)
    tensors = {name: container.tensor(name) for name in container.names()}
    for notes in ("[", '{"oprs": [1]}', '{"oprs": 3}', '{"priorities": ["x"]}', "[]"):
        write_container(file, tensors, container.graph, {"tianyuan.network": notes})
        with pytest.raises(ModelFormatError, match="malformed"):
            Network.load(file)
