"""What networks hold and cost, against counting by hand."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import tianyuan as ty
import tianyuan.functional as F
from tianyuan import module as M
from tianyuan.errors import AttrError
from tianyuan.utils import module_stats as stats


def zeros(*shape: int) -> ty.Tensor:
    return ty.Tensor(np.zeros(shape, np.float32))


@pytest.fixture
def fields() -> Iterator[None]:
    stats.enable_receptive_field()
    yield
    stats.disable_receptive_field()


class Net(M.Module):
    """Two convolutions with a residual of functions between them, then a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = M.Conv2d(3, 8, 3, padding=1, bias=False)
        self.bn = M.BatchNorm2d(8)
        self.pool = M.MaxPool2d(2)
        self.conv2 = M.Conv2d(8, 8, 3, padding=1, groups=2)
        self.fc = M.Linear(8 * 4 * 4, 10)

    def forward(self, x: ty.Tensor) -> ty.Tensor:
        x = F.relu(self.bn(self.conv1(x)))
        x = self.pool(x)
        x = F.relu(self.conv2(x)) + x
        return self.fc(F.flatten(x, 1))


CONV1 = 8 * 8 * 8 * 27
BN = 8 * 8 * 8 * 7
POOL = 8 * 4 * 4 * 4
CONV2 = 8 * 4 * 4 * (4 * 9 + 1)
FC = 10 * (128 + 1)
PARAMS = 8 * 27 + 8 + 8 + 8 * 4 * 9 + 8 + 1280 + 10


def test_totals_and_details_of_a_network() -> None:
    net = Net()
    total, details = stats.module_stats(net, input_shapes=(1, 3, 8, 8), logging_to_stdout=False)
    assert {e["name"]: e["flops_num"] for e in details.flops} == {
        "conv1": CONV1, "bn": BN, "pool": POOL, "conv2": CONV2, "fc": FC,
    }  # fmt: skip
    assert total.flops == CONV1 + BN + POOL + CONV2 + FC
    assert (total.param_dims, total.param_size) == (PARAMS, 4 * PARAMS)
    acts = [8 * 64, 8 * 64, 8 * 16, 8 * 16, 10]
    assert [e["act_dim"] for e in details.activations] == acts
    assert (total.act_dims, total.act_size) == (sum(acts), 4 * sum(acts))
    assert [e["name"] for e in details.params] == [
        "bn-b", "bn-w", "conv1-w", "conv2-b", "conv2-w", "fc-b", "fc-w",
    ]  # fmt: skip
    assert sum(e["ratio"] for e in details.flops) == pytest.approx(1)
    assert details.flops[0]["input_shapes"] == [(1, 3, 8, 8)]
    assert details.flops[0]["output_shapes"] == [(1, 8, 8, 8)]
    assert details.flops[0]["class_name"] == "Conv2d"
    assert net.training
    assert all(not m._forward_hooks for m in net.modules())


def test_what_is_not_asked_for_is_left_out() -> None:
    total, details = stats.module_stats(
        Net(), np.zeros((2, 3, 8, 8), np.float32), cal_params=False, cal_flops=False,
        logging_to_stdout=False,
    )  # fmt: skip
    assert (total.param_size, total.flops, details.params, details.flops) == (0, 0, [], [])
    assert total.act_dims == 2 * (8 * 64 * 2 + 8 * 16 * 2 + 10)
    total, _ = stats.module_stats(
        Net(), input_shapes=[(1, 3, 8, 8)], cal_activations=False, logging_to_stdout=False
    )
    assert (total.act_dims, total.flops) == (0, CONV1 + BN + POOL + CONV2 + FC)


