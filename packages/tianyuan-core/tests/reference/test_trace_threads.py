"""Traces, kernels and plugins under threads, forks and copies."""

from __future__ import annotations

import copy
import dataclasses
import os
import pickle
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import tianyuan as ty
import tianyuan.module as M
from tianyuan.errors import ShapeError, TraceError
from tianyuan.jit import load, trace
from tianyuan.locks import ForkSafeLock


class Net(M.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = M.Linear(3, 2)

    @trace
    def forward(self, x: ty.Tensor) -> ty.Tensor:
        return self.fc(x)


def test_first_use_from_many_threads() -> None:
    program = (
        "import threading, numpy as np, tianyuan as ty\n"
        "x, barrier, faults = ty.Tensor(np.ones((8, 8), 'f')), threading.Barrier(8), []\n"
        "def work():\n"
        "    barrier.wait()\n"
        "    try:\n"
        "        x @ x\n"
        "    except Exception as error:\n"
        "        faults.append(error)\n"
        "threads = [threading.Thread(target=work) for _ in range(8)]\n"
        "[t.start() for t in threads]; [t.join() for t in threads]\n"
        "assert not faults, faults\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


def in_child(work) -> int:
    """Run in a forked child and return its exit status, or -1 where it hangs."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    for _ in range(200):
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.05)
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    return -1


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("updates", [False, True])
def test_a_child_forked_while_threads_run_programs_can_run_them(updates: bool) -> None:
    p = ty.Parameter(np.zeros(1000, np.float32))
    x = ty.Tensor(np.ones(1000, np.float32))

    @trace(symbolic=True)
    def work(x: ty.Tensor) -> ty.Tensor:
        if updates:
            p._reset(p + x)
        return p * x

    work(x)
    stop = threading.Event()

    def loop() -> None:
        while not stop.is_set():
            work(x)

    threads = [threading.Thread(target=loop) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(5):
            assert in_child(lambda: work(x).numpy()) == 0
    finally:
        stop.set()
        for thread in threads:
            thread.join()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_lock_that_the_forking_thread_holds_stays_held_by_it() -> None:
    lock = ForkSafeLock()

    def child() -> None:
        taken = []
        with lock:
            other = threading.Thread(target=lambda: taken.append(lock._lock.acquire(timeout=0.2)))
            other.start()
            other.join()
        assert taken == [False]

    with lock:
        assert in_child(child) == 0


def test_copies_of_a_module_with_a_traced_method() -> None:
    net, x = Net(), ty.Tensor(np.ones((2, 3), np.float32))
    expected = net(x).numpy()
    for other in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        np.testing.assert_array_equal(other(x).numpy(), expected)
        other.fc.weight[...] = 0
        assert not np.array_equal(other(x).numpy(), expected)
    np.testing.assert_array_equal(net(x).numpy(), expected)


@dataclasses.dataclass
class Settings:
    k: float


def test_static_arguments_count_by_what_they_hold() -> None:
    @trace
    def scaled(x: ty.Tensor, by: object) -> ty.Tensor:
        factor = by.k if isinstance(by, Settings) else sum(by) if isinstance(by, set) else by
        return x * float(factor)

    one = ty.Tensor([1.0])
    for value in range(30):
        assert scaled(one, {value}).item() == value
    settings = Settings(2.0)
    assert scaled(one, settings).item() == 2
    settings.k = 5.0
    assert scaled(one, settings).item() == 5
    np.testing.assert_array_equal(np.signbit(scaled(one, 0.0).numpy()), [False])
    np.testing.assert_array_equal(np.signbit(scaled(one, -0.0).numpy()), [True])


def test_many_keys_do_not_pile_up() -> None:
    @trace
    def scaled(x: ty.Tensor, by: float) -> ty.Tensor:
        return x * by

    for value in range(300):
        assert scaled(ty.Tensor([1.0]), float(value)).item() == value
    assert sum(map(len, scaled._traces.values())) <= 256


def test_a_state_cannot_change_its_shape_or_dtype() -> None:
    w = ty.Tensor([1, 2], dtype="int32")

    @trace
    def halve() -> None:
        w.__itruediv__(2)

    with pytest.raises(TraceError, match="cannot change its shape or dtype"):
        halve()
    np.testing.assert_array_equal(w.numpy(), [1, 2])


def test_outputs_given_by_the_caller_must_not_overlap(tmp_path) -> None:
    run = trace(lambda x: (x * 2, x + 1))
    x = np.ones((2, 3), np.float32)
    run(ty.Tensor(x))
    run.dump(tmp_path / "x.tym")
    model = load(tmp_path / "x.tym")
    out = np.empty((2, 3), np.float32)
    with pytest.raises(ShapeError, match="overlaps"):
        model(x, out=[x, out])
    with pytest.raises(ShapeError, match="overlaps"):
        model(x, out=[out, out])
    odd = np.frombuffer(bytes(1) + x.tobytes(), np.uint8)[1:].view(np.float32).reshape(2, 3)
    np.testing.assert_array_equal(model(odd)[0], x * 2)


def test_more_dimensions_than_native_kernels_take() -> None:
    x = ty.Tensor(np.arange(512, dtype=np.float32).reshape((2,) * 9))
    np.testing.assert_array_equal((x + 1).numpy(), x.numpy() + 1)


@pytest.mark.parametrize("count", [0, -1, 10**6, 2.5, "3"])
def test_thread_counts(count: object) -> None:
    with pytest.raises(ValueError, match="expected 1 to 1024"):
        ty.set_num_threads(count)  # type: ignore[arg-type]
