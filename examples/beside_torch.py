"""Train a net and, if asked to, the same net in PyTorch from the same weights and data order.

Used by the scripts beside it: each describes its net as a ``Job`` and calls ``main``.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import tianyuan as ty
import tianyuan.functional as F
import tianyuan.module as M
from tianyuan.autodiff import GradManager
from tianyuan.jit import trace
from tianyuan.optimizer import SGD, AdamW

Data = tuple[np.ndarray, np.ndarray]


@dataclass
class Job:
    """A net, its data, and how it is trained.

    Attributes:
        net: gives logits (N, classes) for a batch; labels of a batch are flattened to (N,).
        torch_net: makes the same net of PyTorch's modules.
        to_torch: gives PyTorch's names and forms to the net's initial values.
        train, test: inputs and labels, cut into batches along the first axis.
        kind: ``sgd`` (momentum 0.9) or ``adamw``.
        rate: of learning at the start; it falls along half a cosine to zero.
        epochs, batch, decay: how often each sample is seen, samples per step, weight decay.
    """

    net: M.Module
    torch_net: Callable[[], Any]
    to_torch: Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]
    train: Data
    test: Data
    kind: str
    rate: float
    epochs: int
    batch: int
    decay: float = 5e-4


def rate_at(job: Job, step: int) -> float:
    """Return the learning rate of a step."""
    whole = job.epochs * (len(job.train[0]) // job.batch)
    return job.rate * 0.5 * (1 + math.cos(math.pi * step / whole))


def batches(job: Job, limit: int | None) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Yield (step, inputs, labels); the order depends on nothing but the sizes."""
    rng = np.random.default_rng(0)
    steps = len(job.train[0]) // job.batch
    for epoch in range(job.epochs):
        order = rng.permutation(len(job.train[0]))
        for index in range(steps):
            step = epoch * steps + index
            if limit is not None and step >= limit:
                return
            chosen = order[index * job.batch : (index + 1) * job.batch]
            yield step, job.train[0][chosen], job.train[1][chosen].reshape(-1)


def fit(job: Job, limit: int | None) -> list[float]:
    """Train the net by a traced step; return the loss of every step."""
    net = job.net
    net.train()
    manager = GradManager().attach(net.parameters())
    if job.kind == "sgd":
        optimizer: Any = SGD(net.parameters(), job.rate, momentum=0.9, weight_decay=job.decay)
    else:
        optimizer = AdamW(net.parameters(), job.rate, weight_decay=job.decay)

    @trace(symbolic=True)
    def step(inputs: ty.Tensor, labels: ty.Tensor) -> ty.Tensor:
        with manager:
            loss = F.nn.cross_entropy(net(inputs), labels)
            manager.backward(loss)
        optimizer.step().clear_grad()
        return loss

    losses = []
    for number, inputs, labels in batches(job, limit):
        optimizer.param_groups[0]["lr"] = rate_at(job, number)
        losses.append(step(ty.Tensor(inputs), ty.Tensor(labels)).item())
    return losses


def fit_torch(job: Job, net: Any, limit: int | None) -> list[float]:
    """Train PyTorch's net in the same way."""
    import torch

    net.train()
    if job.kind == "sgd":
        optimizer: Any = torch.optim.SGD(
            net.parameters(), job.rate, momentum=0.9, weight_decay=job.decay
        )
    else:
        optimizer = torch.optim.AdamW(net.parameters(), job.rate, weight_decay=job.decay)
    losses = []
    for number, inputs, labels in batches(job, limit):
        optimizer.param_groups[0]["lr"] = rate_at(job, number)
        optimizer.zero_grad()
        target = torch.from_numpy(labels.astype(np.int64))
        loss = torch.nn.functional.cross_entropy(net(torch.from_numpy(inputs)), target)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def accuracy(job: Job, predict: Callable[[np.ndarray], np.ndarray]) -> float:
    """Return the share, in %, of the test labels that are predicted."""
    inputs, labels = job.test
    found = [predict(inputs[i : i + 500]).argmax(1) for i in range(0, len(inputs), 500)]
    return float((np.concatenate(found) == labels.reshape(-1)).mean()) * 100


def run(job: Job, limit: int | None) -> tuple[list[float], float]:
    """Train and test; return the losses and the accuracy."""
    losses = fit(job, limit)
    job.net.eval()
    predict = trace(lambda inputs: job.net(inputs), symbolic=True)
    return losses, accuracy(job, lambda inputs: predict(ty.Tensor(inputs)).numpy())


def run_torch(
    job: Job, state: dict[str, np.ndarray], limit: int | None
) -> tuple[list[float], float]:
    """Train and test PyTorch's net from the values that the other one started with."""
    import torch

    torch.set_num_threads(ty.get_num_threads())
    net = job.torch_net()
    own = net.state_dict()
    given = job.to_torch(state)
    for name, value in given.items():
        own[name].copy_(torch.from_numpy(value).reshape(own[name].shape))
    unset = [name for name in own if name not in given and "num_batches" not in name]
    if unset:
        raise KeyError(f"run_torch: values are missing, got none for {', '.join(unset)}")
    losses = fit_torch(job, net, limit)
    net.eval()
    with torch.no_grad():
        return losses, accuracy(job, lambda inputs: net(torch.from_numpy(inputs)).numpy())


def command_line(doc: str, epochs: int) -> argparse.ArgumentParser:
    """Return the options that all the scripts have."""
    parser = argparse.ArgumentParser(description=doc)
    parser.add_argument("--compare-torch", action="store_true", help="train PyTorch's net as well")
    parser.add_argument("--epochs", type=int, default=epochs)
    parser.add_argument("--steps", type=int, help="stop after so many steps")
    return parser


def main(job: Job, given: argparse.Namespace) -> None:
    """Train, and print the first ten losses, the accuracy, and the minutes that it took."""
    initial = {name: np.array(value) for name, value in job.net.state_dict().items()}
    rows = {}
    start = time.perf_counter()
    rows["tianyuan"] = (*run(job, given.steps), time.perf_counter() - start)
    if given.compare_torch:
        start = time.perf_counter()
        rows["pytorch"] = (*run_torch(job, initial, given.steps), time.perf_counter() - start)
    for name, (losses, found, seconds) in rows.items():
        print(f"{name:9} first losses {' '.join(f'{loss:.6f}' for loss in losses[:10])}")
        print(f"{name:9} last loss {losses[-1]:.4f} test accuracy {found:.2f} %", end="")
        print(f" after {len(losses)} steps in {seconds / 60:.1f} minutes")
    if given.compare_torch:
        pairs = zip(rows["tianyuan"][0][:10], rows["pytorch"][0][:10], strict=True)
        apart = max(abs(ours - theirs) / abs(theirs) for ours, theirs in pairs)
        print(f"the first losses differ by {apart:.1e} at most, relative")
        points = abs(rows["tianyuan"][1] - rows["pytorch"][1])
        print(f"the accuracies differ by {points:.2f} points")
