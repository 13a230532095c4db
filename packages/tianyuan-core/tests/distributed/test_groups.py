"""Groups of some ranks, messages between two, and what ranks out of step are told."""

from __future__ import annotations

import functools
import inspect
import socket
import struct

import numpy as np
import pytest
import tianyuan as ty
from tianyuan import Tensor
from tianyuan import distributed as dist
from tianyuan.autodiff import GradManager
from tianyuan.distributed.communicator import Communicator
from tianyuan.errors import AttrError, DistributedError, TianyuanError
from tianyuan.functional import distributed as D
from tianyuan.plugin import hookimpl


def raised(call):
    with pytest.raises(TianyuanError) as error:
        call()
    return str(error.value)


def test_what_a_rank_knows(run):
    def work():
        group = dist.new_group([2, 0])
        host, port = dist.get_py_server_addr()
        return (
            dist.is_distributed(), dist.get_rank(), dist.get_world_size(), dist.get_backend(),
            dist.backend, dist.get_local_device_id(), dist.WORLD.size, dist.WORLD.rank,
            dist.WORLD.key, dist.WORLD.comp_node, dist.WORLD.is_single_machine, group.key,
            group.size, group.rank if dist.get_rank() != 1 else raised(lambda: group.rank),
            host, port == dist.get_client().port, dist.get_mm_server_addr()[0],
        )  # fmt: skip

    found = run(3, work)
    common = ("tcp", "tcp")
    for rank, facts in enumerate(found):
        assert facts[:5] == (True, rank, 3, *common)
        assert facts[5:11] == (rank, 3, rank, "0,1,2", "cpu", True)
        assert facts[11:13] == ("2,0", 2)
        assert facts[14:] == ("localhost", True, "localhost")
    assert [found[0][13], found[2][13]] == [1, 0]
    assert "got rank 1, expected one of [2, 0]" in found[1][13]


def test_alone():
    assert not dist.is_distributed()
    assert (dist.get_rank(), dist.get_world_size(), dist.backend) == (0, 1, "auto")
    assert dist.WORLD.size == 0
    for call in (
        dist.get_backend, dist.get_client, dist.get_py_server_addr, dist.get_mm_server_addr,
        dist.get_local_device_id, lambda: dist.new_group([0]),
        lambda: dist.WORLD.comp_node, lambda: D.remote_send(Tensor([1.0]), 1),
    ):  # fmt: skip
        assert "expected" in raised(call) or "no such" in raised(call)
    dist.group_barrier()  # there is nobody to wait for, as for collectives
    assert "not a group" in raised(lambda: dist.group_barrier(None))
    with dist.override_backend("tcp"):
        assert dist.backend == "auto"


def test_collectives_of_some_ranks(run):
    def work():
        rank = dist.get_rank()
        odd, back = dist.new_group([1, 3]), dist.new_group([3, 2, 0])
        x, found = Tensor([float(rank)]), {}
        if rank in (1, 3):
            found["odd"] = D.all_gather(x, odd).numpy().tolist()
        if rank != 1:
            found["back"] = D.all_gather(x, back).numpy().tolist()
            gathered = D.gather(x, back)
            found["root"] = None if gathered is None else gathered.numpy().tolist()
        if rank in (1, 3):
            dist.group_barrier(odd)
        found["all"] = D.all_gather(x).numpy().tolist()
        return found

    found = run(4, work)
    for rank in range(4):
        assert found[rank]["all"] == [0, 1, 2, 3]
        assert found[rank].get("odd") == ([1, 3] if rank in (1, 3) else None)
        assert found[rank].get("back") == ([3, 2, 0] if rank != 1 else None)
    assert [found[rank].get("root") for rank in (0, 2, 3)] == [None, None, [3, 2, 0]]


def test_groups_that_cannot_be_are_refused(run):
    def work():
        return [
            raised(lambda ranks=ranks: dist.new_group(ranks))
            for ranks in ([0, 0], [0, 2], [-1], "01", [0.5])
        ]

    for texts in run(2, work):
        assert all("Group: ranks are wrong" in text for text in texts)


