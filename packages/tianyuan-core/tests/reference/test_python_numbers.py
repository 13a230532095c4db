"""What Python's numbers, indices and calls get of tensors and models, and how they are refused."""

from __future__ import annotations

import io

import numpy as np
import pytest
import tianyuan
import tianyuan.functional as F
from tianyuan import Tensor, jit
from tianyuan.errors import (
    AttrTypeError,
    CallError,
    DTypeError,
    IndexRangeError,
    ShapeError,
    TianyuanError,
)
from tianyuan.functional.quantized import qint8, quint8


@pytest.mark.parametrize("kind", [float, int, complex, bool])
@pytest.mark.parametrize("shape", [(2,), (0,), (1, 3)])
def test_several_elements_are_no_number(kind, shape):
    with pytest.raises(ShapeError, match=rf"{kind.__name__}: .* needs one element, got shape"):
        kind(Tensor(np.ones(shape, np.float32)))
    # numpy raises TypeError of float, ValueError of bool and item, PyTorch RuntimeError.
    for expected in (TypeError, ValueError, RuntimeError, TianyuanError):
        with pytest.raises(expected):
            kind(Tensor(np.ones(shape, np.float32)))
    with pytest.raises(ValueError, match="item: a Python number needs one element, got shape"):
        Tensor(np.ones(shape, np.float32)).item()
    with pytest.raises(TypeError, match="index: a Python number needs one element"):
        range(Tensor(np.ones(shape, np.int32)))


def test_indices_of_items():
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert Tensor(x).item(4) == x.item(4)
    assert Tensor(x).item(1, 2) == x.item(1, 2)
    for index in ((6,), (0, 3), (-7,)):
        with pytest.raises(IndexError):
            x.item(*index)
        with pytest.raises(IndexRangeError, match="item: index is out of range, got"):
            Tensor(x).item(*index)
    for index in ((0, 0, 0), ("a",)):
        with pytest.raises(ShapeError, match="item: index is wrong, got"):
            Tensor(x).item(*index)


def test_axes_of_a_number():
    for call in (len, iter):
        with pytest.raises(TypeError, match="0-d tensor"):
            call(Tensor(1.0))
        with pytest.raises(TianyuanError, match="0-d tensor"):
            call(Tensor(1.0))


def test_complex_is_not_real():
    x = Tensor(1 + 2j)
    assert complex(x) == 1 + 2j
    for kind in (float, int):
        with pytest.raises(TypeError, match=f"{kind.__name__}: a complex number is no real one"):
            kind(x)


@pytest.mark.parametrize("form", [quint8(0.5, 10), qint8(0.25)])
def test_numbers_of_quantised_tensors_are_what_they_stand_for(form):
    x = Tensor(np.float32([[1.5, -2.0], [0.0, 3.0]]), dtype=form)
    assert float(x[0, 0]) == 1.5
    assert complex(x[0, 1]) == -2.0
    assert [bool(v) for v in x.flatten()] == [True, True, False, True]
    assert x[0, 0].item() == int(x[0, 0]) == int(round(1.5 / form.scale)) + form.zero_point
    for made, value in ((F.full_like(x, 3), 3.0), (F.ones_like(x), 1.0), (F.zeros_like(x), 0.0)):
        assert made.qparams == x.qparams
        assert made.dtype == x.dtype
        np.testing.assert_array_equal(made.astype("float32").numpy(), np.full((2, 2), value))
    top = (np.iinfo(x.dtype).max - form.zero_point) * form.scale
    assert F.full_like(x, 1e9).astype("float32").numpy().max() == top
    traced = jit.trace(lambda x: F.full_like(x, 1.5), symbolic=True)
    for _ in range(2):
        assert traced(x).qparams == x.qparams
        np.testing.assert_array_equal(traced(x).astype("float32").numpy(), np.full((2, 2), 1.5))


def test_scales_per_channel_are_kept():
    from tianyuan import registry

    x = registry.get_op("quantize")(
        Tensor([[1.0, 2.0]]), scales=(0.5, 0.25), zero_points=(1, 2), axis=1, dtype="int8"
    )
    made = F.full_like(x, 2.0)
    assert made.qparams == x.qparams
    assert made.tolist() == [[5, 10]]


