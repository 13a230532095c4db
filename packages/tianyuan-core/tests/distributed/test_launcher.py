"""The launcher: results by rank, and an end to everything whatever a rank does."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest
import tianyuan as ty
from tianyuan import Tensor
from tianyuan import distributed as dist
from tianyuan.errors import AttrError, DistributedError, PeerLostError
from tianyuan.functional import distributed as D


@dist.launcher(n_gpus=2)
def decorated(x, *, scale=1):
    """Say what it does."""
    return D.all_reduce_sum(Tensor([x * scale + dist.get_rank()]))


def test_decorator():
    assert decorated.__name__ == "decorated"
    assert decorated.__doc__ == "Say what it does."
    assert [found.item() for found in decorated(1.0, scale=2)] == [5, 5]
    assert not dist.is_distributed()


def test_one_rank_per_device_by_default():
    @dist.launcher
    def work():
        return dist.get_rank(), dist.get_world_size(), D.all_reduce_sum(Tensor([3.0])).item()

    assert work.n_gpus == 1
    assert work() == [(0, 1, 3)]


@pytest.mark.parametrize(
    "options",
    [
        {"n_gpus": 0}, {"n_gpus": 3, "world_size": 2}, {"n_gpus": 2, "rank_start": 1},
        {"n_gpus": 1, "world_size": 2}, {"n_gpus": 1, "world_size": 2, "rank_start": -1},
    ],
)  # fmt: skip
def test_numbers_that_do_not_fit_are_refused(options):
    with pytest.raises(AttrError, match="launcher"):
        dist.launcher(lambda: None, **options)


def test_a_rank_may_launch_ranks_of_its_own(run):
    def inner(outer):
        return outer, dist.get_rank(), D.all_reduce_sum(Tensor([1.0])).item()

    def work():
        rank = dist.get_rank()
        D.all_reduce_sum(Tensor([1.0]))
        found = dist.launcher(inner, n_gpus=2)(rank)
        return found, D.all_gather(Tensor([rank])).numpy().tolist()

    for rank, (found, after) in enumerate(run(2, work)):
        assert found == [(rank, 0, 2), (rank, 1, 2)]
        assert after == [0, 1]


def test_leaving_early_by_sys_exit(run):
    def work(code):
        sys.exit(code if dist.get_rank() == 1 else 0)

    assert run(2, work, 0) == [None, None]
    with pytest.raises(DistributedError, match="rank 1 failed, got\nit left with 3"):
        run(2, work, 3)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_the_threads_are_shared_out(run, monkeypatch):
    monkeypatch.delenv("TIANYUAN_NUM_THREADS", raising=False)
    before = ty.get_num_threads()
    ty.set_num_threads(4)
    try:
        assert run(2, ty.get_num_threads) == [2, 2]
    finally:
        ty.set_num_threads(before)


def test_a_rank_that_raises(run):
    def work():
        D.all_reduce_sum(Tensor([1.0]))
        if dist.get_rank() == 1:
            raise ZeroDivisionError("the cause")
        D.all_reduce_sum(Tensor([1.0]))
        time.sleep(60)

    start = time.monotonic()
    with pytest.raises(DistributedError) as error:
        run(3, work)
    assert time.monotonic() - start < 50  # ranks that are left alone sleep for 60
    assert "launcher: rank 1 failed" in str(error.value)
    assert "ZeroDivisionError: the cause" in str(error.value)
    assert "in work" in str(error.value)


@pytest.mark.parametrize("waiting", ["collective", "barrier", "elsewhere"])
def test_a_rank_that_is_killed(run, waiting):
    def work(pipe):
        if dist.get_rank() == 0:
            os.write(pipe, str(dist.get_py_server_addr()[1]).encode())
        D.all_reduce_sum(Tensor([1.0]))
        if dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if waiting == "collective":
            D.all_reduce_sum(Tensor(np.ones(100_000)))
        elif waiting == "barrier":
            dist.group_barrier()
        time.sleep(60)

    reader, writer = os.pipe()
    start = time.monotonic()
    with pytest.raises(DistributedError, match=r"rank 1 failed, got\n.* ended by SIGKILL"):
        run(3, work, writer)
    assert time.monotonic() - start < 50  # ranks that are left alone sleep for 60
    with os.fdopen(reader) as left, socket.socket() as probe:
        os.close(writer)
        assert probe.connect_ex(("127.0.0.1", int(left.read()))) != 0


def test_a_rank_that_exits_early(run):
    def work():
        if dist.get_rank() == 0:
            os._exit(3)
        dist.group_barrier()

    with pytest.raises(DistributedError, match="rank 0 failed, got\nits process ended with exit"):
        run(2, work)


def test_results_that_cannot_travel(run):
    with pytest.raises(DistributedError, match="rank [01] failed(.|\n)*pickle"):
        run(2, lambda: threading.Lock())


def test_ranks_that_do_not_come_are_named(run):
    launch = dist.launcher(
        lambda: None, n_gpus=1, world_size=2, port=free_port(), rendezvous_timeout=0.5, timeout=5
    )
    with pytest.raises(DistributedError, match=r"ranks are missing, got none of \[1\]"):
        launch()


def test_init_process_group_by_hand(monkeypatch):
    """Without the launcher, as a cluster's own tool starts processes."""
    monkeypatch.setenv("TIANYUAN_PLUGINS", "numpy")
    code = textwrap.dedent(
        """
        import sys
        from tianyuan import Tensor
        from tianyuan import distributed as dist
        from tianyuan.functional import distributed as D
        from tianyuan.errors import DistributedError

        port, rank = map(int, sys.argv[1:])
        server = dist.Server(port) if rank == 0 else None
        dist.init_process_group("localhost", port, 2, rank, rank)
        try:
            dist.init_process_group("localhost", port, 2, rank, rank)
        except DistributedError as error:
            assert "called before" in str(error)
        print(D.all_reduce_sum(Tensor([rank + 1.0])).item())
        dist.group_barrier()
        dist.group.close()
        assert not dist.is_distributed()
        """
    )
    port = str(free_port())
    ranks = [
        subprocess.Popen([sys.executable, "-c", code, port, rank], stdout=subprocess.PIPE)
        for rank in "01"
    ]
    assert [rank.communicate(timeout=60)[0] for rank in ranks] == [b"3.0\n"] * 2
    assert [rank.returncode for rank in ranks] == [0, 0]


