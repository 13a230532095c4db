"""Dynamic dimensions hold for each example, or the dump says which line is in the way."""

import io
import math
import warnings

import numpy as np
import pytest
import tianyuan as ty
import tianyuan.functional as F
from tianyuan.errors import ShapeError, TraceError
from tianyuan.jit import load, trace

TABLE = np.random.default_rng(0).normal(size=(16, 8)).astype("float32")


def dumped(function, args, **options):
    run = trace(function, capture_as_const=True)
    run(*map(ty.Tensor, args))
    file = io.BytesIO()
    run.dump(file, **options)
    file.seek(0)
    return load(file)


def answer(model, given):
    result = model(*(given[name] for name in sorted(given)))
    return np.asarray(result[0] if isinstance(result, (tuple, list)) else result)


@pytest.mark.parametrize("length", [1, 2, 3, 8, 9, 15, 16])
def test_learned_positions_hold_for_each_example(length):
    table = ty.Parameter(TABLE)
    model = dumped(
        lambda x: x + table[: x.shape[1]], [np.ones((2, length, 8), "float32")],
        dynamic_shapes={"x": {0: "n", 1: "t"}},
    )  # fmt: skip
    for n, t in ((1, 1), (2, 7), (3, 16)):
        x = np.ones((n, t, 8), "float32")
        found = answer(model, {"x": x})
        assert found == pytest.approx(x + TABLE[:t])
    with pytest.raises(ShapeError, match="17"):
        answer(model, {"x": np.ones((2, 17, 8), "float32")})


@pytest.mark.parametrize("length", [2, 3])
def test_short_tables(length):
    table = ty.Parameter(TABLE[:3])
    model = dumped(
        lambda x: x + table[: x.shape[0]], [np.ones((length, 8), "float32")],
        dynamic_shapes={"x": {0: "t"}},
    )  # fmt: skip
    for t in (1, 2, 3):
        found = answer(model, {"x": np.ones((t, 8), "float32")})
        assert found == pytest.approx(1 + TABLE[:t])


def test_what_takes_one_size_names_its_line():
    table = ty.Parameter(TABLE)
    with pytest.raises(TraceError, match=r"dimension t cannot have another size at .*sizes\.py:"):
        dumped(lambda x: x + table, [np.ones((16, 8), "float32")], dynamic_shapes={"x": {0: "t"}})


@pytest.mark.parametrize("use", [float, lambda n: n / 2, lambda n: 1 / n, math.sqrt])
def test_an_extent_that_is_cut_off_is_no_plain_number(use):
    def scaled(x):
        y = x[:, :2]
        return y * use(y.shape[1])  # 2 but for one column

    x = np.ones((2, 4), "float32")
    with pytest.raises(TraceError, match=r"dimension t is used as a plain number at .*sizes\.py:"):
        dumped(scaled, [x], dynamic_shapes={"x": {1: "t"}})
    model = dumped(scaled, [x])
    assert np.asarray(model(x)) == pytest.approx(x[:, :2] * use(2))


def test_one_dimension_under_two_names():
    pair = [np.ones((2, 4), "float32")] * 2
    two = {"a": {0: "n"}, "b": {0: "m"}}
    with pytest.raises(TraceError, match=r"m, n cannot vary apart.* at .*sizes\.py:"):
        dumped(lambda a, b: a + b, pair, dynamic_shapes=two)
    one = {"a": {0: "n"}, "b": {0: "n"}}
    model = dumped(lambda a, b: a + b, pair, dynamic_shapes=one)
    given = {"a": np.ones((3, 4), "float32"), "b": np.ones((3, 4), "float32")}
    found = answer(model, given)
    assert found.shape == (3, 4)
    model = dumped(lambda a, b: a.sum() + b.sum(), pair, dynamic_shapes=two)
    given = {"a": np.ones((1, 4), "float32"), "b": np.ones((3, 4), "float32")}
    found = answer(model, given)
    assert found == 16.0