def test_reset_gives_a_group_other_ranks(run):
    def work():
        group = dist.new_group([0])
        group.check([1, 0])
        refused = raised(lambda: group.reset([0, 5]))
        kept = group.key
        group.reset([1, 0])
        return refused, kept, D.all_gather(Tensor([dist.get_rank()]), group).numpy().tolist()

    for refused, kept, gathered in run(2, work):
        assert "got [0, 5], expected different ranks of 0 to 1" in refused
        assert kept == "0"
        assert gathered == [1, 0]


def test_backend_may_be_assigned(run):
    def work():
        refused = raised(lambda: setattr(dist, "backend", "pigeon"))
        dist.backend = "auto"
        return refused, dist.backend, isinstance(dist.group._sd, dist.group.StaticData)

    for refused, name, known in run(2, work):
        assert "no communicator for backend 'pigeon'" in refused
        assert (name, known) == ("tcp", True)
    assert "expected init_process_group" in raised(lambda: setattr(dist, "backend", "tcp"))


def test_messages_between_two_and_their_gradients(run):
    """A network in three stages: each rank holds one weight."""
    start, weights = np.array([[1.0, -2.0], [3.0, 0.5]]), [2.0, 3.0, -1.5]

    def work():
        rank = dist.get_rank()
        w = Tensor(weights[rank], dtype="float64")
        with GradManager().attach(w) as gm:
            x = Tensor(start, dtype="float64") if rank == 0 else D.remote_recv(rank - 1)
            y = x * w
            if rank < 2:
                D.remote_send(y, rank + 1)
                gm.backward()
            else:
                gm.backward((y * y).sum())
        return w.grad.numpy()

    # loss = sum((x w0 w1 w2)^2), so d loss / d wi = 2 loss / wi.
    loss = np.sum((start * np.prod(weights)) ** 2)
    for rank, grad in enumerate(run(3, work)):
        np.testing.assert_allclose(grad, 2 * loss / weights[rank])


def test_sends_do_not_wait_for_their_receivers(run):
    """In a ring where all send first, each far more than a connection holds."""
    count = 3_000_000

    def work():
        rank = dist.get_rank()
        dist.group_start()
        D.remote_send(Tensor(np.full(count, rank, np.float32)), (rank + 1) % 3)
        D.remote_send(Tensor(np.int32(rank)), (rank + 1) % 3)
        large = D.remote_recv((rank - 1) % 3).numpy()
        small = D.remote_recv((rank - 1) % 3)
        dist.group_end()
        return large.shape, large.min(), large.max(), small.item(), str(small.dtype)

    for rank, found in enumerate(run(3, work)):
        before = (rank - 1) % 3
        assert found == ((count,), before, before, before, "int32")


def test_group_end_needs_a_start():
    with pytest.raises(DistributedError, match="no run is open"):
        dist.group_end()


def test_ranks_that_do_something_else_are_told(run):
    def work():
        x = Tensor([1.0, 2.0])
        call = D.all_gather if dist.get_rank() else D.all_reduce_sum
        return raised(lambda: call(x))

    first, second = run(2, work)
    assert "rank 1 does something else, got 'all_gather float32(2,)'" in first
    assert "expected 'all_reduce_sum float32(2,)'" in first
    assert "rank 0 does something else" in second


def test_other_shapes_are_told(run):
    def work():
        return raised(lambda: D.all_reduce_sum(Tensor(np.ones(2 + dist.get_rank()))))

    first, second = run(2, work)
    assert "got 'all_reduce_sum float32(3,)', expected 'all_reduce_sum float32(2,)'" in first
    assert "got 'all_reduce_sum float32(2,)', expected 'all_reduce_sum float32(3,)'" in second


def test_silent_ranks_are_named(run):
    def work():
        D.all_reduce_sum(Tensor([1.0]))
        if dist.get_rank() == 1:
            dist.get_client().user_get("released", 20.0)
            return None
        text = raised(lambda: D.all_reduce_sum(Tensor([1.0])))
        barrier = raised(dist.group_barrier)
        dist.get_client().user_set("released", True)
        return text, barrier

    text, barrier = run(2, work, timeout=0.5)[0]
    assert "all_reduce_sum: rank 1 is silent, got nothing for 0.5 s" in text
    assert "ranks are missing, got 1 of 2" in barrier