SCRIPT = """
import multiprocessing, os, signal, sys, time
from tianyuan import Tensor
from tianyuan import distributed as dist
from tianyuan.errors import DistributedError
from tianyuan.functional import distributed as D

@dist.launcher(n_gpus=2)
def summed(x):
    return D.all_reduce_sum(Tensor([x + dist.get_rank()])).item()

def plain(x):
    return dist.get_rank() + x

def local():
    return dist.launcher(lambda: 1, n_gpus=2)

@dist.launcher(n_gpus=2)
def sleeping():
    os.write(1, f"{os.getpid()}\\n".encode())  # whole, whatever the other rank writes
    time.sleep(60)

def work(pause):
    time.sleep(pause)
    found = D.all_gather(Tensor([dist.get_rank()])).numpy().tolist()
    return dist.get_rank(), dist.get_local_device_id(), found

def machine(first, port):
    launch = dist.launcher(
        work, n_gpus=1 + first, world_size=3, rank_start=first, port=port,
        rendezvous_timeout=20, timeout=20,
    )
    print(launch(0.3 * first))

if __name__ == "__main__":
    if sys.argv[1] == "sleep":
        signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored by background jobs
        sleeping()
    if sys.argv[1] == "machine":
        machine(int(sys.argv[2]), int(sys.argv[3]))
        sys.exit()
    multiprocessing.set_start_method(sys.argv[1])
    print(summed(1.0) if sys.argv[1] == "spawn" else dist.launcher(plain, n_gpus=2)(5))
    try:
        local()()
    except DistributedError as error:
        print(error)
"""


@pytest.fixture
def script(tmp_path, monkeypatch):
    monkeypatch.setenv("TIANYUAN_PLUGINS", "numpy")  # what starts anew shall start fast
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return str(path)


@pytest.mark.parametrize(
    ("method", "expected"), [("spawn", "[3.0, 3.0]"), ("forkserver", "[5, 6]")]
)
def test_other_ways_to_start_processes(script, method, expected):
    done = subprocess.run(
        [sys.executable, script, method], capture_output=True, text=True, timeout=120
    )
    results, refusal = done.stdout.splitlines()
    assert results == expected, done.stderr
    assert "cannot be sent to a new process" in refusal


def test_two_machines(script):
    """Two launchers, as on two machines: the second comes first, and stays longer."""
    port = str(free_port())
    second, first = (
        subprocess.Popen([sys.executable, script, "machine", rank, port], stdout=subprocess.PIPE)
        for rank in "10"
    )
    assert first.communicate(timeout=60)[0] == b"[(0, 0, [0, 1, 2])]\n"
    assert second.communicate(timeout=60)[0] == b"[(1, 0, [0, 1, 2]), (2, 1, [0, 1, 2])]\n"
    assert (first.returncode, second.returncode) == (0, 0)


def is_there(process):
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{process}/stat") as file:
        return file.read().rpartition(")")[2].split()[0] != "Z"


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_ranks_end_with_their_launcher(script, how):
    with subprocess.Popen([sys.executable, script, "sleep"], stdout=subprocess.PIPE, text=True,
                          stderr=subprocess.PIPE) as launching:  # fmt: skip
        ranks = [int(launching.stdout.readline()) for _ in range(2)]
        launching.send_signal(how)
        launching.wait(20)
        deadline = time.monotonic() + 10
        while any(map(is_there, ranks)) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not any(map(is_there, ranks))


def test_children_of_ranks_do_not_keep_connections(run):
    """A worker that a rank forked must not hide from others that the rank is gone."""

    def work():
        D.all_reduce_sum(Tensor([1.0]))
        client = dist.get_client()
        if dist.get_rank() == 1:
            child = os.fork()
            if child == 0:
                time.sleep(60)
                os._exit(0)
            dist.group.close()
            try:
                return client.user_get("noticed", 20.0)
            finally:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
        if dist.get_rank() == 2:
            return client.user_get("noticed", 20.0)
        with pytest.raises(PeerLostError, match="rank 1 is gone"):
            D.all_reduce_sum(Tensor([1.0]))
        with pytest.raises(PeerLostError, match="group: rank 1 is gone"):
            D.all_reduce_sum(Tensor([1.0]), dist.new_group([0, 1]))
        client.user_set("noticed", "yes")
        return None

    assert run(3, work) == [None, "yes", "yes"]
