"""Names, parameters and defaults are those that MegEngine's users know."""

from __future__ import annotations

import inspect
import io
import pickle
from typing import Any

import numpy as np
import pytest
import tianyuan as ty
from tianyuan import amp, autodiff, device, dtr, jit
from tianyuan.errors import AttrError

# parameters in order with their defaults; `*` begins those that are given by keyword only
SIGNATURES: dict[Any, str] = {
    autodiff.GradManager.attach: "self, tensors, callbacks=None",
    autodiff.GradManager.backward: "self, y=None, dy=None",
    autodiff.GradManager.record: "self",
    autodiff.GradManager.release: "self",
    autodiff.GradManager.attached_tensors: "self",
    amp.GradScaler: "init_scale=16.0, growth_factor=2.0, backoff_factor=0.5, growth_interval=2000",
    amp.GradScaler.backward: (
        "self, gm, y=None, dy=None, *, unscale_grad=True, update_scale='if_unscale_grad'"
    ),
    amp.GradScaler.unscale: "self, grad_tensors",
    amp.GradScaler.update: "self, new_scale=None",
    amp.GradScaler.load_state_dict: "self, state",
    amp.autocast: "enabled=True, low_prec_dtype='float16', high_prec_dtype='float32'",
    amp.convert_module_format: "module, inplace=True",
    amp.convert_tensor_format: "x, inplace=True",
    device.get_device_count: "device_type",
    device.set_default_device: "device='xpux'",
    device.get_mem_status_bytes: "device=None",
    device.get_allocated_memory: "device=None",
    device.get_reserved_memory: "device=None",
    device.get_max_allocated_memory: "device=None",
    device.get_max_reserved_memory: "device=None",
    device.reset_max_memory_stats: "device=None",
    device.set_prealloc_config: (
        "alignment=1, min_req=33554432, max_overhead=0, growth_factor=2.0, "
        f"device_type={device.DeviceType.CUDA!r}"
    ),
    dtr.enable: "",
    dtr.disable: "",
    jit.DTRConfig: (
        "eviction_threshold=0, evictee_minimum_size=1048576, recomp_memory_factor=1, "
        "recomp_time_factor=1"
    ),
    jit.GraphOptimizationConfig: "",
    jit.exclude_from_trace: "",
    jit.partial_trace: (
        "func=None, *, backend='default', without_host=True, trace_gmcallback=True, "
        "**trace_options"
    ),
    jit.trace.dump: (
        "self, file, *, arg_names=None, output_names=None, append=False, keep_var_name=1, "
        "keep_opr_name=False, keep_param_name=False, keep_opr_priority=False, "
        "no_change_graph=False, strip_info_file=None, append_json=False, "
        "optimize_for_inference=True, user_info=None, enable_metadata=True, input_data=None, "
        "repeat=1, silent=False, no_assert=False, maxerr=0.0001, resize_input=False, "
        "input_transform=None, dump_format=None, model_version=2, compat_older_version=None, "
        "dynamic_shapes=None, **kwargs"
    ),
    jit.trace.__init__: (
        "self, function=None, *, symbolic=False, capture_as_const=False, record_only=False, "
        "sublinear_memory_config=None, dtr_config=None, profiling=False, opt_level=2, "
        "graph_opt_config=None, symbolic_shape=True, without_host=False, imperative=False, "
        "dynamic_shapes=None, precision='full'"
    ),
    ty.Tensor: (
        "data, dtype=None, device=None, is_const=False, no_cache=False, name=None, "
        "format='default'"
    ),
    ty.Tensor.astype: "self, dtype",
    ty.Tensor.flatten: "self, start_axis=0, end_axis=-1",
    ty.Tensor.item: "self, *index",
    ty.Tensor.mean: "self, axis=None, keepdims=False, *, keepdim=False",
    ty.Tensor.to: "self, device, *, _borrow=False",
    ty.Tensor.reset_zero: "self",
    ty.Tensor.set_value: "self, value",
}  # fmt: skip


@pytest.mark.parametrize("name", SIGNATURES, ids=lambda item: item.__qualname__)
def test_signatures(name: Any) -> None:
    bare = [
        parameter.replace(annotation=inspect.Parameter.empty)
        for parameter in inspect.signature(name).parameters.values()
    ]
    assert str(inspect.Signature(bare)) == f"({SIGNATURES[name]})"


def test_sublinear_config_counts_the_cores() -> None:
    config = jit.SublinearMemoryConfig()
    assert config.num_worker == max(1, device.get_device_count("cpu") // 2)
    assert (config.thresh_nr_try, config.genetic_nr_iter) == (10, 0)
    assert (config.genetic_pool_size, config.lb_memory_mb) == (20, 0)


def test_saving_takes_megengines_arguments() -> None:
    file = io.BytesIO()
    ty.save({"a": ty.Tensor([1.0])}, file, pickle, 2)
    file.seek(0)
    assert ty.load(file, "cpu0", pickle)["a"].numpy() == [1]
    with pytest.raises(AttrError, match="nothing is pickled, got pickle_module=json"):
        ty.save(1, file, pickle_module=__import__("json"))
    with pytest.raises(AttrError, match="nothing is pickled"):
        ty.load(file, pickle_module=None)


def test_a_pickled_tensor_is_put_where_the_callback_says() -> None:
    x, seen = ty.Tensor([1.0, 2.0], name="x"), []
    text = pickle.dumps(x)

    def callback(where: str) -> str:
        seen.append(where)
        return "cpux"

    assert ty.Tensor.dmap_callback is None
    try:
        ty.Tensor.dmap_callback = callback
        found = pickle.loads(text)
    finally:
        ty.Tensor.dmap_callback = None
    assert (seen, found.device, found.name) == (["cpu"], "cpu", "x")
    np.testing.assert_array_equal(found.numpy(), x.numpy())


def test_tensors_tell_what_they_are() -> None:
    x = ty.Tensor(np.arange(6.0).reshape(2, 3), name="x")
    assert (x.shape, x.ndim, x.size, x.dtype.name) == ((2, 3), 2, 6, "float32")
    assert (x.device, x.format, x.name, x.qparams, x.grad) == ("cpu", "default", "x", None, None)
    np.testing.assert_array_equal(x.T.numpy(), x.numpy().T)
    np.testing.assert_array_equal(x.transpose(1, 0).numpy(), x.numpy().T)
    np.testing.assert_array_equal(x.reshape(3, -1).numpy(), x.numpy().reshape(3, 2))
    assert x.flatten().shape == (6,)
    assert x.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert (x.item(1, 2), x.sum().item(), x.prod().item()) == (5, 15, 0)
    assert (x.min().item(), x.max().item(), x.mean().item()) == (0, 5, 2.5)
    assert x.max(axis=1, keepdims=True).tolist() == [[2], [5]]
    x.set_value(np.ones((2, 3)))
    assert x.sum().item() == 6
    x.reset_zero()
    assert x.sum().item() == 0
    for action in (
        lambda: x.requires_grad,
        lambda: setattr(x, "requires_grad", True),
        lambda: delattr(x, "requires_grad"),
    ):
        with pytest.raises(AttributeError):
            action()