@pytest.mark.parametrize(("new", "past"), [(3, 5), (4, 4), (1, 1)])
def test_a_dimension_that_is_the_sum_of_two_has_a_name_of_its_own(new, past):
    def attend(q, kept, mask):
        keys = F.concat([kept, q], 1)
        scores = F.matmul(q, keys, transpose_b=True) + mask
        return F.matmul(F.softmax(scores, -1), keys)

    def drawn(t, p):
        shapes = ((1, t, 8), (1, p, 8), (1, 1, p + t))
        return [np.random.default_rng(7).normal(size=s).astype("float32") for s in shapes]

    names = {"q": {1: "t"}, "kept": {1: "p"}, "mask": {2: "n"}}
    model = dumped(attend, drawn(new, past), dynamic_shapes=names)
    for t, p in ((2, 7), (1, 3), (5, 5)):
        q, kept, mask = drawn(t, p)
        keys = np.concatenate([kept, q], 1)
        scores = q @ keys.transpose(0, 2, 1) + mask
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        want = weights / weights.sum(-1, keepdims=True) @ keys
        np.testing.assert_allclose(np.asarray(model(q, kept, mask)), want, rtol=2e-4, atol=1e-5)
    with pytest.raises(ShapeError):
        model(q, kept, mask[..., 1:])


@pytest.mark.parametrize("kept", [2, 3, 7])
def test_a_dimension_that_is_another_and_one_has_a_name_of_its_own(kept):
    model = dumped(
        lambda k, m: F.concat([k, F.ones((1,))]) + m,
        [np.ones(kept, "float32"), np.ones(kept + 1, "float32")],
        dynamic_shapes={"k": {0: "p"}, "m": {0: "t"}},
    )  # fmt: skip
    for p in (1, 4, 6):
        k, m = np.arange(p, dtype="float32"), np.arange(p + 1, dtype="float32")
        assert np.asarray(model(k, m)) == pytest.approx(np.append(k, 1) + m)


def test_a_call_is_right_whatever_the_names():
    run = trace(lambda a, b: a + b, dynamic_shapes={"a": {0: "n"}, "b": {0: "m"}})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for n, m in ((2, 2), (1, 3), (3, 1), (4, 4)):
            found = run(ty.Tensor(np.ones((n, 4))), ty.Tensor(np.ones((m, 4))))
            assert found.shape == (max(n, m), 4)


