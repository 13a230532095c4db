"""A run that was stopped and loaded again gives, bit for bit, what it would have given."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tianyuan
import tianyuan.functional as F
import tianyuan.module as M
import tianyuan.optimizer as optim
from tianyuan import Tensor, load_checkpoint, save_checkpoint
from tianyuan.autodiff import GradManager
from tianyuan.data import DataLoader, Infinite, RandomSampler, ReplacementSampler, SequentialSampler
from tianyuan.data.dataset import ArrayDataset, StreamDataset
from tianyuan.data.sampler import Sampler, StreamSampler
from tianyuan.data.transform import Transform
from tianyuan.errors import ModelFormatError, StateDictError
from tianyuan.jit import trace


class Noise(Transform):
    """Draws from both of Python's global generators."""

    def apply(self, inputs: Any) -> Any:
        x, y = inputs
        return x + np.float32(np.random.normal()) * np.float32(random.random()), y


class Run:
    """A small network that needs all that a checkpoint holds."""

    def __init__(self, seed: int, workers: int = 0, traced: bool = False) -> None:
        tianyuan.random.seed(seed)
        np.random.seed(seed)
        random.seed(seed)
        rng = np.random.default_rng(0)
        data = ArrayDataset(
            rng.standard_normal((22, 6)).astype(np.float32), rng.integers(0, 3, 22).astype(np.int32)
        )
        self.net = M.Sequential(
            M.Linear(6, 8), M.BatchNorm1d(8), M.ReLU(), M.Dropout(0.4), M.Linear(8, 3)
        )
        self.optimizer = optim.Adam(self.net.parameters(), lr=0.05, weight_decay=0.01)
        self.schedule = optim.CosineAnnealingLR(self.optimizer, 4)
        self.loader = DataLoader(
            data,
            RandomSampler(data, batch_size=4, seed=seed),
            None if workers else Noise(),
            num_workers=workers,
        )
        self.manager = GradManager().attach(self.net.parameters())
        self.update = trace(self._update) if traced else self._update
        self.losses: list[float] = []

    def parts(self) -> dict[str, Any]:
        return {
            "model": self.net, "optimizer": self.optimizer, "scheduler": self.schedule,
            "loader": self.loader,
        }  # fmt: skip

    def _update(self, x: Tensor, y: Tensor) -> Tensor:
        with self.manager:
            loss = F.nn.cross_entropy(self.net(x), y)
            self.manager.backward(loss)
        self.optimizer.step().clear_grad()
        return loss

    def train(self, epochs: range, stop: int | None = None) -> None:
        for _ in epochs:
            for x, y in self.loader:
                self.losses.append(self.update(Tensor(x), Tensor(y)).item())
                if len(self.losses) == stop:
                    return
            self.schedule.step()


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("stop", [1, 6, 9, 12, 18])
def test_an_interrupted_run_goes_on_bit_for_bit(stop: int, traced: bool, tmp_path: Path) -> None:
    whole = Run(1, traced=traced)
    whole.train(range(3))
    assert len(whole.losses) == 18
    assert len(set(whole.losses)) == 18
    first = Run(1, traced=traced)
    first.train(range(3), stop)
    epoch = (stop - 1) // 6
    save_checkpoint(tmp_path / "run", **first.parts(), epoch=epoch, losses=first.losses)
    second = Run(77, traced=traced)
    second.train(range(1), 3)  # whatever it held before is replaced
    values = load_checkpoint(tmp_path / "run", **second.parts())
    assert values == {"epoch": epoch, "losses": first.losses}
    second.losses = values["losses"]
    second.train(range(values["epoch"], 3))
    assert second.losses == whole.losses
    assert second.optimizer.param_groups[0]["lr"] == whole.optimizer.param_groups[0]["lr"]
    for name, array in whole.net.state_dict().items():
        np.testing.assert_array_equal(second.net.state_dict()[name], array)


def test_workers_ahead_do_not_move_the_place(tmp_path: Path) -> None:
    whole = Run(1, workers=2)
    whole.train(range(2))
    first = Run(1, workers=2)
    first.train(range(2), 3)
    save_checkpoint(tmp_path / "run", **first.parts())
    second = Run(5, workers=1)
    load_checkpoint(tmp_path / "run", **second.parts())
    second.train(range(2))
    assert first.losses + second.losses == whole.losses


