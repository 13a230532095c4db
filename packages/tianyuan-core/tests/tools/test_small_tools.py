"""The small tools: deprecation, futures, recursion, names, paths into modules, folded norms."""

from __future__ import annotations

import subprocess
import sys
import threading
import warnings

import numpy as np
import pytest
import tianyuan as ty
from tianyuan import module as M
from tianyuan.errors import AttrError, TianyuanError
from tianyuan.utils.bn_fusion import (
    fold_weight_bias,
    fuse_conv_bn_relu_module,
    fuse_linear_bn_relu_module,
)
from tianyuan.utils.deprecation import deprecated_func, deprecated_kwargs_default
from tianyuan.utils.future import Future
from tianyuan.utils.hook import HookHandler
from tianyuan.utils.max_recursion_limit import AlternativeRecursionLimit, max_recursion_limit
from tianyuan.utils.module_utils import (
    get_expand_structure,
    set_expand_structure,
    set_module_mode_safe,
)
from tianyuan.utils.naming import AutoNaming

RNG = np.random.default_rng(3)


def test_deprecated_function_warns_once_and_works() -> None:
    root = deprecated_func("1.2", "math", "sqrt", tbd=False)
    with pytest.warns(DeprecationWarning, match=r"since version 1\.2, use math\.sqrt"):
        assert root(9.0) == 3.0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert root(16.0) == 4.0
        assert deprecated_func("1.2", "math", "sqrt", tbd=True)(4.0) == 2.0
    assert root.__name__ == "sqrt"


def test_deprecated_default_warns_where_it_is_left() -> None:
    @deprecated_kwargs_default("2.0", "axis", 1)
    def total(x: int, axis: int = 0) -> int:
        return x + axis

    with pytest.warns(DeprecationWarning, match="total: leaving 'axis' at its default"):
        assert total(1) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert (total(1, 2), total(1, axis=3)) == (3, 4)


def test_future_waits_for_the_taker() -> None:
    future = Future()
    done = threading.Event()

    def give() -> None:
        future.set({"x": 1})
        done.set()

    thread = threading.Thread(target=give)
    thread.start()
    assert not done.wait(0.05)  # nobody has taken it
    assert future.get() == {"x": 1}
    assert done.wait(10)
    thread.join()
    with pytest.raises(TianyuanError, match="given before"):
        future.set(2)
    free = Future(ack=False)
    free.set(None)
    assert free.get() is None


def test_hook_handler() -> None:
    hooks: dict[int, object] = {}
    first, second = HookHandler(hooks, print), HookHandler(hooks, len)
    first.remove()
    first.remove()
    assert list(hooks.values()) == [len]
    second.remove()
    assert hooks == {}


def test_recursion_limit_is_put_back() -> None:
    def depth(n: int) -> int:
        return 0 if n == 0 else 1 + depth(n - 1)

    before = sys.getrecursionlimit()
    with pytest.raises(RecursionError):
        depth(before + 10)
    with max_recursion_limit(), max_recursion_limit():
        assert depth(before + 10) == before + 10
    assert sys.getrecursionlimit() == before
    with pytest.raises(KeyError), AlternativeRecursionLimit(before + 500) as block:
        raise KeyError(block.new_py_limit)
    assert sys.getrecursionlimit() == before


def test_names_follow_scopes_and_are_never_given_twice() -> None:
    AutoNaming.clear()
    assert AutoNaming.get_scope() == ""
    AutoNaming.push_scope("net")
    with AutoNaming.scope("0"):
        assert AutoNaming.get_scope() == "net.0"
        assert AutoNaming.gen_name(ty.Tensor([1.0], name="w")) == "net.0.w"
        assert [AutoNaming.gen_name("w") for _ in range(2)] == ["net.0.w_1", "net.0.w_2"]
        assert AutoNaming.gen_name("w_1") == "net.0.w_1_1"
    assert AutoNaming.pop_scope() == "net"
    assert AutoNaming.gen_name(ty.Tensor([1.0])) == "tensor"
    AutoNaming.record_var_name(7, "seven")
    assert (AutoNaming.get_var_name(7), AutoNaming.get_var_name(8)) == ("seven", None)
    AutoNaming.clear()
    assert (AutoNaming.gen_name("w"), AutoNaming.get_var_name(7)) == ("w", None)
    with pytest.raises(IndexError):
        AutoNaming.pop_scope()


