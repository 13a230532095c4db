"""Run functions as ranks: forked, so that they may be local to a test, and with short patience."""

from __future__ import annotations

import functools
import os

import pytest
from tianyuan import distributed as dist


def processes_below_this() -> set[int]:
    """Return the processes that this one has started and that still are there."""
    found = set()
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat") as file:
                    fields = file.read().rpartition(")")[2].split()
            except OSError:
                continue  # it ended while we looked
            if int(fields[1]) == os.getpid():
                found.add(int(name))
    return found


@pytest.fixture
def run():
    """Return ``run(n, function, *args)``, which gives the ranks' results; nothing may be left."""
    before = processes_below_this()

    def run(n, function, *args, timeout=30.0):
        launch = functools.partial(
            dist.launcher, n_gpus=n, timeout=timeout, rendezvous_timeout=timeout
        )
        return launch(function)(*args)

    yield run
    assert processes_below_this() <= before