class Recording(Communicator):
    """A communicator that a plugin brings: it hands all on to core's, and counts the calls."""

    def __init__(self, ranks, position, world):
        super().__init__(ranks, position, world)
        self.inner = ty.distributed.group.tcp.TCPCommunicator(ranks, position, world)
        self.calls = []

    def all_reduce(self, x, out, how):
        self.calls.append(f"all_reduce {how} {type(x).__name__}{x.shape}")
        self.inner.all_reduce(x, out, how)


def _hand_on(name):
    def method(self, *args):
        self.calls.append(name)
        getattr(self.inner, name)(*args)

    return method


for _name in (n for n, m in inspect.getmembers(Communicator) if inspect.isfunction(m)):
    if _name not in ("__init__", "all_reduce"):
        setattr(Recording, _name, _hand_on(_name))
Recording.__abstractmethods__ = frozenset()


class Plugin:
    TIANYUAN_API = (1, 0)

    @staticmethod
    @hookimpl
    def tianyuan_communicators():
        return {"recording": Recording}


def test_a_plugin_brings_a_communicator(run):
    def work():
        ty.plugins.load(ty.plugins.PluginRecord("recording", "test", "0"), Plugin)
        with dist.override_backend("recording"):
            assert dist.get_backend() == "recording"
            summed = D.all_reduce_sum(Tensor([1.0, dist.get_rank()])).numpy().tolist()
            told = D.broadcast(Tensor([1.0]) if dist.get_rank() == 0 else None).item()
        assert dist.get_backend() == "tcp"
        callback = dist.make_allreduce_cb("sum", backend="recording")
        w = Tensor([1.0])
        with GradManager().attach(w, callbacks=[callback]) as gm:
            gm.backward(w * 2)
        known = dist.group._sd.communicators["recording", (0, 1)]
        return summed, told, known.calls, w.grad.item(), D.all_reduce_sum(Tensor([2.0])).item()

    for summed, told, calls, grad, after in run(2, work):
        assert grad == 4
        assert summed == [2, 1]
        assert told == 1
        assert calls == [
            "all_reduce sum ndarray(2,)",
            "broadcast",
            "broadcast",
            "all_reduce sum ndarray(1,)",
        ]
        assert after == 4


def test_unknown_backends_and_devices_are_refused():
    launch = functools.partial(dist.launcher, lambda: None)
    with pytest.raises(AttrError, match="no communicator for backend 'pigeon'"):
        launch(n_gpus=2, backend="pigeon")
    with pytest.raises(AttrError, match="no communicator for .* device 'abacus'"):
        launch(n_gpus=2, device_type="abacus")


def test_arguments_of_init_process_group_are_checked():
    good = {"master_ip": "localhost", "port": 1, "world_size": 2, "rank": 0, "device": 0}
    for name, value in (
        ("master_ip", 3), ("port", "80"), ("world_size", 2.0), ("rank", 2), ("device", -1),
    ):  # fmt: skip
        with pytest.raises(AttrError, match=f"{name} is wrong"):
            dist.init_process_group(**{**good, name: value})
    assert not dist.is_distributed()


def test_strangers_do_not_disturb(run):
    """Connections that do not know the group's token are turned away."""

    def work():
        client, closed = dist.get_client(), []
        if dist.get_rank() == 1:
            client.user_get("strangers are there")
            return D.all_reduce_sum(Tensor([1.0])).item(), closed
        strangers = [socket.create_connection(client.user_get("tcp/address/0")) for _ in range(3)]
        for stranger, text in zip(strangers, (b'["x", "0,1", 1]', b"7", b"\xff"), strict=True):
            stranger.sendall(struct.pack("<I", len(text)) + text)
        client.user_set("strangers are there", True)
        found = D.all_reduce_sum(Tensor([1.0])).item()
        for stranger in strangers:
            stranger.settimeout(20)
            closed.append(stranger.recv(1))
        return found, closed

    assert run(2, work) == [(2, [b""] * 3), (2, [])]
