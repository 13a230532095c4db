"""What holds for every op: special values as numpy, strides, eager = traced = from a file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tianyuan as ty
from tianyuan import registry
from tianyuan.dtypes import is_float
from tianyuan.errors import KernelError, ShapeError
from tianyuan.imperative.tensor import create
from tianyuan.jit import load, trace
from tianyuan.ops.reference import evaluate
from tianyuan.testing.cases import Case, cases_of
from tianyuan.testing.compare import difference
from tianyuan.testing.proof import ANSWERS, FACTORS, STATES_SPECIAL, flipped, small_cases
from tianyuan.testing.special import NUMPY, grid, planted

NAMES = sorted(op.name for op in registry.all_ops())
# What an infinity becomes here depends on the order of sums whose terms cancel.
NAN_ONLY = {
    "softmax", "log_softmax", "softmax_backward", "log_softmax_backward", "batch_norm_backward",
    "layer_norm_backward",
}  # fmt: skip
EACH = 6  # calls of an op that go through all the ways to run it


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", sorted(NUMPY))
def test_special_values_are_numpys(name: str, dtype: str) -> None:
    op = registry.get_op(name)
    arrays = [x.astype(dtype) for x in grid(op.n_inputs)]
    with np.errstate(all="ignore"):
        want = np.asarray(NUMPY[name](*(x.astype(np.float64) for x in arrays)))
        (got,) = evaluate(op, arrays, op.attrs())
    # Signed zeros too: a reciprocal tells them apart.
    wrong = difference(Case(name, (), op.attrs()), [got], [want.astype(got.dtype)])
    assert wrong is None


def test_the_grid_holds_every_pair() -> None:
    left, right = grid(2)
    pairs = {(repr(a), repr(b)) for a, b in zip(left, right, strict=True)}
    assert len(pairs) == 10 * 10


@pytest.mark.parametrize("name", sorted(set(ANSWERS) - set(NUMPY)))
def test_planted_special_values_reach_what_they_should(name: str) -> None:
    op, count = registry.get_op(name), 0
    for case in small_cases(name, 8, floats=True):
        arrays = case.arrays()
        if not arrays[0].size:
            continue
        arrays[0] = planted(arrays[0], *([np.nan],) * (name in NAN_ONLY))
        with np.errstate(all="ignore"):
            want = ANSWERS[name](arrays, case.attrs)
            wrong = difference(case, evaluate(op, arrays, case.attrs), want)
        assert wrong is None, f"{case}: {wrong}"
        count += 1
    assert count or not small_cases(name, 1, floats=True)


def test_minus_infinity_masks() -> None:
    x = ty.Tensor([[0.0, -np.inf, np.log(3.0)], [-np.inf, 5.0, -np.inf]])
    want = [[0.25, 0, 0.75], [0, 1, 0]]
    np.testing.assert_allclose(ty.functional.softmax(x, 1).numpy(), want, rtol=1e-6)
    with np.errstate(divide="ignore"):
        logs = np.log(np.array(want))
    found = ty.functional.nn.logsoftmax(x, 1).numpy()
    np.testing.assert_allclose(found, logs, rtol=1e-6, atol=1e-6)


def apply(op, attrs, operands):
    return op(*operands, **vars(attrs)) if operands else create(op, attrs)


def results(found):
    found = found if isinstance(found, (tuple, list)) else (found,)
    return [np.asarray(x.numpy() if isinstance(x, ty.Tensor) else x) for x in found]


@pytest.mark.parametrize("name", NAMES)
def test_eager_traced_and_loaded_agree_whatever_the_strides(name: str, tmp_path: Path) -> None:
    op, cases = registry.get_op(name), small_cases(name, EACH)
    assert cases
    for number, case in enumerate(cases):
        arrays = [flipped(x) for x in case.arrays()]
        operands = [ty.Tensor(x, dtype=x.dtype.name) for x in arrays]
        with np.errstate(all="ignore"):
            want = evaluate(op, case.arrays(), case.attrs)

            def body(*given, attrs=case.attrs):
                return apply(op, attrs, given)

            traced = trace(body, symbolic=True, opt_level=0)
            ways = {"eager": results(apply(op, case.attrs, operands))}
            ways["traced"] = results(traced(*operands))
            ways["again"] = results(traced(*operands))
            complex_inside = any(x.dtype.kind == "c" for x in (*arrays, *want))
            if operands and not complex_inside:
                traced.dump(tmp_path / f"{number}.tym")
                ways["loaded"] = results(load(tmp_path / f"{number}.tym")(*arrays))
        for way, got in ways.items():
            wrong = difference(case, got, want) if name not in FACTORS else None
            assert wrong is None, f"{way}: {case}: {wrong}"
            # Fused and native kernels round otherwise; what is traced as it is runs the same ones.
            same = ways["eager"] if way != "loaded" else got
            for x, y in zip(got, same, strict=True):
                np.testing.assert_array_equal(x, y, err_msg=f"{way}: {case}")


def test_stated_special_values_are_in_the_tables() -> None:
    for name in STATES_SPECIAL:
        values = [case.arrays()[0] for case in cases_of(name)]
        assert any(is_float(x.dtype) and np.isnan(x).any() for x in values) or name == "linear_int4"


@pytest.mark.parametrize("full", [False, True])
def test_factors_are_factors(full: bool) -> None:
    op, count = registry.get_op("svd"), 0
    for seed, case in enumerate(cases_of("svd")):
        if case.attrs.full_matrices != full:
            continue
        (x,) = case.arrays(seed)
        tolerance = {"float32": 1e-5, "float64": 1e-12}.get(x.dtype.name, 2e-2)
        found = [part.astype(np.float64) for part in evaluate(op, [x], case.attrs)]
        values = found[1] if case.attrs.compute_uv else found[0]
        square = np.einsum("...ki,...kj->...ij", *[x.astype(np.float64)] * 2)
        eigen = np.linalg.eigvalsh(square)[..., ::-1][..., : values.shape[-1]]
        np.testing.assert_allclose(values**2, eigen, atol=tolerance * 9)
        count += 1
        if case.attrs.compute_uv:
            left, _, right = found
            k = values.shape[-1]
            whole = np.einsum("...ik,...k,...kj->...ij", left[..., :k], values, right[..., :k, :])
            np.testing.assert_allclose(whole, x, atol=tolerance)
            for side in (np.einsum("...ki,...kj->...ij", left, left),
                         np.einsum("...ik,...jk->...ij", right, right)):  # fmt: skip
                eye = np.broadcast_to(np.eye(side.shape[-1]), side.shape)
                np.testing.assert_allclose(side, eye, atol=tolerance)
    assert count


def line_of(text: str) -> int:
    """Return the number of the only line of this file that holds a text."""
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    (found,) = [i for i, line in enumerate(lines, 1) if line.strip() == text]
    return found


@pytest.mark.parametrize("traced", [False, True])
def test_a_refusal_is_raised_at_the_users_line(traced: bool) -> None:
    def wrong(x: ty.Tensor) -> ty.Tensor:
        return ty.functional.matmul(x, x)

    function = trace(wrong, symbolic=True) if traced else wrong
    with pytest.raises(ShapeError, match="matmul: ") as caught:
        function(ty.Tensor(np.ones((2, 3))))
    here = {entry.lineno + 1 for entry in caught.traceback if str(entry.path) == __file__}
    assert line_of("return ty.functional.matmul(x, x)") in here


def test_a_step_that_fails_names_the_users_line() -> None:
    def picked(x: ty.Tensor, places: ty.Tensor) -> ty.Tensor:
        return (x * 2.0)[places]

    function = trace(picked, symbolic=True)
    function(ty.Tensor([1.0, 2.0]), ty.Tensor([0, 1]))
    line = line_of("return (x * 2.0)[places]")
    with pytest.raises(KernelError, match=rf"take: .*, got 5, .*test_proof\.py:{line}\)"):
        function(ty.Tensor([1.0, 2.0]), ty.Tensor([0, 5]))