def _drawn(loader: DataLoader, count: int) -> list[list[int]]:
    passes: list[list[int]] = []
    while len(passes) < count:
        for batch in loader:
            passes.append(np.asarray(batch[0]).tolist())
            if len(passes) == count:
                break
    return passes


def _indexed(sampler: Any, preload: bool = False) -> DataLoader:
    data = ArrayDataset(np.arange(10))
    return DataLoader(data, sampler(data), preload=preload)


@pytest.mark.parametrize("taken", [0, 1, 4, 5, 7])
@pytest.mark.parametrize("preload", [False, True])
@pytest.mark.parametrize(
    "sampler",
    [
        lambda data: RandomSampler(data, 2),
        lambda data: SequentialSampler(data, 2),
        lambda data: ReplacementSampler(data, 2, num_samples=10),
        lambda data: Infinite(RandomSampler(data, 2)),
    ],
)
def test_every_sampler_keeps_its_place(sampler: Any, preload: bool, taken: int) -> None:
    one, other = _indexed(sampler, preload), _indexed(sampler, preload)
    iterator, begun = iter(one), taken % 5
    for _ in range(taken // 5 if not isinstance(one.sampler, Infinite) else 0):
        list(iterator)
        iterator = iter(one)
    begun = taken if isinstance(one.sampler, Infinite) else begun
    for _ in range(begun):
        next(iterator)
    state = one.state_dict()
    assert state["taken"] == begun
    other.load_state_dict(state)
    assert other.state_dict() == state
    rest = [np.asarray(batch[0]).tolist() for batch, _ in zip(iterator, range(12), strict=False)]
    assert _drawn(other, max(len(rest), 1))[: len(rest)] == rest


class Stream(StreamDataset):
    def __iter__(self) -> Iterator[Any]:
        return iter((np.array([n]),) for n in range(11))


@pytest.mark.parametrize("workers", [0, 1])
def test_a_stream_is_read_over(workers: int) -> None:
    one, other = (DataLoader(Stream(), StreamSampler(3), num_workers=workers) for _ in range(2))
    whole = [batch[0].ravel().tolist() for batch in one]
    assert whole == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10]]
    iterator = iter(one)
    next(iterator), next(iterator)
    other.load_state_dict(one.state_dict())
    assert [batch[0].ravel().tolist() for batch in other] == whole[2:]
    assert [batch[0].ravel().tolist() for batch in other] == whole
    del iterator


def test_a_sampler_of_other_sizes_is_refused() -> None:
    data = ArrayDataset(np.arange(10))
    sampler = RandomSampler(data, 2, seed=3)
    before = sampler.state_dict()
    for other in (RandomSampler(data, 3), RandomSampler(ArrayDataset(np.arange(9)), 2)):
        with pytest.raises(StateDictError, match="(batch_size|num_samples) differs"):
            sampler.load_state_dict(other.state_dict())
    with pytest.raises(StateDictError, match="names differ"):
        sampler.load_state_dict({})
    with pytest.raises(StateDictError, match="rng does not fit"):
        sampler.load_state_dict({**before, "rng": {"bit_generator": "MT19937"}})
    with pytest.raises(StateDictError, match="names differ"):
        DataLoader(data, sampler).load_state_dict({"taken": 1})
    assert sampler.state_dict() == before

    class Own(Sampler):
        def __iter__(self) -> Iterator[list[int]]:
            return iter([[1], [2]])

    loader = DataLoader(data, Own())
    next(iter(loader))
    resumed = DataLoader(data, Own())
    resumed.load_state_dict(loader.state_dict())
    assert [batch[0].tolist() for batch in resumed] == [[2]]


def test_only_some_parts_may_be_wanted(tmp_path: Path) -> None:
    run = Run(3)
    run.train(range(1))
    rng = tianyuan.random.RNG(5)
    rng.uniform(size=3)
    save_checkpoint(tmp_path / "run", **run.parts(), rng=rng)
    expected = rng.uniform(size=3).numpy()
    other = Run(4)
    draws = tianyuan.random.get_state()
    fresh = tianyuan.random.RNG(9)
    assert load_checkpoint(tmp_path / "run", restore_random=False, model=other.net, rng=fresh) == {}
    assert tianyuan.random.get_state() == draws
    np.testing.assert_array_equal(fresh.uniform(size=3).numpy(), expected)
    for name, array in run.net.state_dict().items():
        np.testing.assert_array_equal(other.net.state_dict()[name], array)


