"""Train on several ranks as on one: gradients, statistics and parameters agree."""

from __future__ import annotations

import numpy as np
import pytest
import tianyuan as ty
import tianyuan.functional as F
import tianyuan.module as M
from tianyuan import Tensor
from tianyuan import distributed as dist
from tianyuan import optimizer as optim
from tianyuan.autodiff import GradManager
from tianyuan.data import RandomSampler, SequentialSampler
from tianyuan.distributed import helper
from tianyuan.errors import AttrError, DistributedError, ShapeError
from tianyuan.jit import trace

rng = np.random.default_rng(3)
X = rng.standard_normal((16, 6), np.float32)
Y = rng.integers(0, 3, 16).astype(np.int32)


METHODS = {"sum": 3.0, "mean": 1.5}


def make_network(seed):
    ty.random.seed(seed)
    return M.Sequential(M.Linear(6, 8), M.ReLU(), M.Linear(8, 8), M.Tanh(), M.Linear(8, 3))


def train(network, x, y, callbacks, steps=5, traced=False):
    gm = GradManager().attach(network.parameters(), callbacks=callbacks)
    optimizer = optim.SGD(network.parameters(), lr=0.2, momentum=0.9)

    def step(x, y):
        with gm:
            loss = F.nn.cross_entropy(network(x), y)
            gm.backward(loss)
        optimizer.step().clear_grad()
        return loss

    step = trace(step) if traced else step
    losses = [step(Tensor(x), Tensor(y)).item() for _ in range(steps)]
    return losses, network.state_dict()


@pytest.fixture(scope="module")
def alone():
    return train(make_network(0), X, Y, [])


@pytest.mark.parametrize("traced", [False, True], ids=["eager", "traced"])
def test_two_ranks_train_as_one_on_the_joined_batch(run, alone, traced):
    def work():
        rank = dist.get_rank()
        network = make_network(rank)  # so that only rank 0's values can count
        dist.bcast_list_(network.tensors())
        part = slice(rank, None, 2)
        return train(network, X[part], Y[part], [dist.make_allreduce_cb("mean")], traced=traced)

    (losses, first), (others, second) = run(2, work)
    expected, state = alone
    np.testing.assert_allclose(np.add(losses, others) / 2, expected, rtol=1e-6, atol=1e-6)
    for name, value in state.items():
        np.testing.assert_allclose(first[name], value, rtol=1e-6, atol=1e-6, err_msg=name)
        assert np.array_equal(first[name], second[name]), name


