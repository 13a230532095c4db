"""cgtools: walking over operators, replacing without changing the network, running a file."""

from __future__ import annotations

import io

import numpy as np
import pytest
import tianyuan as ty
import tianyuan.functional as F
from tianyuan.errors import AttrError, GraphError
from tianyuan.utils import comp_graph_tools as cg
from tianyuan.utils.network import Network


def test_cgtools_is_the_module() -> None:
    assert ty.cgtools is cg
    assert "cgtools" in dir(ty)


def test_dependences_by_type(lenet) -> None:
    net = Network.load(lenet.file)
    [logits] = net.dest_vars
    assert [v.name for v in cg.get_dep_vars(logits, "Host2DeviceCopy")] == ["data"]
    assert len(cg.get_dep_vars([logits], ["conv2d", "matmul"])) == 4
    assert len(cg.get_dep_vars(logits)) == len(net.all_vars)
    with pytest.raises(GraphError, match="unknown kind"):
        cg.get_dep_vars(logits, "Nothing")
    assert [v.name for v in cg.get_owner_opr_inputs(logits)][1] == "fc2.bias"
    assert cg.get_owner_opr_type(logits) == "add"
    assert cg.get_opr_type(net.get_opr_by_name("conv2d_0")) == "conv2d"
    with pytest.raises(GraphError, match="expected an operator"):
        cg.get_opr_type(logits)


def test_sequence_and_traversal_agree_with_the_edges(resnet) -> None:
    net = Network.load(resnet.file)
    sequence = cg.get_oprs_seq(net.dest_vars, prune_reshape=True)
    assert sequence == net.get_dep_oprs(net.dest_vars[0])
    map_oprs, map_vars, var2oprs, opr2receivers, indegree2opr, opr2indegree = cg.graph_traversal(
        net.dest_vars
    )
    assert list(map_oprs.values()) == sequence
    assert set(map_vars) == {v.id for opr in sequence for v in opr.outputs}
    for var_id, readers in var2oprs.items():
        assert all(map_oprs[opr].inputs[index].id == var_id for opr, index in readers)
    assert sum(map(len, var2oprs.values())) == sum(len(o.inputs) for o in sequence)
    assert sum(map(len, opr2receivers.values())) == sum(opr2indegree.values())
    assert all(opr2indegree[i] == n for n, ids in indegree2opr.items() for i in ids)


def test_constants_of_surgery_are_pruned() -> None:
    net = Network()
    x = net.make_input_node((2,), "float32", name="x")
    y = x + net.make_const([1.0, 2.0], name="c")
    assert [o.name for o in cg.get_oprs_seq([y])] == ["x", y.owner.name]
    assert "c" in [o.name for o in cg.get_oprs_seq([y], prune_immtensor=False)]


def values(net: Network, var: object, x: np.ndarray) -> np.ndarray:
    """Return a variable's value for the only input."""
    net.remove_output(*net.dest_vars)
    net.add_output(var)
    stream = io.BytesIO()
    net.dump(stream)
    [found] = cg.GraphInference(io.BytesIO(stream.getvalue())).run(x).values()
    return found


def test_replacement_gives_new_variables_and_leaves_the_network(lenet) -> None:
    net = Network.load(lenet.file)
    [logits] = net.dest_vars
    count = len(net.all_oprs)
    [scaled] = cg.replace_vars([logits], {logits.owner.inputs[0]: logits.owner.inputs[0] * 2})
    relus = net.get_opr_by_type("relu", unique=False)
    [linear] = cg.replace_oprs([logits], {opr: (opr.inputs[0] + 0).owner for opr in relus})
    assert len(net.all_oprs) == count
    bias = lenet.module.fc2.bias.numpy()
    np.testing.assert_allclose(
        values(net, scaled, lenet.x), (lenet.y - bias) * 2 + bias, rtol=1e-5, atol=1e-5
    )
    m, x = lenet.module, ty.Tensor(lenet.x)
    x = F.max_pool2d(m.conv2(F.max_pool2d(m.conv1(x), 2)), 2)
    want = m.fc2(m.fc1(F.flatten(x, 1))).numpy()
    np.testing.assert_allclose(values(net, linear, lenet.x), want, rtol=1e-4, atol=1e-5)


def test_replaced_operators_must_have_as_many_outputs(lenet) -> None:
    net = Network.load(lenet.file)
    [logits] = net.dest_vars
    with pytest.raises(GraphError, match="another number of outputs"):
        cg.replace_oprs([logits], {logits.owner: F.topk(logits, 2)[0].owner})


def test_priorities_are_ids_where_there_are_none(lenet) -> None:
    net = Network.load(lenet.file)
    net.all_oprs[0].priority = -5
    cg.set_priority_to_id(net.dest_vars)
    assert net.all_oprs[0].priority == -5
    assert all(opr.priority == opr.id for opr in net.all_oprs[1:])


def test_inference_by_position_and_name(lenet) -> None:
    for options in ({}, {"optimize_for_inference": True, "enable_fuse_conv_bias_with_z": True}):
        engine = cg.GraphInference(lenet.file, **options)
        for found in (engine.run(lenet.x), engine.run(inp_dict={"data": lenet.x})):
            assert list(found) == ["logits"]
            np.testing.assert_allclose(found["logits"], lenet.y, rtol=1e-4, atol=1e-5)
    with pytest.raises(TypeError, match="unknown input, got 'image'"):
        engine.run(inp_dict={"image": lenet.x})
    with pytest.raises(AttrError, match="enable_nchw64"):
        cg.GraphInference(lenet.file, optimize_for_inference=True, enable_nchw64=True)


def test_inference_of_chosen_outputs_with_a_profile(lenet) -> None:
    engine = cg.GraphInference(lenet.file, outputs=["relu_0"], profiling=True)
    with pytest.raises(GraphError, match="nothing was measured"):
        engine.get_profile()
    want = F.relu(lenet.module.conv1(ty.Tensor(lenet.x))).numpy()
    np.testing.assert_allclose(engine.run(lenet.x)["relu_0"], want, rtol=1e-5, atol=1e-6)
    assert all(name and seconds >= 0 for name, seconds in engine.get_profile())
    with pytest.raises(GraphError, match="no variable has the name"):
        cg.GraphInference(lenet.file, outputs=["nothing"])