def test_calls_of_models_and_traces(tmp_path):
    traced = jit.trace(lambda x: x * 2, symbolic=True, capture_as_const=True)
    traced(Tensor([1.0]))
    traced.dump(str(tmp_path / "net.tym"), arg_names=["x"])
    model, x = jit.load(str(tmp_path / "net.tym")), np.float32([1.0])
    calls = (
        model, lambda: model(x, x), lambda: model(y=x), lambda: model(x, x=x), traced,
        lambda: traced(x, x),
    )  # fmt: skip
    for call in calls:
        with pytest.raises(CallError, match=r"got .*|expected <lambda>\(x\)"):
            call()
        with pytest.raises(TypeError):
            call()


@pytest.mark.parametrize("file", [None, 3, io.StringIO("a")])
def test_files_that_are_none(file):
    with pytest.raises(AttrTypeError, match="load: file is wrong, got .*, expected a path"):
        tianyuan.load(file)
    with pytest.raises(AttrTypeError, match="save: file is wrong, got .*, expected a path"):
        tianyuan.save({"a": 1}, file)


@pytest.mark.parametrize("symbolic", [True, False])
def test_traces_of_quantised_tensors_are_their_functions(symbolic):
    x = Tensor(np.float32([[1.5, -2.0], [0.0, 3.0]]), dtype=quint8(0.5, 10))
    numbers = [[1.5, -2.0], [0.0, 3.0]]
    floats = jit.trace(lambda x: x.astype("float32") * 2, symbolic=symbolic)
    turned = jit.trace(lambda x: F.flip(x, 0), symbolic=symbolic)
    for _ in range(2):
        np.testing.assert_array_equal(floats(x).numpy(), 2 * np.float32(numbers))
        assert turned(x).qparams == x.qparams
        assert turned(x).astype("float32").tolist() == numbers[::-1]
    other = Tensor(np.float32(numbers), dtype=quint8(0.25, 100))
    np.testing.assert_array_equal(floats(other).numpy(), 2 * np.float32(numbers))
    np.testing.assert_array_equal(floats(Tensor([1, 2])).numpy(), [2, 4])
    with pytest.raises(DTypeError, match="add: an input is quantised"):
        jit.trace(lambda x: x + 1, symbolic=symbolic)(x)
    made = jit.trace(lambda x: x.astype(qint8(0.5)), symbolic=symbolic)(Tensor(numbers))
    assert made.qparams.scales == (0.5,)
    assert made.tolist() == [[3, -4], [0, 6]]


@pytest.mark.parametrize("dtype", ["bool", "complex64", "float16", "bfloat16", "float64"])
def test_other_kinds_than_integers_are_made_of_the_numbers(dtype):
    numbers = [1.5, -2.0, 0.0, 3.0]
    x = Tensor(np.float32(numbers), dtype=quint8(0.5, 10))
    want = np.array(numbers, bool if dtype == "bool" else complex)
    found = x.astype(dtype)
    assert found.dtype.name == dtype
    np.testing.assert_array_equal(found.numpy().astype(want.dtype), want)
    assert F.non_zero(x).tolist() == [[0], [1], [3]]
    with pytest.raises(DTypeError, match="an input is quantised"):
        F.logical_not(x)
    assert x.astype("int32").tolist() == [13, 6, 10, 16]


def test_orders_of_integers_of_several_scales_are_refused():
    from tianyuan import registry

    numbers = np.float32([[3.0, 4.0], [2.0, 1.0]])
    x = registry.get_op("quantize")(
        Tensor(numbers), scales=(0.25, 1.0), zero_points=(0, 0), axis=1, dtype="int8"
    )
    for call in (lambda: F.argmax(x, 1), lambda: F.argmin(x, 1), lambda: F.argsort(x)):
        with pytest.raises(DTypeError, match="an input is quantised"):
            call()
    one = Tensor(numbers, dtype=quint8(0.5, 3))
    np.testing.assert_array_equal(F.argmax(one, 1).numpy(), numbers.argmax(1))
