"""Autocast and the scaling of gradients: dtypes, values, both runtimes, PyTorch where it agrees."""

from __future__ import annotations

import threading
import warnings
from typing import Any

import numpy as np
import pytest
import tianyuan as ty
import tianyuan.functional as F
import tianyuan.module as M
import tianyuan.optimizer as optim
from tianyuan import amp
from tianyuan.autodiff import GradManager, grad
from tianyuan.errors import AttrError
from tianyuan.jit import trace

rng = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def the_same_numbers_in_any_order() -> None:
    """Give each test the same inputs and first weights, whichever ran before."""
    global rng
    rng = np.random.default_rng(0)
    ty.random.seed(0)


def some(*shape: int) -> ty.Tensor:
    return ty.Tensor(rng.standard_normal(shape).astype("f"))


LOW = {
    "matmul": lambda: F.matmul(some(3, 4), some(4, 2)),
    "operator": lambda: some(2, 3, 4) @ some(2, 4, 5),
    "linear": lambda: F.linear(some(3, 4), some(2, 4), some(2)),
    "conv1d": lambda: F.conv1d(some(1, 2, 6), some(3, 2, 3), some(1, 3, 1)),
    "conv2d": lambda: F.conv2d(some(1, 2, 5, 5), some(3, 2, 3, 3), some(1, 3, 1, 1)),
    "conv_transpose2d": lambda: F.conv_transpose2d(some(1, 2, 3, 3), some(2, 3, 3, 3)),
    "batch_norm": lambda: F.batch_norm(some(4, 3, 2, 2), training=True),
}
HIGH = {
    "exp": F.exp, "log": F.log, "sin": F.sin, "cos": F.cos, "tanh": F.tanh, "sqrt": F.sqrt,
    "softplus": F.softplus, "softmax": F.softmax, "mean": F.mean, "pow": lambda x: x**2.5,
    "layer_norm": lambda x: F.nn.layer_norm(x, 4, False), "expm1": F.expm1,
    "group_norm": lambda x: F.nn.group_norm(x, 2, False),
}  # fmt: skip


