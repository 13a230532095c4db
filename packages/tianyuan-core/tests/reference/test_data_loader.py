"""The loader: the same batches whoever makes them, and no process or memory left behind."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tianyuan import Tensor
from tianyuan.data import (
    Collator,
    DataLoader,
    Infinite,
    RandomSampler,
    SequentialSampler,
    StreamSampler,
    get_worker_info,
    handover,
    workers,
)
from tianyuan.data.dataset import ArrayDataset, Dataset, StreamDataset
from tianyuan.data.transform import Transform

DEADLINE = 30.0  # seconds; what is left alone here would take ten times as long
PROMISE = 5.0  # seconds within which the loss of a worker ends a pass


def _segments() -> set[str]:
    return {name for name in os.listdir("/dev/shm") if name.startswith(f"ty_{os.getpid()}_")}


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    yield
    gc.collect()
    assert multiprocessing.active_children() == []
    assert _segments() == set()


class _Arrays(Dataset):
    """Samples with arrays of several dtypes, text and numbers."""

    def __init__(self, length: int = 23) -> None:
        super().__init__()
        self.length = length

    def __getitem__(self, index: int) -> Any:
        return {
            "image": np.full((3, 5), index, np.float32),
            "label": index,
            "flag": np.array(index % 2 == 0),
            "name": f"sample {index}",
            "empty": np.zeros((0, 2), np.int8),
        }

    def __len__(self) -> int:
        return self.length


class _Calling(Dataset):
    """Call a function for each sample."""

    def __init__(self, call: Callable[[int], Any], length: int = 40) -> None:
        super().__init__()
        self.call, self.length = call, length

    def __getitem__(self, index: int) -> Any:
        return self.call(index)

    def __len__(self) -> int:
        return self.length


class _Stream(StreamDataset):
    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        share = range(11) if info is None else range(info.idx, 11, info.worker)
        return iter([(np.array([k]), k) for k in share])


def _equal(a: Any, b: Any) -> None:
    assert type(a) is type(b)
    if isinstance(a, dict):
        assert a.keys() == b.keys()
        for key in a:
            _equal(a[key], b[key])
    elif isinstance(a, np.ndarray):
        np.testing.assert_array_equal(a, b, strict=True)
    else:
        assert a == b


@pytest.mark.parametrize("workers", [0, 1, 2, 3, 8])
def test_batches_do_not_depend_on_workers(workers: int) -> None:
    dataset = _Arrays()
    loader = DataLoader(dataset, SequentialSampler(dataset, 4), num_workers=workers)
    assert len(loader) == 6
    for _ in range(2):
        batches = list(loader)
        assert len(batches) == 6
        for number, batch in enumerate(batches):
            _equal(batch, Collator().apply([dataset[i] for i in range(23)[4 * number :][:4]]))


@pytest.mark.parametrize("workers", [0, 2])
def test_defaults_and_random_order(workers: int) -> None:
    dataset = ArrayDataset(np.arange(6.0), np.arange(6))
    batches = list(DataLoader(dataset, num_workers=workers))
    assert [b[1].tolist() for b in batches] == [[k] for k in range(6)]
    assert isinstance(batches[0], tuple)
    assert batches[0][0].dtype == np.float64
    loader = DataLoader(dataset, RandomSampler(dataset, 4, seed=9), num_workers=workers)
    wanted = RandomSampler(dataset, 4, seed=9)
    for _ in range(2):
        assert [b[1].tolist() for b in loader] == list(wanted)


@pytest.mark.parametrize("workers", [0, 2])
def test_transform_and_collator(workers: int) -> None:
    class Negate(Transform):
        def apply(self, input: Any) -> Any:
            return -input[0], input[1]

    class Total(Collator):
        def apply(self, inputs: Any) -> Any:
            return sum(sample[0] for sample in inputs)

    dataset = ArrayDataset(np.arange(6), np.arange(6))
    loader = DataLoader(
        dataset, SequentialSampler(dataset, 3), Negate(), Total(), num_workers=workers
    )
    assert list(loader) == [-3, -12]


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_are_writable_and_apart(workers: int) -> None:
    dataset = ArrayDataset(np.arange(8))
    first, second = DataLoader(dataset, SequentialSampler(dataset, 4), num_workers=workers)
    first[0][:] = -1
    assert second[0].tolist() == [4, 5, 6, 7]
    assert dataset.arrays[0].tolist() == list(range(8))


@pytest.mark.parametrize("workers", [0, 2])
def test_stream(workers: int) -> None:
    loader = DataLoader(_Stream(), StreamSampler(4), num_workers=workers)
    for _ in range(2):
        labels = [batch[1].tolist() for batch in loader]
        assert labels == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10]]
    assert len(list(DataLoader(_Stream(), num_workers=workers))) == 11
    with pytest.raises(TypeError):
        len(loader)


def test_parallel_stream_takes_from_the_workers_in_turn() -> None:
    loader = DataLoader(_Stream(), StreamSampler(2), num_workers=3, parallel_stream=True)
    wanted = [[0, 3], [1, 4], [2, 5], [6, 9], [7, 10], [8]]
    assert [batch[1].tolist() for batch in loader] == wanted


def test_worker_info_and_seeds() -> None:
    def tell(index: int) -> Any:
        info = get_worker_info()
        assert info is not None
        assert isinstance(info.dataset, _Calling)
        return info.idx, info.worker, info.seed, os.getpid(), np.random.randint(2**31)

    dataset = _Calling(tell, 8)
    runs = []
    for _ in range(2):
        np.random.seed(4)
        batches = DataLoader(dataset, SequentialSampler(dataset, 2), num_workers=2)
        runs.append([[field.tolist() for field in batch] for batch in batches])
    first, again = runs
    assert [batch[0] for batch in first] == [[0, 0], [1, 1], [0, 0], [1, 1]]
    assert first[0][1] == [2, 2]
    assert first[1][2][0] == first[0][2][0] + 1
    assert len({pid for batch in first for pid in batch[3]} | {os.getpid()}) == 3
    draws = [draw for batch in first for draw in batch[4]]
    assert len(set(draws)) == 8
    assert draws == [draw for batch in again for draw in batch[4]]
    assert get_worker_info() is None


def test_infinite_sampler_and_dropping_the_iterator() -> None:
    dataset = _Arrays(5)
    batches = iter(DataLoader(dataset, Infinite(SequentialSampler(dataset, 2)), num_workers=2))
    labels = [next(batches)["label"].tolist() for _ in range(5)]
    assert labels == [[0, 1], [2, 3], [4], [0, 1], [2, 3]]
    assert len(multiprocessing.active_children()) == 2
    del batches
    gc.collect()
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize("workers", [0, 2])
def test_preload_gives_tensors(workers: int) -> None:
    dataset = _Arrays(5)
    sampler = SequentialSampler(dataset, 2)
    batches = list(DataLoader(dataset, sampler, num_workers=workers, preload=True))
    assert [batch["name"] for batch in batches] == [
        ["sample 0", "sample 1"], ["sample 2", "sample 3"], ["sample 4"],
    ]  # fmt: skip
    for batch, plain in zip(batches, DataLoader(dataset, sampler), strict=True):
        for field in ("image", "label", "flag", "empty"):
            assert isinstance(batch[field], Tensor)
            np.testing.assert_array_equal(batch[field].numpy(), plain[field])


def test_preload_holds_one_batch_ahead() -> None:
    made: list[int] = []
    loader = DataLoader(_Calling(lambda index: made.append(index) or index, 4), preload=True)
    batches = iter(loader)
    assert next(batches).numpy().tolist() == [0]
    assert made == [0, 1]
    assert [int(batch.numpy()[0]) for batch in batches] == [1, 2, 3]


def test_two_passes_at_once() -> None:
    dataset = ArrayDataset(np.arange(6))
    loader = DataLoader(dataset, num_workers=2)
    for one, two in zip(loader, loader, strict=True):
        assert one[0].tolist() == two[0].tolist()


def test_large_batches_pass() -> None:
    dataset = _Calling(lambda index: (np.full(2_000_000, index, np.uint8), "x" * 200_000), 9)
    loader = DataLoader(dataset, SequentialSampler(dataset, 2), num_workers=2)
    for number, (images, texts) in enumerate(loader):
        assert (images == (2 * number + np.arange(len(texts)))[:, np.newaxis]).all()
        assert all(text == "x" * 200_000 for text in texts)


@pytest.mark.parametrize("workers", [0, 2])
def test_many_indices_in_a_batch(workers: int) -> None:
    dataset = ArrayDataset(np.arange(300_000))
    loader = DataLoader(dataset, SequentialSampler(dataset, 50_000), num_workers=workers)
    assert [int(batch[0].sum()) for batch in loader] == [
        sum(range(start, start + 50_000)) for start in range(0, 300_000, 50_000)
    ]


# Failures


def _ends(loader: DataLoader) -> RuntimeError:
    started = time.monotonic()
    batches = iter(loader)
    with pytest.raises(RuntimeError) as caught:
        list(batches)
    assert time.monotonic() - started < PROMISE
    assert multiprocessing.active_children() == []
    with pytest.raises(StopIteration):
        next(batches)
    return caught.value


def _raise_at(wanted: int) -> Callable[[int], Any]:
    def call(index: int) -> Any:
        if index == wanted:
            raise KeyError(f"no sample of number {index}")
        return index

    return call


def test_a_sample_that_raises_here() -> None:
    with pytest.raises(KeyError, match="number 7"):
        list(DataLoader(_Calling(_raise_at(7))))


@pytest.mark.parametrize("at", [0, 7, 39])
def test_a_worker_that_raises(at: int) -> None:
    error = _ends(DataLoader(_Calling(_raise_at(at)), num_workers=3))
    assert f"batch {at} failed in worker {at % 3}" in str(error)
    assert "in call" in str(error)
    assert f"KeyError: 'no sample of number {at}'" in str(error)


def test_stop_iteration_of_a_sample_is_an_error() -> None:
    error = _ends(DataLoader(_Calling(lambda index: next(iter(()))), num_workers=2))
    assert "StopIteration" in str(error)


def test_a_batch_that_cannot_be_pickled() -> None:
    class Keep(Collator):
        def apply(self, inputs: Any) -> Any:
            return lambda: inputs

    dataset = ArrayDataset(np.arange(4))
    error = _ends(DataLoader(dataset, collator=Keep(), num_workers=2))
    assert "failed in worker" in str(error)
    assert "pickle" in str(error).lower()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_worker_that_is_killed(how: signal.Signals) -> None:
    def call(index: int) -> Any:
        if index == 6:
            os.kill(os.getpid(), how)
            time.sleep(300)
        return np.zeros(1000)

    error = _ends(DataLoader(_Calling(call), num_workers=2))
    assert f"died, got {how.name}" in str(error)


@pytest.mark.parametrize("which", [0, 1])
def test_a_worker_that_is_killed_from_outside(which: int) -> None:
    """As the system does where memory runs out, with batches on their way through shared memory."""

    def call(index: int) -> Any:
        time.sleep(0.01)
        return np.full(300_000, index)

    batches = iter(DataLoader(_Calling(call, 100_000), num_workers=2))
    for _ in range(5):
        next(batches)
    victim = sorted(multiprocessing.active_children(), key=lambda p: int(p.name))[which]
    pid = victim.pid
    os.kill(pid, signal.SIGKILL)
    started = time.monotonic()
    with pytest.raises(RuntimeError) as caught:
        list(batches)
    assert time.monotonic() - started < PROMISE
    assert f"worker {which} (pid {pid}) died, got SIGKILL" in str(caught.value)
    assert multiprocessing.active_children() == []
    assert _segments() == set()


def test_batches_are_made_ahead_but_not_without_end() -> None:
    made = multiprocessing.Value("i", 0)

    def call(index: int) -> Any:
        with made.get_lock():
            made.value += 1
        return index

    batches = iter(DataLoader(_Calling(call, 1000), num_workers=2))
    next(batches)
    ahead = 1 + 2 * workers.AHEAD
    until = time.monotonic() + DEADLINE
    while made.value < ahead and time.monotonic() < until:
        time.sleep(0.01)
    time.sleep(0.2)  # nobody asks: nothing more is made
    assert made.value == ahead
    next(batches)
    while made.value < ahead + 1 and time.monotonic() < until:
        time.sleep(0.01)
    assert made.value == ahead + 1


def test_a_killed_worker_is_noticed_while_another_is_awaited() -> None:
    def call(index: int) -> Any:
        if index == 1:
            os._exit(3)
        if index == 0:
            time.sleep(300)
        return index

    error = _ends(DataLoader(_Calling(call), num_workers=2))
    assert "worker 1" in str(error)
    assert "exit code 3" in str(error)


def test_what_a_dead_worker_left_is_removed() -> None:
    prefix = f"ty_{os.getpid()}_left"
    inbox, outbox = handover.Inbox(prefix, 3), handover.Outbox(prefix)
    np.testing.assert_array_equal(inbox.unpack(outbox.pack(np.arange(9), 0)), np.arange(9))
    assert _segments() == set()  # a segment that both sides hold has no name any more
    outbox.pack(np.zeros(10_000), 0)  # larger, and never taken
    outbox.pack(np.zeros(10), 1)
    Path("/dev/shm", f"{prefix}_2_1").touch()  # made, but not yet given a size
    assert len(_segments()) == 3
    inbox.close()
    assert _segments() == set()


def test_slots_are_used_again_and_grow() -> None:
    prefix = f"ty_{os.getpid()}_grow"
    inbox, outbox = handover.Inbox(prefix, 2), handover.Outbox(prefix)
    taken = []
    generations = []
    for number, size in enumerate([5, 3, 400, 20, 410, 90_000, 0, 7, 90_001, 1]):
        parcel = outbox.pack({"x": np.full(size, number), "n": number}, number % 2)
        generations.append(parcel[1])
        taken.append((size, inbox.unpack(parcel)))
    for number, (size, batch) in enumerate(taken):  # no batch was touched by a later one
        assert batch["n"] == number
        np.testing.assert_array_equal(batch["x"], np.full(size, number))
    assert generations[2] == generations[4] == 2  # grown with room to spare
    assert generations[5] == generations[9] == 3
    inbox.close()


def test_timeout() -> None:
    def call(index: int) -> Any:
        if index == 3:
            time.sleep(300)
        return index

    error = _ends(DataLoader(_Calling(call), num_workers=2, timeout=1))
    assert "batch 3 took too long" in str(error)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"num_workers": -1}, ValueError, "num_workers"),
        ({"num_workers": 1.0}, ValueError, "num_workers"),
        ({"timeout": -1}, ValueError, "timeout"),
        ({"sampler": [[0]]}, TypeError, "got list, expected a Sampler"),
        ({"sampler": StreamSampler()}, TypeError, "expected a sampler of indices"),
        ({"parallel_stream": True}, ValueError, "parallel_stream"),
        ({"dataset": 3}, TypeError, "got int, expected a Dataset"),
        ({"dataset": _Stream(), "sampler": SequentialSampler([1])}, TypeError, "StreamSampler"),
        ({"dataset": _Stream(), "parallel_stream": True}, ValueError, "parallel_stream"),
    ],
)
def test_wrong_arguments(arguments: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        DataLoader(**{"dataset": _Arrays(), **arguments})


# Whole processes


def _script(tmp_path: Path, body: str) -> subprocess.Popen[str]:
    path = tmp_path / "script.py"
    path.write_text(
        textwrap.dedent(
            """
            import os, signal, sys, time
            import numpy as np
            from tianyuan.data import DataLoader, SequentialSampler
            from tianyuan.data.dataset import Dataset

            # A shell that starts the tests in the background lets them ignore Ctrl-C.
            signal.signal(signal.SIGINT, signal.default_int_handler)

            class Slow(Dataset):
                def __getitem__(self, index):
                    time.sleep(0.02)
                    return np.full(5000, index)
                def __len__(self):
                    return 100000

            def main():
                loader = DataLoader(Slow(), num_workers=2)
            """
        )
        + textwrap.indent(textwrap.dedent(body), "    ")
        + '\nif __name__ == "__main__":\n    main()\n'
    )
    return subprocess.Popen(
        [sys.executable, str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def _leftovers(pid: int) -> list[str]:
    """Return segments named after a process, and processes of its session."""
    found = [name for name in os.listdir("/dev/shm") if name.startswith(f"ty_{pid}_")]
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                fields = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if int(fields[3]) == pid and fields[0] != "Z":
                found.append(entry)
    return found


def _nothing_left_of(pid: int) -> None:
    until = time.monotonic() + DEADLINE
    while _leftovers(pid) and time.monotonic() < until:
        time.sleep(0.05)
    assert _leftovers(pid) == []


def test_interrupt(tmp_path: Path) -> None:
    process = _script(
        tmp_path,
        """
        for number, batch in enumerate(loader):
            if number == 3:
                print("running", flush=True)
        """,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "running\n"
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == -signal.SIGINT
    assert errors.count("KeyboardInterrupt") == 1  # the workers say nothing
    _nothing_left_of(process.pid)


def test_interrupt_while_a_batch_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """What its traceback holds must not keep the memory from being closed."""

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        raise KeyboardInterrupt

    batches = iter(DataLoader(_Arrays(), num_workers=2))
    next(batches)
    monkeypatch.setattr(handover.pickle, "loads", interrupted)
    with pytest.raises(KeyboardInterrupt):
        next(batches)
    assert multiprocessing.active_children() == []


def test_interrupt_while_the_mask_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python handles signals after a call that blocks them; the workers must end all the same."""
    real = signal.pthread_sigmask
    left = [1, 1]  # once where the mask is asked for, once where it is set

    def interrupted(how: int, mask: Any) -> Any:
        before = real(how, mask)
        which = len(tuple(mask)) if how == signal.SIG_BLOCK else None
        if which is not None and left[which]:
            left[which] -= 1
            raise KeyboardInterrupt
        return before

    outside = real(signal.SIG_BLOCK, ())
    batches = iter(DataLoader(_Arrays(), num_workers=2))
    next(batches)
    monkeypatch.setattr(signal, "pthread_sigmask", interrupted)
    with pytest.raises(KeyboardInterrupt):
        batches._batches.close()
    assert multiprocessing.active_children() == []
    assert left == [0, 0]
    assert real(signal.SIG_BLOCK, ()) == outside


