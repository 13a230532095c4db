"""Public names, argument order and defaults are MegEngine's."""

from __future__ import annotations

import inspect
from functools import reduce

import pytest
import tianyuan.functional
import tianyuan.random

# Facts about MegEngine 1.13's interface.
SIGNATURES = """
functional.abs(x)
functional.acos(x)
functional.acosh(x)
functional.adaptive_avg_pool2d(inp, oshp)
functional.adaptive_max_pool2d(inp, oshp)
functional.add(x, y)
functional.arange(start=0, stop=None, step=1, *, dtype='float32', device=None)
functional.argmax(inp, axis=None, keepdims=False)
functional.argmin(inp, axis=None, keepdims=False)
functional.argsort(inp, descending=False)
functional.asin(x)
functional.asinh(x)
functional.atan(x)
functional.atan2(y, x)
functional.atanh(x)
functional.avg_pool2d(inp, kernel_size, stride=None, padding=0, \
mode='average_count_exclude_padding')
functional.batch_norm(inp, running_mean=None, running_var=None, weight=None, bias=None, *, \
training=False, momentum=0.9, eps=1e-05, inplace=True)
functional.broadcast_to(inp, shape)
functional.ceil(x)
functional.clip(x, lower=None, upper=None)
functional.concat(inps, axis=0, device=None)
functional.cond_take(mask, x)
functional.conv1d(inp, weight, bias=None, stride=1, padding=0, dilation=1, groups=1, \
conv_mode='cross_correlation', compute_mode='default')
functional.conv2d(inp, weight, bias=None, stride=1, padding=0, dilation=1, groups=1, \
conv_mode='cross_correlation', compute_mode='default')
functional.conv3d(inp, weight, bias=None, stride=1, padding=0, dilation=1, groups=1, \
conv_mode='cross_correlation')
functional.conv_transpose2d(inp, weight, bias=None, stride=1, padding=0, output_padding=0, \
dilation=1, groups=1, conv_mode='cross_correlation', compute_mode='default')
functional.conv_transpose3d(inp, weight, bias=None, stride=1, padding=0, output_padding=0, \
dilation=1, groups=1)
functional.copy(inp, device=None)
functional.cos(x)
functional.cosh(x)
functional.cross(a, b, axisa=-1, axisb=-1, axisc=-1, axis=None)
functional.cumsum(inp, axis)
functional.deformable_conv2d(inp, weight, offset, mask, bias=None, stride=1, padding=0, \
dilation=1, groups=1, conv_mode='cross_correlation', compute_mode='default')
functional.diag(inp, k=0)
functional.div(x, y)
functional.dot(inp1, inp2)
functional.dropout(inp, drop_prob, training=True)
functional.einsum(equation, *args)
functional.embedding(inp, weight, padding_idx=None, max_norm=None, norm_type=None)
functional.equal(x, y)
functional.erf(x)
functional.exp(x)
functional.expand_dims(inp, axis)
functional.expm1(x)
functional.eye(N, M=None, *, dtype='float32', device=None)
functional.flatten(inp, start_axis=0, end_axis=-1)
functional.floor(x)
functional.floor_div(x, y)
functional.full(shape, value, *, dtype=None, device=None)
functional.full_like(inp, value)
functional.gather(inp, axis, index)
functional.gelu(x)
functional.general_norm(inp, normalized_axis, affine=True, weight=None, bias=None, eps=1e-05)
functional.greater(x, y)
functional.greater_equal(x, y)
functional.group_norm(inp, num_groups, affine, weight=None, bias=None, eps=1e-05)
functional.hsigmoid(x)
functional.hswish(x)
functional.indexing_one_hot(src, index, axis=1, keepdims=False)
functional.instance_norm(inp, affine, weight=None, bias=None, eps=1e-05)
functional.isinf(inp)
functional.isnan(inp)
functional.layer_norm(inp, normalized_shape, affine, weight=None, bias=None, eps=1e-05)
functional.leaky_relu(inp, negative_slope=0.01)
functional.left_shift(x, y)
functional.less(x, y)
functional.less_equal(x, y)
functional.linear(inp, weight, bias=None, compute_mode='default')
functional.linspace(start, stop, num, *, dtype='float32', device=None)
functional.local_conv2d(inp, weight, bias=None, stride=1, padding=0, dilation=1, \
conv_mode='cross_correlation')
functional.local_response_norm(inp, kernel_size=5, k=2.0, alpha=0.0001, beta=0.75)
functional.log(x)
functional.log1p(x)
functional.logaddexp(x, y)
functional.logical_and(x, y)
functional.logical_not(x)
functional.logical_or(x, y)
functional.logical_xor(x, y)
functional.logsigmoid(inp)
functional.logsoftmax(inp, axis)
functional.logsumexp(inp, axis, keepdims=False)
functional.loss.binary_cross_entropy(pred, label, with_logits=True, reduction='mean')
functional.loss.cross_entropy(pred, label, axis=1, with_logits=True, label_smooth=0, \
reduction='mean')
functional.loss.ctc_loss(pred, pred_lengths, label, label_lengths, blank=0, reduction='mean')
functional.loss.hinge_loss(pred, label, norm='L1', reduction='mean')
functional.loss.l1_loss(pred, label, reduction='mean')
functional.loss.square_loss(pred, label, reduction='mean')
functional.matinv(inp)
functional.matmul(inp1, inp2, transpose_a=False, transpose_b=False, compute_mode='default')
functional.max(inp, axis=None, keepdims=False)
functional.max_pool2d(inp, kernel_size, stride=None, padding=0)
functional.maximum(x, y)
functional.mean(inp, axis=None, keepdims=False)
functional.meshgrid(*inputs, indexing='xy')
functional.min(inp, axis=None, keepdims=False)
functional.minimum(x, y)
functional.mod(x, y)
functional.mul(x, y)
functional.neg(x)
functional.non_zero(condition, as_tuple=False)
functional.norm(inp, ord=None, axis=None, keepdims=False)
functional.normalize(inp, ord=None, axis=None, eps=1e-12)
functional.not_equal(x, y)
functional.one_hot(inp, num_classes)
functional.ones(shape, *, dtype='float32', device=None)
functional.ones_like(inp)
functional.pad(src, pad_width, mode='constant', constant_value=0.0)
functional.pixel_shuffle(inp, upscale_factor)
functional.pow(x, y)
functional.prelu(x, y)
functional.prod(inp, axis=None, keepdims=False)
functional.relu(x)
functional.relu6(x)
functional.repeat(inp, repeats, axis=None)
functional.reshape(inp, target_shape)
functional.right_shift(x, y)
functional.roll(inp, shift, axis=None)
functional.round(x)
functional.scatter(inp, axis, index, source)
functional.sigmoid(x)
functional.sign(x)
functional.silu(x)
functional.sin(x)
functional.sinh(x)
functional.sliding_window(inp, kernel_size, padding=0, stride=1, dilation=1)
functional.sliding_window_transpose(inp, output_size, kernel_size, padding=0, stride=1, \
dilation=1)
functional.softmax(inp, axis=None)
functional.softplus(inp)
functional.sort(inp, descending=False, dim=-1)
functional.split(inp, nsplits_or_sections, axis=0)
functional.sqrt(x)
functional.square(x)
functional.squeeze(inp, axis=None)
functional.stack(inps, axis=0, device=None)
functional.std(inp, axis=None, keepdims=False)
functional.sub(x, y)
functional.sum(inp, axis=None, keepdims=False)
functional.swapaxes(inp, axis1, axis2)
functional.tan(x)
functional.tanh(x)
functional.tile(inp, reps)
functional.topk(inp, k, descending=True, kth_only=False, no_sort=False)
functional.transpose(inp, pattern)
functional.var(inp, axis=None, keepdims=False)
functional.vision.interpolate(inp, size=None, scale_factor=None, mode='bilinear', \
align_corners=None)
functional.vision.nms(boxes, scores, iou_thresh, max_output=None)
functional.vision.remap(inp, map_xy, border_mode='replicate', scalar=0.0, interp_mode='linear')
functional.vision.resize(inp, size, format='NCHW', imode='bilinear', max_size=None)
functional.vision.roi_align(inp, rois, output_shape, mode='average', spatial_scale=1.0, \
sample_points=2, aligned=True)
functional.vision.roi_pooling(inp, rois, output_shape, mode='max', scale=1.0)
functional.vision.warp_affine(inp, mat, out_shape, border_mode='replicate', border_val=0.0, \
format='NHWC', interp_mode='linear')
functional.vision.warp_perspective(inp, mat, out_shape, mat_idx=None, border_mode='replicate', \
border_val=0.0, format='NCHW', interp_mode='linear')
functional.where(mask, x=None, y=None)
functional.zeros(shape, *, dtype='float32', device=None)
functional.zeros_like(inp)
random.RNG(seed=None, device=None)
random.RNG.beta(alpha, beta, size=None)
random.RNG.exponential(rate=1.0, size=None)
random.RNG.gamma(shape, scale=1, size=None)
random.RNG.multinomial(input, num_samples, replacement=False)
random.RNG.normal(mean=0, std=1, size=None)
random.RNG.permutation(n, *, dtype='int32')
random.RNG.poisson(lam, size=None)
random.RNG.shuffle(inp)
random.RNG.uniform(low=0, high=1, size=None)
random.seed(seed)
"""


