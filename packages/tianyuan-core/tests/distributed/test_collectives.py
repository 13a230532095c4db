"""Every collective against numpy: values, gradients, and the same bits on every rank."""

from __future__ import annotations

from zlib import crc32

import numpy as np
import pytest
from tianyuan import Tensor
from tianyuan import distributed as dist
from tianyuan.autodiff import GradManager
from tianyuan.distributed import tcp
from tianyuan.dtypes import as_dtype
from tianyuan.functional import distributed as D


def joined(xs, axis):
    return np.concatenate(xs, axis)


def parts(x, n, axis):
    return np.split(x, n, axis)


def total(xs):
    """Sum in the order of the ranks, as the documentation promises."""
    found = xs[0].copy()
    for x in xs[1:]:
        found = found + x
    return found


def only_first(value, n):
    return [value] + [None] * (n - 1)


def exchanged(xs, split, concat):
    n = len(xs)
    pieces = [parts(x, n, split) for x in xs]
    return [np.concatenate([pieces[i][j] for i in range(n)], concat) for j in range(n)]


# name: (collective of a tensor, the same in numpy on all ranks' arrays at once)
LINEAR = {
    "all_reduce_sum": (D.all_reduce_sum, lambda xs: [total(xs)] * len(xs)),
    "reduce_sum": (D.reduce_sum, lambda xs: only_first(total(xs), len(xs))),
    "broadcast": (D.broadcast, lambda xs: [xs[0]] * len(xs)),
    "all_gather": (D.all_gather, lambda xs: [joined(xs, 0)] * len(xs)),
    "all_gather_1": (lambda x: D.all_gather(x, axis=1), lambda xs: [joined(xs, 1)] * len(xs)),
    "gather": (D.gather, lambda xs: only_first(joined(xs, 0), len(xs))),
    "gather_-1": (lambda x: D.gather(x, axis=-1), lambda xs: only_first(joined(xs, -1), len(xs))),
    "scatter": (D.scatter, lambda xs: parts(xs[0], len(xs), 0)),
    "scatter_1": (lambda x: D.scatter(x, axis=1), lambda xs: parts(xs[0], len(xs), 1)),
    "reduce_scatter_sum": (D.reduce_scatter_sum, lambda xs: parts(total(xs), len(xs), 0)),
    "reduce_scatter_sum_1": (
        lambda x: D.reduce_scatter_sum(x, axis=1),
        lambda xs: parts(total(xs), len(xs), 1),
    ),
    "all_to_all": (D.all_to_all, lambda xs: exchanged(xs, 0, 0)),
    "all_to_all_10": (
        lambda x: D.all_to_all(x, split_axis=1, concat_axis=0),
        lambda xs: exchanged(xs, 1, 0),
    ),
    "all_to_all_01": (
        lambda x: D.all_to_all(x, split_axis=0, concat_axis=-1),
        lambda xs: exchanged(xs, 0, 1),
    ),
}
EXTREMA = {
    "all_reduce_max": (D.all_reduce_max, lambda xs: [np.max(xs, 0)] * len(xs)),
    "all_reduce_min": (D.all_reduce_min, lambda xs: [np.min(xs, 0)] * len(xs)),
}


def inputs(n, dtype=np.float32, shape=(6, 12)):
    rng = np.random.default_rng(n)
    return [np.asarray(rng.standard_normal(shape) * 100).astype(dtype) for _ in range(n)]


def same(found, expected):
    if expected is None:
        return found is None
    return found.dtype == expected.dtype and np.array_equal(found, expected)


@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.parametrize("pieces", [False, True], ids=["whole", "in_pieces"])
def test_values(run, n, pieces):
    dtypes = ("float32", "float64", "int32")
    all_of = {**LINEAR, **EXTREMA}

    def work():
        if pieces:  # as large arrays travel
            tcp.CHUNK, tcp.SMALL = 40, 10
        found = {}
        for dtype in dtypes:
            x = Tensor(inputs(n, dtype)[dist.get_rank()], dtype=dtype)
            for name, (op, _) in all_of.items():
                y = op(x)
                found[dtype, name] = None if y is None else y.numpy()
        return found

    found = run(n, work)
    for dtype in dtypes:
        for name, (_, oracle) in all_of.items():
            for rank, expected in enumerate(oracle(inputs(n, dtype))):
                assert same(found[rank][dtype, name], expected), (dtype, name, rank)