@pytest.mark.parametrize("length", [7, 9, 16])
def test_learned_positions_go_to_onnx(length, tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    table = ty.Parameter(TABLE)
    example = ty.Tensor(np.ones((2, length, 8), "float32"))
    ty.onnx.export(
        lambda x: x + table[: x.shape[1]], tmp_path / "x.onnx", example,
        dynamic_shapes={"x": {1: "t"}},
    )  # fmt: skip
    session = runtime.InferenceSession(tmp_path / "x.onnx", providers=["CPUExecutionProvider"])
    for t in (1, 5, 16):
        x = np.ones((2, t, 8), "float32")
        assert session.run(None, {"x": x})[0] == pytest.approx(x + TABLE[:t])


@pytest.mark.parametrize(
    "total",
    [lambda n: np.arange(n).sum(), lambda n: sum(range(n)), lambda n: ty.Tensor([sum(range(n))])],
    ids=["numpy", "range", "tensor"],
)
def test_a_number_made_of_an_extent_is_of_one_size(total):
    """The graphs of two sizes differ in the value of a constant alone."""
    run = trace(lambda x: x * total(x.shape[0]), dynamic_shapes={"x": {0: "n"}})
    with pytest.warns(UserWarning, match=r"dimension n is used as a plain number at .*sizes\.py:"):
        run(ty.Tensor(np.ones(3, "float32")))
    for n in (3, 5, 2):
        found = run(ty.Tensor(np.ones(n, "float32")))
        assert found.numpy() == pytest.approx(np.full(n, n * (n - 1) / 2))


CLAMPED = {
    "head": lambda x: x[:, :2],
    "middle": lambda x: x[:, 1:4],
    "stepped": lambda x: x[:, :7:3],
    "far": lambda x: x[:, 20:],
    "turned": lambda x: x[:, 2::-1],
}


@pytest.mark.parametrize("length", [1, 4, 9])
@pytest.mark.parametrize("name", CLAMPED)
def test_an_extent_of_a_slice_that_was_taken_as_a_number(name, length):
    part = CLAMPED[name]

    def function(x):
        return x.sum(axis=1) * (1.5 * part(x).shape[1])

    run = trace(function, dynamic_shapes={"x": {1: "n"}})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for n in (length, 1, 2, 3, 5, 7, 8, 19, 21, 24):
            x = np.random.default_rng(n).normal(size=(2, n)).astype("float32")
            want = x.sum(axis=1) * 1.5 * part(x).shape[1]
            np.testing.assert_allclose(run(ty.Tensor(x)).numpy(), want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", CLAMPED)
def test_an_extent_of_a_slice_that_stays_one_is_dynamic(name):
    part = CLAMPED[name]
    run = trace(
        lambda x: part(x).sum(axis=1) * part(x).shape[1], dynamic_shapes={"x": {1: "n"}}
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a dimension that is fixed is told
        for n in (4, 1, 2, 3, 8, 24):
            x = np.random.default_rng(n).normal(size=(2, n)).astype("float32")
            want = part(x).sum(axis=1) * part(x).shape[1]
            np.testing.assert_allclose(run(ty.Tensor(x)).numpy(), want, rtol=1e-5, atol=1e-6)


CUTS = {
    "width": lambda x: F.nn.pad(x, ((0, 0), (0, -x.shape[1] % 4))),
    "pages": lambda x: F.nn.pad(x, ((0, 0), (0, x.shape[1] // 16))),
    "diagonal": lambda x: F.triu(F.ones((x.shape[1], x.shape[1])), x.shape[1] % 2),
    "bits": lambda x: x * ((x.shape[1] & 1) + 1),
    "shifted": lambda x: x * (x.shape[1] >> 2),
    "power": lambda x: x * x.shape[1] ** 2,
    "both": lambda x: x * sum(divmod(x.shape[1], 3)),
}


@pytest.mark.parametrize("length", [6, 7, 8])
@pytest.mark.parametrize("name", CUTS)
def test_quotients_remainders_and_bits_that_were_taken_as_numbers(name, length):
    """A number may be the same at the example's size and at twice of it."""
    function = CUTS[name]
    run = trace(function, dynamic_shapes={"x": {1: "t"}})
    fixed = trace(function, capture_as_const=True)
    fixed(ty.Tensor(np.ones((2, length), "float32")))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for t in (length, 5, 6, 7, 8, 9, 16, 33):
            x = ty.Tensor(np.random.default_rng(t).normal(size=(2, t)).astype("float32"))
            np.testing.assert_allclose(run(x).numpy(), function(x).numpy(), rtol=1e-6)
        with pytest.raises(TraceError, match="dimension t is used as a plain number at"):
            fixed.dump(io.BytesIO(), dynamic_shapes={"x": {1: "t"}})


def test_pages_that_stay_symbols_are_dynamic():
    model = dumped(
        lambda x: x[:, : x.shape[1] // 4 * 4], [np.ones((2, 8), "float32")],
        dynamic_shapes={"x": {1: "t"}},
    )  # fmt: skip
    for t in (4, 7, 8, 13):
        x = np.random.default_rng(t).normal(size=(2, t)).astype("float32")
        np.testing.assert_array_equal(answer(model, {"x": x}), x[:, : t // 4 * 4])


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x[:4] if len(x[:4]) == 4 else [][0],
        lambda x: x * {5: 2.0}[int(x.shape[0])],
        lambda x: x * ty.Tensor(np.ones((5, 1), "float32") + np.zeros((x.shape[0], 1), "float32")),
    ],
    ids=["slice", "dict", "numpy"],
)
def test_a_function_that_raises_its_own_errors_elsewhere_runs_where_it_can(function):
    run = trace(function, dynamic_shapes={"x": {0: "n"}})
    x = ty.Tensor(np.random.default_rng(0).normal(size=(5, 3)).astype("float32"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        np.testing.assert_allclose(run(x).numpy(), function(x).numpy())


@pytest.mark.parametrize(
    "row", [np.ones((1, 4), "float32"), np.float32([1, 2, 3, 4])], ids=["row", "vector"]
)
def test_rows_that_are_set_are_dynamic(row):
    """At a size of 1 nothing is broadcast, which is no other graph."""

    def function(a):
        y = a * 1
        y[:2] = ty.Tensor(row)
        return y

    model = dumped(function, [np.ones((10, 4), "float32")], dynamic_shapes={"a": {0: "n"}})
    for n in (1, 2, 3, 7):
        a = np.random.default_rng(n).normal(size=(n, 4)).astype("float32")
        want = a.copy()
        want[:2] = row
        np.testing.assert_array_equal(answer(model, {"a": a}), want)


def test_a_function_runs_few_times_however_many_slices_it_takes():
    calls = []

    def function(x):
        calls.append(x.shape)
        return sum(x[:, :n].sum() for n in range(2, 40))

    trace(function, dynamic_shapes={"x": {1: "t"}})(ty.Tensor(np.ones((2, 50), "float32")))
    assert len(calls) <= 4


MOVING = {
    "end": lambda x: x[: x.shape[0] - 3],
    "start": lambda x: x[x.shape[0] - 3 :],
    "both": lambda x: x[x.shape[0] - 5 : x.shape[0] - 2],
    "falling": lambda x: x[3 - x.shape[0] :],
    "backwards": lambda x: x[: x.shape[0] - 3 : -1],
    "from": lambda x: x[x.shape[0] - 3 :: -1],
    "half": lambda x: x[: x.shape[0] // 2 - 2],
    "double": lambda x: x[0 : 2 * x.shape[0] - 9],
    "window": lambda x: x[x.shape[0] - 6 :][:3],
    "always from the end": lambda x: x[-x.shape[0] // 2 - 1 :],
}


def cases_of(function):
    for n in range(1, 12):
        x = np.random.default_rng(n).normal(size=(n, 2)).astype("float32")
        yield x, function(x)


@pytest.mark.parametrize("first", [3, 5, 8])
@pytest.mark.parametrize("name", MOVING)
def test_bounds_whose_sign_depends_on_the_size(name, first):
    """Below 0 they count from the end, as in numpy."""
    function = MOVING[name]
    model = dumped(function, [np.ones((first, 2), "float32")], dynamic_shapes={"x": {0: "n"}})
    for x, want in cases_of(function):
        np.testing.assert_array_equal(answer(model, {"x": x}), want)


@pytest.mark.parametrize("name", MOVING)
def test_bounds_whose_sign_depends_on_the_size_go_to_onnx(name, tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    path, example = tmp_path / "x.onnx", ty.Tensor(np.ones((5, 2), "float32"))
    ty.onnx.export(MOVING[name], path, example, dynamic_shapes={"x": {0: "n"}})
    session = runtime.InferenceSession(path, providers=["CPUExecutionProvider"])
    for x, want in cases_of(MOVING[name]):
        np.testing.assert_array_equal(session.run(None, {"x": x})[0], want)


def test_an_index_whose_sign_depends_on_the_size():
    model = dumped(
        lambda x: x[x.shape[0] - 3], [np.ones((5, 2), "float32")], dynamic_shapes={"x": {0: "n"}}
    )
    for n in (2, 3, 4, 9):
        x = np.random.default_rng(n).normal(size=(n, 2)).astype("float32")
        np.testing.assert_array_equal(answer(model, {"x": x}), x[n - 3])