def test_inputs_by_name_and_several() -> None:
    class Sum(M.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = M.Linear(2, 3), M.Linear(4, 3)

        def forward(self, x: ty.Tensor, y: ty.Tensor) -> ty.Tensor:
            return self.a(x) + self.b(y)

    for options in (
        {"inputs": {"y": zeros(1, 4), "x": zeros(1, 2)}},
        {"inputs": [zeros(1, 2), np.zeros((1, 4), np.float32)]},
        {"input_shapes": [(1, 2), (1, 4)]},
    ):
        total, _ = stats.module_stats(Sum(), **options, logging_to_stdout=False)
        assert total.flops == 3 * 3 + 3 * 5
    with pytest.raises(AttrError, match="expected inputs or input_shapes"):
        stats.module_stats(Sum())


def flops(module: M.Module, *shape: int) -> int:
    found = stats.get_op_stats(module, (zeros(*shape),), (module(zeros(*shape)),))
    assert found is not None
    return found["flops_num"]


def test_operations_of_each_kind() -> None:
    x = zeros(2, 4, 9, 7)
    assert flops(M.Conv2d(4, 6, (3, 1), stride=2, groups=2), *x.shape) == 2 * 6 * 4 * 4 * (6 + 1)
    assert flops(M.Conv1d(4, 6, 3, bias=False), 2, 4, 9) == 2 * 6 * 7 * 12
    assert flops(M.Conv3d(1, 2, 2, bias=False), 1, 1, 3, 3, 3) == 2 * 8 * 8
    up = M.ConvTranspose2d(4, 6, 2, stride=2)
    assert flops(up, *x.shape) == 2 * 4 * 63 * 6 * 4 + 2 * 6 * 18 * 14
    for norm in (M.BatchNorm2d(4), M.GroupNorm(2, 4), M.InstanceNorm(4)):
        assert flops(norm.eval(), *x.shape) == 7 * x.size
    assert flops(M.LayerNorm(7), *x.shape) == 7 * x.size
    assert flops(M.AvgPool2d((3, 2)), *x.shape) == 2 * 4 * 3 * 3 * 6
    assert flops(M.MaxPool2d(2, stride=1), *x.shape) == 2 * 4 * 8 * 6 * 4
    # 9 into 4: windows of 9 - 3 * 2 = 3; 7 into 2: windows of 7 - 3 = 4.
    assert flops(M.AdaptiveAvgPool2d((4, 2)), *x.shape) == 2 * 4 * 4 * 2 * 3 * 4
    assert flops(M.Linear(5, 3, bias=False), 2, 5) == 30
    assert flops(M.BatchMatMulActivation(2, 5, 3), 2, 5, 4) == 2 * 3 * 4 * 6
    assert flops(M.ConvRelu2d(4, 6, 1), *x.shape) == 2 * 6 * 63 * 5  # as its base
    assert stats.get_op_stats(M.ReLU(), (x,), (x,)) is None
    made = (up(x),)
    assert stats.flops_convNdTranspose(up, (x,), made) == flops(up, *x.shape)
    assert stats.flops_norm(M.LayerNorm(7), (x,), (x,)) == 7 * x.size
    assert stats.flops_pool(M.AvgPool2d(2), (x,), (zeros(1, 1, 1, 1),)) == 4
    assert stats.flops_adaptivePool(M.AdaptiveAvgPool2d(1), (x,), (zeros(2, 4, 1, 1),)) == x.size
    assert stats.flops_linear(M.Linear(5, 3), (), (zeros(2, 3),)) == 36
    batched = M.BatchMatMulActivation(2, 5, 3, bias=False)
    assert stats.flops_batchmatmul(batched, (), (zeros(2, 3, 4),)) == 120
    assert stats.flops_convNd(M.Conv2d(1, 1, 3), (), (zeros(1, 1, 2, 2),)) == 40


def test_rules_of_the_user() -> None:
    class Twice(M.Module):
        def forward(self, x: ty.Tensor) -> ty.Tensor:
            return x + x

    class Plain(M.Module):
        def forward(self, x: ty.Tensor) -> ty.Tensor:
            return F.exp(x)

    @stats.register_flops(Twice)
    def flops_twice(module: M.Module, inputs: object, outputs: list[ty.Tensor]) -> int:
        return outputs[0].size

    stats.register_hook_module(Plain)
    net = M.Sequential(Twice(), Plain())
    total, details = stats.module_stats(net, input_shapes=(2, 3), logging_to_stdout=False)
    assert total.flops == 6
    assert [e["class_name"] for e in details.activations] == ["Twice", "Plain"]


def test_receptive_fields(fields: None) -> None:
    net = Net()
    _, details = stats.module_stats(net, input_shapes=(1, 3, 8, 8), logging_to_stdout=False)
    found = {
        e["name"]: (e["receptive_field"], e["stride"])
        for e in details.flops
        if "receptive_field" in e
    }
    # conv1 3; pool 3 + 1 * 1 = 4, stride 2; conv2 behind functions 4 + 2 * 2 = 8.
    assert found == {
        "conv1": ((3, 3), (1, 1)),
        "pool": ((4, 4), (2, 2)),
        "conv2": ((8, 8), (2, 2)),
    }
    dilated = M.Sequential(M.Conv2d(1, 1, (3, 1), stride=(1, 2), dilation=2), M.AvgPool2d(2))
    _, details = stats.module_stats(dilated, input_shapes=(1, 1, 9, 9), logging_to_stdout=False)
    assert details.flops[-1]["receptive_field"] == (6, 3)
    assert details.flops[-1]["stride"] == (2, 4)


def test_own_receptive_field(fields: None) -> None:
    class Shift(M.Module):
        def forward(self, x: ty.Tensor) -> ty.Tensor:
            return x[:, :, 1:, 1:] + x[:, :, :-1, :-1]

    @stats.register_receptive_field(Shift)
    def field(module: M.Module, inputs: object, outputs: object) -> object:
        return tuple(r + s for r, s in zip(module._rf, module._stride, strict=True)), module._stride

    net = M.Sequential(M.MaxPool2d(2), Shift())
    _, details = stats.module_stats(net, input_shapes=(1, 1, 8, 8), logging_to_stdout=False)
    assert details.flops[-1]["receptive_field"] == (4, 4)
    module = Shift()
    stats.preprocess_receptive_field(module, (zeros(1),), ())
    assert (module._rf, module._stride) == ((1, 1), (1, 1))


def test_entries_of_arrays() -> None:
    tensor = ty.Tensor(np.array([[1, 2], [3, 6]], np.float32))
    entry = stats.get_param_stats(tensor)
    assert (entry["shape"], entry["nbits"], entry["size"], entry["param_dim"]) == (
        (2, 2),
        32,
        16,
        4,
    )
    assert (entry["mean"], entry["std"]) == ("3", f"{np.std([1, 2, 3, 6]):.3g}")
    entry = stats.get_activation_stats(tensor.astype("float16"), has_input=True)
    assert (entry["act_dim"], entry["nbits"], entry["size"], entry["inputs"]) == (4, 16, 8, [])


def test_units() -> None:
    assert stats.sizeof_fmt(1023) == "1023.000 B"
    assert stats.sizeof_fmt(1024**2 * 1.5) == "1.500 MiB"
    assert stats.sizeof_fmt(999, suffix="") == "999.000 "
    assert stats.sizeof_fmt(2.5e9, suffix="OPs") == "2.500 GOPs"


def test_sums_and_bars() -> None:
    total, entries = stats.sum_op_stats([{"flops_num": 1000}, {"flops_num": 3000}], 8)
    assert total == 4000
    assert [e["flops"] for e in entries] == ["1.000 KOPs", "3.000 KOPs"]
    assert [e["flops_cum"] for e in entries] == ["1.000 KOPs", "4.000 KOPs"]
    assert [e["bar"] for e in entries] == ["##", "######"]
    dims, size, entries = stats.sum_param_stats([{"param_dim": 2, "size": 8}])
    assert (dims, size, entries[0]["size_cum"]) == (2, 8, "8.000 B")
    dims, size, entries = stats.sum_activations_stats([{"act_dim": 2, "size": 8}] * 1)
    assert (dims, size, entries[0]["percentage"]) == (2, 8, "100.00%")
    assert stats.sum_op_stats([]) == (0, [])


def test_tables(capsys: pytest.CaptureFixture[str]) -> None:
    assert stats.dict2table([{"a": 1, "c": 2}], ["a", "b"]) == [["a", "b"], [1, ""]]
    total, details = stats.module_stats(Net(), input_shapes=(1, 3, 8, 8))
    text = capsys.readouterr().out
    for word in ("conv2-w", "parameters", "operations", "activations", "total_flops"):
        assert word in text
    assert stats.sizeof_fmt(total.flops, suffix="OPs") in text
    stats.print_param_stats(details.params)
    stats.print_op_stats(details.flops)
    stats.print_activations_stats(details.activations, has_input=True)
    stats.print_summary(answer=42)
    text = capsys.readouterr().out
    for word in ("fc-b", "flops_cum", "inputs", "answer", "42"):
        assert word in text
