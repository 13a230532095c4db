"""Every option of trace and dump does what it says, or is refused by name."""

from __future__ import annotations

import io
import json
import warnings

import numpy as np
import pytest
import tianyuan as ty
import tianyuan.functional as F
import tianyuan.module as M
import tianyuan.optimizer as optim
from tianyuan.autodiff import GradManager
from tianyuan.errors import AttrError, TraceError
from tianyuan.jit import (
    DTRConfig,
    GraphOptimizationConfig,
    SublinearMemoryConfig,
    exclude_from_trace,
    is_tracing,
    load,
    trace,
)
from tianyuan.utils.network import Network


class Deep(M.Module):
    def __init__(self, layers: int = 12) -> None:
        super().__init__()
        self.convs = [M.Conv2d(4, 4, 3, padding=1) for _ in range(layers)]
        self.norms = [M.BatchNorm2d(4) for _ in range(layers)]

    def forward(self, x: ty.Tensor) -> ty.Tensor:
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = x + F.tanh(norm(conv(x)))
        return (x * x).mean()


def trained(steps: int = 3, **options: object) -> tuple[list[float], list[np.ndarray], int, int]:
    """Return losses, all tensors, bytes of the arena and count of steps of a training program."""
    net = Deep()
    for index, parameter in enumerate(net.parameters()):
        values = np.random.default_rng(index).standard_normal(parameter.shape)
        parameter[...] = ty.Tensor(values * 0.3)
    gm, opt = GradManager().attach(net.parameters()), optim.SGD(net.parameters(), lr=0.1)

    @trace(**options)
    def step(x: ty.Tensor) -> ty.Tensor:
        opt.clear_grad()
        with gm:
            loss = net(x)
            gm.backward(loss)
        opt.step()
        return loss

    rng = np.random.default_rng(0)
    with ty.use_backend("numpy"):
        losses = [
            step(ty.Tensor(rng.standard_normal((2, 4, 12, 12)).astype("f"))).item()
            for _ in range(steps)
        ]
    report = step.explain()
    return losses, [t.numpy() for t in net.tensors()], report.arena_size, len(report.steps)


@pytest.fixture(scope="module")
def plain() -> tuple:
    return trained()