def test_statistics_over_all_ranks_are_those_of_the_joined_batch(run):
    x = rng.standard_normal((4, 3, 5)) * [[[1.0], [2.0], [3.0]]] + [[[5.0], [0.0], [-5.0]]]
    weight = rng.standard_normal(x.shape)

    def normalised(part, w):
        t = Tensor(part, dtype="float64")
        with GradManager().attach(t) as gm:
            count = F.distributed.all_reduce_sum(Tensor([float(part.size // 3)], dtype="float64"))
            mean = F.distributed.all_reduce_sum(t.sum((0, 2), True)) / count
            var = F.distributed.all_reduce_sum(((t - mean) ** 2).sum((0, 2), True)) / count
            y = (t - mean) / F.sqrt(var + 1e-5)
            gm.backward((y * Tensor(w, dtype="float64")).sum())
        return mean.numpy(), var.numpy(), y.numpy(), t.grad.numpy()

    def work():
        part = slice(0, 1) if dist.get_rank() == 0 else slice(1, 4)  # of different sizes
        return normalised(x[part], weight[part])

    first, second = run(2, work)
    for at in (0, 1):
        np.testing.assert_array_equal(first[at], second[at])
    np.testing.assert_allclose(first[0].ravel(), x.mean((0, 2)))
    np.testing.assert_allclose(first[1].ravel(), x.var((0, 2)))
    centred = x - x.mean((0, 2), keepdims=True)
    deviation = np.sqrt(x.var((0, 2), keepdims=True) + 1e-5)
    y = centred / deviation
    np.testing.assert_allclose(np.concatenate([first[2], second[2]]), y)
    # Ioffe and Szegedy (2015), the gradient of batch normalisation.
    inner = weight - weight.mean((0, 2), keepdims=True)
    inner -= y * (weight * y).mean((0, 2), keepdims=True)
    np.testing.assert_allclose(np.concatenate([first[3], second[3]]), inner / deviation)


def test_random_numbers_differ_between_ranks_until_seeded(run):
    def work():
        own = ty.random.uniform(size=(4,)).numpy()
        ty.random.seed(5)
        return own.tolist(), ty.random.uniform(size=(4,)).numpy().tolist()

    (own, seeded), (other, same) = run(2, work)
    assert own != other
    assert seeded == same


def test_samplers_share_the_data_out(run):
    def work():
        random = RandomSampler(range(12), batch_size=3, seed=4)
        return list(SequentialSampler(range(8), batch_size=2)), [list(batch) for batch in random]

    (first, drawn), (second, others) = run(2, work)
    assert first == [[0, 2], [4, 6]]
    assert second == [[1, 3], [5, 7]]
    assert sorted(sum(drawn + others, [])) == list(range(12))


# Inside a trace


@pytest.mark.parametrize("level", [0, 2])
def test_collectives_in_a_trace(run, level):
    def work():
        rank = dist.get_rank()

        @trace(opt_level=level)
        def program(x):
            D = F.distributed
            D.reduce_sum(x)  # nobody looks at it, yet the others would wait
            root = D.gather(x * 2)
            y = D.all_reduce_sum(x + 1) + D.broadcast(x) + D.all_reduce_max(x)
            z = D.all_to_all(x) + D.scatter(x)[0] + D.reduce_scatter_sum(x)[0]
            return y, z, D.all_gather(x, axis=1), root if rank == 0 else x

        found = []
        for run in range(3):
            x = Tensor(np.arange(4, dtype=np.float32).reshape(2, 2) + 10 * rank + run)
            found.append([y.numpy() for y in program(x)])
        return found

    found = run(2, work)
    for call in range(3):
        xs = [np.arange(4, dtype=np.float32).reshape(2, 2) + 10 * r + call for r in range(2)]
        for rank in range(2):
            y, z, gathered, root = found[rank][call]
            np.testing.assert_array_equal(y, xs[0] + xs[1] + 2 + xs[0] + np.maximum(*xs))
            swapped = np.stack([xs[0][rank], xs[1][rank]])
            np.testing.assert_array_equal(z, swapped + xs[0][rank] + (xs[0] + xs[1])[rank])
            np.testing.assert_array_equal(gathered, np.concatenate(xs, 1))
            np.testing.assert_array_equal(root, xs[1] if rank else 2 * np.concatenate(xs))


def test_messages_in_a_trace(run):
    def work():
        rank = dist.get_rank()

        @trace
        def program(x):
            if rank == 0:
                F.distributed.remote_send(x * 3, 1)
                return x
            return F.distributed.remote_recv(0, inp=x) + 1

        return [program(Tensor([1.0, float(k)])).numpy().tolist() for k in range(3)]

    first, second = run(2, work)
    assert first == [[1, 0], [1, 1], [1, 2]]
    assert second == [[4, 1], [4, 4], [4, 7]]


def test_a_trace_must_know_what_comes(run):
    def work():
        @trace
        def program(x):
            F.distributed.broadcast(x if dist.get_rank() == 0 else None)
            return x

        if dist.get_rank() == 1:
            with pytest.raises(ty.errors.TraceError) as error:
                program(Tensor([1.0]))
            return str(error.value)
        return ""

    assert "broadcast: a trace must know what will come, got None, expected" in run(2, work)[1]


# Packing


def test_packing_and_splitting():
    a, b = np.float32([1]), np.arange(9, dtype=np.float32).reshape(3, 3)
    shapes = [(1,), (3, 3)]
    offsets = helper.get_offsets(shapes)
    assert offsets == [0, 1, 1, 10]
    packed = helper.param_pack_concat([Tensor(a), Tensor(b)], Tensor(offsets), offsets)
    np.testing.assert_array_equal(packed.numpy(), [1, *range(9)])
    for got, want in zip(helper.param_pack_split(packed, offsets, shapes), (a, b), strict=True):
        np.testing.assert_array_equal(got.numpy(), want)
    apart = helper.param_pack_concat([Tensor(a), Tensor(b)], None, [0, 1, 4, 13])
    np.testing.assert_array_equal(apart.numpy(), [1, 0, 0, 0, *range(9)])


@pytest.mark.parametrize("offsets", [[0, 1], [0, 1, 1, 9], [1, 0, 1, 10], [5, 6, 0, 9]])
def test_offsets_that_do_not_fit_are_refused(offsets):
    tensors = [Tensor(np.ones(1)), Tensor(np.ones((3, 3)))]
    with pytest.raises(ShapeError, match="offsets do not fit"):
        helper.param_pack_concat(tensors, None, offsets)
    with pytest.raises(ShapeError, match="offsets do not fit"):
        helper.param_pack_split(Tensor(np.ones(10)), offsets, [(1,), (3, 3)])


@pytest.mark.parametrize("pack_bytes", [1, 40, 1 << 20])
def test_packed_gradients_of_two_dtypes(run, pack_bytes):
    shapes = [(3,), (2, 4), (), (5,), (7,)]
    dtypes = ["float32", "float64", "float32", "float64", "float32"]
    method = "SUM"

    def work():
        helper.PACK_BYTES = pack_bytes
        rank = dist.get_rank()
        params = [Tensor(np.ones(s), dtype=d) for s, d in zip(shapes, dtypes, strict=True)]
        gm = GradManager().attach(params, callbacks=[dist.make_allreduce_cb(method)])
        with gm:
            scaled = [(p * (k + 1 + 10 * rank)).sum() for k, p in enumerate(params)]
            gm.backward(scaled)
        return [(p.grad.numpy(), p.grad.dtype.name) for p in params]

    for found in run(2, work):
        for k, (grad, dtype) in enumerate(found):
            np.testing.assert_array_equal(grad, np.full(shapes[k], 2 * (k + 1) + 10))
            assert dtype == dtypes[k]


def test_pack_allreduce_split(run):
    shapes = [(2,), (1, 3)]

    def work():
        given = [Tensor(np.full(s, dist.get_rank() + 1.0)) for s in shapes]
        found = {m: helper.pack_allreduce_split(given, shapes, dist.WORLD, m) for m in METHODS}
        return {method: [t.numpy() for t in tensors] for method, tensors in found.items()}

    for found in run(2, work):
        for method, value in METHODS.items():
            for tensor, shape in zip(found[method], shapes, strict=True):
                np.testing.assert_array_equal(tensor, np.full(shape, value))


def test_a_future_is_worked_out_when_it_is_asked_for():
    flushed = []
    future = helper.TensorFuture(lambda: (flushed.append(1), future.set(Tensor([3.0]))))
    assert not flushed
    assert future.get().item() == future.get().item() == 3
    assert flushed == [1]


def test_the_callback_of_make_allreduce_cb_leaves_gradients_alone_without_a_group():
    callback, grad = dist.make_allreduce_cb("Mean"), Tensor([1.0])
    assert isinstance(callback, helper.AllreduceCallback)
    assert callback(Tensor([2.0]), grad) is grad


def test_a_callback_after_a_shared_gradient_sees_it(run):
    def work():
        w = Tensor([1.0, 2.0])
        seen = []

        def look(param, grad):
            seen.append(grad.numpy().tolist())
            return grad * 10

        with GradManager().attach(w, callbacks=[dist.make_allreduce_cb("sum"), look]) as gm:
            gm.backward((w * w).sum())
        return seen, w.grad.numpy().tolist()

    for seen, grad in run(2, work):
        assert seen == [[4, 8]]
        assert grad == [40, 80]


def test_other_reduce_methods_are_refused():
    with pytest.raises(AttrError, match="reduce_method is wrong"):
        dist.make_allreduce_cb("median")


def test_synchronized_waits_for_all(run):
    def work():
        client = dist.get_client()

        @dist.synchronized
        def note(value):
            client.user_set(f"note {dist.get_rank()}", value)
            return value + 1

        found = note(dist.get_rank())
        return found, [client.user_get(f"note {rank}", 0.0) for rank in range(3)]

    assert run(3, work) == [(rank + 1, [0, 1, 2]) for rank in range(3)]


def test_bcast_list_keeps_shapes(run):
    def work():
        t = Tensor(np.ones(2 + dist.get_rank()))
        if dist.get_rank() == 0:
            dist.bcast_list_([t])
            return ""
        with pytest.raises((ShapeError, DistributedError)) as error:
            dist.bcast_list_([t])
        return str(error.value) + str(t.shape)

    assert "new value has another shape" in run(2, work)[1]