@pytest.mark.parametrize("line", SIGNATURES.strip().splitlines())
def test_signature(line):
    path, arguments = line[:-1].split("(", 1)
    found = reduce(getattr, path.split("."), tianyuan)
    scope: dict[str, object] = {}
    exec(f"def wanted({arguments}): pass", scope)
    want = inspect.signature(scope["wanted"]).parameters.values()
    got = [p for p in inspect.signature(found).parameters.values() if p.name != "self"]
    expected = [(p.name, p.kind, p.default) for p in want]
    assert [(p.name, p.kind, p.default) for p in got[: len(expected)]] == expected
    # What we offer beyond MegEngine comes by keyword, and may be left out.
    more = got[len(expected) :]
    assert all(p.kind is p.KEYWORD_ONLY and p.default is not p.empty for p in more)


@pytest.mark.parametrize("room", ["elemwise", "math", "tensor", "metric"])
def test_rooms_are_flat_too(room):
    F = tianyuan.functional
    names = getattr(F, room).__all__
    assert all(getattr(F, name) is getattr(getattr(F, room), name) for name in names)


def test_networks_hold_losses_metrics_and_image_functions():
    F = tianyuan.functional
    for room in (F.loss, F.metric, F.vision):
        assert all(getattr(F.nn, name) is getattr(room, name) for name in room.__all__)
    assert not {"cross_entropy", "interpolate", "nms"} & set(dir(F))
