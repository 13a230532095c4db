"""trace: one run of Python per kind of call, equal results, states in place."""

from __future__ import annotations

import threading
import warnings
from pathlib import Path

import numpy as np
import pytest
import tianyuan as ty
import tianyuan.functional as F
import tianyuan.module as M
from tianyuan.autodiff import GradManager
from tianyuan.errors import AttrError, DTypeError, ShapeError, TraceError
from tianyuan.jit import load, trace
from tianyuan.optimizer import SGD, Adam


def tensor(*shape: int, seed: int = 0) -> ty.Tensor:
    return ty.Tensor(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


class Net(M.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = M.Conv2d(1, 4, 3, padding=1)
        self.norm = M.BatchNorm2d(4)
        self.drop = M.Dropout(0.3)
        self.fc = M.Linear(4 * 16, 5)

    def forward(self, x: ty.Tensor) -> ty.Tensor:
        x = F.max_pool2d(F.relu(self.norm(self.conv(x))), 2)
        return self.fc(self.drop(F.flatten(x, 1)))


def losses(traced: bool, level: int, optimizer: type, steps: int = 50) -> list[float]:
    """Train a small net and return the losses."""
    ty.random.seed(5)
    net = Net()
    net.train()
    gm = GradManager().attach(net.parameters())
    opt = optimizer(net.parameters(), lr=0.01)

    def step(x: ty.Tensor, y: ty.Tensor) -> ty.Tensor:
        with gm:
            loss = F.nn.cross_entropy(net(x), y)
            gm.backward(loss)
        opt.step().clear_grad()
        return loss

    run = trace(step, symbolic=True, opt_level=level) if traced else step
    rng = np.random.default_rng(1)
    found = []
    for _ in range(steps):
        x = ty.Tensor(rng.standard_normal((8, 1, 8, 8)).astype(np.float32))
        y = ty.Tensor(rng.integers(0, 5, 8).astype(np.int32))
        found.append(run(x, y).item())
    return found


@pytest.mark.parametrize("optimizer", [SGD, Adam])
def test_training_is_bit_equal_without_passes(optimizer: type) -> None:
    assert losses(True, 0, optimizer) == losses(False, 0, optimizer)


@pytest.mark.parametrize("optimizer", [SGD, Adam])
def test_training_agrees_with_passes(optimizer: type) -> None:
    eager, traced = losses(False, 0, optimizer, 3), losses(True, 2, optimizer, 3)
    np.testing.assert_allclose(traced, eager, rtol=1e-5)


def test_gradients_of_the_first_step_agree_and_reach_the_parameters() -> None:
    net, x = Net(), tensor(4, 1, 8, 8)
    gm = GradManager().attach(net.parameters())

    def step(x: ty.Tensor) -> ty.Tensor:
        with gm:
            loss = (net(x) ** 2).mean()
            gm.backward(loss)
        return loss

    net.eval()
    step(x)
    eager = {name: p.grad.numpy() for name, p in net.named_parameters()}
    for parameter in net.parameters():
        parameter.grad = None
    trace(step, symbolic=True)(x)
    for name, parameter in net.named_parameters():
        np.testing.assert_allclose(parameter.grad.numpy(), eager[name], rtol=1e-4, atol=1e-6)


def test_gradients_accumulate_over_traced_calls() -> None:
    p = ty.Parameter(np.float32(2))
    gm = GradManager().attach(p)

    @trace(symbolic=True)
    def step(x: ty.Tensor) -> None:
        with gm:
            gm.backward(p * x)

    for count in range(1, 4):
        step(ty.Tensor(3.0))
        assert p.grad.item() == 3 * count


def test_body_runs_once_per_key() -> None:
    runs = []

    @trace(symbolic=True)
    def double(x: ty.Tensor, factor: int = 2, *, shift: float = 0.0) -> ty.Tensor:
        runs.append(factor)
        return x * factor + shift

    a = tensor(3)
    for _ in range(3):
        np.testing.assert_allclose(double(a).numpy(), a.numpy() * 2)
    np.testing.assert_allclose(double(a, 3).numpy(), a.numpy() * 3, rtol=1e-6)
    double(tensor(4))
    double(a, shift=1.0)
    double(a)
    assert len(runs) == 4


def test_learning_rate_changed_between_calls_takes_effect() -> None:
    p = ty.Parameter(np.float32(1))
    gm, opt = GradManager().attach(p), SGD([p], lr=0.5)
    runs = []

    @trace(symbolic=True)
    def step() -> None:
        runs.append(1)
        with gm:
            gm.backward(p * 1.0)
        opt.step().clear_grad()

    step()
    assert p.item() == 0.5
    opt.param_groups[0]["lr"] = 0.25
    step()
    assert p.item() == 0.25
    assert len(runs) == 1


def test_eval_traces_anew_and_train_comes_back() -> None:
    net, x = M.Dropout(0.5), tensor(100)
    runs = []

    @trace(symbolic=True)
    def run(x: ty.Tensor) -> ty.Tensor:
        runs.append(1)
        return net(x)

    assert (run(x).numpy() == 0).any()
    net.eval()
    np.testing.assert_array_equal(run(x).numpy(), x.numpy())
    net.train()
    assert (run(x).numpy() == 0).any()
    assert len(runs) == 2


def test_random_numbers_are_fresh_at_each_call_and_equal_to_eager() -> None:
    def draw(x: ty.Tensor) -> tuple[ty.Tensor, ty.Tensor]:
        return F.dropout(x, 0.5, True), F.dropout(x, 0.5, True)

    x = ty.Tensor(np.ones(64, np.float32))
    ty.random.seed(7)
    eager = [t.numpy() for _ in range(3) for t in draw(x)]
    ty.random.seed(7)
    run = trace(draw, symbolic=True)
    traced = [t.numpy() for _ in range(3) for t in run(x)]
    np.testing.assert_array_equal(traced, eager)
    assert not np.array_equal(eager[0], eager[1])
    assert not np.array_equal(eager[0], eager[2])


def test_states_updated_in_place_are_seen_everywhere_and_old_values_stay() -> None:
    p = ty.Parameter(np.zeros(4, np.float32))
    view = np.asarray(p)
    shared = ty.Tensor(p)

    @trace(symbolic=True)
    def add(x: ty.Tensor) -> ty.Tensor:
        old = p * 1
        p._reset(p + x)
        return old

    before = p.numpy()
    detached = p.detach()
    for count in range(3):
        old = add(ty.Tensor(np.ones(4, np.float32)))
        np.testing.assert_array_equal(old.numpy(), np.full(4, count))
    np.testing.assert_array_equal(p.numpy(), np.full(4, 3))
    for untouched in (view, before, shared.numpy(), detached.numpy()):
        np.testing.assert_array_equal(untouched, np.zeros(4))


def test_two_states_can_swap() -> None:
    a, b = ty.Tensor([1.0, 2.0]), ty.Tensor([3.0, 4.0])

    @trace(symbolic=True)
    def swap() -> None:
        old = a * 1
        a._reset(b)
        b._reset(old)

    swap()
    np.testing.assert_array_equal(a.numpy(), [3, 4])
    np.testing.assert_array_equal(b.numpy(), [1, 2])
    swap()
    np.testing.assert_array_equal(a.numpy(), [1, 2])


def test_item_assignment_and_containers() -> None:
    @trace(symbolic=True)
    def work(batch: dict, pair: tuple) -> dict:
        x = batch["x"] * 1
        x[1:] = pair[0]
        return {"x": x, "list": [pair[1] + 1, "text"], "none": None}

    out = work({"x": tensor(3)}, (ty.Tensor([5.0, 6.0]), tensor(2, seed=1)))
    np.testing.assert_array_equal(out["x"].numpy(), [tensor(3).numpy()[0], 5, 6])
    np.testing.assert_allclose(out["list"][0].numpy(), tensor(2, seed=1).numpy() + 1)
    assert out["list"][1] == "text"
    assert out["none"] is None


def test_outputs_belong_to_the_caller() -> None:
    @trace(symbolic=True)
    def work(x: ty.Tensor) -> ty.Tensor:
        return x + 1

    first = work(tensor(5))
    kept = first.numpy()
    work(tensor(5, seed=1))
    np.testing.assert_array_equal(first.numpy(), kept)


def test_traces_nest_and_inputs_come_back_as_outputs() -> None:
    @trace(symbolic=True)
    def inner(x: ty.Tensor) -> ty.Tensor:
        return x * 2

    @trace(symbolic=True)
    def outer(x: ty.Tensor) -> tuple:
        return inner(x) + inner(x), x, x

    a = tensor(3)
    doubled, same, again = outer(a)
    np.testing.assert_allclose(doubled.numpy(), 4 * a.numpy())
    np.testing.assert_array_equal(same.numpy(), a.numpy())
    np.testing.assert_array_equal(again.numpy(), a.numpy())


def test_gradients_flow_through_a_traced_function_from_outside() -> None:
    p = ty.Parameter(np.float32(3))
    square = trace(lambda x: x * x, symbolic=True)
    gm = GradManager().attach(p)
    with gm:
        gm.backward(square(p))
    assert p.grad.item() == 6


@pytest.mark.parametrize(
    "branch",
    [
        lambda x: x if (x.sum() > 0) else -x,
        lambda x: x * x.sum().item(),
        lambda x: x * float(x.sum()),
        lambda x: x * x.numpy(),
        lambda x: [x for _ in range(int(x.sum()))],
    ],
)
def test_python_control_flow_on_values_is_refused_with_the_line(branch: object) -> None:
    with pytest.raises(TraceError, match=r"test_trace\.py:\d+"):
        trace(branch, symbolic=True)(tensor(3))


def test_a_traced_tensor_that_escapes_is_refused() -> None:
    kept = []

    @trace(symbolic=True)
    def leak(x: ty.Tensor) -> ty.Tensor:
        kept.append(x * 2)
        return x

    leak(tensor(2))
    with pytest.raises(TraceError, match="traced"):
        kept[0].numpy()

    @trace(symbolic=True)
    def use(x: ty.Tensor) -> ty.Tensor:
        return x + kept[0]

    with pytest.raises(TraceError, match="another trace"):
        use(tensor(2))


def test_an_exception_inside_leaves_everything_as_it_was() -> None:
    p = ty.Parameter(np.float32(1))
    gm = GradManager().attach(p)

    @trace(symbolic=True)
    def fail(x: ty.Tensor) -> None:
        with gm:
            gm.backward(p * x)
        p._reset(p - p.grad)
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        fail(ty.Tensor(2.0))
    assert p.item() == 1
    assert p.grad is None
    assert (p + 1).item() == 2


def test_dynamic_batch_shares_one_trace_and_packed_constants() -> None:
    weight = ty.Tensor(np.random.default_rng(3).standard_normal((6, 4)).astype(np.float32))
    runs = []

    @trace(symbolic=True, capture_as_const=True, dynamic_shapes={"x": {0: "n"}})
    def work(x: ty.Tensor) -> ty.Tensor:
        runs.append(1)
        y = F.matmul(x, weight)
        return y.reshape(x.shape[0] * 2, -1)

    for n in (1, 5, 3, 0, 64):
        x = tensor(n, 6, seed=n)
        expected = (x.numpy() @ weight.numpy()).reshape(n * 2, 2)
        np.testing.assert_allclose(work(x).numpy(), expected, rtol=1e-5, atol=1e-6)
    # Once at the size at hand, once at another: to find where a size is baked in.
    assert len(runs) == 2


def test_branching_on_a_dynamic_dimension_fixes_it_and_says_so() -> None:
    @trace(symbolic=True, dynamic_shapes={"x": ["n"]})
    def work(x: ty.Tensor) -> ty.Tensor:
        return x * 2 if x.shape[0] > 3 else x * 3

    with pytest.warns(UserWarning, match=r"dimension n is used as a plain number at .*test_trace"):
        np.testing.assert_allclose(work(tensor(2)).numpy(), 3 * tensor(2).numpy(), rtol=1e-6)
    np.testing.assert_allclose(work(tensor(5)).numpy(), 2 * tensor(5).numpy(), rtol=1e-6)


def test_unknown_dynamic_input_is_named() -> None:
    with pytest.raises(TraceError, match="got y, expected some of x"):
        trace(lambda x: x, dynamic_shapes={"y": ["n"]})(tensor(2))


def test_methods_can_be_traced() -> None:
    class Model(M.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = M.Linear(3, 2)

        @trace(symbolic=True)
        def forward(self, x: ty.Tensor) -> ty.Tensor:
            return self.fc(x)

    first, second = Model(), Model()
    x = tensor(4, 3)
    for model in (first, second):
        expected = x.numpy() @ model.fc.weight.numpy().T + model.fc.bias.numpy()
        np.testing.assert_allclose(model(x).numpy(), expected, rtol=1e-5, atol=1e-6)


def test_two_threads_inside_one_program_equal_serial() -> None:
    net = Net()
    net.eval()
    run = trace(lambda x: net(x), symbolic=True)
    inputs = [tensor(2, 1, 8, 8, seed=s) for s in range(8)]
    expected = [run(x).numpy() for x in inputs]
    faults: list[int] = []

    def work(index: int) -> None:
        for _ in range(50):
            if not np.array_equal(run(inputs[index]).numpy(), expected[index]):
                faults.append(index)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults


def test_dump_load_runs_on_any_batch_without_a_second_copy_of_weights(tmp_path) -> None:
    net = Net()
    net.eval()

    @trace(symbolic=True, capture_as_const=True)
    def predict(data: ty.Tensor) -> ty.Tensor:
        return net(data)

    predict(tensor(2, 1, 8, 8))
    path = tmp_path / "net.tym"
    predict.dump(path, arg_names=["image"], dynamic_shapes={"image": {0: "n"}})
    model = load(path, backend="numpy")
    assert list(model.input_specs) == ["image"]
    programs = []
    for n in (1, 64):
        x = tensor(n, 1, 8, 8, seed=n)
        np.testing.assert_allclose(model(x.numpy()), net(x).numpy(), rtol=1e-4, atol=1e-5)
        programs.append(model.program(x.numpy()))
    small, large = ({id(c) for c in p.constants if c.size > 16} for p in programs)
    assert small == large


def test_a_file_written_twice_is_byte_identical(tmp_path) -> None:
    net = Net()
    net.eval()
    predict = trace(lambda x: net(x), symbolic=True, capture_as_const=True)
    predict(tensor(1, 1, 8, 8))
    for name in ("a.tym", "b.tym"):
        predict.dump(tmp_path / name)
    assert (tmp_path / "a.tym").read_bytes() == (tmp_path / "b.tym").read_bytes()


def test_dump_faults(tmp_path) -> None:
    double = trace(lambda x: x * 2, symbolic=True)
    with pytest.raises(TraceError, match="not been called"):
        double.dump(tmp_path / "x.tym")
    double(tensor(2))
    with pytest.raises(TraceError, match="arg_names"):
        double.dump(tmp_path / "x.tym", arg_names=["a", "b"])
    with pytest.raises(OSError):
        double.dump(tmp_path / "missing" / "x.tym")


def test_model_refuses_wrong_inputs(tmp_path) -> None:
    work = trace(lambda x, y: x + y, symbolic=True)
    work(tensor(2, 3), tensor(2, 3))
    work.dump(tmp_path / "x.tym", dynamic_shapes={"x": ["n"], "y": ["n"]})
    model = load(tmp_path / "x.tym")
    good = np.zeros((2, 3), np.float32)
    with pytest.raises(ShapeError, match=r"'x'.*got \(2, 4\), expected \(n, 3\)"):
        model(np.zeros((2, 4), np.float32), good)
    with pytest.raises(ShapeError, match=r"'y'.*n = 2"):
        model(good, np.zeros((3, 3), np.float32))
    with pytest.raises(TypeError, match="got int8, expected float32|wrong dtype"):
        model(good.astype(np.complex64), good)
    with pytest.raises(TypeError, match="missing"):
        model(good)
    with pytest.raises(TypeError, match="unknown input"):
        model(good, good, z=good)
    out = np.empty((2, 3), np.float32)
    model(good + 1, good + 2, out=[out])
    np.testing.assert_array_equal(out, np.full((2, 3), 3))
    assert isinstance(model(good, good), np.ndarray)
    assert isinstance(model(ty.Tensor(good), good), ty.Tensor)


@pytest.mark.parametrize(
    "work",
    [
        lambda x: x * float(x.shape[0]),
        lambda x: x / x.shape[0] ** 0.5,
        lambda x: x * (x.shape[0] / 2),
        lambda x: x * np.sqrt(x.shape[0]),
        lambda x: F.stack([x[i] * i for i in range(x.shape[0])]),
        lambda x: F.stack([row * 2 for row in x]),
        lambda x: x + F.linspace(0, 1, x.shape[0]).reshape(-1, 1),
        lambda x: x + ty.Tensor(np.arange(x.shape[0], dtype=np.float32).reshape(-1, 1)),
        lambda x: x * len(x),
    ],
)
def test_a_size_that_leaves_the_arithmetic_of_ints_is_found(work, tmp_path) -> None:
    """Either the program holds for other sizes, or it says that it does not."""
    run = trace(work, capture_as_const=True)
    run(tensor(3, 2))
    refusal = None
    try:
        run.dump(tmp_path / "x.tym", dynamic_shapes={"x": {0: "n"}})
    except TraceError as error:
        refusal = str(error)
    if refusal is not None:
        assert "dynamic dimension n is used as a plain number at" in refusal
    else:
        model = load(tmp_path / "x.tym")
        for n in (3, 7, 2):
            x = tensor(n, 2, seed=n)
            np.testing.assert_allclose(model(x.numpy()), work(x).numpy(), rtol=1e-5)
    dynamic = trace(work, dynamic_shapes={"x": {0: "n"}})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        for n in (3, 7, 2):
            x = tensor(n, 2, seed=n)
            np.testing.assert_allclose(dynamic(x).numpy(), work(x).numpy(), rtol=1e-5)


def test_an_argument_that_is_changed_in_place_is_changed_for_the_caller() -> None:
    def work(x: ty.Tensor, y: ty.Tensor) -> ty.Tensor:
        x[0] = 5
        y += x
        return x * y

    a, b = ty.Tensor([1.0, 2.0]), ty.Tensor([3.0, 4.0])
    c, d = ty.Tensor([1.0, 2.0]), ty.Tensor([3.0, 4.0])
    run = trace(work, symbolic=True)
    for _ in range(2):
        np.testing.assert_allclose(run(a, b).numpy(), work(c, d).numpy())
        np.testing.assert_allclose(a.numpy(), c.numpy())
        np.testing.assert_allclose(b.numpy(), d.numpy())


def test_a_tensor_attached_outside_gets_its_gradient_as_an_argument() -> None:
    x, other = ty.Tensor([1.0, 2.0]), ty.Tensor([5.0])
    gm = GradManager().attach([x, other])

    @trace(symbolic=True)
    def work(x: ty.Tensor) -> None:
        with gm:
            gm.backward((x * x).sum())

    work(x)
    np.testing.assert_allclose(x.grad.numpy(), [2, 4])
    work(other)
    np.testing.assert_allclose(other.grad.numpy(), [10])
    np.testing.assert_allclose(x.grad.numpy(), [2, 4])


def test_constants_follow_the_weights_they_were_taken_from(tmp_path) -> None:
    fc, x = M.Linear(3, 2), tensor(4, 3)
    run = trace(lambda x: fc(x), capture_as_const=True)
    run(x)
    fc.weight[...] = 0
    fc.bias[...] = 1
    np.testing.assert_array_equal(run(x).numpy(), np.ones((4, 2)))
    run.dump(tmp_path / "x.tym")
    np.testing.assert_array_equal(load(tmp_path / "x.tym")(x.numpy()), np.ones((4, 2)))


def test_a_dump_in_training_mode_warns(tmp_path) -> None:
    net = M.Sequential(M.Linear(3, 2), M.Dropout(0.5))
    run = trace(lambda x: net(x), capture_as_const=True)
    run(tensor(4, 3))
    with pytest.warns(UserWarning, match=r"training mode; call eval\(\)"):
        run.dump(tmp_path / "x.tym")
    net.eval()
    run(tensor(4, 3))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run.dump(tmp_path / "x.tym")


def test_a_layer_that_is_replaced_is_traced_anew() -> None:
    net, x = M.Sequential(M.Linear(3, 2), M.ReLU()), tensor(4, 3)
    run = trace(lambda x: net(x), symbolic=True)
    for _ in range(2):
        np.testing.assert_allclose(run(x).numpy(), net(x).numpy(), rtol=1e-5, atol=1e-6)
        net[0] = M.Linear(3, 2)
    net[0].weight = ty.Parameter(np.zeros((2, 3), np.float32))
    np.testing.assert_allclose(run(x).numpy(), net(x).numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("first", [0, 1, 3])
def test_a_gradient_traced_at_one_batch_holds_for_others(first: int) -> None:
    def work(x: ty.Tensor) -> ty.Tensor:
        gm = GradManager().attach(x)
        with gm:
            y = x + x[:1]
            gm.backward((y * y).sum())
        return x.grad

    run = trace(work, dynamic_shapes={"x": {0: "n"}})
    run(tensor(first, 3))
    for n in (1, 4, 2):
        x = tensor(n, 3, seed=n)
        np.testing.assert_allclose(run(x).numpy(), work(ty.Tensor(x)).numpy(), rtol=1e-5)


def test_a_call_that_does_not_fit_is_told_by_name() -> None:
    def double(x: ty.Tensor) -> ty.Tensor:
        return x * 2

    with pytest.raises(TypeError, match=r"^double: missing .* 'x', expected double\(x"):
        trace(double)()
    with pytest.raises(TypeError, match=r"^double: too many .*, expected double\(x"):
        trace(double)(tensor(2), tensor(2))
    with pytest.raises(TraceError, match="not been called yet, got no call, expected"):
        trace(double).dump("never.tym")


def test_a_dump_is_no_onnx_file(tmp_path: Path) -> None:
    double = trace(lambda x: x * 2)
    double(tensor(2))
    with pytest.raises(AttrError, match="net.onnx, expected one in .tym; tianyuan.onnx.export"):
        double.dump(tmp_path / "net.onnx")
    assert not (tmp_path / "net.onnx").exists()


@pytest.mark.parametrize("path", [None, 3, {"x": 1}])
def test_what_is_no_path_cannot_be_loaded(path: object) -> None:
    with pytest.raises(AttrError, match=r"^load: path is wrong, got \w+, expected the path of a"):
        load(path)  # type: ignore[arg-type]


def test_data_that_is_no_number_is_told_what_may_be() -> None:
    for data in (["a"], None):
        with pytest.raises(DTypeError, match="^tensor: data has .*, expected numbers: one of bool"):
            ty.Tensor(data)
