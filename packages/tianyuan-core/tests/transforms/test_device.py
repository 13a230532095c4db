"""Devices and their memory: what strings mean, what is counted, what peaks are."""

from __future__ import annotations

import gc
import os

import numpy as np
import pytest
import tianyuan as ty
from tianyuan import device
from tianyuan.errors import DeviceError
from tianyuan.jit import trace


@pytest.fixture(autouse=True)
def collected() -> None:
    """Free what earlier tests left in cycles, lest it goes while bytes are counted."""
    gc.collect()


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("cpux", "cpu"), ("cpu0", "cpu"), ("cpu:default", "cpu"), ("xpux", "cpu"),
        ("xpu0", "cpu"), ("multithread4:0", "cpu"), ("multithread:default:4", "cpu"),
        ("gpu0", "cuda:0"), ("gpu1:0", "cuda:0"), ("cuda:1", "cuda:1"), ("gpux", "cuda:0"),
    ],
)  # fmt: skip
def test_spellings(text: str, meaning: str) -> None:
    assert device.parse_device(text) == meaning


@pytest.mark.parametrize("text", ["cpux", "xpux", "multithread4:0", "cpu:default"])
def test_tensors_lie_where_megengine_spells_it(text: str) -> None:
    x = ty.Tensor([1.0, 2.0], device=text)
    assert x.device == "cpu"
    np.testing.assert_array_equal((x.to(text) + 1).numpy(), [2, 3])


def test_default_device() -> None:
    before = device.get_default_device()
    try:
        device.set_default_device("multithread2:0")
        assert device.get_default_device() == ty.Tensor([1.0]).device == "cpu"
        with pytest.raises(DeviceError, match="cannot be parsed"):
            device.set_default_device("3d printer")
        device.set_default_device()
        assert device.get_default_device() == device.what_is_xpu() == "cpu"
    finally:
        device.set_default_device(before)


def test_counts() -> None:
    assert device.get_device_count("cpu") == len(os.sched_getaffinity(0))
    assert device.get_device_count("xpu") == device.get_device_count("cpux")
    assert device.get_device_count("rocm") == 0
    with pytest.raises(DeviceError, match="cannot be parsed"):
        device.get_device_count("no kind")


def test_availability_is_what_backends_serve() -> None:
    assert device.is_cuda_available() is (device.get_device_count("gpu") > 0)
    assert not device.is_rocm_available()
    assert not device.is_cambricon_available()
    assert not device.is_atlas_available()


def test_machine_and_process_memory() -> None:
    total, free = device.get_mem_status_bytes("cpux")
    assert total == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert 0 < free <= total
    before = device.get_reserved_memory()
    big = np.ones(64 << 17)  # 64 MiB, touched
    assert device.get_reserved_memory() - before > 50 << 20
    assert device.get_max_reserved_memory() >= before + (50 << 20)
    del big
    device.coalesce_free_memory()
    assert device.get_reserved_memory() < before + (50 << 20)


def test_allocated_counts_owned_memory_once() -> None:
    before = device.get_allocated_memory()
    x = ty.Tensor(np.zeros(1 << 20, np.float32))
    twin = x.detach()
    assert (4 << 20) <= device.get_allocated_memory() - before < (4 << 20) + 4096
    del x, twin
    assert device.get_allocated_memory() == before


def test_the_peak_remembers_what_has_gone() -> None:
    x = ty.Tensor(np.ones(1 << 20, np.float32))
    device.reset_max_memory_stats("cpu")
    start = device.get_allocated_memory()
    assert device.get_max_allocated_memory() == start
    y = ((x + 1) * 2).sum()
    assert float(y.item()) == 4 << 20
    assert device.get_allocated_memory() - start < 4096
    assert (8 << 20) <= device.get_max_allocated_memory() - start < (9 << 20)
    device.reset_max_memory_stats()
    assert device.get_max_allocated_memory() - start < 4096


@pytest.mark.parametrize("followed", [False, True])
def test_data_results_and_outputs_of_programs_count_alike(followed: bool) -> None:
    if followed:
        device.reset_max_memory_stats()
    run = trace(lambda x: (x + 1, x[:1] * 0))
    before = device.get_allocated_memory()
    x = ty.Tensor(np.ones(1 << 18, np.float32))
    after_data = device.get_allocated_memory() - before
    outputs = run(x)
    after_call = device.get_allocated_memory() - before
    assert (1 << 20) <= after_data < (1 << 20) + 4096
    assert (2 << 20) <= after_call < (2 << 20) + 8192
    del x, outputs, run  # a traced function keeps its last arguments, for dump
    gc.collect()
    assert device.get_allocated_memory() - before < 4096


def test_another_device_is_refused() -> None:
    for question in (
        device.get_mem_status_bytes, device.get_allocated_memory, device.get_max_allocated_memory,
        device.get_reserved_memory, device.get_max_reserved_memory, device.reset_max_memory_stats,
    ):  # fmt: skip
        with pytest.raises(DeviceError, match="only the host"):
            question("gpu0")


def test_preallocation_is_checked() -> None:
    device.set_prealloc_config(64, 1 << 20, 0, 1.5, device.DeviceType.CPU)
    with pytest.raises(DeviceError, match="alignment, growth_factor"):
        device.set_prealloc_config(alignment=3, growth_factor=0.5)


def test_what_devices_there_are_can_be_asked_at_the_top() -> None:
    asked = [name for name in dir(device) if name.startswith(("is_", "get_", "reset_"))]
    assert {"is_cuda_available", "get_device_count", "get_mem_status_bytes"} <= set(asked)
    for name in [*asked, "coalesce_free_memory", "set_prealloc_config", "what_is_xpu"]:
        assert getattr(ty, name) is getattr(device, name), name
    assert ty.is_cuda_available() == (ty.get_device_count("gpu") > 0)