@pytest.mark.parametrize("n", [2, 3])
def test_gradients_of_linear_collectives(run, n):
    xs = inputs(n, np.float64, (n, 2 * n))
    rng = np.random.default_rng(7)
    weights = {
        name: [None if y is None else rng.standard_normal(y.shape) for y in oracle(xs)]
        for name, (_, oracle) in LINEAR.items()
    }

    def work():
        rank, found = dist.get_rank(), {}
        for name, (op, _) in LINEAR.items():
            x = Tensor(xs[rank], dtype="float64")
            with GradManager().attach(x) as gm:
                y = op(x)
                weight = weights[name][rank]
                loss = None if y is None else (y * Tensor(weight, dtype="float64")).sum()
                gm.backward(loss)
            found[name] = None if x.grad is None else x.grad.numpy()
        return found

    found = run(n, work)
    for name, (_, oracle) in LINEAR.items():
        for rank in range(n):
            # The gradient of a linear function is its value on the unit vectors.
            expected = np.zeros_like(xs[rank])
            for index in np.ndindex(expected.shape):
                units = [np.zeros_like(x) for x in xs]
                units[rank][index] = 1
                pairs = zip(weights[name], oracle(units), strict=True)
                expected[index] = sum((w * y).sum() for w, y in pairs if y is not None)
            got = found[rank][name]
            got = np.zeros_like(expected) if got is None else got
            np.testing.assert_allclose(got, expected, atol=1e-12, err_msg=f"{name} {rank}")


def test_gradients_of_extrema_are_split_among_ties(run):
    xs = [np.array([1.0, 5.0, 2.0]), np.array([3.0, 5.0, 2.0]), np.array([2.0, 0.0, 2.0])]
    weights = np.array([[1.0, 2.0, 4.0], [8.0, 16.0, 32.0], [64.0, 128.0, 256.0]])

    def work():
        rank, grads = dist.get_rank(), []
        for op, _ in EXTREMA.values():
            x = Tensor(xs[rank], dtype="float64")
            with GradManager().attach(x) as gm:
                gm.backward((op(x) * Tensor(weights[rank], dtype="float64")).sum())
            grads.append(x.grad.numpy())
        return grads

    found = run(3, work)
    for at, (_, oracle) in enumerate(EXTREMA.values()):
        holds = np.array(xs) == oracle(xs)[0]
        expected = holds * weights.sum(0) / holds.sum(0)
        np.testing.assert_allclose([grads[at] for grads in found], expected)


def test_second_derivatives(run):
    xs, ws = np.array([[1.0, 2.0], [3.0, -1.0]]), np.array([[1.0, 2.0], [0.5, 4.0]])

    def work():
        rank = dist.get_rank()
        x = Tensor(xs[rank], dtype="float64")
        with GradManager().attach(x) as outer:
            with GradManager().attach(x) as inner:
                inner.backward((D.all_reduce_sum(x * x * x) * Tensor(ws[rank])).sum())
            first, x.grad = x.grad, None
            outer.backward((first * first).sum())
        return first.numpy(), x.grad.numpy()

    # first = 3 x^2 W with W the sum of all weights; then d(first^2)/dx = 2 first 6 x W.
    first = 3 * xs**2 * ws.sum(0)
    for rank, (got, second) in enumerate(run(2, work)):
        np.testing.assert_allclose(got, first[rank])
        np.testing.assert_allclose(second, 12 * first[rank] * xs[rank] * ws.sum(0))


def test_every_rank_takes_part_in_backward_whatever_it_needs(run):
    def work():
        rank = dist.get_rank()
        x = Tensor([2.0, 3.0])
        with GradManager() as gm:
            if rank == 0:
                gm.attach(x)  # the others' inputs need no gradient
            y = D.all_reduce_sum(x)
            gm.backward((y * y).sum() if rank == 1 else y.sum() * 0)  # one loss counts
        return None if x.grad is None else x.grad.numpy()

    found = run(3, work)
    np.testing.assert_allclose(found[0], [12.0, 18.0])  # 2 y with y = 3 x
    assert found[1] is None
    assert found[2] is None