def test_what_does_not_fit_changes_nothing(tmp_path: Path) -> None:
    run = Run(3)
    run.train(range(1), 4)
    path = tmp_path / "run"
    save_checkpoint(path, **run.parts())
    narrow = optim.Adam(M.Linear(2, 2).parameters(), lr=1.0)
    other = Run(4)
    other.train(range(1), 2)
    before = {name: part.state_dict() for name, part in other.parts().items()}
    draws = tianyuan.random.get_state()

    def unchanged() -> None:
        assert tianyuan.random.get_state() == draws
        for name, part in other.parts().items():
            np.testing.assert_equal(part.state_dict(), before[name])

    with pytest.raises(StateDictError, match=r"missing in the file.*expected \['ema'\] too"):
        load_checkpoint(path, **other.parts(), ema=other.net)
    unchanged()
    with pytest.raises(StateDictError, match="epoch has no state, got int"):
        load_checkpoint(path, **other.parts(), epoch=1)
    unchanged()
    with pytest.raises(StateDictError, match="groups have other sizes"):
        load_checkpoint(path, **{**other.parts(), "optimizer": narrow})
    unchanged()
    with pytest.raises(TypeError, match=r"got .*Run at obj\['values'\]\['run'\]"):
        save_checkpoint(path, **run.parts(), run=run)
    load_checkpoint(path, **other.parts())  # the file is still the one before
    np.testing.assert_equal(other.net.state_dict(), run.net.state_dict())


def test_damage_is_told(tmp_path: Path) -> None:
    run = Run(3)
    path = tmp_path / "run"
    save_checkpoint(path, **run.parts())
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    before = run.net.state_dict()
    for place in [*rng.integers(0, len(whole), 40).tolist(), 0, len(whole) - 1]:
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x10]) + whole[place + 1 :])
        try:
            load_checkpoint(path, **run.parts())
        except ModelFormatError:
            np.testing.assert_equal(run.net.state_dict(), before)
        else:  # only padding between tensors is not read
            np.testing.assert_equal(run.net.state_dict(), before)
    for cut in (0, 7, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:cut])
        with pytest.raises(ModelFormatError):
            load_checkpoint(path, **run.parts())
    tianyuan.save({"kind": "something"}, path)
    with pytest.raises(ModelFormatError, match="not a checkpoint"):
        load_checkpoint(path, **run.parts())
    tianyuan.save({"kind": "tianyuan.checkpoint", "version": 99}, path)
    with pytest.raises(ModelFormatError, match="unknown version, got 99"):
        load_checkpoint(path, **run.parts())
    with pytest.raises(FileNotFoundError):
        load_checkpoint(tmp_path / "none", **run.parts())


@pytest.mark.parametrize("generator", ["python", "numpy", "tianyuan"])
def test_a_generator_state_that_does_not_fit_leaves_every_generator_as_it_was(
    tmp_path: Path, generator: str
) -> None:
    path = tmp_path / "run.ckpt"
    save_checkpoint(path, epoch=1)
    whole = tianyuan.load(path)
    whole["random"][generator] = "nonsense"
    tianyuan.save(whole, path)
    np.random.seed(5)
    random.seed(5)
    tianyuan.random.seed(5)
    want = random.random(), np.random.random(), F.sum(tianyuan.random.uniform(size=(4,))).item()
    np.random.seed(5)
    random.seed(5)
    tianyuan.random.seed(5)
    with pytest.raises(ModelFormatError, match="random generator is wrong"):
        load_checkpoint(path)
    assert random.random() == want[0]
    assert np.random.random() == want[1]
    assert F.sum(tianyuan.random.uniform(size=(4,))).item() == want[2]


@pytest.mark.parametrize("part", ["states", "values", "random"])
def test_a_checkpoint_without_one_of_its_parts_is_refused(tmp_path: Path, part: str) -> None:
    path = tmp_path / "run.ckpt"
    save_checkpoint(path, epoch=1)
    whole = tianyuan.load(path)
    del whole[part]
    tianyuan.save(whole, path)
    with pytest.raises(ModelFormatError, match=f"{part} are wrong"):
        load_checkpoint(path)