@pytest.mark.parametrize(
    "options",
    [
        {"sublinear_memory_config": SublinearMemoryConfig()},
        {"dtr_config": DTRConfig(evictee_minimum_size=1)},
        {"sublinear_memory_config": SublinearMemoryConfig(thresh_nr_try=3)},
    ],
    ids=["sublinear", "dtr", "few tries"],
)
def test_less_memory_and_the_same_bits(options: dict, plain: tuple) -> None:
    losses, tensors, arena, steps = trained(**options)
    assert arena < 0.5 * plain[2]
    assert steps > plain[3]
    assert losses == plain[0]
    for mine, theirs in zip(tensors, plain[1], strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_no_more_is_computed_twice_than_is_needed(plain: tuple) -> None:
    roomy = trained(dtr_config=DTRConfig(eviction_threshold=plain[2], evictee_minimum_size=1))
    assert roomy[2:] == plain[2:]
    middle = trained(
        dtr_config=DTRConfig(eviction_threshold=plain[2] * 3 // 4, evictee_minimum_size=1)
    )
    least = trained(dtr_config=DTRConfig(evictee_minimum_size=1))
    assert plain[2] * 3 // 4 >= middle[2] > least[2]
    assert plain[3] < middle[3] < least[3]
    large = trained(dtr_config=DTRConfig(evictee_minimum_size=1 << 30))
    assert large[2:] == plain[2:]  # no value is so large


def test_configurations_check_themselves() -> None:
    both = {"sublinear_memory_config": SublinearMemoryConfig(), "dtr_config": DTRConfig()}
    with pytest.raises(AttrError, match="expected one of them"):
        trace(lambda x: x, **both)
    with pytest.raises(AttrError, match="dtr_config is wrong, got int, expected DTRConfig"):
        trace(lambda x: x, dtr_config=3)
    with pytest.raises(AttrError, match="lb_memory_mb is wrong, got -1"):
        SublinearMemoryConfig(lb_memory_mb=-1)
    with pytest.raises(AttrError, match="eviction_threshold is wrong, got '5GB'"):
        DTRConfig(eviction_threshold="5GB")
    with pytest.raises(AttrError, match="opt_level is wrong, got -1"):
        trace(lambda x: x, opt_level=-1)


@pytest.mark.parametrize(
    "options",
    [
        {"symbolic": True}, {"symbolic_shape": False}, {"without_host": True}, {"opt_level": 0},
        {"opt_level": 1}, {"opt_level": 3}, {"graph_opt_config": GraphOptimizationConfig()},
        {"capture_as_const": True}, {"profiling": True}, {"imperative": True},
    ],
    ids=lambda options: next(iter(options)),
)  # fmt: skip
def test_values_are_the_same_under_every_option(options: dict) -> None:
    w = ty.Tensor([[1.0, -2.0], [3.0, 0.5]])
    run = trace(lambda x: F.relu(x @ w) + x.shape[0], **options)
    for rows in (1, 3):
        x = np.arange(2 * rows, dtype="f").reshape(rows, 2)
        for _ in range(2):
            expected = np.maximum(x @ w.numpy(), 0) + rows
            np.testing.assert_allclose(run(ty.Tensor(x)).numpy(), expected, rtol=1e-6)


def test_symbolic_without_a_function_is_a_decorator() -> None:
    @trace(symbolic=True)
    def double(x: ty.Tensor) -> ty.Tensor:
        """Double."""
        return x * 2

    assert (double.__name__, double.__doc__) == ("double", "Double.")
    assert double(ty.Tensor(2.0)).item() == 4


def test_record_only_runs_nothing_and_can_be_dumped(tmp_path) -> None:
    state = ty.Tensor([1.0])

    def body(x: ty.Tensor) -> dict:
        state[...] = state + 1
        return {"y": x * 2}

    run = trace(body, record_only=True)
    found = run(ty.Tensor([1.0, 2.0]))
    assert found["y"].shape == (2,)
    with pytest.raises(TraceError):
        found["y"].numpy()
    assert state.numpy() == [1]
    run.dump(tmp_path / "x.tym")
    np.testing.assert_array_equal(load(tmp_path / "x.tym")(np.ones(2, "f")), [2, 2])


def test_imperative_runs_the_body_each_time_and_can_be_dumped(tmp_path) -> None:
    runs = []

    @trace(imperative=True)
    def body(x: ty.Tensor) -> ty.Tensor:
        runs.append(is_tracing())
        return x * (2 if is_tracing() or x.sum().item() > 0 else 3)

    assert body(ty.Tensor([1.0])).numpy() == [2]
    assert body(ty.Tensor([-1.0])).numpy() == [-3]
    assert runs == [False, False]
    body.dump(tmp_path / "x.tym")
    assert load(tmp_path / "x.tym")(np.ones(1, "f")) == [2]


def test_profiles_measure_each_step() -> None:
    run = trace(lambda x: (F.exp(x) @ x, x.sum()), profiling=True)
    with pytest.raises(TraceError, match="nothing was measured"):
        run.get_profile()
    run(ty.Tensor(np.eye(8)))
    found = run.get_profile()
    assert json.loads(json.dumps(found)) == found
    assert [s["op"] for s in found["steps"]] == [s.op for s in run.explain().steps]
    assert all(s["seconds"] >= 0 and s["kernel"] for s in found["steps"])
    assert found["seconds"] == pytest.approx(sum(s["seconds"] for s in found["steps"]))
    assert any("test_trace_options.py" in s["origin"] for s in found["steps"])


def test_what_a_trace_tells_of_itself() -> None:
    runs = []

    def body(x: ty.Tensor, rest: dict) -> ty.Tensor:
        runs.append(1)
        return F.exp(x) + rest["a"][0]

    run = trace(body, without_host=True)
    assert (run.ops, run.vars, run.without_host) == ((), (), True)
    x, rest = ty.Tensor([0.0]), {"a": [ty.Tensor([2.0])]}
    for call in (run, run.execute, run.trace_without_host, run.trace_without_host_overall):
        assert call(x, rest).numpy() == [3]
    assert len(runs) == 1
    assert [node.op.name for node in run.ops] == ["exp", "add"]
    assert [value.spec.shape for value in run.vars] == [(1,)] * 4
    assert [t.item() for t in run.flatten_inputs(x, rest)] == [0, 2]
    assert run.trace_normal(x, rest).numpy() == [3]
    assert len(runs) == 2
    run.convert_optimizer_state_to_tensor()
    run.unset_env()
    assert run.ops == ()
    run(x, rest)
    assert len(runs) == 3


# Host code.


def test_host_code_keeps_its_meaning() -> None:
    seen = []

    @trace
    def body(x: ty.Tensor, scale: float) -> ty.Tensor:
        y = x * scale
        with exclude_from_trace():
            seen.append(y.numpy().tolist())
            if y.sum().item() > 10:
                y = y / 10
        return y + 1

    with pytest.warns(UserWarning, match="holds host code at .*test_trace_options.py:"):
        assert body(ty.Tensor([1.0, 2.0]), 2.0).tolist() == [3, 5]
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # said once
        assert body(ty.Tensor([10.0, 20.0]), 2.0).tolist() == [3, 5]
    assert seen == [[2, 4], [20, 40]]
    with pytest.raises(TraceError, match="holds host code at"):
        body.dump(io.BytesIO())


def test_only_calls_that_meet_host_code_run_in_python() -> None:
    runs = []

    @trace
    def body(x: ty.Tensor, log: bool) -> ty.Tensor:
        runs.append(log)
        if log:
            with exclude_from_trace():
                float(x.item())
        return x + 1

    with pytest.warns(UserWarning, match="host code"):
        body(ty.Tensor(1.0), True)
    for _ in range(2):
        assert body(ty.Tensor(1.0), False).item() == 2
        assert body(ty.Tensor(1.0), True).item() == 2
    assert runs.count(False) == 1
    assert runs.count(True) == 4  # the trace that was given up, then each call


def test_host_code_in_a_training_step_and_around_inner_traces() -> None:
    inner_runs, losses = [], []

    @trace
    def inner(x: ty.Tensor) -> ty.Tensor:
        inner_runs.append(1)
        return x * x

    def step(p: ty.Tensor, gm: GradManager) -> None:
        with gm:
            loss = (p * inner(ty.Tensor([3.0]))).sum()
            with exclude_from_trace():
                if not is_tracing():
                    losses.append(loss.item())
            gm.backward(loss)
        p[...] = p - p.grad * 0.1
        p.grad = None

    found = []
    for wrap in (lambda f: f, trace):
        p = ty.Parameter([1.0])
        gm = GradManager().attach(p)
        run = wrap(lambda p=p, gm=gm: step(p, gm))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for _ in range(3):
                run()
        found.append(p.item())
    assert found[0] == found[1]
    assert losses[:3] == losses[3:]


# Dumping.


@pytest.fixture
def dumped() -> trace:
    w = ty.Parameter(np.eye(2, dtype="f"), name="weight")
    run = trace(lambda x: F.relu(x @ w), capture_as_const=True)
    run(ty.Tensor([[1.0, -2.0]]))
    return run


def test_dump_tells_what_it_wrote(dumped: trace, tmp_path) -> None:
    path = tmp_path / "x.tym"
    result = dumped.dump(path, arg_names=["data"], output_names=["y"])
    assert (result.inputs, result.outputs, result.params) == (["data"], ["y"], ["weight"])
    assert (result.nr_opr, result.tensor_value_bytes) == (2, 16)
    assert result.tot_bytes == path.stat().st_size
    stream = io.BytesIO()
    dumped.dump(stream, arg_names=["data"], output_names=["y"])
    assert stream.getvalue() == path.read_bytes()
    np.testing.assert_array_equal(load(path)(data=np.array([[3, -1]], "f")), [[3, 0]])


def test_dump_keeps_what_the_user_says_of_it(dumped: trace, tmp_path) -> None:
    path = tmp_path / "x.tym"
    dumped.dump(path, user_info={"classes": ["cat", "dog"], "version": 3})
    assert Network.load(path).metadata["user_info"] == {"classes": ["cat", "dog"], "version": 3}
    np.testing.assert_array_equal(load(path)(np.array([[3, -1]], "f")), [[3, 0]])
    dumped.dump(path, user_info="secret", enable_metadata=False)
    assert b"secret" not in path.read_bytes()
    with pytest.raises(TraceError, match="user_info must be a JSON value, got object"):
        dumped.dump(path, user_info=object())


def test_dump_writes_what_a_model_needs(dumped: trace, tmp_path) -> None:
    needs = tmp_path / "needs.json"
    dumped.dump(io.BytesIO(), strip_info_file=needs)
    dumped.dump(io.BytesIO(), strip_info_file=needs, append_json=True)
    lines = [json.loads(line) for line in needs.read_text().splitlines()]
    assert lines == [{"opr_types": ["matmul", "relu"], "dtypes": ["float32"]}] * 2


@pytest.mark.parametrize(
    "options",
    [
        {"keep_var_name": 2}, {"keep_opr_name": True}, {"keep_param_name": True},
        {"keep_opr_priority": True}, {"no_change_graph": True}, {"optimize_for_inference": False},
        {"enable_nchw44": True}, {"enable_fuse_conv_bias_nonlinearity": True},
        {"silent": True}, {"no_assert": True}, {"maxerr": 1.0}, {"dump_format": "tym"},
    ],
    ids=lambda options: next(iter(options)),
)  # fmt: skip
def test_options_without_effect_give_the_same_file(dumped: trace, options: dict) -> None:
    usual, other = io.BytesIO(), io.BytesIO()
    dumped.dump(usual)
    dumped.dump(other, **options)
    assert usual.getvalue() == other.getvalue()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("append", True), ("input_data", ["x.npy"]), ("repeat", 2), ("resize_input", True),
        ("input_transform", "x / 255"), ("dump_format", "FBS"), ("model_version", 1),
        ("compat_older_version", "8.14"),
    ],
)  # fmt: skip
def test_what_a_file_cannot_hold_is_refused_by_name(
    dumped: trace, name: str, value: object, tmp_path
) -> None:
    with pytest.raises(TraceError, match=f"trace.dump: {name} cannot be had"):
        dumped.dump(tmp_path / "x.tym", **{name: value})
    assert not (tmp_path / "x.tym").exists()


def test_unknown_options_are_named(dumped: trace) -> None:
    with pytest.raises(TraceError, match="unknown options, got enable_everything"):
        dumped.dump(io.BytesIO(), enable_everything=True)


def test_a_stream_is_dumped_to_and_loaded_from() -> None:
    double = trace(lambda x: x * 2, capture_as_const=True)
    double(ty.Tensor([1.0, 2.0]))
    stream = io.BytesIO()
    double.dump(stream, arg_names=["x"])
    stream.seek(0)
    np.testing.assert_array_equal(ty.jit.load(stream)(np.array([3, 4], np.float32)), [6, 8])