def test_outputs_that_nobody_uses_do_not_hold_up_backward(run):
    def work():
        x = Tensor([1.0, 2.0])
        with GradManager().attach(x) as gm:
            D.all_gather(x)
            D.reduce_sum(x)
            gm.backward((x * 3).sum())
        return x.grad.numpy()

    for grad in run(2, work):
        np.testing.assert_array_equal(grad, [3.0, 3.0])


def test_shapes(run):
    shapes = [(), (1,), (0,), (3, 0), (2, 3, 4)]

    def work():
        found = []
        for shape in shapes:
            x = Tensor(inputs(2, np.float32, shape)[dist.get_rank()])
            found.append([op(x).numpy() for op in (D.all_reduce_sum, D.all_gather, D.broadcast)])
        return found

    for found in run(2, work):
        for shape, (summed, gathered, copied) in zip(shapes, found, strict=True):
            xs = [np.asarray(x) for x in inputs(2, np.float32, shape)]
            assert same(summed, np.asarray(xs[0] + xs[1]))
            assert same(gathered, np.concatenate([np.atleast_1d(x) for x in xs]))
            assert same(copied, xs[0])


def test_short_floats_are_summed_in_float32(run):
    values = {"float16": [2048.0, 1.0, 1.0, 1.0], "bfloat16": [256.0, 1.0, 1.0, 1.0]}

    def work():
        rank = dist.get_rank()
        return [D.all_reduce_sum(Tensor([v[rank]], dtype=d)).numpy() for d, v in values.items()]

    for found in run(4, work):
        for got, (dtype, given) in zip(found, values.items(), strict=True):
            # One by one in 16 bits, each 1 would be rounded away.
            expected = np.array([sum(given)], np.float32).astype(as_dtype(dtype))
            assert float(expected[0]) > given[0]
            assert same(got, expected)


def test_large_arrays_are_the_same_bits_everywhere(run):
    count, chunk = 300_001, 1 << 19  # three pieces

    def work():
        tcp.CHUNK = chunk
        x = np.random.default_rng(dist.get_rank()).standard_normal(count, np.float32)
        summed = D.all_reduce_sum(Tensor(x)).numpy()
        spread = D.broadcast(Tensor(x)).numpy()
        return summed[::997], crc32(summed), spread[::997], crc32(spread)

    xs = [np.random.default_rng(rank).standard_normal(count, np.float32) for rank in range(3)]
    expected = xs[0] + xs[1] + xs[2]
    for summed, bits, spread, copied in run(3, work):
        np.testing.assert_array_equal(summed, expected[::997])
        np.testing.assert_array_equal(spread, xs[0][::997])
        assert bits == crc32(expected)
        assert copied == crc32(xs[0])


def test_ranks_without_a_tensor_are_told_shape_and_dtype(run):
    whole = np.arange(12, dtype=np.int32).reshape(2, 6)

    def work():
        given = Tensor(whole) if dist.get_rank() == 0 else None
        return D.broadcast(given).numpy(), D.scatter(given, axis=1).numpy()

    for rank, (copied, part) in enumerate(run(2, work)):
        assert same(copied, whole)
        assert same(part, whole[:, 3 * rank : 3 * rank + 3])


def test_alone_every_collective_is_the_identity():
    x = Tensor([[1.0, 2.0], [3.0, 4.0]])
    for name, (op, _) in {**LINEAR, **EXTREMA}.items():
        np.testing.assert_array_equal(op(x).numpy(), x.numpy(), err_msg=name)


def test_sums_of_bool_and_odd_extents_are_refused(run):
    def work():
        texts = []
        for call in (
            lambda: D.all_reduce_sum(Tensor([True])),
            lambda: D.reduce_scatter_sum(Tensor([1.0, 2.0, 3.0])),
            lambda: D.all_to_all(Tensor([[1.0], [2.0], [3.0]])),
            lambda: D.all_gather(Tensor([1.0]), axis=3),
            lambda: D.all_reduce_sum([1.0]),
        ):
            with pytest.raises((TypeError, ValueError)) as error:
                call()
            texts.append(str(error.value))
        return texts, D.all_reduce_sum(Tensor([1.0])).item()  # nothing is out of step

    for texts, after in run(2, work):
        assert "bool cannot be summed" in texts[0]
        assert "expected a multiple of 2" in texts[1]
        assert "expected a multiple of 2" in texts[2]
        assert "axis" in texts[3]
        assert "must be a tensor" in texts[4]
        assert after == 2