class _Net(M.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = M.Linear(2, 3)
        self.blocks = [M.ReLU(), {"a": M.Sigmoid(), 1: M.ReLU()}]
        self.pair = (M.ReLU(), M.Linear(3, 4))

    def forward(self, inputs: ty.Tensor) -> ty.Tensor:
        return self.pair[1](self.stem(inputs))


def test_paths_into_a_module() -> None:
    net = _Net()
    assert get_expand_structure(net, "") is net
    assert get_expand_structure(net, "stem.weight") is net.stem.weight
    assert isinstance(get_expand_structure(net, "blocks.1.a"), M.Sigmoid)
    assert isinstance(get_expand_structure(net, "blocks.1.1"), M.ReLU)
    new = M.Linear(3, 5)
    for path in ("pair.1", "blocks.0", "blocks.1.1", "blocks.1.a", "stem"):
        set_expand_structure(net, path, new)
        assert get_expand_structure(net, path) is new
    assert isinstance(net.pair, tuple)
    assert isinstance(net.pair[0], M.ReLU)
    for path in ("blocks.7", "blocks.1.b", "none", "stem.x.y", ""):
        with pytest.raises(AttrError):
            set_expand_structure(net, path, new)
    with pytest.raises(AttrError, match="'blocks.7' leads nowhere"):
        get_expand_structure(net, "blocks.7")


def test_mode_of_every_module_is_put_back() -> None:
    net = _Net()
    net.stem.training = False
    with pytest.raises(KeyError), set_module_mode_safe(net, True):
        raise KeyError(seen := [m.training for m in net.modules()])
    with set_module_mode_safe(net):
        seen = [m.training for m in net.modules()]
    assert not any(seen)
    assert [net.training, net.stem.training, net.pair[1].training] == [True, False, True]


def _random_bn(bn: M.BatchNorm2d) -> M.BatchNorm2d:
    shape = (1, bn.num_features, 1, 1)
    bn.weight[...] = ty.Tensor(RNG.uniform(0.5, 2, shape))
    bn.bias[...] = ty.Tensor(RNG.normal(size=shape))
    bn.running_mean[...] = ty.Tensor(RNG.normal(size=shape))
    bn.running_var[...] = ty.Tensor(RNG.uniform(0.5, 2, shape))
    return bn


def _normalised(y: np.ndarray, bn: M.BatchNorm2d) -> np.ndarray:
    g, b, m, v = (
        t.numpy().reshape(1, -1, *[1] * (y.ndim - 2)).astype(np.float64)
        for t in (bn.weight, bn.bias, bn.running_mean, bn.running_var)
    )
    return g * (y - m) / np.sqrt(v + bn.eps) + b


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("relu", [None, M.ReLU()])
def test_convolution_with_folded_norm(groups: int, bias: bool, relu: M.ReLU | None) -> None:
    conv = M.Conv2d(4, 6, 3, padding=1, stride=2, groups=groups, bias=bias).eval()
    bn = _random_bn(M.BatchNorm2d(6)).eval()
    fused = fuse_conv_bn_relu_module(conv, bn, relu)
    assert type(fused) is (M.ConvRelu2d if relu else M.Conv2d)
    assert not fused.training
    x = ty.Tensor(RNG.normal(size=(2, 4, 5, 5)))
    want = _normalised(conv(x).numpy(), bn)
    want = np.maximum(want, 0) if relu else want
    np.testing.assert_allclose(fused(x).numpy(), want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("groups", [1, 2])
def test_transposed_weights_are_folded_over_their_second_axis(groups: int) -> None:
    conv = M.ConvTranspose2d(4, 6, 3, groups=groups).eval()
    bn = _random_bn(M.BatchNorm2d(6)).eval()
    x = ty.Tensor(RNG.normal(size=(2, 4, 5, 5)))
    want = _normalised(conv(x).numpy(), bn)
    weight, bias = fold_weight_bias(
        conv.weight, conv.bias, bn.weight, bn.bias, bn.running_mean, bn.running_var, bn.eps, True
    )
    assert weight.shape == conv.weight.shape
    conv.weight[...] = weight
    conv.bias[...] = bias
    np.testing.assert_allclose(conv(x).numpy(), want, rtol=1e-4, atol=1e-5)


def test_linear_with_folded_norm() -> None:
    linear, bn = M.Linear(3, 4).eval(), _random_bn(M.BatchNorm1d(4)).eval()
    x = ty.Tensor(RNG.normal(size=(5, 3)))
    fused = fuse_linear_bn_relu_module(linear, bn, M.ReLU())
    assert type(fused) is M.LinearRelu
    want = np.maximum(_normalised(linear(x).numpy(), bn), 0)
    np.testing.assert_allclose(fused(x).numpy(), want, rtol=1e-4, atol=1e-5)
    assert type(fuse_linear_bn_relu_module(linear, None, None)) is M.Linear


def test_training_keeps_the_norm_as_child() -> None:
    conv, bn = M.Conv2d(2, 3, 1), _random_bn(M.BatchNorm2d(3))
    fused = fuse_conv_bn_relu_module(conv, bn, M.ReLU())
    assert type(fused) is M.ConvBnRelu2d
    assert fused.bn is not bn
    x = ty.Tensor(RNG.normal(size=(4, 2, 3, 3)))
    want = np.maximum(bn(conv(x)).numpy(), 0)
    np.testing.assert_allclose(fused(x).numpy(), want, rtol=1e-5, atol=1e-6)
    assert type(fuse_linear_bn_relu_module(M.Linear(2, 3), M.BatchNorm1d(3), None)) is M.LinearBn1d


def test_parts_that_do_not_fit() -> None:
    with pytest.raises(AttrError, match="different modes"):
        fuse_conv_bn_relu_module(M.Conv2d(2, 3, 1), M.BatchNorm2d(3).eval(), None)
    with pytest.raises(AttrError, match="wrong channels, got 4, expected 3"):
        fuse_conv_bn_relu_module(M.Conv2d(2, 3, 1), M.BatchNorm2d(4), None)
    bare = M.BatchNorm2d(3, track_running_stats=False).eval()
    with pytest.raises(AttrError, match="running statistics"):
        fuse_conv_bn_relu_module(M.Conv2d(2, 3, 1).eval(), bare, None)


def test_modules_of_utils_load_when_they_are_named() -> None:
    code = (
        "import sys, tianyuan as ty\n"
        "assert 'tianyuan.utils.dlpack' not in sys.modules\n"
        "print(ty.utils.dlpack.from_dlpack.__name__, hasattr(ty.utils, 'nothing'))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["from_dlpack", "False"]