def test_leaving_with_an_open_iterator(tmp_path: Path) -> None:
    process = _script(
        tmp_path,
        """
        global batches
        batches = iter(loader)
        next(batches)
        """,
    )
    _, errors = process.communicate(timeout=120)
    assert (process.returncode, errors) == (0, "")
    _nothing_left_of(process.pid)


def test_killed_loader_takes_its_workers_along(tmp_path: Path) -> None:
    process = _script(
        tmp_path,
        """
        for batch in loader:
            print("running", flush=True)
            time.sleep(300)
        """,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "running\n"
    process.kill()
    process.wait(120)
    _nothing_left_of(process.pid)
    process.stdout.close()
    assert process.stderr is not None
    process.stderr.close()


def test_native_threads_before_the_fork(tmp_path: Path) -> None:
    process = _script(
        tmp_path,
        """
        a = np.ones((700, 700))
        wanted = float((a @ a).sum())

        class Product(Slow):
            def __getitem__(self, index):
                return (a @ a).sum()
            def __len__(self):
                return 4

        totals = [float(batch[0]) for batch in DataLoader(Product(), num_workers=2)]
        assert totals == [wanted] * 4 == [700.0 ** 3] * 4
        """,
    )
    _, errors = process.communicate(timeout=120)
    assert (process.returncode, errors) == (0, "")


def test_our_own_ops_before_and_after_the_fork(tmp_path: Path) -> None:
    """The thread pool of a native backend must not hold up a forked worker that computes too."""
    process = _script(
        tmp_path,
        """
        import tianyuan as ty
        a = ty.Tensor(np.ones((300, 300), np.float32))
        assert float((a @ a).sum().item()) == 300.0 ** 3

        class Product(Slow):
            def __getitem__(self, index):
                return (a @ a).sum().item() + index
            def __len__(self):
                return 4

        totals = [float(batch[0]) for batch in DataLoader(Product(), num_workers=2)]
        assert totals == [300.0 ** 3 + index for index in range(4)]
        assert float((a @ a).sum().item()) == 300.0 ** 3
        """,
    )
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_other_ways_to_start_workers(tmp_path: Path, method: str) -> None:
    process = _script(
        tmp_path,
        f"""
        import multiprocessing
        multiprocessing.set_start_method("{method}")
        batches = iter(loader)
        assert [int(next(batches)[0, 0]) for _ in range(5)] == list(range(5))
        time.sleep(2.5)  # the workers idle meanwhile
        assert [int(next(batches)[0, 0]) for _ in range(9)] == list(range(5, 14))
        """,
    )
    _, errors = process.communicate(timeout=120)
    assert (process.returncode, errors) == (0, "")
    _nothing_left_of(process.pid)


def test_import_is_light() -> None:
    code = (
        "import sys, tianyuan.data; "
        "print(sorted({'torch', 'cv2', 'PIL', 'scipy', 'pandas'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


class Interrupting(ArrayDataset):
    """Raises what a dataset hardly should."""

    def __init__(self, error: type[BaseException]) -> None:
        super().__init__(np.arange(8))
        self.error = error

    def __getitem__(self, index: int) -> Any:
        raise self.error("from the dataset")


@pytest.mark.parametrize("error", [KeyboardInterrupt, GeneratorExit])
def test_whatever_a_worker_raises_comes_with_its_traceback(error: type[BaseException]) -> None:
    with pytest.raises(RuntimeError, match=f"{error.__name__}: from the dataset"):
        list(DataLoader(Interrupting(error), num_workers=1))


def test_loaders_of_several_threads_start_their_workers_without_waiting_for_ever() -> None:
    script = (
        "import threading, numpy as np\n"
        "from tianyuan.data import DataLoader\n"
        "from tianyuan.data.dataset import ArrayDataset\n"
        "def load():\n"
        "    counts.append(len(list(DataLoader(ArrayDataset(np.arange(20)), num_workers=2))))\n"
        "counts = []\n"
        "for _ in range(4):\n"
        "    threads = [threading.Thread(target=load) for _ in range(4)]\n"
        "    [thread.start() for thread in threads]\n"
        "    [thread.join() for thread in threads]\n"
        "print(set(counts), len(counts))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "{20} 16\n", done.stderr


def test_samples_of_different_kinds_are_refused_by_name() -> None:
    with pytest.raises(TypeError, match="samples differ in kind, got ndarray and str"):
        Collator().apply([np.zeros(2), "two"])
