"""Modules made of torch's compute, train and update their buffers as torch's do."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tianyuan
import tianyuan.functional as F
from tianyuan import Parameter, Tensor, jit
from tianyuan.autodiff import GradManager
from tianyuan.errors import GraphError, TianyuanError, TraceError
from tianyuan.optimizer import SGD
from tianyuan.torch import TorchModule, from_module, load_into, to_torch

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
nn, f = torch.nn, torch.nn.functional

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


class Wrapped(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


def floats(*shape: int, seed: int = 0, low: float = -2.0, high: float = 2.0) -> Any:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(shape, generator=generator) * (high - low) + low


def whole(high: int, *shape: int) -> Any:
    return torch.randint(0, high, shape, generator=torch.Generator().manual_seed(1))


def as_tensor(value: Any) -> Any:
    array = value.detach().numpy()
    return Tensor(array, dtype=array.dtype)


def expect_same(found: Any, wanted: Any) -> None:
    if isinstance(wanted, (tuple, list)):
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            expect_same(one, other)
        return
    want = wanted.detach().numpy()
    got = found.numpy()
    assert got.shape == want.shape
    assert got.dtype.kind == want.dtype.kind
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


X, Y = floats(3, 4, 5), floats(3, 4, 5, seed=1)
IMAGE = floats(2, 4, 9, 8)
SIGNAL = floats(2, 4, 11)
POSITIVE = floats(3, 4, low=0.2, high=3.0)
COUNTS = whole(7, 3, 4)

# Each is what a torch user writes, and its inputs.
CASES: dict[str, tuple[Callable[..., Any], Sequence[Any]]] = {
    "arithmetic": (lambda x, y: (x + 2 * y - 1) / (y * y + 1.5) - 3.0, (X, Y)),
    "alpha": (lambda x, y: torch.sub(torch.add(x, y, alpha=3), y, alpha=0.5), (X, Y)),
    "integers": (lambda x: (x * 2 + 1, x // 2, x % 3, x / 2, -x, x**2), (COUNTS,)),
    "rounding_modes": (
        lambda x, y: (
            torch.div(x, y, rounding_mode="floor"),
            torch.div(x, y, rounding_mode="trunc"),
            torch.fmod(x, y),
            torch.remainder(x, y),
        ),
        (X, Y),
    ),
    "roundings": (lambda x: (x.floor(), x.ceil(), x.round(), x.trunc(), x.sign()), (X,)),
    "roots": (lambda x: (x.sqrt(), x.rsqrt(), x.log(), x.log1p(), x**0.5, x**1.5), (POSITIVE,)),
    "exponentials": (lambda x: (x.exp(), x.expm1(), x.sigmoid(), x.tanh(), x.erf()), (X,)),
    "angles": (lambda x: (x.sin(), x.cos(), x.atan(), torch.atan2(x, x + 1)), (X,)),
    "activations": (
        lambda x: (
            f.relu(x), f.relu6(x), f.leaky_relu(x, 0.1), f.elu(x), f.selu(x), f.celu(x),
            f.gelu(x), f.gelu(x, approximate="tanh"), f.silu(x), f.mish(x), f.softplus(x),
            f.hardtanh(x), f.hardswish(x), f.hardsigmoid(x), f.logsigmoid(x), f.glu(x[..., :4]),
            f.softsign(x), f.tanhshrink(x), f.hardshrink(x), f.softshrink(x),
            f.threshold(x, 0.1, 2),
        ),
        (X,),
    ),
    "extremes": (
        lambda x, y: (torch.maximum(x, y), torch.minimum(x, y), x.clamp(-1, 1), x.clamp(min=0.0)),
        (X, Y),
    ),
    "comparisons": (
        lambda x, y: (x < y, x <= 0.5, x > y, x >= y, x == y, x != y, (x > 0) & (y > 0),
                      (x > 0) | (y > 0), ~(x > 0), torch.logical_xor(x > 0, y > 0)),
        (X, Y),
    ),
    "choices": (
        lambda x, y: (torch.where(x > 0, x, y), torch.where(x > 0, x, 0.0),
                      x.masked_fill(y > 0, -math.inf)),
        (X, Y),
    ),
    "conversions": (lambda x: (x.to(torch.float64), x.long(), x.bool(), x.half().float()), (X,)),
    "reductions": (
        lambda x: (
            x.sum(), x.sum(1), x.mean((0, 2), keepdim=True), x.prod(1), x.amax(1), x.amin((0, 1)),
            x.max(), x.max(2), x.min(1, keepdim=True), x.argmax(1), x.argmin(), x.std(1),
            x.var((1, 2), unbiased=False), torch.logsumexp(x, 1), x.norm(), x.norm(dim=1),
            torch.linalg.vector_norm(x, 1, 1), x.cumsum(1), x.cumprod(2),
        ),
        (X,),
    ),
    "truths": (lambda x: ((x > 0).any(), (x > 0).all(1), (x > 1).sum(1), (x > 0).any(2)), (X,)),
    "orders": (lambda x: (*torch.topk(x, 2, 1), *torch.sort(x, 2, True), x.argsort(0)), (X,)),
    "softmax": (lambda x: (f.softmax(x, 1), f.log_softmax(x, -1), f.softmin(x, 0)), (X,)),
    "views": (
        lambda x: (
            x.view(3, 20), x.reshape(-1, 2), x.flatten(1), x.unflatten(2, (5, 1)),
            x.permute(2, 0, 1), x.transpose(1, 2), x.unsqueeze(1).squeeze(1), x[None].squeeze(),
            x.expand(2, 3, 4, 5), x[:, :1].expand_as(x), x.repeat(2, 1, 3), x.movedim(0, 2),
        ),
        (X,),
    ),
    "joins": (
        lambda x, y: (torch.cat([x, y], 1), torch.stack([x, y], 2), *x.split(2, 1),
                      *x.split([1, 3], 1), *x.chunk(2, 2), *x.unbind(1)),
        (X, Y),
    ),
    "slices": (
        lambda x: (x[1], x[:, 1:3], x[..., ::2], x[:, -1], x[:, :-1], x.narrow(2, 1, 3),
                   x.flip(1), x.roll(1, 2), x.roll((1, 2), (0, 1)), x.roll(3)),
        (X,),
    ),
    "triangles": (lambda x: (x.tril(), x.triu(), x.tril(-1), x.triu(1)), (X,)),
    "indices": (
        lambda x, i: (
            x[i[:, 0] % 3], x.index_select(1, i[0] % 4), x.gather(2, i[:, :, None] % 5),
            x[:, i[0] % 4, i[0] % 5], torch.zeros(3, 4, 7).scatter(2, i[:, :, None], 1.0),
            torch.zeros(3, 7).scatter_add(1, i, x[:, :, 0]), f.one_hot(i, 7),
            torch.zeros(7).index_put((i[0],), x[0, :, 0], accumulate=True),
        ),
        (X, COUNTS),
    ),
    "writes": (lambda x, y: _written(x.clone(), y), (X, Y)),
    "creation": (
        lambda x: (
            x + torch.arange(5), torch.arange(1, 7, 2) + x.size(0), torch.zeros_like(x) + 1,
            torch.full((2, 3), 0.5), torch.ones(2) * x[0, 0, 0], x.new_zeros(2), torch.eye(3) + 0,
            torch.linspace(0, 1, 5) * x, torch.full_like(x, 2.0),
        ),
        (X,),
    ),
    "products": (
        lambda x, y: (x @ y.transpose(1, 2), torch.bmm(x, y.mT), x[0] @ y[0].T,
                      torch.einsum("abc,abd->acd", x, y), torch.addmm(x[0, :, :4], x[0, :, :4],
                      y[0, :, :4], beta=2, alpha=3), torch.outer(x[0, 0], y[0, 0]),
                      torch.baddbmm(x[:, :, :4], x, y.mT)),
        (X, Y),
    ),
    "max_pool": (
        lambda x: (f.max_pool2d(x, 2), f.max_pool2d(x, 3, 2, 1), f.max_pool2d(x, 3, 2, 1,
                   ceil_mode=True), f.max_pool2d(x, (3, 2), (2, 1), ceil_mode=True)),
        (IMAGE,),
    ),
    "avg_pool": (
        lambda x: (f.avg_pool2d(x, 2), f.avg_pool2d(x, 3, 2, 1), f.avg_pool2d(x, 3, 2, 1,
                   count_include_pad=False), f.avg_pool2d(x, 2, 2, ceil_mode=True,
                   count_include_pad=False)),
        (IMAGE,),
    ),
    "adaptive_pool": (
        lambda x: (f.adaptive_avg_pool2d(x, 1), f.adaptive_avg_pool2d(x, (3, 4)),
                   f.adaptive_max_pool2d(x, (3, 2))),
        (IMAGE,),
    ),
    "pool1d": (
        lambda x: (f.max_pool1d(x, 3, 2, 1), f.avg_pool1d(x, 2), f.adaptive_avg_pool1d(x, 1)),
        (SIGNAL,),
    ),
    "resampling": (
        lambda x: (f.interpolate(x, scale_factor=2), f.interpolate(x, (5, 12)),
                   f.interpolate(x, scale_factor=2, mode="bilinear"),
                   f.interpolate(x, (13, 7), mode="bilinear", align_corners=True),
                   f.interpolate(x, (13, 7), mode="bicubic")),
        (IMAGE,),
    ),
    "padding": (
        lambda x: (f.pad(x, (1, 2)), f.pad(x, (1, 0, 2, 1), value=3.0), f.pad(x, (-1, 1)),
                   f.pad(x, (1, 2, 2, 1), mode="reflect"), f.pad(x, (1, 2, 2, 1),
                   mode="replicate"), f.pad(x, (1, 2, 0, 3), mode="circular"),
                   f.pad(x, (-1, 2, 2, -1), mode="circular")),
        (IMAGE,),
    ),
    "shuffles": (
        lambda x: (f.pixel_shuffle(x, 2), f.channel_shuffle(x, 2), f.pixel_unshuffle(x[..., :8,
                   :], 2)),
        (IMAGE,),
    ),
    "attention": (
        lambda q, k: (
            f.scaled_dot_product_attention(q, k, k),
            f.scaled_dot_product_attention(q, q, q, is_causal=True),
            f.scaled_dot_product_attention(q, k, k, attn_mask=torch.ones(5, 7).tril(2).bool()),
            f.scaled_dot_product_attention(q, k, k, attn_mask=torch.ones(5, 7) * 0.5, scale=0.3),
        ),
        (floats(2, 3, 5, 4), floats(2, 3, 7, 4, seed=2)),
    ),
}  # fmt: skip


def _written(x: Any, y: Any) -> Any:
    x[:, 1] = y[:, 0]
    x[..., 1:3] += 1
    x[0] = 5.0
    return x


@pytest.mark.parametrize("name", CASES)
def test_operators_compute_as_in_torch(name: str) -> None:
    function, inputs = CASES[name]
    module = from_module(Wrapped(function), inputs)
    given = [as_tensor(value) for value in inputs]
    expect_same(module(*given), function(*inputs))


LAYERS: dict[str, tuple[Callable[[], Any], tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(5, 3), (2, 4, 5)),
    "conv1d": (lambda: nn.Conv1d(4, 6, 3, 2, 1, groups=2), (2, 4, 9)),
    "conv2d": (lambda: nn.Conv2d(4, 6, 3, (2, 1), (1, 2), groups=2), (2, 4, 9, 8)),
    "conv2d_dilated": (lambda: nn.Conv2d(4, 6, 3, 1, 2, 2, bias=False), (2, 4, 9, 8)),
    "conv2d_same": (lambda: nn.Conv2d(4, 6, 4, padding="same"), (2, 4, 9, 8)),
    "conv2d_reflect": (lambda: nn.Conv2d(4, 6, 3, padding=1, padding_mode="reflect"), (2, 4, 9, 8)),
    "conv3d": (lambda: nn.Conv3d(2, 4, 3, 1, 1, groups=2), (2, 2, 5, 6, 7)),
    "conv2d_circular": (
        lambda: nn.Conv2d(4, 6, 3, padding=(1, 2), padding_mode="circular"),
        (2, 4, 9, 8),
    ),
    "max_pool3d": (lambda: nn.MaxPool3d((2, 3, 2), (1, 2, 2), (1, 1, 0)), (2, 2, 5, 6, 7)),
    "max_pool3d_ceil": (lambda: nn.MaxPool3d(2, ceil_mode=True), (2, 2, 5, 6, 7)),
    "conv_transpose1d": (lambda: nn.ConvTranspose1d(4, 6, 3, 2, 1, 1), (2, 4, 9)),
    "conv_transpose2d": (lambda: nn.ConvTranspose2d(4, 6, 3, 2, 1, 1, groups=2), (2, 4, 5, 6)),
    "batch_norm1d": (lambda: nn.BatchNorm1d(4), (6, 4)),
    "batch_norm2d": (lambda: nn.BatchNorm2d(4, momentum=0.3), (6, 4, 3, 3)),
    "instance_norm": (lambda: nn.InstanceNorm2d(4, affine=True), (2, 4, 5, 5)),
    "group_norm": (lambda: nn.GroupNorm(2, 4), (2, 4, 5, 5)),
    "layer_norm": (lambda: nn.LayerNorm((4, 5)), (3, 4, 5)),
    "layer_norm_plain": (lambda: nn.LayerNorm(5, elementwise_affine=False), (3, 4, 5)),
    "rms_norm": (lambda: nn.RMSNorm(5), (3, 4, 5)),
    "prelu": (lambda: nn.PReLU(4), (2, 4, 5, 5)),
    "lstm": (lambda: First(nn.LSTM(5, 3, 2, batch_first=True)), (2, 4, 5)),
    "gru": (lambda: First(nn.GRU(5, 3)), (4, 2, 5)),
    "encoder": (lambda: nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True), (2, 5, 8)),
    "attention": (lambda: SelfAttention(8, 2), (2, 5, 8)),
}


class First(nn.Module):
    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Any) -> Any:
        return self.inner(x)[0]


class SelfAttention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)

    def forward(self, x: Any) -> Any:
        return self.attention(x, x, x)


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("name", LAYERS)
def test_layers_their_gradients_and_buffers(name: str, training: bool) -> None:
    make, shape = LAYERS[name]
    torch.manual_seed(0)
    theirs = make().train(training)
    ours = from_module(theirs, (floats(*shape),))
    assert ours.training is training
    theirs.load_state_dict(to_torch(ours.state_dict()))
    x = floats(*shape, seed=3).requires_grad_()
    given = as_tensor(x)
    wanted = theirs(x)
    scale = [floats(*part.shape, seed=4) for part in _several(wanted)]
    manager = GradManager().attach([*ours.parameters(), given])
    with manager:
        found = ours(given)
        loss = sum(
            (F.sum(part * as_tensor(s)) for part, s in zip(_several(found), scale, strict=True)),
            start=F.zeros(()),
        )
        manager.backward(loss)
    sum((part * s).sum() for part, s in zip(_several(wanted), scale, strict=True)).backward()
    expect_same(found, wanted)
    expect_same(given.grad, x.grad)
    gradients = {key: value.grad for key, value in theirs.named_parameters()}
    names = dict(ours.named_parameters())
    assert names.keys() == gradients.keys()
    for key, parameter in names.items():
        np.testing.assert_allclose(
            parameter.grad.numpy(), gradients[key].numpy(), rtol=1e-3, atol=1e-4, err_msg=key
        )
    for key, buffer in theirs.named_buffers():
        expect_same(dict(ours.named_buffers())[key], buffer)


def _several(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (tuple, list)) else [value]


class Pictures(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 6, 3, 2, 1, bias=False)
        self.norm = nn.BatchNorm2d(6)
        self.drop = nn.Dropout(0.5)
        self.head = nn.Sequential(nn.Linear(6, 8), nn.Hardswish(), nn.Linear(8, 3))

    def forward(self, image: Any) -> Any:
        x = f.relu(self.norm(self.conv(image)))
        return self.head(self.drop(f.adaptive_avg_pool2d(x, 1).flatten(1)))


def test_a_network_of_any_batch_and_size_runs_traced(tmp_path: Path) -> None:
    torch.manual_seed(0)
    theirs = Pictures().eval()
    open_ones = {"image": {0: "batch", 2: "height", 3: "width"}}
    ours = from_module(theirs, (floats(2, 1, 12, 10),), open_ones)
    assert {name for name, _ in ours.named_parameters()} == dict(theirs.named_parameters()).keys()
    traced = jit.trace(ours, capture_as_const=True)
    for shape in ((2, 1, 12, 10), (1, 1, 9, 14), (5, 1, 4, 4)):
        x = floats(*shape)
        with torch.no_grad():
            wanted = theirs(x)
        expect_same(ours(as_tensor(x)), wanted)
        expect_same(traced(as_tensor(x)), wanted)
    traced.dump(tmp_path / "x.tym")
    found = jit.load(tmp_path / "x.tym")(floats(5, 1, 4, 4).numpy())
    np.testing.assert_allclose(found, wanted.numpy(), rtol=1e-4, atol=1e-5)


def test_training_goes_as_in_torch() -> None:
    torch.manual_seed(0)
    theirs = Pictures().train()
    theirs.drop.p = 0.0
    ours = from_module(theirs, (floats(4, 1, 8, 8),))
    x, labels = floats(4, 1, 8, 8, seed=5), torch.tensor([0, 1, 2, 1])
    step = torch.optim.SGD(theirs.parameters(), lr=0.1, momentum=0.9)
    optimizer = SGD(ours.parameters(), lr=0.1, momentum=0.9)
    manager = GradManager().attach(ours.parameters())

    @jit.trace
    def train(image: Tensor, label: Tensor) -> Tensor:
        with manager:
            loss = F.loss.cross_entropy(ours(image), label)
            manager.backward(loss)
        optimizer.step().clear_grad()
        return loss

    for _ in range(5):
        step.zero_grad()
        wanted = f.cross_entropy(theirs(x), labels)
        wanted.backward()
        step.step()
        expect_same(train(as_tensor(x), as_tensor(labels.int())), wanted)
    state = ours.state_dict()
    for name, value in theirs.state_dict().items():
        np.testing.assert_allclose(state[name], value.numpy(), rtol=1e-3, atol=1e-5, err_msg=name)
    assert int(state["norm.num_batches_tracked"]) == 5
    expect_same(ours.eval()(as_tensor(x)), theirs.eval()(x))


def test_dropout_drops_in_training_only() -> None:
    theirs = Pictures().train()
    ours = from_module(theirs, (floats(4, 1, 8, 8),))
    x = as_tensor(floats(4, 1, 8, 8))
    tianyuan.random.seed(3)
    first, second = ours(x).numpy(), ours(x).numpy()
    assert not np.array_equal(first, second)
    ours.eval()
    before = ours.state_dict()
    np.testing.assert_array_equal(ours(x).numpy(), ours(x).numpy())
    for name, value in ours.state_dict().items():
        np.testing.assert_array_equal(value, before[name])
    expect_same(ours(x), _loaded(Pictures(), ours).eval()(floats(4, 1, 8, 8)))
    dropped = from_module(nn.Dropout(0.25).train(), (floats(40, 50),))(Tensor(np.ones((40, 50))))
    kept = dropped.numpy() != 0
    np.testing.assert_allclose(dropped.numpy()[kept], 1 / 0.75, rtol=1e-6)
    assert abs(kept.mean() - 0.75) < 0.05


def _loaded(theirs: Any, ours: TorchModule) -> Any:
    theirs.load_state_dict(to_torch(ours.state_dict()))
    return theirs


def test_a_torch_state_dict_loads_into_it(tmp_path: Path) -> None:
    torch.manual_seed(1)
    source = Pictures().eval()
    ours = from_module(Pictures().eval(), (floats(2, 1, 8, 8),))
    torch.save(source.state_dict(), tmp_path / "x.pt")
    load_into(ours, tmp_path / "x.pt", strict=False)
    x = floats(2, 1, 8, 8)
    expect_same(ours(as_tensor(x)), source(x))


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4, bias=False)
        self.second = nn.Linear(4, 4, bias=False)
        self.second.weight = self.first.weight
        self.frozen = nn.Parameter(torch.ones(4), requires_grad=False)
        self.register_buffer("table", torch.arange(4))

    def forward(self, pair: Any, named: Any, times: int, mask: Any = None) -> Any:
        x = self.first(pair[0]) + self.second(pair[1]) * self.frozen
        return {"sum": x * times, "rest": [named["a"] + self.table, (x,)]}


def test_nested_inputs_shared_frozen_and_integer_tensors() -> None:
    theirs = Nested()
    given = ((floats(3, 4), floats(3, 4, seed=1)), {"a": whole(5, 3, 4)}, 3)
    ours = from_module(theirs, given)
    assert [name for name, _ in ours.named_parameters()] == ["first.weight"]
    assert isinstance(ours.first.weight, Parameter)
    assert ours.second.weight is ours.first.weight
    assert ours.table.dtype == np.int64
    (left, right), named, _ = given
    found = ours((as_tensor(left), as_tensor(right)), {"a": as_tensor(named["a"])}, 3)
    wanted = theirs(*given)
    expect_same(found["sum"], wanted["sum"])
    expect_same(found["rest"], wanted["rest"])
    with pytest.raises(TianyuanError, match="wrong number of inputs, got 1, expected 4"):
        ours(as_tensor(left))


def test_all_unknown_operators_are_named_with_their_lines() -> None:
    def strange(x: Any) -> Any:
        return (
            torch.fft.rfft(x).real + torch.special.bessel_j0(x)[..., :3] + torch.digamma(x)[..., :3]
        )

    with pytest.raises(GraphError) as caught:
        from_module(Wrapped(strange), (floats(3, 4),))
    text = str(caught.value)
    for name in ("aten._fft_r2c", "aten.special_bessel_j0", "aten.digamma"):
        assert name in text
    assert "test_from_module.py" in text


def test_uses_without_counterpart_are_refused_when_the_module_is_made() -> None:
    with pytest.raises(TianyuanError, match=r"max_pool2d.*dilation must be 1"):
        from_module(Wrapped(lambda x: f.max_pool2d(x, 2, dilation=2)), (IMAGE,))
    with pytest.raises(TianyuanError, match="a mask as index"):
        from_module(Wrapped(lambda x, m: torch.ops.aten.index(x, [m])), (X, X[:, 0, 0] > 9))
    with pytest.raises(TraceError, match=r"torch\.export refuses"):
        from_module(Wrapped(lambda x: x if x.sum() > 0 else -x), (X,))
    with pytest.raises(TraceError, match="names no input"):
        from_module(Pictures(), (floats(2, 1, 8, 8),), {"picture": {0: "batch"}})


def test_modules_and_examples_that_do_not_fit_are_refused() -> None:
    layer = nn.Linear(3, 2)
    with pytest.raises(TypeError, match=r"got int, expected a torch\.nn\.Module"):
        from_module(3, (X,))
    with pytest.raises(TypeError, match="got Tensor, expected one item per argument"):
        from_module(layer, floats(2, 3))
    with pytest.raises(TypeError, match="do not fit forward.*got 0 of them"):
        from_module(layer, ())
    with pytest.raises(TypeError, match="do not fit forward.*got 2 of them"):
        from_module(layer, (floats(2, 3), floats(2, 3)))