@pytest.mark.parametrize("low", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", LOW)
def test_products_are_low(name: str, low: str) -> None:
    assert LOW[name]().dtype == np.float32
    with amp.autocast(low_prec_dtype=low):
        assert LOW[name]().dtype.name == low
    assert LOW[name]().dtype == np.float32


@pytest.mark.parametrize("name", HIGH)
def test_what_needs_range_is_high(name: str) -> None:
    x = ty.Tensor(np.abs(rng.standard_normal((3, 4))), dtype="float16")
    with amp.autocast():
        assert HIGH[name](x).dtype == np.float32
        assert (x + x).dtype == np.float16
        assert (x + some(4)).dtype == np.float32
        assert F.relu(x).dtype == np.float16
    np.testing.assert_array_equal(
        (lambda: HIGH[name](x.astype("float32")))().numpy(), run_under(HIGH[name], x)
    )


def run_under(function, x: ty.Tensor) -> np.ndarray:
    with amp.autocast():
        return function(x).numpy()


def test_float64_and_integers_are_left_alone() -> None:
    a = ty.Tensor(np.eye(3), dtype="float64")
    b = ty.Tensor(np.eye(3), dtype="int32")
    with amp.autocast():
        assert F.matmul(a, a).dtype == np.float64
        assert F.exp(a).dtype == np.float64
        assert F.matmul(b, b).dtype == np.int32


def test_statistics_of_batch_norm_stay_high_and_exact() -> None:
    x = (rng.standard_normal((8, 3, 2, 2)) + 100).astype("f")
    mean, var = ty.Tensor(np.zeros((1, 3, 1, 1))), ty.Tensor(np.ones((1, 3, 1, 1)))
    with amp.autocast():
        y = F.batch_norm(ty.Tensor(x), mean, var, training=True, momentum=0.0)
    assert (y.dtype, mean.dtype, var.dtype) == (np.float16, np.float32, np.float32)
    wide = x.astype("d")
    np.testing.assert_allclose(mean.numpy().ravel(), wide.mean((0, 2, 3)), rtol=1e-6)
    np.testing.assert_allclose(var.numpy().ravel(), wide.var((0, 2, 3), ddof=1), rtol=1e-4)
    scale = wide.std((0, 2, 3), keepdims=True)
    expected = (wide - wide.mean((0, 2, 3), keepdims=True)) / scale
    np.testing.assert_allclose(y.numpy().astype("d"), expected, atol=3e-3)


def test_nesting_and_module_attributes() -> None:
    assert (amp.enabled, amp.low_prec_dtype, amp.high_prec_dtype) == (False, "float16", "float32")
    with amp.autocast(low_prec_dtype="bfloat16"):
        assert (amp.enabled, amp.low_prec_dtype) == (True, "bfloat16")
        with amp.autocast(enabled=False):
            assert not amp.enabled
            assert LOW["matmul"]().dtype == np.float32
        assert LOW["matmul"]().dtype.name == "bfloat16"
    assert not amp.enabled
    try:
        amp.low_prec_dtype = "bfloat16"
        amp.enabled = True
        assert LOW["matmul"]().dtype.name == "bfloat16"
        amp.high_prec_dtype = "bfloat16"
        assert F.exp(some(2)).dtype.name == "bfloat16"
    finally:
        amp.enabled, amp.low_prec_dtype, amp.high_prec_dtype = False, "float16", "float32"
    with pytest.raises(AttrError, match="amp: low is wrong, got 'int8'"):
        amp.autocast(low_prec_dtype="int8")
    with pytest.raises(AttrError, match="amp: enabled is wrong"):
        amp.enabled = 1  # type: ignore[assignment]


def test_a_decorated_function_is_low_in_every_thread_and_only_there() -> None:
    x, found = some(3, 3), []

    @amp.autocast(low_prec_dtype="bfloat16")
    def product() -> str:
        return (x @ x).dtype.name

    threads = [threading.Thread(target=lambda: found.append(product())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == ["bfloat16"] * 4
    assert (x @ x).dtype == np.float32
    with amp.autocast():
        other = threading.Thread(target=lambda: found.append((x @ x).dtype.name))
        other.start()
        other.join()
    assert found[-1] == "float32"


class Net(M.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = M.Conv2d(2, 4, 3, padding=1)
        self.bn = M.BatchNorm2d(4)
        self.fc = M.Linear(4, 3)

    def forward(self, x: ty.Tensor) -> ty.Tensor:
        y = F.relu(self.bn(self.conv(x)))
        return self.fc(F.mean(y, axis=(2, 3)))


def loss_and_grads(net: Net, x: ty.Tensor, label: ty.Tensor, **options: object) -> tuple:
    gm = GradManager().attach(net.parameters())
    with gm:
        with amp.autocast(**options):  # type: ignore[arg-type]
            logits = net(x)
            loss = F.nn.cross_entropy(logits, label)
        gm.backward(loss)
    grads = {name: p.grad for name, p in net.named_parameters()}
    for parameter in net.parameters():
        parameter.grad = None
    return loss, grads


@pytest.mark.parametrize(("low", "near"), [("float16", 4e-3), ("bfloat16", 4e-2)])
def test_gradients_are_float32_and_near(low: str, near: float) -> None:
    net, x, label = Net(), some(4, 2, 5, 5), ty.Tensor([0, 1, 2, 1])
    plain, expected = loss_and_grads(net, x, label, enabled=False)
    loss, grads = loss_and_grads(net, x, label, low_prec_dtype=low)
    assert abs(loss.item() - plain.item()) < near
    for name, slope in grads.items():
        assert slope.dtype == np.float32
        np.testing.assert_allclose(slope.numpy(), expected[name].numpy(), atol=near, rtol=near)


@pytest.mark.parametrize("by", ["manager", "grad"])
def test_a_backward_inside_autocast_keeps_the_dtypes_of_forward(by: str) -> None:
    x, p = some(3, 4), ty.Parameter(rng.standard_normal((4, 2)).astype("f"))

    def loss(p: ty.Tensor) -> ty.Tensor:
        with amp.autocast(enabled=False):
            wide = F.matmul(x, p)
        return (wide * wide).sum() + F.matmul(x, p).astype("float32").sum()

    with amp.autocast():
        if by == "grad":
            slope = grad(loss)(p)
        else:
            gm = GradManager().attach(p)
            with gm:
                gm.backward(loss(p))
            slope = p.grad
    assert slope.dtype == np.float32
    a = x.numpy().astype("d")
    exact = 2 * a.T @ (a @ p.numpy())
    narrow = a.sum(0)[:, None]
    np.testing.assert_allclose(slope.numpy() - narrow, exact, rtol=1e-3, atol=2e-3)


def test_traced_is_eager_and_each_precision_has_its_program() -> None:
    net, x = Net(), some(4, 2, 5, 5)
    net.eval()
    forward = trace(lambda x: net(x), opt_level=0)
    plain = forward(x)
    for low in ("float16", "bfloat16"):
        with amp.autocast(low_prec_dtype=low):
            eager, traced = net(x), forward(x)
        assert traced.dtype.name == low
        np.testing.assert_array_equal(traced.numpy(), eager.numpy())
    np.testing.assert_array_equal(forward(x).numpy(), plain.numpy())
    assert plain.dtype == np.float32


def test_a_traced_training_step_under_autocast() -> None:
    results = []
    for traced in (False, True):
        net = Net()
        for index, parameter in enumerate(net.parameters()):
            fill = np.random.default_rng(index).standard_normal(parameter.shape)
            parameter[...] = ty.Tensor(fill * 0.3)
        opt, gm = optim.SGD(net.parameters(), lr=0.1), GradManager().attach(net.parameters())
        scaler = amp.GradScaler(8.0, growth_interval=0)

        def step(x, label, net=net, opt=opt, gm=gm, scaler=scaler):
            opt.clear_grad()
            with gm, amp.autocast():
                loss = F.nn.cross_entropy(net(x), label)
                scaler.backward(gm, loss)
            opt.step()
            return loss

        run = trace(step, opt_level=0) if traced else step
        generator = np.random.default_rng(7)
        losses = []
        for _ in range(5):
            x = ty.Tensor(generator.standard_normal((4, 2, 5, 5)).astype("f"))
            losses.append(run(x, ty.Tensor([0, 1, 2, 1])).item())
        results.append((losses, [p.numpy() for p in net.parameters()]))
    assert results[0][0] == results[1][0]
    for eager, by_trace in zip(results[0][1], results[1][1], strict=True):
        np.testing.assert_array_equal(eager, by_trace)


def test_bfloat16_agrees_with_torch() -> None:
    torch = pytest.importorskip("torch")
    x, w, b = (rng.standard_normal(s).astype("f") for s in ((5, 7), (3, 7), (3,)))
    tx, tw, tb = (torch.tensor(a, requires_grad=True) for a in (x, w, b))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        there = torch.softmax(torch.nn.functional.linear(tx, tw, tb).float(), 1)
    (there * there).sum().backward()
    p = [ty.Parameter(a) for a in (x, w, b)]
    gm = GradManager().attach(p)
    with gm:
        with amp.autocast(low_prec_dtype="bfloat16"):
            here = F.softmax(F.linear(*p), axis=1)
        gm.backward((here * here).sum())
    assert here.dtype == np.float32
    np.testing.assert_allclose(here.numpy(), there.detach().numpy(), atol=0.02)
    for mine, theirs in zip(p, (tx, tw, tb), strict=True):
        assert mine.grad is not None
        assert mine.grad.dtype == np.float32
        np.testing.assert_allclose(mine.grad.numpy(), theirs.grad.numpy(), atol=0.03)


# GradScaler.


def scaled_grad(scaler: amp.GradScaler, value: float, **options: bool) -> tuple:
    p = ty.Parameter([value])
    gm = GradManager().attach(p)
    with gm:
        scaler.backward(gm, (p * p).sum(), **options)
    return p, p.grad


def test_a_scaled_gradient_is_the_gradient() -> None:
    scaler = amp.GradScaler()
    assert scaler.scale_factor == 16.0
    assert scaled_grad(scaler, 3.0)[1].numpy() == [6.0]
    p, grad = scaled_grad(scaler, 3.0, unscale_grad=False)
    assert grad.numpy() == [96.0]
    assert scaler.unscale([p]) is scaler
    assert p.grad.numpy() == [6.0]


def test_given_output_gradients_are_scaled_too() -> None:
    p, scaler = ty.Parameter([1.0, 2.0]), amp.GradScaler(4.0)
    gm = GradManager().attach(p)
    with gm:
        scaler.backward(gm, [p * 2, p * 3], [ty.Tensor([1.0, 0.0]), ty.Tensor([0.0, 1.0])])
    np.testing.assert_array_equal(p.grad.numpy(), [2, 3])


def test_small_gradients_survive_in_float16() -> None:
    w = ty.Parameter(np.full((1, 1), 1e-4, "f"))
    x = ty.Tensor(np.full((1, 1), 1e-4, "f"))
    found = {}
    for scale in (1.0, 2.0**16):
        gm, scaler = GradManager().attach(w), amp.GradScaler(scale)
        with gm:
            with amp.autocast():
                y = F.matmul(x, w)
            scaler.backward(gm, y.astype("float32").sum() * 1e-4)
        found[scale], w.grad = w.grad.item(), None
    assert found[2.0**16] == pytest.approx(1e-8, rel=2e-2)
    assert abs(found[1.0] - 1e-8) > 4e-10  # what is lost without


def test_growth_backoff_and_skipped_steps() -> None:
    scaler = amp.GradScaler(8.0, growth_factor=4.0, backoff_factor=0.25, growth_interval=2)
    factors = []
    for value in (1.0, 1.0, 1.0, np.inf, 1.0, 1.0):
        p, grad = scaled_grad(scaler, value)
        factors.append(scaler.scale_factor)
        if np.isinf(value):
            assert grad is None
            optim.SGD([p], lr=1.0).step()
            assert p.numpy() == [np.inf]
    assert factors == [8, 32, 32, 8, 8, 32]


def test_growth_agrees_with_torch() -> None:
    torch = pytest.importorskip("torch")
    theirs = torch.amp.GradScaler("cpu", init_scale=2.0, growth_interval=3)
    mine = amp.GradScaler(2.0, growth_interval=3)
    for value in (1.0, 1.0, np.nan, 1.0, 1.0, 1.0, 1.0, np.inf, np.inf, 1.0):
        p = torch.nn.Parameter(torch.tensor([value]))
        opt = torch.optim.SGD([p], lr=0.1)
        theirs.scale((p * p).sum()).backward()
        theirs.step(opt)
        theirs.update()
        scaled_grad(mine, value)
        assert mine.scale_factor == theirs.get_scale()


def test_a_constant_factor_and_a_new_one() -> None:
    scaler = amp.GradScaler(8.0, growth_interval=0)
    for value in (1.0, np.inf, 1.0):
        scaled_grad(scaler, value)
        assert scaler.scale_factor == 8.0
    assert scaler.update(2.0).scale_factor == 2.0
    with pytest.raises(AttrError, match="new_scale must be positive"):
        scaler.update(-1.0)


def test_the_state_comes_back() -> None:
    scaler = amp.GradScaler(8.0, 3.0, 0.1, 5)
    scaled_grad(scaler, 1.0)
    other = amp.GradScaler()
    other.load_state_dict(scaler.state_dict())
    assert other.state_dict() == scaler.state_dict() == {
        "scale_factor": 8.0, "growth_factor": 3.0, "backoff_factor": 0.1, "growth_interval": 5,
        "_growth_tracker": 1,
    }  # fmt: skip
    with pytest.raises(KeyError):
        other.load_state_dict({"scale_factor": 1.0})
    assert other.scale_factor == 8.0


def test_a_factor_that_adapts_runs_a_traced_step_in_python() -> None:
    found = []
    for wrap in (lambda f: f, trace):
        p, scaler = ty.Parameter([1.0]), amp.GradScaler(8.0, growth_interval=2)
        gm, opt = GradManager().attach(p), optim.SGD([p], lr=0.25)

        def step(x, p=p, gm=gm, opt=opt, scaler=scaler):
            opt.clear_grad()
            with gm:
                scaler.backward(gm, (p * x).sum())
            opt.step()

        run, values = wrap(step), []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for value in (1.0, 2.0, np.inf, 1.0, 1.0):
                run(ty.Tensor([value]))
                values.append((p.item(), scaler.scale_factor))
        found.append(values)
    assert found[0] == [(0.75, 8), (0.25, 16), (0.25, 8), (0.0, 8), (-0.25, 16)]
    assert found[1] == found[0]
    with pytest.warns(UserWarning, match="holds host code"):
        trace(lambda: scaler.unscale([p]))()


@pytest.mark.parametrize("fault", [{"init_scale": 0}, {"growth_factor": -1}, {"backoff_factor": 0}])
def test_factors_must_be_positive(fault: dict[str, float]) -> None:
    with pytest.raises(AttrError, match="must be positive"):
        amp.GradScaler(**fault)
    with pytest.raises(AttrError, match="growth_interval is out of range, got -1, expected"):
        amp.GradScaler(growth_interval=-1)


# Formats.


def test_formats_are_labels() -> None:
    x = some(1, 2, 3, 4)
    other = amp.convert_tensor_format(x, inplace=False)
    assert (x.format, other.format) == ("default", "nhwc")
    assert amp.convert_tensor_format(x) is x
    assert x.format == "nhwc"
    np.testing.assert_array_equal(other.numpy(), x.numpy())
    with pytest.raises(AttrError, match="4 or 5 dimensions"):
        amp.convert_tensor_format(some(2, 3))
    assert ty.Tensor([1.0], format="nchw").format == "nchw"
    with pytest.raises(AttrError, match="unknown format"):
        ty.Tensor([1.0], format="oihw")


def test_a_labelled_module_computes_the_same() -> None:
    net, x = Net().eval(), some(2, 2, 5, 5)
    before = net(x).numpy()
    other = amp.convert_module_format(net, inplace=False)
    assert net.conv.weight.format == "default"
    assert (other.conv.weight.format, other.fc.weight.format) == ("nhwc", "default")
    np.testing.assert_array_equal(other(x).numpy(), before)
    assert amp.convert_module_format(net) is net
    assert net.bn.running_mean.format == "nhwc"


def _step(scaler: amp.GradScaler, gradient: float, dtype: str = "float32") -> Any:
    p = ty.Parameter(np.ones(2), dtype=dtype)
    manager = GradManager().attach([p])
    with manager:
        scaler.backward(manager, (p * gradient).sum())
    return p.grad


def test_a_scale_that_shrinks_or_grows_for_ever_stays_one_that_can_be_taken_out_again() -> None:
    shrinking = amp.GradScaler(init_scale=2.0**-120)
    for _ in range(20):
        assert _step(shrinking, float("inf")) is None
    assert shrinking.scale_factor == 2.0**-126
    assert _step(shrinking, 2.0**100).tolist() == [2.0**100] * 2
    growing = amp.GradScaler(init_scale=2.0**120, growth_interval=1)
    for _ in range(20):
        assert _step(growing, 1.0).tolist() == [1.0, 1.0]
    assert growing.scale_factor == 2.0**126


def test_gradients_of_float64_beyond_float32_are_finite() -> None:
    scaler = amp.GradScaler(init_scale=4.0)
    assert _step(scaler, 1e200, "float64").tolist() == [1e200, 1e200]
    assert scaler.scale_factor == 4.0


@pytest.mark.parametrize("wrong", [float("inf"), float("nan"), 0, -1, "2", None])
def test_a_factor_that_is_no_positive_number_is_refused(wrong: Any) -> None:
    scaler = amp.GradScaler()
    before = scaler.state_dict()
    with pytest.raises(AttrError, match="init_scale must be positive"):
        amp.GradScaler(init_scale=wrong)
    with pytest.raises(AttrError, match="scale_factor must be positive"):
        scaler.load_state_dict({**before, "scale_factor": wrong})
    with pytest.raises(AttrError, match="_growth_tracker is wrong"):
        scaler.load_state_dict({**before, "_growth_tracker": 1.5})
    assert scaler.state_dict() == before
